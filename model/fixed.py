"""Exact fixed-point arithmetic on torch tensors: the one rounding of every result, and how it
saturates.

Every function acts on int64 tensors and, bit-equal, on float64 tensors that hold integers below
2**53 in magnitude (the fast path: scaling by a power of two is exact there, and ``torch.round``
rounds halves to even).

RTL: ``rtl/parts/requantize.py``. Test: ``tests/test_fixed.py``, against a definition in Python
integers.
"""

import torch
from torch import Tensor

from .errors import FormatError, InputError
from .formats import Format, Rounding
from .random import MASK, NOISE_BITS, round_keys

__all__ = [
    "EXACT_BITS",
    "count",
    "dequantize",
    "quantize",
    "random_words",
    "requantize",
    "requantize_masked",
    "saturate",
]

# A signed accumulator of at most this many bits, computed from its worst case, is exact in float64.
EXACT_BITS = 54
INT_BITS = 63  # of an int64, its sign apart


def requantize(
    acc: Tensor, acc_frac: int, fmt: Format, rounding: Rounding, random: Tensor | None = None
) -> tuple[Tensor, int]:
    """Round ``acc * 2**-acc_frac`` to ``fmt``: return the integers, in the dtype of ``acc``, and
    how many were clipped.

    Parameters
    ----------
    acc : int64, or float64 holding integers below 2**53 in magnitude; any shape
    acc_frac : int, fraction bits of ``acc``
    random : int64, 0 to 2**NOISE_BITS - 1, broadcastable; for ``Rounding.STOCHASTIC`` alone: the
        result is ``floor(x + random * 2**-NOISE_BITS)`` of the value x, cut off behind NOISE_BITS
        bits below the result's last

    Raises
    ------
    FormatError
        Another dtype, a format too wide for it, or stochastic rounding without random bits.
    """
    values, clipped = requantize_masked(acc, acc_frac, fmt, rounding, random)
    return values, count(clipped)


