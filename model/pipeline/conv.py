"""Golden convolution: the exact sums of its forward pass, its backward pass and its gradients.

Feature maps and errors are [B, C, H, W] tensors of integers, in any memory layout; float64 is
fastest. Sums are float64 where their worst case is exact in it, int64 otherwise, and are not
rounded here. An output channel sees the input channels of its group alone; windows may reach
beyond the map, where features are zero.

RTL: ``rtl/pipeline/conv.py``. Test: ``tests/pipeline/test_golden_conv.py``.
"""

import torch
from torch import Tensor

from ..columns import Correlation
from ..errors import FormatError
from ..fixed import EXACT_BITS
from ..plan import LayerPlan

__all__ = ["Conv", "sum_dtype"]


def sum_dtype(width: int, what: str) -> torch.dtype:
    """Return the dtype in which sums of ``width`` bits, signed, are exact.

    Raises
    ------
    FormatError
        ``width`` above 64; ``what`` names the sum.
    """
    if width > 64:
        raise FormatError(
            f"{what} must fit an accumulator of 64 bits, not {width}; use narrower formats"
        )
    return torch.float64 if width <= EXACT_BITS else torch.int64


class Conv:
    """The sums of one convolution layer; remembers the features of the last forward pass for the
    weight gradient.

    Parameters
    ----------
    layer : LayerPlan of kind ``conv2d`` or ``scale``
    batch : int, the largest number of samples that one weight gradient may sum over

    Raises
    ------
    FormatError
        Formats whose sums need more than 64 bits.
    """

    def __init__(self, layer: LayerPlan, batch: int) -> None:
        self.layer = layer
        name = layer.name
        self._forward = self._over_outputs(sum_dtype(layer.fp_acc_width, f"{name}: forward sums"))
        # What the kernel does not reach backwards is zero padding of the flipped kernel.
        reach = [d * (k - 1) for d, k in zip(layer.dilation, layer.kernel, strict=True)]
        self._backward = Correlation(
            size=layer.o_shape[1:],
            kernel=layer.kernel,
            padding=(reach[0] - layer.padding[0], reach[1] - layer.padding[1]),
            outputs=layer.i_shape[1:],
            spread=layer.stride,
            dilation=layer.dilation,
            groups=layer.groups,
            dtype=sum_dtype(layer.eb_acc_width, f"{name}: backward sums"),
        )
        self._gradient = self._forward
        dtype = sum_dtype(layer.wg_acc_width(batch), f"{name}: weight gradient sums")
        if dtype != self._forward.dtype:
            self._gradient = self._over_outputs(dtype)
        self._bias_dtype = sum_dtype(layer.bias_acc_width(batch), f"{name}: bias gradient sums")

    def _over_outputs(self, dtype: torch.dtype) -> Correlation:
        layer = self.layer
        return Correlation(
            size=layer.i_shape[1:],
            kernel=layer.kernel,
            stride=layer.stride,
            padding=layer.padding,
            outputs=layer.o_shape[1:],
            dilation=layer.dilation,
            groups=layer.groups,
            dtype=dtype,
        )

    def forward(self, features: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return ``sum w*f + bias`` [B, Co, Ho, Wo] for ``weight`` [Co, Ci/groups, Kh,
        Kw].

        ``bias`` [Co] is already shifted to the sum's fraction bits.
        """
        self._forward.load(features)
        if self._gradient is not self._forward:
            self._gradient.load(features)
        start = None if bias is None else bias.to(self._forward.dtype)
        return self._forward.apply(self._forward.arrange(weight), start)

    def backward(self, errors: Tensor, weight: Tensor) -> Tensor:
        """Return ``sum w*e`` [B, Ci, H, W]: the error of each input, from ``errors`` [B, Co, Ho,
        Wo].
        """
        self._backward.load(errors)
        flipped = weight.flip(2, 3).unflatten(0, (self.layer.groups, -1))
        return self._backward.apply(self._backward.arrange(flipped.transpose(1, 2).flatten(0, 1)))

    def weight_gradient(self, errors: Tensor) -> Tensor:
        """Return ``sum e*f`` over samples and positions [Co, Ci/groups, Kh, Kw], with the features
        of the last forward pass.
        """
        return self._gradient.gradient(errors)

    def bias_gradient(self, errors: Tensor) -> Tensor:
        """Return ``sum e`` over samples and positions [Co]."""
        return errors.to(self._bias_dtype).sum((0, 2, 3))
