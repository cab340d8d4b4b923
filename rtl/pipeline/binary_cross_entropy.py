"""Binary cross-entropy of logits: the error of a logit is its sigmoid minus its target.

Golden: ``model/pipeline/binary_cross_entropy.py``. Test:
``tests/pipeline/test_binary_cross_entropy.py``.
"""

from amaranth.hdl import Module, Mux, Signal, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from ...model.errors import PlanError
from ...model.formats import Rounding
from ...model.plan import LossPlan
from ...model.tables import EXP_FRAC
from ..parts import lanes
from ..parts.divider import Divider
from ..parts.exponential import TERM_WIDTH, Exponential
from ..parts.fifo import Fifo
from ..parts.requantize import Requantize

__all__ = ["BinaryCrossEntropy"]

ONE = 1 << EXP_FRAC


class BinaryCrossEntropy(wiring.Component):
    """Copies logits to the host and, in training, gives ``sigmoid(logit) - target`` as error.

    With ``e = exp(-|z|)`` the sigmoid is ``1 / (1 + e)`` where z is at least 0, else
    ``e / (1 + e)``: one division per logit at 2 quotient bits a cycle. The interval is
    ``outputs * ceil((error.frac + 1) / 2)`` cycles, ``outputs`` without training; two samples wait
    for the divider before the input stalls. Reset starts with a sample's first logit.

    Parameters
    ----------
    loss : LossPlan of kind ``binary_cross_entropy``
    rounding : Rounding of the exponents and errors

    Members
    -------
    i : In(stream of one ``loss.feature`` value), ``outputs`` logits a sample
    target : In(stream of one ``loss.feature`` value, 0 to 1), as many; only taken in training
    o_logits : Out(stream), the logits, 1 cycle after they came
    o_error : Out(stream of one ``loss.error`` value), only in training
    training : In(1), changes only while drained
    clipped : Out(32), errors that saturated; ``clear`` : In(1), zeroes it
    bad_label : Out(1), high for a cycle when a target was below 0 or above 1
    sample_done : Out(1), high in the cycle after a sample's last logit was taken

    Raises
    ------
    PlanError
        When ``error.frac`` is negative, or ``feature`` does not hold 0 and 1.
    """

    def __init__(self, loss: LossPlan, rounding: Rounding) -> None:
        if loss.error.frac < 0:
            raise PlanError(f"loss.error.frac must be at least 0 bits, not {loss.error.frac}")
        most = loss.feature.width - 2
        if not 0 <= loss.feature.frac <= most:
            raise PlanError(f"loss.feature.frac must be 0 to {most} bits, not {loss.feature.frac}")
        self.loss = loss
        self.rounding = rounding
        feature = stream.Signature(lanes(loss.feature.width, 1))
        error = stream.Signature(lanes(loss.error.width, 1))
        super().__init__(
            {
                "i": In(feature),
                "target": In(feature),
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
        queue = 1 if self.loss.outputs == 1 else 2
        return queue + self.loss.division_cycles + 10

    def elaborate(self, platform: object) -> Module:
        m = Module()
        outputs = self.loss.outputs
        feature = signed(self.loss.feature.width)
        pair = data.StructLayout({"logit": feature, "target": feature})
        m.submodules.pairs = pairs = Fifo(pair, 2 * outputs)
        self._errors(m, pairs.o)

        index = Signal(range(max(2, outputs)))
        last = index == outputs - 1
        logit, target = self.i.payload[0], self.target.payload[0]
        copy_ready = Signal()
        taken = Signal()
        m.d.comb += [
            copy_ready.eq(~self.o_logits.valid | self.o_logits.ready),
            self.i.ready.eq(copy_ready & (~self.training | (self.target.valid & pairs.i.ready))),
            taken.eq(self.i.valid & self.i.ready),
            self.target.ready.eq(taken & self.training),
            pairs.i.valid.eq(taken & self.training),
            pairs.i.payload.logit.eq(logit),
            pairs.i.payload.target.eq(target),
        ]
        with m.If(copy_ready):
            m.d.sync += self.o_logits.valid.eq(taken)
        with m.If(taken):
            m.d.sync += [
                self.o_logits.payload.eq(self.i.payload),
                index.eq(Mux(last, 0, index + 1)),
            ]
        low, high = self.loss.target_range
        m.d.sync += [
            self.sample_done.eq(taken & last),
            self.bad_label.eq(self.target.ready & ((target < low) | (target > high))),
        ]
        return m

    def _errors(self, m: Module, source) -> None:
        """Join exponential, divider and requantisation behind the queue of logits and targets."""
        feature, error = self.loss.feature, self.loss.error
        target = signed(feature.width)
        signs = data.StructLayout({"negative": 1, "target": target})
        m.submodules.exponential = exponential = Exponential(
            width=feature.width, frac=feature.frac, rounding=self.rounding, tag=signs
        )
        m.submodules.divider = divider = Divider(
            width=TERM_WIDTH + 1, part_width=TERM_WIDTH, frac=error.frac, tag=target
        )
        frac = max(error.frac, feature.frac)
        width = max(error.frac + 2, feature.width) + frac - min(error.frac, feature.frac) + 1
        m.submodules.requantize = requantize = Requantize(
            acc_width=width, lanes=1, shift=frac - error.frac, fmt=error, rounding=self.rounding
        )
        difference = Signal(signed(width), reset_less=True)
        difference_valid = Signal()
        logit = source.payload.logit
        power, tag = exponential.o.payload.value, exponential.o.payload.tag
        m.d.comb += [
            exponential.i.valid.eq(source.valid),
            exponential.i.payload.below.eq(Mux(logit < 0, -logit, logit)),
            exponential.i.payload.tag.negative.eq(logit < 0),
            exponential.i.payload.tag.target.eq(source.payload.target),
            source.ready.eq(exponential.i.ready),
            divider.i.valid.eq(exponential.o.valid),
            divider.i.payload.part.eq(Mux(tag.negative, power, ONE)),
            divider.i.payload.whole.eq(power + ONE),
            divider.i.payload.tag.eq(tag.target),
            exponential.o.ready.eq(divider.i.ready),
            divider.o.ready.eq(~difference_valid | requantize.i.ready),
            requantize.i.valid.eq(difference_valid),
            requantize.i.payload[0].eq(difference),
            requantize.clear.eq(self.clear),
            self.clipped.eq(requantize.clipped),
        ]
        sigmoid = divider.o.payload.quotient << (frac - error.frac)
        with m.If(divider.o.ready):
            m.d.sync += [
                difference_valid.eq(divider.o.valid),
                difference.eq(sigmoid - (divider.o.payload.tag << (frac - feature.frac))),
            ]
        wiring.connect(m, requantize.o, wiring.flipped(self.o_error))
