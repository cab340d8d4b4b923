# amaranth: UnusedElaboratable=no
# ruff: noqa: ERA001
"""The window against a model that keeps every map whole: reads, presence, room, depth."""

import random
from collections import deque
from dataclasses import replace

import pytest
from amaranth.hdl import Module, ResetInserter, Signal
from amaranth.sim import Simulator

from gradweave.model.schedule import minimum_buffers
from gradweave.rtl.parts.window import READ_LATENCY, Window
from gradweave.tests.plans import chain, conv

WIDTH = 16
# (size, kernel, stride, padding) of the rows; columns; words per pixel.
MAPS = [
    ((4, 3, 1, 1), 3, 2),
    ((5, 2, 3, 0), 4, 1),
    ((3, 3, 1, 0), 2, 3),
    ((4, 1, 2, 0), 2, 1),
    ((1, 1, 1, 0), 1, 1),
    ((3, 2, 1, 2), 1, 2),
]


def walk_and_depth(rows, backward):
    """The walk of FP or EB over the rows, and the least depth that the planner gives its window."""
    size, kernel, stride, padding = rows
    spec = conv("c", 1, kernel=kernel, stride=stride, padding=padding)
    layer = replace(chain((1, size, size), spec).layers[0], backward=True)
    least = minimum_buffers(layer)
    if backward:
        return layer.eb_walks[0], least.eb_rows
    return layer.fp_walks[0], least.fp_rows


def window(walk, cols, blocks, depth):
    return Window(WIDTH, rows=walk.source_size, cols=cols, blocks=blocks, depth=depth)


class Reader:
    """Walks a window as an engine does, with random reads, and checks it in every cycle.

    The model is the list of all words ever written; rows count from the first of them, ``base`` is
    where the present sample begins and ``oldest`` the first row that was not dropped.
    """

    def __init__(self, dut, walk, *, stall=0.0, seed=0):
        self.dut, self.walk, self.stall = dut, walk, stall
        self.rng = random.Random(seed)
        self.row_words = dut.cols * dut.blocks
        self.written = []
        self.oldest = self.base = self.most_held = self.checked = 0
        self.expected = deque([None] * READ_LATENCY)
        self.dropped = deque([0] * READ_LATENCY)

    async def run(self, ctx, samples):
        for _ in range(samples):
            freed = 0
            for position in self.walk.positions:
                end = position is self.walk.positions[-1]
                await self.position(ctx, position, position.free - freed, end)
                freed = position.free
            self.base += self.dut.rows
        for _ in range(READ_LATENCY):
            await self.cycle(ctx, need=0)

    async def position(self, ctx, position, free, end):
        """Wait for the rows, read some words, drop what no later position reads."""
        waited = 0
        while not await self.cycle(ctx, need=position.need):
            waited += 1
            assert waited < 20 * self.dut.depth * self.row_words, "deadlock: the rows never come"
        readable = range(self.oldest - self.base, position.need)
        for n in range(4):
            row = self.rng.choice(readable) if readable else None
            drop = free if n == 3 else None
            await self.cycle(
                ctx, need=self.rng.randint(0, self.dut.rows), row=row, drop=drop, end=end
            )

    async def cycle(self, ctx, *, need, row=None, drop=None, end=False):
        """One clock cycle: returns ``present``."""
        dut, rng = self.dut, self.rng
        col, block = rng.randrange(dut.cols), rng.randrange(dut.blocks)
        word, offered = rng.getrandbits(WIDTH), rng.random() >= self.stall
        for port, value in (
            (dut.need, need),
            (dut.row, row or 0),
            (dut.col, col),
            (dut.block, block),
            (dut.free, drop or 0),
            (dut.free_enable, drop is not None),
            (dut.sample_end, drop is not None and end),
            (dut.i.valid, offered),
            (dut.i.payload, word),
        ):
            ctx.set(port, value)
        _, _, ready, present, data = await ctx.tick().sample(dut.i.ready, dut.present, dut.data)

        rows_written = len(self.written) // self.row_words
        held = rows_written - self.oldest
        assert present == (rows_written - self.base >= need)
        # A dropped row keeps its room until the reads of that cycle have returned.
        assert ready == (held + sum(self.dropped) < dut.depth)
        wanted = self.expected.popleft()
        assert wanted is None or data == wanted
        self.checked += wanted is not None
        self.most_held = max(self.most_held, held)

        place = None if row is None else ((self.base + row) * dut.cols + col) * dut.blocks + block
        self.expected.append(None if place is None else self.written[place])
        if offered and ready:
            self.written.append(word)
        self.dropped.popleft()
        self.dropped.append(drop or 0)
        self.oldest += drop or 0
        return bool(present)


