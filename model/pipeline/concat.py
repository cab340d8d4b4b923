"""Golden concatenation: the channels of all sources in order; errors are split the same way.

RTL: ``rtl/pipeline/concat.py``. Test: ``tests/pipeline/test_concat.py``.
"""

import torch
from torch import Tensor

from ..formats import Rounding
from ..plan import LayerPlan
from ..step import Step

__all__ = ["Concat"]


class Concat:
    """Joins ``parts[n]`` channels of each source ``n``, all in one format; nothing is clipped.

    Parameters
    ----------
    layer : LayerPlan of kind ``concat``
    rounding : Rounding, not used
    """

    def __init__(self, layer: LayerPlan, rounding: Rounding) -> None:
        self.layer = layer

    def forward(self, features: list[Tensor], step: Step) -> tuple[Tensor, int]:
        """Return ``features``, each [B, parts[n], H, W], as one [B, C, H, W], and 0."""
        return torch.cat(features, 1), 0

    def backward(self, errors: Tensor) -> tuple[list[Tensor], int]:
        """Return each source's channels of ``errors`` [B, C, H, W], and 0."""
        return list(errors.split(self.layer.parts, 1)), 0
