"""The only rounding of the design: from an exact accumulator to a format, counting what it clips.

Golden: ``model/fixed.py``. Test: ``tests/parts/test_requantize.py``.
"""

from amaranth.hdl import C, Cat, Module, Mux, Signal, Value, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from ...model.errors import UnsupportedError
from ...model.formats import Format, Rounding
from ...model.random import NOISE_BITS
from . import lanes as lane_layout

__all__ = [
    "Requantize",
    "check_rounding",
    "count_clips",
    "requantize",
    "requantize_dynamic",
    "round_shift",
    "saturate",
]


def round_shift(acc: Value, shift: int, rounding: Rounding, noise: Value | None = None) -> Value:
    """Return signed ``acc * 2**-shift`` rounded to an integer, wide enough for every result.

    Parameters
    ----------
    acc : signed Value
    shift : int, bits; negative shifts left and is exact
    rounding : Rounding
    noise : unsigned Value of NOISE_BITS, with ``STOCHASTIC`` alone

    Raises
    ------
    UnsupportedError
        For ``STOCHASTIC`` without noise.
    """
    check_rounding(rounding, noise)
    if shift <= 0:
        return Cat(C(0, -shift), acc).as_signed()
    acc = _extend(acc, shift + 1)
    if rounding is Rounding.STOCHASTIC:
        kept = min(shift, NOISE_BITS)
        return (acc[shift - kept :].as_signed() + noise[NOISE_BITS - kept :])[kept:].as_signed()
    quotient = acc[shift:].as_signed()
    guard = acc[shift - 1]
    return _round_up(quotient, guard, acc[: shift - 1].any(), rounding)


def saturate(m: Module, value: Value, fmt: Format, *, name: str) -> tuple[Signal, Signal]:
    """Return signed ``value`` clamped to ``fmt``, and a bit that says whether the clamp changed it.

    Combinational. The first signal has the format's shape: ``signed(fmt.width)``, or ``fmt.width``
    bits when unsigned.
    """
    clamped = Signal(signed(fmt.width) if fmt.signed else fmt.width, name=f"{name}_value")
    clipped = Signal(name=f"{name}_clipped")
    value = _extend(value, fmt.width + 1)
    negative = value[-1]
    if fmt.signed:
        over = value[fmt.width - 1 :]
        m.d.comb += clipped.eq(over.any() & ~over.all())
    else:
        m.d.comb += clipped.eq(value[fmt.width :].any())
    m.d.comb += clamped.eq(Mux(clipped, Mux(negative, fmt.min, fmt.max), value))
    return clamped, clipped


def requantize(
    m: Module,
    acc: Value,
    shift: int,
    fmt: Format,
    rounding: Rounding,
    *,
    name: str,
    noise: Value | None = None,
) -> tuple[Signal, Signal]:
    """Return ``acc * 2**-shift`` rounded and saturated to ``fmt``, and whether it was clipped.

    Combinational. ``shift`` is the accumulator's fraction bits minus ``fmt.frac``; negative shifts
    left. See :func:`round_shift` for ``rounding``, ``noise`` and ``Raises``.
    """
    return saturate(m, round_shift(acc, shift, rounding, noise), fmt, name=name)


def requantize_dynamic(
    m: Module,
    acc: Value,
    shift: Value,
    fmt: Format,
    rounding: Rounding,
    max_shift: int,
    *,
    name: str = "dynamic",
    noise: Value | None = None,
) -> tuple[Signal, Signal]:
    """Return ``acc * 2**-shift`` rounded and saturated to ``fmt``, and whether it was clipped.

    Combinational, for a shift that is only known at run time; raises as :func:`round_shift`.

    Parameters
    ----------
    acc : signed Value
    shift : unsigned Value, bits; a run-time right shift from 0 to ``max_shift``
    max_shift : int, bits
    """
    check_rounding(rounding, noise)
    wide = _extend(acc, max_shift + 1)
    if rounding is Rounding.STOCHASTIC:
        # Behind the point stay NOISE_BITS bits; what a short shift leaves of them is zero.
        shifted = Cat(C(0, NOISE_BITS), wide).as_signed() >> shift
        rounded = Signal(signed(len(wide) + 1), name=f"{name}_rounded")
        m.d.comb += rounded.eq((shifted + noise)[NOISE_BITS:].as_signed())
        return saturate(m, rounded, fmt, name=name)
    lost = ((C(1) << shift) - 1)[:max_shift]
    quotient = wide >> shift
    guard = Cat(C(0, 1), wide).bit_select(shift, 1)
    sticky = (wide & lost[1:]).any()
    rounded = Signal(signed(len(quotient) + 1), name=f"{name}_rounded")
    m.d.comb += rounded.eq(_round_up(quotient, guard, sticky, rounding))
    return saturate(m, rounded, fmt, name=name)


