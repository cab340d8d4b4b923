"""Golden fixed factor and offset per channel: the frozen statistics of a BatchNorm2d.

RTL: ``rtl/pipeline/affine.py``. Test: ``tests/pipeline/test_golden_affine.py``.
"""

import torch
from torch import Tensor

from ..fixed import EXACT_BITS, requantize
from ..formats import Rounding
from ..plan import LayerPlan
from ..relay import check_relay, exact_width
from ..step import Step

__all__ = ["Affine"]


class Affine:
    """``(x * factors[c] + offsets[c]) * 2**-factor_frac``; errors ``e * factors[c] *
    2**-factor_frac``.

    Nothing is kept from one to the other.

    Raises
    ------
    PlanError
        Not one factor and one offset a channel, or sums of more than 63 bits.
    """

    def __init__(self, layer: LayerPlan, rounding: Rounding) -> None:
        check_relay(layer)
        self.layer = layer
        self.rounding = rounding
        self._dtype = torch.float64 if exact_width(layer) <= EXACT_BITS else torch.int64
        self._factors = self._channels(layer.factors)
        self._offsets = self._channels(layer.offsets)

    def forward(self, features: Tensor, step: Step) -> tuple[Tensor, int]:
        """Return the results in ``o_feature``, and how many were clipped to it."""
        layer = self.layer
        sums = features.to(self._dtype) * self._factors + self._offsets
        frac = layer.i_feature.frac + layer.factor_frac
        results, clipped = requantize(sums, frac, layer.o_feature, self.rounding)
        return results.to(features.dtype), clipped

    def backward(self, errors: Tensor) -> tuple[Tensor, int]:
        """Return the errors in ``i_error``, and how many were clipped to it."""
        layer = self.layer
        products = errors.to(self._dtype) * self._factors
        frac = layer.o_error.frac + layer.factor_frac
        results, clipped = requantize(products, frac, layer.i_error, self.rounding)
        return results.to(errors.dtype), clipped

    def _channels(self, values: tuple[int, ...]) -> Tensor:
        return torch.tensor(values, dtype=self._dtype).view(1, -1, 1, 1)
