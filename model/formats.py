"""Fixed-point formats and rounding modes: the meaning of every integer that gradweave moves.

A leaf of the standard library alone, shared by golden model, RTL, planner and drivers.

Golden: ``model/fixed.py`` (arithmetic on tensors). RTL: ``rtl/parts/requantize.py``.
Test: ``tests/test_formats.py``.
"""

import math
from dataclasses import dataclass
from enum import Enum

from .errors import FormatError

__all__ = ["Format", "Rounding", "accumulator_width", "division_cycles", "fit_format"]

MAX_WIDTH = 64


class Rounding(str, Enum):
    """How a requantisation picks between the two neighbours of a value that it cannot keep.

    ``HALF_EVEN`` takes the nearest, ties to the even one; ``HALF_UP`` the nearest, ties towards
    +infinity; ``FLOOR`` the lower one; ``STOCHASTIC`` the upper one with a probability equal to the
    lost fraction.
    """

    HALF_EVEN = "half_even"
    HALF_UP = "half_up"
    FLOOR = "floor"
    STOCHASTIC = "stochastic"

    @property
    def settled(self) -> "Rounding":
        """What rounds where nothing is left to chance: ``HALF_EVEN`` for ``STOCHASTIC``.

        By chance are rounded results and errors of layers with weights, and each step of their
        update; everything else, working weights too, is settled.
        """
        return Rounding.HALF_EVEN if self is Rounding.STOCHASTIC else self


@dataclass(frozen=True)
class Format:
    """A two's complement fixed-point format: the value of an integer ``n`` is ``n * 2**-frac``.

    Parameters
    ----------
    width : int, bits, 1 to 64 (2 to 64 when signed)
    frac : int, bits right of the binary point; may be negative or exceed ``width``
    signed : bool
    """

    width: int
    frac: int
    signed: bool = True

    def __post_init__(self) -> None:
        least = 2 if self.signed else 1
        if not isinstance(self.width, int) or not least <= self.width <= MAX_WIDTH:
            raise FormatError(
                f"width must be an integer from {least} to {MAX_WIDTH} bits, not {self.width!r}"
            )
        if not isinstance(self.frac, int):
            raise FormatError(f"frac must be an integer number of bits, not {self.frac!r}")

    @property
    def min(self) -> int:
        """The smallest integer of the format."""
        return -(1 << (self.width - 1)) if self.signed else 0

    @property
    def max(self) -> int:
        """The largest integer of the format."""
        return (1 << (self.width - 1)) - 1 if self.signed else (1 << self.width) - 1

    @property
    def step(self) -> float:
        """The value of one unit in the last place."""
        return 2.0**-self.frac

    def __str__(self) -> str:
        """Such as ``s16.12``: signed, 16 bits, 12 of them fraction bits."""
        return f"{'s' if self.signed else 'u'}{self.width}.{self.frac}"


def accumulator_width(width_a: int, width_b: int, terms: int) -> int:
    """Bits that hold any sum of ``terms`` products of a ``width_a``-bit and a ``width_b``-bit
    signed integer.

    The largest product is ``2**(width_a + width_b - 2)`` (both at their minimum), so the sum needs
    ``width_a + width_b - 1 + ceil(log2(terms))`` bits and, at an exact power of two, never
    overflows because two's complement is wide enough for ``terms * 2**(width_a + width_b - 2)``
    with one more bit.
    """
    worst = terms << (width_a + width_b - 2)
    return worst.bit_length() + 1


def division_cycles(frac: int) -> int:
    """Cycles in which ``rtl/parts/divider.py`` finds a quotient of 0 to 1 with ``frac`` fraction
    bits: two bits a cycle, one of them for the rounding.
    """
    return (frac + 2) // 2


def fit_format(largest: float, width: int, headroom_bits: int = 0) -> Format:
    """Return the signed format of ``width`` bits with the most fraction bits that holds
    ``largest * 2**headroom_bits``.

    ``largest`` is a non-negative finite magnitude; zero gives ``width - 1`` fraction bits.
    """
    if not math.isfinite(largest) or largest < 0:
        raise FormatError(f"largest must be finite and not negative, not {largest!r}")
    if largest == 0:
        return Format(width, width - 1)
    integer_bits = math.frexp(largest)[1] + headroom_bits
    return Format(width, width - 1 - integer_bits)
