"""Adder tree: the exact sum of many signed signals, with registers between its levels.

Test: ``tests/parts/test_adder_tree.py``.
"""

from amaranth.hdl import Module, Signal, signed

__all__ = ["LEVELS_PER_STAGE", "add_tree", "tree_latency"]

# Two carry chains between registers keep the tree as fast as a DSP48's own register stages on
# 7-series parts.
LEVELS_PER_STAGE = 2


def tree_latency(count: int) -> int:
    """Cycles from the terms to their sum: one per ``LEVELS_PER_STAGE`` levels begun; zero for one
    term.
    """
    levels = (count - 1).bit_length()
    return -(-levels // LEVELS_PER_STAGE)


def add_tree(m: Module, terms: list, name: str):
    """Return the registered sum of ``terms``, ``tree_latency(len(terms))`` cycles late."""
    level = 0
    while len(terms) > 1:
        level += 1
        pairs = [terms[n] + terms[n + 1] for n in range(0, len(terms) - 1, 2)]
        if len(terms) % 2:
            pairs.append(terms[-1])
        if level % LEVELS_PER_STAGE == 0 or len(pairs) == 1:
            pairs = [_register(m, value, f"{name}_{level}_{n}") for n, value in enumerate(pairs)]
        terms = pairs
    return terms[0]


def _register(m, value, name):
    held = Signal(signed(len(value)), name=name, reset_less=True)
    m.d.sync += held.eq(value)
    return held
