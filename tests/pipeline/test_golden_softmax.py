"""Integer softmax as a layer equals its definition, and torch's within the bound of its tables."""

from dataclasses import replace

import pytest
import torch

from gradweave.model.errors import PlanError
from gradweave.model.formats import Format, Rounding
from gradweave.model.pipeline.softmax import Softmax
from gradweave.model.relay import softmax_widths
from gradweave.model.step import Step
from gradweave.tests.golden import reference
from gradweave.tests.relay_bench import ROUNDINGS, TRAINING, relay_layer

# The definition's table, by the platform's floats: tests/test_tables.py shows that no entry is near
# a tie.
TABLE = [round(2 ** (16 - f / 1024)) for f in range(1024)]
# feature, result, error, error of the input
FORMATS = {
    "usual": (Format(16, 10), Format(16, 15), Format(16, 12), Format(16, 13)),
    "narrow": (Format(8, 3), Format(6, 5), Format(5, 3), Format(6, 4)),
    "coarse": (Format(12, -2), Format(8, 4), Format(8, 9), Format(4, 2)),
    "two bits": (Format(2, 0), Format(2, 0), Format(2, 1), Format(2, 1)),
    "wide": (Format(32, 24), Format(20, 19), Format(18, 14), Format(32, 28)),
}


def layer(formats="usual", shape=(5, 2, 3), **rest):
    feature, result, error, i_error = FORMATS[formats]
    return relay_layer(
        "softmax",
        feature=feature,
        result=result,
        error=error,
        i_error=i_error,
        shape=shape,
        lanes=1,
        **rest,
    )


def draw(fmt, plan, seed):
    generator = torch.Generator().manual_seed(seed)
    shape = (4, *plan.i_shape)
    values = torch.randint(fmt.min, fmt.max + 1, shape, generator=generator)
    values[2:] >>= max(0, fmt.width - 4)  # close together: no channel takes all
    return values.double()


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("formats", FORMATS)
def test_every_result_and_error_equals_its_definition(formats, rounding):
    plan = layer(formats)
    x, e = draw(plan.i_feature, plan, 1), draw(plan.o_error, plan, 2)
    model = Softmax(plan, rounding)
    results, clipped = model.forward(x, TRAINING)
    errors, clipped_errors = model.backward(e)
    hits = hits_below = 0
    for n, y, w in ((n, y, w) for n in range(4) for y in range(2) for w in range(3)):
        pixel, back = (values[n, :, y, w].long().tolist() for values in (x, e))
        wanted, hit = reference.softmax(pixel, plan, rounding, TABLE)
        assert results[n, :, y, w].tolist() == wanted
        below, hit_below = reference.softmax_error(wanted, back, plan, rounding)
        assert errors[n, :, y, w].tolist() == below
        hits, hits_below = hits + hit, hits_below + hit_below
    assert (clipped, clipped_errors) == (hits, hits_below)
    assert results.dtype == errors.dtype == torch.float64


def test_results_and_errors_lie_close_to_torchs():
    plan = layer(shape=(10, 1, 1))
    generator = torch.Generator().manual_seed(3)
    x = torch.randint(-8192, 8192, (300, 10, 1, 1), generator=generator).double()
    e = torch.randint(-32768, 32768, x.shape, generator=generator).double()
    real = (x * plan.i_feature.step).requires_grad_()
    p = torch.softmax(real, 1)
    p.backward(e * plan.o_error.step)
    model = Softmax(plan, Rounding.HALF_EVEN)
    results, _ = model.forward(x, TRAINING)
    errors, _ = model.backward(e)
    # As for cross-entropy's probabilities, tests/pipeline/test_golden_cross_entropy.py, but for the
    # quotient's last place.
    near = 2 * (0.6932 / 2048 + 32 * 7e-6) + 10 * 2**-16 + 2**-16
    assert (results * plan.o_feature.step - p.detach()).abs().max() < near
    # p * (e - sum p*e): p errs by ``near`` beside a difference of at most 16, and so does each p of
    # the sum, by whose size they are multiplied again.
    limit = near * 16 + near * 8 * 10 + plan.i_error.step
    inside = real.grad.abs() < plan.i_error.max * plan.i_error.step
    assert inside.double().mean() > 0.9
    assert ((errors * plan.i_error.step - real.grad).abs()[inside]).max() < limit


def test_equal_values_share_and_one_takes_all():
    plan = layer(shape=(4, 1, 1))
    model = Softmax(plan, Rounding.HALF_EVEN)
    x = torch.tensor([[7.0, 7, 7, 7], [32767, -32768, -32768, -32768]]).view(2, 4, 1, 1)
    results, clipped = model.forward(x, TRAINING)
    # 1.0 does not fit s16.15: 32768 becomes 32767, which is counted.
    assert results.view(2, 4).tolist() == [[8192.0] * 4, [32767, 0, 0, 0]]
    assert clipped == 1
    # An error that all channels have alike moves nothing.
    errors, _ = model.backward(torch.full((2, 4, 1, 1), 4096.0))
    assert errors[0].abs().max() == 0


def test_inference_keeps_what_the_error_needs():
    plan = layer()
    model = Softmax(plan, Rounding.HALF_EVEN)
    x, e = draw(plan.i_feature, plan, 4), draw(plan.o_error, plan, 5)
    model.forward(x, TRAINING)
    expected, _ = model.backward(e)
    model.forward(draw(plan.i_feature, plan, 6), Step(training=False))
    assert torch.equal(model.backward(e)[0], expected)


@pytest.mark.parametrize("formats", FORMATS)
@pytest.mark.parametrize("channels", [2, 3, 10])
def test_the_widths_hold_the_worst_case_and_no_bit_more(formats, channels):
    plan = layer(formats, shape=(channels, 1, 1))
    total, product = softmax_widths(plan)
    worst = 0
    one = min(1 << plan.o_feature.frac, plan.o_feature.max)
    for sign in (plan.o_error.min, plan.o_error.max):
        e = torch.full((channels,), float(sign), dtype=torch.float64)
        p = torch.full_like(e, one / channels).floor()
        worst = max(worst, float((p * e).sum().abs()))
    assert worst < 2.0 ** (total - 1)
    # One channel takes all, its error is least and the others' greatest, as if p summed up to 1.
    assert one * abs(plan.o_error.min) * 2**plan.o_feature.frac < 2.0 ** (product - 1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"o_feature": Format(16, -1)},
            "x: o_feature must have 0 to 40 fraction bits, not -1",
        ),
        (
            {"o_feature": Format(16, 41)},
            "x: o_feature must have 0 to 40 fraction bits, not 41",
        ),
        (
            {"o_feature": Format(24, 23), "o_error": Format(24, 20)},
            "x: o_feature and o_error must give products of at most 63 bits, not 72: give them "
            "fewer bits in formats",
        ),
    ],
)
def test_a_wrong_plan_is_refused(changes, message):
    with pytest.raises(PlanError) as caught:
        Softmax(replace(layer(), **changes), Rounding.HALF_EVEN)
    assert str(caught.value) == message
