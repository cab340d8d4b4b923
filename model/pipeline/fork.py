"""Golden fork: one feature for several layers; their errors are added exactly and rounded once.

RTL: ``rtl/pipeline/fork.py``. Test: ``tests/pipeline/test_fork.py``.
"""

from torch import Tensor

from ..formats import Rounding
from ..plan import LayerPlan
from ..step import Step
from .add import rounded_sum

__all__ = ["Fork"]


class Fork:
    """Gives its source's feature to ``fan`` layers, whose errors are all in ``o_error``.

    Parameters
    ----------
    layer : LayerPlan of kind ``fork``
    rounding : Rounding
    """

    def __init__(self, layer: LayerPlan, rounding: Rounding) -> None:
        self.layer = layer
        self.rounding = rounding

    def forward(self, features: Tensor, step: Step) -> tuple[Tensor, int]:
        """Return ``features``, which every consumer reads, and 0."""
        return features, 0

    def backward(self, errors: list[Tensor]) -> tuple[Tensor, int]:
        """Return the sum of the consumers' ``errors``, each [B, C, H, W], in ``i_error``, and how
        many values were clipped.
        """
        return rounded_sum(errors, self.layer.o_error, self.layer.i_error, self.rounding)
