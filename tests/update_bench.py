# amaranth: UnusedElaboratable=no
# ruff: noqa: ERA001
"""An update unit alone: drawn parameters, the golden answer, and whole sweeps in the simulator.

``Sweeps`` plays the gradient engine's memories of sums and the host around an ``Update``, notes
what it writes, clears and counts, and compares that with the golden update.
"""

import random
from dataclasses import dataclass

import numpy as np
import torch
from amaranth.hdl import Module, ResetInserter, Signal
from amaranth.sim import Simulator

from gradweave.host.packets import pack_parameters
from gradweave.model.formats import Format, Rounding
from gradweave.model.hyper import Hyper
from gradweave.model.pipeline.update import state_dtype, update
from gradweave.model.plan import ParameterPlan
from gradweave.rtl.pipeline.update import Update
from gradweave.tests.plans import chain, conv
from gradweave.tests.streams import collect, drive, plain

__all__ = [
    "BIAS",
    "HYPERS",
    "SUM_WIDTHS",
    "WEIGHT",
    "State",
    "Sweeps",
    "draw",
    "golden",
    "layer_of",
    "set_hyper",
    "simulate",
]

WEIGHT = ParameterPlan(Format(16, 14), Format(32, 28), Format(24, 16))
BIAS = ParameterPlan(Format(12, 6), Format(32, 24), Format(24, 19))
SUM_WIDTHS = (38, 30)
# Plain, momentum, Nesterov, decay, all of them; both ends of the total shifts.
HYPERS = [
    Hyper(1, 65535, 20, 0),
    Hyper(1, 40000, 18, 50000),
    Hyper(1, 65535, 12, 65535, True),
    Hyper(1, 30000, 17, 0, False, 65535, 12),
    Hyper(1, 65535, 21, 58982, True, 40000, 20),
    Hyper(1, 1, 12, 1, True, 1, 0),
    Hyper(1, 65535, 63, 40000, False, 65535, 51),
    Hyper(1, 0, 20, 65535, False, 65535, 0),
]


def layer_of(**spec):
    options = {"kernel": (1, 2), "a": 2, "b": 2, "weight": WEIGHT, "bias": BIAS, **spec}
    return chain((2, 1, 3), conv("c", 4, **options)).layers[0]


def golden(layer, kind, hyper, rounding, masters, momenta, sums):
    """The golden update of lists of integers: (masters, momenta, working, clipped per value)."""
    formats = layer.bias if kind else layer.weight
    frac = layer.o_error.frac + (0 if kind else layer.i_feature.frac)
    dtype = state_dtype(formats)
    values = [torch.tensor(list(part), dtype=dtype) for part in (masters, momenta, sums)]
    whole = update(formats, hyper, rounding, *values, frac)
    flags = [0] * len(masters)
    for n in range(len(masters)) if whole.clipped else ():
        one = [part[n : n + 1] for part in values]
        flags[n] = update(formats, hyper, rounding, *one, frac).clipped
    assert sum(flags) == whole.clipped
    tensors = (whole.master, whole.momentum, whole.working)
    return *(tensor.long().tolist() for tensor in tensors), flags


def draw(rng, width):
    """An integer of ``width`` bits: an edge, a small one or any."""
    low, high = -(1 << (width - 1)), (1 << (width - 1)) - 1
    edges = [low, low + 1, -1, 0, 1, high - 1, high]
    bits = rng.randint(1, width - 1)
    return rng.choice([rng.choice(edges), rng.randint(-(1 << bits), (1 << bits) - 1)])


def simulate(dut, *benches, background=()):
    simulator = Simulator(dut)
    simulator.add_clock(1e-8)
    for bench in background:
        simulator.add_testbench(bench, background=True)
    for bench in benches:
        simulator.add_testbench(bench)
    simulator.run()


def set_hyper(ctx, port, hyper):
    for name in port.shape().members:
        ctx.set(port[name], int(getattr(hyper, name)))


@dataclass
class State:
    """What a sweep turns into its successor, in the parameters' own order."""

    weights: list[int]
    biases: list[int]


