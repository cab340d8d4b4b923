"""Between torch's floats and the device's integers: samples, targets, parameters and logits.

Test: ``tests/test_device.py``.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from ..model.errors import InputError
from ..model.fixed import quantize
from ..model.losses import check_unit_interval, label_range, wrong_labels
from ..model.plan import ParameterPlan, Plan

__all__ = [
    "float_logits",
    "float_parameters",
    "parameter_plans",
    "parameter_shapes",
    "quantize_parameters",
    "quantize_samples",
    "quantize_targets",
]


def quantize_samples(plan: Plan, x: Tensor, where: str = "x") -> Tensor:
    """Return samples as int16 [N, C, H, W] in the input's format.

    ``x`` is floating [N, C, H, W], or [N, C] where the design's input is a vector.

    Raises
    ------
    InputError
        For another type, dtype or shape, and for NaN or infinite values; ``where`` names the
        tensor.
    """
    if not isinstance(x, Tensor):
        raise InputError(f"{where} must be a torch tensor, not {type(x).__name__}")
    if x.dtype not in (torch.float32, torch.float64):
        raise InputError(
            f"{where} must be float32 or float64, not {str(x.dtype).removeprefix('torch.')}"
        )
    shape = plan.input_shape
    flat = shape[1:] == (1, 1) and tuple(x.shape[1:]) == shape[:1]
    if x.ndim < 2 or not (flat or tuple(x.shape[1:]) == shape):
        raise InputError(
            f"{where} must have shape [N, {', '.join(map(str, shape))}], not {list(x.shape)}"
        )
    values, _ = quantize(x.detach().cpu(), plan.layers[0].i_feature, name=where)
    return values.to(torch.int16).reshape(-1, *shape)


def quantize_targets(plan: Plan, y: Tensor, count: int, where: str = "y") -> Tensor:
    """Return labels as int64 [N] under cross-entropy, where ``outputs`` stands for ignored ones, or
    values as int16 [N, outputs] in the logits' format.

    Raises
    ------
    InputError
        For another dtype, length or shape than ``count`` samples have, labels out of range, NaN or
        infinite values, and under binary cross-entropy values below 0 or above 1.
    """
    outputs = plan.loss.outputs
    if not isinstance(y, Tensor):
        raise InputError(f"{where} must be a torch tensor, not {type(y).__name__}")
    dtype = str(y.dtype).removeprefix("torch.")
    if plan.loss.labels:
        if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
            raise InputError(f"{where} must be integer labels for cross-entropy, not {dtype}")
        if tuple(y.shape) != (count,):
            raise InputError(f"{where} must have shape [{count}], not {list(y.shape)}")
        labels = y.detach().cpu().long()
        ignore = plan.loss.ignore_index
        wrong = wrong_labels(labels, outputs, ignore)
        if len(wrong):
            first = int(wrong[0])
            raise InputError(
                f"{where} must be {label_range(outputs, ignore)}, not {int(labels[first])} at "
                f"index {first}"
            )
        return labels if ignore is None else labels.masked_fill(labels == ignore, outputs)
    if y.dtype not in (torch.float32, torch.float64):
        raise InputError(f"{where} must be float32 or float64 for {plan.loss.kind}, not {dtype}")
    if tuple(y.shape) != (count, outputs) and not (outputs == 1 and tuple(y.shape) == (count,)):
        raise InputError(f"{where} must have shape [{count}, {outputs}], not {list(y.shape)}")
    values, _ = quantize(y.detach().cpu(), plan.loss.feature, name=where)
    if plan.loss.kind == "binary_cross_entropy":
        check_unit_interval(where, y.detach().cpu())
    return values.to(torch.int16).reshape(count, outputs)


def parameter_plans(plan: Plan) -> dict[str, ParameterPlan]:
    """Formats of every trained tensor, by its key in ``state_dict()``."""
    found = {}
    for layer in plan.trainable:
        for kind, formats in (("weight", layer.weight), ("bias", layer.bias)):
            if formats is not None:
                found[f"{layer.name}.{kind}"] = formats
    return found


def parameter_shapes(plan: Plan) -> dict[str, tuple[int, ...]]:
    """torch's shape of every trained tensor, by its key in ``state_dict()``."""
    shapes: dict[str, tuple[int, ...]] = {}
    for layer in plan.trainable:
        outputs, inputs = layer.o_shape[0], layer.group_shape[1]
        height, width = layer.kernel
        if layer.kind == "scale":
            shape: tuple[int, ...] = (outputs,)
        elif layer.kind == "linear":
            shape = (outputs, inputs * height * width)
        else:
            shape = (outputs, inputs, height, width)
        shapes[f"{layer.name}.weight"] = shape
        if layer.bias is not None:
            shapes[f"{layer.name}.bias"] = (outputs,)
    return shapes


def quantize_parameters(plan: Plan, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the master weights int64 of a torch ``state_dict()``, in torch's shapes.

    Raises
    ------
    InputError
        For a missing tensor, another shape, NaN or infinite values.
    """
    masters = {}
    for name, shape in parameter_shapes(plan).items():
        if name not in state:
            raise InputError(f"state_dict must have {name!r}; it has {sorted(state)}")
        if tuple(state[name].shape) != shape:
            raise InputError(f"{name} must have shape {list(shape)}, not {list(state[name].shape)}")
        chosen = parameter_plans(plan)[name].master
        masters[name], _ = quantize(state[name].detach().cpu(), chosen, name=name)
    return masters


def float_parameters(plan: Plan, masters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return float32 tensors that ``load_state_dict`` of the torch model takes."""
    plans = parameter_plans(plan)
    return {
        name: (value.double() * plans[name].master.step).float() for name, value in masters.items()
    }


def float_logits(plan: Plan, logits: Tensor) -> Tensor:
    """Return logits float32 [N, outputs]; exact, as 16-bit integers fit."""
    return logits.float() * plan.loss.feature.step
