"""Golden update: one step of stochastic gradient descent with momentum, Nesterov's form and weight
decay.

``g = rq(sum)``, ``d = g + decay*w``, ``v' = momentum*v + d``, ``step = d + momentum*v'`` (Nesterov)
or ``v'``, ``w' = w - lr*step``; every product and sum is exact and then requantised as
docs/architecture.md says. Working weights are never rounded by chance.

RTL: ``rtl/pipeline/update.py``. Test: ``tests/pipeline/test_golden_update.py``.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..fixed import EXACT_BITS, count, requantize_masked, saturate
from ..formats import Format, Rounding
from ..hyper import MANTISSA_BITS, Hyper
from ..plan import ParameterPlan

__all__ = ["Updated", "state_dtype", "to_working", "update"]


@dataclass(frozen=True)
class Updated:
    """What an update leaves: tensors in the parameter's shape, and how many parameters clipped on
    the way.
    """

    master: Tensor
    momentum: Tensor
    working: Tensor
    clipped: int


def state_dtype(formats: ParameterPlan) -> torch.dtype:
    """Return the dtype in which every product of an update is exact; masters and momenta are kept
    in it.
    """
    widest = max(formats.master.width, formats.gradient.width, formats.working.width)
    return torch.float64 if widest + MANTISSA_BITS < EXACT_BITS else torch.int64


def to_working(
    formats: ParameterPlan, rounding: Rounding, master: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Return the working values of masters, in their dtype, and a mask of the clipped ones; each
    output channel (the first dimension) by its own fraction bits.
    """
    frac, settled = formats.master.frac, rounding.settled
    if not formats.spread:
        return requantize_masked(master, frac, formats.working, settled)
    values, masks = torch.empty_like(master), torch.zeros_like(master, dtype=torch.bool)
    coarser = torch.tensor(formats.coarser)
    for bits in set(formats.coarser):
        chosen = coarser == bits
        fmt = Format(formats.working.width, formats.working.frac - bits)
        values[chosen], clipped = requantize_masked(master[chosen], frac, fmt, settled)
        if clipped is not None:
            masks[chosen] = clipped
    return values, masks


def update(
    formats: ParameterPlan,
    hyper: Hyper,
    rounding: Rounding,
    master: Tensor,
    momentum: Tensor,
    sums: Tensor,
    sum_frac: int,
    noise: Mapping[str, Tensor] | None = None,
) -> Updated:
    """Apply one mini-batch's exact gradient ``sums`` (with ``sum_frac`` fraction bits) to one
    parameter tensor.

    All tensors have one shape; ``master`` and ``momentum`` have ``state_dtype``; ``sums`` is
    float64 or int64. ``noise`` is that of ``model/noise.py``, for stochastic rounding alone.
    """
    chance = noise or {}
    dtype, gradient = master.dtype, formats.gradient
    masks: list[Tensor] = []

    def keep(result: tuple[Tensor, Tensor | None]) -> Tensor:
        values, mask = result
        if mask is not None:
            masks.append(mask)
        return values.to(dtype)

    def rq(acc: Tensor, frac: int, fmt: Format, field: str) -> Tensor:
        return keep(requantize_masked(acc, frac, fmt, rounding, chance.get(field)))

    step = rq(sums, sum_frac, gradient, "gradient")
    if hyper.decay_mantissa:
        decayed = master * hyper.decay_mantissa
        decay = rq(decayed, formats.master.frac + hyper.decay_shift, gradient, "decay")
        step = keep(saturate(step + decay, gradient))
    direction, momentum_frac = step, gradient.frac + MANTISSA_BITS
    if hyper.momentum:
        carry = rq(momentum * hyper.momentum, momentum_frac, gradient, "momentum")
        step = keep(saturate(carry + direction, gradient))
    momentum = step
    if hyper.nesterov and hyper.momentum:
        ahead = rq(momentum * hyper.momentum, momentum_frac, gradient, "momentum")
        step = keep(saturate(direction + ahead, gradient))
    taken = step * hyper.lr_mantissa
    delta = rq(taken, gradient.frac + hyper.lr_shift, formats.master, "delta")
    master = keep(saturate(master - delta, formats.master))
    working = keep(to_working(formats, rounding, master))
    clipped = torch.stack(masks).any(0) if masks else None
    return Updated(master, momentum, working, count(clipped))
