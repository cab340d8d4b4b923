"""Softmax of a pixel's channels, which come in words: exponentials, their sum, exact quotients.

Golden: ``probabilities`` of ``model/pipeline/softmax.py``. Test:
``tests/parts/test_probabilities.py``.
"""

from amaranth.hdl import Module, Mux, ShapeLike, Signal, signed, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from ...model.formats import Format, Rounding
from ...model.tables import EXP_FRAC
from .divider import Divider
from .exponential import TERM_WIDTH, Exponential
from .fifo import Fifo

__all__ = ["Probabilities"]


class Probabilities(wiring.Component):
    """Gives ``softmax`` of the ``words * lanes`` values of a pixel, and passes a tag along with
    each word.

    Three stages work on three pixels at once: gathering values and their maximum, exponentials and
    their sum, and a division per lane at 2 quotient bits a cycle. The interval is ``words`` times
    ``division_cycles(frac)``. It takes two pixels without giving any away, and stalls with its
    output. Reset starts with a pixel's first word.

    Parameters
    ----------
    lanes, words : int, values of a word and words of a pixel
    feature : Format of the values
    frac : int, fraction bits of the quotients, at least 0
    rounding : Rounding of the exponents
    tag : shape of the tag

    Members
    -------
    i : In(stream of ``values``, signed, and ``tag``)
    o : Out(stream of ``quotients``, unsigned, from 0 to ``2**frac``, and ``tag``)
    """

    def __init__(
        self,
        *,
        lanes: int,
        words: int,
        feature: Format,
        frac: int,
        rounding: Rounding,
        tag: ShapeLike,
    ) -> None:
        self.lanes = lanes
        self.words = words
        self.feature = feature
        self.frac = frac
        self.rounding = rounding
        self.tag = tag
        super().__init__(
            {
                "i": In(stream.Signature(self._word("values", signed(feature.width)))),
                "o": Out(stream.Signature(self._word("quotients", unsigned(frac + 1)))),
            }
        )

    @property
    def latency(self) -> int:
        """Cycles from a pixel's first word to its first quotients, without stalls."""
        return 2 * self.words + (self.frac + 2) // 2 + 7

    @property
    def _sum_width(self) -> int:
        return (self.words * self.lanes << EXP_FRAC).bit_length()

    def _word(self, name: str, shape: ShapeLike) -> data.StructLayout:
        return data.StructLayout({name: data.ArrayLayout(shape, self.lanes), "tag": self.tag})

    def _marked(self, shape: ShapeLike) -> data.StructLayout:
        """A word, and whether it is its pixel's last."""
        values = data.ArrayLayout(shape, self.lanes)
        return data.StructLayout({"values": values, "last": 1, "tag": self.tag})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        feature = signed(self.feature.width)
        depth = 2 * self.words
        m.submodules.features = features = Fifo(self._marked(feature), depth)
        m.submodules.maxima = maxima = Fifo(feature, 2)
        m.submodules.terms = terms = Fifo(self._marked(unsigned(TERM_WIDTH)), depth)
        m.submodules.sums = sums = Fifo(unsigned(self._sum_width), 2)
        self._gather(m, features.i, maxima.i)
        self._raise(m, features.o, maxima.o, terms.i, sums.i)
        self._divide(m, terms.o, sums.o)
        return m

    def _gather(self, m, features, maxima):
        """Let a pixel's words in, and find their maximum."""
        feature = signed(self.feature.width)
        index = Signal(range(max(2, self.words)))
        before, maximum = Signal(feature, reset_less=True), Signal(feature)
        last = index == self.words - 1
        largest = _largest(m, [self.i.payload.values[n] for n in range(self.lanes)])
        taken = self.i.valid & self.i.ready
        m.d.comb += [
            maximum.eq(Mux((index == 0) | (largest > before), largest, before)),
            self.i.ready.eq(features.ready & (~last | maxima.ready)),
            features.valid.eq(taken),
            features.payload.values.eq(self.i.payload.values),
            features.payload.last.eq(last),
            features.payload.tag.eq(self.i.payload.tag),
            maxima.valid.eq(taken & last),
            maxima.payload.eq(maximum),
        ]
        with m.If(taken):
            m.d.sync += [before.eq(maximum), index.eq(Mux(last, 0, index + 1))]

    def _raise(self, m, features, maxima, terms, sums):
        """Exponentials of all lanes in step, and their sum with a pixel's last word."""
        mark = data.StructLayout({"last": 1, "tag": self.tag})
        units = []
        for n in range(self.lanes):
            unit = Exponential(
                width=self.feature.width,
                frac=self.feature.frac,
                rounding=self.rounding,
                tag=unsigned(0) if n else mark,
            )
            m.submodules[f"exponential_{n}"] = unit
            units.append(unit)
            m.d.comb += [
                unit.i.valid.eq(features.valid & maxima.valid),
                unit.i.payload.below.eq(maxima.payload - features.payload.values[n]),
            ]
        first = units[0]
        passed = first.o.payload.tag
        total = Signal(self._sum_width)
        here = Signal.like(total)
        sum_ready = ~passed.last | sums.ready
        m.d.comb += [
            first.i.payload.tag.last.eq(features.payload.last),
            first.i.payload.tag.tag.eq(features.payload.tag),
            features.ready.eq(first.i.ready & maxima.valid),
            maxima.ready.eq(first.i.ready & features.valid & features.payload.last),
            here.eq(total + sum(unit.o.payload.value for unit in units)),
            terms.valid.eq(first.o.valid & sum_ready),
            terms.payload.last.eq(passed.last),
            terms.payload.tag.eq(passed.tag),
            sums.valid.eq(first.o.valid & passed.last & terms.ready),
            sums.payload.eq(here),
        ]
        for n, unit in enumerate(units):
            m.d.comb += [
                unit.o.ready.eq(terms.ready & sum_ready),
                terms.payload.values[n].eq(unit.o.payload.value),
            ]
        with m.If(first.o.valid & first.o.ready):
            m.d.sync += total.eq(Mux(passed.last, 0, here))

    def _divide(self, m, terms, sums):
        """Quotients of all lanes in step."""
        for n in range(self.lanes):
            divider = Divider(
                width=self._sum_width,
                part_width=TERM_WIDTH,
                frac=self.frac,
                tag=unsigned(0) if n else self.tag,
            )
            m.submodules[f"divider_{n}"] = divider
            m.d.comb += [
                divider.i.valid.eq(terms.valid & sums.valid),
                divider.i.payload.part.eq(terms.payload.values[n]),
                divider.i.payload.whole.eq(sums.payload),
                divider.o.ready.eq(self.o.ready),
                self.o.payload.quotients[n].eq(divider.o.payload.quotient),
            ]
            if n == 0:
                m.d.comb += [
                    divider.i.payload.tag.eq(terms.payload.tag),
                    self.o.payload.tag.eq(divider.o.payload.tag),
                    terms.ready.eq(divider.i.ready & sums.valid),
                    sums.ready.eq(divider.i.ready & terms.valid & terms.payload.last),
                    self.o.valid.eq(divider.o.valid),
                ]


def _largest(m: Module, values: list) -> Signal:
    """The largest of signed signals, by a tree of comparisons."""
    level = 0
    while len(values) > 1:
        pairs = []
        for n in range(0, len(values) - 1, 2):
            larger = Signal(values[n].shape(), name=f"larger_{level}_{n // 2}")
            m.d.comb += larger.eq(Mux(values[n] > values[n + 1], values[n], values[n + 1]))
            pairs.append(larger)
        values = pairs + values[len(values) - len(values) % 2 :]
        level += 1
    return values[0]
