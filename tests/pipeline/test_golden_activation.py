"""Clip and leaky ReLU are torch's, with every argument heard; their plans say what is wrong."""

from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from torch.nn import functional

from gradweave.model.errors import PlanError
from gradweave.model.formats import Format, Rounding
from gradweave.model.pipeline.activation import Clip, LeakyRelu
from gradweave.model.step import Step
from gradweave.tests.golden.reference import rq
from gradweave.tests.relay_bench import ROUNDINGS, TRAINING, relay_layer

FEATURE, ERROR = Format(8, 2), Format(9, 5)
X = torch.arange(-128.0, 128.0, dtype=torch.float64).view(1, 4, 8, 8)
E = torch.arange(-256.0, 256.0, 2.0, dtype=torch.float64).flip(0).view(1, 4, 8, 8)


def layer(kind, **rest):
    return relay_layer(kind, feature=FEATURE, error=ERROR, **rest)


@pytest.mark.parametrize(("lower", "upper"), [(0.0, 6.0), (-1.0, 1.0), (-2.5, 0.75), (0.0, 2.0)])
def test_a_clip_is_torchs_hardtanh(lower, upper):
    x = (X / 4).requires_grad_()
    y = functional.relu6(x) if upper == 6 else functional.hardtanh(x, lower, upper)
    y.backward(E / 32)
    model = Clip(layer("clip", lower=int(lower * 4), upper=int(upper * 4)), Rounding.FLOOR)
    results, clipped = model.forward(X, TRAINING)
    assert torch.equal(results / 4, y.detach())
    errors, clipped_errors = model.backward(E)
    assert torch.equal(errors / 32, x.grad)
    assert (clipped, clipped_errors) == (0, 0)


@pytest.mark.parametrize("slope", [0.0, 0.25, 0.01, 0.3, 1.0])
def test_a_leaky_relu_is_torchs_within_half_a_unit(slope):
    # The slope itself is rounded to 16 fraction bits: at most 128 times 2**-17 of a unit more.
    x = (X / 4).requires_grad_()
    y = functional.leaky_relu(x, slope)
    y.backward(E / 32)
    model = LeakyRelu(layer("leaky_relu", slope=round(slope * 2**16)), Rounding.HALF_EVEN)
    results, _ = model.forward(X, TRAINING)
    assert (results - 4 * y.detach()).abs().max() <= 0.5 + 0.001
    errors, _ = model.backward(E)
    assert (errors - 32 * x.grad).abs().max() <= 0.5 + 0.002
    assert errors.flatten()[128] == round(E.flatten()[128].item() * slope)


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("slope", [0, 1, 655, 1 << 15, 3 << 14, 1 << 16])
def test_a_leaky_relu_is_its_definition_in_fractions(slope, rounding):
    def define(value, positive, fmt):
        return value if positive else rq(value * slope, fmt.frac + 16, fmt, rounding)[0]

    model = LeakyRelu(layer("leaky_relu", slope=slope), rounding)
    results, clipped = model.forward(X, TRAINING)
    errors, clipped_errors = model.backward(E)
    features = [int(x) for x in X.flatten()]
    assert results.flatten().tolist() == [define(x, x > 0, FEATURE) for x in features]
    pairs = zip(E.flatten().tolist(), features, strict=True)
    assert errors.flatten().tolist() == [define(int(e), x > 0, ERROR) for e, x in pairs]
    assert (clipped, clipped_errors) == (0, 0)


@pytest.mark.parametrize(
    ("rounding", "wanted"),
    [(Rounding.HALF_EVEN, -2), (Rounding.HALF_UP, -1), (Rounding.FLOOR, -2)],
)
def test_half_of_minus_three_is_rounded_as_told(rounding, wanted):
    model = LeakyRelu(layer("leaky_relu", slope=1 << 15), rounding)
    assert Fraction(-3, 2) == -1.5
    assert model.forward(torch.full((1, 4, 2, 3), -3.0).double(), TRAINING)[0].unique() == wanted


@pytest.mark.parametrize(("block", "rest"), [(Clip, {"lower": -4, "upper": 9}), (LeakyRelu, {})])
def test_inference_keeps_nothing_of_its_own(block, rest):
    kind = {"Clip": "clip", "LeakyRelu": "leaky_relu"}[block.__name__]
    model = block(layer(kind, **rest), Rounding.FLOOR)
    model.forward(X, TRAINING)
    before = model.backward(E)[0]
    model.forward(-X, Step(training=False))
    assert torch.equal(model.backward(E)[0], before)


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        (
            "clip",
            {"lower": 3, "upper": 3},
            "x: lower must be below upper in steps of s8.2, not 3 and 3",
        ),
        (
            "clip",
            {"lower": 128, "upper": 200},
            "x: lower and upper must leave some of -128 to 127, the integers of s8.2, "
            "not 128 and 200",
        ),
        (
            "clip",
            {"lower": -200, "upper": -129},
            "x: lower and upper must leave some of -128 to 127, the integers of s8.2, "
            "not -200 and -129",
        ),
        ("leaky_relu", {"slope": -1}, "x: slope must be 0 to 65536 (1.0), not -1"),
        ("leaky_relu", {"slope": 65537}, "x: slope must be 0 to 65536 (1.0), not 65537"),
        (
            "leaky_relu",
            {"o_feature": Format(8, 3)},
            "x: o_feature must be i_feature, s8.2, not s8.3",
        ),
        ("leaky_relu", {"i_error": Format(8, 3)}, "x: i_error must be o_error, s9.5, not s8.3"),
    ],
)
def test_a_wrong_plan_is_refused(kind, change, message):
    block = {"clip": Clip, "leaky_relu": LeakyRelu}[kind]
    plan = replace(layer(kind, lower=0, upper=9), **change)
    with pytest.raises(PlanError) as caught:
        block(plan, Rounding.FLOOR)
    assert str(caught.value) == message
