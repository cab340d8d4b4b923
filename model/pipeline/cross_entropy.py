"""Golden softmax with cross-entropy: the error of the logits is ``softmax(z) - onehot(label)``, in
integers alone.

With ``m = max z``: ``t = (m - z) * log2(e)`` in 10 fraction bits, ``x = 2**(16 - t)`` from a table
and a shift, and ``p = x / sum x`` by an exact division. With class weights, or a label that is
ignored (whose weight is 0), the error is ``w[label] * (p - onehot)``: one more rounding, of the
exact product.

RTL: ``rtl/pipeline/cross_entropy.py``. Test: ``tests/pipeline/test_golden_cross_entropy.py``.
"""

import torch
from torch import Tensor

from ..fixed import requantize
from ..formats import Format, Rounding
from ..plan import LossPlan
from ..tables import EXP_INDEX_BITS, LOG2_E, LOG2_E_FRAC, exp_table

__all__ = ["error", "probabilities"]

EXPONENT = Format(15, EXP_INDEX_BITS, signed=False)

_TABLE = torch.tensor(exp_table())


def probabilities(logits: Tensor, loss: LossPlan, rounding: Rounding) -> Tensor:
    """Return softmax of ``logits`` [B, outputs] (integers of ``loss.feature``), with
    ``loss.probability_frac`` fraction bits.

    int64, rounded half to even whatever ``rounding`` is, which rounds the exponent alone.
    """
    values = logits.to(torch.int64)
    below = values.max(1, keepdim=True).values - values
    exponent, _ = requantize(below * LOG2_E, loss.feature.frac + LOG2_E_FRAC, EXPONENT, rounding)
    index, shift = exponent & ((1 << EXP_INDEX_BITS) - 1), exponent >> EXP_INDEX_BITS
    powers = _TABLE[index] >> shift
    total = powers.sum(1, keepdim=True)
    scaled = powers << loss.probability_frac
    lower = scaled // total
    doubled = (scaled - lower * total) * 2
    return lower + ((doubled > total) | ((doubled == total) & (lower & 1 == 1)))


def error(logits: Tensor, labels: Tensor, loss: LossPlan, rounding: Rounding) -> tuple[Tensor, int]:
    """Return the errors of the logits [B, outputs] in ``loss.error``, and how many were clipped.

    ``labels`` [B] are class numbers, int64; ``loss.outputs`` is the label that is ignored.
    """
    errors = probabilities(logits, loss, rounding)
    classes = torch.arange(loss.outputs)
    errors -= (labels[:, None] == classes).to(torch.int64) << loss.probability_frac
    if not loss.weighted:
        return requantize(errors, loss.error.frac, loss.error, rounding)
    weights = torch.tensor(loss.label_weights)[labels]
    products = errors * weights[:, None]
    return requantize(products, loss.probability_frac + loss.weight_frac, loss.error, rounding)
