"""Golden dropout: random values become zero, the others grow by as much as is missing.

RTL: ``rtl/pipeline/dropout.py``. Test: ``tests/pipeline/test_golden_dropout.py``.
"""

import torch
from torch import Tensor

from ..fixed import EXACT_BITS, random_words, requantize
from ..formats import Format, Rounding
from ..plan import LayerPlan
from ..random import MASK
from ..relay import KEEP_FRAC, SHARE_BITS, check_relay, keep_factor
from ..step import Step

__all__ = ["Dropout"]


class Dropout:
    """In training, value ``(y*W + x)*C + c`` of sample n is dropped where the low 16 bits of
    ``random_word(layer.seed, layer.number, value, n modulo 2**32)`` are below ``layer.drop``.

    What is kept is multiplied by ``keep_factor(layer.drop) * 2**-14``, rounded to the same format
    and clipped; errors likewise, by the mask of their features. In inference everything passes.

    Raises
    ------
    PlanError
        A share of 0 or of 1, or what no random word can be drawn for.
    """

    def __init__(self, layer: LayerPlan, rounding: Rounding) -> None:
        check_relay(layer)
        self.layer = layer
        self.rounding = rounding
        self._factor = keep_factor(layer.drop, rounding)
        channels, height, width = layer.i_shape
        stream = torch.arange(channels * height * width).view(height, width, channels)
        self._elements = stream.permute(2, 0, 1)

    def forward(self, features: Tensor, step: Step) -> tuple[Tensor, int]:
        """Return the results and how many were clipped; samples count from the step's first."""
        if not step.training:
            return features, 0
        samples = (torch.arange(len(features)) + step.first_sample % (MASK + 1)) & MASK
        layer = self.layer
        _, low = random_words(layer.seed, layer.number, self._elements, samples.view(-1, 1, 1, 1))
        self._kept = low & (1 << SHARE_BITS) - 1 >= layer.drop
        return self._scale(features, layer.i_feature)

    def backward(self, errors: Tensor) -> tuple[Tensor, int]:
        """Return the errors of the features of the last training pass, and how many were
        clipped.
        """
        return self._scale(errors, self.layer.o_error)

    def _scale(self, values: Tensor, fmt: Format) -> tuple[Tensor, int]:
        kept = torch.where(self._kept, values, 0.0)
        if fmt.width + self._factor.bit_length() > EXACT_BITS:
            kept = kept.to(torch.int64)
        products = kept * self._factor
        results, clipped = requantize(products, fmt.frac + KEEP_FRAC, fmt, self.rounding)
        return results.to(torch.float64), clipped
