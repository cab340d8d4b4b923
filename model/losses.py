"""Losses as torch names them: read from a string or a module, refused by name, computed in floats.

Used by ``model/trace.py`` and ``model/calibrate.py``. The integers are in
``model/loss_options.py``, the golden errors in ``model/pipeline/cross_entropy.py``, ``mse.py``,
``huber.py`` and ``binary_cross_entropy.py``. Test: ``tests/test_losses.py``.
"""

import math
import warnings
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .errors import GradweaveWarning, InputError, UnsupportedError
from .loss_options import LossOptions, fixed_weights

__all__ = [
    "LOSSES",
    "check_loss",
    "check_unit_interval",
    "label_range",
    "read_loss",
    "summed_loss",
    "wrong_labels",
]

LOSSES = {
    "cross_entropy": "cross_entropy",
    "mse": "mse",
    "huber": "huber",
    "bce_with_logits": "binary_cross_entropy",
}
CLASS_WEIGHT_LIMIT = 2.0**15

_MODULES = (
    "CrossEntropyLoss, MSELoss, HuberLoss, SmoothL1Loss and BCEWithLogitsLoss are those there are"
)
_INSTEAD = {
    "BCELoss": "use BCEWithLogitsLoss and let the model return logits, without sigmoid",
    "NLLLoss": "use CrossEntropyLoss and let the model return logits, without log-softmax",
    "L1Loss": "use HuberLoss with a small delta",
}


def read_loss(loss: object) -> tuple[str, LossOptions]:
    """Return the kind of a ``LossPlan`` and the options of a loss's name or torch module.

    Raises
    ------
    InputError
        For another name or type, a class weight that is negative, not finite or 32768 and above,
        and ``delta`` or ``beta`` that is not above 0.
    UnsupportedError
        For another module, ``reduction='none'``, label smoothing, and weights in ``MSELoss`` or
        ``BCEWithLogitsLoss``.
    """
    if isinstance(loss, str) and loss in LOSSES:
        return LOSSES[loss], LossOptions()
    if not isinstance(loss, nn.Module):
        raise InputError(f"loss must be one of {list(LOSSES)} or a torch loss module, not {loss!r}")
    name = type(loss).__name__
    if type(loss) is nn.CrossEntropyLoss:
        kind, options = "cross_entropy", _cross_entropy(loss)
    elif type(loss) is nn.MSELoss:
        kind, options = "mse", LossOptions()
    elif type(loss) is nn.HuberLoss:
        kind, options = "huber", LossOptions(delta=_positive(name, "delta", loss.delta))
    elif type(loss) is nn.SmoothL1Loss:
        beta = _positive(name, "beta", loss.beta)
        kind, options = "huber", LossOptions(delta=beta, smooth_l1=True)
    elif type(loss) is nn.BCEWithLogitsLoss:
        for argument in ("weight", "pos_weight"):
            if getattr(loss, argument) is not None:
                raise UnsupportedError(
                    f"BCEWithLogitsLoss({argument}=...) is not supported: leave it None"
                )
        kind, options = "binary_cross_entropy", LossOptions()
    else:
        raise UnsupportedError(f"{name} is not supported as a loss: {_INSTEAD.get(name, _MODULES)}")
    if loss.reduction not in ("mean", "sum"):
        raise UnsupportedError(
            f"{name}(reduction={loss.reduction!r}) is not supported: use 'mean' or 'sum'"
        )
    return kind, replace(options, reduction=str(loss.reduction))


def _cross_entropy(loss: nn.CrossEntropyLoss) -> LossOptions:
    if loss.label_smoothing:
        raise UnsupportedError(
            f"CrossEntropyLoss(label_smoothing={loss.label_smoothing}) is not supported: use 0"
        )
    weights: tuple[float, ...] = ()
    if loss.weight is not None:
        weights = tuple(loss.weight.detach().double().flatten().tolist())
        for n, weight in enumerate(weights):
            if not 0 <= weight < CLASS_WEIGHT_LIMIT:
                raise InputError(
                    f"CrossEntropyLoss: weight[{n}] must be finite, at least 0 and below "
                    f"{CLASS_WEIGHT_LIMIT:g}, not {weight:g}"
                )
        if not any(weights):
            raise InputError("CrossEntropyLoss: weight must be above 0 for some class")
    return LossOptions(class_weights=weights, ignore_index=loss.ignore_index)


