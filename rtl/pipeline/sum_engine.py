"""SumEngine: the multiply-and-sum engine that serves as FP and as EB of a trainable layer.

Golden: ``model/pipeline/conv.py``. Test: ``tests/pipeline/test_conv.py``.
"""

from amaranth.hdl import Module, Mux, Signal, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from ...model.formats import Format, Rounding
from ...model.geometry import Walk
from ...model.random import NOISE_BITS
from ..parts import lanes
from ..parts.adder_tree import add_tree, tree_latency
from ..parts.align import aligned
from ..parts.delay import delay
from ..parts.events import ENGINE_EVENTS
from ..parts.fifo import Fifo
from ..parts.requantize import Requantize
from ..parts.walk import Walker
from ..parts.window import READ_LATENCY, Window

__all__ = ["SumEngine"]

Shifts = tuple[tuple[int, ...], ...]


class SumEngine(wiring.Component):
    """For every position of a walk, the sum over taps and inner blocks of weights times source,
    requantised.

    One beat per cycle multiplies ``i_lanes`` source values by ``o_lanes * i_lanes / group_lanes``
    weights.
    Interval: ``Walker.beats`` cycles per sample; latency from a position's last beat to its result:
    ``latency``. A result is begun only when its rows are present, its weight version is there
    (``go``, looked at on a sample's first beat) and the output FIFO has room for it, so nothing
    behind the walker ever stalls.

    Parameters
    ----------
    rows, cols : Walk
    outer, inner : int, blocks of results and of source per pixel
    i_lanes, o_lanes : int
    groups : int, equal runs of ``outer`` blocks, each with ``inner`` source blocks of its own
    group_lanes : int, groups side by side in a word of source, of results and of weights
    transposed : bool, False reads a weight word as [group][output][input], True as
        [group][input][output]
    i_width, weight_width, acc_width : int, bits
    acc_frac : int; o_format : Format; rounding : Rounding
    bias_width, bias_shift : int, bits; width 0 for no bias
    depth : int, rows in the window
    o_shifts, i_shifts : for each block of results, or of source, the left shift of each lane's
        sums, or products: where weights of different channels have different fraction bits

    Members
    -------
    i, o : streams of lanes
    go : In(1); sample_done : Out(1), in the cycle of a sample's last beat
    beat : Out, the walker's beat, with its place in the weights; weights : In, the word of that
        place ``READ_LATENCY`` cycles later; bias : In, the block's biases at the same time
    noise : In(stream), with stochastic rounding alone; once a transfer is there, one must follow
        each that is taken in the next cycle
    events : Out, see ``rtl/parts/events.py``; clipped : Out(32); clear : In(1)
    """

    def __init__(
        self,
        *,
        rows: Walk,
        cols: Walk,
        outer: int,
        inner: int,
        i_lanes: int,
        o_lanes: int,
        transposed: bool,
        i_width: int,
        weight_width: int,
        acc_width: int,
        acc_frac: int,
        o_format: Format,
        rounding: Rounding,
        depth: int,
        bias_width: int = 0,
        bias_shift: int = 0,
        groups: int = 1,
        group_lanes: int = 1,
        o_shifts: Shifts = (),
        i_shifts: Shifts = (),
    ):
        self.rows, self.cols = rows, cols
        self.outer, self.inner = outer, inner
        self.i_lanes, self.o_lanes = i_lanes, o_lanes
        self.groups, self.group_lanes = groups, group_lanes
        self.terms = i_lanes // group_lanes
        self.transposed = transposed
        self.i_width, self.weight_width = i_width, weight_width
        self.acc_width, self.acc_frac = acc_width, acc_frac
        self.o_format, self.rounding = o_format, rounding
        self.bias_width, self.bias_shift = bias_width, bias_shift
        self.depth = depth
        self.o_shifts, self.i_shifts = o_shifts, i_shifts
        self.walker = Walker(rows=rows, cols=cols, outer=outer, inner=inner, groups=groups)
        chance = {"noise": In(stream.Signature(data.ArrayLayout(NOISE_BITS, o_lanes)))}
        super().__init__(
            {
                **(chance if rounding is Rounding.STOCHASTIC else {}),
                "i": In(stream.Signature(lanes(i_width, i_lanes))),
                "o": Out(stream.Signature(lanes(o_format.width, o_lanes))),
                "go": In(1),
                "sample_done": Out(1),
                "beat": Out(self.walker.layout),
                "weights": In(lanes(weight_width, self.terms * o_lanes)),
                "bias": In(lanes(max(1, bias_width), o_lanes)),
                "events": Out(ENGINE_EVENTS),
                "clipped": Out(32),
                "clear": In(1),
            }
        )

    @property
    def interval(self) -> int:
        """Cycles per sample."""
        return self.walker.beats

    @property
    def latency(self) -> int:
        """Cycles from a result's last beat to ``o.valid``."""
        aligning = 1 if self.o_shifts else 0
        return READ_LATENCY + 1 + tree_latency(self.terms) + 1 + aligning + 2 + 2

    @property
    def fifo_depth(self) -> int:
        """Results in flight at the highest rate, and one more."""
        fewest = min(max(1, p.taps) for p in self.rows.positions) * min(
            max(1, p.taps) for p in self.cols.positions
        )
        return -(-self.latency // (fewest * self.inner)) + 1

    def elaborate(self, platform):
        m = Module()
        m.submodules.walker = walker = self.walker
        m.submodules.window = window = Window(
            lanes(self.i_width, self.i_lanes),
            rows=self.rows.source_size,
            cols=self.cols.source_size,
            blocks=walker.source_blocks,
            depth=self.depth,
        )
        m.submodules.fifo = fifo = Fifo(lanes(self.o_format.width, self.o_lanes), self.fifo_depth)
        m.submodules.requantize = requantize = Requantize(
            acc_width=self.acc_width,
            lanes=self.o_lanes,
            shift=self.acc_frac - self.o_format.frac,
            fmt=self.o_format,
            rounding=self.rounding,
        )
        connect(m, flipped(self.i), window.i)
        connect(m, requantize.o, fifo.i)
        connect(m, fifo.o, flipped(self.o))
        if self.rounding is Rounding.STOCHASTIC:
            connect(m, flipped(self.noise), requantize.noise)
        m.d.comb += [self.clipped.eq(requantize.clipped), requantize.clear.eq(self.clear)]

        issue = self._issue(m, walker, window)
        beat = walker.o.payload
        m.d.comb += self.beat.eq(beat)

        # What the arithmetic must know of a beat, as late as its data.
        stages = READ_LATENCY + 1 + tree_latency(self.terms)
        marks = [issue, issue & beat.first, issue & beat.last, beat.null]
        late = [delay(m, mark, stages, f"late_{n}", resets=True) for n, mark in enumerate(marks)]
        valid, first, last, null = late

        arrived = delay(m, issue, READ_LATENCY, "arrived")
        block = walker.source_block(beat)
        sums = self._multiply(m, window.data, arrived, block)
        outer = delay(m, beat.outer, stages + 1, "outer") if self.o_shifts else None
        bias_late = Signal.like(self.bias)
        m.d.comb += bias_late.eq(delay(m, self.bias, stages - READ_LATENCY, "bias_late"))
        for n, total in enumerate(sums):
            acc = Signal(signed(self.acc_width), name=f"acc_{n}", reset_less=True)
            start = bias_late[n] << self.bias_shift if self.bias_width else 0
            with m.If(valid):
                begin = 0 if self.o_shifts else start
                m.d.sync += acc.eq(Mux(first, begin, acc) + Mux(null, 0, total))
            if self.o_shifts:
                acc = self._align(m, acc, n, start, outer)
            m.d.comb += requantize.i.payload[n].eq(acc)
        if self.o_shifts:
            last = delay(m, last, 1, "ended", resets=True)
        m.d.sync += requantize.i.valid.eq(last)
        return m

    def _align(self, m, acc, lane, bias, block):
        """A finished sum on the finest grid, and its bias, a cycle later than ``acc``."""
        shifts = [word[lane] for word in self.o_shifts]
        bias_held = Signal(signed(self.acc_width), name=f"bias_held_{lane}", reset_less=True)
        total = Signal(signed(self.acc_width), name=f"aligned_{lane}", reset_less=True)
        m.d.sync += [
            bias_held.eq(bias),
            total.eq(aligned(m, acc, block, shifts, f"shifted_{lane}") + bias_held),
        ]
        return total

    def _issue(self, m, walker, window):
        """Take a beat when nothing is missing; credits count results that the FIFO has room for."""
        beat = walker.o.payload
        credit = Signal(range(self.fifo_depth + 1), init=self.fifo_depth)
        issue, allowed, room = Signal(), Signal(), Signal()
        drawn = self.noise.valid if self.rounding is Rounding.STOCHASTIC else 1
        m.d.comb += [
            allowed.eq(self.go | ~beat.sample_first),
            room.eq(((credit != 0) & drawn) | ~beat.first),
            issue.eq(walker.o.valid & window.present & allowed & room),
            walker.o.ready.eq(issue),
            window.need.eq(beat.need),
            window.row.eq(beat.row),
            window.col.eq(beat.col),
            window.block.eq(walker.source_block(beat)),
            window.free.eq(beat.free),
            window.free_enable.eq(issue & beat.row_last),
            window.sample_end.eq(beat.sample_last),
            self.sample_done.eq(issue & beat.sample_last),
            self.events.busy.eq(issue & ~beat.null),
            self.events.starved.eq(~window.present),
            self.events.waiting.eq(window.present & ~allowed),
            self.events.blocked.eq(window.present & allowed & ~room),
        ]
        m.d.sync += credit.eq(credit - (issue & beat.first) + (self.o.valid & self.o.ready))
        return issue

    def _multiply(self, m, source, arrived, block):
        """The exact sums over the ``terms`` products of each output lane's group."""
        sums = []
        if self.i_shifts:
            block = delay(m, block, READ_LATENCY + 1, "source_block")
        own = self.o_lanes // self.group_lanes
        for o in range(self.o_lanes):
            products = []
            first = o // own * self.terms
            for i in range(first, first + self.terms):
                lane = i * own + o % own if self.transposed else o * self.terms + i - first
                product = Signal(
                    signed(self.weight_width + self.i_width),
                    name=f"product_{o}_{i}",
                    reset_less=True,
                )
                with m.If(arrived):
                    m.d.sync += product.eq(self.weights[lane] * source[i])
                if self.i_shifts:
                    shifts = [word[i] for word in self.i_shifts]
                    product = aligned(m, product, block, shifts, f"aligned_{o}_{i}")
                products.append(product)
            sums.append(add_tree(m, products, f"sum_{o}"))
        return sums
