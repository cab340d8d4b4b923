"""Unfold: lays the columns that a kernel covers side by side, as channels of one pixel an output.

Golden: the layer's own (it changes no sum). Test: ``tests/parts/test_unfold.py``.
"""

from amaranth.hdl import C, Cat, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from ...model.geometry import Unfolding
from . import lanes

__all__ = ["Unfold"]


class Unfold(wiring.Component):
    """Turns each row of pixels into one vector per output column, channel ``dx*channels + c`` of
    output x being channel c of column ``x*stride + dx - padding``, or zero outside the row.

    Interval: ``Unfolding.row_cycles(words)`` cycles per row, rows and samples back to back, where a
    vector leaves in ``words`` transfers. The first word leaves the cycle after its last column was
    taken; padding in front of a row and behind it is made without input. Reset starts a row.

    Parameters
    ----------
    width : int, bits of a value
    channels : int, values of a pixel, and of a transfer at ``i``
    o_lanes : int; where it does not divide ``kernel * channels``, the last word ends in zeros
    unfolding : Unfolding, the row's columns

    Members
    -------
    i, o : the streams, in raster order
    """

    def __init__(self, width: int, channels: int, o_lanes: int, unfolding: Unfolding) -> None:
        self.width = width
        self.channels = channels
        self.o_lanes = o_lanes
        self.unfolding = unfolding
        self.words = -(-unfolding.kernel * channels // o_lanes)
        super().__init__(
            {
                "i": In(stream.Signature(lanes(width, channels))),
                "o": Out(stream.Signature(lanes(width, o_lanes))),
            }
        )

    @property
    def interval(self) -> int:
        """Cycles per row."""
        return self.unfolding.row_cycles(self.words)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        row = self.unfolding
        pixel_width = self.width * self.channels
        pads = self.words * self.o_lanes - row.kernel * self.channels
        columns = Signal(pixel_width * row.kernel, reset_less=True)
        step = Signal(range(max(2, row.steps)))
        until = Signal(range(max(2, row.kernel, row.stride)), init=row.kernel - 1)
        word = Signal(range(max(2, self.words)))
        ready, inside, shift = Signal(), Signal(), Signal()
        last_step, last_word = Signal(), Signal()
        # A vector of padding alone must not leave before its row comes.
        ahead = (step < row.padding) if row.padding >= row.kernel else 0
        m.d.comb += [
            self.o.payload.as_value().eq(
                Cat(columns, C(0, pads * self.width)).word_select(word, self.width * self.o_lanes)
            ),
            last_word.eq(word == self.words - 1),
            last_step.eq(step == row.steps - 1),
            # The present vector is gone, or goes in this cycle.
            ready.eq(~self.o.valid | (self.o.ready & last_word)),
            inside.eq((step >= row.padding) & (step < row.padding + row.size)),
            self.i.ready.eq(ready & inside),
            shift.eq(ready & (self.i.valid | ~(inside | ahead))),
        ]
        with m.If(self.o.valid & self.o.ready):
            m.d.sync += word.eq(Mux(last_word, 0, word + 1))
            with m.If(last_word):
                m.d.sync += self.o.valid.eq(0)
        with m.If(shift):
            column = Mux(inside, self.i.payload.as_value(), 0)
            m.d.sync += [
                columns.eq(Cat(columns[pixel_width:], column)),
                step.eq(Mux(last_step, 0, step + 1)),
                until.eq(Mux(until == 0, row.stride - 1, until - 1)),
                self.o.valid.eq(until == 0),
            ]
            with m.If(last_step):
                m.d.sync += until.eq(row.kernel - 1)
        return m
