"""Joins two streams of one sequence of values that carry different numbers of values per transfer.

Golden: none (it changes no data). Test: ``tests/parts/test_gear.py``.
"""

import math

from amaranth.hdl import Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from . import lanes

__all__ = ["Gear"]


class Gear(wiring.Component):
    """Regroups ``i_lanes`` values per transfer into ``o_lanes``, in order, first lane first.

    Equal lanes are wires. Otherwise the narrow side runs at one transfer per cycle; where neither
    lane count divides the other, the values pass through a word of their least common multiple.
    Values wait until a whole word is together, so the sequence's length must be a multiple of that
    word. Reset drops what is held.

    Parameters
    ----------
    width : int, bits of a value
    i_lanes, o_lanes : int, values per transfer

    Members
    -------
    i, o : the streams
    """

    def __init__(self, width: int, i_lanes: int, o_lanes: int) -> None:
        self.width = width
        self.i_lanes = i_lanes
        self.o_lanes = o_lanes
        super().__init__(
            {
                "i": In(stream.Signature(lanes(width, i_lanes))),
                "o": Out(stream.Signature(lanes(width, o_lanes))),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        if self.i_lanes == self.o_lanes:
            wiring.connect(m, wiring.flipped(self.i), wiring.flipped(self.o))
        elif self.o_lanes % self.i_lanes == 0:
            self._elaborate_up(m)
        elif self.i_lanes % self.o_lanes == 0:
            self._elaborate_down(m)
        else:
            word = math.lcm(self.i_lanes, self.o_lanes)
            m.submodules.up = up = Gear(self.width, self.i_lanes, word)
            m.submodules.down = down = Gear(self.width, word, self.o_lanes)
            wiring.connect(m, wiring.flipped(self.i), up.i)
            wiring.connect(m, up.o, down.i)
            wiring.connect(m, down.o, wiring.flipped(self.o))
        return m

    def _elaborate_up(self, m: Module) -> None:
        parts = self.o_lanes // self.i_lanes
        part_width = self.width * self.i_lanes
        word = Signal(self.o.payload.shape(), reset_less=True)
        held = Signal(range(parts + 1))
        m.d.comb += [
            self.o.valid.eq(held == parts),
            self.o.payload.eq(word),
            self.i.ready.eq(~self.o.valid | self.o.ready),
        ]
        with m.If(self.o.valid & self.o.ready):
            m.d.sync += held.eq(self.i.valid)
        with m.Elif(self.i.valid & self.i.ready):
            m.d.sync += held.eq(held + 1)
        with m.If(self.i.valid & self.i.ready):
            bits = word.as_value()
            m.d.sync += [
                bits[:-part_width].eq(bits[part_width:]),
                bits[-part_width:].eq(self.i.payload.as_value()),
            ]

    def _elaborate_down(self, m: Module) -> None:
        parts = self.i_lanes // self.o_lanes
        part_width = self.width * self.o_lanes
        word = Signal(self.width * self.i_lanes, reset_less=True)
        left = Signal(range(parts + 1))
        m.d.comb += [
            self.o.valid.eq(left != 0),
            self.o.payload.as_value().eq(word[:part_width]),
            self.i.ready.eq((left == 0) | ((left == 1) & self.o.ready)),
        ]
        with m.If(self.i.valid & self.i.ready):
            m.d.sync += [left.eq(parts), word.eq(self.i.payload.as_value())]
        with m.Elif(self.o.valid & self.o.ready):
            m.d.sync += [left.eq(left - 1), word.eq(word[part_width:])]
