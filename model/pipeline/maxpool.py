"""Golden max-pooling: the first maximum of a window in (row, column) order; overlapping errors add
and saturate.

RTL: ``rtl/pipeline/maxpool.py``. Test: ``tests/pipeline/test_golden_maxpool.py``.
"""

import torch
from torch import Tensor

from ..fixed import requantize
from ..formats import Format, Rounding
from ..plan import LayerPlan
from ..step import Step

__all__ = ["MaxPool", "backward", "forward"]

Pair = tuple[int, int]


class MaxPool:
    """Max-pooling of one layer of kind ``maxpool2d``; remembers where its maxima were."""

    def __init__(self, layer: LayerPlan, rounding: Rounding) -> None:
        self.layer = layer
        self._places = torch.zeros(0)

    def forward(self, features: Tensor, step: Step) -> tuple[Tensor, int]:
        """Return the maxima [B, C, Ho, Wo], and 0."""
        layer = self.layer
        results, places = forward(features, layer.kernel, layer.stride, layer.padding)
        if step.training:
            self._places = places
        return results, 0

    def backward(self, errors: Tensor) -> tuple[Tensor, int]:
        """Return the errors of the input map [B, C, H, W], and how many were clipped."""
        return backward(errors, self._places, self.layer.i_shape[1:], self.layer.i_error)


def forward(features: Tensor, kernel: Pair, stride: Pair, padding: Pair) -> tuple[Tensor, Tensor]:
    """Return the maxima [B, C, Ho, Wo] and where each was found: ``row * W + column`` of the input
    map, int64.

    ``features`` [B, C, H, W] are integers below 2**53. Padding never wins.
    """
    maps = features.transpose(0, 1).to(torch.float64).contiguous()
    values, places = torch.nn.functional.max_pool2d(
        maps, kernel, stride, padding, return_indices=True
    )
    return values.to(features.dtype).transpose(0, 1), places.transpose(0, 1)


def backward(errors: Tensor, places: Tensor, size: Pair, fmt: Format) -> tuple[Tensor, int]:
    """Return the errors of the input map [B, C, H, W] in ``fmt``, and how many were clipped to it.

    ``errors`` and ``places`` are [B, C, Ho, Wo]; ``size`` is (H, W). Where windows overlap, errors
    add exactly.
    """
    maps, where = errors.transpose(0, 1).flatten(2), places.transpose(0, 1).flatten(2)
    sums = torch.zeros(*maps.shape[:2], size[0] * size[1], dtype=errors.dtype)
    sums.scatter_add_(2, where, maps)
    clipped, number = requantize(sums, fmt.frac, fmt, Rounding.FLOOR)
    return clipped.unflatten(2, size).transpose(0, 1), number
