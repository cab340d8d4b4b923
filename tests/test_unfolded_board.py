# amaranth: UnusedElaboratable=no
# ruff: noqa: ERA001
"""Boards whose first convolution unfolds: bits, and intervals as planned, whatever sets them."""

import itertools

import numpy as np
import pytest
import torch
from amaranth.hdl import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from gradweave.host.board_device import BoardDevice
from gradweave.host.golden_device import GoldenDevice
from gradweave.host.packets import pack_samples
from gradweave.model.pace import entry_interval
from gradweave.model.schedule import size_buffers, steady_interval
from gradweave.rtl.packet_reader import PacketReader
from gradweave.rtl.parts.gear import Gear
from gradweave.rtl.parts.unfold import Unfold
from gradweave.sim.simulate import simulate
from gradweave.tests.plans import chain, conv, linear, maxpool, relu
from gradweave.tests.small_board import assert_same_state, data, hyper, masters
from gradweave.tests.streams import run_streams


def board(shape, *, pooled=True, **first):
    """``first`` has the convolution's keywords; versions are delayed by 2 mini-batches of 4."""
    folded = {"delay": 2, "back_delay": 2}
    wide = first["a"]
    plan = chain(
        shape,
        conv("conv", 4, unfold=True, **first, **folded),
        relu("relu", lanes=wide),
        *([maxpool("pool", 2, lanes=wide)] if pooled else []),
        linear("linear", 3, a=3, b=4, **folded),
    )
    return size_buffers(plan)


# What sets the interval: a convolution, the unfold's words, the packets.
BOARDS = {
    96: board((3, 6, 6), kernel=3, padding=1, a=4, b=9),
    352: board((1, 8, 8), kernel=3, padding=1, a=2, b=3),
    504: board((2, 9, 9), kernel=(1, 3), stride=(3, 1), padding=(0, 1), a=4, b=1),
    110: board((2, 9, 12), kernel=(1, 2), stride=3, a=4, b=4, pooled=False),
}
SLOW = [pytest.param(x, marks=pytest.mark.slow) for x in list(BOARDS)[1:]]


@pytest.mark.parametrize("interval", [96, *SLOW])
def test_bits_and_intervals_are_those_of_golden_model_and_plan(interval):
    plan = BOARDS[interval]
    assert steady_interval(plan) == interval
    x, y = data(plan, 12)
    with simulate(plan) as simulation:
        device, golden = BoardDevice(plan, simulation), GoldenDevice(plan)
        for side in (device, golden):
            side.write_parameters(masters(plan))
        assert torch.equal(device.train(x, y, hyper(plan)), golden.train(x, y, hyper(plan)))
        counters = device.counters()
        assert_same_state(device, golden)
        assert torch.equal(device.infer(x[:3]), golden.infer(x[:3]))
    span = counters["last_cycle"] - counters["first_cycle"]
    assert span == (counters["samples"] - 1) * interval


class Entry(wiring.Component):
    """Packets, gear and unfold as in a board."""

    def __init__(self, plan):
        layer, width = plan.layers[0], plan.layers[0].i_feature.width
        self.reader = PacketReader(plan)
        self.gear = Gear(width, plan.packet_lanes, layer.i_lanes)
        self.unfold = Unfold(width, layer.i_lanes, layer.b, layer.unfolding)
        members = {"i": self.reader.i, "target": self.reader.target, "o": self.unfold.o}
        super().__init__(
            {
                name: (In if name == "i" else Out)(stream.Signature(port.payload.shape()))
                for name, port in members.items()
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules += self.reader, self.gear, self.unfold
        wiring.connect(m, wiring.flipped(self.i), self.reader.i)
        wiring.connect(m, self.reader.target, wiring.flipped(self.target))
        wiring.connect(m, self.reader.o, self.gear.i)
        wiring.connect(m, self.gear.o, self.unfold.i)
        wiring.connect(m, self.unfold.o, wiring.flipped(self.o))
        m.d.comb += self.reader.training.eq(1)
        return m


SPANS = [(3, 1, 1), ((1, 3), 1, 0), ((1, 3), (1, 4), 0), (2, 2, 0)]
ENTRIES = [
    *itertools.product([(1, 6, 6), (3, 3, 5)], SPANS, [0, 9]),
    *(
        pytest.param(*entry, marks=pytest.mark.slow)
        for entry in itertools.product([(2, 6, 6), (3, 6, 6), (1, 5, 5)], SPANS, [0, 2, 9])
    ),
]


@pytest.mark.parametrize(("shape", "spans", "targets"), ENTRIES)
def test_samples_enter_in_the_cycles_that_the_timing_model_gives(shape, spans, targets):
    kernel, stride, padding = spans
    columns = kernel if isinstance(kernel, int) else kernel[1]
    for b in {1, shape[0], columns * shape[0]}:
        first = conv("conv", 4, kernel=kernel, stride=stride, padding=padding, a=4, b=b)
        first.rest["unfold"] = True
        loss = "mse" if targets else "cross_entropy"
        plan = chain(shape, first, linear("linear", max(1, targets), b=4), loss=loss)
        samples = np.random.default_rng(b).integers(-9, 9, (4, *shape)).astype(np.int16)
        goals = np.zeros((4, targets), np.int16) if targets else np.zeros(4, np.int64)
        words, lasts = pack_samples(plan, samples, goals)
        packets = [
            {"data": int(word), "last": int(x)} for word, x in zip(words, lasts, strict=True)
        ]
        layer = plan.layers[0]
        per_sample = layer.i_shape[1] * layer.o_shape[2] * layer.i_blocks
        run = run_streams(
            Entry(plan), {"i": packets}, {"o": 4 * per_sample, "target": 4 * max(1, targets)}
        )
        ends = run.times["o"][per_sample - 1 :: per_sample]
        cycles = [after - before for before, after in itertools.pairwise(ends)]
        assert cycles[1:] == [entry_interval(plan)] * 2
