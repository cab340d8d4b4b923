"""Walker: the loop nest of an engine, one beat per cycle.

Golden: ``model/geometry.py`` (the walks). Test: ``tests/parts/test_walk.py``.
"""

from amaranth.hdl import Const, Module, Mux, Signal
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import Out

from ...model.geometry import Walk

__all__ = ["Walker", "beat_layout"]


def beat_layout(
    *, rows: Walk, cols: Walk, outer: int, inner: int, groups: int = 1
) -> data.StructLayout:
    """One beat of a walk: where to read, and what it begins and ends.

    ``first``/``last`` delimit one result (all taps and inner blocks); ``need`` source rows must be
    present; ``free`` source rows may be dropped once a beat with ``row_last`` is taken. ``outer``
    is the ``member``-th block of its group, ``inner`` counts from the group's source block
    ``base``; both are without bits where there is one group.
    """
    members = outer // groups if groups > 1 else 1
    taps = [
        max(p.first_tap + p.taps * axis.tap_step for p in axis.positions) for axis in (rows, cols)
    ]
    return data.StructLayout(
        {
            "row": range(max(2, rows.source_size)),
            "col": range(max(2, cols.source_size)),
            "tap_row": range(taps[0] + 1),
            "tap_col": range(taps[1] + 1),
            "outer": range(max(2, outer)),
            "inner": range(max(2, inner)),
            "member": range(members),
            "base": range((groups - 1) * inner + 1),
            "null": 1,
            "first": 1,
            "last": 1,
            "row_last": 1,
            "sample_first": 1,
            "sample_last": 1,
            "need": range(rows.source_size + 1),
            "free": range(rows.source_size + 1),
        }
    )


class Walker(wiring.Component):
    """Emits the beats of sample after sample: rows, columns, outer blocks, tap rows, tap columns,
    inner blocks.

    A beat per cycle while ``o.ready``; latency 1 cycle after reset. A position without taps gives
    one null beat per inner block. Reset restarts at the first beat of a sample.

    Parameters
    ----------
    rows, cols : Walk
    outer, inner : int, blocks per pixel outside and inside the tap loops
    groups : int, equal runs of ``outer`` blocks, each of which has ``inner`` source blocks of its
        own

    Members
    -------
    o : Out(stream of ``beat_layout``)
    """

    def __init__(self, *, rows: Walk, cols: Walk, outer: int, inner: int, groups: int = 1):
        self.rows = rows
        self.cols = cols
        self.outer = outer
        self.inner = inner
        self.groups = groups
        self.layout = beat_layout(rows=rows, cols=cols, outer=outer, inner=inner, groups=groups)
        super().__init__({"o": Out(stream.Signature(self.layout))})

    @property
    def beats(self) -> int:
        """Beats of one sample."""
        return self.rows.beats * self.cols.beats * self.outer * self.inner

    @property
    def source_blocks(self) -> int:
        """Blocks per pixel of the source."""
        return self.groups * self.inner

    def source_block(self, beat):
        """The source block that ``beat`` reads."""
        return beat.inner if self.groups == 1 else beat.base + beat.inner

    def elaborate(self, platform):
        m = Module()
        advance = Signal()
        m.d.comb += advance.eq(~self.o.valid | self.o.ready)

        beat = Signal(self.layout)
        carry = Const(1)
        inner, carry, inner_first = _counter(m, "inner", Const(self.inner - 1), advance, carry)
        col = _Axis(m, "col", self.cols)
        row = _Axis(m, "row", self.rows)
        col_tap, carry, col_first = _counter(m, "col_tap", col.last_tap, advance, carry)
        row_tap, carry, row_first = _counter(m, "row_tap", row.last_tap, advance, carry)
        result_last = carry
        if self.groups > 1:
            self._group(m, beat, advance, carry)
        outer, carry, outer_first = _counter(m, "outer", Const(self.outer - 1), advance, carry)
        _, carry, x_first = _counter(
            m, "x", Const(len(self.cols.positions) - 1), advance, carry, out=col.position
        )
        row_last = carry
        _, carry, y_first = _counter(
            m, "y", Const(len(self.rows.positions) - 1), advance, carry, out=row.position
        )

        m.d.comb += [
            beat.row.eq(row.source(row_tap)),
            beat.col.eq(col.source(col_tap)),
            beat.tap_row.eq(row.tap(row_tap)),
            beat.tap_col.eq(col.tap(col_tap)),
            beat.outer.eq(outer),
            beat.inner.eq(inner),
            beat.null.eq(row.entry.null | col.entry.null),
            beat.first.eq(inner_first & col_first & row_first),
            beat.last.eq(result_last),
            beat.row_last.eq(row_last),
            beat.sample_first.eq(beat.first & outer_first & x_first & y_first),
            beat.sample_last.eq(carry),
            beat.need.eq(row.entry.need),
            beat.free.eq(row.entry.free),
        ]
        with m.If(advance):
            m.d.sync += [self.o.valid.eq(1), self.o.payload.eq(beat)]
        return m

    def _group(self, m, beat, advance, result_last):
        """Count along with the outer blocks: places in a group, and the group's source block."""
        last = Const(self.outer // self.groups - 1)
        member, group_last, _ = _counter(m, "member", last, advance, result_last)
        base = Signal.like(beat.base, name="base")
        with m.If(advance & group_last):
            end = base == (self.groups - 1) * self.inner
            m.d.sync += base.eq(Mux(end, 0, base + self.inner))
        m.d.comb += [beat.member.eq(member), beat.base.eq(base)]


class _Axis:
    """The table of one axis, read by position; ``free`` is what a position frees beyond the one
    before.
    """

    def __init__(self, m: Module, name: str, walk: Walk):
        self.walk = walk
        size = walk.source_size + 1
        self.layout = data.StructLayout(
            {
                "first_tap": range(1 + max(p.first_tap for p in walk.positions)),
                "last_tap": range(1 + max(max(p.taps, 1) for p in walk.positions)),
                "first_source": range(max(2, size)),
                "null": 1,
                "need": range(size),
                "free": range(size),
            }
        )
        rows = []
        freed = 0
        for p in walk.positions:
            rows.append(
                {
                    "first_tap": p.first_tap,
                    "last_tap": max(p.taps, 1) - 1,
                    "first_source": p.first_source,
                    "null": int(p.taps == 0),
                    "need": p.need,
                    "free": p.free - freed,
                }
            )
            freed = p.free
        self.position = Signal(range(max(2, len(rows))), name=f"{name}_position")
        m.submodules[f"{name}_table"] = table = memory.Memory(
            shape=self.layout, depth=max(2, len(rows)), init=rows
        )
        port = table.read_port(domain="comb")
        m.d.comb += port.addr.eq(self.position)
        self.entry = port.data

    @property
    def last_tap(self):
        return self.entry.last_tap

    def source(self, tap):
        step = self.walk.source_step
        way = tap if abs(step) == 1 else tap * abs(step)
        return self.entry.first_source + way if step > 0 else self.entry.first_source - way

    def tap(self, tap):
        return self.entry.first_tap + tap * self.walk.tap_step


def _counter(m, name, last, advance, carry, out=None):
    """A loop counter from 0 to ``last``; returns (value, carry out, is zero)."""
    value = Signal(max(1, len(last)), name=name) if out is None else out
    carry_out = Signal(name=f"{name}_carry")
    m.d.comb += carry_out.eq(carry & (value == last))
    with m.If(advance & carry):
        m.d.sync += value.eq(Mux(value == last, 0, value + 1))
    return value, carry_out, value == 0
