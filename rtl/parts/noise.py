"""Random words for every element of a tensor, sample by sample, ready before they are wanted.

Golden: ``model/noise.py``. Test: ``tests/parts/test_noise.py``.
"""

from amaranth.hdl import Module, ResetInserter, Signal
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
    size : int, elements of a sample
    lanes : int, elements per transfer; divides ``size``

    Members
    -------
    enable, clear : In(1); first_sample : In(32); o : Out(stream of ``lanes`` unsigned)
    """

    def __init__(self, *, seed: int, tensor: int, size: int, lanes: int) -> None:
        self.keys = round_keys(seed, tensor)
        self.size = size
        self.lanes = lanes
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
        element, sample = Signal(range(self.size)), Signal(32)
        with m.If(cipher.i.valid & cipher.i.ready):
            m.d.sync += element.eq(element + self.lanes)
            with m.If(element == self.size - self.lanes):
                m.d.sync += [element.eq(0), sample.eq(sample + 1)]
        with m.If(self.clear):
            m.d.sync += [element.eq(0), sample.eq(self.first_sample)]
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
