"""A first-in first-out queue of any depth between two streams.

Golden: none (it changes no data). Test: ``tests/parts/test_fifo.py``.
"""

from amaranth.hdl import Module, ShapeLike, Signal
from amaranth.lib import memory, stream, wiring
from amaranth.lib.wiring import In, Out

__all__ = ["Fifo", "fifo_latency"]


def fifo_latency(depth: int) -> int:
    """Cycles from a transfer into an empty queue of ``depth`` to the same transfer out."""
    return 1 if depth <= 2 else 2


class Fifo(wiring.Component):
    """Holds up to ``depth`` transfers, exactly, and passes one per cycle.

    Latency 1 cycle up to a depth of 2 (registers), 2 cycles beyond it (a memory with synchronous
    read, which maps to block RAM when it is large). Reset empties it; the memory keeps its words,
    which nothing can read any more.

    Parameters
    ----------
    layout : shape of the payload
    depth : int, transfers, at least 1

    Members
    -------
    i, o : the streams
    level : Out, transfers held, 0 to ``depth``
    """

    def __init__(self, layout: ShapeLike, depth: int) -> None:
        if not isinstance(depth, int) or depth < 1:
            raise ValueError(f"depth must be an integer of at least 1 transfer, not {depth!r}")
        self.layout = layout
        self.depth = depth
        super().__init__(
            {
                "i": In(stream.Signature(layout)),
                "o": Out(stream.Signature(layout)),
                "level": Out(range(depth + 1)),
            }
        )

    @property
    def latency(self) -> int:
        """Cycles from a transfer in to the same transfer out of an empty queue."""
        return fifo_latency(self.depth)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        entered = Signal()
        left = Signal()
        m.d.comb += [
            entered.eq(self.i.valid & self.i.ready),
            left.eq(self.o.valid & self.o.ready),
        ]
        with m.If(entered & ~left):
            m.d.sync += self.level.eq(self.level + 1)
        with m.Elif(left & ~entered):
            m.d.sync += self.level.eq(self.level - 1)
        if self.depth == 1:
            self._elaborate_one(m, entered)
        elif self.depth == 2:
            self._elaborate_two(m, entered, left)
        else:
            self._elaborate_memory(m, entered)
        return m

    def _elaborate_one(self, m: Module, entered: Signal) -> None:
        held = Signal(self.layout, reset_less=True)
        m.d.comb += [
            self.i.ready.eq((self.level == 0) | self.o.ready),
            self.o.valid.eq(self.level != 0),
            self.o.payload.eq(held),
        ]
        with m.If(entered):
            m.d.sync += held.eq(self.i.payload)

    def _elaborate_two(self, m: Module, entered: Signal, left: Signal) -> None:
        head = Signal(self.layout, reset_less=True)
        tail = Signal(self.layout, reset_less=True)
        m.d.comb += [
            self.i.ready.eq(self.level != 2),
            self.o.valid.eq(self.level != 0),
            self.o.payload.eq(head),
        ]
        with m.If(left):
            m.d.sync += head.eq(tail)
        with m.If(entered):
            m.d.sync += tail.eq(self.i.payload)
            with m.If((self.level == 0) | left):
                m.d.sync += head.eq(self.i.payload)

    def _elaborate_memory(self, m: Module, entered: Signal) -> None:
        m.submodules.words = words = memory.Memory(shape=self.layout, depth=self.depth, init=[])
        write = words.write_port()
        read = words.read_port()
        stored = Signal(range(self.depth + 1))
        m.d.comb += [
            self.i.ready.eq(self.level != self.depth),
            write.en.eq(entered),
            write.data.eq(self.i.payload),
            read.en.eq((stored != 0) & (~self.o.valid | self.o.ready)),
            self.o.payload.eq(read.data),
        ]
        with m.If(~self.o.valid | self.o.ready):
            m.d.sync += self.o.valid.eq(stored != 0)
        with m.If(entered & ~read.en):
            m.d.sync += stored.eq(stored + 1)
        with m.Elif(read.en & ~entered):
            m.d.sync += stored.eq(stored - 1)
        for port in (write, read):
            with m.If(port.en):
                m.d.sync += port.addr.eq(port.addr + 1)
                with m.If(port.addr == self.depth - 1):
                    m.d.sync += port.addr.eq(0)
