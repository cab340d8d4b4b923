"""Hyperparameters as the update unit's run-time registers hold them, and their making from torch's
floats.

The hardware sums gradients, so the registers carry ``lr / divisor`` and ``weight_decay * divisor``,
where the divisor is what the hardware's sum is of torch's gradient. Under ``reduction='sum'`` it is
1, under ``mean`` the batch size and, for losses of n values, ``n * batch``. A mean squared error
halves it, as torch's gradient is ``2 * (z - t)`` and the hardware's error ``z - t``;
``SmoothL1Loss`` multiplies it by its beta. Torch's mean of a cross-entropy with class weights or
ignored labels divides by the weights of a mini-batch's labels: there the batch size stands for
them, and ``sum`` alone is torch's very gradient.

A leaf of the standard library. Golden: ``model/pipeline/update.py``. Test: ``tests/test_hyper.py``.
"""

import math
from dataclasses import dataclass

from .errors import InputError
from .plan import LossPlan, ParameterPlan, Plan

__all__ = ["MANTISSA_BITS", "SHIFT_MAX", "Hyper"]

MANTISSA_BITS = 16
SHIFT_MAX = 63

# A register shift, and the parameter that sets it as a limit.
Limit = tuple[int, str]


@dataclass(frozen=True)
class Hyper:
    """The registers of one mini-batch.

    The summed gradient is scaled by ``lr_mantissa * 2**-lr_shift``, the weight by ``decay_mantissa
    * 2**-decay_shift``, the momentum buffer by ``momentum * 2**-16``. ``divisor`` is no register:
    it is what the summed gradient is of torch's.
    """

    batch: int
    lr_mantissa: int
    lr_shift: int
    momentum: int = 0
    nesterov: bool = False
    decay_mantissa: int = 0
    decay_shift: int = 0
    divisor: float = 1.0

    @property
    def lr(self) -> float:
        """The learning rate that the registers stand for, in torch's terms."""
        return math.ldexp(self.lr_mantissa, -self.lr_shift) * self.divisor

    @property
    def momentum_rate(self) -> float:
        """The momentum that the register stands for."""
        return math.ldexp(self.momentum, -MANTISSA_BITS)

    @property
    def weight_decay(self) -> float:
        """The weight decay that the registers stand for, in torch's terms."""
        return math.ldexp(self.decay_mantissa, -self.decay_shift) / self.divisor

    @staticmethod
    def of(
        plan: Plan,
        *,
        batch: int,
        lr: float,
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
    ) -> "Hyper":
        """Return the registers nearest to torch's hyperparameters for the plan's loss and its
        reduction.

        Raises
        ------
        InputError
            ``batch`` outside 1 to ``plan.batch_max``, a rate outside its range, Nesterov's step
            without momentum, or a rate that 16 bits and the plan's formats cannot express: the
            message names the layer that sets the limit.
        """
        if (
            not isinstance(batch, int)
            or isinstance(batch, bool)
            or not 1 <= batch <= plan.batch_max
        ):
            raise InputError(f"batch must be from 1 to {plan.batch_max} samples, not {batch!r}")
        _check("lr", lr, "finite and above 0", lr > 0)
        _check("momentum", momentum, "at least 0 and below 1", 0 <= momentum < 1)
        _check("weight_decay", weight_decay, "finite and at least 0", weight_decay >= 0)
        if nesterov and not momentum:
            raise InputError("momentum must be above 0 for Nesterov's step, not 0")
        divisor = _divisor(plan.loss, batch)
        lr_mantissa, lr_shift = _register("lr", lr / divisor, _limits(plan, 1))
        decay_mantissa, decay_shift = _register(
            "weight_decay", weight_decay * divisor, _limits(plan, -1)
        )
        return Hyper(
            batch=batch,
            lr_mantissa=lr_mantissa,
            lr_shift=lr_shift,
            momentum=min(round(momentum * (1 << MANTISSA_BITS)), (1 << MANTISSA_BITS) - 1),
            nesterov=bool(nesterov),
            decay_mantissa=decay_mantissa,
            decay_shift=decay_shift,
            divisor=divisor,
        )


def _divisor(loss: LossPlan, batch: int) -> float:
    values = 1 if loss.labels else loss.outputs
    divisor = float(batch * values) if loss.reduction == "mean" else 1.0
    if loss.kind == "mse":
        divisor /= 2
    return divisor * loss.delta * loss.feature.step if loss.smooth_l1 else divisor


def _check(name: str, value: float, condition: str, holds: bool) -> None:
    if not math.isfinite(value) or not holds:
        raise InputError(f"{name} must be {condition}, not {value}")


def _parameters(plan: Plan) -> list[tuple[str, ParameterPlan]]:
    return [
        (f"{layer.name}.{part}", parameter)
        for layer in plan.trainable
        for part, parameter in (("weight", layer.weight), ("bias", layer.bias))
        if parameter is not None
    ]


def _limits(plan: Plan, sign: int) -> tuple[Limit, Limit]:
    """Return the smallest and the largest 6-bit shift that keep every parameter's total shift in 0
    to 63.

    The total is the register's shift plus ``sign * (gradient.frac - master.frac)``.
    """
    rows = [(sign * (p.gradient.frac - p.master.frac), name) for name, p in _parameters(plan)]
    low, low_name = max((-extra, name) for extra, name in rows)
    high, high_name = min((SHIFT_MAX - extra, name) for extra, name in rows)
    return (max(low, 0), low_name), (min(high, SHIFT_MAX), high_name)


def _register(name: str, rate: float, limits: tuple[Limit, Limit]) -> tuple[int, int]:
    """Return (mantissa, shift) nearest to ``rate``, with 16 significant bits where the shift's
    limits let it.
    """
    (low, low_name), (high, high_name) = limits
    if low > high:
        raise InputError(
            f"{name} needs a shift of at least {low} for {low_name} and at most {high} for "
            f"{high_name}; choose gradient and master formats whose fraction bits lie closer"
        )
    if rate == 0:
        return 0, low
    shift = MANTISSA_BITS - math.frexp(rate)[1]
    if round(math.ldexp(rate, shift)) >> MANTISSA_BITS:
        shift -= 1
    if shift < low:
        largest = math.ldexp((1 << MANTISSA_BITS) - 1, -low)
        raise InputError(
            f"{name} must be at most {largest:.6g} per summed gradient for the formats of "
            f"{low_name}, not {rate:.6g}"
        )
    shift = min(shift, high)
    mantissa = round(math.ldexp(rate, shift))
    if mantissa == 0:
        least = math.ldexp(1, -high)
        raise InputError(
            f"{name} must be at least {least:.6g} per summed gradient for the formats of "
            f"{high_name}, not {rate:.6g}"
        )
    return mantissa, shift
