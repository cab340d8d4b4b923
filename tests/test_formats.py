"""Formats mean what they say, and accumulators hold their worst case."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradweave.model.errors import FormatError
from gradweave.model.formats import Format, accumulator_width, fit_format


def test_a_signed_format_has_twos_complement_ends():
    fmt = Format(16, 12)
    assert (fmt.min, fmt.max, fmt.step, str(fmt)) == (-32768, 32767, 2**-12, "s16.12")


def test_an_unsigned_format_starts_at_zero():
    fmt = Format(15, 10, signed=False)
    assert (fmt.min, fmt.max, str(fmt)) == (0, 32767, "u15.10")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1, 0), "width must be an integer from 2 to 64 bits, not 1"),
        ((0, 0, False), "width must be an integer from 1 to 64 bits, not 0"),
        ((65, 0), "width must be an integer from 2 to 64 bits, not 65"),
        ((8.0, 0), "width must be an integer from 2 to 64 bits, not 8.0"),
        ((8, 0.5), "frac must be an integer number of bits, not 0.5"),
    ],
)
def test_a_wrong_format_is_refused(arguments, message):
    with pytest.raises(FormatError, match=f"^{re.escape(message)}$"):
        Format(*arguments)


@given(st.integers(2, 20), st.integers(2, 20), st.integers(1, 5000))
def test_an_accumulator_holds_both_extreme_sums_and_is_not_a_bit_too_wide(a, b, terms):
    width = accumulator_width(a, b, terms)
    most = terms * Format(a, 0).min * Format(b, 0).min
    least = terms * Format(a, 0).min * Format(b, 0).max
    assert Format(width, 0).min <= least
    assert most <= Format(width, 0).max
    assert most > Format(width - 1, 0).max


def test_the_product_of_two_16_bit_minima_needs_32_bits():
    assert accumulator_width(16, 16, 1) == 32


@given(st.floats(1e-6, 1e6), st.integers(4, 32), st.integers(0, 3))
def test_a_fitted_format_holds_its_value_and_one_more_fraction_bit_would_not(
    largest, width, headroom
):
    fmt = fit_format(largest, width, headroom)
    limit = 2.0 ** (width - 1 - fmt.frac)
    assert largest * 2**headroom < limit <= 2 * largest * 2**headroom


def test_zero_gets_all_bits_as_fraction():
    assert fit_format(0, 16) == Format(16, 15)


@pytest.mark.parametrize("largest", [float("nan"), float("inf"), -1.0])
def test_an_unusable_magnitude_is_refused(largest):
    message = f"largest must be finite and not negative, not {largest!r}"
    with pytest.raises(FormatError, match=f"^{re.escape(message)}$"):
        fit_format(largest, 16)
