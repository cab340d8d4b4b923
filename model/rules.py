"""Which calls the hardware has: finds the rule of one call of a traced model by what it calls.

The rules themselves are ``model/rules_sums.py`` (trainable layers), ``model/rules_relays.py``
(activations), ``model/rules_pools.py`` and ``model/rules_joins.py``; ``model/trace_walk.py`` asks
here. Test: ``tests/test_rules.py``, ``tests/test_refusals.py``.
"""

import operator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from . import rules_joins, rules_pools, rules_relays, rules_sums
from .calls import Call, Padding, Rule, called
from .graph import Node

__all__ = ["SUPPORTED", "judge", "zeros_around"]

SUPPORTED = (
    "supported are Conv2d, Linear, BatchNorm2d, BatchNorm1d, MaxPool2d, AvgPool2d, "
    "AdaptiveAvgPool2d, AdaptiveMaxPool2d, ReLU, ReLU6, Hardtanh, LeakyReLU, Sigmoid, Tanh, GELU, "
    "SiLU, Softmax, Dropout, ZeroPad2d before Conv2d, Flatten and Identity, their functions "
    "without parameters, and +, cat, mean, view, reshape and squeeze"
)

_SOFTMAX = "the cross-entropy loss applies log-softmax itself; remove it and return the logits"
_NORM = "only BatchNorm with frozen statistics normalises in hardware; use BatchNorm2d"
_TRANSPOSED = "transposed convolutions are not built"
_CHANNELS = "whole channels are not dropped; use Dropout"
_OWNED = "its parameters have no module; use "
_DATA = "only feature maps and vectors are built, not sequences or indices"
HINTS = {
    **dict.fromkeys(("LogSoftmax", "log_softmax"), _SOFTMAX),
    **dict.fromkeys(
        ("LayerNorm", "GroupNorm", "InstanceNorm2d", "LocalResponseNorm", "RMSNorm"), _NORM
    ),
    **dict.fromkeys(("layer_norm", "group_norm", "instance_norm"), _NORM),
    **dict.fromkeys(("ConvTranspose2d", "conv_transpose2d"), _TRANSPOSED),
    **dict.fromkeys(("Dropout2d", "dropout2d", "feature_dropout"), _CHANNELS),
    **dict.fromkeys(
        ("Upsample", "interpolate", "upsample_nearest2d", "upsample_bilinear2d"),
        "maps are not enlarged in hardware",
    ),
    **dict.fromkeys(("Embedding", "LSTM", "GRU", "RNN", "MultiheadAttention"), _DATA),
    "scaled_dot_product_attention": _DATA,
    "conv2d": _OWNED + "nn.Conv2d",
    "linear": _OWNED + "nn.Linear",
    "batch_norm": _OWNED + "nn.BatchNorm2d",
}


def _drop(_: Call) -> tuple[Node, ...]:
    return ()


_RELU = rules_relays.plain("relu")
_SIGMOID = rules_relays.plain("sigmoid")
_TANH = rules_relays.plain("tanh")
_SILU = rules_relays.plain("silu")

MODULES: dict[type, Rule] = {
    nn.Conv2d: rules_sums.conv,
    nn.Linear: rules_sums.linear,
    nn.BatchNorm2d: rules_sums.batch_norm,
    nn.BatchNorm1d: rules_sums.batch_norm,
    nn.MaxPool2d: rules_pools.max_pool,
    nn.AvgPool2d: rules_pools.average_pool,
    nn.AdaptiveAvgPool2d: rules_pools.adaptive_average,
    nn.AdaptiveMaxPool2d: rules_pools.adaptive_maximum,
    nn.ReLU: _RELU,
    nn.ReLU6: rules_relays.relu6,
    nn.Hardtanh: rules_relays.hardtanh,
    nn.LeakyReLU: rules_relays.leaky_relu,
    nn.Sigmoid: _SIGMOID,
    nn.Tanh: _TANH,
    nn.GELU: rules_relays.gelu,
    nn.SiLU: _SILU,
    nn.Softmax: rules_relays.softmax,
    nn.Softmax2d: rules_relays.softmax2d,
    nn.Dropout: rules_relays.dropout,
    nn.Flatten: _drop,
    nn.Unflatten: _drop,
    nn.Identity: _drop,
}

