# amaranth: UnusedElaboratable=no
# ruff: noqa: ERA001
"""Average-pooling equals its golden model bit for bit over windows, padding and divisors, in the
plan's interval.
"""

import random
from dataclasses import replace
from itertools import pairwise, product

import pytest
import torch

from gradweave.model.errors import PlanError, UnsupportedError
from gradweave.model.formats import Format, Rounding
from gradweave.model.pipeline import avgpool as golden
from gradweave.model.step import Step
from gradweave.rtl.pipeline.avgpool import AvgPool
from gradweave.tests.pools import MODES, adaptive, random_maps, run_pool, to_words, windows
from gradweave.tests.streams import run_streams

CEIL, REAL = {"ceil_mode": True}, {"count_padding": False}
# (channels, height, width), kernel, stride, padding, lanes, and what else
CASES = {
    "pairs": ((4, 4, 6), (2, 2), (2, 2), (0, 0), 2, {}),
    "overlapping": ((2, 5, 5), (3, 3), (1, 1), (0, 0), 1, {}),
    "padded": ((4, 5, 5), (3, 3), (2, 2), (1, 1), 2, {}),
    "padded, real entries": ((4, 5, 5), (3, 3), (2, 2), (1, 1), 2, REAL),
    "rest kept": ((2, 5, 7), (2, 3), (2, 3), (0, 0), 2, CEIL),
    "rest kept, padded": ((2, 6, 5), (3, 3), (2, 2), (1, 1), 1, CEIL),
    "rest kept, padded, real entries": ((2, 6, 5), (3, 3), (2, 2), (1, 1), 1, CEIL | REAL),
    "stride above kernel": ((2, 7, 8), (2, 2), (3, 4), (1, 0), 1, CEIL | REAL),
    "oblong": ((2, 3, 8), (1, 4), (1, 2), (0, 2), 2, REAL),
    "single pixels": ((2, 3, 3), (1, 1), (1, 1), (0, 0), 1, {}),
    "one pixel": ((2, 1, 1), (3, 3), (2, 2), (1, 1), 1, {}),
    "tall": ((1, 17, 1), (3, 1), (2, 1), (1, 0), 1, {}),
}
ADAPTIVE = {
    "to one": ((4, 3, 5), (1, 1), 2),
    "dividing": ((2, 4, 6), (2, 3), 1),
    "7 to 3": ((2, 7, 5), (3, 2), 2),
    "10 to 4 and 7": ((1, 10, 10), (4, 7), 1),
    "growing": ((1, 2, 3), (5, 4), 1),
    "unchanged": ((2, 3, 3), (3, 3), 1),
    "a long map": ((1, 20, 2), (1, 1), 1),
}


def layer(case, **rest):
    if case in ADAPTIVE:
        shape, outputs, lanes = ADAPTIVE[case]
        return adaptive(shape, outputs, lanes=lanes, **rest)
    *where, lanes, options = CASES[case]
    return windows("avgpool2d", *where, lanes=lanes, **options, **rest)


def run_one_window(features, rounding, **rest):
    """The mean of a map of one row, and the errors of its pixels for an error of 5."""
    plan = windows("avgpool2d", (1, 1, len(features)), (1, len(features)), (1, 1), **rest)
    run = run_streams(
        AvgPool(plan, rounding),
        {"i": [[n] for n in features], "o_error": [[5]]},
        {"o": 1, "i_error": len(features)},
    )
    return run["o"][0][0], [word[0] for word in run["i_error"]]


@pytest.mark.parametrize(
    ("rounding", "means", "error"),
    [
        # 5/2, -5/2, 3/2, -3/2, -1/2; and 5/2 again
        (Rounding.HALF_EVEN, [2, -2, 2, -2, 0], 2),
        (Rounding.HALF_UP, [3, -2, 2, -1, 0], 3),
        (Rounding.FLOOR, [2, -3, 1, -2, -1], 2),
    ],
)
def test_halves_round_as_each_mode_says(rounding, means, error):
    for pair, mean in zip([(2, 3), (-2, -3), (4, -1), (-4, 1), (0, -1)], means, strict=True):
        assert run_one_window(pair, rounding) == (mean, [error, error])


