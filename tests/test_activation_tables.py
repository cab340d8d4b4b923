"""Tables of activations lie within their bounds of Python's own functions, at every feature."""

import math
from decimal import Decimal, localcontext

import pytest

from gradweave.model.activation_tables import (
    DERIVATIVE,
    DIRECT_WIDTH,
    POSITION_WIDTH,
    SEGMENT_WIDTH,
    activation,
    derivative,
    derivative_table,
    tail,
    value_table,
)
from gradweave.model.errors import PlanError
from gradweave.model.formats import Format
from gradweave.model.kinds import TABLES

ROOT_TWO = math.sqrt(2.0)


def sigmoid(x):
    return 1 / (1 + math.exp(-x)) if x > -700 else 0.0


def normal(x):
    return math.erfc(-x / ROOT_TWO) / 2


def density(x):
    return math.exp(-x * x / 2) / math.sqrt(2 * math.pi)


VALUES = {
    "sigmoid": sigmoid,
    "tanh": math.tanh,
    "gelu": lambda x: x * normal(x),
    "silu": lambda x: x * sigmoid(x),
}
SLOPES = {
    "sigmoid": lambda x: sigmoid(x) * sigmoid(-x),
    "tanh": lambda x: 1 - math.tanh(x) ** 2,
    "gelu": lambda x: normal(x) + x * density(x),
    "silu": lambda x: sigmoid(x) * (1 + x * sigmoid(-x)),
}
# Errors of the platform's functions and of the float arithmetic here.
FLOAT_ERROR = 1e-13
FORMATS = [
    Format(2, 0),
    Format(5, 1),
    Format(8, 4),
    Format(8, 7),
    Format(10, 6),
    Format(11, 7),
    Format(12, 3),
    Format(16, 8),
    Format(16, 12),
    Format(16, 15),
    Format(24, -3),
    Format(24, 16),
    Format(24, 20),
    Format(24, 30),
]


def features(fmt):
    """Every feature of a narrow format; of a wide one both ends, both sides of 0 and a sample."""
    if fmt.width <= 12:
        return range(fmt.min, fmt.max + 1)
    near = [
        n + sign * (8 << fmt.frac if fmt.frac > 0 else 8) for n in range(99) for sign in (-1, 1)
    ]
    ends = [*range(fmt.min, fmt.min + 99), *range(-99, 99), *range(fmt.max - 98, fmt.max + 1)]
    sample = range(fmt.min, fmt.max + 1, 40001 if fmt.width == 24 else 53)
    inside = range(max(fmt.min, -9 << max(0, fmt.frac)), min(fmt.max, 9 << max(0, fmt.frac)), 9001)
    return [*(x for x in near if fmt.min <= x <= fmt.max), *ends, *sample, *inside]


def exact(table, x, fmt):
    """The table's result for feature ``x`` before any rounding, by the formula in its module."""
    position = (min(max(x, -table.reach), table.reach - 1) + table.reach) >> table.drop
    if table.clamped and position == 0:
        return float(table.low)
    if table.clamped and position == (1 << table.width) - 1:
        return x * fmt.step if table.high is None else float(table.high)
    segment, t = divmod(position, 1 << table.step_width)
    total = (table.bases[segment] << table.step_width) + table.rises[segment] * t
    return math.ldexp(total, -table.result_frac)


@pytest.mark.parametrize("fmt", FORMATS, ids=str)
@pytest.mark.parametrize("function", TABLES)
def test_values_lie_within_the_stated_error(function, fmt):
    for frac in (4, 12, 14, 22):
        table = value_table(function, fmt, frac)
        for x in features(fmt):
            wanted = VALUES[function](x * fmt.step)
            slack = FLOAT_ERROR * max(1, abs(wanted))
            assert abs(exact(table, x, fmt) - wanted) <= table.error + slack, (x, frac)


@pytest.mark.parametrize("fmt", FORMATS, ids=str)
@pytest.mark.parametrize("function", TABLES)
def test_derivatives_lie_within_the_stated_error(function, fmt):
    table = derivative_table(function, fmt)
    for x in features(fmt):
        wanted = SLOPES[function](x * fmt.step)
        assert abs(exact(table, x, fmt) - wanted) <= table.error + FLOAT_ERROR, x


