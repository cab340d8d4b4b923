"""Huber's loss: the error of a logit is the logit minus its target, limited to ``-delta`` to
``delta``.

Golden: ``model/pipeline/huber.py``. Test: ``tests/pipeline/test_huber.py``.
"""

from amaranth.hdl import Mux, Signal, Value

from ...model.errors import PlanError
from ...model.formats import Rounding
from ...model.plan import LossPlan
from .mse import Mse

__all__ = ["Huber"]


class Huber(Mse):
    """Gives ``requantize(clamp(logit - target, -delta, delta))`` as error, and is an ``Mse``
    otherwise: its members, interval, latency and behaviour under stall.

    Parameters
    ----------
    loss : LossPlan of kind ``huber``
    rounding : Rounding

    Raises
    ------
    PlanError
        When ``delta`` is below 1.
    """

    def __init__(self, loss: LossPlan, rounding: Rounding) -> None:
        if loss.delta < 1:
            raise PlanError(f"loss.delta must be at least 1 step of a logit, not {loss.delta}")
        super().__init__(loss, rounding)

    def _limited(self, difference: Signal) -> Value:
        delta = self.loss.delta
        upper = Mux(difference > delta, delta, difference)
        return Mux(difference < -delta, -delta, upper)
