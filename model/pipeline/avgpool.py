"""Golden average-pooling, plain and adaptive: every result is one exact quotient, rounded once.

RTL: ``rtl/pipeline/avgpool.py``. Test: ``tests/pipeline/test_golden_avgpool.py``.
"""

import torch
from torch import Tensor

from ..errors import PlanError, UnsupportedError
from ..fixed import EXACT_BITS, count, saturate
from ..formats import Rounding
from ..plan import LayerPlan
from ..pooling import AverageAxis, average_axes, average_divisor, average_widths
from ..step import Step

__all__ = ["AvgPool", "rounded_quotient"]

INTEGER_BITS = 63  # of an int64 without its sign


class AvgPool:
    """Average-pooling of one layer of kind ``avgpool2d``.

    Forward rounds ``sum / n``, where ``n`` entries count in the window's divisor, in the format of
    the input; it cannot overflow. Backward rounds the sum of ``e / n`` over all windows that have
    the input, as one fraction, to ``i_error``, and saturates.

    Parameters
    ----------
    layer : LayerPlan
    rounding : ``HALF_EVEN``, ``HALF_UP`` or ``FLOOR``

    Raises
    ------
    UnsupportedError
        For any other rounding.
    PlanError
        When features change their format, a window has no entry, or the exact numerators do not fit
        64 bits.
    """

    def __init__(self, layer: LayerPlan, rounding: Rounding) -> None:
        if rounding not in (Rounding.HALF_EVEN, Rounding.HALF_UP, Rounding.FLOOR):
            raise UnsupportedError(
                f"{layer.name}: rounding must be half_even, half_up or floor for an average, "
                f"not {rounding.value}"
            )
        self.layer, self.rounding = layer, rounding
        rows, cols = average_axes(layer)
        self._rows, self._cols = _members(rows), _members(cols)
        counts = [torch.tensor(axis.counts, dtype=torch.int64) for axis in (rows, cols)]
        self._counts = counts[0][:, None] * counts[1]

        # An error's integer is 2**left / (common * 2**right) times the sum of errors times weights.
        self._common = average_divisor(layer)
        left = layer.i_error.frac - layer.o_error.frac
        self._left, self._right = max(left, 0), max(-left, 0)
        bits = max(
            max(average_widths(layer)) + self._left,
            (self._common << self._right).bit_length() + 1,
        )
        if bits > INTEGER_BITS:
            raise PlanError(
                f"{layer.name}: numerators and divisors must be at most {INTEGER_BITS} bits wide, "
                f"not {bits}; take smaller windows or closer formats"
            )

    def forward(self, features: Tensor, step: Step) -> tuple[Tensor, int]:
        """Return the averages [B, C, Ho, Wo] of ``features`` [B, C, H, W], and 0."""
        width, _ = average_widths(self.layer)
        maps = _exact(features, width)
        sums = self._rows.to(maps.dtype) @ maps @ self._cols.to(maps.dtype).T
        values = rounded_quotient(sums.to(torch.int64), self._counts, self.rounding)
        return values.to(features.dtype), 0

    def backward(self, errors: Tensor) -> tuple[Tensor, int]:
        """Return the errors of the input [B, C, H, W] for ``errors`` [B, C, Ho, Wo], and how many
        were clipped.
        """
        _, width = average_widths(self.layer)
        maps = _exact(errors, width) * (self._common // self._counts)
        sums = self._rows.to(maps.dtype).T @ maps @ self._cols.to(maps.dtype)
        numerators = sums.to(torch.int64) << self._left
        divisor = torch.tensor(self._common << self._right)
        values = rounded_quotient(numerators, divisor, self.rounding)
        kept, clipped = saturate(values, self.layer.i_error)
        return kept.to(errors.dtype), count(clipped)


def rounded_quotient(numerators: Tensor, divisors: Tensor, rounding: Rounding) -> Tensor:
    """Return ``numerators / divisors`` rounded, exactly; int64, broadcast.

    ``divisors`` are from 1 to 2**62; ``rounding`` is not stochastic.
    """
    lower = torch.div(numerators, divisors, rounding_mode="floor")
    rest = numerators - lower * divisors
    missing = divisors - rest
    if rounding is Rounding.FLOOR:
        return lower
    if rounding is Rounding.HALF_UP:
        return lower + (rest >= missing)
    return lower + ((rest > missing) | ((rest == missing) & (lower % 2 == 1)))


def _members(axis: AverageAxis) -> Tensor:
    """Return 1 where a window has an entry, else 0: int64 [windows, entries]."""
    members = torch.zeros(len(axis.windows), axis.size, dtype=torch.int64)
    for y, (first, last) in enumerate(axis.windows):
        members[y, first:last] = 1
    return members


def _exact(maps: Tensor, width: int) -> Tensor:
    """Return integers in a dtype that holds sums of ``width`` bits exactly."""
    return maps.to(torch.float64 if width <= EXACT_BITS else torch.int64)