@pytest.mark.parametrize("function", TABLES)
def test_the_error_of_16_bit_features_is_small(function):
    # In units of a 16-bit result's last place, and of 2**-16 for derivatives; rounding adds a half.
    worst = {"sigmoid": (0.5, 2.2), "tanh": (0.9, 9), "gelu": (0.3, 4), "silu": (0.6, 6)}
    for fmt in (Format(16, 10), Format(16, 11), Format(16, 12)):
        frac = 14 if function in ("sigmoid", "tanh") else fmt.frac
        value, slope = worst[function]
        assert value_table(function, fmt, frac).error <= value * 2.0**-frac
        assert derivative_table(function, fmt).error <= slope * 2.0**-16


@pytest.mark.parametrize("function", TABLES)
def test_no_table_of_any_format_errs_by_more_than_2_to_the_minus_10(function):
    for fmt in FORMATS:
        assert value_table(function, fmt, 14).error <= 2**-13 + 2**-18
        assert derivative_table(function, fmt).error <= 2**-9


@pytest.mark.parametrize("function", TABLES)
def test_the_decimal_functions_are_pythons(function):
    for n in range(-320, 321, 5):
        x = n / 8
        assert abs(float(activation(function, Decimal(x))) - VALUES[function](x)) <= 1e-13
        assert abs(float(derivative(function, Decimal(x))) - SLOPES[function](x)) <= 1e-13


@pytest.mark.parametrize("function", TABLES)
def test_derivatives_are_those_of_the_functions(function):
    with localcontext(prec=60):
        step = Decimal(2) ** -60
        for n in range(-60, 61, 7):
            x = Decimal(n) / 7
            rise = activation(function, x + step) - activation(function, x - step)
            assert abs(rise / (2 * step) - derivative(function, x)) < Decimal(10) ** -30


def test_gelu_is_known_at_one():
    # 0.841344746068542948585232545632..., the normal distribution's integral up to 1.
    wanted = Decimal("0.8413447460685429485852325456")
    assert abs(activation("gelu", Decimal(1)) - wanted) < Decimal(10) ** -27


@pytest.mark.parametrize("fmt", FORMATS, ids=str)
@pytest.mark.parametrize("function", TABLES)
def test_tables_have_the_stated_sizes(function, fmt):
    for table in (value_table(function, fmt, 12), derivative_table(function, fmt)):
        assert table.width + table.drop <= fmt.width
        assert table.clamped == (table.width + table.drop < fmt.width)
        segment_width = table.width if table.width <= DIRECT_WIDTH else SEGMENT_WIDTH
        assert len(table.bases) == len(table.rises) == 1 << segment_width
        assert table.width == segment_width + table.step_width
    assert derivative_table(function, fmt).width <= POSITION_WIDTH == DERIVATIVE.width
    assert value_table(function, fmt, 12).drop == 0


def test_limits_stand_only_where_the_function_is_at_them():
    # sigmoid(-8) is 3.4e-4, below a quarter of 2**-8; sigmoid(-4) is not.
    table = value_table("sigmoid", Format(16, 8), 8)
    assert (table.clamped, table.reach) == (True, 8 << 8)
    assert tail(8) == 2**-10
    assert tail(40) == tail(16) == 2**-18


def test_a_feature_or_result_too_fine_for_a_table_is_refused():
    with pytest.raises(PlanError) as caught:
        value_table("tanh", Format(25, 4), 4)
    message = "i_feature must be at most 24 bits wide for a table, not s25.4"
    assert str(caught.value) == message
    with pytest.raises(PlanError) as caught:
        derivative_table("tanh", Format(25, 4))
    assert str(caught.value) == message
    with pytest.raises(PlanError) as caught:
        value_table("tanh", Format(8, 4), 31)
    assert str(caught.value) == "o_feature must have at most 30 fraction bits for a table, not 31"
