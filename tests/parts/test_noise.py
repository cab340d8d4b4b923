"""Noise comes element by element in the order of a stream, and is never late once it is there."""

import random

from amaranth.sim import Simulator

from gradweave.model.random import random_word
from gradweave.rtl.parts.noise import SampleNoise

SEED, TENSOR, SIZE, LANES = 2**40 + 3, 0xCBF43926, 6, 2


def run(bench):
    dut = SampleNoise(seed=SEED, tensor=TENSOR, pixels=SIZE // 2, words=((0, 1),))
    simulator = Simulator(dut)
    simulator.add_clock(1e-6)

    async def with_dut(ctx):
        await bench(ctx, dut)

    simulator.add_testbench(with_dut)
    simulator.run()


def words(first, count):
    """The first ``count`` transfers from sample ``first`` on."""
    elements = ((first + n // SIZE, n % SIZE) for n in range(count * LANES))
    found = [random_word(SEED, TENSOR, e, s % 2**32) & 0xFFFF for s, e in elements]
    return [found[n : n + LANES] for n in range(0, len(found), LANES)]


async def clear(ctx, dut, first):
    ctx.set(dut.enable, 1)
    ctx.set(dut.first_sample, first)
    ctx.set(dut.clear, 1)
    await ctx.tick()
    ctx.set(dut.clear, 0)


async def take(ctx, dut, count, rng, pause):
    """Take words as one likes; after the first, there must always be one."""
    taken, cycles = [], 0
    while len(taken) < count:
        ready = rng.random() >= pause
        ctx.set(dut.o.ready, ready)
        if ctx.get(dut.o.valid):
            if ready:
                taken.append([ctx.get(dut.o.payload[n]) for n in range(LANES)])
        else:
            assert not taken, "a word was late"
            cycles += 1
        await ctx.tick()
    ctx.set(dut.o.ready, 0)
    return taken, cycles


def test_words_come_by_element_and_sample_whatever_the_stalls():
    async def bench(ctx, dut):
        rng = random.Random(1)
        for first, pause in ((2**32 - 2, 0.0), (7, 0.5), (0, 0.9)):
            await clear(ctx, dut, first)
            taken, cycles = await take(ctx, dut, 40, rng, pause)
            assert taken == words(first, 40)
            assert cycles == dut.latency - 1

    run(bench)


def test_clear_drops_what_waits_and_nothing_is_drawn_while_disabled():
    async def bench(ctx, dut):
        ctx.set(dut.enable, 0)
        for _ in range(60):
            assert not ctx.get(dut.o.valid)
            await ctx.tick()
        await clear(ctx, dut, 5)
        await take(ctx, dut, 5, random.Random(2), 0.0)
        await clear(ctx, dut, 5)
        assert not ctx.get(dut.o.valid)
        taken, _ = await take(ctx, dut, 5, random.Random(2), 0.0)
        assert taken == words(5, 5)

    run(bench)
