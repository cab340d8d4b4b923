# amaranth: UnusedElaboratable=no
# ruff: noqa: ERA001
"""A factor and an offset per channel in hardware are the golden model, at every folding."""

from dataclasses import replace

import pytest

from gradweave.model.errors import PlanError
from gradweave.model.formats import Format, Rounding
from gradweave.model.pipeline.affine import Affine as Golden
from gradweave.rtl.pipeline.affine import Affine
from gradweave.tests.relay_bench import ROUNDINGS, check_relay_layer, check_timing, relay_layer
from gradweave.tests.streams import run_streams

FACTORS = (300, -300, 0, 1, -128, 77)
OFFSETS = (-5000, 123456, 0, -1, 12, 900)


def layer(lanes=2, frac=8, **rest):
    formats = {
        "feature": Format(12, 8),
        "result": Format(10, 7),
        "error": Format(10, 9),
        "i_error": Format(8, 8),
    }
    return relay_layer(
        "affine",
        shape=(6, 2, 3),
        lanes=lanes,
        factors=FACTORS,
        offsets=OFFSETS,
        factor_frac=frac,
        **{**formats, **rest},
    )


def test_a_pixel_is_known_by_hand():
    # Channels: 3 * 5 - 1 and 3 * -10, in 4ths of quarters, to halves: 1.75 and -3.75 (to -4).
    plan = replace(
        layer(feature=Format(8, 2), result=Format(8, 1), error=Format(8, 2), i_error=Format(8, 2)),
        i_shape=(4, 1, 1),
        o_shape=(4, 1, 1),
        factors=(5, -10, 0, 4),
        offsets=(-1, 0, 9, 0),
        factor_frac=2,
    )
    run = run_streams(
        Affine(plan, Rounding.HALF_EVEN),
        {"i": [[3, 3], [3, 3]] * 2, "o_error": [[3, 3], [3, 3]] * 2},
        {"o": 4, "i_error": 4},
        set_up={"training": 1},
    )
    assert run["o"] == [[2, -4], [1, 2]] * 2
    assert run["i_error"] == [[4, -8], [0, 3]] * 2


@pytest.mark.parametrize("stall", [0.0, 0.5])
@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("lanes", [1, 2, 3, 6])
def test_it_is_its_golden_model(lanes, rounding, stall):
    run = check_relay_layer(Affine, Golden, layer(lanes), rounding, stall=stall, seed=lanes)
    assert run.sampled["saturated"]["o_feature"] > 0
    assert run.sampled["saturated"]["i_error"] > 0


@pytest.mark.parametrize("frac", [-2, 0, 20])
def test_any_place_of_the_point_is_right(frac):
    check_relay_layer(Affine, Golden, layer(frac=frac), Rounding.HALF_EVEN, stall=0.3, seed=frac)


def test_wide_formats_are_right():
    wide = Format(32, 20)
    plan = layer(frac=6, feature=wide, result=wide, error=wide, i_error=wide)
    check_relay_layer(Affine, Golden, plan, Rounding.HALF_EVEN, stall=0.3)


def test_interval_and_latency_are_as_stated():
    check_timing(Affine, layer())


def test_without_training_features_pass():
    check_relay_layer(Affine, Golden, layer(), Rounding.HALF_EVEN, training=False)


def test_features_wait_for_no_error():
    run = run_streams(
        Affine(layer(index_words=0), Rounding.HALF_EVEN),
        {"i": [[0, 0]] * 90},
        {"o": 90},
        set_up={"training": 1},
    )
    assert len(run["o"]) == 90


def test_a_first_layer_has_no_error_streams():
    plan = layer(backward=False)
    check_relay_layer(Affine, Golden, plan, Rounding.HALF_EVEN, stall=0.5)


def test_reset_in_mid_stream_starts_at_the_first_channels():
    # Ten words are no whole pixels of three words.
    check_relay_layer(Affine, Golden, layer(), Rounding.HALF_EVEN, stall=0.5, reset_at=10)


def test_a_wrong_plan_is_refused():
    with pytest.raises(PlanError) as caught:
        Affine(replace(layer(), factors=(1, 2)), Rounding.FLOOR)
    assert str(caught.value) == "x: factors must be one a channel, 6, not 2"
