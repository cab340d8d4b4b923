# amaranth: UnusedElaboratable=no
# ruff: noqa: ERA001
"""Max-pooling keeps the first maximum and routes errors back, over any window."""

import random
from dataclasses import replace
from itertools import pairwise

import pytest

from gradweave.model.errors import PlanError
from gradweave.model.formats import Format, Rounding
from gradweave.model.pipeline import maxpool as golden
from gradweave.model.step import Step
from gradweave.rtl.pipeline.maxpool import MaxPool
from gradweave.tests.pools import random_maps, run_pool, to_words, windows
from gradweave.tests.streams import run_streams

# (channels, height, width), kernel, stride, padding, lanes, and what else
CASES = {
    "pairs": ((2, 4, 6), (2, 2), (2, 2), (0, 0), 2, {}),
    "overlapping": ((2, 5, 5), (3, 3), (1, 1), (0, 0), 1, {}),
    "padded": ((4, 5, 5), (3, 3), (2, 2), (1, 1), 2, {}),
    "overlapping and padded": ((1, 4, 6), (3, 2), (1, 1), (1, 1), 1, {}),
    "stride above kernel": ((2, 7, 7), (2, 2), (3, 3), (0, 0), 1, {}),
    "rest dropped": ((3, 5, 7), (2, 3), (2, 3), (0, 0), 3, {}),
    "rest kept": ((2, 5, 7), (2, 3), (2, 3), (0, 0), 1, {"ceil_mode": True}),
    "rest kept and padded": ((2, 6, 5), (3, 3), (2, 2), (1, 1), 2, {"ceil_mode": True}),
    "rest kept, stride above kernel": ((1, 8, 6), (2, 2), (3, 4), (1, 0), 1, {"ceil_mode": True}),
    "dilated": ((2, 6, 7), (2, 3), (1, 1), (0, 0), 1, {"dilation": (3, 2)}),
    "dilated, strided, padded": ((2, 7, 8), (3, 3), (2, 3), (1, 1), 2, {"dilation": (2, 2)}),
    "dilated and rest kept": (
        (1, 7, 8),
        (3, 2),
        (2, 3),
        (1, 0),
        1,
        {"dilation": (2, 3), "ceil_mode": True},
    ),
    "oblong": ((2, 3, 8), (1, 4), (1, 2), (0, 2), 2, {}),
    "single pixels": ((2, 3, 3), (1, 1), (1, 1), (0, 0), 1, {}),
    "one pixel": ((2, 1, 1), (3, 3), (2, 2), (1, 1), 1, {}),
    "tall": ((1, 17, 1), (3, 1), (2, 1), (1, 0), 1, {}),
    "whole map": ((2, 3, 4), (3, 4), (1, 1), (0, 0), 1, {}),
}


def layer(shape, kernel, stride, padding, lanes, where=None, **rest):
    where = {**(where or {}), **rest}
    return windows("maxpool2d", shape, kernel, stride, padding, lanes=lanes, **where)


def block(plan):
    return MaxPool(plan, Rounding.HALF_EVEN)


def maxima(features, plan):
    values, _ = golden.MaxPool(plan, Rounding.HALF_EVEN).forward(features, Step(training=False))
    return to_words(values, plan.lanes)


def test_the_first_maximum_wins_and_gets_the_sum():
    # 3 wins the first window at (0, 1), before (1, 0), and the second one too: 20 + 15 > 31.
    plan = layer((1, 2, 3), (2, 2), (1, 1), (0, 0), 1)
    run = run_streams(
        block(plan),
        {"i": [[-1], [3], [2], [3], [0], [3]], "o_error": [[20], [15]]},
        {"o": 2, "i_error": 6},
        set_up={"training": 1},
        sample=["saturated"],
    )
    assert run["o"] == [[3], [3]]
    assert run["i_error"] == [[0], [31], [0], [0], [0], [0]]
    assert run.sampled["saturated"] == {"i_error": 1}


def test_padding_never_wins():
    plan = layer((1, 1, 2), (1, 2), (1, 2), (0, 1), 1)
    run = run_streams(
        block(plan),
        {"i": [[-5], [-128]], "o_error": [[7], [-9]]},
        {"o": 2, "i_error": 2},
        set_up={"training": 1},
    )
    assert run["o"] == [[-5], [-128]]
    assert run["i_error"] == [[7], [-9]]


@pytest.mark.parametrize(
    ("case", "stall"),
    [
        *[(case, 0.5) for case in CASES],
        *[(case, 0.0) for case in ("padded", "rest kept and padded", "dilated, strided, padded")],
    ],
)
def test_both_directions_are_right_in_the_least_buffers(case, stall):
    run_pool(layer(*CASES[case]), samples=2, seed=len(case), stall=stall)


