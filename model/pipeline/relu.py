"""Golden ReLU: ``max(0, x)``, whose gradient at exactly 0 is 0.

RTL: ``rtl/pipeline/relu.py``. Test: ``tests/pipeline/test_golden_relu.py``.
"""

import torch
from torch import Tensor

__all__ = ["backward", "forward"]


def forward(features: Tensor) -> Tensor:
    """Return ``max(0, features)``, any shape and dtype."""
    return features.clamp_min(0)


def backward(errors: Tensor, results: Tensor) -> Tensor:
    """Return ``errors`` where ``results`` of the forward pass are above 0, and 0 elsewhere."""
    return torch.ops.aten.threshold_backward(errors, results, 0)
