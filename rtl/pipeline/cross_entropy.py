"""Softmax with cross-entropy: the error of a logit is its probability, minus one at the label.

Golden: ``model/pipeline/cross_entropy.py``. Test: ``tests/pipeline/test_cross_entropy.py``.
"""

from itertools import pairwise

from amaranth.hdl import C, Cat, Module, Mux, Signal, signed, unsigned
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from ...model.errors import PlanError
from ...model.formats import Format, Rounding
from ...model.plan import LossPlan
from ...model.tables import EXP_FRAC, EXP_INDEX_BITS, LOG2_E, LOG2_E_FRAC, exp_table
from ..parts import lanes
from ..parts.fifo import Fifo
from ..parts.requantize import round_shift, saturate

__all__ = ["CrossEntropy"]

EXPONENT = Format(15, EXP_INDEX_BITS, signed=False)
TERM_WIDTH = EXP_FRAC + 1


def _marked(shape):
    """A value of one output: is it the label's, is it the sample's last."""
    return data.StructLayout({"value": shape, "match": 1, "last": 1})


class CrossEntropy(wiring.Component):
    """Copies logits to the host and, in training, gives ``softmax(logits) - one_hot(label)``.

    Three stages work on three samples at once: gathering logits and their maximum, exponentials
    and their sum, and one division per output at 2 quotient bits a cycle. The interval is
    ``outputs * ceil((error.frac + 1) / 2)`` cycles, ``outputs`` without training. Errors that are
    not taken stall the input two samples later. Reset starts with a sample's first logit.

    Parameters
    ----------
    loss : LossPlan of kind ``cross_entropy``; ``error.frac`` at least 0
    rounding : Rounding of the exponents

    Members
    -------
    i : In(stream of one ``loss.feature`` value), ``outputs`` logits a sample
    target : In(stream of unsigned(32)), a label a sample; only taken in training, with the sample's
        last logit
    o_logits : Out(stream), the logits, 1 cycle after they came
    o_error : Out(stream of one ``loss.error`` value), only in training
    training : In(1), changes only while drained
    clipped : Out(32), errors that saturated; ``clear`` : In(1), zeroes it
    bad_label : Out(1), high for a cycle when a label was not below ``outputs``: the errors are then
        the probabilities
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
        return self.loss.outputs * _division_cycles(self.loss)

    @property
    def latency(self) -> int:
        """Cycles from a sample's first logit to its first error."""
        return 2 * self.loss.outputs + _division_cycles(self.loss) + 8

    def elaborate(self, platform: object) -> Module:
        m = Module()
        outputs = self.loss.outputs
        feature = signed(self.loss.feature.width)
        m.submodules.logits = logits = Fifo(_marked(feature), 2 * outputs)
        m.submodules.maxima = maxima = Fifo(feature, 2)
        m.submodules.exponentials = exponentials = _Exponentials(self.loss, self.rounding)
        m.submodules.terms = terms = Fifo(_marked(unsigned(TERM_WIDTH)), 2 * outputs)
        m.submodules.sums = sums = Fifo(unsigned(_sum_width(self.loss)), 2)
        m.submodules.quotients = quotients = _Quotients(self.loss)
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
            logits.i.payload.match.eq(self.target.payload == index),
            logits.i.payload.last.eq(last),
            maxima.i.valid.eq(taken & self.training & last),
            maxima.i.payload.eq(maximum),
        ]
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
            self.bad_label.eq(self.target.ready & (self.target.payload >= outputs)),
        ]
        return m


