"""Layers of one word out for each word in: their RTL beside their golden model.

``check_relay_layer`` drives both directions of a block with random samples and compares words and
saturation counts.
"""

import random
from typing import Any

import torch
from torch import Tensor

from gradweave.model.formats import Format, Rounding
from gradweave.model.plan import Buffers, LayerPlan
from gradweave.model.registers import saturating_tensors
from gradweave.model.step import Step
from gradweave.tests.streams import Run, random_lanes, run_streams

__all__ = [
    "ROUNDINGS",
    "TRAINING",
    "check_relay_layer",
    "check_timing",
    "grid",
    "relay_layer",
    "to_words",
]

ROUNDINGS = (Rounding.HALF_EVEN, Rounding.HALF_UP, Rounding.FLOOR)
TRAINING = Step(training=True)
SHAPE = (4, 2, 3)
FEATURE, ERROR = Format(12, 8), Format(10, 9)


def relay_layer(
    kind: str,
    *,
    feature: Format = FEATURE,
    result: Format | None = None,
    error: Format = ERROR,
    i_error: Format | None = None,
    shape: tuple[int, int, int] = SHAPE,
    lanes: int = 2,
    backward: bool = True,
    index_words: int = 32,
    **rest: Any,
) -> LayerPlan:
    """Return a layer ``x``; ``result`` and ``i_error`` are ``feature`` and ``error`` where they
    are not given.
    """
    return LayerPlan(
        name="x",
        kind=kind,
        i_shape=shape,
        o_shape=shape,
        i_feature=feature,
        o_feature=result or feature,
        i_error=i_error or error,
        o_error=error,
        backward=backward,
        lanes=lanes,
        buffers=Buffers(index_words=index_words if backward else 0),
        **rest,
    )


def grid(layer: LayerPlan, words: list[list[int]]) -> Tensor:
    """Return the map [B, C, H, W] whose words these are."""
    channels, height, width = layer.i_shape
    values = torch.tensor(words, dtype=torch.float64).view(-1, height, width, channels)
    return values.permute(0, 3, 1, 2).contiguous()


def to_words(layer: LayerPlan, values: Tensor) -> list[list[int]]:
    """Return the words of a map [B, C, H, W]."""
    assert values.dtype == torch.float64
    return values.permute(0, 2, 3, 1).reshape(-1, layer.lanes).to(torch.int64).tolist()


def check_relay_layer(
    rtl: Any,
    golden: Any,
    layer: LayerPlan,
    rounding: Rounding,
    *,
    stall: float = 0.0,
    seed: int = 0,
    samples: int = 4,
    reset_at: int = 0,
    training: bool = True,
) -> Run:
    """Fail unless ``rtl`` gives what ``golden`` does, words and saturation counts, and has the
    members that its layer asks for; both are classes.
    """
    rng = random.Random(seed)
    count = samples * layer.fp_interval // layer.word_cycles
    features = random_lanes(rng, layer.i_feature.width, layer.lanes, count)
    errors = random_lanes(rng, layer.o_error.width, layer.lanes, count)
    back = layer.backward and training
    counted = saturating_tensors(layer)
    dut = rtl(layer, rounding)
    assert set(dut.signature.members) == {
        *("i", "o", "training", "clear"),
        *(("o_error", "i_error") if layer.backward else ()),
        *(("saturated",) if counted else ()),
        *(("first_sample",) if layer.kind == "dropout" else ()),
    }
    run = run_streams(
        dut,
        {"i": features, **({"o_error": errors} if back else {})},
        {"o": count, **({"i_error": count} if back else {})},
        stall=stall,
        seed=seed,
        set_up={"training": int(training)},
        sample=["saturated"] if counted else [],
        reset_at=reset_at,
    )
    model = golden(layer, rounding)
    results, clipped = model.forward(grid(layer, features), Step(training))
    assert run["o"] == to_words(layer, results)
    clips = {"o_feature": clipped}
    if back:
        results, clips["i_error"] = model.backward(grid(layer, errors))
        assert run["i_error"] == to_words(layer, results)
    for tensor in ("o_feature", "i_error"):
        if tensor in counted:
            assert run.sampled["saturated"][tensor] == clips.get(tensor, 0)
        else:
            assert clips.get(tensor, 0) == 0
    return run


def check_timing(rtl: Any, layer: LayerPlan) -> None:
    """Fail unless a word enters in every cycle, both ways, and leaves exactly ``latency`` later."""
    dut = rtl(layer, Rounding.HALF_EVEN)
    count = 3 * dut.interval
    words = [[n % 2] * layer.lanes for n in range(count)]
    run = run_streams(
        dut,
        {"i": words, "o_error": words},
        {"o": count, "i_error": count},
        set_up={"training": 1},
    )
    assert dut.interval == layer.fp_interval == layer.eb_interval
    for source, result in (("i", "o"), ("o_error", "i_error")):
        first = run.times[source][0]
        assert run.times[source] == [first + n for n in range(count)]
        assert run.times[result] == [first + n + dut.latency for n in range(count)]
