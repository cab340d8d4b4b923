"""Copies one stream to several.

Golden: none (it changes no data). Test: ``tests/parts/test_fork.py``.
"""

from amaranth.hdl import Module, ShapeLike, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

__all__ = ["Fork"]


class Fork(wiring.Component):
    """Gives each transfer once to every enabled output, each as early as that output takes it.

    Latency 0, one transfer per cycle; a transfer leaves the input when its last output takes it.
    Reset forgets which outputs have taken the transfer at the input.

    Parameters
    ----------
    layout : shape of the payload
    count : int, outputs

    Members
    -------
    i : the stream
    o : list of ``count`` streams
    enable : In(count), bit n low skips output n; changes only while nothing waits at ``i``. All
        high when not driven; with all bits low every transfer is taken and dropped.
    """

    def __init__(self, layout: ShapeLike, count: int) -> None:
        if not isinstance(count, int) or count < 1:
            raise ValueError(f"count must be an integer of at least 1 output, not {count!r}")
        self.layout = layout
        self.count = count
        super().__init__(
            {
                "i": In(stream.Signature(layout)),
                "o": Out(stream.Signature(layout)).array(count),
                "enable": In(count, init=(1 << count) - 1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        done = Signal(self.count)
        satisfied = Signal(self.count)
        m.d.comb += self.i.ready.eq(satisfied.all())
        for n, output in enumerate(self.o):
            m.d.comb += [
                output.valid.eq(self.i.valid & self.enable[n] & ~done[n]),
                output.payload.eq(self.i.payload),
                satisfied[n].eq(done[n] | ~self.enable[n] | output.ready),
            ]
        with m.If(self.i.valid):
            m.d.sync += done.eq(done | satisfied)
            with m.If(self.i.ready):
                m.d.sync += done.eq(0)
        return m
