"""Dropout, with masks that the cipher draws ahead of the features.

Golden: ``model/pipeline/dropout.py``. Test: ``tests/pipeline/test_dropout.py``.
"""

import math

from amaranth.hdl import C, Cat, Module, Mux, ResetInserter, Signal, Value

from ...model.formats import Rounding
from ...model.plan import LayerPlan
from ...model.random import round_keys
from ...model.relay import KEEP_FRAC, SHARE_BITS, check_relay, keep_factor
from ..parts.fifo import Fifo
from ..parts.relay import Mapped, Relay
from ..parts.speck import Speck

__all__ = ["Dropout"]

MASKS = 2  # that wait behind the cipher, so that no stall of a feature goes through all its rounds


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
        speck = Speck(round_keys(layer.seed, layer.number), lanes=layer.lanes)
        masks = Fifo(layer.lanes, MASKS)
        m.submodules.speck = ResetInserter(self.clear)(speck)
        m.submodules.masks = ResetInserter(self.clear)(masks)
        size = math.prod(layer.i_shape)
        element, sample = Signal(range(size)), Signal(32)
        with m.If(speck.i.valid & speck.i.ready):
            m.d.sync += element.eq(element + layer.lanes)
            with m.If(element == size - layer.lanes):
                m.d.sync += [element.eq(0), sample.eq(sample + 1)]
        with m.If(self.clear):
            m.d.sync += [element.eq(0), sample.eq(self.first_sample)]
        m.d.comb += [
            speck.i.valid.eq(self.training),
            masks.i.valid.eq(speck.o.valid),
            speck.o.ready.eq(masks.i.ready),
            masks.o.ready.eq(taken),
            self._kept.eq(masks.o.payload),
        ]
        for n in range(layer.lanes):
            drawn = speck.o.payload[n].low[:SHARE_BITS]
            m.d.comb += [
                speck.i.payload[n].high.eq(element + n),
                speck.i.payload[n].low.eq(sample),
                masks.i.payload[n].eq(drawn >= layer.drop),
            ]
        return masks.o.valid | ~self.training

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
