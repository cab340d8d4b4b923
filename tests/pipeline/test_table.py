# amaranth: UnusedElaboratable=no
# ruff: noqa: ERA001
"""Tables in hardware are their golden model, a word a cycle, over formats and stalls."""

from dataclasses import replace

import pytest

from gradweave.model.errors import PlanError
from gradweave.model.formats import Format, Rounding
from gradweave.model.kinds import TABLES
from gradweave.model.pipeline.table import Table as Golden
from gradweave.rtl.pipeline.table import Table
from gradweave.tests.relay_bench import ROUNDINGS, check_relay_layer, check_timing, relay_layer
from gradweave.tests.streams import run_streams

FORMATS = {
    "interpolated": (Format(13, 9), Format(12, 9), Format(12, 9), Format(8, 6)),
    "clamped": (Format(16, 7), Format(8, 4), Format(8, 7), Format(16, 18)),
    "direct": (Format(8, 4), Format(16, 12), Format(12, 9), Format(6, 3)),
    "direct and clamped": (Format(12, 3), Format(12, 5), Format(8, 4), Format(4, 2)),
    "wide": (Format(24, 18), Format(24, 20), Format(32, 28), Format(32, 27)),
    "two bits": (Format(2, 0), Format(2, 0), Format(2, 1), Format(2, 1)),
    "coarse": (Format(8, -2), Format(6, -1), Format(8, 9), Format(8, 9)),
}


def layer(function="gelu", formats="clamped", **rest):
    feature, result, error, i_error = FORMATS[formats]
    return relay_layer(
        function, feature=feature, result=result, error=error, i_error=i_error, **rest
    )


def test_sigmoid_of_small_integers_is_known():
    # 16 times 0.26894, 0.5, 0.73106, 0.98201; 64/16 times 0.19661, 0.25, 0.19661, 0.01766 in 16ths.
    plan = relay_layer("sigmoid", feature=Format(4, 0), result=Format(8, 4), error=Format(8, 4))
    run = run_streams(
        Table(plan, Rounding.HALF_EVEN),
        {"i": [[-1, 0], [1, 4]], "o_error": [[64, 64], [64, 64]]},
        {"o": 2, "i_error": 2},
        set_up={"training": 1},
    )
    assert run["o"] == [[4, 8], [12, 16]]
    assert run["i_error"] == [[13, 16], [13, 1]]


@pytest.mark.parametrize(
    ("function", "formats"),
    [
        *((function, formats) for function in TABLES for formats in list(FORMATS)[:5]),
        ("sigmoid", "two bits"),
        ("gelu", "two bits"),
        ("tanh", "coarse"),
        ("silu", "coarse"),
    ],
)
def test_a_table_is_its_golden_model(function, formats):
    plan = layer(function, formats, index_words=9)
    check_relay_layer(Table, Golden, plan, Rounding.HALF_EVEN, seed=3, stall=0.2)


@pytest.mark.parametrize("stall", [0.0, 0.5])
@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_roundings_and_stalls_are_right(rounding, stall):
    check_relay_layer(Table, Golden, layer("silu"), rounding, stall=stall, seed=4)


@pytest.mark.parametrize(("lanes", "index_words"), [(1, 64), (2, 1), (4, 2), (4, 3)])
def test_lanes_and_depths_change_no_bit(lanes, index_words):
    plan = layer(lanes=lanes, index_words=index_words)
    check_relay_layer(Table, Golden, plan, Rounding.HALF_EVEN, stall=0.5, seed=lanes)


def test_interval_and_latency_are_as_stated():
    check_timing(Table, layer())


def test_clipped_results_and_errors_are_counted():
    plan = relay_layer(
        "silu", feature=Format(8, 2), result=Format(6, 2), error=Format(8, 2), i_error=Format(6, 2)
    )
    run = check_relay_layer(Table, Golden, plan, Rounding.HALF_EVEN, seed=7)
    assert run.sampled["saturated"]["o_feature"] > 0
    assert run.sampled["saturated"]["i_error"] > 0


def test_without_training_nothing_is_kept():
    plan = layer(index_words=2)
    check_relay_layer(Table, Golden, plan, Rounding.HALF_EVEN, training=False)


def test_features_wait_while_all_positions_are_waiting():
    with pytest.raises(AssertionError, match=r"^deadline .*'i': 4, 'o': 4"):
        run_streams(
            Table(layer(index_words=4), Rounding.HALF_EVEN),
            {"i": [[1, 2]] * 5},
            {"o": 5},
            set_up={"training": 1},
            deadline_cycles=60,
        )


def test_a_first_layer_has_no_error_streams():
    plan = layer(backward=False)
    check_relay_layer(Table, Golden, plan, Rounding.HALF_EVEN, stall=0.5)


@pytest.mark.parametrize("formats", ["clamped", "interpolated"])
def test_reset_in_mid_stream_drops_words_positions_and_counts(formats):
    plan = layer("silu", formats, index_words=7)
    check_relay_layer(Table, Golden, plan, Rounding.HALF_EVEN, stall=0.5, reset_at=17)


def test_a_wrong_plan_is_refused():
    with pytest.raises(PlanError) as caught:
        Table(replace(layer(), i_feature=Format(25, 9)), Rounding.FLOOR)
    message = "x: i_feature must be at most 24 bits wide for a table, not s25.9"
    assert str(caught.value) == message
