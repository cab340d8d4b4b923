"""Sigmoid, tanh, GELU and SiLU by table are torch's within the stated error, forward and back."""

from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from torch.nn import functional

from gradweave.model.activation_tables import DERIVATIVE, derivative_table, value_table
from gradweave.model.errors import PlanError
from gradweave.model.formats import Format, Rounding
from gradweave.model.kinds import TABLES
from gradweave.model.pipeline.table import Table
from gradweave.model.step import Step
from gradweave.tests.golden.reference import clip, round_fraction
from gradweave.tests.relay_bench import ROUNDINGS, TRAINING, relay_layer

TORCH = {
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "gelu": functional.gelu,
    "silu": functional.silu,
}
# feature, result, error, error of the input
FORMATS = {
    "interpolated": (Format(16, 11), Format(16, 14), Format(16, 12), Format(16, 12)),
    "clamped": (Format(16, 8), Format(8, 5), Format(8, 7), Format(16, 20)),
    "direct": (Format(8, 4), Format(16, 12), Format(12, 9), Format(6, 3)),
    "wide": (Format(24, 17), Format(24, 16), Format(20, 18), Format(24, 18)),
    "direct and clamped": (Format(12, 2), Format(12, 3), Format(12, 8), Format(4, 2)),
}
# A whole unit is the most that a rounding changes (floor), half a unit that to the nearest.
ROUNDED = {Rounding.HALF_EVEN: 0.5, Rounding.HALF_UP: 0.5, Rounding.FLOOR: 1.0}
FLOAT_ERROR = 1e-12


def layer(function, feature, result, error, i_error):
    return relay_layer(
        function,
        feature=feature,
        result=result,
        error=error,
        i_error=i_error,
        shape=(1, 1, 1),
        lanes=1,
    )


def sample(fmt, seed):
    """Every integer of a format of up to 12 bits, else a sample with both ends and both sides of
    0.
    """
    if fmt.width <= 12:
        values = torch.arange(fmt.min, fmt.max + 1)
    else:
        generator = torch.Generator().manual_seed(seed)
        near = torch.arange(-999, 1000)
        anywhere = torch.randint(fmt.min, fmt.max + 1, (9000,), generator=generator)
        ends = torch.tensor([fmt.min, fmt.min + 1, fmt.max - 1, fmt.max])
        values = torch.cat([near, anywhere, anywhere >> 4, ends])
    return values.double().view(-1, 1, 1, 1)


@pytest.mark.parametrize("rounding", [Rounding.HALF_EVEN, Rounding.FLOOR])
@pytest.mark.parametrize("formats", FORMATS)
@pytest.mark.parametrize("function", TABLES)
def test_results_and_errors_are_torchs_within_the_stated_error(function, formats, rounding):
    feature, result, error, i_error = FORMATS[formats]
    x = sample(feature, 1)
    generator = torch.Generator().manual_seed(2)
    e = torch.randint(error.min, error.max + 1, x.shape, generator=generator).double()
    real = (x * feature.step).requires_grad_()
    y = TORCH[function](real)
    y.backward(e * error.step)

    model = Table(layer(function, *FORMATS[formats]), rounding)
    results, clipped = model.forward(x, TRAINING)
    wanted = (y.detach() / result.step).clamp(result.min, result.max)
    most = model.value.error / result.step + ROUNDED[rounding] + FLOAT_ERROR
    assert (results - wanted).abs().max() <= most
    unclipped = y.detach() / result.step
    inside = (unclipped <= result.max - most) & (unclipped >= result.min + most)
    outside = (unclipped >= result.max + 1 + most) | (unclipped <= result.min - 1 - most)
    assert int(outside.sum()) <= clipped <= int((~inside).sum())

    errors, _ = model.backward(e)
    wanted = (real.grad / i_error.step).clamp(i_error.min, i_error.max)
    # The derivative is rounded once, the product once more.
    slope = model.slope.error + ROUNDED[rounding] * DERIVATIVE.step
    most = slope * (e * error.step).abs() / i_error.step + ROUNDED[rounding] + FLOAT_ERROR
    assert bool(((errors - wanted).abs() <= most).all())


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("function", TABLES)
@pytest.mark.parametrize("formats", ["clamped", "wide", "direct and clamped"])
def test_it_is_the_tables_formula_in_fractions(formats, function, rounding):
    feature, result, error, i_error = FORMATS[formats]

    def look_up(table, x, fmt):
        position = (min(max(x, -table.reach), table.reach - 1) + table.reach) // 2**table.drop
        segment, t = divmod(position, 2**table.step_width)
        total = table.bases[segment] * 2**table.step_width + table.rises[segment] * t
        value = Fraction(total, 2**table.result_frac)
        if table.clamped and position == 0:
            value = Fraction(table.low)
        elif table.clamped and position == 2**table.width - 1:
            value = x / Fraction(2) ** feature.frac if table.high is None else Fraction(table.high)
        return clip(round_fraction(value * Fraction(2) ** fmt.frac, rounding), fmt)

    x = sample(feature, 3)[::37]
    e = torch.tensor([(37 * n) % 2**error.width + error.min for n in range(len(x))]).double()
    model = Table(layer(function, *FORMATS[formats]), rounding)
    results, clipped = model.forward(x, TRAINING)
    value = value_table(function, feature, result.frac)
    wanted = [look_up(value, int(n), result) for n in x.flatten()]
    assert results.flatten().tolist() == [n for n, _ in wanted]
    assert clipped == sum(over for _, over in wanted)

    errors, clipped = model.backward(e.view(-1, 1, 1, 1))
    slope = derivative_table(function, feature)
    wanted = []
    for n, m in zip(x.flatten(), e, strict=True):
        product = int(m) * look_up(slope, int(n), DERIVATIVE)[0]
        scaled = product * Fraction(2) ** (i_error.frac - error.frac - 16)
        wanted.append(clip(round_fraction(scaled, rounding), i_error))
    assert errors.flatten().tolist() == [n for n, _ in wanted]
    assert clipped == sum(over for _, over in wanted)


