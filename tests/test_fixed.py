"""Fast fixed-point arithmetic equals its definition in Python integers, in int64 and in float64."""

import math
import random
import re
from fractions import Fraction

import pytest
import torch

from gradweave.model.errors import FormatError, InputError
from gradweave.model.fixed import (
    dequantize,
    quantize,
    random_words,
    requantize,
    requantize_masked,
    saturate,
)
from gradweave.model.formats import Format, Rounding
from gradweave.model.random import random_word
from gradweave.tests.golden.reference import rq

ROUNDINGS = [Rounding.HALF_EVEN, Rounding.HALF_UP, Rounding.FLOOR]
INT64 = torch.iinfo(torch.int64)


def definition(values: list[int], frac: int, fmt: Format, rounding: Rounding):
    pairs = [rq(value, frac, fmt, rounding) for value in values]
    return [pair[0] for pair in pairs], sum(pair[1] for pair in pairs)


def noise(seed: int, tensor: int, elements: torch.Tensor) -> torch.Tensor:
    return random_words(seed, tensor, elements, 7)[1] & 0xFFFF


def awkward(bits: int, shift: int, rng: random.Random) -> list[int]:
    """Random magnitudes, exact ties and their neighbours, and both ends."""
    ends = [0, 1, -1, (1 << bits) - 1, -(1 << bits) + 1]
    values = [rng.randrange(-(1 << n), 1 << n) for n in range(1, bits) for _ in range(4)]
    half = 1 << max(shift - 1, 0)
    ties = [(rng.randrange(-40, 40) * 2 + 1) * half + d for _ in range(40) for d in (-1, 0, 1)]
    return [v for v in ends + values + ties if abs(v) < 1 << bits]


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("seed", range(4))
def test_both_dtypes_equal_the_definition(rounding, seed):
    rng = random.Random(seed)
    for _ in range(60):
        shift = rng.randrange(-20, 56)
        fmt = Format(rng.randrange(2, 40), rng.randrange(-6, 30))
        values = awkward(53, shift, rng)
        expected, clipped = definition(values, fmt.frac + shift, fmt, rounding)
        for dtype in (torch.int64, torch.float64):
            acc = torch.tensor(values, dtype=dtype)
            got, count = requantize(acc, fmt.frac + shift, fmt, rounding)
            assert got.dtype == dtype
            assert got.tolist() == expected, (seed, shift, fmt)
            assert count == clipped
            assert acc.tolist() == values


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_int64_is_exact_up_to_its_ends_at_every_shift(rounding):
    rng = random.Random(7)
    for shift in [*range(-70, 71), 100, 200]:
        fmt = Format(rng.choice([2, 16, 33, 63, 64]), 0)
        values = [*awkward(63, shift, rng), INT64.min, INT64.max, INT64.min + 1]
        expected, clipped = definition(values, shift, fmt, rounding)
        got, count = requantize(torch.tensor(values), shift, fmt, rounding)
        assert got.tolist() == expected, (shift, fmt)
        assert count == clipped


@pytest.mark.parametrize(
    ("rounding", "expected"),
    [
        (Rounding.HALF_EVEN, [-2, -1, 2, 6]),
        (Rounding.HALF_UP, [-2, -1, 3, 6]),
        (Rounding.FLOOR, [-3, -1, 2, 5]),
    ],
)
@pytest.mark.parametrize("dtype", [torch.int64, torch.float64])
def test_known_values_round_as_worked_by_hand(rounding, expected, dtype):
    eighths = torch.tensor([-20, -5, 20, 44], dtype=dtype)
    assert requantize(eighths, 3, Format(8, 0), rounding)[0].tolist() == expected


def test_the_four_known_values_round_stochastically_to_a_neighbour_with_the_lost_fraction():
    eighths = torch.tensor([-20, -5, 20, 44]).repeat(20000, 1)
    draws = noise(1, 2, torch.arange(80000).view(-1, 4))
    got, _ = requantize(eighths, 3, Format(8, 0), Rounding.STOCHASTIC, draws)
    lower = torch.tensor([-3, -1, 2, 5])
    assert bool(((got == lower) | (got == lower + 1)).all())
    upper_share = (got > lower).double().mean(0)
    # Four standard deviations of 20,000 draws.
    limit = 4 * 0.5 / 20000**0.5
    assert torch.allclose(
        upper_share, torch.tensor([0.5, 0.375, 0.5, 0.5]).double(), atol=limit, rtol=0
    )


