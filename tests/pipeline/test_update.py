# amaranth: UnusedElaboratable=no
# ruff: noqa: ERA001
"""The update in RTL against its golden model: the rule bit by bit, then whole sweeps."""

import random
from dataclasses import replace

import pytest
import torch

from gradweave.model.errors import PlanError
from gradweave.model.fixed import requantize
from gradweave.model.formats import Format, Rounding
from gradweave.model.hyper import Hyper
from gradweave.model.plan import ParameterPlan
from gradweave.rtl.pipeline.update_rule import UpdateRule
from gradweave.tests.update_bench import (
    BIAS,
    HYPERS,
    SUM_WIDTHS,
    WEIGHT,
    State,
    Sweeps,
    draw,
    golden,
    layer_of,
    set_hyper,
    simulate,
)

ROUNDINGS = [Rounding.HALF_EVEN, Rounding.HALF_UP, Rounding.FLOOR]


def through_rule(layer, rounding, cases, *, reload=False):
    """Feed a parameter per cycle; ``cases`` are (hyper, [(kind, sum, master, momentum)]).

    Returns [(next master, next momentum, working, clipped)] in order, taken ``LATENCY`` cycles
    after each went in.
    """
    dut = UpdateRule(layer, max(SUM_WIDTHS), rounding)
    results = []

    async def bench(ctx):
        ctx.set(dut.reload, reload)
        for hyper, values in cases:
            set_hyper(ctx, dut.hyper, hyper)
            for n in range(len(values) + UpdateRule.LATENCY):
                kind, total, master, momentum = values[min(n, len(values) - 1)]
                ctx.set(dut.is_bias, kind)
                ctx.set(dut.sum, total)
                ctx.set(dut.weight, master)
                ctx.set(dut.velocity, momentum)
                if n >= UpdateRule.LATENCY:
                    outputs = (dut.next_weight, dut.next_velocity, dut.working, dut.clipped)
                    results.append(tuple(ctx.get(port) for port in outputs))
                await ctx.tick()

    simulate(dut, bench)
    return results


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_the_rule_gives_the_golden_bits_and_flags_a_parameter_per_cycle(rounding):
    layer, rng = layer_of(), random.Random(7)
    cases, expected = [], []
    for hyper in HYPERS:
        values = [
            (kind, draw(rng, SUM_WIDTHS[kind]), draw(rng, 32), draw(rng, 24))
            for kind in (rng.randint(0, 1) for _ in range(70))
        ]
        answers = {}
        for kind in (0, 1):
            chosen = [n for n, value in enumerate(values) if value[0] == kind]
            sums, masters, momenta = zip(*(values[n][1:] for n in chosen), strict=True)
            rows = zip(*golden(layer, kind, hyper, rounding, masters, momenta, sums), strict=True)
            answers |= dict(zip(chosen, rows, strict=True))
        cases.append((hyper, values))
        expected += [answers[n] for n in range(len(values))]
    assert through_rule(layer, rounding, cases) == expected
    flags = [row[3] for row in expected]
    assert 0.1 < sum(flags) / len(flags) < 0.9


def test_a_step_by_hand():
    """Sum 3.0, decay 0.5 * 2.0, momentum 0.5 * 4.0, lr 0.25: 2 - 0.25 * (3 + 1 + 2) = 0.5."""
    hyper = Hyper(1, 1 << 14, 16, 1 << 15, False, 1 << 14, 15)
    plan = ParameterPlan(Format(16, 8), Format(32, 10), Format(24, 4))
    layer = layer_of(weight=plan, bias=None)
    sum_frac = layer.o_error.frac + layer.i_feature.frac
    values = [(0, 3 << sum_frac, 2 << 10, 4 << 4)]
    assert through_rule(layer, Rounding.HALF_EVEN, [(hyper, values)]) == [
        (1 << 9, 6 << 4, 1 << 7, 0)
    ]
    ahead = replace(hyper, nesterov=True)  # 2 - 0.25 * (4 + 0.5 * 6) = 0.25
    assert through_rule(layer, Rounding.HALF_EVEN, [(ahead, values)]) == [
        (1 << 8, 6 << 4, 1 << 6, 0)
    ]


def test_reload_keeps_the_master_and_rounds_the_working_weight():
    layer, rng = layer_of(), random.Random(3)
    values = [(n % 2, draw(rng, 30), draw(rng, 32), draw(rng, 24)) for n in range(40)]
    got = through_rule(layer, Rounding.HALF_EVEN, [(HYPERS[4], values)], reload=True)
    for (kind, _, master, _), (kept, _, working, _) in zip(values, got, strict=True):
        plan = (WEIGHT, BIAS)[kind]
        exact = torch.tensor([master])
        wanted, _ = requantize(exact, plan.master.frac, plan.working, Rounding.HALF_EVEN)
        assert (kept, working) == (master, wanted.item())


def test_kinds_of_different_widths_are_refused():
    layer = layer_of(bias=replace(BIAS, gradient=Format(20, 15)))
    with pytest.raises(PlanError) as caught:
        UpdateRule(layer, 40, Rounding.HALF_EVEN)
    assert str(caught.value) == (
        "c: weight and bias must have equal widths of (master, gradient), not (32, 24) and (32, 20)"
    )