def simulate(dut, bench):
    simulator = Simulator(dut)
    simulator.add_clock(1e-8)
    simulator.add_testbench(bench)
    simulator.run()


@pytest.mark.parametrize("stall", [0.0, 0.5])
@pytest.mark.parametrize("extra", [0, 1, 4])
@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize(("rows", "cols", "blocks"), MAPS)
def test_reads_give_what_was_written_across_samples(rows, cols, blocks, backward, extra, stall):
    walk, depth = walk_and_depth(rows, backward)
    dut = window(walk, cols, blocks, depth + extra)
    reader = Reader(dut, walk, stall=stall, seed=extra)

    async def bench(ctx):
        await reader.run(ctx, samples=5)

    simulate(dut, bench)
    assert reader.checked >= 5 * 4


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize(("rows", "cols", "blocks"), MAPS)
def test_a_row_less_than_the_least_depth_deadlocks(rows, cols, blocks, backward):
    walk, depth = walk_and_depth(rows, backward)
    if depth == 1:
        return
    dut = window(walk, cols, blocks, depth - 1)

    async def bench(ctx):
        await Reader(dut, walk).run(ctx, samples=2)

    with pytest.raises(AssertionError, match="deadlock: the rows never come"):
        simulate(dut, bench)


@pytest.mark.parametrize("depth", [1, 2, 3, 4, 7])
def test_it_takes_exactly_its_depth_of_rows(depth):
    dut = Window(WIDTH, rows=4, cols=3, blocks=2, depth=depth)
    taken = []

    async def bench(ctx):
        ctx.set(dut.i.valid, 1)
        for _ in range(depth * 6 + 12):
            _, _, ready = await ctx.tick().sample(dut.i.ready)
            taken.append(ready)

    simulate(dut, bench)
    assert taken == [1] * (depth * 6) + [0] * 12


def test_a_read_by_hand():
    """Two rows of two pixels of one word; a third row takes the place of the first."""
    dut = Window(8, rows=3, cols=2, blocks=1, depth=2)
    words = [11, 12, 21, 22, 31, 32]
    seen = []

    async def write(ctx, count):
        for _ in range(count):
            ctx.set(dut.i.valid, 1)
            ctx.set(dut.i.payload, words.pop(0))
            await ctx.tick()
        ctx.set(dut.i.valid, 0)

    async def read(ctx, row, col):
        ctx.set(dut.row, row)
        ctx.set(dut.col, col)
        await ctx.tick().repeat(READ_LATENCY)
        seen.append(ctx.get(dut.data))

    async def bench(ctx):
        await write(ctx, 4)
        await read(ctx, 0, 1)
        await read(ctx, 1, 0)
        ctx.set(dut.free, 1)
        ctx.set(dut.free_enable, 1)
        await ctx.tick()
        ctx.set(dut.free_enable, 0)
        await ctx.tick().repeat(READ_LATENCY)
        await write(ctx, 2)
        await read(ctx, 2, 0)
        await read(ctx, 1, 1)

    simulate(dut, bench)
    assert seen == [12, 21, 31, 22]


@pytest.mark.parametrize("cycles", [5, 16, 31])
def test_reset_in_mid_sample_starts_a_sample(cycles):
    walk, depth = walk_and_depth((4, 3, 1, 1), backward=False)
    dut = window(walk, 3, 2, depth + 1)
    m, reset = Module(), Signal()
    m.submodules.dut = ResetInserter(reset)(dut)
    reader = Reader(dut, walk, stall=0.3, seed=1)

    async def bench(ctx):
        rng = random.Random(cycles)
        ctx.set(dut.i.valid, 1)
        for n in range(cycles):
            ctx.set(dut.free, n % 13 == 12)
            ctx.set(dut.free_enable, n % 13 == 12)
            ctx.set(dut.i.payload, rng.getrandbits(WIDTH))
            await ctx.tick()
        ctx.set(reset, 1)
        await ctx.tick()
        ctx.set(reset, 0)
        await reader.run(ctx, samples=3)

    simulate(m, bench)
    assert reader.checked >= 3 * 16
