"""Clip and leaky ReLU in hardware are their golden models, a word a cycle, at any stall."""

import random
from dataclasses import replace

import pytest

from gradweave.model.formats import Format, Rounding
from gradweave.model.pipeline import activation as golden
from gradweave.rtl.pipeline.activation import Clip, LeakyRelu
from gradweave.tests.relay_bench import ROUNDINGS, check_relay_layer, check_timing, relay_layer
from gradweave.tests.streams import random_lanes, run_streams

BOUNDS = {
    "relu6": (0, 1536),
    "hardtanh": (-256, 256),
    "above the format": (-100, 5000),
    "below the format": (-9000, 3),
    "positive alone": (7, 300),
}


def clip(bounds="relu6", **rest):
    lower, upper = BOUNDS[bounds]
    return relay_layer("clip", lower=lower, upper=upper, **rest)


def leaky(slope=656, **rest):
    return relay_layer("leaky_relu", slope=slope, **rest)


def both_ways(dut, features, errors):
    run = run_streams(
        dut,
        {"i": features, "o_error": errors},
        {"o": len(features), "i_error": len(errors)},
        set_up={"training": 1},
    )
    return run["o"], run["i_error"]


def test_an_error_passes_strictly_between_the_bounds():
    layer = relay_layer("clip", lower=-2, upper=6, lanes=4)
    results = both_ways(
        Clip(layer, Rounding.FLOOR),
        [[-3, -2, -1, 0], [5, 6, 7, 1]],
        [[1, 2, 3, 4], [-5, 6, 7, -8]],
    )
    assert results == ([[-2, -2, -1, 0], [5, 6, 6, 1]], [[0, 0, 3, 4], [-5, 0, 0, -8]])


@pytest.mark.parametrize(
    ("rounding", "half", "error"),
    [
        (Rounding.HALF_EVEN, [-2, 0, 3, 0], [2, -2, 5, 0]),
        (Rounding.HALF_UP, [-1, 0, 3, 0], [2, -1, 5, 1]),
        (Rounding.FLOOR, [-2, -1, 3, 0], [1, -2, 5, 0]),
    ],
)
def test_halves_of_a_leaky_relu_are_rounded_as_told(rounding, half, error):
    # Features -3, -1, 3, 0 times 1/2: -1.5, -0.5; errors 3, -3, 5, 1: 1.5, -1.5, whole, and 0.5
    # since the gradient at 0 is the slope.
    layer = leaky(slope=1 << 15, lanes=4)
    dut = LeakyRelu(layer, rounding)
    assert both_ways(dut, [[-3, -1, 3, 0]], [[3, -3, 5, 1]]) == ([half], [error])


@pytest.mark.parametrize("stall", [0.0, 0.5])
@pytest.mark.parametrize("bounds", BOUNDS)
def test_a_clip_is_its_golden_model(bounds, stall):
    layer = clip(bounds, index_words=5)
    check_relay_layer(Clip, golden.Clip, layer, Rounding.HALF_EVEN, stall=stall, seed=1)


@pytest.mark.parametrize("stall", [0.0, 0.5])
@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("slope", [0, 1, 656, 13107, 1 << 16])
def test_a_leaky_relu_is_its_golden_model(slope, rounding, stall):
    layer = leaky(slope, index_words=7)
    check_relay_layer(LeakyRelu, golden.LeakyRelu, layer, rounding, stall=stall, seed=slope)


@pytest.mark.parametrize(("lanes", "index_words"), [(1, 64), (2, 1), (4, 2), (4, 3)])
def test_lanes_and_depths_change_no_bit(lanes, index_words):
    for dut, model, layer in (
        (Clip, golden.Clip, clip(lanes=lanes, index_words=index_words)),
        (LeakyRelu, golden.LeakyRelu, leaky(lanes=lanes, index_words=index_words)),
    ):
        check_relay_layer(dut, model, layer, Rounding.HALF_EVEN, stall=0.5, seed=lanes)


@pytest.mark.parametrize("widths", [(2, 2), (32, 32), (4, 24)])
def test_any_format_is_right(widths):
    feature, error = Format(widths[0], 1), Format(widths[1], 30)
    for dut, model, layer in (
        (Clip, golden.Clip, relay_layer("clip", lower=-1, upper=1, feature=feature, error=error)),
        (LeakyRelu, golden.LeakyRelu, leaky(22222, feature=feature, error=error)),
    ):
        check_relay_layer(dut, model, layer, Rounding.HALF_EVEN, stall=0.3)


@pytest.mark.parametrize(("dut", "layer"), [(Clip, clip()), (LeakyRelu, leaky())])
def test_interval_and_latency_are_as_stated(dut, layer):
    check_timing(dut, layer)


@pytest.mark.parametrize(("dut", "layer"), [(Clip, clip()), (LeakyRelu, leaky())])
def test_without_training_nothing_is_kept(dut, layer):
    layer = replace(layer, buffers=replace(layer.buffers, index_words=2))
    model = getattr(golden, dut.__name__)
    check_relay_layer(dut, model, layer, Rounding.HALF_EVEN, training=False)


@pytest.mark.parametrize(("dut", "layer"), [(Clip, clip()), (LeakyRelu, leaky())])
def test_features_wait_while_all_masks_are_waiting(dut, layer):
    layer = replace(layer, buffers=replace(layer.buffers, index_words=4))
    with pytest.raises(AssertionError, match=r"^deadline .*'i': 4, 'o': 4"):
        run_streams(
            dut(layer, Rounding.HALF_EVEN),
            {"i": [[1, 2]] * 5},
            {"o": 5},
            set_up={"training": 1},
            deadline_cycles=60,
        )


@pytest.mark.parametrize(("dut", "make"), [(Clip, clip), (LeakyRelu, leaky)])
def test_a_first_layer_has_no_error_streams(dut, make):
    layer = make(backward=False)
    check_relay_layer(dut, getattr(golden, dut.__name__), layer, Rounding.HALF_EVEN, stall=0.5)


@pytest.mark.parametrize(("dut", "layer"), [(Clip, clip()), (LeakyRelu, leaky())])
def test_reset_in_mid_stream_drops_words_and_masks(dut, layer):
    model = getattr(golden, dut.__name__)
    layer = replace(layer, buffers=replace(layer.buffers, index_words=7))
    check_relay_layer(dut, model, layer, Rounding.HALF_EVEN, stall=0.5, reset_at=11)


def test_the_same_words_give_the_same_answer_twice():
    features = random_lanes(random.Random(5), 12, 2, 30)
    errors = random_lanes(random.Random(6), 10, 2, 30)
    first = both_ways(LeakyRelu(leaky(), Rounding.HALF_UP), features, errors)
    assert both_ways(LeakyRelu(leaky(), Rounding.HALF_UP), features, errors) == first
