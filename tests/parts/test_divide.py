# amaranth: UnusedElaboratable=no
# ruff: noqa: ERA001
"""Quotients by a constant are exact and rounded once, for every divisor, width and rounding."""

import random
from fractions import Fraction

import pytest
from amaranth.hdl import C, Module, Signal
from amaranth.sim import Simulator
from hypothesis import given
from hypothesis import strategies as st

from gradweave.model.errors import UnsupportedError
from gradweave.model.formats import Format, Rounding
from gradweave.rtl.parts.divide import Divide, reciprocal
from gradweave.rtl.parts.requantize import count_clips
from gradweave.tests.golden.reference import clip, round_fraction
from gradweave.tests.streams import random_lanes, run_streams

MODES = [Rounding.HALF_EVEN, Rounding.HALF_UP, Rounding.FLOOR]


def reference(value, divisor, shift, fmt, rounding):
    return clip(round_fraction(Fraction(value, divisor) / Fraction(2) ** shift, rounding), fmt)


def evaluate(dut, values):
    """Results of one lane for all values, one a cycle."""
    results = []

    async def bench(ctx):
        ctx.set(dut.i.valid, 1)
        ctx.set(dut.o.ready, 1)
        for value in [*values, *[0] * dut.latency]:
            ctx.set(dut.i.payload[0], value)
            await ctx.tick()
            if ctx.get(dut.o.valid):
                results.append(ctx.get(dut.o.payload[0]))

    simulator = Simulator(dut)
    simulator.add_clock(1e-8)
    simulator.add_testbench(bench)
    simulator.run()
    return results[: len(values)]


def divide(acc_width, divisor, rounding, shift=0, fmt=None, lanes=1):
    fmt = fmt or Format(16, 0)
    return Divide(
        acc_width=acc_width, lanes=lanes, divisor=divisor, shift=shift, fmt=fmt, rounding=rounding
    )


@pytest.mark.parametrize(
    ("rounding", "by_two", "by_six"),
    [
        # -7/2 -5/2 -1/2 1/2 5/2 7/2, and -9/6 -3/6 2/6 3/6 4/6 15/6
        (Rounding.HALF_EVEN, [-4, -2, 0, 0, 2, 4], [-2, 0, 0, 0, 1, 2]),
        (Rounding.HALF_UP, [-3, -2, 0, 1, 3, 4], [-1, 0, 0, 1, 1, 3]),
        (Rounding.FLOOR, [-4, -3, -1, 0, 2, 3], [-2, -1, 0, 0, 0, 2]),
    ],
)
def test_halves_round_as_each_mode_says(rounding, by_two, by_six):
    assert evaluate(divide(6, 2, rounding), [-7, -5, -1, 1, 5, 7]) == by_two
    assert evaluate(divide(6, 6, rounding), [-9, -3, 2, 3, 4, 15]) == by_six


@pytest.mark.parametrize("rounding", MODES)
@pytest.mark.parametrize("divisor", [1, 2, 3, 4, 5, 6, 7, 9, 12, 15, 16, 25, 48, 100])
@pytest.mark.parametrize("shift", [-3, 0, 2])
def test_every_accumulator_of_seven_bits_is_right(divisor, rounding, shift):
    values, fmt = list(range(-64, 64)), Format(6, 0)
    expected = [reference(value, divisor, shift, fmt, rounding)[0] for value in values]
    assert evaluate(divide(7, divisor, rounding, shift, fmt), values) == expected


@pytest.mark.parametrize("rounding", MODES)
@pytest.mark.parametrize(
    ("width", "divisor", "shift"), [(20, 9, 0), (24, 49, 3), (32, 176400, -5), (40, 6, 41)]
)
def test_wide_accumulators_are_right_at_edges_and_around_halves(width, divisor, shift, rounding):
    rng, fmt = random.Random(3), Format(32, 0)
    values = [lane[0] for lane in random_lanes(rng, width, 1, 100)]
    step = Fraction(divisor) * Fraction(2) ** shift
    last = (1 << (width - 1)) - 1
    for _ in range(60):
        half = int((rng.randint(-int(last / step) - 1, int(last / step)) + Fraction(1, 2)) * step)
        values += [min(max(half + n, -last), last) for n in (-1, 0, 1)]
    expected = [reference(value, divisor, shift, fmt, rounding)[0] for value in values]
    assert evaluate(divide(width, divisor, rounding, shift, fmt), values) == expected


