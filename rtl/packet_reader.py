"""PacketReader: takes packets apart into samples, targets and parameters.

Golden: the packet layout in ``model/registers.py``. Test: ``tests/test_board.py``.
"""

import math

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from ..model.plan import Plan
from ..model.registers import PacketKind
from .parts import lanes

__all__ = ["WORD", "PacketReader", "parameter_words"]

WORD = data.StructLayout({"data": 32, "last": 1})


def parameter_words(plan: Plan) -> list[int]:
    """Words of a WRITE or READ packet after its header, per trainable layer."""
    return [layer.sweep_chunks * layer.update_lanes for layer in plan.trainable]


class PacketReader(wiring.Component):
    """Reads a word per cycle; stalls with whatever its words go to. Lengths are counted; ``last``
    is only checked.

    A sample of the wrong mode and a packet of unknown kind or layer are dropped whole and reported.

    Members
    -------
    i : In(stream of WORD)
    o : Out(stream), features, ``plan.packet_lanes`` values a transfer
    target : Out(stream), a 32-bit label, or one value a transfer
    training : In(1); sample : Out(1), pulse when a sample's header is taken
    load : Out(stream of 32); layer, select : Out, whose parameters; host, start, dumping : Out(1),
        see ``ParameterStore``
    dump_words : Out, words that the writer is to send; dump_done : In(1)
    bad_kind, bad_length, bad_layer : Out(1), pulses
    """

    def __init__(self, plan: Plan):
        self.plan = plan
        self.features = math.prod(plan.input_shape)
        self.feature_width = plan.layers[0].i_feature.width
        self.classes = plan.loss.labels
        target = 32 if self.classes else lanes(plan.loss.feature.width, 1)
        layers = range(max(2, len(plan.trainable)))
        words = range(max(parameter_words(plan)) + 1)
        super().__init__(
            {
                "i": In(stream.Signature(WORD)),
                "o": Out(stream.Signature(lanes(self.feature_width, plan.packet_lanes))),
                "target": Out(stream.Signature(target)),
                "training": In(1),
                "sample": Out(1),
                "load": Out(stream.Signature(32)),
                "layer": Out(layers),
                "select": Out(1),
                "host": Out(1),
                "start": Out(1),
                "dumping": Out(1),
                "dump_words": Out(words),
                "dump_done": In(1),
                "bad_kind": Out(1),
                "bad_length": Out(1),
                "bad_layer": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        plan = self.plan
        word = self.i.payload
        kind, memory, layer = word.data[28:32], word.data[8:16], word.data[0:8]
        taken = self.i.valid & self.i.ready
        left = Signal(range(max(*parameter_words(plan), self.features, plan.loss.outputs, 1) + 1))
        half = Signal()
        counts = Signal.like(left)
        with m.Switch(layer):
            for n, words in enumerate(parameter_words(plan)):
                with m.Case(n):
                    m.d.comb += counts.eq(words)
        known = (layer < len(plan.trainable)) & (memory < 2)
        target_values = 1 if self.classes else plan.loss.outputs

        with m.FSM():
            with m.State("HEADER"):
                m.d.comb += self.i.ready.eq(1)
                m.d.sync += half.eq(0)
                with m.If(self.i.valid):
                    m.d.sync += [
                        self.layer.eq(layer),
                        self.select.eq(memory[0]),
                        self.dump_words.eq(counts),
                    ]
                    m.d.comb += self.bad_length.eq(word.last != (kind == PacketKind.READ))
                    sample_kind = Mux(self.training, PacketKind.TRAIN, PacketKind.INFER)
                    with m.If(kind == sample_kind):
                        m.d.comb += self.sample.eq(1)
                        m.d.sync += left.eq(Mux(self.training, target_values, self.features))
                        with m.If(self.training):
                            m.next = "TARGET"
                        with m.Else():
                            m.next = "FEATURES"
                    with m.Elif((kind == PacketKind.WRITE) & known):
                        m.d.sync += left.eq(counts)
                        m.next = "START_LOAD"
                    with m.Elif((kind == PacketKind.READ) & known):
                        m.next = "START_DUMP"
                    with m.Else():
                        m.d.comb += [
                            self.bad_layer.eq(
                                (kind == PacketKind.WRITE) | (kind == PacketKind.READ)
                            ),
                            self.bad_kind.eq(~self.bad_layer),
                        ]
                        with m.If(~word.last):
                            m.next = "DROP"
            with m.State("TARGET"):
                self._values(m, self.target, 1, left, half, full_word=self.classes)
                with m.If(self.target.valid & self.target.ready & (left == 1)):
                    m.d.sync += [left.eq(self.features), half.eq(0)]
                    m.d.comb += self.bad_length.eq(word.last)
                    m.next = "FEATURES"
            with m.State("FEATURES"):
                self._values(m, self.o, plan.packet_lanes, left, half)
                with m.If(self.o.valid & self.o.ready & (left == plan.packet_lanes)):
                    m.d.comb += self.bad_length.eq(~word.last)
                    m.next = "HEADER"
            with m.State("START_LOAD"):
                m.d.comb += [self.host.eq(1), self.start.eq(1)]
                m.next = "LOAD"
            with m.State("LOAD"):
                m.d.comb += [
                    self.host.eq(1),
                    self.load.valid.eq(self.i.valid),
                    self.load.payload.eq(word.data),
                    self.i.ready.eq(self.load.ready),
                ]
                with m.If(taken):
                    m.d.sync += left.eq(left - 1)
                    with m.If(left == 1):
                        m.d.comb += self.bad_length.eq(~word.last)
                        m.next = "SETTLE"
            with m.State("SETTLE"):
                m.d.comb += self.host.eq(1)
                m.next = "HEADER"
            with m.State("START_DUMP"):
                m.d.comb += [self.host.eq(1), self.start.eq(1)]
                m.next = "DUMP"
            with m.State("DUMP"):
                m.d.comb += [self.host.eq(1), self.dumping.eq(1)]
                with m.If(self.dump_done):
                    m.next = "HEADER"
            with m.State("DROP"):
                m.d.comb += self.i.ready.eq(1)
                with m.If(self.i.valid & word.last):
                    m.next = "HEADER"
        return m

    def _values(self, m, o, count, left, half, full_word=False):
        """Send the halves of a word as transfers of ``count`` values until ``left`` have gone."""
        word = self.i.payload.data
        m.d.comb += o.valid.eq(self.i.valid)
        transfer = o.valid & o.ready
        if full_word:
            m.d.comb += [o.payload.eq(word), self.i.ready.eq(o.ready)]
        elif count == 2:
            m.d.comb += [o.payload[n].eq(word.word_select(n, 16).as_signed()) for n in range(2)]
            m.d.comb += self.i.ready.eq(o.ready)
        else:
            m.d.comb += [
                o.payload[0].eq(word.word_select(half, 16).as_signed()),
                self.i.ready.eq(o.ready & (half | (left == 1))),
            ]
            with m.If(transfer):
                m.d.sync += half.eq(~half)
        with m.If(transfer):
            m.d.sync += left.eq(left - count)
