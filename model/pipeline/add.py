"""Golden addition of several features: the exact sum, rounded once; its error goes to each source.

RTL: ``rtl/pipeline/add.py``. Test: ``tests/pipeline/test_add.py``.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..fixed import EXACT_BITS, requantize
from ..formats import Format, Rounding
from ..plan import LayerPlan
from ..step import Step

__all__ = ["Add", "rounded_sum"]


def rounded_sum(
    terms: Sequence[Tensor], source: Format, result: Format, rounding: Rounding
) -> tuple[Tensor, int]:
    """Return the exact sum of ``terms``, integers in ``source``, requantised to ``result``, and how
    many values were clipped.

    Terms are float64 or int64 and of one shape; so is the sum, in their dtype.
    """
    width = source.width + (len(terms) - 1).bit_length()
    dtype = torch.float64 if width <= EXACT_BITS else torch.int64
    total = terms[0].to(dtype)
    for term in terms[1:]:
        total = total + term.to(dtype)
    values, clipped = requantize(total, source.frac, result, rounding)
    return values.to(terms[0].dtype), clipped


class Add:
    """Adds its sources, which are all in the format ``i_feature``.

    Parameters
    ----------
    layer : LayerPlan of kind ``add``
    rounding : Rounding
    """

    def __init__(self, layer: LayerPlan, rounding: Rounding) -> None:
        self.layer = layer
        self.rounding = rounding

    def forward(self, features: list[Tensor], step: Step) -> tuple[Tensor, int]:
        """Return the sum of ``features``, each [B, C, H, W], in ``o_feature``, and how many values
        were clipped.
        """
        return rounded_sum(features, self.layer.i_feature, self.layer.o_feature, self.rounding)

    def backward(self, errors: Tensor) -> tuple[list[Tensor], int]:
        """Return ``errors`` for every source, and 0."""
        return [errors] * len(self.layer.sources), 0
