"""Golden Huber loss: per logit ``(z - t)**2 / 2`` up to a difference of ``delta``, and linear
beyond; its error is ``z - t``, limited to ``-delta`` to ``delta``.

RTL: ``rtl/pipeline/huber.py``. Test: ``tests/pipeline/test_golden_huber.py``.
"""

from torch import Tensor

from ..fixed import requantize
from ..formats import Rounding
from ..plan import LossPlan

__all__ = ["error"]


def error(
    logits: Tensor, targets: Tensor, loss: LossPlan, rounding: Rounding
) -> tuple[Tensor, int]:
    """Return the errors of the logits [B, outputs] in ``loss.error``, and how many were clipped to
    that format.

    ``logits``, ``targets`` [B, outputs] and ``loss.delta`` are integers of ``loss.feature``.
    """
    difference = logits - targets.to(logits.dtype)
    limited = difference.clamp(-loss.delta, loss.delta)
    return requantize(limited, loss.feature.frac, loss.error, rounding)
