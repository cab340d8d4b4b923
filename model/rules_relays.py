"""Rules for layers that keep a feature's shape: activations, softmax and dropout.

Used by ``model/rules.py``. Test: ``tests/test_rules.py``.
"""

import math
from typing import Any

from .calls import Call, Rule
from .graph import Node

__all__ = [
    "clamp",
    "dropout",
    "gelu",
    "hardtanh",
    "leaky_relu",
    "plain",
    "relu6",
    "softmax",
    "softmax2d",
    "torch_softmax",
]

SHARES = 1 << 16  # a share of dropped values is a multiple of 1/SHARES


def plain(kind: str) -> Rule:
    """Return the rule of a kind without arguments."""

    def rule(call: Call) -> tuple[Node, ...]:
        call.arguments(inplace=False)
        return (call.node(kind),)

    return rule


def relu6(call: Call) -> tuple[Node, ...]:
    """A clip from 0 to 6."""
    call.arguments(inplace=False)
    return (call.node("clip", lower=0.0, upper=6.0),)


def hardtanh(call: Call) -> tuple[Node, ...]:
    """A clip, which passes no error at or beyond its bounds."""
    given = call.arguments(min_val=-1.0, max_val=1.0, inplace=False)
    return _clip(call, "min_val", given["min_val"], "max_val", given["max_val"])


def clamp(call: Call) -> tuple[Node, ...]:
    """A clip, which passes no error at or beyond its bounds, as Hardtanh."""
    given = call.arguments(min=None, max=None)
    low = -math.inf if given["min"] is None else given["min"]
    high = math.inf if given["max"] is None else given["max"]
    return _clip(call, "min", low, "max", high)


def _clip(call: Call, low_name: str, low: Any, high_name: str, high: Any) -> tuple[Node, ...]:
    for name, bound in ((low_name, low), (high_name, high)):
        if not isinstance(bound, (int, float)) or math.isnan(bound):
            raise call.refusal(f"{name} must be a number, not {bound}")
    if not low < high:
        raise call.refusal(f"{low_name} must be below {high_name} = {high}, not {low}")
    return (call.node("clip", lower=float(low), upper=float(high)),)


def leaky_relu(call: Call) -> tuple[Node, ...]:
    """ReLU with a slope from 0 to 1 below zero."""
    slope = call.arguments(negative_slope=0.01, inplace=False)["negative_slope"]
    if not 0 <= slope <= 1:
        raise call.refusal(f"negative_slope must be 0 to 1, not {slope}")
    return (call.node("leaky_relu", slope=float(slope)),)


def gelu(call: Call) -> tuple[Node, ...]:
    """GELU in its exact form, by the error function."""
    approximate = call.arguments(approximate="none")["approximate"]
    if approximate != "none":
        raise call.refusal(f"approximate must be 'none', not {approximate!r}")
    return (call.node("gelu"),)


def softmax(call: Call) -> tuple[Node, ...]:
    """``nn.Softmax`` and ``F.softmax``: over channels, or over the values of a vector."""
    given = call.arguments(dim=None, _stacklevel=3, dtype=None)
    return _softmax(call, given["dim"], given["dtype"])


def torch_softmax(call: Call) -> tuple[Node, ...]:
    """``torch.softmax`` and the method, whose second argument is the dtype."""
    given = call.arguments(dim=None, dtype=None)
    return _softmax(call, given["dim"], given["dtype"])


def softmax2d(call: Call) -> tuple[Node, ...]:
    """Softmax over the channels of a map."""
    call.check_map()
    return _softmax(call, 1, None)


def _softmax(call: Call, dim: Any, dtype: Any) -> tuple[Node, ...]:
    if dtype is not None:
        raise call.refusal(f"dtype must be None, not {dtype}")
    if dim not in (1, -len(call.value.sizes)):
        raise call.refusal(f"dim must be 1, the channels, not {dim}")
    channels, height, width = call.value.shape
    if len(call.value.sizes) == 1 and height * width > 1:
        raise call.refusal(
            "its vector must not be flattened from a map: softmax goes over channels alone"
        )
    if channels < 2:
        raise call.refusal("it must have at least 2 channels; over one it is 1 everywhere")
    return (call.node("softmax"),)


def dropout(call: Call) -> tuple[Node, ...]:
    """Dropout of single values; without drops it vanishes."""
    given = call.arguments(p=0.5, training=True, inplace=False)
    # A module's mode is the trainer's to choose; a function's was fixed by the trace.
    if call.module is None and not given["training"]:
        raise call.refusal(
            "its training is False, so it would never drop: call model.train() first, or remove it"
        )
    share = float(given["p"])
    if share == 0:
        return ()
    if not 0.5 <= share * SHARES < SHARES - 0.5:
        raise call.refusal(f"p must be 0, or 2**-17 to below 1 - 2**-17, not {share}")
    return (call.node("dropout", drop=share),)
