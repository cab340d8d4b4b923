"""Dropout, with masks that the cipher draws ahead of the features.

Golden: ``model/pipeline/dropout.py``. Test: ``tests/pipeline/test_dropout.py``.
"""

import math

from amaranth.hdl import C, Cat, Module, Mux, Signal, Value

from ...model.formats import Rounding
from ...model.padding import channel_words
from ...model.plan import LayerPlan
from ...model.relay import KEEP_FRAC, check_relay, keep_factor
from ..parts.noise import SampleNoise
from ..parts.relay import Mapped, Relay

__all__ = ["Dropout"]


class Dropout(Relay):
    """In training, gives 0 or ``x * keep_factor * 2**-14`` as the sample's random bits say, and
    does the same to the error; otherwise everything passes.

    Latency 3 cycles: product, rounding. ``clear`` starts the random stream at sample
    ``first_sample``, an input of 32 bits, and so does reset at sample 0; the first mask is there 29
    cycles later, and from then on features never wait for one. A bit a lane waits for the error.
    The cipher stands still while it is ahead. ``training`` rises with ``clear`` or reset alone.
    Otherwise as ``Relay``.
    """

    def __init__(self, layer: LayerPlan, rounding: Rounding) -> None:
        check_relay(layer)
        self.factor = keep_factor(layer.drop, rounding)
        self._kept = Signal(layer.lanes, name="kept")
        super().__init__(layer, rounding, held=1, inputs={"first_sample": 32})

    def supply(self, m: Module, taken: Signal) -> Value:
        layer = self.layer
        m.submodules.noise = noise = SampleNoise(
            seed=layer.seed,
            tensor=layer.number,
            pixels=math.prod(layer.i_shape[1:]),
            words=channel_words(layer.i_shape[0], layer.i_layout),
        )
        m.d.comb += [
            noise.enable.eq(self.training),
            noise.clear.eq(self.clear),
            noise.first_sample.eq(self.first_sample),
            noise.o.ready.eq(taken),
        ]
        m.d.comb += [self._kept[n].eq(noise.o.payload[n] >= layer.drop) for n in range(layer.lanes)]
        return noise.o.valid | ~self.training

    def map_feature(self, m, line, values, taken):
        products = self._scaled(values, self._kept)
        passed = [Cat(C(0, KEEP_FRAC), x).as_signed() for x in values]
        chosen = [Mux(self.training, y, x) for x, y in zip(passed, products, strict=True)]
        results = [line.after(value, f"product{n}") for n, value in enumerate(chosen)]
        return Mapped(results, cycles=1, frac=self.layer.i_feature.frac + KEEP_FRAC)

    def hold(self, m, values):
        return [self._kept[n] for n in range(self.layer.lanes)]

    def map_error(self, m, line, values, taken, held):
        products = self._scaled(values, held)
        results = [line.after(value, f"product{n}") for n, value in enumerate(products)]
        return Mapped(results, cycles=1, frac=self.layer.o_error.frac + KEEP_FRAC)

    def _scaled(self, values, kept):
        return [Mux(kept[n], value * self.factor, 0) for n, value in enumerate(values)]