@pytest.mark.parametrize(
    ("rounding", "wanted"),
    [
        (Rounding.HALF_EVEN, [4, 8, 12]),
        (Rounding.HALF_UP, [4, 8, 12]),
        (Rounding.FLOOR, [4, 8, 11]),
    ],
)
def test_a_narrow_feature_is_rounded_correctly(rounding, wanted):
    # sigmoid(-1), sigmoid(0), sigmoid(1) are 0.26894, 0.5 and 0.73106: times 16, 4.303, 8, 11.697.
    model = Table(
        layer("sigmoid", Format(4, 0), Format(8, 4), Format(8, 4), Format(8, 4)), rounding
    )
    results, _ = model.forward(torch.tensor([-1.0, 0, 1]).double().view(3, 1, 1, 1), TRAINING)
    assert results.flatten().tolist() == wanted
    # Their derivatives are 0.19661, 0.25 and 0.19661; times 64/16, in 16ths: 12.58, 16, 12.58.
    errors, _ = model.backward(torch.full((3, 1, 1, 1), 64.0).double())
    low = 12 if rounding is Rounding.FLOOR else 13
    assert errors.flatten().tolist() == [low, 16, low]


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("function", TABLES)
def test_every_entry_of_a_direct_table_is_correctly_rounded(function, rounding):
    # No value of these functions lies within 1e-9 of a point where a rounding changes, except
    # those that are exact, so float64 decides as real numbers do.
    feature, result = Format(10, 7), Format(16, 12)
    x = sample(feature, 0)
    model = Table(layer(function, feature, result, result, result), rounding)
    exact = TORCH[function](x * feature.step) / result.step
    if rounding is Rounding.FLOOR:
        wanted = exact.floor()
    else:
        wanted = exact.round()
    assert torch.equal(model.forward(x, TRAINING)[0], wanted)


def test_far_features_have_the_limits():
    ends = torch.tensor([-32768.0, 32767.0]).double().view(2, 1, 1, 1)
    for function, low, high in (
        ("sigmoid", 0, 16),
        ("tanh", -16, 16),
        ("gelu", 0, 2048),
        ("silu", 0, 2048),
    ):
        formats = (Format(16, 8), Format(16, 4), Format(16, 4), Format(16, 4))
        model = Table(layer(function, *formats), Rounding.HALF_EVEN)
        results, _ = model.forward(ends, TRAINING)
        assert results.flatten().tolist() == [low, high]
        errors, _ = model.backward(torch.full((2, 1, 1, 1), 999.0).double())
        assert errors.flatten().tolist() == [0, 0 if high == 16 else 999]


def test_inference_keeps_nothing_of_its_own():
    model = Table(layer("gelu", *FORMATS["interpolated"]), Rounding.HALF_EVEN)
    x, e = torch.tensor([300.0]).double().view(1, 1, 1, 1), torch.ones(1, 1, 1, 1).double() * 77
    model.forward(x, TRAINING)
    before = model.backward(e)[0]
    model.forward(-x, Step(training=False))
    assert torch.equal(model.backward(e)[0], before)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"i_feature": Format(25, 9)},
            "x: i_feature must be at most 24 bits wide for a table, not s25.9",
        ),
        (
            {"o_feature": Format(32, 31)},
            "x: o_feature must have at most 30 fraction bits for a table, not 31",
        ),
    ],
)
def test_formats_without_a_table_are_refused_by_name(change, message):
    with pytest.raises(PlanError) as caught:
        Table(replace(layer("tanh", *FORMATS["interpolated"]), **change), Rounding.FLOOR)
    assert str(caught.value) == message