@given(st.integers(1, 300), st.integers(0, 3000))
def test_reciprocals_divide_every_small_number(divisor, largest):
    factor, bits = reciprocal(divisor, largest)
    for n in range(largest + 1):
        assert n * factor >> bits == n // divisor
        assert ((n * factor) % (1 << bits) < factor) == (n % divisor == 0)


@given(st.data())
def test_reciprocals_divide_wide_numbers(data):
    divisor = data.draw(st.integers(1, 1 << 40))
    largest = data.draw(st.integers(0, 1 << 64))
    factor, bits = reciprocal(divisor, largest)
    quotient = data.draw(st.integers(0, largest // divisor))
    for n in (quotient * divisor - 1, quotient * divisor, quotient * divisor + 1, largest):
        if 0 <= n <= largest:
            assert n * factor >> bits == n // divisor
            assert ((n * factor) % (1 << bits) < factor) == (n % divisor == 0)


def test_powers_of_two_take_no_product():
    assert divide(20, 16, Rounding.HALF_EVEN).product_widths[1] == 1


@pytest.mark.parametrize("stall", [0.0, 0.5])
@pytest.mark.parametrize("rounding", MODES)
def test_a_stream_is_divided_and_its_clips_are_counted(rounding, stall):
    fmt = Format(6, 0)
    words = random_lanes(random.Random(2), 12, 3, 60)
    results = [[reference(value, 12, 0, fmt, rounding) for value in word] for word in words]
    dut = divide(12, 12, rounding, fmt=fmt, lanes=3)
    run = run_streams(dut, {"i": words}, {"o": 60}, stall=stall, sample=["clipped"])
    assert run["o"] == [[value for value, _ in word] for word in results]
    assert run.sampled["clipped"] == sum(clipped for word in results for _, clipped in word) > 0


def test_clear_zeroes_the_count():
    dut = divide(8, 3, Rounding.HALF_EVEN, fmt=Format(4, 0))
    run = run_streams(dut, {"i": [[100]] * 5}, {"o": 5}, set_up={"clear": 1}, sample=["clipped"])
    assert run["o"] == [[7]] * 5
    assert run.sampled["clipped"] == 0


def test_latency_is_five_cycles_and_a_word_passes_per_cycle():
    dut = divide(8, 3, Rounding.HALF_EVEN)
    run = run_streams(dut, {"i": [[n] for n in range(30)]}, {"o": 30})
    first = run.times["i"][0]
    assert dut.latency == 5
    assert run.times["i"] == [first + n for n in range(30)]
    assert run.times["o"] == [first + n + 5 for n in range(30)]


def test_reset_in_mid_stream_empties_it_and_clears_the_count():
    fmt = Format(4, 0)
    words = random_lanes(random.Random(9), 10, 2, 30)
    dut = divide(10, 9, Rounding.HALF_UP, fmt=fmt, lanes=2)
    run = run_streams(dut, {"i": words}, {"o": 30}, stall=0.5, reset_at=13, sample=["clipped"])
    results = [[reference(value, 9, 0, fmt, Rounding.HALF_UP) for value in word] for word in words]
    assert run["o"] == [[value for value, _ in word] for word in results]
    assert run.sampled["clipped"] == sum(clipped for word in results for _, clipped in word)


def test_a_count_stays_at_its_top():
    m, counter = Module(), Signal(3)
    count_clips(m, counter, clear=C(0), left=C(1), clips=C(0b110, 3))
    counts = []

    async def bench(ctx):
        for _ in range(6):
            counts.append(ctx.get(counter))
            await ctx.tick()

    simulator = Simulator(m)
    simulator.add_clock(1e-8)
    simulator.add_testbench(bench)
    simulator.run()
    assert counts == [0, 2, 4, 6, 7, 7]


def test_stochastic_rounding_is_refused():
    with pytest.raises(UnsupportedError) as caught:
        divide(8, 3, Rounding.STOCHASTIC)
    assert str(caught.value) == (
        "rounding must be half_even, half_up or floor where there is no noise, not stochastic"
    )


@pytest.mark.parametrize("divisor", [0, -3, 2.0])
def test_a_divisor_below_one_is_refused(divisor):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        divide(8, divisor, Rounding.FLOOR)
    assert str(caught.value) == f"divisor must be an integer of at least 1, not {divisor!r}"
