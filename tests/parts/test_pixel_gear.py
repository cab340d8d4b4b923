"""Pixels pass between any two layouts, whatever the stalls and whatever stood on pad lanes."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradweave.model.padding import channel_words
from gradweave.rtl.parts.pixel_gear import PixelGear
from gradweave.tests.streams import run_streams

WIDTH = 6


def stream(pixels, layout, rng=None):
    """Pixels as words; pad lanes zero, or anything where ``rng`` is given."""
    words = channel_words(len(pixels[0]), layout)
    return [
        [
            pixel[n] if n is not None else rng.randrange(-32, 32) if rng else 0
            for n in word
        ]
        for pixel in pixels
        for word in words
    ]  # fmt: skip


def check(channels, i_layout, o_layout, seed, stall):
    rng = random.Random(seed)
    pixels = [[rng.randrange(-32, 32) for _ in range(channels)] for _ in range(7)]
    dut = PixelGear(WIDTH, channels, i_layout, o_layout)
    run = run_streams(
        dut,
        {"i": stream(pixels, i_layout, rng)},
        {"o": 7 * len(channel_words(channels, o_layout))},
        stall=stall,
        seed=seed,
    )
    assert run["o"] == stream(pixels, o_layout)
    return run


@st.composite
def layouts(draw):
    runs, size = draw(st.integers(1, 3)), draw(st.integers(1, 7))
    channels = runs * size
    pairs = [
        draw(st.sampled_from([(n, runs) for n in range(1, size + 1)] + [(channels, 1), (1, 1)]))
        for _ in range(2)
    ]
    return channels, *pairs


@settings(max_examples=40, deadline=None)
@given(layouts(), st.integers(0, 99), st.sampled_from([0.0, 0.5]))
def test_every_pixel_comes_out_with_zeros_in_pad_lanes(case, seed, stall):
    check(*case, seed, stall)


@pytest.mark.parametrize(
    ("channels", "i_layout", "o_layout", "each"),
    [
        (5, (2, 1), (5, 1), 3),
        (5, (5, 1), (2, 1), 3),
        (7, (2, 1), (3, 1), 4),
        (5, (2, 1), (2, 1), 3),
    ],
)
def test_a_pixel_takes_the_cycles_of_the_side_with_more_words(channels, i_layout, o_layout, each):
    run = check(channels, i_layout, o_layout, 1, 0.0)
    count = len(channel_words(channels, o_layout))
    first, last = run.times["o"][count - 1], run.times["o"][-1]
    assert last - first == 6 * each


@pytest.mark.parametrize(
    ("i_layout", "o_layout", "needed"),
    [
        ((1, 1), (3, 1), [3, 6, 7]),
        ((3, 1), (1, 1), [1, 1, 1, 2, 2, 2, 3]),
        ((2, 1), (3, 1), [2, 3, 4]),
    ],
)
def test_a_word_leaves_as_soon_as_its_channels_are_there(i_layout, o_layout, needed):
    run = check(7, i_layout, o_layout, 2, 0.0)
    came, left = run.times["i"], run.times["o"]
    for n, count in enumerate(needed):
        behind = left[n - 1] if n else 0
        assert left[n] == max(came[count - 1], behind) + 1
