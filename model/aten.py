"""aten's operators, which exported programs call, as torch's functions and layers.

Used by ``model/exported.py``. Test: ``tests/test_exported.py``.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn

__all__ = ["CALLS", "DECOMPOSED", "IN_PLACE", "LAYERS", "ROLES", "WITH_INDICES", "arguments"]

# By the operator's name, without its overload: a function, or a method by name, that takes the
# same arguments in the same order.
CALLS: dict[str, Callable[..., Any] | str] = {
    "relu": torch.relu,
    "relu_": torch.relu_,
    "hardtanh": F.hardtanh,
    "hardtanh_": F.hardtanh_,
    "clamp": torch.clamp,
    "clamp_": torch.clamp_,
    "leaky_relu": F.leaky_relu,
    "leaky_relu_": F.leaky_relu_,
    "sigmoid": torch.sigmoid,
    "sigmoid_": torch.sigmoid_,
    "tanh": torch.tanh,
    "tanh_": torch.tanh_,
    "gelu": F.gelu,
    "silu": F.silu,
    "silu_": F.silu,
    "softmax": torch.softmax,
    "dropout": F.dropout,
    "dropout_": F.dropout,
    "max_pool2d": F.max_pool2d,
    "max_pool2d_with_indices": F.max_pool2d,
    "adaptive_max_pool2d": F.adaptive_max_pool2d,
    "avg_pool2d": F.avg_pool2d,
    "adaptive_avg_pool2d": F.adaptive_avg_pool2d,
    "mean": torch.mean,
    "add": torch.add,
    "add_": "add_",
    "cat": torch.cat,
    "pad": F.pad,
    "clone": torch.clone,
    "contiguous": "contiguous",
    "sym_size": "size",
    "view": torch.reshape,
    "reshape": torch.reshape,
    "flatten": torch.reshape,
    "unflatten": torch.reshape,
    "squeeze": torch.reshape,
    "unsqueeze": torch.reshape,
}
IN_PLACE = ("silu_", "dropout_")  # whose functions have an argument for it
WITH_INDICES = ("adaptive_max_pool2d", "max_pool2d_with_indices")  # functions return them if asked
# What only run_decompositions() writes.
DECOMPOSED = ("convolution", "addmm", "mm", "native_dropout", "_native_batch_norm_legit")
ROLES = ("weight", "bias", "running_mean", "running_var")


def arguments(node: fx.Node) -> dict[str, Any]:
    """The arguments of an aten call by name, with its defaults."""
    given = {}
    for n, argument in enumerate(node.target._schema.arguments):  # type: ignore[union-attr]
        default = node.kwargs.get(argument.name, argument.default_value)
        given[argument.name] = node.args[n] if n < len(node.args) else default
    return given


def _conv2d(given: dict[str, Any], held: nn.Module) -> nn.Module:
    weight = held.get_parameter("weight")
    padding, groups = given["padding"], given["groups"]
    height, width = weight.shape[2:]
    return nn.Conv2d(
        weight.shape[1] * groups,
        weight.shape[0],
        (height, width),
        _pair(given["stride"]),
        padding if isinstance(padding, str) else _pair(padding),
        _pair(given["dilation"]),
        groups,
        given["bias"] is not None,
        device="meta",
    )


def _linear(given: dict[str, Any], held: nn.Module) -> nn.Module:
    outputs, inputs = held.get_parameter("weight").shape
    return nn.Linear(inputs, outputs, given["bias"] is not None, device="meta")


def _batch_norm(given: dict[str, Any], held: nn.Module) -> nn.Module:
    _, channels, *rest = given["input"].meta["val"].shape
    return (nn.BatchNorm2d if rest else nn.BatchNorm1d)(
        channels,
        given["eps"],
        given["momentum"],
        affine=given["weight"] is not None,
        track_running_stats=given["running_mean"] is not None,
        device="meta",
    )


LAYERS = {"conv2d": _conv2d, "linear": _linear, "batch_norm": _batch_norm}


def _pair(sizes: Any) -> tuple[int, int]:
    return (int(sizes[0]), int(sizes[-1]))
