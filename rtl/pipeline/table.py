"""Sigmoid, tanh, GELU and SiLU by table.

Golden: ``model/pipeline/table.py``. Test: ``tests/pipeline/test_table.py``.
"""

from amaranth.hdl import C, Cat, Mux, Value, signed, unsigned
from amaranth.lib import data, memory

from ...model.activation_tables import (
    DERIVATIVE,
    ActivationTable,
    derivative_table,
    value_table,
)
from ...model.formats import Rounding
from ...model.plan import LayerPlan
from ...model.relay import check_relay
from ..parts.relay import Mapped, Relay
from ..parts.requantize import requantize

__all__ = ["Table"]


class Table(Relay):
    """Gives a function of ``model/activation_tables.py`` of each feature, and multiplies errors by
    its derivative.

    Latency 6 cycles: position, read, product, sum, rounding; backward read, product, derivative,
    product with the error, rounding. Each table is one memory with a read port a lane. A feature's
    position in the derivative's table waits for the error: at most as many bits as the feature or
    the derivative has. Otherwise as ``Relay``.
    """

    def __init__(self, layer: LayerPlan, rounding: Rounding) -> None:
        check_relay(layer)
        self.value = value_table(layer.kind, layer.i_feature, layer.o_feature.frac)
        self.slope = derivative_table(layer.kind, layer.i_feature)
        super().__init__(layer, rounding, held=unsigned(self.slope.width))

    def map_feature(self, m, line, values, taken):
        table, feature_frac = self.value, self.layer.i_feature.frac
        frac = table.result_frac if table.high is not None else max(table.result_frac, feature_frac)
        positions = [line.after(_position(table, x), f"at{n}") for n, x in enumerate(values)]
        results = []
        for n, (total, above) in enumerate(_look_up(m, line, table, positions)):
            total = _scale(total, frac - table.result_frac)
            if table.high is None:
                x = line.after(values[n], f"x{n}", cycles=3)
                total = Mux(above, _scale(x, frac - feature_frac), total)
            results.append(line.after(total, f"result{n}"))
        return Mapped(results, cycles=4, frac=frac)

    def hold(self, m, values):
        return [_position(self.slope, x) for x in values]

    def map_error(self, m, line, values, taken, held):
        positions = [held[n] for n in range(self.layer.lanes)]
        results = []
        for n, (total, _) in enumerate(_look_up(m, line, self.slope, positions)):
            shift = self.slope.result_frac - DERIVATIVE.frac
            slope, _ = requantize(m, total, shift, DERIVATIVE, self.rounding, name=f"slope{n}")
            error = line.after(values[n], f"e{n}", cycles=3)
            product = error * line.after(slope, f"slope{n}")
            results.append(line.after(product, f"product{n}"))
        return Mapped(results, cycles=4, frac=self.layer.o_error.frac + DERIVATIVE.frac)


def _position(table: ActivationTable, x: Value) -> Value:
    """Return the position of feature ``x``: clamped, counted from 0, ``drop`` bits dropped."""
    offset = (x + table.reach)[table.drop :][: table.width]
    if not table.clamped:
        return offset
    last = C((1 << table.width) - 1, table.width)
    return Mux(x < -table.reach, C(0, table.width), Mux(x >= table.reach, last, offset))


def _look_up(m, line, table: ActivationTable, positions):
    """Return per lane, two cycles late, the table's function with ``result_frac`` fraction bits,
    and whether the position was the last of a clamped table.
    """
    row = data.StructLayout({"base": _shape(table.bases), "rise": _shape(table.rises)})
    rows = [{"base": b, "rise": r} for b, r in zip(table.bases, table.rises, strict=True)]
    store = memory.Memory(shape=row, depth=len(rows), init=rows)
    m.submodules[f"{line.name}_table"] = store
    results = []
    for n, position in enumerate(positions):
        read = store.read_port()
        m.d.comb += [
            read.en.eq(line.advance),
            read.addr.eq(position[table.step_width :]),
        ]
        base = line.after(read.data.base, f"base{n}")
        total = _scale(base, table.step_width)
        if table.step_width:
            step = line.after(position[: table.step_width], f"step{n}")
            total = total + line.after(read.data.rise * step, f"rise{n}")
        above = C(0)
        if table.clamped:
            below = line.after(~position.any(), f"below{n}", cycles=2)
            above = line.after(position.all(), f"above{n}", cycles=2)
            one = 1 << table.result_frac
            limit = Mux(below, table.low * one, (table.high or 0) * one)
            total = Mux(below | above, limit, total)
        results.append((total, above))
    return results


def _scale(value: Value, shift: int) -> Value:
    return Cat(C(0, shift), value).as_signed()


def _shape(numbers):
    return signed(max((n if n >= 0 else ~n).bit_length() for n in numbers) + 1)
