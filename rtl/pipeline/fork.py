"""One feature for several layers, as residual connections and branches begin.

Golden: ``model/pipeline/fork.py``. Test: ``tests/pipeline/test_fork.py``.
"""

from amaranth.hdl import Module
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from ...model.formats import Rounding
from ...model.plan import LayerPlan
from ...model.registers import saturating_tensors
from ..parts import fork as parts
from ..parts import lanes
from ..parts.stream_sum import StreamSum, sum_latency

__all__ = ["Fork"]


class Fork(wiring.Component):
    """Copies features to every consumer; adds the consumers' errors exactly and requantises.

    One word per cycle each way. Latency forward 0, backward that of ``StreamSum``. A feature leaves
    the input when the last consumer has taken it; a consumer's error waits in a FIFO of
    ``buffers.join_words[n]`` words for the others. Each direction stalls with its outputs. Reset
    drops words on their way and clears the count.

    Parameters
    ----------
    layer : LayerPlan of kind ``fork``
    rounding : Rounding

    Members
    -------
    i : stream of features; o : array of streams, one per consumer; ``layer.lanes`` channels a word
    o_error, i_error : In array, Out; streams of errors, only where ``layer.backward``
    training : In(1), not used
    clear : In(1), zeroes ``saturated``
    saturated : Out, clipped values by tensor, only where ``layer.backward``
    """

    def __init__(self, layer: LayerPlan, rounding: Rounding) -> None:
        self.layer = layer
        self.rounding = rounding
        feature = stream.Signature(lanes(layer.o_feature.width, layer.lanes))
        members = {
            "i": In(feature),
            "o": Out(feature).array(layer.fan),
            "training": In(1),
            "clear": In(1),
        }
        if layer.backward:
            members |= {
                "o_error": In(stream.Signature(lanes(layer.o_error.width, layer.lanes))).array(
                    layer.fan
                ),
                "i_error": Out(stream.Signature(lanes(layer.i_error.width, layer.lanes))),
                "saturated": Out(data.StructLayout(dict.fromkeys(saturating_tensors(layer), 32))),
            }
        super().__init__(members)

    @property
    def interval(self) -> int:
        """Cycles per sample of either direction."""
        return self.layer.fp_interval

    @property
    def latency(self) -> int:
        """Cycles from the last consumer's error to the sum at ``i_error``; features take none."""
        return sum_latency(self.layer.buffers.join_words) if self.layer.backward else 0

    def elaborate(self, platform: object) -> Module:
        m = Module()
        layer = self.layer
        m.submodules.features = features = parts.Fork(self.i.payload.shape(), layer.fan)
        wiring.connect(m, wiring.flipped(self.i), features.i)
        for ours, theirs in zip(self.o, features.o, strict=True):
            wiring.connect(m, theirs, wiring.flipped(ours))
        if layer.backward:
            m.submodules.sum = total = StreamSum(
                lanes=layer.lanes,
                source=layer.o_error,
                result=layer.i_error,
                rounding=self.rounding,
                depths=layer.buffers.join_words,
            )
            for ours, theirs in zip(self.o_error, total.i, strict=True):
                wiring.connect(m, wiring.flipped(ours), theirs)
            wiring.connect(m, total.o, wiring.flipped(self.i_error))
            m.d.comb += [
                total.clear.eq(self.clear),
                self.saturated.i_error.eq(total.clipped),
            ]
        return m
