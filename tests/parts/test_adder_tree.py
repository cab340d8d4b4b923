"""The adder tree is exact and takes its stated cycles; delays are what they say."""

import random

import pytest
from amaranth.hdl import Module, Signal, signed
from amaranth.sim import Simulator

from gradweave.rtl.parts.adder_tree import LEVELS_PER_STAGE, add_tree, tree_latency
from gradweave.rtl.parts.delay import delay

WIDTH = 7
LOW, HIGH = -(1 << (WIDTH - 1)), (1 << (WIDTH - 1)) - 1


def stream_through(m, inputs, output, vectors, cycles):
    """Feed a vector per cycle; return what ``output`` shows ``cycles`` later, and before."""
    seen = []

    async def bench(ctx):
        for vector in [*vectors, *[[0] * len(inputs)] * cycles]:
            for port, value in zip(inputs, vector, strict=True):
                ctx.set(port, value)
            seen.append(ctx.get(output))
            await ctx.tick()

    always = Signal()  # keeps the clock alive where the tree is wires alone
    m.d.sync += always.eq(~always)
    simulator = Simulator(m)
    simulator.add_clock(1e-8)
    simulator.add_testbench(bench)
    simulator.run()
    return seen[cycles:], seen[:cycles]


@pytest.mark.parametrize("count", range(1, 18))
def test_sums_are_exact_after_the_stated_latency(count):
    rng = random.Random(count)
    vectors = [[LOW] * count, [HIGH] * count]
    vectors += [[rng.choice([LOW, HIGH]) for _ in range(count)] for _ in range(12)]
    vectors += [[rng.randint(LOW, HIGH) for _ in range(count)] for _ in range(12)]
    vectors += [[LOW if n == lane else 0 for n in range(count)] for lane in range(count)]
    m = Module()
    terms = [Signal(signed(WIDTH), name=f"term_{n}") for n in range(count)]
    total = add_tree(m, list(terms), "total")
    sums, _ = stream_through(m, terms, total, vectors, tree_latency(count))
    assert sums == [sum(vector) for vector in vectors]


def test_latency_is_a_cycle_per_two_levels():
    assert LEVELS_PER_STAGE == 2
    expected = {1: 0, 2: 1, 3: 1, 4: 1, 5: 2, 8: 2, 9: 2, 16: 2, 17: 3}
    assert {count: tree_latency(count) for count in expected} == expected


def test_terms_of_different_widths_keep_their_sign():
    m = Module()
    terms = [Signal(signed(width), name=f"term_{width}") for width in (2, 9, 5)]
    vectors = [[-2, 255, -16], [1, -256, 15], [-1, -1, -1]]
    total = add_tree(m, list(terms), "total")
    sums, _ = stream_through(m, terms, total, vectors, tree_latency(3))
    assert sums == [237, -240, -3]


@pytest.mark.parametrize("cycles", [0, 1, 2, 5])
def test_a_delayed_signal_comes_late_and_is_zero_before(cycles):
    m = Module()
    value = Signal(signed(WIDTH), init=-3)
    vectors = [[LOW], [HIGH], [-1], [0], [5]]
    late, before = stream_through(m, [value], delay(m, value, cycles, "late"), vectors, cycles)
    assert late == [vector[0] for vector in vectors]
    assert before == [0] * cycles