def _positive(name: str, argument: str, value: float) -> float:
    if not (math.isfinite(value) and value > 0):
        raise InputError(f"{name}: {argument} must be finite and above 0, not {value:g}")
    return float(value)


def check_loss(kind: str, options: LossOptions, outputs: int) -> None:
    """Raise unless a loss fits a model of so many outputs.

    Raises
    ------
    UnsupportedError
        For cross-entropy of a single output.
    InputError
        For another number of class weights than outputs.

    Warns
    -----
    GradweaveWarning
        Where class weights become zero in 16 bits, and under ``reduction='mean'``, whose divisor
        depends on the labels in torch alone.
    """
    if kind != "cross_entropy":
        return
    if outputs < 2:
        raise UnsupportedError(
            f"cross_entropy needs at least 2 outputs, not {outputs}: use loss='bce_with_logits' or "
            "'mse'"
        )
    weights = options.class_weights
    if not weights:
        return
    if len(weights) != outputs:
        raise InputError(
            f"CrossEntropyLoss: weight must have one value an output, {outputs}, not {len(weights)}"
        )
    fixed, _ = fixed_weights(weights)
    lost = [n for n, weight in enumerate(weights) if weight and not fixed[n]]
    if lost:
        _warn(
            f"CrossEntropyLoss: weight[{lost[0]}] = {weights[lost[0]]:g} becomes zero beside the "
            f"largest, {max(weights):g}: class weights have 16 bits"
        )
    if options.reduction == "mean":
        _warn(
            "CrossEntropyLoss(weight=..., reduction='mean') divides by the number of samples of a "
            "mini-batch, where torch divides by the weights of their labels: use reduction='sum' "
            "for torch's very gradient"
        )


def _warn(text: str) -> None:
    warnings.warn(text, GradweaveWarning, stacklevel=5)


def summed_loss(kind: str, options: LossOptions, logits: Tensor, targets: Tensor) -> Tensor:
    """Return the loss summed over samples and outputs whose gradient is the hardware's error.

    ``logits`` floating [N, outputs]; ``targets`` int64 [N] or floating [N, outputs].
    """
    if kind == "cross_entropy":
        weights = options.class_weights
        return F.cross_entropy(
            logits,
            targets,
            weight=torch.tensor(weights, dtype=logits.dtype) if weights else None,
            ignore_index=-100 if options.ignore_index is None else options.ignore_index,
            reduction="sum",
        )
    if kind == "huber":
        return F.huber_loss(logits, targets, reduction="sum", delta=options.delta)
    if kind == "binary_cross_entropy":
        return F.binary_cross_entropy_with_logits(logits, targets, reduction="sum")
    return 0.5 * ((logits - targets) ** 2).sum()


def label_range(outputs: int, ignore_index: int | None) -> str:
    """Return the words for the labels that there are, such as ``labels from 0 to 9``."""
    ignored = "" if ignore_index is None else f" or ignore_index = {ignore_index}"
    return f"labels from 0 to {outputs - 1}{ignored}"


def wrong_labels(labels: Tensor, outputs: int, ignore_index: int | None) -> Tensor:
    """Return the indices of labels, int64 [N], that are neither a class nor ignored."""
    wrong = (labels < 0) | (labels >= outputs)
    if ignore_index is not None:
        wrong &= labels != ignore_index
    return torch.nonzero(wrong).flatten()


def check_unit_interval(name: str, values: Tensor) -> None:
    """Raise InputError with the first index of a value below 0 or above 1."""
    wrong = torch.nonzero((values < 0) | (values > 1))
    if len(wrong):
        index = wrong[0].tolist()
        raise InputError(
            f"{name} must be values from 0 to 1, not {values[tuple(index)].item():g} at {index}"
        )