def requantize_masked(
    acc: Tensor, acc_frac: int, fmt: Format, rounding: Rounding, random: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """Do as ``requantize``, but return a mask of the clipped values instead of their number; None
    where there are none.
    """
    shift = acc_frac - fmt.frac
    if rounding is Rounding.STOCHASTIC and random is None:
        raise FormatError(f"random must be given to round stochastically to {fmt}")
    if acc.dtype == torch.float64:
        if shift <= 0 or random is None:
            return saturate(_round_float(acc, shift, rounding), fmt)
        values, clipped = requantize_masked(acc.to(torch.int64), acc_frac, fmt, rounding, random)
        return values.to(torch.float64), clipped
    if acc.dtype != torch.int64:
        raise FormatError(f"acc must be int64 or float64, not {acc.dtype}")
    if shift < 0:
        return _shift_left(acc, -shift, fmt)
    return saturate(_round_int(acc, shift, rounding, random), fmt)


def saturate(values: Tensor, fmt: Format) -> tuple[Tensor, Tensor | None]:
    """Clamp integers to ``fmt``: return them and a mask of the clipped ones, None where there are
    none.
    """
    if values.dtype == torch.float64 and fmt.width > EXACT_BITS:
        raise FormatError(f"format must be at most {EXACT_BITS} bits wide for float64, not {fmt}")
    if fmt.max > torch.iinfo(torch.int64).max:
        raise FormatError(f"format must fit a signed 64-bit integer, not {fmt}")
    if not values.numel():
        return values, None
    low, high = torch.aminmax(values)
    if low.item() >= fmt.min and high.item() <= fmt.max:
        return values, None
    return values.clamp(fmt.min, fmt.max), (values < fmt.min) | (values > fmt.max)


def count(mask: Tensor | None) -> int:
    """Return how many entries of a mask are set; a mask of None has none."""
    return 0 if mask is None else int(torch.count_nonzero(mask))


def quantize(
    values: Tensor, fmt: Format, rounding: Rounding = Rounding.HALF_EVEN, name: str = "tensor"
) -> tuple[Tensor, int]:
    """Round real numbers to ``fmt``: return int64 integers and how many were clipped to the ends of
    the format.

    Raises
    ------
    InputError
        A value of ``values`` (called ``name`` in the message) is NaN or infinite.
    FormatError
        Stochastic rounding, which is for results of sums.
    """
    if rounding is Rounding.STOCHASTIC:
        raise FormatError(
            "rounding must be half_even, half_up or floor for real numbers, not stochastic"
        )
    bad = ~torch.isfinite(values)
    if bool(bad.any()):
        where = [int(n) for n in bad.nonzero()[0]]
        raise InputError(
            f"{name} must be finite, not {values[tuple(where)].item()} at {where}; "
            f"{int(bad.sum())} of {values.numel()} values are NaN or infinite"
        )
    rounded = _round_float(values.to(torch.float64), -fmt.frac, rounding, always=True)
    over, under = rounded >= float(fmt.max + 1), rounded < float(fmt.min)
    kept = torch.where(over | under, 0.0, rounded).to(torch.int64)
    return kept.masked_fill(over, fmt.max).masked_fill(under, fmt.min), count(over | under)


def dequantize(values: Tensor, fmt: Format) -> Tensor:
    """Return the real numbers of ``fmt``'s integers as float64, exact below 2**53."""
    return values.to(torch.float64) * 2.0**-fmt.frac


def random_words(
    seed: int, tensor: int, elements: Tensor, steps: Tensor | int
) -> tuple[Tensor, Tensor]:
    """Return the upper and the lower 32 bits of ``random_word`` for each element, int64.

    ``elements`` and ``steps`` are int64 tensors that broadcast, 0 to 2**32 - 1.
    """
    high, low = torch.broadcast_tensors(elements, torch.as_tensor(steps))
    for key in round_keys(seed, tensor):
        rotated = (high >> 8 | high << 24) & MASK
        high = (rotated + low & MASK) ^ key
        low = ((low << 3 | low >> 29) & MASK) ^ high
    return high, low


def _round_float(acc: Tensor, shift: int, rounding: Rounding, always: bool = False) -> Tensor:
    """Return ``acc * 2**-shift`` rounded to integers, exact at every step; left shifts of integers
    need no rounding.
    """
    values = acc * 2.0**-shift if shift else acc.clone()
    if shift <= 0 and not always:
        return values
    if rounding is Rounding.HALF_EVEN:
        return values.round_()
    if rounding is Rounding.FLOOR:
        return values.floor_()
    # floor(x + 1/2), without the sum that float64 cannot always hold.
    return values.mul_(2).floor_().mul_(0.5).ceil_()


def _round_int(acc: Tensor, shift: int, rounding: Rounding, random: Tensor | None) -> Tensor:
    if shift == 0:
        return acc
    if random is not None and rounding is Rounding.STOCHASTIC:
        return _round_by_chance(acc, shift, random)
    if shift > INT_BITS:
        if rounding in (Rounding.HALF_EVEN, Rounding.HALF_UP):
            # The value is at least -1/2 and below 1/2.
            return torch.zeros_like(acc)
        return acc >> INT_BITS
    lower = acc >> shift
    if rounding is Rounding.FLOOR:
        return lower
    lost = acc & ((1 << shift) - 1)
    half = 1 << (shift - 1)
    if rounding is Rounding.HALF_UP:
        return lower + (lost >= half)
    assert rounding is Rounding.HALF_EVEN
    return lower + ((lost > half) | ((lost == half) & (lower & 1 == 1)))


def _round_by_chance(acc: Tensor, shift: int, random: Tensor) -> Tensor:
    """Add noise to the upper NOISE_BITS of the lost bits, and drop the rest."""
    kept = min(shift, NOISE_BITS)
    upper = acc >> min(shift - kept, INT_BITS)
    lost = upper & ((1 << kept) - 1)
    return (upper >> kept) + (lost + (random >> (NOISE_BITS - kept)) >> kept)


def _shift_left(acc: Tensor, shift: int, fmt: Format) -> tuple[Tensor, Tensor | None]:
    """Saturate before shifting, so that no bit is lost on the way."""
    high, low = fmt.max >> shift, -(-fmt.min >> shift)
    over, under = acc > high, acc < low
    kept = acc.masked_fill(over | under, 0) << min(shift, INT_BITS)
    saturate(kept[:0], fmt)
    clipped = over | under
    return kept.masked_fill(over, fmt.max).masked_fill(under, fmt.min), clipped if bool(
        clipped.any()
    ) else None
