"""Average-pooling, plain and adaptive: exact means of windows, and the way back for their errors.

Golden: ``model/pipeline/avgpool.py``. Test: ``tests/pipeline/test_avgpool.py``.
"""

from amaranth.hdl import C, Module, Mux, Signal, signed, unsigned
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from ...model.formats import Format, Rounding
from ...model.geometry import Walk
from ...model.plan import LayerPlan
from ...model.pooling import average_axes, average_divisor, average_widths
from ...model.registers import saturating_tensors
from ..parts import lanes
from ..parts.delay import delay
from ..parts.divide import LATENCY as DIVIDE_LATENCY
from ..parts.divide import Divide
from ..parts.fifo import Fifo
from ..parts.requantize import check_rounding
from ..parts.window import READ_LATENCY
from .pool_taps import PoolTaps

__all__ = ["AvgPool"]

ENGINE_LATENCY = READ_LATENCY + 2 + DIVIDE_LATENCY + 2  # window, term, sum, quotient, FIFO


class AvgPool(wiring.Component):
    """Gives every window's exact mean, rounded once, and shares out its error among its entries.

    Forward walks outputs and backward walks inputs, one existing tap of ``layer.lanes`` channels a
    cycle. Where the windows' divisors differ, taps are multiplied by common / divisor, and every
    sum is divided by their least common multiple. Padding is never walked. Intervals are
    ``LayerPlan.fp_interval`` and ``eb_interval``. Each direction stalls with its output alone.
    Reset starts with a sample's first pixel, both ways.

    Parameters
    ----------
    layer : LayerPlan of kind ``avgpool2d``
    rounding : ``HALF_EVEN``, ``HALF_UP`` or ``FLOOR``

    Members
    -------
    i, o : In, Out; streams of features, ``layer.lanes`` channels a word
    o_error, i_error : In, Out; streams of the errors of output and input, only where
        ``layer.backward``
    training : In(1), not read: nothing waits for errors
    saturated : Out, counts of clipped values: ``i_error``, 32 bits, only where ``layer.backward``
    clear : In(1), zeroes them

    Raises
    ------
    PlanError
        For what ``average_axes`` of ``model/pooling.py`` refuses.
    UnsupportedError
        For any other rounding.
    """

    def __init__(self, layer: LayerPlan, rounding: Rounding) -> None:
        check_rounding(rounding)
        average_axes(layer)
        self.layer = layer
        self.rounding = rounding
        feature = stream.Signature(lanes(layer.o_feature.width, layer.lanes))
        members = {"i": In(feature), "o": Out(feature), "training": In(1), "clear": In(1)}
        if layer.backward:
            counts = dict.fromkeys(saturating_tensors(layer), 32)
            members |= {
                "o_error": In(stream.Signature(lanes(layer.o_error.width, layer.lanes))),
                "i_error": Out(stream.Signature(lanes(layer.i_error.width, layer.lanes))),
                "saturated": Out(data.StructLayout(counts)),
            }
        super().__init__(members)

    @property
    def interval(self) -> int:
        """Cycles per sample of the slower direction."""
        return max(self.layer.fp_interval, self.layer.eb_interval)

    @property
    def latency(self) -> int:
        """Cycles from the last tap of a window to its mean at ``o``, and of an input's error to
        ``i_error``.
        """
        return ENGINE_LATENCY

    def elaborate(self, platform: object) -> Module:
        m = Module()
        layer = self.layer
        forward, backward = average_widths(layer)
        m.submodules.fp = fp = _Means(
            layer,
            self.rounding,
            width=layer.i_feature.width,
            acc_width=forward,
            walks=layer.fp_walks,
            depth=layer.buffers.fp_rows,
            shift=0,
            fmt=layer.o_feature,
        )
        wiring.connect(m, wiring.flipped(self.i), fp.i)
        wiring.connect(m, fp.o, wiring.flipped(self.o))
        if layer.backward:
            m.submodules.eb = eb = _Means(
                layer,
                self.rounding,
                width=layer.o_error.width,
                acc_width=backward,
                walks=layer.eb_walks,
                depth=layer.buffers.eb_rows,
                shift=layer.o_error.frac - layer.i_error.frac,
                fmt=layer.i_error,
                backward=True,
            )
            wiring.connect(m, wiring.flipped(self.o_error), eb.i)
            wiring.connect(m, eb.o, wiring.flipped(self.i_error))
            m.d.comb += [eb.clear.eq(self.clear), self.saturated.i_error.eq(eb.clipped)]
        return m


