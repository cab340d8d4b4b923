"""The sum bank against running sums in Python, with both sides at work."""

import random

import pytest
from amaranth.hdl import Module, ResetInserter, Signal
from amaranth.sim import Simulator

from gradweave.rtl.parts.sum_bank import SumBank
from gradweave.tests.streams import plain, random_lanes

WIDTH, TERM_WIDTH, LANES = 16, 12, 2


class Bench:
    """Drives one operation of each side per cycle and checks the sums that the sweep reads."""

    def __init__(self, depth=3, banks=2):
        self.dut = SumBank(
            width=WIDTH, term_width=TERM_WIDTH, lanes=LANES, depth=depth, banks=banks
        )
        self.sums = [[[0] * LANES for _ in range(depth)] for _ in range(banks)]
        self.reset = Signal()
        self.terms = [0] * LANES
        self.checked = 0

    def run(self, script):
        async def bench(ctx):
            await script(self, ctx)

        m = Module()
        m.submodules.dut = ResetInserter(self.reset)(self.dut)
        simulator = Simulator(m)
        simulator.add_clock(1e-8)
        simulator.add_testbench(bench)
        simulator.run()

    async def cycle(self, ctx, add=None, sweep=None, clear=False, clear_all=False):
        """``add`` is (bank, address, terms), ``sweep`` is (bank, address)."""
        dut = self.dut
        bank, address, terms = add or (0, 0, [0] * LANES)
        ctx.set(dut.enable, add is not None)
        ctx.set(dut.bank, bank)
        ctx.set(dut.address, address)
        ctx.set(dut.sweep_bank, sweep[0] if sweep else 0)
        ctx.set(dut.sweep_address, sweep[1] if sweep else 0)
        ctx.set(dut.sweep_clear, clear)
        ctx.set(dut.sweep_all, clear_all)
        ctx.set(dut.terms, self.terms)
        await ctx.tick()
        # Terms come a cycle after their address; without one they are noise.
        self.terms = terms if add else [0x5A5] * LANES
        if sweep:
            assert plain(ctx.get(dut.sweep_sums)) == self.sums[sweep[0]][sweep[1]]
            self.checked += 1
        if clear:
            for n in range(len(self.sums)):
                if clear_all or n == sweep[0]:
                    self.sums[n][sweep[1]] = [0] * LANES
        if add:
            held = self.sums[bank][address]
            self.sums[bank][address] = [s + t for s, t in zip(held, terms, strict=True)]


async def read_all(bench, ctx):
    """Read every sum, after the two cycles that an add takes to be seen."""
    await bench.cycle(ctx)
    for bank in range(bench.dut.banks):
        for address in range(bench.dut.depth):
            await bench.cycle(ctx, sweep=(bank, address))


@pytest.mark.parametrize("distance", [1, 2, 3])
def test_adds_to_one_address_at_any_distance_all_count(distance):
    bench = Bench()

    async def script(bench, ctx):
        for n in range(10):
            await bench.cycle(ctx, add=(0, 1, [n + 1, -1000]))
            for _ in range(distance - 1):
                await bench.cycle(ctx)
        await read_all(bench, ctx)

    bench.run(script)
    assert bench.sums[0] == [[0, 0], [55, -10000], [0, 0]]


def test_interleaved_addresses_and_banks_do_not_mix():
    async def script(bench, ctx):
        for n in range(30):
            await bench.cycle(ctx, add=(n % 2, n % 3, [n, -n]))
        await read_all(bench, ctx)

    bench = Bench()
    bench.run(script)
    assert bench.sums[1][0] == [3 + 9 + 15 + 21 + 27, -75]


@pytest.mark.parametrize("banks", [1, 2])
@pytest.mark.parametrize("depth", [1, 2, 5])
def test_random_use_gives_the_exact_sums(depth, banks):
    """The sides work at once on two banks; on one, a sweep follows an add two cycles later."""
    rng = random.Random(depth)
    words = iter(random_lanes(rng, 8, LANES, 400))

    async def script(bench, ctx):
        busy = [None, None]
        for _ in range(400):
            bank = rng.randrange(banks)
            adding = rng.random() < 0.6
            add = (bank, rng.randrange(depth), next(words)) if adding else None
            busy = [busy[1], bank if adding else None]
            others = [n for n in range(banks) if n not in busy]
            sweep = (rng.choice(others), rng.randrange(depth)) if others else None
            clear = sweep is not None and rng.random() < 0.4
            everywhere = clear and len(others) == banks and rng.random() < 0.5
            await bench.cycle(ctx, add, sweep, clear, everywhere)
        await read_all(bench, ctx)

    bench = Bench(depth, banks)
    bench.run(script)
    assert bench.checked > 50


def test_a_clear_of_all_zeroes_the_word_in_every_bank_and_only_that_word():
    async def script(bench, ctx):
        for bank in (0, 1):
            for address in range(3):
                await bench.cycle(ctx, add=(bank, address, [7, -7]))
        await bench.cycle(ctx)
        await bench.cycle(ctx, sweep=(1, 2), clear=True, clear_all=True)
        await read_all(bench, ctx)

    bench = Bench()
    bench.run(script)
    assert bench.sums == [[[7, -7], [7, -7], [0, 0]]] * 2


def test_a_word_is_read_before_it_is_cleared_and_counts_on_from_zero():
    async def script(bench, ctx):
        await bench.cycle(ctx, add=(0, 0, [5, 6]))
        await bench.cycle(ctx)
        await bench.cycle(ctx, sweep=(0, 0), clear=True)
        await bench.cycle(ctx, add=(0, 0, [1, 2]))
        await bench.cycle(ctx, add=(0, 0, [1, 2]))
        await read_all(bench, ctx)

    bench = Bench()
    bench.run(script)
    assert bench.sums[0][0] == [2, 4]


def test_the_widest_sums_are_exact():
    low, high = -(1 << (TERM_WIDTH - 1)), (1 << (TERM_WIDTH - 1)) - 1

    async def script(bench, ctx):
        for _ in range(1 << (WIDTH - TERM_WIDTH)):
            await bench.cycle(ctx, add=(1, 1, [low, high]))
        await read_all(bench, ctx)

    bench = Bench()
    bench.run(script)
    assert bench.sums[1][1] == [-(1 << (WIDTH - 1)), high << (WIDTH - TERM_WIDTH)]


def test_reset_keeps_the_sums_and_drops_the_adds_in_flight():
    async def script(bench, ctx):
        await bench.cycle(ctx, add=(0, 0, [9, -9]))
        await bench.cycle(ctx)
        await bench.cycle(ctx)
        ctx.set(bench.dut.enable, 1)
        ctx.set(bench.dut.terms, [100, 100])
        await ctx.tick()
        ctx.set(bench.reset, 1)
        await ctx.tick()
        ctx.set(bench.reset, 0)
        bench.terms = [100, 100]
        await bench.cycle(ctx)
        await read_all(bench, ctx)

    bench = Bench()
    bench.run(script)
    assert bench.sums[0][0] == [9, -9]
