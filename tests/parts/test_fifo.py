# amaranth: UnusedElaboratable=no
# ruff: noqa: ERA001
"""The queue keeps order, holds exactly its depth and passes a word per cycle."""

import random

import pytest
from amaranth.sim import Simulator

from gradweave.rtl.parts import lanes
from gradweave.rtl.parts.fifo import Fifo
from gradweave.tests.streams import random_lanes, run_streams

DEPTHS = [1, 2, 3, 4, 7, 16]


@pytest.mark.parametrize("stall", [0.0, 0.5])
@pytest.mark.parametrize("depth", DEPTHS)
def test_words_leave_as_they_entered(depth, stall):
    words = random_lanes(random.Random(depth), 9, 3, 120)
    run = run_streams(Fifo(lanes(9, 3), depth), {"i": words}, {"o": 120}, stall=stall, seed=depth)
    assert run["o"] == words


@pytest.mark.parametrize(("depth", "latency"), [(1, 1), (2, 1), (3, 2), (16, 2)])
def test_a_word_passes_per_cycle_after_the_stated_latency(depth, latency):
    dut = Fifo(8, depth)
    run = run_streams(dut, {"i": list(range(50))}, {"o": 50})
    first = run.times["i"][0]
    assert dut.latency == latency
    assert run.times["i"] == [first + n for n in range(50)]
    assert run.times["o"] == [first + n + latency for n in range(50)]


@pytest.mark.parametrize("depth", DEPTHS)
def test_it_holds_exactly_its_depth_and_says_so(depth):
    dut = Fifo(8, depth)
    levels = []

    async def bench(ctx):
        ctx.set(dut.i.valid, 1)
        for _ in range(depth + 5):
            levels.append((ctx.get(dut.level), ctx.get(dut.i.ready)))
            await ctx.tick()

    simulator = Simulator(dut)
    simulator.add_clock(1e-8)
    simulator.add_testbench(bench)
    simulator.run()
    assert levels == [(min(n, depth), int(n < depth)) for n in range(depth + 5)]


@pytest.mark.parametrize("depth", [3, 5])
def test_a_full_queue_drains_a_word_per_cycle(depth):
    dut = Fifo(8, depth)
    taken = []

    async def bench(ctx):
        ctx.set(dut.i.valid, 1)
        for n in range(40):
            ctx.set(dut.i.payload, len(taken))
            ctx.set(dut.o.ready, n >= depth + 4)
            _, _, valid, ready = await ctx.tick().sample(dut.o.valid, dut.o.ready)
            taken.append(valid & ready)

    simulator = Simulator(dut)
    simulator.add_clock(1e-8)
    simulator.add_testbench(bench)
    simulator.run()
    assert taken == [int(n >= depth + 4) for n in range(40)]


@pytest.mark.parametrize("depth", DEPTHS)
def test_reset_in_mid_stream_empties_it(depth):
    words = random_lanes(random.Random(depth), 8, 1, 40)
    run = run_streams(
        Fifo(lanes(8, 1), depth), {"i": words}, {"o": 40}, stall=0.5, seed=3, reset_at=17
    )
    assert run["o"] == words


@pytest.mark.parametrize("depth", [0, -1, 1.5])
def test_a_depth_below_one_is_refused(depth):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the whole message is compared
        Fifo(8, depth)
    assert str(caught.value) == f"depth must be an integer of at least 1 transfer, not {depth!r}"
