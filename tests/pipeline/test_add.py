# amaranth: UnusedElaboratable=no
# ruff: noqa: ERA001
"""An addition rounds its exact sum once, and gives its error to every source that takes one."""

import pytest
import torch

from gradweave.model.formats import Format, Rounding
from gradweave.model.pipeline.add import Add as Golden
from gradweave.model.step import Step
from gradweave.rtl.pipeline.add import Add
from gradweave.tests.golden.reference import numbers, rq
from gradweave.tests.pipeline.join_layers import ERROR, FEATURE, layer, random_maps, to_words
from gradweave.tests.streams import run_streams

SHAPE = (4, 2, 3)
TRAIN = Step(True)


def add(sources=2, *, depths=None, errors=(), **options):
    names = tuple(f"source{n}" for n in range(sources))
    depths = depths or (4,) * sources
    return layer("add", SHAPE, depths=depths, sources=names, errors=errors, **options)


def maps(plan, samples=5, seed=1):
    """Features of every source, and the errors of the sum."""
    generator = torch.Generator().manual_seed(seed)
    features = [random_maps(generator, FEATURE, samples, *SHAPE) for _ in plan.sources]
    return features, random_maps(generator, ERROR, samples, *SHAPE)


def run(plan, features, errors, rounding=Rounding.HALF_EVEN, **options):
    """Run both directions against the golden model."""
    sums, clipped = Golden(plan, rounding).forward(features, TRAIN)
    words = {f"i.{n}": to_words(each, plan.lanes) for n, each in enumerate(features)}
    outputs = {"o": to_words(sums, plan.lanes)}
    if plan.backward:
        words["o_error"] = to_words(errors, plan.lanes)
        outputs |= {f"i_error.{n}": words["o_error"] for n in range(sum(plan.source_errors))}
    result = run_streams(
        Add(plan, rounding),
        words,
        {name: len(each) for name, each in outputs.items()},
        set_up={"training": 1},
        sample=["saturated"],
        **options,
    )
    assert result.words == outputs
    assert result.sampled["saturated"] == {"o_feature": clipped}
    return result


@pytest.mark.parametrize(
    ("rounding", "expected"),
    [
        (Rounding.HALF_EVEN, [0, 2, 0, 2, 63, -64, 32]),
        (Rounding.HALF_UP, [1, 2, 0, 3, 63, -64, 32]),
        (Rounding.FLOOR, [0, 1, -1, 2, 63, -64, 31]),
    ],
)
def test_halves_round_as_worked_by_hand(rounding, expected):
    # Sums 2, 6, -2, 10, 253, -256 and 126 have two fraction bits too many: 0.5, 1.5, -0.5, 2.5,
    # 63.25, -64 and 31.5.
    left = torch.tensor([1, 2, -1, 7, 126, -128, 63]).view(1, 1, 1, 7).double()
    right = torch.tensor([1, 4, -1, 3, 127, -128, 63]).view(1, 1, 1, 7).double()
    sums, clipped = Golden(add(o_feature=Format(8, 2)), rounding).forward([left, right], TRAIN)
    assert (sums.flatten().tolist(), clipped) == (expected, 0)


def test_sums_beyond_the_format_saturate_and_are_counted():
    ends = torch.tensor([127.0, -128, 64, 63]).view(1, 1, 2, 2).double()
    sums, clipped = Golden(add(), Rounding.FLOOR).forward([ends, ends], TRAIN)
    assert (sums.flatten().tolist(), clipped) == ([127, -128, 127, 126], 3)


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64])
@pytest.mark.parametrize("rounding", [Rounding.HALF_EVEN, Rounding.HALF_UP, Rounding.FLOOR])
@pytest.mark.parametrize("result", [FEATURE, Format(8, 2), Format(12, 7)])
def test_the_golden_sum_equals_its_definition(result, rounding, dtype):
    plan = add(3, o_feature=result)
    features, _ = maps(plan)
    sums, clipped = Golden(plan, rounding).forward([each.to(dtype) for each in features], TRAIN)
    assert sums.dtype == dtype
    places = [numbers(each) for each in features]
    pairs = {
        index: rq(sum(each[index] for each in places), FEATURE.frac, result, rounding)
        for index in places[0]
    }
    assert numbers(sums) == {index: value for index, (value, _) in pairs.items()}
    assert clipped == sum(hit for _, hit in pairs.values())


def test_features_too_wide_for_float64_are_added_in_int64():
    wide = Format(62, 0)
    plan = add(i_feature=wide, o_feature=wide)
    big = torch.tensor([(1 << 60) + 1]).view(1, 1, 1, 1)
    sums, clipped = Golden(plan, Rounding.FLOOR).forward([big, big - 2], TRAIN)
    assert (int(sums), clipped) == ((1 << 61) - 1, 1)
    sums, clipped = Golden(plan, Rounding.FLOOR).forward([big, 2 - big], TRAIN)
    assert (int(sums), clipped) == (2, 0)


def test_forward_and_backward_agree_with_torchs_autograd():
    plan = add(3, o_feature=Format(12, 4))
    features, errors = maps(plan)
    real = [each.clone().requires_grad_() for each in features]
    total = sum(real)
    total.backward(errors)
    golden = Golden(plan, Rounding.HALF_EVEN)
    assert torch.equal(golden.forward(features, TRAIN)[0], total.detach())
    below, clipped = golden.backward(errors)
    assert clipped == 0
    assert all(torch.equal(got, each.grad) for got, each in zip(below, real, strict=True))


@pytest.mark.parametrize("stall", [0.0, 0.5])
@pytest.mark.parametrize(
    ("sources", "depths", "lanes", "result"),
    [(2, (1, 1), 1, FEATURE), (2, (12, 2), 4, Format(8, 2)), (3, (1, 5, 2), 2, Format(12, 7))],
)
def test_both_directions_equal_the_golden_model(sources, depths, lanes, result, stall):
    plan = add(sources, depths=depths, lanes=lanes, o_feature=result)
    run(plan, *maps(plan), stall=stall, seed=sources)


def test_a_source_that_takes_no_error_gets_none():
    plan = add(3, errors=(False, True, True))
    dut = Add(plan, Rounding.FLOOR)
    assert len(dut.i_error) == 2
    run(plan, *maps(plan), stall=0.3)


def test_a_first_layer_has_no_error_streams():
    plan = add(backward=False)
    dut = Add(plan, Rounding.FLOOR)
    assert set(dut.signature.members) == {"i", "o", "training", "clear", "saturated"}
    run(plan, *maps(plan), stall=0.3)


def test_a_source_waits_while_its_fifo_is_full():
    with pytest.raises(AssertionError, match=r"'i.0': 3, 'i.1': 0, 'o': 0"):
        run_streams(
            Add(add(depths=(3, 3)), Rounding.FLOOR),
            {"i.0": [[1]] * 9, "i.1": []},
            {"o": 9},
            deadline_cycles=60,
        )


def test_interval_and_latency_are_as_stated():
    plan = add(lanes=2)
    dut = Add(plan, Rounding.HALF_EVEN)
    times = run(plan, *maps(plan, samples=3)).times
    words = 3 * dut.interval
    assert dut.interval == plan.fp_interval == plan.eb_interval == 12
    for source, result, latency in (("i.1", "o", dut.latency), ("o_error", "i_error.1", 0)):
        first = times[source][0]
        assert times[source] == [first + n for n in range(words)]
        assert times[result] == [first + latency + n for n in range(words)]


def test_reset_in_mid_stream_drops_words_and_the_count():
    plan = add(depths=(6, 2), lanes=2)
    run(plan, *maps(plan), stall=0.5, reset_at=13)