def test_a_first_layer_has_no_error_streams():
    plan = layer(*CASES["padded"], backward=False)
    features = random_maps(random.Random(1), 8, (3, *plan.i_shape))
    words = maxima(features, plan)
    dut = block(plan)
    assert not {"i_error", "o_error", "saturated"} & set(dut.signature.members)
    run = run_streams(
        dut, {"i": to_words(features, plan.lanes)}, {"o": len(words)}, set_up={"training": 1}
    )
    assert run["o"] == words


def test_without_training_no_index_is_kept():
    plan = layer(*CASES["padded"])
    features = random_maps(random.Random(1), 8, (4, *plan.i_shape))
    words = maxima(features, plan)
    run = run_streams(
        block(plan),
        {"i": to_words(features, plan.lanes)},
        {"o": len(words), "i_error": 0},
        stall=0.5,
    )
    assert run["o"] == words


@pytest.mark.parametrize("slow", ["o_error", "i_error", "o"])
def test_a_slow_neighbour_loses_nothing(slow):
    run_pool(layer(*CASES["padded"]), samples=4, stall={slow: 0.9})


def test_windows_wait_while_all_indices_are_waiting():
    plan = layer(*CASES["pairs"])
    words = plan.buffers.index_words
    with pytest.raises(AssertionError, match=rf"^deadline .*'o': {words}\b"):
        run_streams(
            block(plan),
            {"i": [[1, 2]] * 100},
            {"o": words + 1},
            set_up={"training": 1},
            deadline_cycles=300,
        )


@pytest.mark.parametrize(
    "case",
    [
        "overlapping",
        "padded",
        "rest kept, stride above kernel",
        "dilated, strided, padded",
        "single pixels",
        "one pixel",
        "tall",
        "whole map",
    ],
)
def test_intervals_are_those_of_the_plan(case):
    plan = layer(*CASES[case], rows=16)
    run = run_pool(plan, samples=4)
    writes = plan.i_shape[1] * plan.i_shape[2] * plan.i_blocks
    for name, samples in (("o", plan.fp_interval), ("i_error", plan.eb_interval)):
        ends = run.times[name][len(run.times[name]) // 4 - 1 :: len(run.times[name]) // 4]
        steps = {after - before for before, after in pairwise(ends[2:])}
        assert steps == {max(samples, writes)}, name


def test_latency_is_as_stated():
    # A map of one window: the last of its 4 taps is read 4 cycles after its last row is complete.
    plan = layer((1, 2, 2), (2, 2), (2, 2), (0, 0), 1)
    run = run_streams(block(plan), {"i": [[1], [2], [3], [4]]}, {"o": 1})
    assert run.times["o"][0] - (run.times["i"][-1] + 4) == block(plan).latency


def test_reset_in_mid_sample_starts_at_a_first_pixel():
    run_pool(layer(*CASES["padded"]), samples=4, stall=0.5, reset_at=65)


def test_the_dilated_window_of_one_row_skips_what_lies_between():
    # Columns 0 and 2, then 1 and 3: 9 at column 1 does not win the first.
    plan = layer((1, 1, 4), (1, 2), (1, 1), (0, 0), 1, dilation=(1, 2))
    run = run_streams(
        block(plan),
        {"i": [[4], [9], [5], [9]], "o_error": [[3], [7]]},
        {"o": 2, "i_error": 4},
        set_up={"training": 1},
    )
    assert run["o"] == [[5], [9]]
    assert run["i_error"] == [[0], [7], [3], [0]]


def test_clear_zeroes_the_count():
    plan = layer((1, 1, 3), (1, 2), (1, 1), (0, 0), 1)
    run = run_streams(
        block(plan),
        {"i": [[0], [9], [0]], "o_error": [[31], [31]]},
        {"i_error": 3, "o": 2},
        set_up={"training": 1, "clear": 1},
        sample=["saturated"],
    )
    assert run["i_error"] == [[0], [31], [0]]
    assert run.sampled["saturated"] == {"i_error": 0}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"i_error": Format(6, 4)},
            "pool: i_error.frac must equal o_error.frac, 5 bits, not 4",
        ),
        ({"o_feature": Format(8, 3)}, "pool: o_feature must equal i_feature, s8.4, not s8.3"),
        (
            {"o_shape": (2, 3, 3)},
            "pool: every window must have an entry of the map, not none as that of output row 2; "
            "take fewer outputs or less padding",
        ),
    ],
)
@pytest.mark.parametrize("make", [MaxPool, golden.MaxPool])
def test_what_no_pool_can_do_is_refused(make, changed, message):
    plan = replace(layer(*CASES["pairs"]), **changed)
    with pytest.raises(PlanError) as caught:
        make(plan, Rounding.HALF_EVEN)
    assert str(caught.value) == message