def test_the_mean_of_the_greatest_and_of_the_least_features_is_exact():
    # A sum in the feature's own format would overflow at the second pixel.
    plan = adaptive((1, 4, 6), (1, 1))
    words = [[127]] * 24 + [[-128]] * 24 + [[127]] * 23 + [[-128]]
    run = run_streams(AvgPool(plan, Rounding.HALF_EVEN), {"i": words}, {"o": 3})
    assert run["o"] == [[127], [-128], [116]]  # 2793 / 24 = 116.375


def test_shares_of_overlapping_windows_are_rounded_once():
    # Windows [0, 2) and [1, 3) of 2 entries: the middle gets 3/2 + 3/2 = 3, not 2 + 2.
    plan = windows("avgpool2d", (1, 1, 3), (1, 2), (1, 1))
    run = run_streams(
        AvgPool(plan, Rounding.HALF_EVEN),
        {"i": [[0]] * 3, "o_error": [[3], [3]]},
        {"o": 2, "i_error": 3},
    )
    assert run["i_error"] == [[2], [3], [2]]


def test_windows_of_different_divisors_share_a_common_one():
    # Padded windows [-1, 2) and [1, 4) of columns 0 to 2: both have two real entries.
    plan = windows("avgpool2d", (1, 1, 3), (1, 3), (1, 2), (0, 1), count_padding=False)
    run = run_streams(
        AvgPool(plan, Rounding.HALF_EVEN),
        {"i": [[3], [4], [8]], "o_error": [[7], [10]]},
        {"o": 2, "i_error": 3},
    )
    assert run["o"] == [[4], [6]]  # 7/2 and 12/2
    assert run["i_error"] == [[4], [8], [5]]  # 7/2, 7/2 + 10/2 = 17/2, 10/2


@pytest.mark.parametrize(
    ("case", "stall"),
    [
        *[(case, 0.5) for case in (*CASES, *ADAPTIVE)],
        *[(case, 0.0) for case in ("overlapping", "rest kept, padded, real entries", "7 to 3")],
    ],
)
def test_both_directions_are_right_in_the_least_buffers(case, stall):
    run_pool(layer(case), samples=2, seed=len(case), stall=stall)


@pytest.mark.parametrize("rounding", MODES)
@pytest.mark.parametrize("frac", [3, 8])
@pytest.mark.parametrize("case", ["rest kept, padded", "padded, real entries", "7 to 3"])
def test_errors_are_rounded_once_into_their_format(case, frac, rounding):
    run_pool(layer(case, i_error=Format(9, frac)), samples=1, rounding=rounding, stall=0.3)


MATRIX = [
    (kernel, stride, padding, ceil_mode, count_padding)
    for kernel, padding in ((1, 0), (2, 0), (2, 1), (3, 0), (3, 1))
    for stride in sorted({1, 2, 3, kernel + 1})
    for ceil_mode, count_padding in product((False, True), (False, True))
]


