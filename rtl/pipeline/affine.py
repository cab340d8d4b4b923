"""A fixed factor and offset per channel: the frozen statistics of a BatchNorm2d.

Golden: ``model/pipeline/affine.py``. Test: ``tests/pipeline/test_affine.py``.
"""

from amaranth.hdl import C, Mux, Signal, signed
from amaranth.lib import data, memory

from ...model.formats import Rounding
from ...model.plan import LayerPlan
from ..parts.relay import Mapped, Relay

__all__ = ["Affine"]


class Affine(Relay):
    """Gives ``(x * factors[c] + offsets[c]) * 2**-factor_frac``; errors without the offset.

    Latency 5 cycles: read, product, sum (errors wait), rounding. Each direction counts the channel
    blocks of the words that pass it and reads a word of constants for each from a table of its own.
    Otherwise as ``Relay``.
    """

    def __init__(self, layer: LayerPlan, rounding: Rounding) -> None:
        super().__init__(layer, rounding)

    def map_feature(self, m, line, values, taken):
        layer = self.layer
        constants = {"factor": layer.factors, "offset": layer.offsets}
        results = []
        for n, (x, word) in enumerate(self._read(m, line, values, taken, constants)):
            product = line.after(x * word.factor, f"product{n}")
            offset = line.after(word.offset, f"offset{n}")
            results.append(line.after(product + offset, f"sum{n}"))
        return Mapped(results, cycles=3, frac=layer.i_feature.frac + layer.factor_frac)

    def map_error(self, m, line, values, taken, held):
        layer = self.layer
        results = []
        words = self._read(m, line, values, taken, {"factor": layer.factors})
        for n, (e, word) in enumerate(words):
            results.append(line.after(e * word.factor, f"product{n}", cycles=2))
        return Mapped(results, cycles=3, frac=layer.o_error.frac + layer.factor_frac)

    def _read(self, m, line, values, taken, constants):
        """Pair each value with its channel's constants, a cycle late."""
        layer = self.layer
        word = data.StructLayout({name: _shape(numbers) for name, numbers in constants.items()})
        words = [
            [
                {name: numbers[block * layer.lanes + n] for name, numbers in constants.items()}
                for n in range(layer.lanes)
            ]
            for block in range(layer.i_blocks)
        ]
        shape = data.ArrayLayout(word, layer.lanes)
        if layer.i_blocks == 1:
            row = Signal(shape, name=f"{line.name}_constants")
            m.d.comb += row.eq(C(words[0], shape))
        else:
            table = memory.Memory(shape=shape, depth=layer.i_blocks, init=words)
            m.submodules[f"{line.name}_constants"] = table
            read = table.read_port()
            block = Signal(range(layer.i_blocks), name=f"{line.name}_block")
            with m.If(taken):
                m.d.sync += block.eq(Mux(block == layer.i_blocks - 1, 0, block + 1))
            m.d.comb += [read.en.eq(line.advance), read.addr.eq(block)]
            row = read.data
        return [(line.after(value, f"x{n}"), row[n]) for n, value in enumerate(values)]


def _shape(numbers):
    return signed(max((n if n >= 0 else ~n).bit_length() for n in numbers) + 1)
