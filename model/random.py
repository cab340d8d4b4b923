"""The one source of random bits: SPECK64/128 in counter mode, keyed by what is rounded instead of
by stream order.

Element ``element`` of tensor ``tensor`` in step ``step`` of a run with seed ``seed`` gets the
64-bit block that the cipher makes of the plaintext words (element, step) under the key words
(``CONSTANT``, tensor, seed's high half, seed's low half). So no folding, board or stall can change
a random bit, and any single one can be recomputed on its own.

A tensor's number is the CRC-32 of its name, such as ``conv1.o_feature``. Noise for rounding is the
lowest ``NOISE_BITS`` bits of a word, or one of its four fields of that size.

A leaf of the standard library. Vectorised form: ``random_words`` in ``model/fixed.py``. RTL:
``rtl/parts/speck.py``. Test: ``tests/test_random.py``.

Source: Beaulieu et al., "The SIMON and SPECK families of lightweight block ciphers" (2013), section
4: ``x = (ror(x, 8) + y) ^ k; y = rol(y, 3) ^ x``, 27 rounds on 32-bit words.
"""

import zlib

from .errors import FormatError

__all__ = [
    "CONSTANT",
    "MASK",
    "NOISE_BITS",
    "NOISE_HALF",
    "ROUNDS",
    "UPDATE_FIELDS",
    "encrypt",
    "expand",
    "random_word",
    "round_keys",
    "tensor_number",
]

CONSTANT = 0x47574156
MASK = 0xFFFFFFFF
ROUNDS = 27
NOISE_BITS = 16
UPDATE_FIELDS = ("gradient", "decay", "momentum", "delta")  # of an update's word, lowest first
NOISE_HALF = 1 << NOISE_BITS - 1  # the noise with which a rounding is to the nearest


def expand(key: tuple[int, int, int, int]) -> tuple[int, ...]:
    """Return the 27 round keys of the key words (k3, k2, k1, k0), most significant first as in the
    paper.
    """
    *rest, word = key
    queue = list(reversed(rest))
    keys = []
    for n in range(ROUNDS):
        keys.append(word)
        left, word = _round(queue[n], word, n)
        queue.append(left)
    return tuple(keys)


def tensor_number(name: str) -> int:
    """Return the number of a tensor's random stream: its name's CRC-32, whatever its layer's place
    in the graph, on a board or in a cluster.
    """
    return zlib.crc32(name.encode())


def encrypt(keys: tuple[int, ...], high: int, low: int) -> tuple[int, int]:
    """Return the ciphertext words of the plaintext words ``high`` and ``low``, 32 bits each."""
    for key in keys:
        high, low = _round(high, low, key)
    return high, low


def round_keys(seed: int, tensor: int) -> tuple[int, ...]:
    """Return the round keys of one tensor of one run.

    Raises
    ------
    FormatError
        ``seed`` outside 0 to 2**64 - 1, or ``tensor`` outside 0 to 2**32 - 1.
    """
    _check("seed", seed, 64)
    _check("tensor", tensor, 32)
    return expand((CONSTANT, tensor, seed >> 32, seed & MASK))


def random_word(seed: int, tensor: int, element: int, step: int) -> int:
    """Return 64 random bits. ``element`` and ``step`` are 0 to 2**32 - 1.

    Raises
    ------
    FormatError
        An argument outside its range.
    """
    _check("element", element, 32)
    _check("step", step, 32)
    high, low = encrypt(round_keys(seed, tensor), element, step)
    return high << 32 | low


def _round(high: int, low: int, key: int) -> tuple[int, int]:
    rotated = (high >> 8 | high << 24) & MASK
    high = (rotated + low & MASK) ^ key
    low = ((low << 3 | low >> 29) & MASK) ^ high
    return high, low


def _check(name: str, value: int, bits: int) -> None:
    if not 0 <= value < 1 << bits:
        raise FormatError(f"{name} must be from 0 to 2**{bits} - 1, not {value}")
