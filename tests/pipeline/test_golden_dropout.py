"""Dropout drops by the random words of seed, stream, element and sample, and keeps the mean."""

from dataclasses import replace

import pytest
import torch

from gradweave.model.errors import PlanError
from gradweave.model.formats import Format, Rounding
from gradweave.model.pipeline.dropout import Dropout
from gradweave.model.random import random_word
from gradweave.model.relay import keep_factor
from gradweave.model.step import Step
from gradweave.tests.golden.reference import rq
from gradweave.tests.relay_bench import ROUNDINGS, TRAINING, relay_layer

HALF = 1 << 15


def layer(drop=HALF, **rest):
    return relay_layer("dropout", **{"drop": drop, "number": 3, "seed": 2**40 + 9, **rest})


def draw(count, bits, plan=None, seed=1):
    generator = torch.Generator().manual_seed(seed)
    shape = (count, *(plan or layer()).i_shape)
    return torch.randint(-(1 << bits), 1 << bits, shape, generator=generator).double()


def kept(plan, count=1, first=0):
    """The mask that ones leave behind."""
    model = Dropout(plan, Rounding.FLOOR)
    ones = torch.ones(count, *plan.i_shape, dtype=torch.float64)
    return model.forward(ones, Step(True, first))[0] != 0


def test_values_worked_by_hand():
    """Of stream 7 under seed 1, 3 of the first values in sample 2: each kept one is doubled."""
    plan = layer(seed=1, number=7, shape=(1, 1, 8), lanes=1)
    lows = [random_word(1, 7, n, 2) & 0xFFFF for n in range(8)]
    x = torch.tensor([100, -100, 3, 5, -7, 1500, 11, -13.0]).double().view(1, 1, 1, 8)
    results, clipped = Dropout(plan, Rounding.FLOOR).forward(x, Step(True, first_sample=2))
    doubled = [200, -200, 6, 10, -14, 2047, 22, -26]  # 3000 does not fit 12 bits
    wanted = [y if low >= HALF else 0 for y, low in zip(doubled, lows, strict=True)]
    assert results.flatten().tolist() == wanted
    assert 0 < wanted.count(0) < 8
    assert clipped == (lows[5] >= HALF)


@pytest.mark.parametrize("drop", [1, 6554, HALF, 58982, 65535])
def test_every_element_is_dropped_by_its_own_random_word(drop):
    plan = layer(drop)
    mask = kept(plan, count=3, first=2**32 - 1)
    channels, height, width = plan.i_shape
    for n, sample in enumerate((2**32 - 1, 0, 1)):  # numbers of samples wrap
        for c in range(channels):
            for y in range(height):
                for x in range(width):
                    element = (y * width + x) * channels + c
                    low = random_word(plan.seed, plan.number, element, sample) & 0xFFFF
                    assert bool(mask[n, c, y, x]) == (low >= drop)


def test_a_value_whose_bits_equal_the_share_is_kept():
    bits = random_word(layer().seed, layer().number, 0, 0) & 0xFFFF
    assert kept(layer(bits))[0, 0, 0, 0]
    assert not kept(layer(bits + 1))[0, 0, 0, 0]


@pytest.mark.parametrize("drop", [6554, HALF, 58982])
def test_the_share_of_dropped_values_is_as_told(drop):
    plan = layer(drop, shape=(8, 16, 16))
    count = 2 * 8 * 16 * 16 * 5
    share = drop / 2**16
    dropped = int((~kept(plan, count=10)).sum())
    assert abs(dropped - share * count) < 4 * (count * share * (1 - share)) ** 0.5


def test_the_mask_depends_on_seed_stream_and_sample_and_on_nothing_else():
    plan = layer(shape=(4, 8, 8))
    mask = kept(plan, count=4)
    for other in (replace(plan, lanes=4), replace(plan, drop=HALF, name="y")):
        assert torch.equal(kept(other, count=4), mask)
    parts = [kept(plan, count=1), kept(plan, count=3, first=1)]
    assert torch.equal(torch.cat(parts), mask)
    assert torch.equal(kept(plan, count=1, first=2**32 + 3), mask[3:])
    for other in (replace(plan, seed=plan.seed + 1), replace(plan, number=4)):
        assert 0.3 < (kept(other, count=4) != mask).double().mean() < 0.7
    assert 0.3 < (mask[0] != mask[1]).double().mean() < 0.7


