"""Golden softmax with cross-entropy: the error of the logits is ``softmax(z) - onehot(label)``, in
integers alone.

The probabilities ``p`` are those of ``softmax.py``, in ``loss.probability_frac`` fraction bits.
With class weights, or a label that is ignored (whose weight is 0), the error is
``w[label] * (p - onehot)``: one more rounding, of the exact product.

RTL: ``rtl/pipeline/cross_entropy.py``. Test: ``tests/pipeline/test_golden_cross_entropy.py``.
"""

import torch
from torch import Tensor

from ..fixed import requantize
from ..formats import Rounding
from ..plan import LossPlan
from .softmax import probabilities

__all__ = ["error"]


def error(logits: Tensor, labels: Tensor, loss: LossPlan, rounding: Rounding) -> tuple[Tensor, int]:
    """Return the errors of the logits [B, outputs] in ``loss.error``, and how many were clipped.

    ``labels`` [B] are class numbers, int64; ``loss.outputs`` is the label that is ignored.
    """
    errors = probabilities(logits, loss.feature, loss.probability_frac, rounding)
    classes = torch.arange(loss.outputs)
    errors -= (labels[:, None] == classes).to(torch.int64) << loss.probability_frac
    if not loss.weighted:
        return requantize(errors, loss.error.frac, loss.error, rounding)
    weights = torch.tensor(loss.label_weights)[labels]
    products = errors * weights[:, None]
    return requantize(products, loss.probability_frac + loss.weight_frac, loss.error, rounding)
