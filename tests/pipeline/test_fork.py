# amaranth: UnusedElaboratable=no
# ruff: noqa: ERA001
"""A fork copies its feature, and adds its consumers' errors exactly, rounding once."""

import pytest
import torch

from gradweave.model.formats import Format, Rounding
from gradweave.model.pipeline.fork import Fork as Golden
from gradweave.model.step import Step
from gradweave.rtl.pipeline.fork import Fork
from gradweave.tests.golden.reference import numbers, rq
from gradweave.tests.pipeline.join_layers import ERROR, FEATURE, layer, random_maps, to_words
from gradweave.tests.streams import run_streams

SHAPE = (4, 2, 3)


def fork(fan=2, *, depths=None, **options):
    return layer("fork", SHAPE, depths=depths or (4,) * fan, fan=fan, **options)


def maps(plan, samples=5, seed=1):
    """Features, and the errors of every consumer."""
    generator = torch.Generator().manual_seed(seed)
    features = random_maps(generator, FEATURE, samples, *SHAPE)
    return features, [random_maps(generator, ERROR, samples, *SHAPE) for _ in range(plan.fan)]


def run(plan, features, errors, rounding=Rounding.HALF_EVEN, **options):
    """Run both directions against the golden model."""
    words = {"i": to_words(features, plan.lanes)}
    outputs = {f"o.{n}": words["i"] for n in range(plan.fan)}
    sample, counted = [], {}
    if plan.backward:
        below, clipped = Golden(plan, rounding).backward(errors)
        words |= {f"o_error.{n}": to_words(each, plan.lanes) for n, each in enumerate(errors)}
        outputs["i_error"] = to_words(below, plan.lanes)
        sample, counted = ["saturated"], {"saturated": {"i_error": clipped}}
    result = run_streams(
        Fork(plan, rounding),
        words,
        {name: len(each) for name, each in outputs.items()},
        set_up={"training": 1},
        sample=sample,
        **options,
    )
    assert result.words == outputs
    assert result.sampled == counted
    return result


def test_a_sum_saturates_and_is_counted_as_worked_by_hand():
    # 6 bits end at 31 and -32.
    plan = fork(3)
    terms = [[20, -20, 10, 0], [11, -12, 10, 1], [1, -1, 11, -1]]
    errors = [torch.tensor(each).view(1, 1, 2, 2).double() for each in terms]
    below, clipped = Golden(plan, Rounding.HALF_EVEN).backward(errors)
    assert (below.flatten().tolist(), clipped) == ([31, -32, 31, 0], 2)


@pytest.mark.parametrize("rounding", [Rounding.HALF_EVEN, Rounding.HALF_UP, Rounding.FLOOR])
@pytest.mark.parametrize("result", [ERROR, Format(6, 3), Format(9, 7)])
def test_the_golden_sum_equals_its_definition(result, rounding):
    plan = fork(3, i_error=result)
    _, errors = maps(plan)
    below, clipped = Golden(plan, rounding).backward(errors)
    places = [numbers(each) for each in errors]
    pairs = {
        index: rq(sum(each[index] for each in places), ERROR.frac, result, rounding)
        for index in places[0]
    }
    assert numbers(below) == {index: value for index, (value, _) in pairs.items()}
    assert clipped == sum(hit for _, hit in pairs.values())


def test_forward_and_backward_agree_with_torchs_autograd():
    plan = fork(2, i_error=Format(7, 5))
    features, errors = maps(plan)
    real = features.clone().requires_grad_()
    torch.autograd.backward([real * 1, real * 1], errors)
    golden = Golden(plan, Rounding.HALF_EVEN)
    assert torch.equal(golden.forward(features, Step(True))[0], features)
    assert torch.equal(golden.backward(errors)[0], real.grad)


@pytest.mark.parametrize("stall", [0.0, 0.5])
@pytest.mark.parametrize(
    ("fan", "depths", "lanes", "result"),
    [(2, (1, 1), 1, ERROR), (2, (12, 2), 4, Format(6, 3)), (3, (1, 5, 2), 2, Format(9, 7))],
)
def test_both_directions_equal_the_golden_model(fan, depths, lanes, result, stall):
    plan = fork(fan, depths=depths, lanes=lanes, i_error=result)
    run(plan, *maps(plan), stall=stall, seed=fan)


@pytest.mark.parametrize("slow", ["i", "o.0", "o.1", "o_error.0", "o_error.1", "i_error"])
def test_a_slow_neighbour_loses_nothing(slow):
    plan = fork(depths=(1, 2))
    run(plan, *maps(plan), stall={slow: 0.9})


def test_a_fork_of_the_input_has_no_error_streams():
    plan = fork(backward=False)
    members = set(Fork(plan, Rounding.FLOOR).signature.members)
    assert members == {"i", "o", "training", "clear"}
    run(plan, *maps(plan), stall=0.3)


def test_an_error_waits_while_its_fifo_is_full():
    with pytest.raises(AssertionError, match=r"'o_error.0': 3, 'o_error.1': 0, 'i_error': 0"):
        run_streams(
            Fork(fork(depths=(3, 3)), Rounding.FLOOR),
            {"o_error.0": [[1]] * 9, "o_error.1": []},
            {"i_error": 9},
            deadline_cycles=60,
        )


def test_interval_and_latency_are_as_stated():
    plan = fork(lanes=2)
    dut = Fork(plan, Rounding.HALF_EVEN)
    times = run(plan, *maps(plan, samples=3)).times
    words = 3 * dut.interval
    assert dut.interval == plan.fp_interval == plan.eb_interval == 12
    assert times["i"] == times["o.0"] == times["o.1"]
    first = times["o_error.1"][0]
    assert times["o_error.1"] == [first + n for n in range(words)]
    assert times["i_error"] == [first + dut.latency + n for n in range(words)]


def test_reset_in_mid_stream_drops_words_and_the_count():
    plan = fork(depths=(6, 2), lanes=2)
    run(plan, *maps(plan), stall=0.5, reset_at=13)