@pytest.mark.slow
@pytest.mark.parametrize(("n", "case"), list(enumerate(MATRIX)))
def test_every_window_rounds_as_its_golden_model(n, case):
    kernel, stride, padding, ceil_mode, count_padding = case
    plan = windows(
        "avgpool2d",
        (2, 4, 5),
        *[(value, value) for value in (kernel, stride, padding)],
        ceil_mode=ceil_mode,
        count_padding=count_padding,
        lanes=1 + n // 3 % 2,
    )
    run_pool(plan, samples=2, seed=n, rounding=MODES[n % 3], stall=0.5 * (n // 2 % 2))


def test_errors_saturate_and_are_counted():
    # Windows of one entry in a format of one fraction bit more: 16 * 2 clips, 15 * 2 does not.
    plan = windows("avgpool2d", (1, 1, 3), (1, 1), (1, 1), i_error=Format(6, 6))
    streams = {"i": [[0]] * 3, "o_error": [[16], [15], [-17]]}
    for clear, clips in ((0, 2), (1, 0)):
        run = run_streams(
            AvgPool(plan, Rounding.HALF_EVEN),
            streams,
            {"o": 3, "i_error": 3},
            set_up={"clear": clear},
            sample=["saturated"],
        )
        assert run["i_error"] == [[31], [30], [-32]]
        assert run.sampled["saturated"] == {"i_error": clips}


def test_a_first_layer_has_no_error_streams():
    plan = layer("padded", backward=False)
    features = random_maps(random.Random(1), 8, (2, *plan.i_shape))
    means, _ = golden.AvgPool(plan, Rounding.FLOOR).forward(features, Step(training=False))
    words = to_words(means, plan.lanes)
    dut = AvgPool(plan, Rounding.FLOOR)
    assert not {"i_error", "o_error", "saturated"} & set(dut.signature.members)
    run = run_streams(dut, {"i": to_words(features, plan.lanes)}, {"o": len(words)})
    assert run["o"] == words


def test_forward_does_not_wait_for_errors():
    plan = layer("pairs")
    features = torch.ones(4, *plan.i_shape).long()
    words = 4 * 2 * 3 * 2
    run = run_streams(
        AvgPool(plan, Rounding.HALF_EVEN),
        {"i": to_words(features, plan.lanes)},
        {"o": words},
        set_up={"training": 1},
    )
    assert run["o"] == [[1, 1]] * words


@pytest.mark.parametrize("slow", ["o_error", "i_error", "o"])
def test_a_slow_neighbour_loses_nothing(slow):
    run_pool(layer("rest kept, padded"), samples=3, stall={slow: 0.9})


@pytest.mark.parametrize(
    "case",
    [
        "overlapping",
        "rest kept, padded",
        "stride above kernel",
        "single pixels",
        "one pixel",
        "10 to 4 and 7",
        "growing",
        "a long map",
    ],
)
def test_intervals_are_those_of_the_plan(case):
    plan = layer(case, rows=48)
    run = run_pool(plan, samples=4)
    sizes = {"o": plan.i_shape, "i_error": plan.o_shape}
    for name, interval in (("o", plan.fp_interval), ("i_error", plan.eb_interval)):
        writes = sizes[name][1] * sizes[name][2] * plan.i_blocks
        ends = run.times[name][len(run.times[name]) // 4 - 1 :: len(run.times[name]) // 4]
        steps = {after - before for before, after in pairwise(ends[2:])}
        assert steps == {max(interval, writes)}, name


def test_latency_is_as_stated():
    # A map of one window: the last of its 4 taps is read 4 cycles after its last row is complete.
    plan = windows("avgpool2d", (1, 2, 2), (2, 2), (2, 2))
    dut = AvgPool(plan, Rounding.HALF_EVEN)
    run = run_streams(dut, {"i": [[1], [2], [3], [4]]}, {"o": 1})
    assert run.times["o"][0] - (run.times["i"][-1] + 4) == dut.latency


@pytest.mark.parametrize("case", ["rest kept, padded", "7 to 3"])
def test_reset_in_mid_sample_starts_at_a_first_pixel(case):
    run_pool(layer(case), samples=3, stall=0.5, reset_at=65)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"dilation": (1, 2)}, "pool: dilation must be (1, 1), not (1, 2)"),
        ({"o_feature": Format(8, 3)}, "pool: o_feature must equal i_feature, s8.4, not s8.3"),
        (
            {"o_shape": (4, 2, 4)},
            "pool: every window must have an entry of the map, not none as that of output column 3;"
            " take fewer outputs or less padding",
        ),
    ],
)
@pytest.mark.parametrize("make", [AvgPool, golden.AvgPool])
def test_what_no_average_can_do_is_refused(make, changed, message):
    plan = replace(layer("pairs"), **changed)
    with pytest.raises(PlanError) as caught:
        make(plan, Rounding.HALF_EVEN)
    assert str(caught.value) == message


def test_stochastic_rounding_is_refused():
    with pytest.raises(UnsupportedError) as caught:
        AvgPool(layer("pairs"), Rounding.STOCHASTIC)
    assert str(caught.value) == (
        "rounding must be half_even, half_up or floor where there is no noise, not stochastic"
    )