class Requantize(wiring.Component):
    """Rounds and saturates every lane of a stream, and counts the lanes that it clips.

    Latency 2 cycles, one transfer per cycle; stalls with its output, holding up to two transfers.
    Reset empties the pipeline and clears the count.

    Parameters
    ----------
    acc_width : int, bits of an accumulator lane
    lanes : int, values per transfer
    shift : int, bits; fraction bits of the accumulator minus ``fmt.frac``
    fmt : Format, signed
    rounding : Rounding

    Members
    -------
    i : In(stream of ``acc_width``-bit lanes)
    noise : In(stream of unsigned lanes), with ``STOCHASTIC`` alone: one transfer for each of ``i``,
        which waits for it
    o : Out(stream of ``fmt.width``-bit lanes)
    clipped : Out(32), clipped values that have left through ``o`` since reset or ``clear``;
        stays at its top
    clear : In(1), zeroes ``clipped``
    """

    def __init__(
        self, *, acc_width: int, lanes: int, shift: int, fmt: Format, rounding: Rounding
    ) -> None:
        self.acc_width = acc_width
        self.lanes = lanes
        self.shift = shift
        self.fmt = fmt
        self.rounding = rounding
        chance = {"noise": In(stream.Signature(data.ArrayLayout(NOISE_BITS, lanes)))}
        super().__init__(
            {
                **(chance if rounding is Rounding.STOCHASTIC else {}),
                "i": In(stream.Signature(lane_layout(acc_width, lanes))),
                "o": Out(stream.Signature(lane_layout(fmt.width, lanes))),
                "clipped": Out(32),
                "clear": In(1),
            }
        )

    @property
    def latency(self) -> int:
        """Cycles from a transfer in to the same transfer out, without stalls."""
        return 2

    def elaborate(self, platform: object) -> Module:
        m = Module()
        inputs = [self.i.payload[n] for n in range(self.lanes)]
        present = C(1)
        noise: list[Value | None] = [None] * self.lanes
        if self.rounding is Rounding.STOCHASTIC:
            noise = [self.noise.payload[n] for n in range(self.lanes)]
            present = self.noise.valid
            m.d.comb += self.noise.ready.eq(self.i.valid & self.i.ready)
        rounded = [
            round_shift(lane, self.shift, self.rounding, chance)
            for lane, chance in zip(inputs, noise, strict=True)
        ]
        stage = [
            Signal(signed(len(value)), name=f"rounded_{n}", reset_less=True)
            for n, value in enumerate(rounded)
        ]
        stage_valid = Signal()
        clips = Signal(self.lanes, reset_less=True)
        result = Signal(self.o.payload.shape(), reset_less=True)
        m.d.comb += self.o.payload.eq(result)

        out_ready = Signal()
        stage_ready = Signal()
        m.d.comb += [
            out_ready.eq(~self.o.valid | self.o.ready),
            stage_ready.eq(~stage_valid | out_ready),
            self.i.ready.eq(stage_ready & present),
        ]
        with m.If(stage_ready):
            m.d.sync += stage_valid.eq(self.i.valid & present)
        with m.If(stage_ready & self.i.valid):
            m.d.sync += [register.eq(value) for register, value in zip(stage, rounded, strict=True)]
        with m.If(out_ready):
            m.d.sync += self.o.valid.eq(stage_valid)
        for n in range(self.lanes):
            value, clipped = saturate(m, stage[n], self.fmt, name=f"lane_{n}")
            with m.If(out_ready & stage_valid):
                m.d.sync += [result[n].eq(value), clips[n].eq(clipped)]

        left = self.o.valid & self.o.ready
        count_clips(m, self.clipped, clear=self.clear, left=left, clips=clips)
        return m


def count_clips(m: Module, counter: Signal, *, clear: Value, left: Value, clips: Value) -> None:
    """Add the set bits of ``clips`` to ``counter`` where ``left`` is high; ``clear`` zeroes it.

    A counter that reaches its top stays there.
    """
    total = Signal(len(counter) + 1, name="clips_total")
    m.d.comb += total.eq(counter + sum(clips[n] for n in range(len(clips))))
    with m.If(clear):
        m.d.sync += counter.eq(0)
    with m.Elif(left):
        m.d.sync += counter.eq(Mux(total[-1], ~0, total))


def check_rounding(rounding: Rounding, noise: Value | None = None) -> None:
    """Raise UnsupportedError for stochastic rounding without noise."""
    if rounding is Rounding.STOCHASTIC and noise is None:
        raise UnsupportedError(
            "rounding must be half_even, half_up or floor where there is no noise, not stochastic"
        )


def _extend(value: Value, width: int) -> Value:
    """Sign-extend to at least ``width`` bits."""
    missing = width - len(value)
    return Cat(value, value[-1].replicate(missing)).as_signed() if missing > 0 else value


def _round_up(quotient: Value, guard: Value, sticky: Value, rounding: Rounding) -> Value:
    """Add one to the floor ``quotient`` where the lost bits, ``guard`` above ``sticky``, ask it."""
    if rounding is Rounding.FLOOR:
        return quotient
    up = guard if rounding is Rounding.HALF_UP else guard & (sticky | quotient[0])
    return (quotient + up).as_signed()