@pytest.mark.parametrize("shift", [1, 3, 31, 52, 63, 70])
def test_stochastic_rounding_goes_up_when_the_draw_reaches_the_missing_rest(shift):
    rng = random.Random(shift)
    values = [rng.randrange(INT64.min, INT64.max) >> rng.randrange(60) for _ in range(300)]
    draws = noise(5, 6, torch.arange(300))
    # floor(value * 2**-shift, cut off 16 bits behind the point, + draw * 2**-16)
    exact = [Fraction(value, 2**shift) for value in values]
    cut = [math.floor(value * 2**16) for value in exact]
    if shift < 16:
        pairs = zip(exact, draws.tolist(), strict=True)
        expected = [math.floor(x + Fraction(d >> (16 - shift), 2**shift)) for x, d in pairs]
    else:
        expected = [(x + d) // 2**16 for x, d in zip(cut, draws.tolist(), strict=True)]
    got, _ = requantize(torch.tensor(values), shift, Format(64, 0), Rounding.STOCHASTIC, draws)
    assert got.tolist() == expected


def test_stochastic_rounding_is_the_same_in_float64():
    acc = torch.randint(-(2**52), 2**52, (500,), generator=torch.Generator().manual_seed(3))
    draws = noise(5, 6, torch.arange(500))
    for shift in (-3, 0, 5, 40):
        exact = requantize(acc, shift, Format(54, 0), Rounding.STOCHASTIC, draws)
        fast = requantize(acc.double(), shift, Format(54, 0), Rounding.STOCHASTIC, draws)
        assert (fast[0].long().tolist(), fast[1]) == (exact[0].tolist(), exact[1])


def test_vectorised_random_bits_are_those_of_the_scalar_generator():
    rng = random.Random(9)
    elements = [rng.randrange(2**32) for _ in range(50)]
    steps = [rng.randrange(2**32) for _ in range(50)]
    seed, tensor = rng.randrange(2**64), rng.randrange(2**32)
    high, low = random_words(seed, tensor, torch.tensor(elements), torch.tensor(steps))
    assert (high << 32 | low).tolist() == [
        random_word(seed, tensor, element, step)
        - (random_word(seed, tensor, element, step) >> 63 << 64)
        for element, step in zip(elements, steps, strict=True)
    ]


def test_a_mask_shows_which_values_were_clipped():
    values, mask = requantize_masked(
        torch.tensor([5, 300, -300]), 0, Format(8, 0), Rounding.HALF_EVEN
    )
    assert (values.tolist(), mask.tolist()) == ([5, 127, -128], [False, True, True])


def test_nothing_clipped_gives_no_mask_and_empty_tensors_pass():
    assert saturate(torch.tensor([127, -128]), Format(8, 0))[1] is None
    for dtype in (torch.int64, torch.float64):
        empty, count = requantize(torch.zeros(0, dtype=dtype), 3, Format(8, 0), Rounding.FLOOR)
        assert (empty.numel(), count) == (0, 0)


def test_899_saturates_in_a_format_that_ends_at_8():
    values, clipped = quantize(torch.tensor([8.99, -8.99, 7.5]), Format(8, 4))
    assert (values.tolist(), clipped) == ([127, -128, 120], 2)


def test_quantising_rounds_halves_to_even_and_goes_back():
    values, clipped = quantize(torch.tensor([0.5, 1.5, -2.5, 0.74]), Format(8, 0))
    assert (values.tolist(), clipped) == ([0, 2, -2, 1], 0)
    assert dequantize(torch.tensor([5, -3]), Format(8, 2)).tolist() == [1.25, -0.75]


@pytest.mark.parametrize(
    ("rounding", "expected"),
    [(Rounding.HALF_UP, [-2, -1, 3, 6]), (Rounding.FLOOR, [-3, -1, 2, 5])],
)
def test_real_numbers_round_in_every_mode(rounding, expected):
    values, _ = quantize(torch.tensor([-2.5, -0.625, 2.5, 5.5]), Format(8, 0), rounding)
    assert values.tolist() == expected


def test_huge_real_numbers_saturate_in_the_widest_format():
    values, clipped = quantize(
        torch.tensor([1e300, -1e300, 2.0**62], dtype=torch.float64), Format(64, 10)
    )
    assert (values.tolist(), clipped) == ([INT64.max, INT64.min, INT64.max], 3)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_values_that_are_not_finite_are_refused_by_name_and_place(bad):
    message = f"conv1.weight must be finite, not {bad} at [1, 0]; 1 of 4 values are NaN or infinite"
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        quantize(torch.tensor([[1.0, 2.0], [bad, 4.0]]), Format(8, 0), name="conv1.weight")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: requantize(torch.zeros(1), 0, Format(8, 0), Rounding.FLOOR),
            "acc must be int64 or float64, not torch.float32",
        ),
        (
            lambda: requantize(torch.tensor([1]), 0, Format(8, 0), Rounding.STOCHASTIC),
            "random must be given to round stochastically to s8.0",
        ),
        (
            lambda: requantize(torch.zeros(1).double(), 0, Format(55, 0), Rounding.FLOOR),
            "format must be at most 54 bits wide for float64, not s55.0",
        ),
        (
            lambda: requantize(torch.tensor([1]), -1, Format(64, 0, False), Rounding.FLOOR),
            "format must fit a signed 64-bit integer, not u64.0",
        ),
        (
            lambda: quantize(torch.zeros(1), Format(8, 0), Rounding.STOCHASTIC),
            "rounding must be half_even, half_up or floor for real numbers, not stochastic",
        ),
    ],
)
def test_misuse_is_refused(call, message):
    with pytest.raises(FormatError, match=f"^{re.escape(message)}$"):
        call()