class _Means(wiring.Component):
    """One direction: sums of weighted taps, divided by the common divisor.

    A tap is weighted by the output that it belongs to: of the position that is walked, or, where
    ``backward``, of the source that it reads.

    Members
    -------
    i, o : In, Out; streams of the map that is walked and of the results
    clipped : Out(32), results that saturated; ``clear`` : In(1), zeroes it
    """

    def __init__(
        self,
        layer: LayerPlan,
        rounding: Rounding,
        *,
        width: int,
        acc_width: int,
        walks: tuple[Walk, Walk],
        depth: int,
        shift: int,
        fmt: Format,
        backward: bool = False,
    ) -> None:
        self.lanes = layer.lanes
        self.width = width
        self.acc_width = acc_width
        self.backward = backward
        self.factors = tuple(axis.factors for axis in average_axes(layer))
        # Both directions pass as many words per pixel.
        self.blocks = layer.i_blocks
        self.taps = PoolTaps(
            shape=lanes(width, layer.lanes),
            walks=walks,
            blocks=self.blocks,
            depth=depth,
            latency=ENGINE_LATENCY,
        )
        self.divide = Divide(
            acc_width=acc_width,
            lanes=layer.lanes,
            divisor=average_divisor(layer),
            shift=shift,
            fmt=fmt,
            rounding=rounding,
        )
        super().__init__(
            {
                "i": In(stream.Signature(lanes(width, layer.lanes))),
                "o": Out(stream.Signature(lanes(fmt.width, layer.lanes))),
                "clipped": Out(32),
                "clear": In(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.taps = taps = self.taps
        m.submodules.divide = divide = self.divide
        m.submodules.results = results = Fifo(self.o.payload.shape(), taps.results)
        wiring.connect(m, wiring.flipped(self.i), taps.i)
        wiring.connect(m, divide.o, results.i)
        wiring.connect(m, results.o, wiring.flipped(self.o))

        factor = self._factor(m)
        first = delay(m, taps.first, 1, "term_first")
        valid = delay(m, taps.valid, 1, "term_valid", resets=True)
        for n in range(self.lanes):
            value = taps.data[n]
            term = Signal(signed(self.width + len(factor)), name=f"term_{n}", reset_less=True)
            total = Signal(signed(self.acc_width), name=f"total_{n}", reset_less=True)
            m.d.sync += term.eq(Mux(taps.null, 0, value if len(factor) == 0 else value * factor))
            with m.If(valid):
                m.d.sync += total.eq(Mux(first, 0, total) + term)
            m.d.comb += divide.i.payload[n].eq(total)
        m.d.comb += [
            # Taps begin only where there is room behind, so the division never stalls.
            divide.i.valid.eq(delay(m, taps.valid & taps.last, 2, "total_valid", resets=True)),
            divide.clear.eq(self.clear),
            self.clipped.eq(divide.clipped),
            taps.taken.eq(self.o.valid & self.o.ready),
            taps.go.eq(1),
        ]
        return m

    def _factor(self, m: Module):
        """Return the unsigned factor of the present tap; no bits where all are 1."""
        beat = self.taps.beat
        place = (beat.row, beat.col) if self.backward else self._position(m)
        parts = [
            self._table(m, name, self.factors[n], place[n])
            for n, name in enumerate(("row", "col"))
            if max(self.factors[n]) > 1
        ]
        if not parts:
            return C(0, 0)
        parts = [delay(m, part, 1, f"part_{n}") for n, part in enumerate(parts)]
        product = parts[0] * parts[1] if len(parts) == 2 else parts[0]
        return delay(m, product, READ_LATENCY - 1, "factor")

    def _table(self, m: Module, name: str, factors: tuple[int, ...], place):
        m.submodules[f"{name}_factors"] = table = memory.Memory(
            shape=unsigned(max(factors).bit_length()), depth=max(2, len(factors)), init=factors
        )
        port = table.read_port(domain="comb")
        m.d.comb += port.addr.eq(place)
        return port.data

    def _position(self, m: Module):
        """Count the row and the column of the result that the present beat belongs to."""
        beat = self.taps.beat
        row, col = (
            Signal(range(max(2, len(axis))), name=f"o_{n}") for n, axis in enumerate(self.factors)
        )
        with m.If(self.taps.issued & beat.last & (beat.outer == self.blocks - 1)):
            m.d.sync += col.eq(Mux(beat.row_last, 0, col + 1))
            with m.If(beat.row_last):
                m.d.sync += row.eq(Mux(beat.sample_last, 0, row + 1))
        return row, col
