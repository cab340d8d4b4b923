"""A fixed factor and offset per channel is a BatchNorm2d with frozen statistics."""

from dataclasses import replace
from fractions import Fraction

import pytest
import torch

from gradweave.model.errors import PlanError
from gradweave.model.formats import Format, Rounding
from gradweave.model.pipeline.affine import Affine
from gradweave.tests.golden.reference import clip, round_fraction
from gradweave.tests.relay_bench import ROUNDINGS, TRAINING, relay_layer

FEATURE, RESULT, ERROR, I_ERROR = Format(12, 8), Format(10, 7), Format(10, 9), Format(8, 6)


def layer(factors, offsets, frac, **rest):
    formats = {"feature": FEATURE, "result": RESULT, "error": ERROR, "i_error": I_ERROR}
    return relay_layer(
        "affine",
        shape=(len(factors), 2, 3),
        lanes=1,
        factors=factors,
        offsets=offsets,
        factor_frac=frac,
        **{**formats, **rest},
    )


def random_maps(channels, fmt, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(fmt.min, fmt.max + 1, (5, channels, 2, 3), generator=generator).double()


def test_it_is_known_by_hand():
    # Features of 1/4 to results of 1/2: (3 * 5 - 1)/4/4 = 0.875, 1.75 halves; a factor of -2.5 and
    # of 0. Errors of 1/4 without the offset: 3 * 5/4/4 = 0.9375, in quarters 3.75.
    plan = layer(
        (5, -10, 0),
        (-1, 0, 9),
        2,
        feature=Format(8, 2),
        result=Format(8, 1),
        error=Format(8, 2),
        i_error=Format(8, 2),
    )
    model = Affine(plan, Rounding.HALF_EVEN)
    threes = torch.full((1, 3, 2, 3), 3.0).double()
    assert model.forward(threes, TRAINING)[0][0, :, 0, 0].tolist() == [2, -4, 1]
    assert model.backward(threes)[0][0, :, 0, 0].tolist() == [4, -8, 0]


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("frac", [0, 3, 14, -1])
def test_it_is_its_definition_in_fractions(frac, rounding):
    factors, offsets = (700, -700, 0, 1, -5), (12345, -300000, 77, 0, 1)
    model = Affine(layer(factors, offsets, frac), rounding)

    def define(value, factor, offset, fmt, result):
        exact = Fraction(value * factor + offset) / Fraction(2) ** (frac + fmt.frac)
        return clip(round_fraction(exact * Fraction(2) ** result.frac, rounding), result)

    def check(values, got, clipped, offsets, fmt, result):
        wanted = 0
        for index in torch.cartesian_prod(*(torch.arange(n) for n in values.shape)).tolist():
            channel = index[1]
            value, over = define(
                int(values[tuple(index)]), factors[channel], offsets[channel], fmt, result
            )
            assert int(got[tuple(index)]) == value
            wanted += over
        assert clipped == wanted

    x, e = random_maps(5, FEATURE, 1), random_maps(5, ERROR, 2)
    check(x, *model.forward(x, TRAINING), offsets, FEATURE, RESULT)
    check(e, *model.backward(e), (0,) * 5, ERROR, I_ERROR)


def test_it_is_a_batch_norm_in_inference():
    norm = torch.nn.BatchNorm2d(6).double().eval()
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        norm.running_mean.copy_(torch.rand(6, generator=generator) - 0.5)
        norm.running_var.copy_(torch.rand(6, generator=generator) + 0.3)
        norm.weight.copy_(torch.tensor([1.0, -0.75, 0.0, 0.5, -1.0, 0.25]))
        norm.bias.copy_(torch.rand(6, generator=generator) - 0.5)
    factors = (norm.weight / (norm.running_var + norm.eps).sqrt()).detach()
    offsets = (norm.bias - norm.running_mean * factors).detach()
    frac, wide = 20, Format(24, 16)
    plan = layer(
        tuple(int(n) for n in (factors * 2**frac).round()),
        tuple(int(n) for n in (offsets * 2 ** (frac + FEATURE.frac)).round()),
        frac,
        result=wide,
        i_error=wide,
    )
    model = Affine(plan, Rounding.HALF_EVEN)
    x, e = random_maps(6, FEATURE, 3), random_maps(6, ERROR, 4)
    real = (x * FEATURE.step).requires_grad_()
    y = norm(real)
    y.backward(e * ERROR.step)
    # Half a unit of 2**-16, and half a unit of a factor times the greatest feature, 8, and more.
    most = 2.0**-17 + 8 * 2.0**-21 + 2.0**-28
    assert (model.forward(x, TRAINING)[0] * wide.step - y.detach()).abs().max() <= most
    assert (model.backward(e)[0] * wide.step - real.grad).abs().max() <= most


def test_sums_beyond_float64_are_exact():
    # (2**22 + 1) * (2**31 - 1) needs 54 bits; its last bit decides.
    wide = Format(32, 0)
    plan = layer((2**22 + 1, 1), (0, 0), 22, feature=wide, result=wide, error=wide, i_error=wide)
    model = Affine(plan, Rounding.FLOOR)
    x = torch.full((1, 2, 2, 3), 2.0**31 - 1, dtype=torch.float64)
    exact = ((2**22 + 1) * (2**31 - 1)) >> 22
    results, clipped = model.forward(x - 2**10, TRAINING)
    assert results[0, 0, 0, 0] == ((2**22 + 1) * (2**31 - 1 - 2**10)) >> 22
    assert clipped == 0
    assert exact > wide.max
    assert model.backward(x)[1] == 6


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"factors": (1, 2, 3)}, "x: factors must be one a channel, 2, not 3"),
        ({"offsets": ()}, "x: offsets must be one a channel, 2, not 0"),
        (
            {"factors": (1, 2**60)},
            "x: factors and offsets must give sums of at most 63 bits, not 73",
        ),
    ],
)
def test_a_wrong_plan_is_refused(change, message):
    plan = replace(layer((1, 2), (3, 4), 2), **change)
    with pytest.raises(PlanError) as caught:
        Affine(plan, Rounding.FLOOR)
    assert str(caught.value) == message
