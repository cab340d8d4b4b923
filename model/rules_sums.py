"""Rules for trainable layers: convolution, linear layer and batch normalisation.

Used by ``model/rules.py``. Test: ``tests/test_rules.py``.
"""

from typing import cast

import torch
from torch import Tensor, nn

from .calls import Call, pair
from .errors import InputError
from .graph import Node

__all__ = ["KERNEL_MAX", "batch_norm", "conv", "linear"]

KERNEL_MAX = 11
FACTOR_MAX = float((1 << 17) - 1)  # of an affine layer, whose factors have 18 bits with sign


def conv(call: Call) -> tuple[Node, ...]:
    """A convolution; zeros around its input become its padding."""
    call.check_map()
    layer = cast(nn.Conv2d, call.module)
    kernel, dilation = pair(layer.kernel_size), pair(layer.dilation)
    if layer.padding_mode != "zeros":
        raise call.refusal(f"padding_mode must be 'zeros', not {layer.padding_mode!r}")
    if max(kernel) > KERNEL_MAX:
        raise call.refusal(f"kernel_size must be 1 to {KERNEL_MAX}, not {kernel}")
    if layer.padding == "same":
        # An even reach has one zero more at the end, as torch pads.
        reach = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        padding = (reach[0] // 2, reach[1] // 2)
    else:
        padding = (0, 0) if layer.padding == "valid" else pair(layer.padding)
    top, _, left, _ = call.value.zeros
    return (
        call.node(
            "conv2d",
            kernel=kernel,
            stride=pair(layer.stride),
            padding=(padding[0] + top, padding[1] + left),
            dilation=dilation,
            groups=layer.groups,
            bias=layer.bias is not None,
        ),
    )


def linear(call: Call) -> tuple[Node, ...]:
    """A linear layer on a vector, which may have been a map."""
    layer = cast(nn.Linear, call.module)
    if len(call.value.sizes) != 1:
        raise call.refusal("its input must be [N, features]; put Flatten before it")
    shape = call.value.shape
    made = call.node(
        "linear",
        o_shape=(layer.out_features, 1, 1),
        kernel=shape[1:],
        bias=layer.bias is not None,
    )
    return (made,)


def batch_norm(call: Call) -> tuple[Node, ...]:
    """BatchNorm with the statistics that the model holds: a fixed factor and offset per channel,
    then the trained ones.
    """
    layer = cast(nn.BatchNorm2d, call.module)
    if isinstance(layer, nn.BatchNorm2d):
        call.check_map()
    elif len(call.value.sizes) != 1 or call.value.shape[1:] != (1, 1):
        raise call.refusal("its input must be [N, channels], of maps of 1x1")
    if layer.running_mean is None or layer.running_var is None:
        raise call.refusal(
            "it must have running statistics (track_running_stats=True), as the hardware "
            "normalises by them"
        )
    mean = _statistic(f"{call.name}.running_mean", layer.running_mean)
    variance = _statistic(f"{call.name}.running_var", layer.running_var) + layer.eps
    if len(mean) != call.value.shape[0]:
        raise InputError(
            f"{call.title} fails on example_input: num_features must be {call.value.shape[0]}, "
            f"not {len(mean)}"
        )
    if float(variance.min()) <= FACTOR_MAX**-2:
        raise call.refusal(
            f"running_var + eps must exceed {FACTOR_MAX**-2:.1e}, not {float(variance.min()):.1e}"
        )
    factors = variance.rsqrt()
    affine = call.node(
        "affine",
        name=f"{call.name}.statistics",
        factors=tuple(factors.tolist()),
        offsets=tuple((-mean * factors).tolist()),
    )
    if not layer.affine:
        return (affine,)
    return (affine, call.node("scale", groups=call.value.shape[0], bias=True))


def _statistic(name: str, values: Tensor) -> Tensor:
    if not bool(torch.isfinite(values).all()):
        index = torch.nonzero(~torch.isfinite(values))[0].tolist()
        raise InputError(f"{name} must be finite, not {values[tuple(index)].item()} at {index}")
    return values.detach().cpu().double()