@pytest.mark.parametrize("drop", [6554, HALF, 49152])
def test_it_is_torchs_dropout_with_the_same_mask(drop):
    plan = layer(drop, feature=Format(16, 8), error=Format(16, 10))
    model = Dropout(plan, Rounding.HALF_EVEN)
    integers, errors = draw(5, 12), draw(5, 12, seed=2)
    x = (integers / 2**8).requires_grad_()
    mask = kept(plan, count=5)
    y = x * mask / (1 - drop / 2**16)
    y.backward(errors / 2**10)
    results, clipped = model.forward(integers, TRAINING)
    below, clipped_errors = model.backward(errors)
    # Half a unit of rounding, and 4,096 times half a unit of the factor's 14 fraction bits.
    assert (results - y.detach() * 2**8).abs().max() <= 0.5 + 0.125
    assert (below - x.grad * 2**10).abs().max() <= 0.5 + 0.125
    assert (clipped, clipped_errors) == (0, 0)


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("drop", [1, 20000, HALF, 60000])
def test_what_is_kept_is_its_definition_in_integers(drop, rounding):
    plan = layer(drop)
    model = Dropout(plan, rounding)
    mask = kept(plan, count=6).flatten().tolist()
    factor = keep_factor(drop, rounding)
    features, errors = draw(6, 11), draw(6, 9)
    for values, fmt, (results, clipped) in (
        (features, plan.i_feature, model.forward(features, TRAINING)),
        (errors, plan.o_error, model.backward(errors)),
    ):
        pairs = zip(values.flatten().tolist(), mask, strict=True)
        wanted = [
            rq(int(value) * factor, fmt.frac + 14, fmt, rounding) if keep else (0, False)
            for value, keep in pairs
        ]
        assert results.flatten().tolist() == [value for value, _ in wanted]
        assert clipped == sum(clip for _, clip in wanted)


@pytest.mark.parametrize(
    ("drop", "factors"),
    [
        (HALF, (32768, 32768, 32768)),
        # 2**30 / 58983 = 18204.26..., 2**30 / 45875 = 23405.81...
        (6553, (18204, 18204, 18204)),
        (19661, (23406, 23406, 23405)),
        (65535, (1 << 30,) * 3),
    ],
)
def test_the_factor_is_one_over_the_share_that_is_kept(drop, factors):
    assert tuple(keep_factor(drop, rounding) for rounding in ROUNDINGS) == factors


def test_wide_formats_stay_exact():
    plan = layer(16384, feature=Format(44, 8))
    exact = Dropout(plan, Rounding.FLOOR)
    x = torch.full((2, *plan.i_shape), 3.0 * 2**40 + 1, dtype=torch.float64)
    results, _ = exact.forward(x, TRAINING)
    # 2**14 / 0.75 = 21845.33..., and 21845 * (3 * 2**40 + 1) is no float64's 53 bits.
    wanted = 21845 * (3 * 2**40 + 1) >> 14
    assert set(results.unique().tolist()) == {0.0, float(wanted)}


def test_in_inference_everything_passes_and_the_mask_stays():
    model = Dropout(layer(), Rounding.FLOOR)
    x, errors = draw(4, 11), draw(4, 9)
    model.forward(x, TRAINING)
    before = model.backward(errors)
    results, clipped = model.forward(-x, Step(training=False))
    assert torch.equal(results, -x)
    assert clipped == 0
    after = model.backward(errors)
    assert torch.equal(after[0], before[0])
    assert after[1] == before[1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"drop": 0}, "x: drop must be 1 to 65535, not 0"),
        ({"drop": 65536}, "x: drop must be 1 to 65535, not 65536"),
        ({"number": -1}, "x: number must be 0 to 2**32 - 1, not -1"),
        ({"seed": 2**64}, f"x: seed must be 0 to 2**64 - 1, not {2**64}"),
        (
            {"drop": 65535, "i_feature": Format(33, 0), "o_feature": Format(33, 0)},
            "x: drop must give products of at most 63 bits, not 64",
        ),
        (
            {"i_shape": (2, 2**16, 2**16)},
            "x: sample must have at most 2**32 values, not 8589934592",
        ),
        ({"o_feature": Format(8, 3)}, "x: o_feature must be i_feature, s12.8, not s8.3"),
    ],
)
def test_a_wrong_plan_is_refused(change, message):
    with pytest.raises(PlanError) as caught:
        Dropout(replace(layer(), **change), Rounding.FLOOR)
    assert str(caught.value) == message
