"""Softmax over the channels of each pixel, and the way back for its errors.

Golden: ``model/pipeline/softmax.py``. Test: ``tests/pipeline/test_softmax.py``.
"""

from amaranth.hdl import C, Cat, Module, Mux, Signal, signed, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from ...model.formats import Rounding
from ...model.plan import LayerPlan
from ...model.registers import saturating_tensors
from ...model.relay import check_relay, softmax_widths
from ..parts import lanes
from ..parts.adder_tree import add_tree, tree_latency
from ..parts.delay import delay
from ..parts.fifo import Fifo
from ..parts.probabilities import Probabilities
from ..parts.relay import Line
from ..parts.requantize import Requantize, check_rounding, count_clips, saturate

__all__ = ["Softmax"]


class Softmax(wiring.Component):
    """Gives each channel's probability, and of its error ``p * (error - sum of all p * error)``.

    Forward one division per lane and word at 2 quotient bits a cycle, ``LayerPlan.fp_interval``
    cycles a sample; backward a word a cycle. ``LayerPlan.fp_latency`` and ``eb_latency`` say when
    results come. Probabilities wait for their errors, ``buffers.index_words`` words of them, in
    training alone. A pixel's words are taken before any leaves, both ways; then each direction
    stalls with its output. Reset starts with a sample's first pixel, both ways.

    Parameters
    ----------
    layer : LayerPlan of kind ``softmax``
    rounding : ``HALF_EVEN``, ``HALF_UP`` or ``FLOOR``, of exponents and errors; quotients are
        rounded half to even

    Members
    -------
    i, o : streams of features, ``layer.lanes`` channels a word
    o_error, i_error : In, Out; streams of the errors of output and input, only where
        ``layer.backward``
    training : In(1), low: nothing is held, as no errors will come; changes only while drained
    clear : In(1), zeroes the counters
    saturated : Out, 32-bit clip counts by tensor

    Raises
    ------
    PlanError
        What ``model/relay.py`` refuses.
    UnsupportedError
        For any other rounding.
    """

    def __init__(self, layer: LayerPlan, rounding: Rounding) -> None:
        check_relay(layer)
        check_rounding(rounding)
        self.layer = layer
        self.rounding = rounding
        members = {
            "i": In(stream.Signature(lanes(layer.i_feature.width, layer.lanes))),
            "o": Out(stream.Signature(lanes(layer.o_feature.width, layer.lanes))),
            "training": In(1),
            "clear": In(1),
            "saturated": Out(data.StructLayout(dict.fromkeys(saturating_tensors(layer), 32))),
        }
        if layer.backward:
            members["o_error"] = In(stream.Signature(lanes(layer.o_error.width, layer.lanes)))
            members["i_error"] = Out(stream.Signature(lanes(layer.i_error.width, layer.lanes)))
        super().__init__(members)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        layer = self.layer
        m.submodules.probabilities = source = Probabilities(
            lanes=layer.lanes,
            words=layer.i_blocks,
            feature=layer.i_feature,
            frac=layer.o_feature.frac,
            rounding=self.rounding,
            tag=unsigned(0),
        )
        m.d.comb += [
            source.i.valid.eq(self.i.valid),
            source.i.payload.values.eq(self.i.payload),
            self.i.ready.eq(source.i.ready),
        ]
        room = C(1)
        if layer.backward:
            m.submodules.back = back = _Back(layer, self.rounding)
            wiring.connect(m, wiring.flipped(self.o_error), back.i)
            wiring.connect(m, back.o, wiring.flipped(self.i_error))
            room = back.held.ready | ~self.training
            m.d.comb += [
                back.held.valid.eq(source.o.valid & self.o.ready & self.training),
                back.held.payload.eq(self.o.payload),
                back.clear.eq(self.clear),
                self.saturated.i_error.eq(back.clipped),
            ]
        clips = Signal(layer.lanes)
        for n in range(layer.lanes):
            quotient = Cat(source.o.payload.quotients[n], C(0, 1)).as_signed()
            kept, clipped = saturate(m, quotient, layer.o_feature, name=f"lane_{n}")
            m.d.comb += [self.o.payload[n].eq(kept), clips[n].eq(clipped)]
        m.d.comb += [self.o.valid.eq(source.o.valid & room), source.o.ready.eq(self.o.ready & room)]
        left = self.o.valid & self.o.ready
        count_clips(m, self.saturated.o_feature, clear=self.clear, left=left, clips=clips)
        return m


