"""Addition of several features, as residual connections end.

Golden: ``model/pipeline/add.py``. Test: ``tests/pipeline/test_add.py``.
"""

from amaranth.hdl import Module
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from ...model.formats import Rounding
from ...model.plan import LayerPlan
from ...model.registers import saturating_tensors
from ..parts import lanes
from ..parts.fork import Fork
from ..parts.stream_sum import StreamSum, sum_latency

__all__ = ["Add"]


class Add(wiring.Component):
    """Adds one word of each source exactly and requantises; copies errors to the sources.

    One word per cycle each way. Latency forward that of ``StreamSum``, backward 0. A source waits
    in a FIFO of ``buffers.join_words[n]`` words for the others; an error leaves the input when the
    last source has taken it. Each direction stalls with its outputs. Reset drops words on their way
    and clears the count.

    Parameters
    ----------
    layer : LayerPlan of kind ``add``
    rounding : Rounding

    Members
    -------
    i : array of streams of features, one per source; o : stream; ``layer.lanes`` channels a word
    o_error, i_error : In, Out array; streams of errors, one per source that takes one; only where
        ``layer.backward``
    training : In(1), not used
    saturated : Out, clipped values by tensor; ``clear`` : In(1), zeroes them
    """

    def __init__(self, layer: LayerPlan, rounding: Rounding) -> None:
        self.layer = layer
        self.rounding = rounding
        members = {
            "i": In(stream.Signature(lanes(layer.i_feature.width, layer.lanes))).array(
                len(layer.sources)
            ),
            "o": Out(stream.Signature(lanes(layer.o_feature.width, layer.lanes))),
            "training": In(1),
            "clear": In(1),
            "saturated": Out(data.StructLayout(dict.fromkeys(saturating_tensors(layer), 32))),
        }
        if layer.backward:
            error = stream.Signature(lanes(layer.o_error.width, layer.lanes))
            members["o_error"] = In(error)
            members["i_error"] = Out(error).array(sum(layer.source_errors))
        super().__init__(members)

    @property
    def interval(self) -> int:
        """Cycles per sample of either direction."""
        return self.layer.fp_interval

    @property
    def latency(self) -> int:
        """Cycles from the last source's word to the sum at ``o``."""
        return sum_latency(self.layer.buffers.join_words)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        layer = self.layer
        m.submodules.sum = total = StreamSum(
            lanes=layer.lanes,
            source=layer.i_feature,
            result=layer.o_feature,
            rounding=self.rounding,
            depths=layer.buffers.join_words,
        )
        for ours, theirs in zip(self.i, total.i, strict=True):
            wiring.connect(m, wiring.flipped(ours), theirs)
        wiring.connect(m, total.o, wiring.flipped(self.o))
        m.d.comb += [
            total.clear.eq(self.clear),
            self.saturated.o_feature.eq(total.clipped),
        ]
        if layer.backward:
            m.submodules.errors = errors = Fork(self.o_error.payload.shape(), len(self.i_error))
            wiring.connect(m, wiring.flipped(self.o_error), errors.i)
            for ours, theirs in zip(self.i_error, errors.o, strict=True):
                wiring.connect(m, theirs, wiring.flipped(ours))
        return m