class _Exponentials(wiring.Component):
    """Turns logits into ``2**16 * exp(logit - maximum)``, and gives a sample's sum with its last.

    A pipeline of 5 stages that stands still as a whole when its output waits.
    """

    def __init__(self, loss: LossPlan, rounding: Rounding) -> None:
        self.loss = loss
        self.rounding = rounding
        super().__init__(
            {
                "i": In(stream.Signature(_marked(signed(loss.feature.width)))),
                "i_maximum": In(stream.Signature(signed(loss.feature.width))),
                "o": Out(stream.Signature(_marked(unsigned(TERM_WIDTH)))),
                "o_sum": Out(stream.Signature(unsigned(_sum_width(loss)))),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.table = table = memory.Memory(
            shape=unsigned(TERM_WIDTH), depth=1 << EXP_INDEX_BITS, init=exp_table()
        )
        read = table.read_port()
        stages = 5
        marks = [Signal(3, name=f"marks_{n}") for n in range(stages)]  # valid, match, last
        advance = Signal()
        m.d.comb += [
            self.i.ready.eq(advance & self.i_maximum.valid),
            self.i_maximum.ready.eq(self.i.valid & self.i.ready & self.i.payload.last),
        ]

        width = self.loss.feature.width
        below = Signal(width)
        product = Signal(width + len(C(LOG2_E)))
        exponent = Signal(EXPONENT.width)
        whole = Signal(EXPONENT.width - EXP_INDEX_BITS)
        term = Signal(TERM_WIDTH)
        rounded = round_shift(
            Cat(product, C(0, 1)).as_signed(),
            self.loss.feature.frac + LOG2_E_FRAC - EXPONENT.frac,
            self.rounding,
        )
        saturated, _ = saturate(m, rounded, EXPONENT, name="exponent")
        m.d.comb += [read.addr.eq(exponent[:EXP_INDEX_BITS]), read.en.eq(advance)]
        with m.If(advance):
            m.d.sync += [
                marks[0].eq(
                    Cat(self.i.valid & self.i.ready, self.i.payload.match, self.i.payload.last)
                ),
                [after.eq(mark) for mark, after in pairwise(marks)],
                below.eq(self.i_maximum.payload - self.i.payload.value),
                product.eq(below * LOG2_E),
                exponent.eq(saturated),
                whole.eq(exponent[EXP_INDEX_BITS:]),
                term.eq(read.data >> whole),
            ]

        valid, match, last = marks[-1]
        total = Signal(_sum_width(self.loss))
        sum_here = Signal.like(total)
        m.d.comb += [
            sum_here.eq(total + term),
            advance.eq(~valid | (self.o.ready & (~last | self.o_sum.ready))),
            self.o.valid.eq(valid & (~last | self.o_sum.ready)),
            self.o.payload.value.eq(term),
            self.o.payload.match.eq(match),
            self.o.payload.last.eq(last),
            self.o_sum.valid.eq(valid & last & self.o.ready),
            self.o_sum.payload.eq(sum_here),
        ]
        with m.If(valid & advance):
            m.d.sync += total.eq(Mux(last, 0, sum_here))
        return m


class _Quotients(wiring.Component):
    """Divides each term by its sample's sum, rounds half to even and subtracts one at the label.

    Restoring division, 2 quotient bits a cycle; the next term is taken with a term's last bits.
    """

    def __init__(self, loss: LossPlan) -> None:
        self.loss = loss
        super().__init__(
            {
                "i": In(stream.Signature(_marked(unsigned(TERM_WIDTH)))),
                "i_sum": In(stream.Signature(unsigned(_sum_width(loss)))),
                "o": Out(stream.Signature(lanes(loss.error.width, 1))),
                "clipped": Out(32),
                "clear": In(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        frac = self.loss.error.frac
        cycles = _division_cycles(self.loss)
        divisor = Signal(_sum_width(self.loss))
        rest = Signal.like(divisor)
        quotient = Signal(2 * cycles + 1)
        match = Signal()
        left = Signal(range(cycles + 1))

        one, rest_one = _divide_step(m, rest, divisor, "one")
        two, rest_two = _divide_step(m, rest_one, divisor, "two")
        result_ready = Signal()
        step = Signal()
        load = Signal()
        m.d.comb += [
            step.eq((left != 0) & ((left != 1) | result_ready)),
            load.eq(self.i.valid & self.i_sum.valid & ((left == 0) | (step & (left == 1)))),
            self.i.ready.eq(load),
            self.i_sum.ready.eq(load & self.i.payload.last),
        ]
        with m.If(load):
            equal = self.i.payload.value == self.i_sum.payload
            m.d.sync += [
                divisor.eq(self.i_sum.payload),
                rest.eq(Mux(equal, 0, self.i.payload.value)),
                quotient.eq(equal),
                match.eq(self.i.payload.match),
                left.eq(cycles),
            ]
        with m.Elif(step):
            m.d.sync += [rest.eq(rest_two), quotient.eq(Cat(two, one, quotient)), left.eq(left - 1)]

        exact = Signal(len(quotient) + 1)  # the last bit says that something is left
        exact_match = Signal()
        probability = Signal(signed(frac + 2))
        probability_match = Signal()
        exact_valid = Signal()
        probability_valid = Signal()
        probability_ready = Signal()
        out_ready = Signal()
        m.d.comb += [
            result_ready.eq(~exact_valid | probability_ready),
            probability_ready.eq(~probability_valid | out_ready),
            out_ready.eq(~self.o.valid | self.o.ready),
        ]
        with m.If(result_ready):
            m.d.sync += [
                exact_valid.eq(step & (left == 1)),
                exact.eq(Cat(rest_two.any(), two, one, quotient)),
                exact_match.eq(match),
            ]
        with m.If(probability_ready):
            positive = Cat(exact, C(0, 1)).as_signed()
            shift = 2 * cycles + 1 - frac
            m.d.sync += [
                probability_valid.eq(exact_valid),
                probability.eq(round_shift(positive, shift, Rounding.HALF_EVEN)),
                probability_match.eq(exact_match),
            ]
        difference = probability - Mux(probability_match, 1 << frac, 0)
        error, error_clipped = saturate(m, difference, self.loss.error, name="error")
        clipped_here = Signal()
        with m.If(out_ready):
            m.d.sync += [
                self.o.valid.eq(probability_valid),
                self.o.payload[0].eq(error),
                clipped_here.eq(error_clipped),
            ]
        with m.If(self.clear):
            m.d.sync += self.clipped.eq(0)
        with m.Elif(self.o.valid & self.o.ready):
            m.d.sync += self.clipped.eq(self.clipped + clipped_here)
        return m


def _sum_width(loss: LossPlan) -> int:
    return (loss.outputs << EXP_FRAC).bit_length()


def _division_cycles(loss: LossPlan) -> int:
    """Cycles of one division: ``error.frac`` bits and one more to round by, two a cycle."""
    return (loss.error.frac + 2) // 2


def _divide_step(m, rest, divisor, name):
    """One bit of restoring division: the quotient bit and the new rest."""
    doubled = Cat(C(0, 1), rest)
    difference = Signal(len(divisor) + 2, name=f"difference_{name}")
    after = Signal(len(divisor), name=f"rest_{name}")
    fits = ~difference[-1]
    m.d.comb += [difference.eq(doubled - divisor), after.eq(Mux(fits, difference, doubled))]
    return fits, after
