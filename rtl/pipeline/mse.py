"""Mean squared error: the error of a logit is the logit minus its target.

Golden: ``model/pipeline/mse.py``. Test: ``tests/pipeline/test_mse.py``.
"""

from amaranth.hdl import Module, Mux, Signal, Value, signed
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from ...model.formats import Rounding
from ...model.plan import LossPlan
from ..parts import lanes
from ..parts.requantize import Requantize

__all__ = ["Mse"]


class Mse(wiring.Component):
    """Copies logits to the host and, in training, gives ``requantize(logit - target)`` as error.

    One logit per cycle: interval ``outputs`` cycles. A logit leaves 1 cycle, its error 3 cycles
    after it came; either stalls the input. Reset starts with a sample's first logit.

    Parameters
    ----------
    loss : LossPlan of kind ``mse``
    rounding : Rounding

    Members
    -------
    i : In(stream of one ``loss.feature`` value), ``outputs`` logits a sample
    target : In(stream of one ``loss.feature`` value), as many; only taken in training
    o_logits : Out(stream), the logits
    o_error : Out(stream of one ``loss.error`` value), only in training
    training : In(1), changes only while drained
    clipped : Out(32), errors that saturated; ``clear`` : In(1), zeroes it
    bad_label : Out(1), always low
    sample_done : Out(1), high in the cycle after a sample's last logit was taken
    """

    def __init__(self, loss: LossPlan, rounding: Rounding) -> None:
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
        """Cycles per sample."""
        return self.loss.outputs

    @property
    def latency(self) -> int:
        """Cycles from a sample's first logit to its first error."""
        return 3

    def elaborate(self, platform: object) -> Module:
        m = Module()
        width = self.loss.feature.width + 1
        m.submodules.requantize = requantize = Requantize(
            acc_width=width,
            lanes=1,
            shift=self.loss.feature.frac - self.loss.error.frac,
            fmt=self.loss.error,
            rounding=self.rounding,
        )
        difference = Signal(signed(width))
        difference_valid = Signal()
        logit_ready = Signal()
        difference_ready = Signal()
        taken = Signal()
        index = Signal(range(max(2, self.loss.outputs)))
        last = index == self.loss.outputs - 1
        m.d.comb += [
            logit_ready.eq(~self.o_logits.valid | self.o_logits.ready),
            difference_ready.eq(~difference_valid | requantize.i.ready),
            self.i.ready.eq(
                logit_ready & (~self.training | (self.target.valid & difference_ready))
            ),
            taken.eq(self.i.valid & self.i.ready),
            self.target.ready.eq(taken & self.training),
        ]
        with m.If(logit_ready):
            m.d.sync += self.o_logits.valid.eq(taken)
        with m.If(difference_ready):
            m.d.sync += difference_valid.eq(taken & self.training)
        with m.If(taken):
            m.d.sync += [
                self.o_logits.payload.eq(self.i.payload),
                difference.eq(self.i.payload[0] - self.target.payload[0]),
                index.eq(Mux(last, 0, index + 1)),
            ]
        m.d.sync += self.sample_done.eq(taken & last)

        m.d.comb += [
            requantize.i.valid.eq(difference_valid),
            requantize.i.payload[0].eq(self._limited(difference)),
            requantize.clear.eq(self.clear),
            self.clipped.eq(requantize.clipped),
        ]
        wiring.connect(m, requantize.o, wiring.flipped(self.o_error))
        return m

    def _limited(self, difference: Signal) -> Value:
        return difference
