"""The exponential of a difference of logits, by a table of powers of two and a shift.

Golden: ``probabilities`` of ``model/pipeline/softmax.py``. Test:
``tests/parts/test_exponential.py``.
"""

from itertools import pairwise

from amaranth.hdl import C, Cat, Module, ShapeLike, Signal, unsigned
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from ...model.formats import Format, Rounding
from ...model.tables import EXP_FRAC, EXP_INDEX_BITS, LOG2_E, LOG2_E_FRAC, exp_table
from .requantize import round_shift, saturate

__all__ = ["TERM_WIDTH", "Exponential"]

EXPONENT = Format(15, EXP_INDEX_BITS, signed=False)
TERM_WIDTH = EXP_FRAC + 1


class Exponential(wiring.Component):
    """Turns ``below`` into ``2**16 * exp(-below)``, and passes ``tag`` along.

    Latency 5 cycles, one transfer per cycle; a pipeline that stands still as a whole when its
    output waits. Reset empties it.

    Parameters
    ----------
    width : int, bits of ``below``; frac : int, its fraction bits
    rounding : Rounding of the exponent, which saturates at 31.999 octaves
    tag : shape of the tag

    Members
    -------
    i : In(stream of ``below``, unsigned, and ``tag``)
    o : Out(stream of ``value``, unsigned, 16 fraction bits, and ``tag``)
    """

    def __init__(self, *, width: int, frac: int, rounding: Rounding, tag: ShapeLike) -> None:
        self.width = width
        self.frac = frac
        self.rounding = rounding
        self.tag = tag
        source = data.StructLayout({"below": width, "tag": tag})
        result = data.StructLayout({"value": TERM_WIDTH, "tag": tag})
        super().__init__({"i": In(stream.Signature(source)), "o": Out(stream.Signature(result))})

    @property
    def latency(self) -> int:
        """Cycles from a transfer in to the same transfer out, without stalls."""
        return 5

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.table = table = memory.Memory(
            shape=unsigned(TERM_WIDTH), depth=1 << EXP_INDEX_BITS, init=exp_table()
        )
        read = table.read_port()
        valids = [Signal(name=f"valid_{n}") for n in range(self.latency)]
        tags = [Signal(self.tag, name=f"tag_{n}", reset_less=True) for n in range(self.latency)]
        advance = Signal()
        m.d.comb += [advance.eq(~valids[-1] | self.o.ready), self.i.ready.eq(advance)]

        below = Signal(self.width, reset_less=True)
        product = Signal(self.width + len(C(LOG2_E)), reset_less=True)
        exponent = Signal(EXPONENT.width, reset_less=True)
        whole = Signal(EXPONENT.width - EXP_INDEX_BITS, reset_less=True)
        term = Signal(TERM_WIDTH, reset_less=True)
        rounded = round_shift(
            Cat(product, C(0, 1)).as_signed(),
            self.frac + LOG2_E_FRAC - EXPONENT.frac,
            self.rounding,
        )
        saturated, _ = saturate(m, rounded, EXPONENT, name="exponent")
        m.d.comb += [read.addr.eq(exponent[:EXP_INDEX_BITS]), read.en.eq(advance)]
        with m.If(advance):
            m.d.sync += [
                valids[0].eq(self.i.valid),
                tags[0].eq(self.i.payload.tag),
                [after.eq(before) for before, after in pairwise(valids)],
                [after.eq(before) for before, after in pairwise(tags)],
                below.eq(self.i.payload.below),
                product.eq(below * LOG2_E),
                exponent.eq(saturated),
                whole.eq(exponent[EXP_INDEX_BITS:]),
                term.eq(read.data >> whole),
            ]
        m.d.comb += [
            self.o.valid.eq(valids[-1]),
            self.o.payload.value.eq(term),
            self.o.payload.tag.eq(tags[-1]),
        ]
        return m
