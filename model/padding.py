"""How the channels of a pixel lie in the words of a stream, pad lanes included.

Channels come in equal runs, one a group where a layer works group by group; a run starts a word,
and what is left of its last word are pad lanes, which hold zero in front of every engine.

Leaf of the standard library. RTL: ``rtl/parts/pixel_gear.py``. Test: ``tests/test_padding.py``.
"""

from functools import lru_cache

__all__ = ["Layout", "channel_words", "padded", "pixel_words", "words_of_a_word"]

Layout = tuple[int, int]  # lanes of a word, runs of a pixel


def padded(channels: int, layout: Layout) -> bool:
    """Whether words of this layout have pad lanes."""
    lanes, runs = layout
    return channels // runs % lanes != 0


def pixel_words(channels: int, layout: Layout) -> int:
    """Words of a pixel."""
    lanes, runs = layout
    return runs * -(-(channels // runs) // lanes)


def words_of_a_word(channels: int, source: Layout, taker: Layout) -> int:
    """Words that a taker needs for a word of its source, where words are whole, or on average over
    a pixel, rounded up.
    """
    if padded(channels, source) or padded(channels, taker):
        return -(-pixel_words(channels, taker) // pixel_words(channels, source))
    return -(-source[0] // taker[0])


@lru_cache(maxsize=1024)
def channel_words(channels: int, layout: Layout) -> tuple[tuple[int | None, ...], ...]:
    """The channel in each lane of each word of a pixel; None in a pad lane."""
    lanes, runs = layout
    size = channels // runs
    return tuple(
        tuple(run * size + n if n < size else None for n in range(first, first + lanes))
        for run in range(runs)
        for first in range(0, size, lanes)
    )