class _Back(wiring.Component):
    """Errors of the features: each pixel's products and their sum first, then its differences.

    Members
    -------
    held : In(stream of probabilities), in the order of their errors
    i, o : In, Out; streams of the errors of output and input
    clipped : Out(32), results that saturated; ``clear`` : In(1), zeroes it
    """

    def __init__(self, layer: LayerPlan, rounding: Rounding) -> None:
        self.layer = layer
        self.rounding = rounding
        super().__init__(
            {
                "held": In(stream.Signature(lanes(layer.o_feature.width, layer.lanes))),
                "i": In(stream.Signature(lanes(layer.o_error.width, layer.lanes))),
                "o": Out(stream.Signature(lanes(layer.i_error.width, layer.lanes))),
                "clipped": Out(32),
                "clear": In(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        layer = self.layer
        words = layer.i_blocks
        steps = 1 + tree_latency(layer.lanes)  # from a word to its sum of products
        depth = 2 * words + steps + 3  # a pixel that leaves, one that comes, the sum on its way
        pair = data.StructLayout(
            {"error": self.i.payload.shape(), "held": self.held.payload.shape(), "last": 1}
        )
        total_width, product_width = softmax_widths(layer)
        m.submodules.waiting = waiting = Fifo(self.held.payload.shape(), layer.buffers.index_words)
        m.submodules.pairs = pairs = Fifo(pair, depth)
        # A sum is taken with its pixel's last pair, so there are never more sums than last pairs.
        m.submodules.sums = sums = Fifo(signed(total_width), (depth - 1) // words + 1)
        wiring.connect(m, wiring.flipped(self.held), waiting.i)

        index = Signal(range(max(2, words)))
        last = index == words - 1
        taken = self.i.valid & self.i.ready
        m.d.comb += [
            self.i.ready.eq(waiting.o.valid & pairs.i.ready),
            waiting.o.ready.eq(self.i.valid & pairs.i.ready),
            pairs.i.valid.eq(taken),
            pairs.i.payload.error.eq(self.i.payload),
            pairs.i.payload.held.eq(waiting.o.payload),
            pairs.i.payload.last.eq(last),
        ]
        with m.If(taken):
            m.d.sync += index.eq(Mux(last, 0, index + 1))
        terms = []
        for n in range(layer.lanes):
            product = waiting.o.payload[n] * self.i.payload[n]
            term = Signal(signed(len(product)), name=f"term_{n}", reset_less=True)
            m.d.sync += term.eq(product)
            terms.append(term)
        total, here = Signal(signed(total_width)), Signal(signed(total_width))
        ended = delay(m, taken & last, steps, "ended", resets=True)
        m.d.comb += [
            here.eq(total + add_tree(m, terms, "sum")),
            sums.i.valid.eq(ended),
            sums.i.payload.eq(here),
        ]
        with m.If(delay(m, taken, steps, "summed", resets=True)):
            m.d.sync += total.eq(Mux(ended, 0, here))
        self._differences(m, pairs.o, sums.o, product_width)
        return m

    def _differences(self, m, pairs, sums, product_width):
        """Products of probabilities with differences, exact until their one rounding."""
        layer = self.layer
        frac = layer.o_feature.frac
        m.submodules.requantize = requantize = Requantize(
            acc_width=product_width,
            lanes=layer.lanes,
            shift=layer.o_error.frac + 2 * frac - layer.i_error.frac,
            fmt=layer.i_error,
            rounding=self.rounding,
        )
        wiring.connect(m, requantize.o, wiring.flipped(self.o))
        line = Line(m, "difference")
        both = pairs.valid & sums.valid
        valid = line.after(both, "valid", cycles=2, resets=True)
        m.d.comb += [
            line.advance.eq(~valid | requantize.i.ready),
            pairs.ready.eq(line.advance & sums.valid),
            sums.ready.eq(line.advance & pairs.valid & pairs.payload.last),
            requantize.i.valid.eq(valid),
            requantize.clear.eq(self.clear),
            self.clipped.eq(requantize.clipped),
        ]
        for n in range(layer.lanes):
            scaled = Cat(C(0, frac), pairs.payload.error[n]).as_signed()
            difference = line.after(scaled - sums.payload, f"value{n}")
            held = line.after(pairs.payload.held[n], f"held{n}")
            product = line.after(held * difference, f"product{n}")
            m.d.comb += requantize.i.payload[n].eq(product)
