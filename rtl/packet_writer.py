"""PacketWriter: sends logits and parameters to the host.

Golden: the packet layout in ``model/registers.py``. Test: ``tests/test_board.py``.
"""

from amaranth.hdl import Cat, Const, Module, Mux, Signal, signed
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from ..model.plan import Plan
from ..model.registers import PacketKind
from .packet_reader import WORD, parameter_words
from .parts import lanes

__all__ = ["PacketWriter"]


class PacketWriter(wiring.Component):
    """Packs each sample's logits, two to a word, or a layer's parameters behind a header. A word
    per two cycles or faster.

    Members
    -------
    i : In(stream), logits, one a transfer
    dump : In(stream of 32); dumping, select : In(1); layer, dump_words : In; dump_done : Out(1),
        pulse with the last word
    training : In(1)
    o : Out(stream of WORD)
    """

    def __init__(self, plan: Plan):
        self.plan = plan
        super().__init__(
            {
                "i": In(stream.Signature(lanes(plan.loss.feature.width, 1))),
                "dump": In(stream.Signature(32)),
                "dumping": In(1),
                "select": In(1),
                "layer": In(range(max(2, len(plan.trainable)))),
                "dump_words": In(range(max(parameter_words(plan)) + 1)),
                "dump_done": Out(1),
                "training": In(1),
                "o": Out(stream.Signature(WORD)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        outputs = self.plan.loss.outputs
        left = Signal(range(max(*parameter_words(self.plan), outputs, 1) + 1))
        low = Signal(16)
        held = Signal()
        value = Signal(signed(16))
        final = Signal()
        m.d.comb += value.eq(self.i.payload[0])
        sent = self.o.valid & self.o.ready
        word = self.o.payload
        with m.FSM():
            with m.State("IDLE"):
                kind = Mux(
                    self.dumping,
                    PacketKind.READ,
                    Mux(self.training, PacketKind.TRAIN, PacketKind.INFER),
                )
                place = Mux(
                    self.dumping, Cat(self.layer, Const(0, 8 - len(self.layer)), self.select), 0
                )
                m.d.comb += [
                    self.o.valid.eq(self.dumping | self.i.valid),
                    word.data.eq(kind << 28 | place),
                ]
                m.d.sync += [left.eq(Mux(self.dumping, self.dump_words, outputs)), held.eq(0)]
                with m.If(sent):
                    with m.If(self.dumping):
                        m.next = "DUMP"
                    with m.Else():
                        m.next = "LOGITS"
            with m.State("LOGITS"):
                m.d.comb += [
                    final.eq(left == 1),
                    self.o.valid.eq(self.i.valid & (held | final)),
                    word.data.eq(Mux(held, Cat(low, value), value.as_unsigned())),
                    word.last.eq(final),
                    self.i.ready.eq(~(held | final) | self.o.ready),
                ]
                with m.If(self.i.valid & self.i.ready):
                    m.d.sync += [left.eq(left - 1), low.eq(value), held.eq(~held)]
                    with m.If(final):
                        m.next = "IDLE"
            with m.State("DUMP"):
                m.d.comb += [
                    self.o.valid.eq(self.dump.valid),
                    self.dump.ready.eq(self.o.ready),
                    word.data.eq(self.dump.payload),
                    word.last.eq(left == 1),
                    self.dump_done.eq(sent & word.last),
                ]
                with m.If(sent):
                    m.d.sync += left.eq(left - 1)
                    with m.If(word.last):
                        m.next = "IDLE"
        return m
