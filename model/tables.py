"""Tables that golden model and hardware share, computed with integers alone so that no platform's
libm can change a bit.

A leaf of the standard library. Used by ``model/pipeline/cross_entropy.py`` and its RTL. Test:
``tests/test_tables.py``, which checks the table against the definition by another way.
"""

from functools import cache
from math import isqrt

__all__ = ["EXP_FRAC", "EXP_INDEX_BITS", "LOG2_E", "LOG2_E_FRAC", "exp_table"]

# log2(e) = LOG2_E * 2**-LOG2_E_FRAC, rounded to the nearest integer.
LOG2_E = 47274
LOG2_E_FRAC = 15

# The table's index is this many fraction bits of a base-2 logarithm.
EXP_INDEX_BITS = 10
# Entries are scaled by 2**EXP_FRAC, so the first one is 1.0.
EXP_FRAC = 16

_GUARD = 128


@cache
def exp_table() -> tuple[int, ...]:
    """Return ``T[f] = round(2**(16 - f/1024))``, half to even, for f from 0 to 1023: 65536 down to
    32790.

    Ten integer square roots give ``2**(-1/1024)`` with 128 guard bits; each power is one more
    product. The error stays below 2**-100, far less than the distance of any entry from a tie.
    """
    root = 1 << (_GUARD - 1)
    for _ in range(EXP_INDEX_BITS):
        root = isqrt(root << _GUARD)
    power = 1 << _GUARD
    table = []
    for _ in range(1 << EXP_INDEX_BITS):
        table.append((power + (1 << (_GUARD - EXP_FRAC - 1))) >> (_GUARD - EXP_FRAC))
        power = power * root >> _GUARD
    return tuple(table)
