# amaranth: UnusedElaboratable=no
# ruff: noqa: ERA001
"""The walker against the loop nest that its walks describe."""

from itertools import product

import pytest

from gradweave.model.geometry import backward_walk, forward_walk
from gradweave.rtl.parts.walk import Walker
from gradweave.tests.streams import run_streams

# (size, kernel, stride, padding, outputs, dilation) of rows and of columns, the last two optional;
# outer and inner blocks; groups, where there are several.
CASES = [
    ((1, 1, 1, 0), (1, 1, 1, 0), 1, 1),
    ((4, 3, 1, 1), (5, 3, 1, 1), 1, 2),
    ((4, 3, 1, 0), (3, 2, 1, 0), 3, 1),
    ((7, 2, 3, 0), (4, 1, 2, 0), 2, 2),
    ((7, 3, 2, 1), (5, 2, 2, 1), 1, 1),
    ((3, 5, 1, 2), (4, 4, 3, 2), 2, 1),
    ((3, 2, 1, 2), (2, 1, 1, 1), 1, 3),
    ((5, 1, 3, 0), (3, 3, 1, 0), 2, 3),
    ((6, 3, 1, 2, 5, 2), (7, 2, 2, 0, 4, 3), 1, 2),
    ((3, 2, 3, 1, 2, 2), (4, 3, 2, 0, 3, 4), 2, 1),
    ((4, 3, 1, 0, 4, 1), (2, 2, 1, 0, 2, 1), 1, 1),
    ((3, 2, 1, 1), (2, 1, 1, 0), 4, 3, 2),
    ((2, 2, 1, 0), (3, 2, 2, 1), 3, 1, 3),
    ((2, 2, 1, 0), (3, 2, 2, 1), 6, 2, 3),
]


def walker(walk, case) -> Walker:
    rows, cols, outer, inner, *groups = case
    return Walker(
        rows=walk(*rows), cols=walk(*cols), outer=outer, inner=inner, groups=sum(groups) or 1
    )


def nest(dut: Walker) -> list[dict[str, int]]:
    """The beats of one sample, straight from the positions; a beat that reads nothing is null."""
    beats = []
    freed = 0
    for y, row in enumerate(dut.rows.positions):
        for x, col in enumerate(dut.cols.positions):
            for outer in range(dut.outer):
                row_taps, col_taps = range(max(1, row.taps)), range(max(1, col.taps))
                result = list(product(row_taps, col_taps, range(dut.inner)))
                for n, (r, c, inner) in enumerate(result):
                    edges = (y, x, outer, n)
                    ends = (
                        len(dut.rows.positions) - 1,
                        len(dut.cols.positions) - 1,
                        dut.outer - 1,
                        len(result) - 1,
                    )
                    members = dut.outer // dut.groups
                    alone = dut.groups == 1
                    beats.append(
                        {
                            "row": row.first_source + r * dut.rows.source_step,
                            "col": col.first_source + c * dut.cols.source_step,
                            "tap_row": row.first_tap + r * dut.rows.tap_step,
                            "tap_col": col.first_tap + c * dut.cols.tap_step,
                            "outer": outer,
                            "inner": inner,
                            "member": 0 if alone else outer % members,
                            "base": outer // members * dut.inner,
                            "null": int(row.taps == 0 or col.taps == 0),
                            "first": int(n == 0),
                            "last": int(n == len(result) - 1),
                            "row_last": int(edges[1:] == ends[1:]),
                            "sample_first": int(edges == (0, 0, 0, 0)),
                            "sample_last": int(edges == ends),
                            "need": row.need,
                            "free": row.free - freed,
                        }
                    )
        freed = row.free
    return beats


def compared(beat: dict[str, int]) -> dict[str, int]:
    """A null beat reads nothing, so it may name any place."""
    places = ("row", "col", "tap_row", "tap_col") if beat["null"] else ()
    return {name: value for name, value in beat.items() if name not in places}


@pytest.mark.parametrize("stall", [0.0, 0.5])
@pytest.mark.parametrize("walk", [forward_walk, backward_walk])
@pytest.mark.parametrize("case", CASES)
def test_beats_are_those_of_the_loop_nest_sample_after_sample(case, walk, stall):
    dut = walker(walk, case)
    expected = 2 * [compared(beat) for beat in nest(dut)]
    run = run_streams(dut, {}, {"o": len(expected)}, stall=stall, settle_cycles=0)
    assert [compared(beat) for beat in run["o"]] == expected


@pytest.mark.parametrize("walk", [forward_walk, backward_walk])
@pytest.mark.parametrize("case", CASES)
def test_a_sample_has_the_beats_of_its_walks(case, walk):
    dut = walker(walk, case)
    rows, cols, outer, inner = case[:4]
    assert dut.beats == walk(*rows).beats * walk(*cols).beats * outer * inner
    assert dut.beats == len(nest(dut))


def test_a_beat_leaves_every_cycle():
    dut = walker(forward_walk, CASES[1])
    run = run_streams(dut, {}, {"o": dut.beats}, settle_cycles=0)
    first = run.times["o"][0]
    assert first == 2  # cycles count from 1
    assert run.times["o"] == list(range(first, first + dut.beats))


def test_a_padded_axis_by_hand():
    """Two entries, kernel 3, padding 1: each output sees both entries."""
    dut = Walker(rows=forward_walk(1, 1, 1, 0), cols=forward_walk(2, 3, 1, 1), outer=1, inner=1)
    run = run_streams(dut, {}, {"o": 4}, settle_cycles=0)
    taken = [(beat["col"], beat["tap_col"], beat["first"], beat["last"]) for beat in run["o"]]
    assert taken == [(0, 1, 1, 0), (1, 2, 0, 1), (0, 0, 1, 0), (1, 1, 0, 1)]
    assert [beat["row_last"] for beat in run["o"]] == [0, 0, 0, 1]


def test_positions_without_taps_give_null_beats():
    dut = Walker(rows=backward_walk(1, 1, 1, 0), cols=backward_walk(3, 1, 2, 0), outer=1, inner=2)
    run = run_streams(dut, {}, {"o": 6}, settle_cycles=0)
    assert [beat["null"] for beat in run["o"]] == [0, 0, 1, 1, 0, 0]
    assert [beat["inner"] for beat in run["o"]] == [0, 1, 0, 1, 0, 1]


def test_the_rows_of_a_sample_are_freed_once_each():
    for walk, case in product((forward_walk, backward_walk), CASES):
        dut = walker(walk, case)
        run = run_streams(dut, {}, {"o": dut.beats}, settle_cycles=0)
        freed = sum(beat["free"] for beat in run["o"] if beat["row_last"])
        assert freed == dut.rows.source_size


@pytest.mark.parametrize("reset_at", [1, 9, 23])
def test_reset_in_mid_sample_starts_a_sample(reset_at):
    dut = walker(forward_walk, CASES[1])
    run = run_streams(dut, {}, {"o": dut.beats}, stall=0.3, settle_cycles=0, reset_at=reset_at)
    assert [compared(beat) for beat in run["o"]] == [compared(beat) for beat in nest(dut)]
