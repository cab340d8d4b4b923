"""Window: the rows of a map that an engine still needs, written as a stream and read at will.

Test: ``tests/parts/test_window.py``. Depth: ``model/schedule.py``.
"""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import memory, stream, wiring
from amaranth.lib.wiring import In, Out

__all__ = ["READ_LATENCY", "Window"]

READ_LATENCY = 3  # cycles from row, col, block to data: slot, address, memory


class Window(wiring.Component):
    """Holds up to ``depth`` rows of a stream of maps, in order, across sample borders.

    Writing takes a word per cycle while a row has room. Rows are named from the start of the
    reader's present sample. ``present`` tells whether the first ``need`` rows of that sample have
    been written in full. ``free`` drops that many of the oldest rows when ``free_enable`` is high;
    ``sample_end`` with it makes the next row the first of a new sample. A dropped row is
    overwritten only after reads issued in the same cycle have returned.

    Parameters
    ----------
    shape : ShapeCastable, a word
    rows, cols, blocks : int, size of a map: rows, columns, words per pixel
    depth : int, rows held

    Members
    -------
    i : In(stream of ``shape``), raster order, blocks innermost
    need : In, present : Out(1), combinational
    row, col, block : In; data : Out(``shape``), ``READ_LATENCY`` cycles later
    free, free_enable, sample_end : In
    """

    def __init__(self, shape, *, rows: int, cols: int, blocks: int, depth: int):
        self.shape = shape
        self.rows = rows
        self.cols = cols
        self.blocks = blocks
        self.depth = depth
        super().__init__(
            {
                "i": In(stream.Signature(shape)),
                "need": In(range(rows + 1)),
                "present": Out(1),
                "row": In(range(max(2, rows))),
                "col": In(range(max(2, cols))),
                "block": In(range(max(2, blocks))),
                "data": Out(shape),
                "free": In(range(rows + 1)),
                "free_enable": In(1),
                "sample_end": In(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        row_words = self.cols * self.blocks
        words = self.depth * row_words
        m.submodules.memory = store = memory.Memory(shape=self.shape, depth=words, init=[])
        write = store.write_port()
        read = store.read_port()

        # Writing: the address runs through all slots; a row counts once its last word is in.
        column = Signal(range(max(2, row_words)))
        room = Signal(range(self.depth + 1), init=self.depth)
        transfer = self.i.valid & self.i.ready
        row_written = Signal()
        m.d.comb += [
            self.i.ready.eq(room != 0),
            write.en.eq(transfer),
            write.data.eq(self.i.payload),
            row_written.eq(transfer & (column == row_words - 1)),
        ]
        with m.If(transfer):
            m.d.sync += [
                column.eq(Mux(column == row_words - 1, 0, column + 1)),
                write.addr.eq(Mux(write.addr == words - 1, 0, write.addr + 1)),
            ]

        # Reading: rows count from the sample's start; base is the oldest row held.
        level = Signal(range(self.depth + 1))
        base_row = Signal(range(self.rows + 1))
        base_slot = Signal(range(max(2, self.depth)))
        freed = Signal.like(self.free)
        m.d.comb += [
            freed.eq(Mux(self.free_enable, self.free, 0)),
            self.present.eq(base_row + level >= self.need),
        ]
        m.d.sync += level.eq(level + row_written - freed)
        with m.If(self.free_enable):
            m.d.sync += [
                base_row.eq(Mux(self.sample_end, 0, base_row + self.free)),
                base_slot.eq(_wrap(base_slot + self.free, self.depth)),
            ]
        for n in range(READ_LATENCY):
            late = Signal.like(freed, name=f"freed_{n}")
            m.d.sync += late.eq(freed)
            freed = late
        m.d.sync += room.eq(room - row_written + freed)

        slot = Signal(range(max(2, self.depth)), reset_less=True)
        pixel = Signal(range(max(2, row_words)), reset_less=True)
        m.d.sync += [
            slot.eq(_wrap(base_slot + (self.row - base_row)[: len(self.row)], self.depth)),
            pixel.eq(self.col * self.blocks + self.block),
            read.addr.eq(slot * row_words + pixel),
        ]
        m.d.comb += [read.en.eq(1), self.data.eq(read.data)]
        return m


def _wrap(value, depth):
    return Mux(value >= depth, value - depth, value)
