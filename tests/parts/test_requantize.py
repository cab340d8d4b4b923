# amaranth: UnusedElaboratable=no
# ruff: noqa: ERA001
"""Rounding and saturation equal their definition in every mode, static and run-time shifted."""

import random

import pytest
import torch
from amaranth.hdl import Module, Signal, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from amaranth.sim import Simulator

from gradweave.model.errors import UnsupportedError
from gradweave.model.fixed import requantize_masked as golden
from gradweave.model.formats import Format, Rounding
from gradweave.rtl.parts.requantize import (
    Requantize,
    requantize,
    requantize_dynamic,
    round_shift,
)
from gradweave.tests.streams import random_lanes, run_streams

MODES = [Rounding.HALF_EVEN, Rounding.HALF_UP, Rounding.FLOOR]
NOISE = [0, 1, 0x7FFF, 0x8000, 0xFFFE, 0xFFFF, 0x1234]


def reference(acc, shift: int, fmt: Format, rounding: Rounding):
    """Values and clip bits of a flat list of accumulators, by the golden model."""
    values, clipped = golden(torch.tensor(acc), fmt.frac + shift, fmt, rounding)
    bits = [False] * len(acc) if clipped is None else clipped.tolist()
    return list(zip(values.tolist(), bits, strict=True))


