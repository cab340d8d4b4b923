"""Brings values of different fraction bits onto the finest one's grid, by tables of shifts.

Golden: ``model/trained.py``. Test: ``tests/pipeline/test_coarser.py``.
"""

from amaranth.hdl import Module, Signal, Value, signed

__all__ = ["aligned", "look_up"]


def look_up(m: Module, block: Value, values: list[int], name: str) -> Signal:
    """Return the entry of ``values`` for a block; combinational."""
    found = Signal(range(max(values) + 1), name=name)
    with m.Switch(block):
        for n, value in enumerate(values):
            with m.Case(n):
                m.d.comb += found.eq(value)
    return found


def aligned(m: Module, value: Value, block: Value, shifts: list[int], name: str) -> Value:
    """Return signed ``value << shifts[block]``: combinational, a multiplexer of as many inputs as
    there are different shifts.
    """
    if len(set(shifts)) == 1:
        return value << shifts[0]
    result = Signal(signed(len(value) + max(shifts)), name=name)
    with m.Switch(block):
        for shift in sorted(set(shifts)):
            with m.Case(*(n for n, x in enumerate(shifts) if x == shift)):
                m.d.comb += result.eq(value << shift)
    return result
