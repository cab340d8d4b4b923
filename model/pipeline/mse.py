"""Golden mean squared error: ``1/2 * sum (z - t)**2`` per sample, whose error is ``z - t``.

RTL: ``rtl/pipeline/mse.py``. Test: ``tests/pipeline/test_golden_mse.py``.
"""

from torch import Tensor

from ..fixed import requantize
from ..formats import Rounding
from ..plan import LossPlan

__all__ = ["error"]


def error(
    logits: Tensor, targets: Tensor, loss: LossPlan, rounding: Rounding
) -> tuple[Tensor, int]:
    """Return the errors of the logits [B, outputs] in ``loss.error``, and how many were clipped.

    ``logits`` and ``targets`` [B, outputs] are integers of ``loss.feature``.
    """
    return requantize(logits - targets.to(logits.dtype), loss.feature.frac, loss.error, rounding)
