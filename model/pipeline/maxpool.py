"""Golden max-pooling: the first maximum of a window in (row, column) order; overlapping errors add
and saturate.

RTL: ``rtl/pipeline/maxpool.py``. Test: ``tests/pipeline/test_golden_maxpool.py``.
"""

import torch
from torch import Tensor

from ..fixed import requantize
from ..formats import Format, Rounding

__all__ = ["backward", "forward"]

Pair = tuple[int, int]


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