# a, b, update_lanes: fewer lanes than a, as many, a times a divisor of b, and a whole word.
FOLDINGS = [(4, 1, 1), (4, 1, 2), (2, 2, 2), (2, 2, 4), (1, 2, 2), (1, 1, 1)]


@pytest.mark.parametrize("bias", [BIAS, None])
@pytest.mark.parametrize(("a", "b", "update_lanes"), FOLDINGS)
def test_sweeps_give_the_golden_parameters_in_every_folding(a, b, update_lanes, bias):
    layer = layer_of(a=a, b=b, update_lanes=update_lanes, bias=bias)
    bench = Sweeps(layer, HYPERS[4], stall=0.4)

    async def script(ctx):
        masters, momenta = bench.random_state(32), bench.random_state(20)
        set_hyper(ctx, bench.dut.hyper, bench.hyper)
        await bench.load(ctx, 0, bench.packed(masters))
        await bench.load(ctx, 1, bench.packed(momenta))
        for _ in range(3):
            assert await bench.sweep(ctx) == bench.dut.sweep_cycles
            masters, momenta = bench.check_sweep(masters, momenta)
        assert await bench.dump(ctx, 0) == bench.packed(masters)
        assert await bench.dump(ctx, 1) == bench.packed(momenta)
        clipped = [ctx.get(bench.dut.clipped_weight), ctx.get(bench.dut.clipped_bias)]
        assert clipped == bench.totals
        assert clipped[0] > 0
        ctx.set(bench.dut.clear, 1)
        await ctx.tick()
        assert ctx.get(bench.dut.clipped_weight) == ctx.get(bench.dut.clipped_bias) == 0

    bench.run(script)
    chunks = 2 * 4 * 2 // update_lanes + (4 // a * -(-a // update_lanes) if bias else 0)
    assert bench.dut.sweep_cycles == chunks + 2 + UpdateRule.LATENCY + 2


@pytest.mark.parametrize("update_lanes", [1, 4])
def test_reload_hands_out_the_masters_and_clears_every_bank(update_lanes):
    bench = Sweeps(layer_of(update_lanes=update_lanes), HYPERS[4])

    async def script(ctx):
        masters, momenta = bench.random_state(32), bench.random_state(24)
        set_hyper(ctx, bench.dut.hyper, bench.hyper)
        await bench.load(ctx, 0, bench.packed(masters))
        await bench.load(ctx, 1, bench.packed(momenta))
        assert await bench.sweep(ctx, reload=True) == bench.dut.sweep_cycles
        rounded = []
        for plan, values in ((WEIGHT, masters.weights), (BIAS, masters.biases)):
            exact = torch.tensor(values)
            fmt, mode = plan.working, Rounding.HALF_EVEN
            rounded.append(requantize(exact, plan.master.frac, fmt, mode)[0].tolist())
        assert bench.written_words() == bench.words_of(*rounded)
        assert bench.chunks == ([], [])
        assert bench.cleared == [("weight", n, 1) for n in range(bench.words)] + [
            ("bias", n, 1) for n in range(bench.blocks)
        ]
        assert await bench.dump(ctx, 0) == bench.packed(masters)
        assert await bench.dump(ctx, 1) == bench.packed(momenta)
        assert ctx.get(bench.dut.clipped_weight) == ctx.get(bench.dut.clipped_bias) == 0
        await bench.sweep(ctx)
        bench.check_sweep(masters, momenta)

    bench.run(script)


@pytest.mark.parametrize("cycles", [1, 9, 20])
def test_reset_in_mid_sweep_makes_it_ready_for_a_reload(cycles):
    bench = Sweeps(layer_of(update_lanes=2), HYPERS[1])

    async def script(ctx):
        masters = bench.random_state(32)
        set_hyper(ctx, bench.dut.hyper, bench.hyper)
        bench.prepare()
        ctx.set(bench.dut.go, 1)
        for _ in range(cycles):
            await ctx.tick()
        ctx.set(bench.dut.go, 0)
        ctx.set(bench.reset, 1)
        await ctx.tick()
        ctx.set(bench.reset, 0)
        assert not ctx.get(bench.dut.busy)
        await bench.load(ctx, 0, bench.packed(masters))
        await bench.load(ctx, 1, [0] * len(bench.packed(masters)))
        await bench.sweep(ctx, reload=True)
        assert not bench.totals[0]
        zeros = State([0] * bench.counts[0], [0] * bench.counts[1])
        await bench.sweep(ctx)
        bench.check_sweep(masters, zeros)

    bench.run(script)


def test_the_door_keeps_words_in_order_under_any_stall():
    bench = Sweeps(layer_of(update_lanes=4), HYPERS[0], stall=0.7)

    async def script(ctx):
        states = [bench.packed(bench.random_state(bits)) for bits in (32, 24)]
        for select in (0, 1):
            await bench.load(ctx, select, states[select])
        for select in (1, 0, 0):
            assert await bench.dump(ctx, select) == states[select]

    bench.run(script)
