"""The gear regroups values without changing their order, at the full rate of its narrow side."""

import random

import pytest

from gradweave.rtl.parts.gear import Gear
from gradweave.tests.streams import random_lanes, run_streams

PAIRS = [(1, 1), (3, 3), (1, 4), (2, 6), (4, 1), (6, 2), (2, 3), (3, 2), (4, 6), (6, 4)]


def regroup(words, lanes):
    values = [value for word in words for value in word]
    return [values[n : n + lanes] for n in range(0, len(values), lanes)]


@pytest.mark.parametrize("stall", [0.0, 0.5])
@pytest.mark.parametrize(("i_lanes", "o_lanes"), PAIRS)
def test_values_keep_their_order(i_lanes, o_lanes, stall):
    words = regroup(random_lanes(random.Random(1), 7, 240, 1), i_lanes)
    expected = regroup(words, o_lanes)
    dut = Gear(7, i_lanes, o_lanes)
    run = run_streams(dut, {"i": words}, {"o": len(expected)}, stall=stall, seed=i_lanes)
    assert run["o"] == expected


def test_the_first_lane_is_the_first_value():
    run = run_streams(Gear(8, 2, 4), {"i": [[1, -2], [3, -4]]}, {"o": 1})
    assert run["o"] == [[1, -2, 3, -4]]
    run = run_streams(Gear(8, 2, 3), {"i": [[1, 2], [3, 4], [5, 6]]}, {"o": 2})
    assert run["o"] == [[1, 2, 3], [4, 5, 6]]


@pytest.mark.parametrize(("i_lanes", "o_lanes"), PAIRS)
def test_the_narrow_side_moves_every_cycle(i_lanes, o_lanes):
    words = [[n] * i_lanes for n in range(120 // i_lanes)]
    run = run_streams(Gear(8, i_lanes, o_lanes), {"i": words}, {"o": 120 // o_lanes})
    times = run.times["i" if i_lanes < o_lanes else "o"]
    assert times == [times[0] + n for n in range(len(times))]


@pytest.mark.parametrize(("i_lanes", "o_lanes"), [(1, 4), (4, 1), (2, 3)])
def test_reset_in_mid_word_drops_what_is_held(i_lanes, o_lanes):
    words = regroup([list(range(60))], i_lanes)
    run = run_streams(
        Gear(8, i_lanes, o_lanes), {"i": words}, {"o": 60 // o_lanes}, stall=0.5, reset_at=7
    )
    assert run["o"] == regroup(words, o_lanes)
