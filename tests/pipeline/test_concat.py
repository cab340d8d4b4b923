# amaranth: UnusedElaboratable=no
# ruff: noqa: ERA001
"""A concatenation keeps the order of sources pixel by pixel, and splits errors the same way."""

import pytest
import torch

from gradweave.model.errors import PlanError
from gradweave.model.formats import Rounding
from gradweave.model.pipeline.concat import Concat as Golden
from gradweave.model.step import Step
from gradweave.rtl.pipeline.concat import Concat
from gradweave.tests.pipeline.join_layers import ERROR, FEATURE, layer, random_maps, to_words
from gradweave.tests.streams import run_streams

MAP = (2, 3)
TRAIN = Step(True)


def concat(parts, *, depths=None, **options):
    names = tuple(f"source{n}" for n in range(len(parts)))
    depths = depths or (4,) * len(parts)
    shape = (sum(parts), *MAP)
    return layer("concat", shape, depths=depths, sources=names, parts=parts, **options)


def maps(plan, samples=5, seed=1):
    """Features of every source, and the errors of the result."""
    generator = torch.Generator().manual_seed(seed)
    features = [random_maps(generator, FEATURE, samples, part, *MAP) for part in plan.parts]
    return features, random_maps(generator, ERROR, samples, sum(plan.parts), *MAP)


def run(plan, features, errors, **options):
    """Run both directions against the golden model."""
    golden = Golden(plan, Rounding.FLOOR)
    joined, _ = golden.forward(features, TRAIN)
    words = {f"i.{n}": to_words(each, plan.lanes) for n, each in enumerate(features)}
    outputs = {"o": to_words(joined, plan.lanes)}
    if plan.backward:
        words["o_error"] = to_words(errors, plan.lanes)
        split = golden.backward(errors)[0]
        taken = [each for each, takes in zip(split, plan.source_errors, strict=True) if takes]
        outputs |= {f"i_error.{n}": to_words(each, plan.lanes) for n, each in enumerate(taken)}
    result = run_streams(
        Concat(plan, Rounding.FLOOR),
        words,
        {name: len(each) for name, each in outputs.items()},
        set_up={"training": 1},
        **options,
    )
    assert result.words == outputs
    return result


def test_channels_of_two_sources_alternate_by_pixel_as_worked_by_hand():
    plan = concat((2, 1))
    run = run_streams(
        Concat(plan, Rounding.FLOOR),
        {"i.0": [[1], [2], [3], [4]], "i.1": [[7], [8]], "o_error": [[9], [10], [11], [12]]},
        {"o": 6, "i_error.0": 3, "i_error.1": 1},
    )
    assert run["o"] == [[1], [2], [7], [3], [4], [8]]
    assert run["i_error.0"] == [[9], [10], [12]]
    assert run["i_error.1"] == [[11]]


def test_the_golden_order_is_worked_by_hand():
    plan = concat((2, 1))
    golden = Golden(plan, Rounding.FLOOR)
    left = torch.tensor([[1, 3], [2, 4.0]]).view(1, 2, 1, 2)
    right = torch.tensor([7, 8.0]).view(1, 1, 1, 2)
    joined, clipped = golden.forward([left, right], TRAIN)
    assert (joined.flatten().tolist(), clipped) == ([1, 3, 2, 4, 7, 8], 0)
    below, clipped = golden.backward(joined * 10)
    assert clipped == 0
    assert [each.flatten().tolist() for each in below] == [[10, 30, 20, 40], [70, 80]]


def test_forward_and_backward_agree_with_torchs_autograd():
    plan = concat((2, 1, 3))
    features, errors = maps(plan)
    real = [each.clone().requires_grad_() for each in features]
    joined = torch.cat(real, 1)
    joined.backward(errors)
    golden = Golden(plan, Rounding.FLOOR)
    assert torch.equal(golden.forward(features, TRAIN)[0], joined.detach())
    pairs = zip(golden.backward(errors)[0], real, strict=True)
    assert all(torch.equal(got, each.grad) for got, each in pairs)


@pytest.mark.parametrize("stall", [0.0, 0.5])
@pytest.mark.parametrize(
    ("parts", "lanes", "depths"),
    [((1, 1), 1, (1, 1)), ((2, 4), 2, (1, 8)), ((3, 1, 2), 1, (2, 3, 1)), ((4, 4), 4, (5, 2))],
)
def test_both_directions_equal_the_golden_model(parts, lanes, depths, stall):
    plan = concat(parts, lanes=lanes, depths=depths)
    run(plan, *maps(plan), stall=stall, seed=lanes)


@pytest.mark.parametrize("slow", ["i.0", "i.1", "o", "o_error", "i_error.0", "i_error.1"])
def test_a_slow_neighbour_loses_nothing(slow):
    plan = concat((2, 1), depths=(1, 2))
    run(plan, *maps(plan), stall={slow: 0.9})


@pytest.mark.parametrize("errors", [(False, True, True), (True, False, True), (True, True, False)])
def test_errors_of_a_source_that_takes_none_are_dropped(errors):
    plan = concat((2, 1, 3), errors=errors)
    assert len(Concat(plan, Rounding.FLOOR).i_error) == 2
    run(plan, *maps(plan), stall=0.3)


def test_a_first_layer_has_no_error_streams():
    plan = concat((2, 1), backward=False)
    members = set(Concat(plan, Rounding.FLOOR).signature.members)
    assert members == {"i", "o", "training", "clear"}
    run(plan, *maps(plan), stall=0.3)


def test_a_source_waits_for_its_turn_in_as_many_words_as_stated():
    with pytest.raises(AssertionError, match=r"'i.0': 0, 'i.1': 3, 'o': 0"):
        run_streams(
            Concat(concat((2, 1), depths=(3, 3)), Rounding.FLOOR),
            {"i.0": [], "i.1": [[1]] * 9},
            {"o": 9},
            deadline_cycles=60,
        )


def test_interval_and_latency_are_as_stated():
    plan = concat((2, 4), lanes=2, depths=(8, 16))
    dut = Concat(plan, Rounding.FLOOR)
    times = run(plan, *maps(plan, samples=3)).times
    words = 3 * dut.interval
    assert dut.interval == plan.fp_interval == plan.eb_interval == 18
    first = times["i.0"][0]
    assert times["o"] == [first + dut.latency + n for n in range(words)]
    assert times["o_error"] == [times["o_error"][0] + n for n in range(words)]
    assert times["i_error.0"] == times["o_error"][::3]


def test_reset_in_mid_pixel_starts_with_a_pixels_first_word():
    plan = concat((3, 1, 2), depths=(2, 3, 1))
    run(plan, *maps(plan), stall=0.5, reset_at=17)


def test_lanes_that_do_not_divide_a_part_are_refused():
    plan = concat((2, 4), lanes=3)
    with pytest.raises(PlanError) as caught:
        Concat(plan, Rounding.FLOOR)
    assert str(caught.value) == ("concat: lanes must divide every part of [2, 4] channels, not 3")
