# amaranth: UnusedElaboratable=no
# ruff: noqa: ERA001
"""The fork gives each transfer once to every enabled output."""

import random

import pytest
from amaranth.sim import Simulator

from gradweave.rtl.parts import lanes
from gradweave.rtl.parts.fork import Fork
from gradweave.tests.streams import random_lanes, run_streams

WORDS = random_lanes(random.Random(5), 8, 2, 80)


@pytest.mark.parametrize("stall", [0.0, 0.5])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_every_output_gets_every_word_once(count, stall):
    outputs = {f"o.{n}": 80 for n in range(count)}
    run = run_streams(Fork(lanes(8, 2), count), {"i": WORDS}, outputs, stall=stall)
    assert run.words == dict.fromkeys(outputs, WORDS)


@pytest.mark.parametrize("enable", range(8))
def test_a_disabled_output_gets_nothing_and_stops_nobody(enable):
    outputs = {f"o.{n}": 80 * (enable >> n & 1) for n in range(3)}
    run = run_streams(
        Fork(lanes(8, 2), 3), {"i": WORDS}, outputs, stall=0.5, set_up={"enable": enable}
    )
    assert run.words == {name: WORDS[:count] for name, count in outputs.items()}
    assert len(run.times["i"]) == 80


def test_a_fast_output_takes_its_word_before_a_slow_one():
    run = run_streams(
        Fork(lanes(8, 2), 2), {"i": WORDS[:1]}, {"o.0": 1, "o.1": 1}, stall={"o.1": 0.95}, seed=1
    )
    assert run.times["o.0"][0] < run.times["o.1"][0] == run.times["i"][0]


def test_an_output_that_has_its_word_need_not_stay_ready():
    dut = Fork(8, 2)
    taken = []

    async def bench(ctx):
        ctx.set(dut.i.valid, 1)
        for ready in ((1, 0), (0, 0), (0, 1), (0, 0)):
            ctx.set(dut.o[0].ready, ready[0])
            ctx.set(dut.o[1].ready, ready[1])
            taken.append((ctx.get(dut.o[0].valid), ctx.get(dut.i.ready)))
            await ctx.tick()

    simulator = Simulator(dut)
    simulator.add_clock(1e-8)
    simulator.add_testbench(bench)
    simulator.run()
    assert taken == [(1, 0), (0, 0), (0, 1), (1, 0)]


def test_a_word_passes_per_cycle_without_latency():
    run = run_streams(Fork(lanes(8, 2), 2), {"i": WORDS}, {"o.0": 80, "o.1": 80})
    times = run.times["i"]
    assert run.times["o.0"] == run.times["o.1"] == times
    assert times == [times[0] + n for n in range(80)]


def test_reset_forgets_who_has_taken_the_word():
    run = run_streams(
        Fork(lanes(8, 2), 2), {"i": WORDS}, {"o.0": 80, "o.1": 80}, stall=0.5, reset_at=9
    )
    assert run.words == {"o.0": WORDS, "o.1": WORDS}


def test_a_fork_without_outputs_is_refused():
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the whole message is compared
        Fork(8, 0)
    assert str(caught.value) == "count must be an integer of at least 1 output, not 0"
