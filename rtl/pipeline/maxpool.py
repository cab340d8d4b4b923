"""Max-pooling: the first maximum of every window, and the way back for its error.

Golden: ``model/pipeline/maxpool.py``. Test: ``tests/pipeline/test_maxpool.py``.
"""

from amaranth.hdl import Module, Mux, Signal, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from ...model.formats import Rounding
from ...model.plan import LayerPlan
from ...model.pooling import check_maxpool
from ...model.registers import saturating_tensors
from ..parts import lanes
from ..parts.fifo import Fifo
from ..parts.requantize import Requantize
from ..parts.window import READ_LATENCY
from .pool_taps import PoolTaps

__all__ = ["MaxPool"]

FORWARD_LATENCY = READ_LATENCY + 1 + 2  # window, comparison, FIFO
BACKWARD_LATENCY = READ_LATENCY + 1 + 2 + 2  # window, sum, saturation, FIFO


class MaxPool(wiring.Component):
    """Keeps each window's first maximum in (row, column) order, and sends its error back there.

    Forward walks outputs, one existing tap of ``layer.lanes`` channels a cycle, and remembers which
    tap won. Backward walks inputs and adds the errors of the windows that an input won, exactly,
    then saturates. Intervals are ``LayerPlan.fp_interval`` and ``eb_interval``. Padding is never
    walked, so it never wins. Forward also waits while ``buffers.index_words`` words of indices wait
    for their errors. Each direction stalls with its output. Reset starts with a sample's first
    pixel, both ways.

    Parameters
    ----------
    layer : LayerPlan of kind ``maxpool2d``; any stride, padding, dilation and number of outputs
    rounding : Rounding, unused: nothing is rounded

    Members
    -------
    i, o : In, Out; streams of features, ``layer.lanes`` channels a word
    o_error, i_error : In, Out; streams of the errors of output and input, only where
        ``layer.backward``
    training : In(1), low: no indices are kept, as no errors will come; changes only while drained
    saturated : Out, counts of clipped values: ``i_error``, 32 bits, only where ``layer.backward``
    clear : In(1), zeroes them

    Raises
    ------
    PlanError
        For what ``check_maxpool`` of ``model/pooling.py`` refuses.
    """

    def __init__(self, layer: LayerPlan, rounding: Rounding) -> None:
        check_maxpool(layer)
        self.layer = layer
        self.rounding = rounding
        feature = stream.Signature(lanes(layer.o_feature.width, layer.lanes))
        members = {
            "i": In(feature),
            "o": Out(feature),
            "training": In(1),
            "clear": In(1),
        }
        if layer.backward:
            counts = dict.fromkeys(saturating_tensors(layer), 32)
            members["saturated"] = Out(data.StructLayout(counts))
            members["o_error"] = In(stream.Signature(lanes(layer.o_error.width, layer.lanes)))
            members["i_error"] = Out(stream.Signature(lanes(layer.i_error.width, layer.lanes)))
        super().__init__(members)

    @property
    def interval(self) -> int:
        """Cycles per sample of the slower direction."""
        return max(self.layer.fp_interval, self.layer.eb_interval)

    @property
    def latency(self) -> int:
        """Cycles from the last tap of a window to its maximum at ``o``."""
        return FORWARD_LATENCY

    def elaborate(self, platform: object) -> Module:
        m = Module()
        layer = self.layer
        index = data.StructLayout(
            {"row": range(max(2, layer.kernel[0])), "col": range(max(2, layer.kernel[1]))}
        )
        winners = data.ArrayLayout(index, layer.lanes)
        taps = PoolTaps(
            shape=self.i.payload.shape(),
            walks=layer.fp_walks,
            blocks=layer.i_blocks,
            depth=layer.buffers.fp_rows,
            latency=FORWARD_LATENCY,
        )
        m.submodules.taps = taps
        m.submodules.maxima = maxima = Fifo(self.o.payload.shape(), taps.results)
        wiring.connect(m, wiring.flipped(self.i), taps.i)
        wiring.connect(m, maxima.o, wiring.flipped(self.o))

        best = Signal(self.o.payload.shape())
        winner = Signal(winners)
        done = Signal()
        for n in range(layer.lanes):
            with m.If(taps.valid & (taps.first | (taps.data[n] > best[n]))):
                m.d.sync += [
                    best[n].eq(taps.data[n]),
                    winner[n].row.eq(taps.row),
                    winner[n].col.eq(taps.col),
                ]
        m.d.sync += done.eq(taps.valid & taps.last)
        m.d.comb += [
            maxima.i.valid.eq(done),
            maxima.i.payload.eq(best),
            taps.taken.eq(self.o.valid & self.o.ready),
            taps.go.eq(1),
        ]
        if not layer.backward:
            return m

        m.submodules.indices = indices = Fifo(winners, layer.buffers.index_words)
        places = Signal(range(layer.buffers.index_words + 1), init=layer.buffers.index_words)
        m.d.comb += [
            indices.i.valid.eq(done & self.training),
            indices.i.payload.eq(winner),
            taps.go.eq((places != 0) | ~self.training),
        ]
        m.d.sync += places.eq(
            places - (taps.begun & self.training) + (indices.o.valid & indices.o.ready)
        )
        self._elaborate_backward(m, indices.o, index)
        return m

    def _elaborate_backward(self, m: Module, indices, index: data.StructLayout) -> None:
        """Gather, for every input, the errors of the windows whose winner it was."""
        layer = self.layer
        routed = data.StructLayout(
            {
                "error": self.o_error.payload.shape(),
                "winner": data.ArrayLayout(index, layer.lanes),
            }
        )
        m.submodules.error_taps = taps = PoolTaps(
            shape=routed,
            walks=layer.eb_walks,
            blocks=layer.o_blocks,
            depth=layer.buffers.eb_rows,
            latency=BACKWARD_LATENCY,
        )
        most = [max(position.taps for position in walk.positions) for walk in layer.eb_walks]
        width = layer.o_error.width + (most[0] * most[1]).bit_length()
        m.submodules.requantize = requantize = Requantize(
            acc_width=width,
            lanes=layer.lanes,
            shift=0,
            fmt=layer.i_error,
            rounding=Rounding.FLOOR,
        )
        m.submodules.errors = errors = Fifo(self.i_error.payload.shape(), taps.results)
        wiring.connect(m, requantize.o, errors.i)
        wiring.connect(m, errors.o, wiring.flipped(self.i_error))
        m.d.comb += [
            taps.i.valid.eq(self.o_error.valid & indices.valid),
            taps.i.payload.error.eq(self.o_error.payload),
            taps.i.payload.winner.eq(indices.payload),
            self.o_error.ready.eq(taps.i.ready & indices.valid),
            indices.ready.eq(taps.i.ready & self.o_error.valid),
            taps.taken.eq(self.i_error.valid & self.i_error.ready),
            taps.go.eq(1),
            requantize.clear.eq(self.clear),
            self.saturated.i_error.eq(requantize.clipped),
        ]
        for n in range(layer.lanes):
            total = Signal(signed(width), name=f"total_{n}")
            winner = taps.data.winner[n]
            won = (winner.row == taps.row) & (winner.col == taps.col) & ~taps.null
            with m.If(taps.valid):
                m.d.sync += total.eq(Mux(taps.first, 0, total) + Mux(won, taps.data.error[n], 0))
            m.d.comb += requantize.i.payload[n].eq(total)
        m.d.sync += requantize.i.valid.eq(taps.valid & taps.last)
