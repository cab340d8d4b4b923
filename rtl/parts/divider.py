"""An exact division of a part by its whole, rounded half to even.

Golden: ``probabilities`` of ``model/pipeline/softmax.py``. Test:
``tests/parts/test_divider.py``.
"""

from amaranth.hdl import C, Cat, Module, Mux, ShapeLike, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from ...model.formats import Rounding
from .requantize import round_shift

__all__ = ["Divider"]


class Divider(wiring.Component):
    """Gives ``round(part * 2**frac / whole)``, halves to even, for a part of 0 to ``whole``.

    Restoring division, 2 quotient bits a cycle: interval ``ceil((frac + 1) / 2)`` cycles, latency 2
    more; the next part is taken with a part's last bits. Stalls with its output, holding up to
    three results. Reset empties it.

    Parameters
    ----------
    width : int, bits of the whole; part_width : int, bits of the part, at most ``width``
    frac : int, fraction bits of the quotient, at least 0
    tag : shape of what passes along

    Members
    -------
    i : In(stream of ``part``, ``whole`` and ``tag``), ``whole`` above 0
    o : Out(stream of ``quotient``, unsigned, and ``tag``)
    """

    def __init__(self, *, width: int, part_width: int, frac: int, tag: ShapeLike) -> None:
        self.width = width
        self.part_width = part_width
        self.frac = frac
        self.tag = tag
        source = data.StructLayout({"part": part_width, "whole": width, "tag": tag})
        result = data.StructLayout({"quotient": frac + 1, "tag": tag})
        super().__init__({"i": In(stream.Signature(source)), "o": Out(stream.Signature(result))})

    @property
    def interval(self) -> int:
        """Cycles of one division."""
        return (self.frac + 2) // 2

    @property
    def latency(self) -> int:
        """Cycles from a part in to its quotient out, without stalls."""
        return self.interval + 2

    def elaborate(self, platform: object) -> Module:
        m = Module()
        cycles = self.interval
        divisor = Signal(self.width, reset_less=True)
        rest = Signal.like(divisor)
        quotient = Signal(2 * cycles + 1, reset_less=True)
        tag = Signal(self.tag, reset_less=True)
        left = Signal(range(cycles + 1))

        one, rest_one = _step(m, rest, divisor, "one")
        two, rest_two = _step(m, rest_one, divisor, "two")
        result_ready = Signal()
        step = Signal()
        m.d.comb += [
            step.eq((left != 0) & ((left != 1) | result_ready)),
            self.i.ready.eq((left == 0) | (step & (left == 1))),
        ]
        with m.If(self.i.valid & self.i.ready):
            equal = self.i.payload.part == self.i.payload.whole
            m.d.sync += [
                divisor.eq(self.i.payload.whole),
                rest.eq(Mux(equal, 0, self.i.payload.part)),
                quotient.eq(equal),
                tag.eq(self.i.payload.tag),
                left.eq(cycles),
            ]
        with m.Elif(step):
            m.d.sync += [rest.eq(rest_two), quotient.eq(Cat(two, one, quotient)), left.eq(left - 1)]

        exact = Signal(len(quotient) + 1, reset_less=True)  # its last bit: something is left
        exact_tag = Signal(self.tag, reset_less=True)
        exact_valid = Signal()
        out_ready = Signal()
        m.d.comb += [
            result_ready.eq(~exact_valid | out_ready),
            out_ready.eq(~self.o.valid | self.o.ready),
        ]
        with m.If(result_ready):
            m.d.sync += [
                exact_valid.eq(step & (left == 1)),
                exact.eq(Cat(rest_two.any(), two, one, quotient)),
                exact_tag.eq(tag),
            ]
        with m.If(out_ready):
            positive = Cat(exact, C(0, 1)).as_signed()
            shift = 2 * cycles + 1 - self.frac
            m.d.sync += [
                self.o.valid.eq(exact_valid),
                self.o.payload.quotient.eq(round_shift(positive, shift, Rounding.HALF_EVEN)),
                self.o.payload.tag.eq(exact_tag),
            ]
        return m


def _step(m: Module, rest: Value, divisor: Signal, name: str) -> tuple[Value, Signal]:
    """One bit of restoring division: the quotient bit and the new rest."""
    doubled = Cat(C(0, 1), rest)
    difference = Signal(len(divisor) + 2, name=f"difference_{name}")
    after = Signal(len(divisor), name=f"rest_{name}")
    fits = ~difference[-1]
    m.d.comb += [difference.eq(doubled - divisor), after.eq(Mux(fits, difference, doubled))]
    return fits, after
