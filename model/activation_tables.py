"""Tables of sigmoid, tanh, GELU (exact, by erf) and SiLU and of their derivatives, which golden
model and hardware share.

A feature ``x`` is clamped to ``width + drop`` bits, which leaves out only what lies within ``tail``
of a constant (or of ``x`` itself), and its lowest ``drop`` bits are dropped. Of the
position that is left, counted from 0, the upper bits pick a segment and the lower ``step_width``
bits, ``t``, a point in it:

    f(x) = (bases[segment] * 2**step_width + rises[segment] * t) * 2**-(frac + step_width)

Where something was clamped, the first and the last position stand for all that lies beyond, and
have the function's limits instead: ``low``, and ``high`` or, where that is None, ``x``. Positions
of at most ``DIRECT_WIDTH`` bits have an entry each and no rise; such entries are rounded to odd, so
rounding them once more, in any mode, gives the correctly rounded function. Others are interpolated
in ``2**SEGMENT_WIDTH`` equal segments.

Decimal arithmetic of 60 digits alone, so that no platform's libm can change a bit.

A leaf of the standard library. Used by ``model/pipeline/table.py`` and its RTL. Test:
``tests/test_activation_tables.py``, against Python's math.
"""

from collections.abc import Callable
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Context, Decimal, localcontext
from functools import cache, partial
from math import floor

from .errors import PlanError
from .formats import Format

__all__ = [
    "DERIVATIVE",
    "DIRECT_WIDTH",
    "FEATURE_WIDTH",
    "POSITION_WIDTH",
    "RESULT_FRAC",
    "SEGMENT_WIDTH",
    "ActivationTable",
    "activation",
    "derivative",
    "derivative_table",
    "tail",
    "value_table",
]

DERIVATIVE = Format(18, 16)  # of derivatives, 18 bits as a DSP slice multiplies
DIRECT_WIDTH = 10
SEGMENT_WIDTH = 9
GUARD = 4  # fraction bits of entries beyond those of the result
POSITION_WIDTH = 18  # most bits of a derivative's position, which waits for the error
FEATURE_WIDTH = 24  # most bits of a feature
RESULT_FRAC = 30  # most fraction bits of a result

# The greatest magnitudes of the first, second and third derivative, rounded up.
_SLOPES = {
    "sigmoid": (0.25, 0.0963, 0.126),
    "tanh": (1.0, 0.77, 2.0),
    "gelu": (1.13, 0.798, 0.779),
    "silu": (1.1, 0.5, 0.309),
}
_CONTEXT = Context(prec=60, rounding=ROUND_HALF_EVEN)
_ROOT_TWO_PI = Decimal("2.506628274631000502415765284811045253006986740609938316629923576")
_FAR = 40  # beyond it a normal distribution's tail is below 10**-60


@dataclass(frozen=True)
class ActivationTable:
    """One function of one feature format, as the module says.

    ``error`` bounds the distance, in real units, from the function to a result that is not rounded
    yet.
    """

    width: int
    drop: int
    step_width: int
    frac: int
    bases: tuple[int, ...]
    rises: tuple[int, ...]
    clamped: bool
    low: int
    high: int | None
    error: float

    @property
    def reach(self) -> int:
        """Features from ``-reach`` to ``reach - 1`` have positions of their own."""
        return 1 << (self.width + self.drop - 1)

    @property
    def result_frac(self) -> int:
        """Fraction bits of a result that is not rounded yet."""
        return self.frac + self.step_width


def tail(frac: int) -> float:
    """How far a limit may lie from the function: a quarter of the result's last place, where that
    is not finer than interpolation is anyway.
    """
    return 2.0 ** -(min(frac, DERIVATIVE.frac) + 2)


def value_table(function: str, feature: Format, frac: int) -> ActivationTable:
    """Return ``function``, one of ``model/kinds.py``'s ``TABLES``, for results of ``frac`` bits.

    Raises
    ------
    PlanError
        A feature of more than ``FEATURE_WIDTH`` bits, or more than ``RESULT_FRAC`` fraction bits.
    """
    if feature.width > FEATURE_WIDTH:
        raise PlanError(
            f"i_feature must be at most {FEATURE_WIDTH} bits wide for a table, not {feature}"
        )
    if frac > RESULT_FRAC:
        raise PlanError(
            f"o_feature must have at most {RESULT_FRAC} fraction bits for a table, not {frac}"
        )
    return _value(function, feature.width, feature.frac, frac)


def derivative_table(function: str, feature: Format) -> ActivationTable:
    """Return the derivative of ``function`` for results of format ``DERIVATIVE``; raises as
    ``value_table``.
    """
    value_table(function, feature, DERIVATIVE.frac)
    return _derivative(function, feature.width, feature.frac)


@cache
def _value(function: str, width: int, feature_frac: int, frac: int) -> ActivationTable:
    low, high = {"sigmoid": (0, 1), "tanh": (-1, 1)}.get(function, (0, None))
    table = partial(_table, partial(activation, function), feature_frac, frac, low, high)
    return table(width, FEATURE_WIDTH, _SLOPES[function][:2])


