"""What a layer of each kind takes, by the same rules as a plan: one layer of 16 channels on 16 x 16
maps, in 16 bits, with one channel or product a cycle.

Test: ``tests/test_readme.py``.
"""

from dataclasses import dataclass, replace
from typing import Any

from ..model.formats import Format
from ..model.kinds import KINDS
from ..model.plan import INPUT, LayerPlan, LossPlan, ParameterPlan, Plan
from ..model.schedule import size_buffers
from ..model.timing import ENGINE_LATENCY
from .resources import layer_resources

__all__ = ["KindFigures", "kind_figures"]

FEATURE = Format(16, 10)
ERROR = Format(16, 13)
PARAMETER = ParameterPlan(Format(16, 14), Format(32, 28), Format(32, 20))
SHAPE = (16, 16, 16)
# What a kind needs beside its shape: common torch modules.
EXAMPLES: dict[str, dict[str, Any]] = {
    "conv2d": {"kernel": (3, 3), "padding": (1, 1)},
    "maxpool2d": {"kernel": (2, 2), "stride": (2, 2), "o_shape": (16, 8, 8)},
    "avgpool2d": {"kernel": (2, 2), "stride": (2, 2), "o_shape": (16, 8, 8)},
    "linear": {"kernel": SHAPE[1:], "o_shape": (16, 1, 1)},
    "scale": {"groups": SHAPE[0]},
    "concat": {"i_shape": (32, 16, 16), "o_shape": (32, 16, 16), "parts": (16, 16)},
    "dropout": {"drop": 1 << 15},
    "affine": {"factors": (1 << 14,) * SHAPE[0], "offsets": (1 << 20,) * SHAPE[0]},
}


@dataclass(frozen=True)
class KindFigures:
    """Cycles per sample forward and backward, cycles from a word or a row's last beat to its
    result, DSP slices and 36-Kbit block RAMs, buffers of the schedule included.
    """

    fp_interval: int
    eb_interval: int
    latency: int
    dsp: int
    bram36: float


def kind_figures(kind: str) -> KindFigures:
    """The figures of one key of ``KINDS``, behind a convolution and in front of a linear layer."""
    join = KINDS[kind].pattern == "join"
    before = _layer("before", "conv2d", INPUT, backward=False)
    if join:
        fork = _layer("fork", "fork", "before", fan=2)
        layers = [before, fork, _layer("layer", kind, "fork", "fork")]
    elif kind == "fork":
        fork = _layer("layer", "fork", "before", fan=2)
        layers = [before, fork, _layer("join", "add", "layer", "layer")]
    else:
        layers = [before, _layer("layer", kind, "before")]
    last = layers[-1]
    end = _layer("end", "linear", last.name)
    end = replace(end, i_shape=last.o_shape, kernel=last.o_shape[1:])
    plan = size_buffers(
        Plan("kinds", (*layers, end), LossPlan("mse", 16, FEATURE, ERROR), batch_max=32)
    )
    layer = plan.layer("layer")
    cost = layer_resources(layer, plan)
    latency = ENGINE_LATENCY if layer.windowed else max(layer.fp_latency, layer.eb_latency)
    return KindFigures(layer.fp_interval, layer.eb_interval, latency, cost.dsp, cost.bram36)


def _layer(name: str, kind: str, *sources: str, backward: bool = True, fan: int = 1) -> LayerPlan:
    parameter = PARAMETER if KINDS[kind].pattern == "sum" else None
    layer = LayerPlan(
        name=name,
        kind=kind,
        i_shape=SHAPE,
        o_shape=SHAPE,
        i_feature=FEATURE,
        o_feature=FEATURE,
        i_error=ERROR,
        o_error=ERROR,
        backward=backward,
        sources=sources,
        fan=fan,
        weight=parameter,
        bias=parameter,
    )
    return replace(layer, **EXAMPLES.get(kind, {}))
