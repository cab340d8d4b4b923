"""Divide: exact rounded quotients by a constant, from one multiplication by a reciprocal.

Golden: ``rounded_quotient`` of ``model/pipeline/avgpool.py``. Test: ``tests/parts/test_divide.py``.
"""

from amaranth.hdl import C, Module, Signal, signed
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from ...model.formats import Format, Rounding
from . import lanes as lane_layout
from .requantize import check_rounding, count_clips, saturate

__all__ = ["Divide", "reciprocal"]

LATENCY = 5  # offset, product and its second register, rounding, saturation


def reciprocal(divisor: int, largest: int) -> tuple[int, int]:
    """Return ``(factor, bits)`` by which ``n * factor`` divides every ``n``, 0 to ``largest``.

    The upper bits, ``n * factor >> bits``, are ``floor(n / divisor)``; the lower ``bits`` are below
    ``factor`` exactly where ``divisor`` divides ``n``. ``bits`` is the least for which the proof
    holds. With ``factor = ceil(2**bits / divisor)`` and ``excess = factor*divisor - 2**bits``, an
    ``n = q*divisor + r`` gives ``n*factor = q*2**bits + (q*excess + r*factor)``. If
    ``largest * excess < 2**bits``, then ``q*excess + r*factor`` is
    ``(r*2**bits + n*excess) / divisor < (r + 1) * 2**bits / divisor <= 2**bits``, so ``q`` is the
    upper part; and ``q*excess <= n*excess / divisor < 2**bits / divisor <= factor``, so the lower
    part is below ``factor`` exactly where ``r`` is 0.

    Parameters
    ----------
    divisor : int, at least 1
    largest : int, at least 0

    Source
    ------
    Granlund and Montgomery, Division by Invariant Integers using Multiplication (1994), section 4;
    Lemire, Kaser and Kurz, Faster Remainder by Direct Computation (2019), section 3.
    """
    bits = 0
    while True:
        factor = -(-(1 << bits) // divisor)
        if largest * (factor * divisor - (1 << bits)) < 1 << bits:
            return factor, bits
        bits += 1


class Divide(wiring.Component):
    """Divides every lane of a stream, rounds once, saturates, and counts the lanes that it clips.

    A result is ``i * 2**-shift / divisor``, rounded exactly. Latency 5 cycles, one transfer per
    cycle; stalls with its output, holding up to five transfers. Reset empties the pipeline and
    clears the count.

    Parameters
    ----------
    acc_width : int, bits of a signed input lane
    lanes : int, values per transfer
    divisor : int, at least 1
    shift : int, bits; fraction bits of the input minus ``fmt.frac``, may be negative
    fmt : Format, signed
    rounding : ``HALF_EVEN``, ``HALF_UP`` or ``FLOOR``

    Members
    -------
    i : In(stream of ``acc_width``-bit lanes)
    o : Out(stream of ``fmt.width``-bit lanes)
    clipped : Out(32), clipped values that have left through ``o`` since reset or ``clear``; stays
        at its top
    clear : In(1), zeroes ``clipped``

    Raises
    ------
    UnsupportedError
        For any other rounding mode.
    ValueError
        When ``divisor`` is not a positive integer.
    """

    def __init__(
        self,
        *,
        acc_width: int,
        lanes: int,
        divisor: int,
        shift: int = 0,
        fmt: Format,
        rounding: Rounding,
    ) -> None:
        check_rounding(rounding)
        if not isinstance(divisor, int) or divisor < 1:
            raise ValueError(f"divisor must be an integer of at least 1, not {divisor!r}")
        self.acc_width = acc_width
        self.lanes = lanes
        self.divisor = divisor
        self.shift = shift
        self.fmt = fmt
        self.rounding = rounding

        # Powers of two go into shifts: i * 2**left / (odd * 2**right), one of the shifts being 0.
        twos = (divisor & -divisor).bit_length() - 1
        self._odd = divisor >> twos
        self._left, self._right = max(0, -shift - twos), max(0, shift + twos)
        whole = self._odd << self._right
        nearest = rounding is not Rounding.FLOOR
        # An even multiple of the divisor makes numerators positive and keeps quotients' parity.
        least = 1 << (acc_width - 1 + self._left)
        self._bias_log2 = max(1, (-(-least // whole) - 1).bit_length())
        # An odd divisor has no halves, so adding its lower half rounds to the nearest, too.
        self._offset = (whole << self._bias_log2) + (whole // 2 if nearest else 0)
        self._largest = (least - 1 + self._offset) >> self._right
        self._factor, self._bits = reciprocal(self._odd, self._largest)
        super().__init__(
            {
                "i": In(stream.Signature(lane_layout(acc_width, lanes))),
                "o": Out(stream.Signature(lane_layout(fmt.width, lanes))),
                "clipped": Out(32),
                "clear": In(1),
            }
        )

    @property
    def latency(self) -> int:
        """Cycles from a transfer in to the same transfer out, without stalls."""
        return LATENCY

    @property
    def product_widths(self) -> tuple[int, int]:
        """Bits of numerator and factor of a lane's multiplication, both unsigned."""
        return self._largest.bit_length(), self._factor.bit_length()

    def elaborate(self, platform: object) -> Module:
        m = Module()
        advance = Signal()
        m.d.comb += [advance.eq(~self.o.valid | self.o.ready), self.i.ready.eq(advance)]
        valid = self.i.valid
        for n in range(LATENCY - 1):
            held = Signal(name=f"valid_{n}")
            with m.If(advance):
                m.d.sync += held.eq(valid)
            valid = held
        with m.If(advance):
            m.d.sync += self.o.valid.eq(valid)

        result = Signal(self.o.payload.shape(), reset_less=True)
        clips = Signal(self.lanes, reset_less=True)
        m.d.comb += self.o.payload.eq(result)
        for n in range(self.lanes):
            rounded = self._round(m, self.i.payload[n], advance, n)
            value, clipped = saturate(m, rounded, self.fmt, name=f"lane_{n}")
            with m.If(advance):
                m.d.sync += [result[n].eq(value), clips[n].eq(clipped)]
        left = self.o.valid & self.o.ready
        count_clips(m, self.clipped, clear=self.clear, left=left, clips=clips)
        return m

    def _round(self, m: Module, lane, advance: Signal, n: int) -> Signal:
        """Return the rounded quotient of ``lane``, four registers later."""
        width, _ = self.product_widths
        numerator = Signal(width + self._right, name=f"numerator_{n}", reset_less=True)
        product_width = (self._largest * self._factor).bit_length()
        # The product's second register lets a synthesiser use those inside its multipliers.
        products = [
            Signal(product_width, name=f"product_{n}_{k}", reset_less=True) for k in range(2)
        ]
        whole = [Signal(name=f"whole_{n}_{k}", reset_less=True) for k in range(2)]
        quotient_width = (self._largest // self._odd).bit_length()
        rounded = Signal(signed(quotient_width + 1), name=f"rounded_{n}", reset_less=True)

        quotient = products[1] >> self._bits
        if self.rounding is Rounding.HALF_EVEN and self._right:
            # The offset made a half a multiple of the divisor; it was rounded up.
            exact = whole[1] & (products[1][: self._bits] < self._factor)
            down = exact & quotient[0]
        else:
            down = C(0, 1)
        with m.If(advance):
            m.d.sync += [
                numerator.eq((lane << self._left) + self._offset),
                products[0].eq(numerator[self._right :] * self._factor),
                whole[0].eq(numerator[: self._right] == 0),
                products[1].eq(products[0]),
                whole[1].eq(whole[0]),
                rounded.eq(quotient - down - (1 << self._bias_log2)),
            ]
        return rounded
