"""Golden max-pooling: the first maximum of a window in (row, column) order; overlapping errors add
and saturate.

RTL: ``rtl/pipeline/maxpool.py``. Test: ``tests/pipeline/test_golden_maxpool.py``.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from ..fixed import requantize
from ..formats import Rounding
from ..plan import LayerPlan
from ..pooling import check_maxpool
from ..step import Step

__all__ = ["MaxPool"]


class MaxPool:
    """Max-pooling of one layer of kind ``maxpool2d``: any stride, padding, dilation and number of
    outputs.

    Neither padding nor what a window has beyond the map can win. Nothing is rounded, whatever
    ``rounding``: errors of one format are added, exactly, and saturate.

    Raises
    ------
    PlanError
        For what ``check_maxpool`` of ``model/pooling.py`` refuses.
    """

    def __init__(self, layer: LayerPlan, rounding: Rounding) -> None:
        check_maxpool(layer)
        self.layer, self.rounding = layer, rounding
        self._places = torch.zeros(0, dtype=torch.int64)

    def forward(self, features: Tensor, step: Step) -> tuple[Tensor, int]:
        """Return the maxima [B, C, Ho, Wo] of ``features`` [B, C, H, W], integers below 2**53, and
        0.
        """
        layer = self.layer
        width = layer.i_shape[2]
        (top, left), (below, right) = layer.padding, self._trailing()
        maps = features.transpose(0, 1).to(torch.float64)
        maps = F.pad(maps, (left, right, top, below), value=float("-inf")).contiguous()
        values, places = F.max_pool2d(
            maps, layer.kernel, layer.stride, dilation=layer.dilation, return_indices=True
        )
        if step.training:
            # From the padded map's numbering to that of the map.
            padded = width + left + right
            rows, cols = places // padded - top, places % padded - left
            self._places = (rows * width + cols).transpose(0, 1)
        return values.to(features.dtype).transpose(0, 1), 0

    def backward(self, errors: Tensor) -> tuple[Tensor, int]:
        """Return the errors of the input map [B, C, H, W] for ``errors`` [B, C, Ho, Wo], and how
        many were clipped.

        Each error goes where the last forward pass in training found its maximum.
        """
        size = self.layer.i_shape[1:]
        maps, where = errors.transpose(0, 1).flatten(2), self._places.transpose(0, 1).flatten(2)
        sums = torch.zeros(*maps.shape[:2], size[0] * size[1], dtype=errors.dtype)
        sums.scatter_add_(2, where, maps)
        fmt = self.layer.i_error
        clipped, number = requantize(sums, fmt.frac, fmt, Rounding.FLOOR)
        return clipped.unflatten(2, size).transpose(0, 1), number

    def _trailing(self) -> tuple[int, int]:
        """Entries that the last windows have beyond the map; negative: that they leave out."""
        layer = self.layer
        ends = []
        for n in (0, 1):
            span = layer.dilation[n] * (layer.kernel[n] - 1) + 1
            reach = (layer.o_shape[n + 1] - 1) * layer.stride[n] + span - layer.padding[n]
            ends.append(reach - layer.i_shape[n + 1])
        return ends[0], ends[1]