FUNCTIONS: dict[Any, Rule] = {
    **dict.fromkeys((torch.relu, torch.relu_, F.relu, F.relu_), _RELU),
    F.relu6: rules_relays.relu6,
    **dict.fromkeys((F.hardtanh, F.hardtanh_), rules_relays.hardtanh),
    **dict.fromkeys((torch.clamp, torch.clamp_, torch.clip), rules_relays.clamp),
    **dict.fromkeys((F.leaky_relu, F.leaky_relu_), rules_relays.leaky_relu),
    **dict.fromkeys((torch.sigmoid, torch.sigmoid_, F.sigmoid), _SIGMOID),
    **dict.fromkeys((torch.tanh, torch.tanh_, F.tanh), _TANH),
    F.gelu: rules_relays.gelu,
    F.silu: _SILU,
    F.softmax: rules_relays.softmax,
    torch.softmax: rules_relays.torch_softmax,
    F.dropout: rules_relays.dropout,
    **dict.fromkeys((F.max_pool2d, torch.max_pool2d), rules_pools.max_pool),
    F.avg_pool2d: rules_pools.average_pool,
    F.adaptive_avg_pool2d: rules_pools.adaptive_average,
    F.adaptive_max_pool2d: rules_pools.adaptive_maximum,
    torch.mean: rules_pools.mean,
    **dict.fromkeys((operator.add, operator.iadd, torch.add), rules_joins.add),
    **dict.fromkeys((torch.cat, torch.concat, torch.concatenate), rules_joins.concatenate),
    **dict.fromkeys((torch.flatten, torch.reshape, torch.squeeze, torch.unsqueeze), _drop),
    torch.clone: _drop,
}

METHODS: dict[str, Rule] = {
    **dict.fromkeys(("relu", "relu_"), _RELU),
    **dict.fromkeys(("clamp", "clamp_", "clip", "clip_"), rules_relays.clamp),
    **dict.fromkeys(("sigmoid", "sigmoid_"), _SIGMOID),
    **dict.fromkeys(("tanh", "tanh_"), _TANH),
    "softmax": rules_relays.torch_softmax,
    "mean": rules_pools.mean,
    **dict.fromkeys(("add", "add_"), rules_joins.add),
    **dict.fromkeys(("flatten", "view", "reshape", "squeeze", "unsqueeze", "unflatten"), _drop),
    **dict.fromkeys(("contiguous", "clone"), _drop),
}

_JOINS = (rules_joins.add, rules_joins.concatenate)


def judge(call: Call, target: Any) -> tuple[Node, ...]:
    """Return the layers that a call becomes; none where it is dropped.

    ``target`` is the function that is called, or a method's name; the call's module comes first.

    Raises
    ------
    UnsupportedError
        When the call or one of its arguments is not built.
    """
    _check_hooks(call)
    rule = _rule(call, target)
    if rule is None:
        kind = called(target if call.module is None else type(call.module))
        raise call.refusal(HINTS.get(kind, SUPPORTED))
    if not call.values:
        raise call.refusal("it does not take the output of a layer")
    if len(call.values) > 1 and rule not in _JOINS:
        raise call.refusal(f"it must take the output of one layer, not of {len(call.values)}")
    if call.kwargs.get("out") is not None:
        raise call.refusal("out must be None")
    if rule is not rules_sums.conv and any(any(value.zeros) for value in call.values):
        raise call.refusal("the zeros around its input must go to a Conv2d alone")
    return rule(call)


def _check_hooks(call: Call) -> None:
    module = call.module
    if module is not None and (module._forward_hooks or module._forward_pre_hooks):
        raise call.refusal("its forward hooks would be lost; remove them")


def _rule(call: Call, target: Any) -> Rule | None:
    if call.module is not None:
        return MODULES.get(type(call.module))
    return METHODS.get(target) if isinstance(target, str) else FUNCTIONS.get(target)


def zeros_around(call: Call, target: Any) -> Padding | None:
    """Return the zeros (top, bottom, left, right) that a call puts around its input; None for any
    other call.

    Raises
    ------
    UnsupportedError
        For another padding than zeros around maps.
    """
    if isinstance(call.module, (nn.ZeroPad2d, nn.ConstantPad2d)):
        _check_hooks(call)
        given: dict[str, Any] = {
            "pad": call.module.padding,
            "mode": "constant",
            "value": call.module.value,
        }
    elif call.module is None and target is F.pad:
        given = call.arguments(pad=(), mode="constant", value=None)
    else:
        return None
    if len(call.values) != 1:
        raise call.refusal("it does not take the output of a layer")
    call.check_map()
    if given["mode"] != "constant" or given["value"]:
        raise call.refusal(
            f"it must pad with zeros, not mode {given['mode']!r} and value {given['value']}"
        )
    left, right, top, bottom = (*given["pad"], 0, 0)[:4]
    if len(given["pad"]) not in (2, 4) or min(left, right, top, bottom) < 0:
        raise call.refusal(
            f"it must add zeros around height and width, not pad by {tuple(given['pad'])}"
        )
    old = call.value.zeros
    return (old[0] + top, old[1] + bottom, old[2] + left, old[3] + right)
