"""Golden binary cross-entropy of logits: the error of a logit is ``sigmoid(z) - t``, in integers
alone.

``sigmoid(z) = exp(z) / (exp(z) + exp(0))`` is the first of two softmax probabilities, those of the
logits ``z`` and 0, so table, shift and exact division are those of
``model/pipeline/cross_entropy.py``.

RTL: ``rtl/pipeline/binary_cross_entropy.py``. Test:
``tests/pipeline/test_golden_binary_cross_entropy.py``.
"""

import torch
from torch import Tensor

from ..fixed import requantize
from ..formats import Rounding
from ..plan import LossPlan
from .softmax import probabilities

__all__ = ["error", "sigmoid"]


def sigmoid(logits: Tensor, loss: LossPlan, rounding: Rounding) -> Tensor:
    """Return the sigmoid of ``logits`` (integers of ``loss.feature``, any shape) with
    ``loss.error.frac`` fraction bits, int64.

    It errs by less than ``2**-13 + 2**-(error.frac + 1)`` from the real one where exponents round
    to the nearest.
    """
    values = logits.to(torch.int64).reshape(-1, 1)
    pairs = torch.cat([values, torch.zeros_like(values)], 1)
    both = probabilities(pairs, loss.feature, loss.probability_frac, rounding)
    return both[:, 0].reshape(logits.shape)


def error(
    logits: Tensor, targets: Tensor, loss: LossPlan, rounding: Rounding
) -> tuple[Tensor, int]:
    """Return the errors of the logits [B, outputs] in ``loss.error``, and how many were clipped.

    ``logits`` and ``targets`` [B, outputs] are integers of ``loss.feature``, targets from 0 to 1.
    """
    frac = max(loss.error.frac, loss.feature.frac)
    exact = sigmoid(logits, loss, rounding) << (frac - loss.error.frac)
    exact -= targets.to(torch.int64) << (frac - loss.feature.frac)
    return requantize(exact, frac, loss.error, rounding)
