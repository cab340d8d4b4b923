"""Plumbing that every family of layers shares: rounding, queues, lane converters, forks, windows.

Test: ``tests/parts/``.
"""

from amaranth.hdl import signed
from amaranth.lib import data

__all__ = ["lanes"]


def lanes(width: int, count: int) -> data.ArrayLayout:
    """Return the payload of a transfer: ``count`` two's complement values of ``width`` bits.

    The first channel takes the lowest bits.
    """
    return data.ArrayLayout(signed(width), count)
