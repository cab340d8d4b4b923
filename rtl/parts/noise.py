"""Random words for every element of a tensor, sample by sample, ready before they are wanted.

Golden: ``model/noise.py``. Test: ``tests/parts/test_noise.py``.
"""

from amaranth.hdl import Module, Mux, ResetInserter, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from ...model.random import NOISE_BITS, round_keys
from .fifo import Fifo
from .speck import Speck

__all__ = ["SampleNoise"]

WAITING = 2  # words behind the cipher, so that no stall goes through all its rounds


class SampleNoise(wiring.Component):
    """Gives the lowest ``NOISE_BITS`` of the random word of each element of one sample after the
    other.

    One transfer per cycle; ``clear`` starts at sample ``first_sample``, and so does reset at sample
    0. The first transfer is there 29 cycles later, and from then on there is always one: the cipher
    stands still while it is ahead. Elements come in the order of the tensor's stream.

    Parameters
    ----------
    seed, tensor : int, of the random stream
    pixels : int, of a sample
    words : for each word of a pixel the channel in each lane, as ``channel_words`` gives them

    Members
    -------
    enable, clear : In(1); first_sample : In(32); o : Out(stream of ``lanes`` unsigned)
    """

    def __init__(
        self, *, seed: int, tensor: int, pixels: int, words: tuple[tuple[int | None, ...], ...]
    ) -> None:
        self.keys = round_keys(seed, tensor)
        self.pixels = pixels
        # The first channel of each word, and how many channels there are.
        self.firsts = [word[0] or 0 for word in words]
        self.channels = sum(channel is not None for word in words for channel in word)
        self.lanes = lanes = len(words[0])
        super().__init__(
            {
                "enable": In(1),
                "clear": In(1),
                "first_sample": In(32),
                "o": Out(stream.Signature(data.ArrayLayout(NOISE_BITS, lanes))),
            }
        )

    @property
    def latency(self) -> int:
        """Cycles from ``clear`` to the first transfer."""
        return len(self.keys) + 2

    def elaborate(self, platform: object) -> Module:
        m = Module()
        cipher = Speck(self.keys, lanes=self.lanes)
        waiting = Fifo(self.o.payload.shape(), WAITING)
        m.submodules.cipher = ResetInserter(self.clear)(cipher)
        m.submodules.waiting = ResetInserter(self.clear)(waiting)
        size = self.pixels * self.channels
        element, sample = Signal(range(size)), Signal(32)
        ends = [*self.firsts[1:], self.channels]
        steps = [end - first for first, end in zip(self.firsts, ends, strict=True)]
        word, step = Signal(range(max(2, len(steps)))), Signal(range(max(steps) + 1))
        with m.Switch(word):
            for n, length in enumerate(steps):
                with m.Case(n):
                    m.d.comb += step.eq(length)
        with m.If(cipher.i.valid & cipher.i.ready):
            m.d.sync += [
                element.eq(element + step),
                word.eq(Mux(word == len(steps) - 1, 0, word + 1)),
            ]
            with m.If(element == size - steps[-1]):
                m.d.sync += [element.eq(0), sample.eq(sample + 1)]
        with m.If(self.clear):
            m.d.sync += [element.eq(0), word.eq(0), sample.eq(self.first_sample)]
        m.d.comb += [
            cipher.i.valid.eq(self.enable),
            waiting.i.valid.eq(cipher.o.valid),
            cipher.o.ready.eq(waiting.i.ready),
        ]
        for n in range(self.lanes):
            m.d.comb += [
                cipher.i.payload[n].high.eq(element + n),
                cipher.i.payload[n].low.eq(sample),
                waiting.i.payload[n].eq(cipher.o.payload[n].low),
            ]
        wiring.connect(m, waiting.o, wiring.flipped(self.o))
        return m
