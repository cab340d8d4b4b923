"""Softmax with cross-entropy: the error of a logit is its probability, minus one at the label,
times the label's weight where classes are weighted or a label is ignored.

Golden: ``model/pipeline/cross_entropy.py``. Test: ``tests/pipeline/test_cross_entropy.py``.
"""

from amaranth.hdl import Module, Mux, Signal, unsigned
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from ...model.errors import PlanError
from ...model.formats import Rounding
from ...model.plan import LossPlan
from ..parts import lanes
from ..parts.probabilities import Probabilities
from ..parts.requantize import requantize

__all__ = ["CrossEntropy"]


def _mark(loss):
    """What is known of one output: is it the label's, and the label where it has a weight."""
    label = range(loss.outputs + 1) if loss.weighted else unsigned(0)
    return data.StructLayout({"match": 1, "label": label})


class CrossEntropy(wiring.Component):
    """Copies logits to the host and, in training, gives ``softmax(logits) - one_hot(label)``, times
    the label's weight.

    The interval is that of ``Probabilities``, ``outputs * division_cycles`` cycles, and ``outputs``
    without training. Errors that are not taken stall the input two samples later. Reset starts with
    a sample's first logit.

    Parameters
    ----------
    loss : LossPlan of kind ``cross_entropy``; ``error.frac`` at least 0
    rounding : Rounding of the exponents

    Members
    -------
    i : In(stream of one ``loss.feature`` value), ``outputs`` logits a sample
    target : In(stream of unsigned(32)), a label a sample; only taken in training, with the sample's
        last logit. ``outputs`` is the label that is ignored, where the plan has one
    o_logits : Out(stream), the logits, 1 cycle after they came
    o_error : Out(stream of one ``loss.error`` value), only in training
    training : In(1), changes only while drained
    clipped : Out(32), errors that saturated; ``clear`` : In(1), zeroes it
    bad_label : Out(1), high for a cycle when a label was none: the errors are then the
        probabilities, or zero where labels have weights
    sample_done : Out(1), high in the cycle after a sample's last logit was taken

    Raises
    ------
    PlanError
        When ``error.frac`` is negative.
    """

    def __init__(self, loss: LossPlan, rounding: Rounding) -> None:
        if loss.error.frac < 0:
            raise PlanError(f"loss.error.frac must be at least 0 bits, not {loss.error.frac}")
        self.loss = loss
        self.rounding = rounding
        feature = stream.Signature(lanes(loss.feature.width, 1))
        error = stream.Signature(lanes(loss.error.width, 1))
        super().__init__(
            {
                "i": In(feature),
                "target": In(stream.Signature(unsigned(32))),
                "o_logits": Out(feature),
                "o_error": Out(error),
                "training": In(1),
                "clipped": Out(32),
                "clear": In(1),
                "bad_label": Out(1),
                "sample_done": Out(1),
            }
        )

    @property
    def interval(self) -> int:
        """Cycles per sample in training."""
        return self.loss.outputs * self.loss.division_cycles

    @property
    def latency(self) -> int:
        """Cycles from a sample's first logit to its first error."""
        cycles = self.loss.division_cycles + (10 if self.loss.weighted else 8)
        return 2 * self.loss.outputs + cycles

    def elaborate(self, platform: object) -> Module:
        m = Module()
        outputs = self.loss.outputs
        _, largest = self.loss.target_range
        m.submodules.probabilities = probabilities = Probabilities(
            lanes=1,
            words=outputs,
            feature=self.loss.feature,
            frac=self.loss.probability_frac,
            rounding=self.rounding,
            tag=_mark(self.loss),
        )
        m.submodules.errors = errors = _Errors(
            self.loss, self.rounding, probabilities.o.payload.shape()
        )
        wiring.connect(m, probabilities.o, errors.i)
        wiring.connect(m, errors.o, wiring.flipped(self.o_error))
        m.d.comb += [errors.clear.eq(self.clear), self.clipped.eq(errors.clipped)]

        index = Signal(range(max(2, outputs)))
        last = index == outputs - 1
        copy_ready, taken = Signal(), Signal()
        source = probabilities.i
        m.d.comb += [
            copy_ready.eq(~self.o_logits.valid | self.o_logits.ready),
            self.i.ready.eq(copy_ready & (~self.training | (self.target.valid & source.ready))),
            taken.eq(self.i.valid & self.i.ready),
            self.target.ready.eq(taken & self.training & last),
            source.valid.eq(taken & self.training),
            source.payload.values.eq(self.i.payload),
            source.payload.tag.match.eq(self.target.payload == index),
        ]
        if self.loss.weighted:
            known = self.target.payload < outputs
            m.d.comb += source.payload.tag.label.eq(Mux(known, self.target.payload, outputs))
        with m.If(copy_ready):
            m.d.sync += self.o_logits.valid.eq(taken)
        with m.If(taken):
            m.d.sync += [
                self.o_logits.payload.eq(self.i.payload),
                index.eq(Mux(last, 0, index + 1)),
            ]
        m.d.sync += [
            self.sample_done.eq(taken & last),
            self.bad_label.eq(self.target.ready & (self.target.payload > largest)),
        ]
        return m


class _Errors(wiring.Component):
    """Subtracts one from the label's probability, and multiplies by the label's weight."""

    def __init__(self, loss: LossPlan, rounding: Rounding, source: data.StructLayout) -> None:
        self.loss = loss
        self.rounding = rounding
        super().__init__(
            {
                "i": In(stream.Signature(source)),
                "o": Out(stream.Signature(lanes(loss.error.width, 1))),
                "clipped": Out(32),
                "clear": In(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        loss = self.loss
        one = 1 << loss.probability_frac
        exact = self.i.payload.quotients[0] - Mux(self.i.payload.tag.match, one, 0)
        exact_valid, exact_ready = self.i.valid, self.i.ready
        if loss.weighted:
            exact, exact_valid, exact_ready = self._weigh(m, self.i, exact)
        shift = loss.probability_frac + loss.weight_frac - loss.error.frac
        error, error_clipped = requantize(
            m, exact.as_signed(), shift, loss.error, self.rounding, name="error"
        )
        clipped_here = Signal()
        m.d.comb += exact_ready.eq(~self.o.valid | self.o.ready)
        with m.If(exact_ready):
            m.d.sync += [
                self.o.valid.eq(exact_valid),
                self.o.payload[0].eq(error),
                clipped_here.eq(error_clipped),
            ]
        with m.If(self.clear):
            m.d.sync += self.clipped.eq(0)
        with m.Elif(self.o.valid & self.o.ready):
            m.d.sync += self.clipped.eq(self.clipped + clipped_here)
        return m

    def _weigh(self, m, source, difference):
        """Multiply by the label's weight in two stages: the product, its valid and ready."""
        weights = self.loss.label_weights
        m.submodules.weights = table = memory.Memory(
            shape=unsigned(max(weights).bit_length()), depth=len(weights), init=weights
        )
        read = table.read_port()
        held = Signal(difference.shape(), name="held", reset_less=True)
        held_valid, product_valid, product_ready = Signal(), Signal(), Signal()
        product = Signal((held * read.data).shape(), name="product", reset_less=True)
        held_ready = ~product_valid | product_ready
        m.d.comb += [
            source.ready.eq(~held_valid | held_ready),
            read.addr.eq(source.payload.tag.label),
            read.en.eq(source.ready),
        ]
        with m.If(source.ready):
            m.d.sync += [held_valid.eq(source.valid), held.eq(difference)]
        with m.If(held_ready):
            m.d.sync += [product_valid.eq(held_valid), product.eq(held * read.data)]
        return product, product_valid, product_ready
