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

    Where both sides have the same words, latency 0, and only pad lanes are masked. Otherwise two
    pixels have room, and a word leaves 1 cycle after the last word came that it needs: as many
    cycles a pixel as the side with more words has. Reset drops what is held and starts a pixel.

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
        count = len(self.i_words)
        banks = [
            [Signal(self.width, name=f"bank{n}_{c}", reset_less=True) for c in range(self.channels)]
            for n in range(2)
        ]
        present = [Signal(range(count + 1), name=f"present{n}") for n in range(2)]
        writing, reading = Signal(), Signal()  # the bank that is filled, the one that is given
        taken, left = Signal(), Signal()
        o_word = _counter(m, "o_word", len(self.o_words), left)
        last_out = o_word == len(self.o_words) - 1
        filled, held = (Signal(range(count + 1), name=name) for name in ("filled", "held"))
        needed = Signal(range(count + 1))
        m.d.comb += [
            filled.eq(Mux(writing, present[1], present[0])),
            held.eq(Mux(reading, present[1], present[0])),
            self.i.ready.eq(filled != count),
            taken.eq(self.i.valid & self.i.ready),
            self.o.valid.eq(held >= needed),
            left.eq(self.o.valid & self.o.ready),
        ]
        with m.If(taken & (filled == count - 1)):
            m.d.sync += writing.eq(~writing)
        with m.If(left & last_out):
            m.d.sync += reading.eq(~reading)
        for n, bank in enumerate(banks):
            with m.If(left & last_out & (reading == n)):
                m.d.sync += present[n].eq(0)
            with m.Elif(taken & (writing == n)):
                m.d.sync += present[n].eq(filled + 1)
            with m.If(taken & (writing == n)), m.Switch(filled):
                for word, channels in enumerate(self.i_words):
                    with m.Case(word):
                        for lane, channel in enumerate(channels):
                            if channel is not None:
                                m.d.sync += bank[channel].eq(self.i.payload[lane])
        with m.Switch(o_word):
            for word, channels in enumerate(self.o_words):
                with m.Case(word):
                    m.d.comb += needed.eq(self._needed(channels))
                    for lane, channel in enumerate(channels):
                        if channel is not None:
                            value = Mux(reading, banks[1][channel], banks[0][channel])
                            m.d.comb += self.o.payload[lane].eq(value.as_signed())

    def _needed(self, channels: tuple[int | None, ...]) -> int:
        """Words that must have come for one of these channels to leave."""
        wanted = set(channels) - {None}
        return max(n + 1 for n, word in enumerate(self.i_words) if wanted & set(word))


def _counter(m: Module, name: str, count: int, step: Signal) -> Signal:
    """Counts steps from 0 to ``count - 1`` and around."""
    value = Signal(range(max(2, count)), name=name)
    with m.If(step):
        m.d.sync += value.eq(Mux(value == count - 1, 0, value + 1))
    return value