class Sweeps:
    """An ``Update`` with the gradient engine's memories of sums around it."""

    def __init__(self, layer, hyper, rounding=Rounding.HALF_EVEN, seed=1, stall=0.0):
        self.layer, self.hyper, self.rounding, self.stall = layer, hyper, rounding, stall
        self.rng = random.Random(seed)
        self.dut = Update(layer, SUM_WIDTHS, rounding)
        self.reset = Signal()
        self.words, self.blocks, self.lanes = layer.weight_words, layer.o_blocks, layer.a * layer.b
        self.biases = layer.o_shape[0] if layer.bias else 0
        self.counts = (self.words * self.lanes, self.biases)
        self.sums = self.cleared = self.written = self.chunks = None
        self.totals = [0, 0]

    def run(self, script):
        m = Module()
        m.submodules.dut = ResetInserter(self.reset)(self.dut)
        simulate(m, script, background=[self.memories])

    async def memories(self, ctx):
        """Answer sweep addresses a cycle later; note what is cleared, written and probed."""
        dut, a = self.dut, self.layer.a
        while True:
            marks = (dut.sweep_word, dut.sweep_block, dut.sweep_clear_weight, dut.sweep_clear_bias)
            probes = (dut.weight_sum_valid, dut.bias_sum_valid, dut.sums)
            writes = (
                dut.write_weights,
                dut.write_bias,
                dut.write_word,
                dut.write_block,
                dut.working,
            )
            _, _, *got = await ctx.tick().sample(*marks, dut.sweep_all, *probes, *writes)
            word, block, clear_weight, clear_bias, everywhere = got[:5]
            if self.sums is None:
                continue
            weights, biases = self.sums
            ctx.set(dut.weight_sums, weights[word * self.lanes : (word + 1) * self.lanes])
            if biases:
                ctx.set(dut.bias_sums, biases[block * a : (block + 1) * a])
            if clear_weight:
                self.cleared.append(("weight", word, everywhere))
            if clear_bias:
                self.cleared.append(("bias", block, everywhere))
            for kind in (0, 1):
                if got[5 + kind]:
                    self.chunks[kind].append(plain(got[7]))
                if got[8 + kind]:
                    self.written[kind].append((got[10 + kind], plain(got[12])))

    def prepare(self):
        """New random sums, and nothing noted yet."""
        self.sums = [
            [draw(self.rng, width) for _ in range(count)]
            for width, count in zip(SUM_WIDTHS, self.counts, strict=True)
        ]
        self.cleared, self.written, self.chunks = [], ([], []), ([], [])

    async def sweep(self, ctx, *, reload=False):
        """Run one sweep; return the cycles from its start to ``done``."""
        dut = self.dut
        self.prepare()
        ctx.set(dut.reload if reload else dut.go, 1)
        cycles = 0
        await ctx.tick()
        ctx.set(dut.reload, 0)
        while True:
            cycles += 1
            assert cycles < 500
            assert ctx.get(dut.busy)
            if ctx.get(dut.done):
                break
            await ctx.tick()
        ctx.set(dut.go, 0)  # as ``Versions`` does: low in the cycle after done
        await ctx.tick()
        assert not ctx.get(dut.busy)
        return cycles

    def words_of(self, weights, biases):
        """Working words as FP reads them: weight words, then what a bias write holds."""
        a = self.layer.a
        blocks = [(n, biases[n * a : (n + 1) * a]) for n in range(self.blocks if biases else 0)]
        return [
            (n, weights[n * self.lanes : (n + 1) * self.lanes]) for n in range(self.words)
        ], blocks

    def written_words(self):
        """A bias write's values begin at its chunk's first lane, the chunk being at the top."""
        first = self.lanes - max(self.layer.a, self.layer.update_lanes)
        weights, biases = self.written
        return weights, [(n, word[first : first + self.layer.a]) for n, word in biases]

    def check_sweep(self, state, momenta):
        """Compare one sweep with the golden update; returns the new state and momenta."""
        results = []
        for kind, part in enumerate(("weights", "biases")):
            values = getattr(state, part), getattr(momenta, part), self.sums[kind]
            results.append(golden(self.layer, kind, self.hyper, self.rounding, *values))
            self.totals[kind] += sum(results[kind][3])
            if not self.counts[1]:
                results.append(([], [], [], []))
                break
        assert self.written_words() == self.words_of(results[0][2], results[1][2])
        addresses = [("weight", n, 0) for n in range(self.words)]
        addresses += [("bias", n, 0) for n in range(self.blocks if self.layer.bias else 0)]
        assert self.cleared == addresses
        lanes, a = self.layer.update_lanes, self.layer.a
        flat = [value for chunk in self.chunks[0] for value in chunk]
        assert flat == self.sums[0]
        kept = min(a, lanes)
        assert [v for chunk in self.chunks[1] for v in chunk[:kept]] == self.sums[1]
        assert all(value == 0 for chunk in self.chunks[1] for value in chunk[kept:])
        return (
            State(results[0][0], results[1][0]),
            State(results[0][1], results[1][1]),
        )

    def packed(self, state):
        """The host's order, by the host's own packer."""
        layer = self.layer
        shape = (self.blocks, *layer.kernel, layer.i_blocks, layer.a, layer.b)
        weight = np.array(state.weights).reshape(shape)
        weight = weight.transpose(0, 4, 3, 5, 1, 2).reshape(layer.o_shape[0], -1, *layer.kernel)
        bias = np.array(state.biases) if layer.bias else None
        return [int(word) & 0xFFFFFFFF for word in pack_parameters(layer, weight, bias)]

    async def start(self, ctx, select):
        ctx.set(self.dut.host, 1)
        ctx.set(self.dut.select, select)
        ctx.set(self.dut.start, 1)
        await ctx.tick()
        ctx.set(self.dut.start, 0)

    async def load(self, ctx, select, words):
        await self.start(ctx, select)
        await drive(ctx, self.dut.load, words, self.stall, self.rng)
        await ctx.tick()
        await ctx.tick()
        ctx.set(self.dut.host, 0)

    async def dump(self, ctx, select):
        await self.start(ctx, select)
        ctx.set(self.dut.dumping, 1)
        count = self.layer.sweep_chunks * self.layer.update_lanes
        words = await collect(ctx, self.dut.dump, count, self.stall, self.rng)
        ctx.set(self.dut.dumping, 0)
        ctx.set(self.dut.host, 0)
        await ctx.tick()
        return words

    def random_state(self, width):
        return State(*([draw(self.rng, width) for _ in range(n)] for n in self.counts))
