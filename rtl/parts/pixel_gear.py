"""Joins two streams of the same pixels whose words hold other channels, pad lanes included.

Golden: ``model/padding.py`` (it changes no data). Test: ``tests/parts/test_pixel_gear.py``.
"""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from ...model.padding import Layout, channel_words
from . import lanes

__all__ = ["PixelGear"]


class PixelGear(wiring.Component):
    """Takes a pixel word by word and gives it word by word; pad lanes come out as zero.

    Where both sides have the same words, latency 0, and only pad lanes are masked. Otherwise a
    pixel is gathered while the one before is given away: as many cycles a pixel as the side with
    more words has, and 1 cycle from a pixel's last word in to its first word out. Reset drops what
    is held and starts a pixel.

    Parameters
    ----------
    width : int, bits of a value
    channels : int, of a pixel
    i_layout, o_layout : Layout

    Members
    -------
    i, o : the streams
    """

    def __init__(self, width: int, channels: int, i_layout: Layout, o_layout: Layout) -> None:
        self.width = width
        self.channels = channels
        self.i_layout, self.o_layout = i_layout, o_layout
        self.i_words = channel_words(channels, i_layout)
        self.o_words = channel_words(channels, o_layout)
        super().__init__(
            {
                "i": In(stream.Signature(lanes(width, i_layout[0]))),
                "o": Out(stream.Signature(lanes(width, o_layout[0]))),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        if self.i_words == self.o_words:
            self._mask(m)
        else:
            self._regroup(m)
        return m

    def _mask(self, m: Module) -> None:
        word = _counter(m, "word", len(self.i_words), self.i.valid & self.i.ready)
        m.d.comb += [self.o.valid.eq(self.i.valid), self.i.ready.eq(self.o.ready)]
        for lane in range(self.o_layout[0]):
            pads = [n for n, channels in enumerate(self.o_words) if channels[lane] is None]
            pad = sum((word == n for n in pads[1:]), word == pads[0]) if pads else 0
            m.d.comb += self.o.payload[lane].eq(Mux(pad, 0, self.i.payload[lane]))

    def _regroup(self, m: Module) -> None:
        pixel = [Signal(self.width, name=f"in_{n}", reset_less=True) for n in range(self.channels)]
        given = [Signal(self.width, name=f"out_{n}", reset_less=True) for n in range(self.channels)]
        full, giving = Signal(), Signal()
        taken, passed, last_in, last_out = Signal(), Signal(), Signal(), Signal()
        i_word = _counter(m, "i_word", len(self.i_words), taken)
        o_word = _counter(m, "o_word", len(self.o_words), self.o.valid & self.o.ready)
        m.d.comb += [
            last_in.eq(i_word == len(self.i_words) - 1),
            last_out.eq(o_word == len(self.o_words) - 1),
            # A whole pixel moves on as the one before it leaves.
            passed.eq(full & (~giving | (self.o.ready & last_out))),
            self.i.ready.eq(~full | passed),
            taken.eq(self.i.valid & self.i.ready),
            self.o.valid.eq(giving),
        ]
        with m.If(passed):
            m.d.sync += [a.eq(b) for a, b in zip(given, pixel, strict=True)]
            m.d.sync += [giving.eq(1), full.eq(0)]
        with m.Elif(self.o.valid & self.o.ready & last_out):
            m.d.sync += giving.eq(0)
        with m.If(taken & last_in):
            m.d.sync += full.eq(1)
        with m.If(taken), m.Switch(i_word):
            for n, channels in enumerate(self.i_words):
                with m.Case(n):
                    for lane, channel in enumerate(channels):
                        if channel is not None:
                            m.d.sync += pixel[channel].eq(self.i.payload[lane])
        with m.Switch(o_word):
            for n, channels in enumerate(self.o_words):
                with m.Case(n):
                    for lane, channel in enumerate(channels):
                        if channel is not None:
                            m.d.comb += self.o.payload[lane].eq(given[channel].as_signed())


def _counter(m: Module, name: str, count: int, step: Signal) -> Signal:
    """Counts steps from 0 to ``count - 1`` and around."""
    value = Signal(range(max(2, count)), name=name)
    with m.If(step):
        m.d.sync += value.eq(Mux(value == count - 1, 0, value + 1))
    return value