class Bench(wiring.Component):
    def __init__(self, acc_width, fmt, rounding, shift=None, max_shift=63):
        self.fmt, self.rounding, self.static_shift, self.max_shift = fmt, rounding, shift, max_shift
        value = signed(fmt.width) if fmt.signed else fmt.width
        super().__init__(
            {
                "acc": In(signed(acc_width)),
                "shift": In(range(max_shift + 1)),
                "value": Out(value),
                "clipped": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        if self.static_shift is None:
            value, clipped = requantize_dynamic(
                m, self.acc, self.shift, self.fmt, self.rounding, self.max_shift
            )
        else:
            value, clipped = requantize(
                m, self.acc, self.static_shift, self.fmt, self.rounding, name="x"
            )
        m.d.comb += [self.value.eq(value), self.clipped.eq(clipped)]
        return m


def evaluate(dut, cases):
    results = []

    async def bench(ctx):
        for acc, shift in cases:
            ctx.set(dut.acc, acc)
            ctx.set(dut.shift, max(shift, 0))
            results.append((ctx.get(dut.value), bool(ctx.get(dut.clipped))))

    simulator = Simulator(dut)
    simulator.add_testbench(bench)
    simulator.run()
    return results


def test_halves_round_as_each_mode_says():
    # -2.5, -0.625, 2.5, 5.5 with three fraction bits, to integers.
    values = [-20, -5, 20, 44]
    expected = {
        Rounding.HALF_EVEN: [-2, -1, 2, 6],
        Rounding.HALF_UP: [-2, -1, 3, 6],
        Rounding.FLOOR: [-3, -1, 2, 5],
    }
    for mode, integers in expected.items():
        for dut in (Bench(10, Format(6, 0), mode, 3), Bench(10, Format(6, 0), mode)):
            assert evaluate(dut, [(v, 3) for v in values]) == [(n, False) for n in integers]


def test_a_value_past_the_end_saturates_and_does_not_wrap():
    # 8.99 into a format that ends below 8: 3 fraction bits, 7 bits wide.
    dut = Bench(16, Format(7, 3), Rounding.HALF_EVEN, 5)
    assert evaluate(dut, [(2301, 5), (-2301, 5)]) == [(63, True), (-64, True)]


@pytest.mark.parametrize("rounding", MODES)
@pytest.mark.parametrize("shift", [-5, -1, 0, 1, 2, 3, 6, 7, 8, 12])
@pytest.mark.parametrize("fmt", [Format(4, 0), Format(7, 0), Format(12, 0), Format(5, 0, False)])
def test_every_accumulator_of_seven_bits_is_right(fmt, shift, rounding):
    cases = [(acc, shift) for acc in range(-64, 64)]
    expected = reference([acc for acc, _ in cases], shift, fmt, rounding)
    assert evaluate(Bench(7, fmt, rounding, shift), cases) == expected


@pytest.mark.parametrize("rounding", MODES)
def test_run_time_shifts_of_wide_accumulators_are_right(rounding):
    rng = random.Random(11)
    fmt = Format(16, 0)
    cases = [
        (acc[0] >> rng.randrange(48), shift)
        for shift in range(64)
        for acc in random_lanes(rng, 48, 1, 12)
    ]
    expected = [reference([acc], shift, fmt, rounding)[0] for acc, shift in cases]
    assert evaluate(Bench(48, fmt, rounding), cases) == expected


@pytest.mark.parametrize("rounding", MODES)
def test_run_time_shifts_of_every_small_accumulator_are_right(rounding):
    fmt = Format(5, 0)
    cases = [(acc, shift) for acc in range(-64, 64) for shift in range(11)]
    expected = [reference([acc], shift, fmt, rounding)[0] for acc, shift in cases]
    assert evaluate(Bench(7, fmt, rounding, max_shift=10), cases) == expected


@pytest.mark.parametrize("stall", [0.0, 0.5])
@pytest.mark.parametrize("rounding", MODES)
@pytest.mark.parametrize("shift", [-3, 0, 9])
def test_a_stream_is_rounded_and_its_clips_are_counted(shift, rounding, stall):
    fmt = Format(8, 0)
    words = random_lanes(random.Random(shift), 20, 3, 100)
    results = [reference(word, shift, fmt, rounding) for word in words]
    dut = Requantize(acc_width=20, lanes=3, shift=shift, fmt=fmt, rounding=rounding)
    run = run_streams(dut, {"i": words}, {"o": 100}, stall=stall, sample=["clipped"])
    assert run["o"] == [[value for value, _ in word] for word in results]
    clips = sum(clipped for word in results for _, clipped in word)
    assert run.sampled["clipped"] == clips > 0


def test_clear_zeroes_the_count():
    dut = Requantize(acc_width=8, lanes=1, shift=0, fmt=Format(4, 0), rounding=Rounding.HALF_EVEN)
    run = run_streams(dut, {"i": [[100]] * 5}, {"o": 5}, set_up={"clear": 1}, sample=["clipped"])
    assert run["o"] == [[7]] * 5
    assert run.sampled["clipped"] == 0


def test_latency_is_two_cycles_and_a_word_passes_per_cycle():
    dut = Requantize(acc_width=8, lanes=1, shift=2, fmt=Format(4, 0), rounding=Rounding.HALF_EVEN)
    run = run_streams(dut, {"i": [[n] for n in range(30)]}, {"o": 30})
    first = run.times["i"][0]
    assert dut.latency == 2
    assert run.times["i"] == [first + n for n in range(30)]
    assert run.times["o"] == [first + n + 2 for n in range(30)]


def test_reset_in_mid_stream_empties_it_and_clears_the_count():
    fmt = Format(8, 0)
    words = random_lanes(random.Random(9), 12, 2, 40)
    dut = Requantize(acc_width=12, lanes=2, shift=2, fmt=fmt, rounding=Rounding.HALF_EVEN)
    run = run_streams(dut, {"i": words}, {"o": 40}, stall=0.5, reset_at=13, sample=["clipped"])
    results = [reference(word, 2, fmt, Rounding.HALF_EVEN) for word in words]
    assert run["o"] == [[value for value, _ in word] for word in results]
    assert run.sampled["clipped"] == sum(c for word in results for _, c in word)


class Chance(wiring.Component):
    """One accumulator rounded by a static and by the same run-time shift."""

    def __init__(self, acc_width, shift, fmt):
        self.fmt, self.static_shift = fmt, shift
        pair = {"value": Out(signed(fmt.width)), "late": Out(signed(fmt.width))}
        super().__init__({"acc": In(signed(acc_width)), "shift": In(6), "noise": In(16), **pair})

    def elaborate(self, platform):
        m = Module()
        options = {"fmt": self.fmt, "rounding": Rounding.STOCHASTIC, "noise": self.noise}
        value, _ = requantize(m, self.acc, self.static_shift, name="x", **options)
        late, _ = requantize_dynamic(m, self.acc, self.shift, max_shift=63, **options)
        m.d.comb += [self.value.eq(value), self.late.eq(late)]
        return m


@pytest.mark.parametrize("shift", [0, 1, 5, 15, 16, 17, 30])
def test_noise_is_added_behind_the_point_static_and_at_run_time(shift):
    fmt, rng = Format(12, 0), random.Random(shift)
    values = [rng.randrange(-(1 << 39), 1 << 39) >> rng.randrange(40) for _ in range(60)]
    cases = [(value, noise) for value in values for noise in NOISE]
    acc, noise = torch.tensor(cases).t()
    expected, _ = golden(acc, shift, fmt, Rounding.STOCHASTIC, noise)
    results = []
    dut = Chance(40, shift, fmt)

    async def bench(ctx):
        ctx.set(dut.shift, shift)
        for value, draw in cases:
            ctx.set(dut.acc, value)
            ctx.set(dut.noise, draw)
            results.append((ctx.get(dut.value), ctx.get(dut.late)))

    simulator = Simulator(dut)
    simulator.add_testbench(bench)
    simulator.run()
    assert [value for value, _ in results] == expected.tolist()
    assert [late for _, late in results] == expected.tolist()


def test_stochastic_rounding_without_noise_is_refused():
    message = "rounding must be half_even, half_up or floor where there is no noise, not stochastic"
    stochastic = {"fmt": Format(4, 0), "rounding": Rounding.STOCHASTIC}
    acc = Signal(signed(8))

    def component():
        round_shift(Signal(signed(8)), 2, Rounding.STOCHASTIC)

    def static():
        requantize(Module(), acc, 2, name="x", **stochastic)

    def dynamic():
        requantize_dynamic(Module(), acc, acc.as_unsigned(), max_shift=63, **stochastic)

    for make in (component, static, dynamic):
        with pytest.raises(UnsupportedError) as caught:
            make()
        assert str(caught.value) == message
