"""Golden fully connected layer: the exact sums of its forward pass, its backward pass and its
gradients.

It is a convolution whose kernel is its whole input map: features are [B, C, H, W], weights torch's
[out, C*H*W].

RTL: ``rtl/pipeline/linear.py``. Test: ``tests/pipeline/test_golden_linear.py``.
"""

import torch
from torch import Tensor

from ..plan import LayerPlan
from .conv import sum_dtype

__all__ = ["Linear"]


class Linear:
    """The sums of one linear layer; remembers the features of the last forward pass for the weight
    gradient.

    Parameters
    ----------
    layer : LayerPlan of kind ``linear``
    batch : int, the largest number of samples that one weight gradient may sum over

    Raises
    ------
    FormatError
        Formats whose sums need more than 64 bits.
    """

    def __init__(self, layer: LayerPlan, batch: int) -> None:
        self.layer = layer
        self._forward_dtype = sum_dtype(layer.fp_acc_width, f"{layer.name}: forward sums")
        self._backward_dtype = sum_dtype(layer.eb_acc_width, f"{layer.name}: backward sums")
        self._gradient_dtype = sum_dtype(
            layer.wg_acc_width(batch), f"{layer.name}: weight gradient sums"
        )
        self._features = torch.zeros(0)

    def forward(self, features: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return ``sum w*f + bias`` [B, out, 1, 1] for ``weight`` [out, C*H*W].

        ``bias`` [out] is already shifted to the sum's fraction bits.
        """
        self._features = features.flatten(1)
        sums = weight.to(self._forward_dtype) @ self._features.to(self._forward_dtype).t()
        if bias is not None:
            sums += bias.to(self._forward_dtype)[:, None]
        return sums.t()[:, :, None, None]

    def backward(self, errors: Tensor, weight: Tensor) -> Tensor:
        """Return ``sum w*e`` [B, C, H, W]: each input's error, from ``errors`` [B, out, 1, 1]."""
        rows = errors.flatten(1).to(self._backward_dtype)
        return (rows @ weight.to(self._backward_dtype)).unflatten(1, self.layer.i_shape)

    def weight_gradient(self, errors: Tensor) -> Tensor:
        """Return ``sum e*f`` over samples [out, C*H*W], with the last forward pass's features."""
        rows = errors.flatten(1).to(self._gradient_dtype)
        return rows.t() @ self._features.to(self._gradient_dtype)

    def bias_gradient(self, errors: Tensor) -> Tensor:
        """Return ``sum e`` over samples [out]."""
        return errors.to(self._gradient_dtype).sum((0, 2, 3))
