"""ReLU: passes positive features, and the errors of positive features.

Golden: ``model/pipeline/relu.py``. Test: ``tests/pipeline/test_relu.py``.
"""

from amaranth.hdl import Cat, Module, Mux
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from ...model.formats import Rounding
from ...model.plan import LayerPlan
from ..parts import lanes
from ..parts.fifo import Fifo

__all__ = ["Relu"]


class Relu(wiring.Component):
    """Replaces negative features by 0, and errors of features that were not positive by 0.

    Latency 1 cycle and one word per cycle in both directions; each stalls with its output. Forward
    also stalls while ``buffers.index_words`` words of masks wait for their errors, and backward
    while there is no mask. Reset drops masks and words on their way.

    Parameters
    ----------
    layer : LayerPlan of kind ``relu``
    rounding : Rounding, not used

    Members
    -------
    i, o : streams of features, ``layer.lanes`` channels a word
    o_error, i_error : In, Out; streams of the errors of output and input, only where
        ``layer.backward``
    training : In(1), low: no masks are kept, as no errors will come; changes only while drained
    clear : In(1), not used
    """

    def __init__(self, layer: LayerPlan, rounding: Rounding) -> None:
        self.layer = layer
        feature = stream.Signature(lanes(layer.o_feature.width, layer.lanes))
        members = {"i": In(feature), "o": Out(feature), "training": In(1), "clear": In(1)}
        if layer.backward:
            error = stream.Signature(lanes(layer.o_error.width, layer.lanes))
            members |= {"o_error": In(error), "i_error": Out(error)}
        super().__init__(members)

    @property
    def interval(self) -> int:
        """Cycles per sample of either direction."""
        return self.layer.fp_interval

    @property
    def latency(self) -> int:
        """Cycles from a word in to the same word out."""
        return 1

    def elaborate(self, platform: object) -> Module:
        m = Module()
        positive = Cat(lane > 0 for lane in self._lanes(self.i.payload))
        if not self.layer.backward:
            m.d.comb += self.i.ready.eq(~self.o.valid | self.o.ready)
            self._select(m, self.i, self.o, positive)
            return m

        m.submodules.masks = masks = Fifo(self.layer.lanes, self.layer.buffers.index_words)
        out_ready = ~self.o.valid | self.o.ready
        m.d.comb += [
            self.i.ready.eq(out_ready & (masks.i.ready | ~self.training)),
            masks.i.payload.eq(positive),
            masks.i.valid.eq(self.i.valid & out_ready & self.training),
        ]
        self._select(m, self.i, self.o, positive)

        error_ready = ~self.i_error.valid | self.i_error.ready
        m.d.comb += [
            self.o_error.ready.eq(error_ready & masks.o.valid),
            masks.o.ready.eq(error_ready & self.o_error.valid),
        ]
        self._select(m, self.o_error, self.i_error, masks.o.payload)
        return m

    def _lanes(self, payload):
        return [payload[n] for n in range(self.layer.lanes)]

    def _select(self, m, source, target, keep):
        """Register each word of ``source`` in ``target``, lanes whose ``keep`` bit is low as 0."""
        with m.If(source.valid & source.ready):
            m.d.sync += target.valid.eq(1)
            for n, lane in enumerate(self._lanes(source.payload)):
                m.d.sync += target.payload[n].eq(Mux(keep[n], lane, 0))
        with m.Elif(target.ready):
            m.d.sync += target.valid.eq(0)
