"""The kinds of layers, and how each behaves in the pipeline.

Leaf of the standard library. Golden and RTL of a kind are ``model/pipeline`` and ``rtl/pipeline``.
Test: ``tests/test_plan.py``.
"""

from dataclasses import dataclass

__all__ = ["KINDS", "TABLES", "Kind"]


@dataclass(frozen=True)
class Kind:
    """What planner, schedule and registers know of a kind.

    ``pattern`` says how data pass:

    - ``sum``: trainable; engines with weights walk a window of rows.
    - ``window``: walks a window of rows without weights.
    - ``relay``: one word out for each word in, ``latency`` cycles later, both ways.
    - ``join``: several sources, word by word; its errors go back to all of them.
    - ``fork``: one source, several consumers; their errors are added.

    ``keeps_feature`` and ``keeps_error``: the format passes unchanged (forward, backward).
    ``saturates`` names the tensors whose clipped values are counted. ``holds`` says that something
    waits, word by word, from the forward pass for the error.
    """

    pattern: str
    keeps_feature: bool = True
    keeps_error: bool = True
    saturates: tuple[str, ...] = ()
    holds: bool = False
    latency: int = 1


_BOTH = ("o_feature", "i_error")
_SUM = Kind("sum", keeps_feature=False, keeps_error=False, saturates=_BOTH)
_TABLE = Kind(
    "relay", keeps_feature=False, keeps_error=False, saturates=_BOTH, holds=True, latency=6
)

# Activations by table: functions of ``model/activation_tables.py``.
TABLES = ("sigmoid", "tanh", "gelu", "silu")

KINDS = {
    "conv2d": _SUM,
    "linear": _SUM,
    "scale": _SUM,  # a trained factor and offset per channel: BatchNorm2d's affine part
    "relu": Kind("relay", holds=True),
    "clip": Kind("relay", holds=True),  # ReLU6, Hardtanh
    "leaky_relu": Kind("relay", holds=True, latency=3),
    **dict.fromkeys(TABLES, _TABLE),
    # Over channels: passes a pixel's words when all are there; LayerPlan has its latencies.
    "softmax": Kind("relay", keeps_feature=False, keeps_error=False, saturates=_BOTH, holds=True),
    "dropout": Kind("relay", saturates=_BOTH, holds=True, latency=3),
    # A fixed factor and offset per channel: BatchNorm2d's statistics.
    "affine": Kind("relay", keeps_feature=False, keeps_error=False, saturates=_BOTH, latency=5),
    "maxpool2d": Kind("window", saturates=("i_error",), holds=True),
    "avgpool2d": Kind("window", keeps_error=False, saturates=("i_error",)),
    "add": Kind("join", keeps_feature=False, saturates=("o_feature",), latency=5),
    "concat": Kind("join", latency=2),
    "fork": Kind("fork", keeps_error=False, saturates=("i_error",), latency=5),
}
