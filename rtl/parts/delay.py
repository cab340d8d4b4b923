"""A signal some cycles late.

Test: ``tests/parts/test_adder_tree.py``.
"""

from amaranth.hdl import Module, Signal

__all__ = ["delay"]


def delay(m: Module, value, cycles: int, name: str, *, resets: bool = False):
    """Return ``value`` through ``cycles`` registers; only those of control bits need a reset."""
    for n in range(cycles):
        held = Signal(value.shape(), name=f"{name}_{n}", reset_less=not resets)
        m.d.sync += held.eq(value)
        value = held
    return value
