"""What pools agree on: what they refuse, and what an average divides by.

Leaf of the standard library, shared by golden model, RTL and planner. Golden:
``model/pipeline/maxpool.py``, ``model/pipeline/avgpool.py``.
Test: ``tests/pipeline/test_golden_maxpool.py``, ``tests/pipeline/test_golden_avgpool.py``.
"""

import math
from dataclasses import dataclass

from .errors import PlanError
from .layer_plan import LayerPlan

__all__ = ["AverageAxis", "average_axes", "average_divisor", "average_widths", "check_maxpool"]


@dataclass(frozen=True)
class AverageAxis:
    """The windows of one axis of ``size`` entries.

    Output ``y`` adds the entries from ``windows[y][0]`` up to, not including, ``windows[y][1]``.
    ``counts[y]`` entries count in its divisor, which is the product of both axes' counts.
    """

    size: int
    windows: tuple[tuple[int, int], ...]
    counts: tuple[int, ...]

    @property
    def common(self) -> int:
        """Least common multiple of all counts."""
        return math.lcm(*self.counts)

    @property
    def factors(self) -> tuple[int, ...]:
        """``common / counts[y]`` for each output: 1 everywhere where the counts are equal."""
        return tuple(self.common // count for count in self.counts)

    @property
    def forward_gain(self) -> int:
        """The most entries of a window times its factor."""
        pairs = zip(self.windows, self.factors, strict=True)
        return max((last - first) * factor for (first, last), factor in pairs)

    @property
    def backward_gain(self) -> int:
        """The greatest sum of the factors of all windows that share an entry."""
        sums = [0] * self.size
        for (first, last), factor in zip(self.windows, self.factors, strict=True):
            for n in range(first, last):
                sums[n] += factor
        return max(sums)


def check_maxpool(layer: LayerPlan) -> None:
    """Refuse what a layer of kind ``maxpool2d`` cannot do.

    Raises
    ------
    PlanError
        When a window has no entry of the map, or features or errors change their format's fraction
        bits.
    """
    for n, walk in enumerate(layer.fp_walks):
        for y, position in enumerate(walk.positions):
            if not position.taps:
                raise _no_entry(layer, n, y)
    _check_feature(layer)
    if layer.i_error.frac != layer.o_error.frac:
        raise PlanError(
            f"{layer.name}: i_error.frac must equal o_error.frac, {layer.o_error.frac} bits, "
            f"not {layer.i_error.frac}"
        )


def _check_feature(layer: LayerPlan) -> None:
    """Raise PlanError where a pool is to change the format of its features."""
    if layer.o_feature != layer.i_feature:
        raise PlanError(
            f"{layer.name}: o_feature must equal i_feature, {layer.i_feature}, "
            f"not {layer.o_feature}"
        )


def average_axes(layer: LayerPlan) -> tuple[AverageAxis, AverageAxis]:
    """The rows and the columns of a layer of kind ``avgpool2d``.

    An output of an adaptive pool counts the entries of its window. Otherwise the padding is as wide
    at the end as in front: with ``count_padding`` a window counts what lies inside the padded axis,
    so not what ``ceil_mode`` lets reach beyond it; without, what lies inside the axis.

    Raises
    ------
    PlanError
        When windows are dilated, one has no entry, or features change their format.
    """
    _check_feature(layer)
    if layer.dilation != (1, 1):
        raise PlanError(f"{layer.name}: dilation must be (1, 1), not {layer.dilation}")
    rows, cols = (_axis(layer, n) for n in (0, 1))
    return rows, cols


def average_divisor(layer: LayerPlan) -> int:
    """The least number that the divisors of all windows divide."""
    rows, cols = average_axes(layer)
    return rows.common * cols.common


def average_widths(layer: LayerPlan) -> tuple[int, int]:
    """Bits of the exact sums that ``average_divisor`` divides: of features, and of errors."""
    rows, cols = average_axes(layer)
    gains = rows.forward_gain * cols.forward_gain, rows.backward_gain * cols.backward_gain
    forward, backward = (max(1, gain) for gain in gains)
    return (
        layer.i_feature.width + (forward - 1).bit_length(),
        layer.o_error.width + (backward - 1).bit_length(),
    )


def _no_entry(layer: LayerPlan, n: int, y: int) -> PlanError:
    axis = ("row", "column")[n]
    return PlanError(
        f"{layer.name}: every window must have an entry of the map, not none as that of output "
        f"{axis} {y}; take fewer outputs or less padding"
    )


def _axis(layer: LayerPlan, n: int) -> AverageAxis:
    size, outputs = layer.i_shape[n + 1], layer.o_shape[n + 1]
    kernel, stride, padding = layer.kernel[n], layer.stride[n], layer.padding[n]
    windows, counts = [], []
    for y in range(outputs):
        if layer.adaptive:
            first, last = y * size // outputs, -(-(y + 1) * size // outputs)
            count = last - first
        else:
            begin = y * stride - padding
            first, last = max(begin, 0), min(begin + kernel, size)
            count = min(begin + kernel, size + padding) - begin
            if not layer.count_padding:
                count = last - first
        if last <= first:
            raise _no_entry(layer, n, y)
        windows.append((first, last))
        counts.append(count)
    return AverageAxis(size, tuple(windows), tuple(counts))
