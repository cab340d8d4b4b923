# amaranth: UnusedElaboratable=no
# ruff: noqa: ERA001
"""Softmax in hardware is its golden model, over formats, lanes and stalls."""

from dataclasses import replace

import pytest

from gradweave.model.errors import PlanError
from gradweave.model.formats import Format, Rounding
from gradweave.model.pipeline.softmax import Softmax as Golden
from gradweave.rtl.pipeline.softmax import Softmax
from gradweave.tests.relay_bench import ROUNDINGS, check_relay_layer, relay_layer
from gradweave.tests.streams import run_streams

FORMATS = {
    "usual": (Format(16, 10), Format(16, 15), Format(16, 12), Format(16, 13)),
    "narrow": (Format(8, 3), Format(6, 5), Format(5, 3), Format(6, 4)),
    "coarse": (Format(12, -2), Format(8, 4), Format(8, 9), Format(4, 2)),
    "two bits": (Format(2, 0), Format(2, 0), Format(2, 1), Format(2, 1)),
    "wide": (Format(32, 24), Format(20, 19), Format(18, 14), Format(32, 28)),
}


def layer(formats="narrow", **rest):
    feature, result, error, i_error = FORMATS[formats]
    return relay_layer(
        "softmax", feature=feature, result=result, error=error, i_error=i_error, **rest
    )


def test_two_equal_values_are_known():
    # 1/2 each in 7 fraction bits; then 1/2 * (e - (e1 + e2)/2), with e = 8 and -4: 1/2 * (8 - 2).
    plan = relay_layer(
        "softmax",
        feature=Format(6, 2),
        result=Format(8, 7),
        error=Format(8, 0),
        shape=(2, 1, 1),
    )
    run = run_streams(
        Softmax(plan, Rounding.HALF_EVEN),
        {"i": [[-3, -3]], "o_error": [[8, -4]]},
        {"o": 1, "i_error": 1},
        set_up={"training": 1},
    )
    assert run["o"] == [[64, 64]]
    assert run["i_error"] == [[3, -3]]


@pytest.mark.parametrize("formats", FORMATS)
def test_softmax_is_its_golden_model(formats):
    plan = layer(formats, index_words=9)
    check_relay_layer(Softmax, Golden, plan, Rounding.HALF_EVEN, seed=3, stall=0.2)


@pytest.mark.parametrize("stall", [0.0, 0.5])
@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_roundings_and_stalls_are_right(rounding, stall):
    check_relay_layer(Softmax, Golden, layer("usual"), rounding, stall=stall, seed=4, samples=2)


@pytest.mark.parametrize(
    ("channels", "lanes", "index_words"),
    [(4, 1, 64), (4, 2, 1), (4, 4, 1), (4, 4, 3), (5, 1, 2), (5, 5, 2), (6, 3, 40), (16, 2, 5)],
)
def test_lanes_and_depths_change_no_bit(channels, lanes, index_words):
    plan = layer(shape=(channels, 1, 3), lanes=lanes, index_words=index_words)
    check_relay_layer(Softmax, Golden, plan, Rounding.HALF_EVEN, stall=0.5, seed=lanes)


@pytest.mark.parametrize(("channels", "lanes"), [(4, 1), (4, 2), (4, 4), (9, 3), (8, 8)])
def test_interval_and_latency_are_as_stated(channels, lanes):
    plan = layer(shape=(channels, 2, 3), lanes=lanes, index_words=100)
    words = 3 * 6 * channels // lanes
    run = run_streams(
        Softmax(plan, Rounding.HALF_EVEN),
        {"i": [[n % 2] * lanes for n in range(words)], "o_error": [[1] * lanes] * words},
        {"o": words, "i_error": words},
        set_up={"training": 1},
    )
    # Five fraction bits of the result: three cycles a division.
    assert (plan.word_cycles, plan.fp_interval) == (3, 3 * words // 3)
    first = run.times["i"][0]
    early = 2 * channels // lanes + 3 + 7
    assert run.times["o"] == [first + early + 3 * n for n in range(words)]
    assert early <= plan.fp_latency == 8 + 4 * channels // lanes
    # Errors come as fast as what they wait for.
    late = run.times["i_error"][-1] - run.times["o_error"][-1]
    assert late <= plan.eb_latency


@pytest.mark.parametrize(("channels", "lanes"), [(4, 1), (4, 2), (4, 4), (9, 3), (8, 8)])
def test_a_pixel_alone_takes_its_latency(channels, lanes):
    plan = layer(shape=(channels, 1, 1), lanes=lanes)
    words = channels // lanes
    run = run_streams(
        Softmax(plan, Rounding.HALF_EVEN),
        {"i": [[1] * lanes] * words},
        {"o": words},
        set_up={"training": 1},
    )
    assert run.times["o"][-1] - run.times["i"][-1] == plan.fp_latency


def test_clipped_results_and_errors_are_counted():
    plan = relay_layer(
        "softmax",
        feature=Format(8, 2),
        result=Format(6, 5),
        error=Format(8, 2),
        i_error=Format(4, 2),
    )
    run = check_relay_layer(Softmax, Golden, plan, Rounding.HALF_EVEN, seed=7)
    assert run.sampled["saturated"]["o_feature"] > 0
    assert run.sampled["saturated"]["i_error"] > 0


def test_without_training_nothing_is_kept():
    plan = layer(index_words=2)
    check_relay_layer(Softmax, Golden, plan, Rounding.HALF_EVEN, training=False)


def test_features_wait_while_all_results_are_waiting():
    # Three pixels of two words are inside behind the four words that wait.
    with pytest.raises(AssertionError, match=r"^deadline .*'o': 4"):
        run_streams(
            Softmax(layer(index_words=4), Rounding.HALF_EVEN),
            {"i": [[1, 2]] * 40},
            {"o": 40},
            set_up={"training": 1},
            deadline_cycles=400,
        )


def test_a_pixel_is_taken_before_any_word_leaves():
    for channels, lanes in ((4, 1), (4, 4), (9, 3)):
        plan = layer(shape=(channels, 1, 1), lanes=lanes, index_words=1)
        words = channels // lanes
        run_streams(
            Softmax(plan, Rounding.HALF_EVEN),
            {"i": [[1] * lanes] * words},
            {},
            set_up={"training": 1},
        )


def test_a_first_layer_has_no_error_streams():
    plan = layer(backward=False)
    check_relay_layer(Softmax, Golden, plan, Rounding.HALF_EVEN, stall=0.5)


def test_reset_in_mid_stream_drops_words_results_and_counts():
    check_relay_layer(
        Softmax, Golden, layer(index_words=7), Rounding.HALF_EVEN, stall=0.5, reset_at=37
    )


def test_a_wrong_plan_is_refused():
    with pytest.raises(PlanError) as caught:
        Softmax(replace(layer(), o_feature=Format(8, -1)), Rounding.FLOOR)
    assert str(caught.value) == "x: o_feature must have 0 to 40 fraction bits, not -1"
