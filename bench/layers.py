"""Measured against planned intervals and latencies, of every kind of layer and of whole boards.

``gradweave bench layers`` writes ``build/bench/layers.json``. What is measured are the cycles of
transfers in simulated hardware; what is planned comes from ``LayerPlan``, ``model/kinds.py`` and
``model/schedule.py``. A block is driven as fast as it takes, its errors when all samples are
through, so that each direction is seen alone. Test: ``tests/test_bench_layers.py``.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import gradweave as gw
from gradweave.bench.blocks import Times, deep, run_block
from gradweave.host.demo import measured_interval
from gradweave.host.quantize import quantize_targets
from gradweave.model.formats import Format
from gradweave.model.hyper import Hyper
from gradweave.model.kinds import KINDS, TABLES
from gradweave.model.layer_plan import LayerPlan, ParameterPlan
from gradweave.model.pace import beats, row_cycles
from gradweave.model.schedule import steady_interval
from gradweave.model.timing import ENGINE_LATENCY

__all__ = ["CASES", "LIMIT", "measure_layer", "run", "worst"]

LIMIT = 1.02  # of measured over planned cycles per sample
FEATURE, ERROR = Format(16, 10), Format(16, 13)
PARAMETER = ParameterPlan(Format(16, 14), Format(32, 28), Format(32, 20))
BATCH, BATCHES = 4, 16


def _layer(kind: str, shape: tuple[int, int, int] = (4, 6, 6), **rest: Any) -> LayerPlan:
    trained = KINDS[kind].pattern == "sum"
    lanes = {} if trained else {"lanes": 2}
    options: dict[str, Any] = {"i_shape": shape, "o_shape": shape, "backward": True, **lanes}
    layer = LayerPlan(
        name=kind,
        kind=kind,
        i_feature=FEATURE,
        o_feature=FEATURE,
        i_error=ERROR,
        o_error=ERROR,
        weight=PARAMETER if trained else None,
        bias=PARAMETER if trained else None,
        **{**options, **rest},
    )
    return replace(layer, buffers=deep(layer))


TWO = ("one", "other")
SAME = {"kernel": (3, 3), "padding": (1, 1)}
# By name: its kind is the part in front of a colon.
CASES = {
    "conv2d": _layer("conv2d", a=2, b=2, **SAME),
    "conv2d: strided": _layer(
        "conv2d", o_shape=(6, 3, 3), stride=(2, 2), a=3, b=2, update_lanes=3, **SAME
    ),
    "conv2d: dilated": _layer("conv2d", kernel=(3, 3), padding=(2, 2), dilation=(2, 2), a=1, b=4),
    "conv2d: grouped": _layer("conv2d", groups=2, a=2, b=1, **SAME),
    "conv2d: depthwise": _layer("conv2d", groups=4, group_lanes=2, **SAME),
    "conv2d: one tap": _layer("conv2d", o_shape=(2, 6, 6), a=1, b=2),
    "conv2d: unfolded": _layer("conv2d", (2, 6, 6), backward=False, unfold=True, b=3, **SAME),
    "linear": _layer("linear", o_shape=(6, 1, 1), kernel=(6, 6), a=3, b=2),
    "scale": _layer("scale", groups=4, group_lanes=2),
    "relu": _layer("relu"),
    "clip": _layer("clip", lower=0, upper=6 << 10),
    "leaky_relu": _layer("leaky_relu", slope=655),
    **{kind: _layer(kind) for kind in TABLES},
    "softmax": _layer("softmax"),
    "softmax: one lane": _layer("softmax", (6, 2, 2), lanes=1),
    "dropout": _layer("dropout", drop=6554),
    "affine": _layer("affine", factors=(256,) * 4, offsets=(0,) * 4, factor_frac=8),
    "maxpool2d": _layer("maxpool2d", o_shape=(4, 3, 3), kernel=(2, 2), stride=(2, 2)),
    "maxpool2d: overlapping": _layer("maxpool2d", **SAME),
    "avgpool2d": _layer("avgpool2d", o_shape=(4, 3, 3), kernel=(2, 2), stride=(2, 2)),
    "avgpool2d: overlapping": _layer("avgpool2d", **SAME),
    "avgpool2d: global": _layer("avgpool2d", o_shape=(4, 1, 1), adaptive=True),
    "add": _layer("add", sources=TWO),
    "concat": _layer("concat", sources=TWO, parts=(2, 2)),
    "fork": _layer("fork", fan=2),
}


def run(data: Path | None = None) -> dict[str, Any]:
    """Measure everything. ``data`` is not used."""
    layers = {name: measure_layer(layer) for name, layer in CASES.items()}
    boards = {name: _measure_board(*made) for name, made in BOARDS.items()}
    every = [*layers.values(), *boards.values()]
    late = [way for figures in layers.values() for way in figures.values() if "latency" in way]
    return {
        # Measured over planned cycles per sample, at worst: at most LIMIT.
        "interval_error_max": worst(every),
        # Cycles by which a result came later than planned; an engine's figure is a bound.
        "latency_error_max": max(way["latency"] - way["latency_planned"] for way in late),
        "latency_error_min": min(way["latency"] - way["latency_planned"] for way in late),
        "kinds": sorted({name.split(":")[0] for name in layers}),
        "layers": layers,
        "boards": boards,
    }


def worst(every: list[dict[str, dict[str, float]]]) -> float:
    """The largest measured interval over the planned one."""
    ways = [way for figures in every for way in figures.values()]
    return max(way["interval"] / way["interval_planned"] for way in ways)


def measure_layer(layer: LayerPlan) -> dict[str, dict[str, float]]:
    """Figures of ``forward``, ``backward`` and ``gradient``, as far as the layer has them.

    ``interval``: cycles between the last words of two samples. ``latency``, while nothing waits in
    front: cycles from a word in to its word out; of what walks a window, from the first sample's
    last word in to its last word out, for which the plan has a bound.
    """
    times = run_block(layer)
    latencies = _forward_latency(layer), _backward_latency(layer)
    figures = {"forward": _way(layer, times, ("i", "o"), layer.fp_interval, latencies[0])}
    if layer.backward:
        back = ("o_error", "i_error")
        figures["backward"] = _way(layer, times, back, layer.eb_interval, latencies[1])
    if layer.trainable:
        ends = times.gradient
        figures["gradient"] = {"interval": _interval(ends), "interval_planned": layer.fp_interval}
    return figures


def _way(
    layer: LayerPlan, times: Times, names: tuple[str, str], interval: int, latency: int
) -> dict[str, float]:
    entered, left = (getattr(times, name) for name in names)
    seen = left[0] - entered[0]
    if not layer.windowed:
        seen = times.first[names[1]] - times.first[names[0]]
    return {
        "interval": _interval(left),
        "interval_planned": interval,
        "latency": seen,
        "latency_planned": latency,
    }


def _interval(ends: list[int]) -> float:
    """Cycles per sample, without the first one, for which nothing had begun."""
    return (ends[-1] - ends[1]) / (len(ends) - 2)


def _forward_latency(layer: LayerPlan) -> int:
    if layer.windowed:
        each = beats(layer.fp_walks, layer.fp_interval, layer.o_blocks)
        cycles = row_cycles(layer.fp_walks, layer.o_blocks, each, 1)
        late = layer.unfolding.tail_cycles(layer.i_blocks) if layer.unfold else 0
        return _last_row(layer.fp_walks[0], cycles, layer.i_row_cycles, late)
    # A fork copies at once.
    return 0 if layer.pattern == "fork" else layer.fp_latency


def _backward_latency(layer: LayerPlan) -> int:
    if layer.windowed and layer.backward:
        each = beats(layer.eb_walks, layer.eb_interval, layer.i_blocks)
        cycles = row_cycles(layer.eb_walks, layer.i_blocks, each, 1)
        return _last_row(layer.eb_walks[0], cycles, layer.o_shape[2] * layer.o_blocks, 0)
    # A join copies or deals out errors at once.
    return 0 if layer.pattern == "join" else layer.eb_latency


def _last_row(walk: Any, cycles: list[int], arrival: int, late: int) -> int:
    """Cycles from the last word in to the last out, rows arriving every ``arrival`` cycles."""
    clock = 0
    for position, needed in zip(walk.positions, cycles, strict=True):
        clock = max(clock, position.need * arrival + late) + needed
    return clock + ENGINE_LATENCY - walk.source_size * arrival


class Branches(nn.Module):
    """A residual block with a normalisation, then two branches, side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding=1)
        self.conv, self.norm = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.left, self.right = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 3, padding=1, groups=4)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu6(self.stem(x))
        x = F.max_pool2d(torch.relu(self.norm(self.conv(x)) + x), 2)
        x = torch.cat([torch.tanh(self.left(x)), F.leaky_relu(self.right(x), 0.1)], 1)
        return self.head(x.mean((2, 3)))


def _chain() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.SiLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(36, 5)
    )


BOARDS = {"branches": (Branches, "cross_entropy"), "chain": (_chain, "mse")}


def _measure_board(make: Any, loss: str) -> dict[str, dict[str, float]]:
    """Cycles per sample between a segment's first and last logits, beside ``steady_interval``."""
    torch.manual_seed(0)
    model, x = make(), torch.randn(BATCH * BATCHES, 1, 8, 8)
    y = torch.randn(len(x), 5) if loss == "mse" else torch.randint(0, 5, (len(x),))
    design = gw.compile(model, x, loss=loss, targets=y, batch=BATCH, versions="delayed")
    device = design.simulate()
    targets = quantize_targets(design.plan, y, len(y)).long()
    hyper = Hyper.of(design.plan, batch=BATCH, lr=0.01)
    device.train(design.quantize_input(x).long(), targets, hyper)
    measured = measured_interval(device.counters())
    device.close()
    return {"training": {"interval": measured, "interval_planned": steady_interval(design.plan)}}
