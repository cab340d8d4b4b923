# amaranth: UnusedElaboratable=no
# ruff: noqa: ERA001
"""The scale in RTL against its golden model, every output, error, factor, offset and momentum."""

import re
from dataclasses import replace

import pytest

from gradweave.model.errors import PlanError
from gradweave.model.formats import Rounding
from gradweave.model.plan import Buffers, LayerPlan
from gradweave.rtl.pipeline.scale import Scale
from gradweave.tests.layer_bench import HYPER, train_layer
from gradweave.tests.plans import chain, conv


def layer_of(channels: int = 4, size: tuple[int, int] = (2, 3), **changes) -> LayerPlan:
    base = chain((channels, *size), conv("scale", channels, kernel=1, groups=channels)).layers[0]
    buffers = Buffers(size[0] + 2, size[0] + 2, 3 * size[0], 16, 0)
    return replace(base, **{"kind": "scale", "backward": True, "buffers": buffers, **changes})


@pytest.mark.parametrize(
    ("channels", "group_lanes", "update_lanes", "bias"),
    [(1, 1, 1, True), (4, 1, 1, True), (4, 2, 2, False), (6, 3, 1, True), (4, 4, 2, True)],
)
def test_every_folding_gives_the_golden_bits(channels, group_lanes, update_lanes, bias):
    layer = layer_of(channels, group_lanes=group_lanes, update_lanes=update_lanes)
    layer = layer if bias else replace(layer, bias=None)
    got, expected = train_layer(layer, batches=3, hyper=replace(HYPER, batch=1), stall=0.3)
    assert got.o == expected.o
    assert got.i_error == expected.i_error
    assert got.masters == expected.masters
    assert got.momenta == expected.momenta
    assert got.saturated == expected.saturated


def test_engines_take_a_cycle_for_each_word_of_groups():
    layer = layer_of(size=(4, 6), group_lanes=2)
    assert layer.fp_interval == layer.eb_interval == 4 * 6 * 2
    got, _ = train_layer(layer, batches=1, hyper=replace(HYPER, batch=4))
    ends = got.times["o"][47::48]
    assert ends[-1] - ends[-2] == layer.fp_interval
    assert {engine: got.counts[engine]["busy"] for engine in ("fp", "eb", "wg")} == dict.fromkeys(
        ("fp", "eb", "wg"), 4 * layer.fp_interval
    )


def test_a_layer_that_is_no_scale_is_refused():
    message = (
        "scale: a scale must have one tap for each of 4 channels, not kernel (1, 1) and 2 groups"
    )
    with pytest.raises(PlanError, match=f"^{re.escape(message)}$"):
        Scale(layer_of(groups=2), batch_max=1, rounding=Rounding.FLOOR)
