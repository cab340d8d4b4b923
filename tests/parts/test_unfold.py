# amaranth: UnusedElaboratable=no
# ruff: noqa: ERA001
"""Every output column finds its kernel's columns side by side, in exactly the stated cycles."""

import itertools
import random

import pytest

from gradweave.model.geometry import Unfolding, output_size
from gradweave.rtl.parts.unfold import Unfold
from gradweave.tests.streams import random_lanes, run_streams

WIDTH = 7
# An Unfolding, channels and output lanes.
CASES = [
    ((6, 3, 1, 1), 1, 1),
    ((6, 3, 1, 1), 1, 3),
    ((6, 3, 1, 1), 2, 3),
    ((5, 5, 1, 2), 3, 5),
    ((8, 3, 2, 1), 3, 9),
    ((7, 2, 3, 0), 2, 2),  # the last column is read by no window
    ((7, 1, 3, 0), 2, 1),
    ((3, 2, 1, 2), 1, 2),  # windows of padding alone
    ((1, 1, 1, 0), 1, 1),
    ((4, 4, 1, 0), 1, 2),
    ((6, 3, 4, 0), 1, 1),
]


def unfolded(rows, row, lanes):
    """The words of all rows, by the definition."""
    words = []
    for pixels in rows:
        zero = [0] * len(pixels[0])
        for x in range((row.size + 2 * row.padding - row.kernel) // row.stride + 1):
            columns = [x * row.stride + dx - row.padding for dx in range(row.kernel)]
            vector = [
                value for n in columns for value in (pixels[n] if 0 <= n < row.size else zero)
            ]
            words += [vector[n : n + lanes] for n in range(0, len(vector), lanes)]
    return words


def case(shape, channels, lanes, count=5):
    row = Unfolding(*shape, output_size(*shape))
    pixels = random_lanes(random.Random(str(shape)), WIDTH, channels, count * row.size)
    rows = [pixels[n : n + row.size] for n in range(0, len(pixels), row.size)]
    return Unfold(WIDTH, channels, lanes, row), pixels, unfolded(rows, row, lanes)


@pytest.mark.parametrize("stall", [0.0, 0.5])
@pytest.mark.parametrize(("shape", "channels", "lanes"), CASES)
def test_every_vector_has_its_kernels_columns(shape, channels, lanes, stall):
    dut, pixels, expected = case(shape, channels, lanes)
    run = run_streams(dut, {"i": pixels}, {"o": len(expected)}, stall=stall, seed=lanes)
    assert run["o"] == expected


def test_a_row_by_hand():
    """Columns 1 2 3 4 of two channels (the second ten times the first), kernel 3, stride 2,
    padding 1.
    """
    dut = Unfold(8, 2, 3, Unfolding(4, 3, 2, 1, 2))
    run = run_streams(dut, {"i": [[1, 10], [2, 20], [3, 30], [4, 40]]}, {"o": 4})
    assert run["o"] == [[0, 0, 1], [10, 2, 20], [2, 20, 3], [30, 4, 40]]
    # Steps: padding, 1, 2, 3, 4; those of columns 2 and 4 take two cycles: 7 cycles a row.
    assert dut.interval == 7
    assert [at - run.times["i"][1] for at in run.times["o"]] == [1, 2, 4, 5]


@pytest.mark.parametrize(("shape", "channels", "lanes"), CASES)
def test_rows_take_their_stated_cycles(shape, channels, lanes):
    dut, pixels, expected = case(shape, channels, lanes, count=9)
    row, words = dut.unfolding, dut.words
    run = run_streams(dut, {"i": pixels}, {"o": len(expected)})
    ends = run.times["o"][row.outputs * words - 1 :: row.outputs * words]
    assert {after - end for end, after in itertools.pairwise(ends)} == {dut.interval}
    taken = run.times["i"]
    lasts, firsts = taken[row.size - 1 :: row.size], taken[row.size :: row.size]
    assert {b - a for a, b in zip(lasts, firsts, strict=False)} == {row.between_cycles(words)}
    tails = {max(0, end - last) for last, end in zip(lasts, ends, strict=True)}
    assert tails == {row.tail_cycles(words)}


@pytest.mark.parametrize("cycles", [3, 8, 13])
def test_reset_in_mid_row_starts_a_row(cycles):
    dut, pixels, expected = case((8, 3, 2, 1), 3, 3)
    run = run_streams(dut, {"i": pixels}, {"o": len(expected)}, stall=0.3, reset_at=cycles)
    assert run["o"] == expected