@cache
def _derivative(function: str, width: int, feature_frac: int) -> ActivationTable:
    high = 0 if function in ("sigmoid", "tanh") else 1
    slope = partial(derivative, function)
    table = partial(_table, slope, feature_frac, DERIVATIVE.frac, 0, high)
    return table(width, POSITION_WIDTH, _SLOPES[function][1:])


def activation(function: str, x: Decimal) -> Decimal:
    """Return sigmoid, tanh, GELU or SiLU of ``x`` to about 50 digits."""
    with localcontext(_CONTEXT):
        if function == "sigmoid":
            return _sigmoid(x)
        if function == "tanh":
            return 2 * _sigmoid(2 * x) - 1
        return x * (_sigmoid(x) if function == "silu" else _normal(x)[0])


def derivative(function: str, x: Decimal) -> Decimal:
    """Return the derivative of ``activation`` at ``x`` to about 50 digits."""
    with localcontext(_CONTEXT):
        if function == "gelu":
            below, density = _normal(x)
            return below + x * density
        if function == "tanh":
            s = _sigmoid(2 * x)
            return 4 * s * (1 - s)
        s = _sigmoid(x)
        return s * (1 - s) if function == "sigmoid" else s + x * s * (1 - s)


def _sigmoid(x: Decimal) -> Decimal:
    power = (-abs(x)).exp()
    return (power if x < 0 else Decimal(1)) / (1 + power)


def _normal(x: Decimal) -> tuple[Decimal, Decimal]:
    """Return the standard normal distribution's integral up to ``x``, and its density.

    ``1/2 + density * (x + x**3/3 + x**5/(3*5) + ...)``, whose terms all have one sign.
    """
    if abs(x) > _FAR:
        return Decimal(int(x > 0)), Decimal(0)
    density = (-x * x / 2).exp() / _ROOT_TWO_PI
    total = term = x
    odd = 1
    square, least = x * x, abs(x).scaleb(-_CONTEXT.prec)
    while abs(term) > least:
        odd += 2
        term *= square / odd
        total += term
    return Decimal("0.5") + density * total, density


def _table(
    function: Callable[[Decimal], Decimal],
    feature_frac: int,
    frac: int,
    low: int,
    high: int | None,
    feature_width: int,
    most: int,
    slopes: tuple[float, float],
) -> ActivationTable:
    """Return the table of ``function``, whose positions have at most ``most`` bits."""
    with localcontext(_CONTEXT):
        unit = Decimal(2) ** -feature_frac
        reach = _reach(function, feature_width, unit, tail(frac), low, high)
        drop = max(0, reach + 1 - most)
        width = reach + 1 - drop
        step_width = 0 if width <= DIRECT_WIDTH else width - SEGMENT_WIDTH
        guarded = max(0, frac + GUARD)
        # A position stands for the middle of the features that share it.
        middle = Decimal((1 << drop) - 1) / 2

        def at(position: int) -> Decimal:
            return function(((position << drop) + middle) * unit) * (1 << guarded)

        bases, rises = [], []
        right = at(-(1 << (width - 1)))
        for n in range(1 << (width - step_width)):
            start = (n << step_width) - (1 << (width - 1))
            left, right = right, at(start + (1 << step_width))
            if step_width:
                # Half of the arc's height above its chord: the line's error is then least.
                lift = (at(start + (1 << (step_width - 1))) - (left + right) / 2) / 2
                bases.append(int((left + lift).to_integral_value()))
                rises.append(int((right - left).to_integral_value()))
            else:
                bases.append(_round_to_odd(left))
                rises.append(0)
        segment = float(unit) * 2.0 ** (step_width + drop) if step_width else 0.0
        error = 2.0**-guarded + segment**2 / 16 * slopes[1] + float(middle * unit) * slopes[0]
        clamped = reach < feature_width - 1
    entries = tuple(bases), tuple(rises)
    error = max(error, tail(frac) if clamped else 0.0)
    return ActivationTable(width, drop, step_width, guarded, *entries, clamped, low, high, error)


def _reach(
    function: Callable[[Decimal], Decimal],
    width: int,
    unit: Decimal,
    most: float,
    low: int,
    high: int | None,
) -> int:
    """Return the least number of bits, without sign, beyond which both limits hold within
    ``most``; ``width - 1`` where that is more than the feature has.
    """
    for reach in range(width - 2, 0, -1):
        end = ((1 << reach) - 1) * unit
        below = abs(function(-end - unit) - low)
        above = abs(function(end) - (end if high is None else high))
        if max(below, above) > most:
            return reach + 1
    return min(width - 1, 1)


def _round_to_odd(value: Decimal) -> int:
    """Return the floor, made odd where it is not exact: a later rounding then sees what was
    lost.
    """
    lower = floor(value)
    return lower if lower == value else lower | 1
