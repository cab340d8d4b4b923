"""Golden ReLU: ``max(0, x)``, whose gradient at exactly 0 is 0.

RTL: ``rtl/pipeline/relu.py``. Test: ``tests/pipeline/test_golden_relu.py``.
"""

import torch
from torch import Tensor

from ..formats import Rounding
from ..plan import LayerPlan
from ..step import Step

__all__ = ["Relu"]


class Relu:
    """Passes positive features, and the errors of positive features; nothing is clipped.

    Parameters
    ----------
    layer : LayerPlan of kind ``relu``
    rounding : Rounding, not used
    """

    def __init__(self, layer: LayerPlan, rounding: Rounding) -> None:
        self._results = torch.zeros(0)

    def forward(self, features: Tensor, step: Step) -> tuple[Tensor, int]:
        """Return ``max(0, features)``, any shape and dtype, and 0."""
        results = features.clamp_min(0)
        if step.training:
            self._results = results
        return results, 0

    def backward(self, errors: Tensor) -> tuple[Tensor, int]:
        """Return ``errors`` where the last training pass's results are above 0 and 0 elsewhere,
        and 0.
        """
        return torch.ops.aten.threshold_backward(errors, self._results, 0), 0
