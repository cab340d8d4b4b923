"""Golden clip (ReLU6, Hardtanh) and leaky ReLU.

RTL: ``rtl/pipeline/activation.py``. Test: ``tests/pipeline/test_golden_activation.py``.
"""

import torch
from torch import Tensor

from ..fixed import requantize
from ..formats import Format, Rounding
from ..plan import LayerPlan
from ..relay import SLOPE_FRAC, check_relay
from ..step import Step

__all__ = ["Clip", "LeakyRelu"]


class Clip:
    """``min(max(x, lower), upper)``; an error passes where ``lower < x < upper``, as torch's do.

    Raises
    ------
    PlanError
        Bounds in a wrong order, or both outside the format.
    """

    def __init__(self, layer: LayerPlan, rounding: Rounding) -> None:
        check_relay(layer)
        self.layer = layer

    def forward(self, features: Tensor, step: Step) -> tuple[Tensor, int]:
        """Return the results, and that none was clipped to a format."""
        lower, upper = self.layer.lower, self.layer.upper
        if step.training:
            self._inside = (features > lower) & (features < upper)
        return features.clamp(lower, upper), 0

    def backward(self, errors: Tensor) -> tuple[Tensor, int]:
        """Return the errors of the features of the last training pass."""
        return torch.where(self._inside, errors, 0.0), 0


class LeakyRelu:
    """``x`` where it is positive, elsewhere ``x * slope * 2**-16`` rounded to the same format.

    Errors likewise, by the sign of their feature; the gradient at 0 is the slope, as torch's is.

    Raises
    ------
    PlanError
        A slope outside 0 to 1.
    """

    def __init__(self, layer: LayerPlan, rounding: Rounding) -> None:
        check_relay(layer)
        self.layer = layer
        self.rounding = rounding

    def forward(self, features: Tensor, step: Step) -> tuple[Tensor, int]:
        """Return the results, and that none was clipped: a slope of at most 1 widens nothing."""
        positive = features > 0
        if step.training:
            self._positive = positive
        return self._lean(features, positive, self.layer.i_feature)

    def backward(self, errors: Tensor) -> tuple[Tensor, int]:
        """Return the errors of the features of the last training pass."""
        return self._lean(errors, self._positive, self.layer.o_error)

    def _lean(self, values: Tensor, positive: Tensor, fmt: Format) -> tuple[Tensor, int]:
        products = values * self.layer.slope
        leaning, clipped = requantize(products, fmt.frac + SLOPE_FRAC, fmt, self.rounding)
        return torch.where(positive, values, leaning), clipped
