"""The tap a cycle that pools work on: a buffered map, its walk, and room for the results.

Golden: none (it changes no data). Used by ``rtl/pipeline/maxpool.py`` and
``rtl/pipeline/avgpool.py``. Test: ``tests/pipeline/test_maxpool.py``.
"""

from amaranth.hdl import Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from ...model.geometry import Walk
from ..parts.delay import delay
from ..parts.walk import Walker
from ..parts.window import READ_LATENCY, Window

__all__ = ["PoolTaps"]


class PoolTaps(wiring.Component):
    """Walks a buffered map and gives a tap a cycle, for results whose room is sure.

    A result of ``n`` taps takes ``n`` cycles, and a null one where it has none. Reset starts with a
    sample's first pixel.

    Parameters
    ----------
    shape : ShapeCastable, a word of the map
    walks : rows and columns
    blocks : int, words per pixel
    depth : int, rows of the map held
    latency : int, cycles from a result's last beat to its word at the output of the FIFO behind

    Members
    -------
    i : In(stream of ``shape``), the map
    go : In(1), allows a result to begin; begun : Out(1), one does
    beat : Out(``beat_layout`` of ``rtl/parts/walk.py``), the beat that is taken where ``issued``
    valid, first, last, null, row, col, data : Out, a tap, ``READ_LATENCY`` cycles after its beat;
        row and col name it in the kernel
    taken : In(1), a result has left the FIFO of ``results`` words behind
    """

    def __init__(self, *, shape, walks: tuple[Walk, Walk], blocks: int, depth: int, latency: int):
        rows, cols = walks
        self.walker = Walker(rows=rows, cols=cols, outer=blocks, inner=1)
        self.window = Window(
            shape, rows=rows.source_size, cols=cols.source_size, blocks=blocks, depth=depth
        )
        fewest = 1
        for walk in walks:
            fewest *= min(max(1, position.taps) for position in walk.positions)
        # Results in flight when every one is as short as the shortest, and one more.
        self.results = max(3, -(-latency // fewest) + 1)
        beat = self.walker.layout
        super().__init__(
            {
                "i": In(stream.Signature(shape)),
                "go": In(1),
                "begun": Out(1),
                "issued": Out(1),
                "beat": Out(beat),
                "valid": Out(1),
                "first": Out(1),
                "last": Out(1),
                "null": Out(1),
                "row": Out(beat["tap_row"].shape),
                "col": Out(beat["tap_col"].shape),
                "data": Out(shape),
                "taken": In(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.walker = self.walker
        m.submodules.window = window = self.window
        wiring.connect(m, wiring.flipped(self.i), window.i)

        beat = self.walker.o.payload
        credit = Signal(range(self.results + 1), init=self.results)
        m.d.comb += [
            self.issued.eq(
                self.walker.o.valid & window.present & (~beat.first | ((credit != 0) & self.go))
            ),
            self.walker.o.ready.eq(self.issued),
            self.beat.eq(beat),
            self.begun.eq(self.issued & beat.first),
            window.need.eq(beat.need),
            window.row.eq(beat.row),
            window.col.eq(beat.col),
            window.block.eq(beat.outer),
            window.free.eq(beat.free),
            window.free_enable.eq(self.issued & beat.row_last),
            window.sample_end.eq(beat.sample_last),
            self.data.eq(window.data),
        ]
        m.d.sync += credit.eq(credit - self.begun + self.taken)
        late = {
            "valid": self.issued,
            "first": beat.first,
            "last": beat.last,
            "null": beat.null,
            "row": beat.tap_row,
            "col": beat.tap_col,
        }
        for name, value in late.items():
            resets = name == "valid"
            late_value = delay(m, value, READ_LATENCY, f"late_{name}", resets=resets)
            m.d.comb += getattr(self, name).eq(late_value)
        return m
