"""Calibration: chooses every tensor's fraction bits from sample data, with float autograd.

Tensors are named as in ``model/float_forward.py``, parameters also with ``.master``.
``model/format_classes.py`` says which tensors share a format, ``model/choose.py`` chooses it, and
``model/format_report.py`` tells of choices that lose a tensor.

Test: ``tests/test_calibrate.py``.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from .choose import Chooser
from .errors import InputError
from .float_forward import float_tensors, parameter_names
from .format_report import report, warn
from .formats import Format
from .graph import Formats, Graph
from .losses import check_unit_interval, label_range, wrong_labels

__all__ = ["calibrate"]

SAMPLES_MAX = 1024


def calibrate(
    graph: Graph,
    parameters: Mapping[str, Tensor],
    example: Tensor,
    targets: Tensor | None = None,
    *,
    batch: int = 32,
    formats: Mapping[str, Format | int] | None = None,
    seed: int = 0,
    per_channel: bool = False,
) -> Formats:
    """Choose the formats of all tensors from at most 1024 samples of ``example``.

    Sample data show a network as it is now, mostly untrained, so formats leave room to grow.
    Features and errors get 4 bits above the largest magnitude seen (fewer below 16 bits, at least
    1), and logits under both cross-entropies at least 6 integer bits. Weights get 2 bits, and more
    up to a range of +-4 while their largest value keeps 10 bits; a bias gets at least as wide a
    range as if it were its layer's output. Gradients get 10 bits above the largest sum over a
    mini-batch.
    The error of the logits under both cross-entropies is exact: 1 integer bit, or what the largest
    class weight needs; under Huber's loss it gets no more than delta needs. Tensors that pass a
    layer unchanged, and all that meet in an addition or a concatenation, share one format, which
    holds the largest of them. What a dropout may keep counts as large as it makes it.

    Parameters
    ----------
    parameters : torch's ``state_dict()``, floating
    example : floating [N, C, H, W] or [N, features]
    targets : labels int [N] or values [N, outputs]; random ones from ``seed`` when None
    batch : samples per mini-batch that gradients are summed over; scaled up when ``example`` has
        fewer
    formats : choices by hand: a name, a pattern such as ``conv*.weight``, or a kind (``feature``,
        ``error``, ``weight``, ``bias``, ``master``, ``gradient``) to a ``Format``, or to a width in
        bits whose fraction is still calibrated; a tensor's choice is that of all that share its
        format
    per_channel : give each output channel's working weights the fraction bits that its own largest
        weight allows, up to 8 more than the tensor's; not where a ``Format`` is given by hand

    Raises
    ------
    InputError
        For NaN or infinite values, a name in ``formats`` that fits no tensor, and two choices for
        tensors that share one format.
    FormatError
        For a format by hand that the hardware cannot carry.

    Warns
    -----
    GradweaveWarning
        When a choice turns a whole tensor to zero or saturates more than 1 % of it.
    """
    for name, tensor in parameters.items():
        _check_finite(name, tensor)
    state = {name: parameters[name].detach().double() for name in parameter_names(graph)}
    _check_finite("example_input", example)
    x = example[:SAMPLES_MAX].detach().double().reshape(-1, *graph.input_shape)
    t = _targets(graph, len(x), targets, seed)
    if not bool(x.any()):
        warn(
            "example_input is zero everywhere: pass a batch of real samples, as formats are "
            "chosen from it",
            stacklevel=3,
        )
    largest: dict[str, float] = {}
    for tensors in float_tensors(graph, state, x, t, batch):
        for name, tensor in tensors.items():
            largest[name] = max(largest.get(name, 0.0), float(tensor.abs().max()))
    for node in graph.nodes:
        if node.kind == "dropout":
            for name in (f"{node.name}.feature", f"{graph.sources[node.name][0]}.error"):
                if name in largest:
                    largest[name] /= 1 - node.drop
    channels: dict[str, list[float]] = {}
    if per_channel:
        for node in graph.trainable:
            weight = state[f"{node.name}.weight"]
            rows = weight.abs().reshape(len(weight), -1)
            channels[f"{node.name}.weight"] = rows.amax(1).tolist()
    scale = max(1.0, batch / len(x))
    chooser = Chooser(graph, largest, dict(formats or {}), scale, channels)
    chosen = chooser.formats()
    report(chooser.tensors, float_tensors(graph, state, x, t, batch))
    return chosen


def _check_finite(name: str, tensor: Tensor) -> None:
    """Raise InputError with the first index that is NaN or infinite."""
    if bool(torch.isfinite(tensor).all()):
        return
    index = torch.nonzero(~torch.isfinite(tensor))[0]
    value = tensor[tuple(index)].item()
    raise InputError(f"{name} must be finite, not {value} at {index.tolist()}")


def _targets(graph: Graph, count: int, targets: Tensor | None, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    if graph.loss == "cross_entropy":
        if targets is None:
            return torch.randint(graph.outputs, (count,), generator=generator)
        if targets.is_floating_point() or targets.ndim != 1 or len(targets) < count:
            raise InputError(
                f"targets must be integer labels [{count}], not {targets.dtype} "
                f"{list(targets.shape)}"
            )
        labels = targets[:count].long()
        ignore = graph.loss_options.ignore_index
        wrong = labels[wrong_labels(labels, graph.outputs, ignore)]
        if len(wrong):
            raise InputError(
                f"targets must be {label_range(graph.outputs, ignore)}, not {int(wrong[0])}"
            )
        return labels
    if targets is None and graph.loss == "binary_cross_entropy":
        return torch.randint(2, (count, graph.outputs), generator=generator).double()
    if targets is None:
        return torch.randn(count, graph.outputs, generator=generator, dtype=torch.float64)
    if len(targets) < count or targets[0].numel() != graph.outputs:
        raise InputError(
            f"targets must have shape [{count}, {graph.outputs}], not {list(targets.shape)}"
        )
    _check_finite("targets", targets)
    values = targets[:count].double().reshape(count, graph.outputs)
    if graph.loss == "binary_cross_entropy":
        check_unit_interval("targets", values)
    return values
