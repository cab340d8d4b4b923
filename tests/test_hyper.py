"""Torch's hyperparameters become registers, as near as 16 bits allow, or are refused by name."""

import math
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradweave.model.errors import InputError
from gradweave.model.formats import Format
from gradweave.model.hyper import Hyper
from gradweave.model.plan import ParameterPlan
from gradweave.tests.plans import chain, conv, linear

PLAN = chain((1, 4, 4), conv("c", 2, kernel=3), linear("l", 5), batch_max=64)
MSE = chain((1, 4, 4), conv("c", 2, kernel=3), linear("l", 5), batch_max=64, loss="mse")


def parameters(master: int, gradient: int) -> ParameterPlan:
    return ParameterPlan(Format(16, 14), Format(32, master), Format(32, gradient))


def test_registers_worked_by_hand():
    hyper = Hyper.of(PLAN, batch=4, lr=0.5, momentum=0.75, weight_decay=2**-10)
    # 0.5/4 = 32768 * 2**-18; 4 * 2**-10 = 32768 * 2**-23.
    assert hyper == Hyper(
        batch=4,
        lr_mantissa=32768,
        lr_shift=18,
        momentum=49152,
        nesterov=False,
        decay_mantissa=32768,
        decay_shift=23,
        divisor=4,
    )
    assert (hyper.lr, hyper.momentum_rate, hyper.weight_decay) == (0.5, 0.75, 2**-10)


def test_the_mean_over_outputs_scales_the_squared_error():
    hyper = Hyper.of(MSE, batch=8, lr=0.1, weight_decay=0.01)
    assert hyper.divisor == 8 * 5 / 2
    assert math.ldexp(hyper.lr_mantissa, -hyper.lr_shift) == pytest.approx(0.1 / 20, rel=2**-16)
    assert hyper.weight_decay == pytest.approx(0.01, rel=2**-16)


@given(
    st.floats(1e-4, 1.0),
    st.integers(1, 64),
    st.floats(0, 0.999),
    st.one_of(st.just(0.0), st.floats(1e-6, 1e-2)),
)
def test_effective_rates_are_within_half_a_unit_of_16_bits(lr, batch, momentum, weight_decay):
    hyper = Hyper.of(PLAN, batch=batch, lr=lr, momentum=momentum, weight_decay=weight_decay)
    assert 32768 <= hyper.lr_mantissa <= 65535
    assert hyper.lr == pytest.approx(lr, rel=2**-16)
    assert hyper.weight_decay == pytest.approx(weight_decay, rel=2**-16)
    assert hyper.momentum_rate == pytest.approx(momentum, abs=2**-17)
    for layer in PLAN.trainable:
        for p in (layer.weight, layer.bias):
            assert 0 <= p.gradient.frac + hyper.lr_shift - p.master.frac <= 63
            assert 0 <= p.master.frac + hyper.decay_shift - p.gradient.frac <= 63


def test_a_mantissa_that_rounds_up_to_17_bits_is_renormalised():
    hyper = Hyper.of(PLAN, batch=1, lr=1 - 2**-20)
    assert (hyper.lr_mantissa, hyper.lr_shift, hyper.lr) == (32768, 15, 1.0)


def test_momentum_just_below_one_stays_below_one():
    assert Hyper.of(PLAN, batch=1, lr=0.1, momentum=1 - 1e-9).momentum == 65535


def test_a_small_rate_keeps_the_bits_that_the_shift_allows():
    hyper = Hyper.of(PLAN, batch=1, lr=2.0**-60)
    assert (hyper.lr_mantissa, hyper.lr_shift, hyper.lr) == (8, 63, 2.0**-60)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch": 0}, "batch must be from 1 to 64 samples, not 0"),
        ({"batch": 65}, "batch must be from 1 to 64 samples, not 65"),
        ({"batch": 2.0}, "batch must be from 1 to 64 samples, not 2.0"),
        ({"batch": True}, "batch must be from 1 to 64 samples, not True"),
        ({"lr": 0.0}, "lr must be finite and above 0, not 0.0"),
        ({"lr": -0.1}, "lr must be finite and above 0, not -0.1"),
        ({"lr": math.nan}, "lr must be finite and above 0, not nan"),
        ({"lr": math.inf}, "lr must be finite and above 0, not inf"),
        ({"momentum": 1.0}, "momentum must be at least 0 and below 1, not 1.0"),
        ({"momentum": -0.5}, "momentum must be at least 0 and below 1, not -0.5"),
        ({"weight_decay": -1e-4}, "weight_decay must be finite and at least 0, not -0.0001"),
        ({"weight_decay": math.inf}, "weight_decay must be finite and at least 0, not inf"),
        ({"nesterov": True}, "momentum must be above 0 for Nesterov's step, not 0"),
        (
            {"lr": 1e-20},
            "lr must be at least 1.0842e-19 per summed gradient for the formats of c.bias, "
            "not 1e-20",
        ),
        (
            {"lr": 300.0},
            "lr must be at most 255.996 per summed gradient for the formats of l.weight, not 300",
        ),
    ],
)
def test_what_registers_cannot_hold_is_refused(changes, message):
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        Hyper.of(PLAN, **{"batch": 1, "lr": 0.1, **changes})


def test_formats_too_far_apart_are_refused_with_both_parameters():
    plan = chain(
        (1, 2, 2),
        conv("c", 1, kernel=1, weight=parameters(60, 0), bias=None),
        linear("l", 2, weight=parameters(0, 10), bias=None),
    )
    message = (
        "lr needs a shift of at least 60 for c.weight and at most 53 for l.weight; "
        "choose gradient and master formats whose fraction bits lie closer"
    )
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        Hyper.of(plan, batch=1, lr=0.1)


def test_no_decay_still_has_a_legal_shift():
    plan = chain((1, 2, 2), linear("l", 2, weight=parameters(10, 30), bias=parameters(10, 30)))
    hyper = Hyper.of(plan, batch=1, lr=0.1)
    assert (hyper.decay_mantissa, hyper.decay_shift) == (0, 20)


def test_registers_can_be_changed_one_by_one():
    assert replace(Hyper.of(PLAN, batch=2, lr=0.5), momentum=5).momentum_rate == 5 / 65536
