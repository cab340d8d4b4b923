"""Walks against the definition of a convolution, tap by tap."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradweave.model.geometry import Position, backward_walk, forward_walk, output_size


@st.composite
def axes(draw):
    kernel = draw(st.integers(1, 7))
    padding = draw(st.integers(0, 4))
    size = draw(st.integers(max(1, kernel - 2 * padding), 14))
    return size, kernel, draw(st.integers(1, 4)), padding


def pairs(size, kernel, stride, padding):
    """All (output, tap, input) that a convolution multiplies."""
    outputs = output_size(size, kernel, stride, padding)
    found = set()
    for y in range(outputs):
        for tap in range(kernel):
            x = y * stride + tap - padding
            if 0 <= x < size:
                found.add((y, tap, x))
    return outputs, found


def visits(walk):
    """All (position, tap, source) that a walk visits."""
    return [
        (n, p.first_tap + k * walk.tap_step, p.first_source + k * walk.source_step)
        for n, p in enumerate(walk.positions)
        for k in range(p.taps)
    ]


def check_windows(walk):
    """``need`` and ``free`` are what a window must hold, neither more nor less than is read."""
    reads = [[s for n, _, s in visits(walk) if n == m] for m in range(len(walk.positions))]
    needed = 1  # a walk never runs ahead of its sample
    for n, position in enumerate(walk.positions):
        later = [s for row in reads[n + 1 :] for s in row]
        assert position.free == (min(later) if later else walk.source_size)
        needed = max([needed, position.free, *(s + 1 for s in reads[n])])
        assert position.need == needed
    assert walk.positions[-1].free == walk.source_size


@given(axes())
def test_forward_walk_visits_the_products_of_a_convolution_once(axis):
    outputs, expected = pairs(*axis)
    walk = forward_walk(*axis)
    found = visits(walk)
    assert len(walk.positions) == outputs
    assert walk.source_size == axis[0]
    assert len(found) == len(expected)
    assert set(found) == expected
    check_windows(walk)


@given(axes())
def test_backward_walk_visits_the_same_products_from_the_input(axis):
    outputs, expected = pairs(*axis)
    walk = backward_walk(*axis)
    found = visits(walk)
    assert len(walk.positions) == axis[0]
    assert walk.source_size == outputs
    assert len(found) == len(expected)
    assert {(y, tap, x) for x, tap, y in found} == expected
    check_windows(walk)


@given(axes())
def test_beats_count_taps_and_null_beats(axis):
    for walk in (forward_walk(*axis), backward_walk(*axis)):
        nulls = sum(position.taps == 0 for position in walk.positions)
        assert walk.beats == len(visits(walk)) + nulls


def test_a_padded_axis_worked_by_hand():
    # Size 4, kernel 3, padding 1: the border outputs see two taps.
    walk = forward_walk(4, 3, 1, 1)
    assert walk.positions == (
        Position(first_tap=1, taps=2, first_source=0, need=2, free=0),
        Position(first_tap=0, taps=3, first_source=0, need=3, free=1),
        Position(first_tap=0, taps=3, first_source=1, need=4, free=2),
        Position(first_tap=0, taps=2, first_source=2, need=4, free=4),
    )
    assert walk.beats == 10


def test_a_strided_axis_worked_by_hand_backwards():
    # Size 5, kernel 2, stride 3: outputs 0 and 1 read inputs 0, 1 and 3, 4; input 2 has no tap.
    walk = backward_walk(5, 2, 3, 0)
    assert [position.taps for position in walk.positions] == [1, 1, 0, 1, 1]
    assert [position.first_source for position in walk.positions] == [0, 0, 0, 1, 1]
    assert [position.first_tap for position in walk.positions] == [0, 1, 0, 0, 1]
    assert walk.beats == 5


@pytest.mark.parametrize(
    ("axis", "outputs"),
    [((28, 5, 1, 2), 28), ((28, 2, 2, 0), 14), ((7, 3, 2, 0), 3), ((5, 5, 1, 0), 1)],
)
def test_output_size_is_that_of_floor_mode(axis, outputs):
    assert output_size(*axis) == outputs
