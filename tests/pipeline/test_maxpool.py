# amaranth: UnusedElaboratable=no
# ruff: noqa: ERA001
"""Max-pooling keeps the first maximum and routes errors back, over any window."""

import random
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from gradweave.model.errors import PlanError
from gradweave.model.formats import Format, Rounding
from gradweave.model.geometry import output_size
from gradweave.model.pipeline import maxpool as golden
from gradweave.model.plan import Buffers, LayerPlan
from gradweave.model.schedule import minimum_buffers
from gradweave.rtl.pipeline.maxpool import MaxPool
from gradweave.tests.streams import random_lanes, run_streams

FEATURE, ERROR = Format(8, 4), Format(6, 5)
# (channels, height, width), kernel, stride, padding, lanes
CASES = {
    "pairs": ((2, 4, 6), (2, 2), (2, 2), (0, 0), 2),
    "overlapping": ((2, 5, 5), (3, 3), (1, 1), (0, 0), 1),
    "padded": ((4, 5, 5), (3, 3), (2, 2), (1, 1), 2),
    "overlapping and padded": ((1, 4, 6), (3, 2), (1, 1), (1, 1), 1),
    "stride above kernel": ((2, 7, 7), (2, 2), (3, 3), (0, 0), 1),
    "rest dropped": ((3, 5, 7), (2, 3), (2, 3), (0, 0), 3),
    "oblong": ((2, 3, 8), (1, 4), (1, 2), (0, 2), 2),
    "single pixels": ((2, 3, 3), (1, 1), (1, 1), (0, 0), 1),
    "whole map": ((2, 3, 4), (3, 4), (1, 1), (0, 0), 1),
}


def layer(shape, kernel, stride, padding, lanes, *, backward=True, rows=None):
    sizes = [output_size(shape[n + 1], kernel[n], stride[n], padding[n]) for n in (0, 1)]
    plan = LayerPlan(
        name="pool",
        kind="maxpool2d",
        i_shape=shape,
        o_shape=(shape[0], *sizes),
        i_feature=FEATURE,
        o_feature=FEATURE,
        i_error=ERROR,
        o_error=ERROR,
        backward=backward,
        kernel=kernel,
        stride=stride,
        padding=padding,
        lanes=lanes,
    )
    least = minimum_buffers(plan)
    if rows:
        least = Buffers(fp_rows=rows, eb_rows=rows, index_words=2 * least.index_words + 64)
    return replace(plan, buffers=least)


def to_words(maps, lanes):
    """[B, C, H, W] -> words in raster order, channels innermost."""
    return maps.permute(0, 2, 3, 1).reshape(-1, lanes).tolist()


def random_maps(rng, width, shape):
    """Values from the whole range in one sample, few values, hence ties, in the next."""
    count = torch.Size(shape).numel()
    values = torch.tensor(random_lanes(rng, width, 1, count)).reshape(shape)
    values[1::2] = values[1::2].clamp(-1, 1)
    return values


def run_pool(plan, samples, seed=0, **options):
    """Run forward and backward against the golden model."""
    rng = random.Random(seed)
    features = random_maps(rng, FEATURE.width, (samples, *plan.i_shape))
    errors = random_maps(rng, ERROR.width, (samples, *plan.o_shape))
    maxima, places = golden.forward(features, plan.kernel, plan.stride, plan.padding)
    routed, clipped = golden.backward(errors, places, plan.i_shape[1:], plan.i_error)
    expected = {"o": to_words(maxima, plan.lanes), "i_error": to_words(routed, plan.lanes)}
    run = run_streams(
        MaxPool(plan, Rounding.FLOOR),
        {"i": to_words(features, plan.lanes), "o_error": to_words(errors, plan.lanes)},
        {name: len(words) for name, words in expected.items()},
        seed=seed,
        set_up={"training": 1},
        sample=["saturated"],
        **options,
    )
    assert run.words == expected
    assert run.sampled["saturated"] == {"i_error": clipped}
    return run


def test_the_first_maximum_wins_and_gets_the_sum():
    # 3 wins the first window at (0, 1), before (1, 0), and the second one too: 20 + 15 > 31.
    plan = layer((1, 2, 3), (2, 2), (1, 1), (0, 0), 1)
    run = run_streams(
        MaxPool(plan, Rounding.FLOOR),
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
        MaxPool(plan, Rounding.FLOOR),
        {"i": [[-5], [-128]], "o_error": [[7], [-9]]},
        {"o": 2, "i_error": 2},
        set_up={"training": 1},
    )
    assert run["o"] == [[-5], [-128]]
    assert run["i_error"] == [[7], [-9]]


@pytest.mark.parametrize("stall", [0.0, 0.5])
@pytest.mark.parametrize("case", CASES)
def test_both_directions_are_right_in_the_least_buffers(case, stall):
    run_pool(layer(*CASES[case]), samples=4, seed=len(case), stall=stall)


def test_a_first_layer_has_no_error_streams():
    plan = layer(*CASES["padded"], backward=False)
    features = random_maps(random.Random(1), 8, (3, *plan.i_shape))
    maxima, _ = golden.forward(features, plan.kernel, plan.stride, plan.padding)
    words = to_words(maxima, plan.lanes)
    dut = MaxPool(plan, Rounding.FLOOR)
    assert not {"i_error", "o_error"} & set(dut.signature.members)
    run = run_streams(
        dut, {"i": to_words(features, plan.lanes)}, {"o": len(words)}, set_up={"training": 1}
    )
    assert run["o"] == words


def test_without_training_no_index_is_kept():
    plan = layer(*CASES["padded"])
    features = random_maps(random.Random(1), 8, (4, *plan.i_shape))
    maxima, _ = golden.forward(features, plan.kernel, plan.stride, plan.padding)
    words = to_words(maxima, plan.lanes)
    run = run_streams(
        MaxPool(plan, Rounding.FLOOR),
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
            MaxPool(plan, Rounding.FLOOR),
            {"i": [[1, 2]] * 100},
            {"o": words + 1},
            set_up={"training": 1},
            deadline_cycles=300,
        )


@pytest.mark.parametrize("case", CASES)
def test_intervals_are_those_of_the_plan(case):
    plan = layer(*CASES[case], rows=16)
    run = run_pool(plan, samples=6)
    writes = plan.i_shape[1] * plan.i_shape[2] * plan.i_blocks
    for name, samples in (("o", plan.fp_interval), ("i_error", plan.eb_interval)):
        ends = run.times[name][len(run.times[name]) // 6 - 1 :: len(run.times[name]) // 6]
        steps = {after - before for before, after in pairwise(ends[2:])}
        assert steps == {max(samples, writes)}, name


def test_latency_is_as_stated():
    # A map of one window: the last of its 4 taps is read 4 cycles after its last row is complete.
    plan = layer((1, 2, 2), (2, 2), (2, 2), (0, 0), 1)
    run = run_streams(MaxPool(plan, Rounding.FLOOR), {"i": [[1], [2], [3], [4]]}, {"o": 1})
    assert run.times["o"][0] - (run.times["i"][-1] + 4) == MaxPool(plan, Rounding.FLOOR).latency


def test_reset_in_mid_sample_starts_at_a_first_pixel():
    run_pool(layer(*CASES["padded"]), samples=4, stall=0.5, reset_at=65)


def test_errors_of_two_formats_are_refused():
    plan = replace(layer(*CASES["pairs"]), i_error=Format(6, 4))
    with pytest.raises(PlanError) as caught:
        MaxPool(plan, Rounding.FLOOR)
    assert str(caught.value) == "pool: i_error.frac must equal o_error.frac, 5 bits, not 4"
