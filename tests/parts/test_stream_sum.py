# amaranth: UnusedElaboratable=no
# ruff: noqa: ERA001
"""Streams are added word by word, exactly, rounded once, however late each one is."""

import random

import pytest

from gradweave.model.formats import Format, Rounding
from gradweave.rtl.parts.stream_sum import StreamSum
from gradweave.tests.golden.reference import rq
from gradweave.tests.streams import random_lanes, run_streams

SOURCE = Format(8, 4)


def stream_sum(depths=(2, 2), result=SOURCE, rounding=Rounding.HALF_EVEN, lanes=2):
    return StreamSum(lanes=lanes, source=SOURCE, result=result, rounding=rounding, depths=depths)


def expected(sources, result, rounding):
    """The sums and how many were clipped, one number at a time."""
    pairs = [
        [rq(sum(lane), SOURCE.frac, result, rounding) for lane in zip(*words, strict=True)]
        for words in zip(*sources, strict=True)
    ]
    values = [[value for value, _ in word] for word in pairs]
    return values, sum(hit for word in pairs for _, hit in word)


def run(dut, sources, **options):
    return run_streams(
        dut,
        {f"i.{n}": words for n, words in enumerate(sources)},
        {"o": len(sources[0])},
        sample=["clipped"],
        **options,
    )


def test_halves_round_to_even_and_ends_saturate_as_worked_by_hand():
    # Two fraction bits fewer: sums 2, 6, -2, 10 are 0.5, 1.5, -0.5, 2.5; 254 / 4 = 63.5 and
    # -256 / 4 = -64 do not fit 6 bits.
    dut = stream_sum(result=Format(6, 2), lanes=1)
    sums = run(dut, [[[1], [2], [-1], [7], [127], [-128]], [[1], [4], [-1], [3], [127], [-128]]])
    assert sums["o"] == [[0], [2], [0], [2], [31], [-32]]
    assert sums.sampled["clipped"] == 2


@pytest.mark.parametrize("stall", [0.0, 0.5])
@pytest.mark.parametrize(
    ("depths", "result", "rounding"),
    [
        ((1,), SOURCE, Rounding.HALF_EVEN),
        ((1, 2), Format(8, 2), Rounding.HALF_EVEN),
        ((3, 1, 9), Format(7, 4), Rounding.FLOOR),
        ((2, 5, 1, 1, 1), Format(8, 3), Rounding.HALF_UP),
        ((4, 2), Format(16, 9), Rounding.HALF_EVEN),
    ],
)
def test_sums_equal_their_definition(depths, result, rounding, stall):
    rng = random.Random(len(depths))
    sources = [random_lanes(rng, 8, 2, 150) for _ in depths]
    values, clipped = expected(sources, result, rounding)
    sums = run(stream_sum(depths, result, rounding), sources, stall=stall, seed=result.frac)
    assert sums["o"] == values
    assert sums.sampled["clipped"] == clipped


@pytest.mark.parametrize("depth", [1, 2, 7])
def test_a_stream_waits_in_as_many_words_as_stated(depth):
    with pytest.raises(AssertionError, match=rf"'i.0': {depth}, 'i.1': 0, 'o': 0"):
        run(stream_sum((depth, 2)), [[[1, 2]] * 20, []], deadline_cycles=60)


@pytest.mark.parametrize("depths", [(1, 1), (2, 2), (8, 8)])
def test_a_word_passes_per_cycle_with_the_stated_latency(depths):
    dut = stream_sum(depths)
    times = run(dut, [[[1, 2]] * 40, [[3, 4]] * 40]).times
    first = times["i.1"][0]
    assert times["i.1"] == [first + n for n in range(40)]
    assert times["o"] == [first + dut.latency + n for n in range(40)]


def test_reset_in_mid_stream_drops_words_and_the_count():
    rng = random.Random(3)
    sources = [random_lanes(rng, 8, 2, 60) for _ in range(2)]
    values, clipped = expected(sources, SOURCE, Rounding.HALF_EVEN)
    sums = run(stream_sum((5, 2)), sources, stall=0.5, reset_at=17)
    assert sums["o"] == values
    assert sums.sampled["clipped"] == clipped
