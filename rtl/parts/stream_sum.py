"""Adds streams word by word, exactly, and rounds the sum once.

Golden: ``rounded_sum`` in ``model/pipeline/add.py``. Test: ``tests/parts/test_stream_sum.py``.
"""

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from ...model.formats import Format, Rounding
from . import lanes as lane_layout
from .fifo import Fifo, fifo_latency
from .requantize import Requantize

__all__ = ["StreamSum", "sum_latency"]

SUM_LATENCY = 3  # the sum's register, and two of Requantize


def sum_latency(depths: tuple[int, ...]) -> int:
    """Most cycles from the last stream's word to the sum, with FIFOs of ``depths``."""
    return SUM_LATENCY + max(fifo_latency(depth) for depth in depths)


class StreamSum(wiring.Component):
    """Gives the sum of one word of each stream, requantised, lane by lane.

    One word per cycle; latency that of the deepest stream's FIFO and 3 cycles more. Each stream
    waits in a FIFO of its own for the others. Stalls with its output. Reset drops every word and
    clears the count.

    Parameters
    ----------
    lanes : int, values per transfer
    source : Format, signed, of all streams
    result : Format, signed, of the sum
    rounding : Rounding
    depths : tuple of int, words that each stream's FIFO holds

    Members
    -------
    i : array of streams, one per depth
    o : stream of the sum
    clipped : Out(32), saturated values that have left; ``clear`` : In(1), zeroes it
    """

    def __init__(
        self,
        *,
        lanes: int,
        source: Format,
        result: Format,
        rounding: Rounding,
        depths: tuple[int, ...],
    ) -> None:
        self.lanes = lanes
        self.source = source
        self.result = result
        self.rounding = rounding
        self.depths = depths
        layout = lane_layout(source.width, lanes)
        super().__init__(
            {
                "i": In(stream.Signature(layout)).array(len(depths)),
                "o": Out(stream.Signature(lane_layout(result.width, lanes))),
                "clipped": Out(32),
                "clear": In(1),
            }
        )

    @property
    def latency(self) -> int:
        """Most cycles from the last stream's word to its sum at ``o``, without stalls."""
        return sum_latency(self.depths)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.requantize = requantize = Requantize(
            acc_width=self.source.width + (len(self.depths) - 1).bit_length(),
            lanes=self.lanes,
            shift=self.source.frac - self.result.frac,
            fmt=self.result,
            rounding=self.rounding,
        )
        words = []
        for n, depth in enumerate(self.depths):
            m.submodules[f"queue_{n}"] = queue = Fifo(self.i[n].payload.shape(), depth)
            wiring.connect(m, wiring.flipped(self.i[n]), queue.i)
            words.append(queue.o)
        wiring.connect(m, requantize.o, wiring.flipped(self.o))
        taken = Signal()
        total = Signal(requantize.i.payload.shape(), reset_less=True)
        full = Signal()
        room = ~full | requantize.i.ready
        m.d.comb += [
            taken.eq(Cat(word.valid for word in words).all()),
            requantize.i.valid.eq(full),
            requantize.i.payload.eq(total),
            requantize.clear.eq(self.clear),
            self.clipped.eq(requantize.clipped),
        ]
        m.d.comb += [word.ready.eq(taken & room) for word in words]
        with m.If(room):
            m.d.sync += full.eq(taken)
            for lane in range(self.lanes):
                m.d.sync += total[lane].eq(sum(word.payload[lane] for word in words))
        return m
