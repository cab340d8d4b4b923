"""Golden softmax over channels, in integers alone: as a layer, and the probabilities that
cross-entropy takes.

With ``m = max z``: ``t = (m - z) * log2(e)`` in 10 fraction bits, ``x = 2**(16 - t)`` from a table
and a shift, and ``p = x / sum x`` by an exact division.

RTL: ``rtl/pipeline/softmax.py``, ``rtl/parts/probabilities.py``. Test:
``tests/pipeline/test_golden_softmax.py``.
"""

import torch
from torch import Tensor

from ..fixed import count, requantize, saturate
from ..formats import Format, Rounding
from ..plan import LayerPlan
from ..relay import check_relay
from ..step import Step
from ..tables import EXP_INDEX_BITS, LOG2_E, LOG2_E_FRAC, exp_table

__all__ = ["Softmax", "probabilities"]

EXPONENT = Format(15, EXP_INDEX_BITS, signed=False)

_TABLE = torch.tensor(exp_table())


def probabilities(values: Tensor, feature: Format, frac: int, rounding: Rounding) -> Tensor:
    """Return softmax over dimension 1 of ``values`` (integers of ``feature``), with ``frac``
    fraction bits.

    int64, rounded half to even whatever ``rounding`` is, which rounds the exponent alone.
    """
    values = values.to(torch.int64)
    below = values.amax(1, keepdim=True) - values
    exponent, _ = requantize(below * LOG2_E, feature.frac + LOG2_E_FRAC, EXPONENT, rounding)
    index, shift = exponent & ((1 << EXP_INDEX_BITS) - 1), exponent >> EXP_INDEX_BITS
    powers = _TABLE[index] >> shift
    total = powers.sum(1, keepdim=True)
    scaled = powers << frac
    lower = scaled // total
    doubled = (scaled - lower * total) * 2
    return lower + ((doubled > total) | ((doubled == total) & (lower & 1 == 1)))


class Softmax:
    """A layer of kind ``softmax``: at each pixel, its channels become probabilities ``p``.

    The error of a channel is ``p * (e - sum of all p * e)``: exact sums and products, one rounding.

    Raises
    ------
    PlanError
        Formats whose products need more than 63 bits, or results without fraction bits.
    """

    def __init__(self, layer: LayerPlan, rounding: Rounding) -> None:
        check_relay(layer)
        self.layer = layer
        self.rounding = rounding

    def forward(self, features: Tensor, step: Step) -> tuple[Tensor, int]:
        """Return the probabilities in ``o_feature``, and how many were clipped to it."""
        layer = self.layer
        exact = probabilities(features, layer.i_feature, layer.o_feature.frac, self.rounding)
        results, clipped = saturate(exact, layer.o_feature)
        if step.training:
            self._results = results
        return results.to(features.dtype), count(clipped)

    def backward(self, errors: Tensor) -> tuple[Tensor, int]:
        """Return the errors of the features of the last training pass in ``i_error``, and how many
        were clipped to it.
        """
        layer = self.layer
        p, e = self._results, errors.to(torch.int64)
        differences = (e << layer.o_feature.frac) - (p * e).sum(1, keepdim=True)
        frac = layer.o_error.frac + 2 * layer.o_feature.frac
        results, clipped = requantize(p * differences, frac, layer.i_error, self.rounding)
        return results.to(errors.dtype), clipped
