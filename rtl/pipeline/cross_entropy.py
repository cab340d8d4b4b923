"""Softmax with cross-entropy: the error of a logit is its probability, minus one at the label,
times the label's weight where classes are weighted or a label is ignored.

Golden: ``model/pipeline/cross_entropy.py``. Test: ``tests/pipeline/test_cross_entropy.py``.
"""

from amaranth.hdl import Module, Mux, Signal, signed, unsigned
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from ...model.errors import PlanError
from ...model.formats import Rounding
from ...model.plan import LossPlan
from ...model.tables import EXP_FRAC
from ..parts import lanes
from ..parts.divider import Divider
from ..parts.exponential import TERM_WIDTH, Exponential
from ..parts.fifo import Fifo
from ..parts.requantize import requantize

__all__ = ["CrossEntropy"]


def _mark(loss):
    """What is known of one output: is it the label's, is it the sample's last, and the label."""
    label = range(loss.outputs + 1) if loss.weighted else unsigned(0)
    return data.StructLayout({"match": 1, "last": 1, "label": label})


def _marked(shape, loss):
    return data.StructLayout({"value": shape, "mark": _mark(loss)})


class CrossEntropy(wiring.Component):
    """Copies logits to the host and, in training, gives ``softmax(logits) - one_hot(label)``, times
    the label's weight.

    Three stages work on three samples at once: gathering logits and their maximum, exponentials
    and their sum, and one division per output at 2 quotient bits a cycle. The interval is
    ``outputs * ceil((probability_frac + 1) / 2)`` cycles, ``outputs`` without training. Errors that
    are not taken stall the input two samples later. Reset starts with a sample's first logit.

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
        feature = signed(self.loss.feature.width)
        m.submodules.logits = logits = Fifo(_marked(feature, self.loss), 2 * outputs)
        m.submodules.maxima = maxima = Fifo(feature, 2)
        m.submodules.exponentials = exponentials = _Exponentials(self.loss, self.rounding)
        m.submodules.terms = terms = Fifo(_marked(unsigned(TERM_WIDTH), self.loss), 2 * outputs)
        m.submodules.sums = sums = Fifo(unsigned(_sum_width(self.loss)), 2)
        m.submodules.quotients = quotients = _Quotients(self.loss, self.rounding)
        wiring.connect(m, logits.o, exponentials.i)
        wiring.connect(m, maxima.o, exponentials.i_maximum)
        wiring.connect(m, exponentials.o, terms.i)
        wiring.connect(m, exponentials.o_sum, sums.i)
        wiring.connect(m, terms.o, quotients.i)
        wiring.connect(m, sums.o, quotients.i_sum)
        wiring.connect(m, quotients.o, wiring.flipped(self.o_error))
        m.d.comb += [quotients.clear.eq(self.clear), self.clipped.eq(quotients.clipped)]

        index = Signal(range(max(2, outputs)))
        last = index == outputs - 1
        logit = self.i.payload[0]
        before = Signal(feature)
        maximum = Signal(feature)
        copy_ready = Signal()
        taken = Signal()
        gather_ready = self.target.valid & logits.i.ready & (~last | maxima.i.ready)
        m.d.comb += [
            maximum.eq(Mux((index == 0) | (logit > before), logit, before)),
            copy_ready.eq(~self.o_logits.valid | self.o_logits.ready),
            self.i.ready.eq(copy_ready & (~self.training | gather_ready)),
            taken.eq(self.i.valid & self.i.ready),
            self.target.ready.eq(taken & self.training & last),
            logits.i.valid.eq(taken & self.training),
            logits.i.payload.value.eq(logit),
            logits.i.payload.mark.match.eq(self.target.payload == index),
            logits.i.payload.mark.last.eq(last),
            maxima.i.valid.eq(taken & self.training & last),
            maxima.i.payload.eq(maximum),
        ]
        if self.loss.weighted:
            known = self.target.payload < outputs
            m.d.comb += logits.i.payload.mark.label.eq(Mux(known, self.target.payload, outputs))
        with m.If(copy_ready):
            m.d.sync += self.o_logits.valid.eq(taken)
        with m.If(taken):
            m.d.sync += [
                self.o_logits.payload.eq(self.i.payload),
                before.eq(maximum),
                index.eq(Mux(last, 0, index + 1)),
            ]
        m.d.sync += [
            self.sample_done.eq(taken & last),
            self.bad_label.eq(self.target.ready & (self.target.payload > largest)),
        ]
        return m


class _Exponentials(wiring.Component):
    """Turns logits into ``2**16 * exp(logit - maximum)``; gives a sample's sum with its last."""

    def __init__(self, loss: LossPlan, rounding: Rounding) -> None:
        self.loss = loss
        self.rounding = rounding
        super().__init__(
            {
                "i": In(stream.Signature(_marked(signed(loss.feature.width), loss))),
                "i_maximum": In(stream.Signature(signed(loss.feature.width))),
                "o": Out(stream.Signature(_marked(unsigned(TERM_WIDTH), loss))),
                "o_sum": Out(stream.Signature(unsigned(_sum_width(loss)))),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        feature = self.loss.feature
        m.submodules.exponential = exponential = Exponential(
            width=feature.width, frac=feature.frac, rounding=self.rounding, tag=_mark(self.loss)
        )
        m.d.comb += [
            exponential.i.valid.eq(self.i.valid & self.i_maximum.valid),
            exponential.i.payload.below.eq(self.i_maximum.payload - self.i.payload.value),
            exponential.i.payload.tag.eq(self.i.payload.mark),
            self.i.ready.eq(exponential.i.ready & self.i_maximum.valid),
            self.i_maximum.ready.eq(exponential.i.ready & self.i.valid & self.i.payload.mark.last),
        ]
        term, mark = exponential.o.payload.value, exponential.o.payload.tag
        total = Signal(_sum_width(self.loss))
        sum_here = Signal.like(total)
        sum_ready = ~mark.last | self.o_sum.ready
        m.d.comb += [
            sum_here.eq(total + term),
            exponential.o.ready.eq(self.o.ready & sum_ready),
            self.o.valid.eq(exponential.o.valid & sum_ready),
            self.o.payload.value.eq(term),
            self.o.payload.mark.eq(mark),
            self.o_sum.valid.eq(exponential.o.valid & mark.last & self.o.ready),
            self.o_sum.payload.eq(sum_here),
        ]
        with m.If(exponential.o.valid & exponential.o.ready):
            m.d.sync += total.eq(Mux(mark.last, 0, sum_here))
        return m


class _Quotients(wiring.Component):
    """Divides each term by its sample's sum, subtracts one at the label and multiplies by its
    weight.
    """

    def __init__(self, loss: LossPlan, rounding: Rounding) -> None:
        self.loss = loss
        self.rounding = rounding
        super().__init__(
            {
                "i": In(stream.Signature(_marked(unsigned(TERM_WIDTH), loss))),
                "i_sum": In(stream.Signature(unsigned(_sum_width(loss)))),
                "o": Out(stream.Signature(lanes(loss.error.width, 1))),
                "clipped": Out(32),
                "clear": In(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        loss = self.loss
        m.submodules.divider = divider = Divider(
            width=_sum_width(loss),
            part_width=TERM_WIDTH,
            frac=loss.probability_frac,
            tag=_mark(loss),
        )
        m.d.comb += [
            divider.i.valid.eq(self.i.valid & self.i_sum.valid),
            divider.i.payload.part.eq(self.i.payload.value),
            divider.i.payload.whole.eq(self.i_sum.payload),
            divider.i.payload.tag.eq(self.i.payload.mark),
            self.i.ready.eq(divider.i.ready & self.i_sum.valid),
            self.i_sum.ready.eq(divider.i.ready & self.i.valid & self.i.payload.mark.last),
        ]
        one = 1 << loss.probability_frac
        exact = divider.o.payload.quotient - Mux(divider.o.payload.tag.match, one, 0)
        exact_valid, exact_ready = divider.o.valid, divider.o.ready
        if loss.weighted:
            exact, exact_valid, exact_ready = self._weigh(m, divider.o, exact)
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


def _sum_width(loss: LossPlan) -> int:
    return (loss.outputs << EXP_FRAC).bit_length()
