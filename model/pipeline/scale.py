"""Golden scale: a trained factor and a trained offset per channel, as a convolution of one tap.

Features and errors are [B, C, H, W] tensors of integers; factors are torch's [C].

RTL: ``rtl/pipeline/scale.py``. Test: ``tests/pipeline/test_golden_scale.py``.
"""

from torch import Tensor

from ..errors import PlanError
from ..plan import LayerPlan
from .conv import Conv

__all__ = ["Scale"]


class Scale(Conv):
    """The sums of ``o = weight*f + bias`` by channel; remembers the features of the last forward
    pass for the gradient.

    Parameters
    ----------
    layer : LayerPlan of kind ``scale``
    batch : int, the largest number of samples that one gradient may sum over

    Raises
    ------
    PlanError
        A layer whose groups are not its channels, or with more than one tap.
    FormatError
        Formats whose sums need more than 64 bits.
    """

    def __init__(self, layer: LayerPlan, batch: int) -> None:
        channels = layer.i_shape[0]
        if layer.i_shape != layer.o_shape or layer.groups != channels or layer.kernel != (1, 1):
            raise PlanError(
                f"{layer.name}: a scale must have one tap for each of {channels} channels, "
                f"not kernel {layer.kernel} and {layer.groups} groups"
            )
        super().__init__(layer, batch)

    def forward(self, features: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return ``w*f + bias`` [B, C, H, W] for ``weight`` [C].

        ``bias`` [C] is already shifted to the sum's fraction bits.
        """
        return super().forward(features, weight[:, None, None, None], bias)

    def backward(self, errors: Tensor, weight: Tensor) -> Tensor:
        """Return ``w*e`` [B, C, H, W]: each input's error."""
        return super().backward(errors, weight[:, None, None, None])

    def weight_gradient(self, errors: Tensor) -> Tensor:
        """Return ``sum e*f`` over samples and positions [C], with the features of the last forward
        pass.
        """
        return super().weight_gradient(errors).flatten()
