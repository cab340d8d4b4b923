"""The random bits are SPECK64/128's, and depend on nothing but seed, tensor, element and step."""

import re

import pytest

from gradweave.model.errors import FormatError
from gradweave.model.random import CONSTANT, encrypt, expand, random_word


def test_the_published_vector_is_reproduced():
    keys = expand((0x1B1A1918, 0x13121110, 0x0B0A0908, 0x03020100))
    assert encrypt(keys, 0x3B726574, 0x7475432D) == (0x8C6FA548, 0x454E028B)


def test_a_word_is_the_block_of_element_and_step_under_tensor_and_seed():
    keys = expand((CONSTANT, 7, 0x01234567, 0x89ABCDEF))
    high, low = encrypt(keys, 5, 9)
    assert random_word(0x0123456789ABCDEF, 7, 5, 9) == high << 32 | low


def test_every_part_of_the_key_and_the_block_matters():
    words = {random_word(*place) for place in [(0, 0, 0, 0), (1, 0, 0, 0), (2**32, 0, 0, 0)]}
    words |= {random_word(*place) for place in [(0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1)]}
    assert len(words) == 6


def test_each_bit_is_set_about_half_the_time():
    draws = [random_word(3, 4, element, 5) for element in range(4000)]
    for bit in range(64):
        share = sum(draw >> bit & 1 for draw in draws) / len(draws)
        # Five standard deviations of 4,000 draws.
        assert abs(share - 0.5) < 5 * 0.5 / len(draws) ** 0.5


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ((2**64, 0, 0, 0), f"seed must be from 0 to 2**64 - 1, not {2**64}"),
        ((-1, 0, 0, 0), "seed must be from 0 to 2**64 - 1, not -1"),
        ((0, 2**32, 0, 0), f"tensor must be from 0 to 2**32 - 1, not {2**32}"),
        ((0, 0, 2**32, 0), f"element must be from 0 to 2**32 - 1, not {2**32}"),
        ((0, 0, 0, -1), "step must be from 0 to 2**32 - 1, not -1"),
    ],
)
def test_what_does_not_fit_the_cipher_is_refused(place, message):
    with pytest.raises(FormatError, match=f"^{re.escape(message)}$"):
        random_word(*place)
