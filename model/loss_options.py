"""What a loss is told beside its kind, in real numbers, and how a plan holds it in integers.

``model/losses.py`` reads the options from torch, ``host/planner.py`` makes the ``LossPlan``. A leaf
of the standard library. Test: ``tests/test_losses.py``.
"""

import math
from dataclasses import dataclass

from .errors import FormatError
from .formats import Format
from .plan import LossPlan

__all__ = ["CLASS_WEIGHT_BITS", "LossOptions", "fixed_weights", "loss_plan"]

CLASS_WEIGHT_BITS = 16


@dataclass(frozen=True)
class LossOptions:
    """Fields are those of ``LossPlan``, as torch gives them; ``delta`` is in units of a logit."""

    class_weights: tuple[float, ...] = ()
    ignore_index: int | None = None
    delta: float = 1.0
    smooth_l1: bool = False
    reduction: str = "mean"

    def largest_error(self, kind: str) -> float | None:
        """The largest magnitude that a logit's error can have; None where there is no bound."""
        if kind == "mse":
            return None
        return self.delta if kind == "huber" else max(self.class_weights, default=1.0)


def fixed_weights(weights: tuple[float, ...]) -> tuple[tuple[int, ...], int]:
    """Return class weights as unsigned integers of at most 16 bits, and their fraction bits.

    As many fraction bits as the largest weight leaves, halves rounded to even, and none that all
    weights have at zero: ``(1.0, 0.5)`` gives ``(2, 1), 1``.
    """
    if not weights:
        return (), 0
    frac = CLASS_WEIGHT_BITS - math.frexp(max(weights))[1]
    if round(math.ldexp(max(weights), frac)) >> CLASS_WEIGHT_BITS:
        frac -= 1
    integers = [round(math.ldexp(weight, frac)) for weight in weights]
    while frac > 0 and not any(n & 1 for n in integers):
        integers, frac = [n >> 1 for n in integers], frac - 1
    return tuple(integers), frac


def loss_plan(
    kind: str, outputs: int, feature: Format, error: Format, options: LossOptions
) -> LossPlan:
    """Return the plan of a loss whose logits have format ``feature`` and their error ``error``.

    Raises
    ------
    FormatError
        When Huber's delta is below half a step of ``feature``, or ``feature`` does not hold the
        target 1 of binary cross-entropy, or ``error`` has no fraction bit to divide for.
    """
    delta = 0
    if kind == "huber":
        delta = min(round(math.ldexp(options.delta, feature.frac)), (1 << feature.width) - 1)
        if delta < 1:
            raise FormatError(
                f"delta must be at least a step of the logits' format {feature}, {feature.step:g}, "
                f"not {options.delta:g}: give the logits more fraction bits in formats"
            )
    if kind == "binary_cross_entropy" and not 0 <= feature.frac <= feature.width - 2:
        raise FormatError(
            f"logits must have 0 to {feature.width - 2} fraction bits under bce_with_logits, as "
            f"targets of 0 and 1 travel in their format, not {feature}"
        )
    if kind in ("cross_entropy", "binary_cross_entropy") and error.frac < 0:
        raise FormatError(
            f"the logits' error must have at least 0 fraction bits under {kind}, not {error}"
        )
    weights, weight_frac = fixed_weights(options.class_weights)
    return LossPlan(
        kind,
        outputs,
        feature,
        error,
        class_weights=weights,
        weight_frac=weight_frac,
        ignore_index=options.ignore_index,
        delta=delta,
        smooth_l1=options.smooth_l1,
        reduction=options.reduction,
    )
