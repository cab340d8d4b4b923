"""Clip (ReLU6, Hardtanh) and leaky ReLU.

Golden: ``model/pipeline/activation.py``. Test: ``tests/pipeline/test_activation.py``.
"""

from amaranth.hdl import C, Cat, Mux

from ...model.formats import Rounding
from ...model.plan import LayerPlan
from ...model.relay import SLOPE_FRAC
from ..parts.relay import Mapped, Relay

__all__ = ["Clip", "LeakyRelu"]


class Clip(Relay):
    """Gives ``min(max(x, lower), upper)``, and passes errors where ``lower < x < upper``.

    Latency 1 cycle; a bit a lane waits for the error. Otherwise as ``Relay``.
    """

    def __init__(self, layer: LayerPlan, rounding: Rounding) -> None:
        super().__init__(layer, rounding, held=1)

    def map_feature(self, m, line, values, taken):
        lower, upper = self.layer.lower, self.layer.upper
        results = [Mux(x < lower, lower, Mux(x > upper, upper, x)) for x in values]
        # Bounds outside the format are never taken, so every result fits it.
        results = [result[: self.layer.o_feature.width].as_signed() for result in results]
        return Mapped([line.after(x, f"x{n}") for n, x in enumerate(results)], cycles=1)

    def hold(self, m, values):
        return [(x > self.layer.lower) & (x < self.layer.upper) for x in values]

    def map_error(self, m, line, values, taken, held):
        results = [Mux(held[n], e, C(0, e.shape())) for n, e in enumerate(values)]
        return Mapped([line.after(e, f"e{n}") for n, e in enumerate(results)], cycles=1)


class LeakyRelu(Relay):
    """Gives ``x`` where it is positive, elsewhere ``x * slope * 2**-16``; errors likewise.

    Latency 3 cycles; a bit a lane waits for the error. Otherwise as ``Relay``.
    """

    def __init__(self, layer: LayerPlan, rounding: Rounding) -> None:
        super().__init__(layer, rounding, held=1)

    def map_feature(self, m, line, values, taken):
        return self._lean(line, values, self.hold(m, values), self.layer.i_feature.frac)

    def hold(self, m, values):
        return [x > 0 for x in values]

    def map_error(self, m, line, values, taken, held):
        return self._lean(line, values, held, self.layer.o_error.frac)

    def _lean(self, line, values, positive, frac):
        products = []
        for n, value in enumerate(values):
            whole = Cat(C(0, SLOPE_FRAC), value).as_signed()
            product = Mux(positive[n], whole, value * self.layer.slope)
            products.append(line.after(product, f"product{n}"))
        return Mapped(products, cycles=1, frac=frac + SLOPE_FRAC)
