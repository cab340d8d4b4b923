"""Concatenation of channels, as branches end.

Golden: ``model/pipeline/concat.py``. Test: ``tests/pipeline/test_concat.py``.
"""

from amaranth.hdl import Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from ...model.errors import PlanError
from ...model.formats import Rounding
from ...model.plan import LayerPlan
from ..parts import lanes
from ..parts.fifo import Fifo, fifo_latency

__all__ = ["Concat"]


class Concat(wiring.Component):
    """Passes, pixel by pixel, ``parts[n] / lanes`` words of each source; deals errors out alike.

    One word per cycle each way. Latency forward that of a source's FIFO, backward 0. A source waits
    in a FIFO of ``buffers.join_words[n]`` words for its turn. Each direction stalls with its output
    whose turn it is; errors of a source that takes none are dropped. Reset drops words on their way
    and starts with a pixel's first word, both ways.

    Parameters
    ----------
    layer : LayerPlan of kind ``concat``
    rounding : Rounding, not used

    Members
    -------
    i : array of streams of features, one per source; o : stream; ``layer.lanes`` channels a word
    o_error, i_error : In, Out array; streams of errors, one per source that takes one; only where
        ``layer.backward``
    training, clear : In(1), not used

    Raises
    ------
    PlanError
        When ``lanes`` do not divide every part.
    """

    def __init__(self, layer: LayerPlan, rounding: Rounding) -> None:
        for part in layer.parts:
            if part % layer.lanes:
                raise PlanError(
                    f"{layer.name}: lanes must divide every part of {list(layer.parts)} channels, "
                    f"not {layer.lanes}"
                )
        self.layer = layer
        feature = stream.Signature(lanes(layer.o_feature.width, layer.lanes))
        members = {
            "i": In(feature).array(len(layer.sources)),
            "o": Out(feature),
            "training": In(1),
            "clear": In(1),
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
        """Most cycles from a word in to the same word out, when it is its turn."""
        return max(fifo_latency(depth) for depth in self.layer.buffers.join_words)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        turn = self._turns(m, "feature", self.o.valid & self.o.ready)
        with m.Switch(turn):
            for n, depth in enumerate(self.layer.buffers.join_words):
                m.submodules[f"queue_{n}"] = queue = Fifo(self.o.payload.shape(), depth)
                wiring.connect(m, wiring.flipped(self.i[n]), queue.i)
                with m.Case(n):
                    m.d.comb += [
                        self.o.valid.eq(queue.o.valid),
                        self.o.payload.eq(queue.o.payload),
                        queue.o.ready.eq(self.o.ready),
                    ]
        if not self.layer.backward:
            return m

        turn = self._turns(m, "error", self.o_error.valid & self.o_error.ready)
        takers = iter(self.i_error)
        with m.Switch(turn):
            for n, takes in enumerate(self.layer.source_errors):
                with m.Case(n):
                    if not takes:
                        m.d.comb += self.o_error.ready.eq(1)
                        continue
                    taker = next(takers)
                    m.d.comb += [
                        taker.valid.eq(self.o_error.valid),
                        self.o_error.ready.eq(taker.ready),
                    ]
        m.d.comb += [taker.payload.eq(self.o_error.payload) for taker in self.i_error]
        return m

    def _turns(self, m: Module, name: str, moved) -> Signal:
        """The source whose word is next; ``moved`` says that one passes."""
        words = [part // self.layer.lanes for part in self.layer.parts]
        turn = Signal(range(len(words)), name=f"{name}_turn")
        word = Signal(range(max(2, *words)), name=f"{name}_word")
        with m.If(moved):
            m.d.sync += word.eq(word + 1)
            with m.Switch(turn):
                for n, count in enumerate(words):
                    with m.Case(n), m.If(word == count - 1):
                        m.d.sync += [turn.eq((n + 1) % len(words)), word.eq(0)]
        return turn
