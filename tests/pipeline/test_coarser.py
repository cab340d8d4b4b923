"""Weights whose output channels have fractions of their own: RTL, golden, and their worth."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import gradweave as gw
from gradweave.host.design import Design
from gradweave.host.verify import verify
from gradweave.model.errors import PlanError
from gradweave.model.formats import Format, Rounding
from gradweave.model.pipeline.update import to_working
from gradweave.model.plan import ParameterPlan, Plan
from gradweave.tests.layer_bench import train_layer
from gradweave.tests.plans import PARAMETER, chain, conv, linear, relu, scale
from gradweave.tests.small_board import data, hyper, masters

NARROW = ParameterPlan(Format(6, 5), Format(32, 24), Format(32, 20))
LAYERS = {
    "unfolded": (
        (3, 5, 5),
        conv("x", 5, kernel=3, a=2, b=5, unfold=True, update_lanes=2),
    ),
    "linear": ((3, 2, 2), linear("x", 5, a=3, b=2, update_lanes=3)),
    "scale": ((6, 3, 3), scale("x", group_lanes=3, update_lanes=3)),
    "no bias": ((4, 4, 4), conv("x", 6, kernel=2, a=3, b=2, bias=None, update_lanes=3)),
    "depthwise": (
        (4, 4, 4),
        conv("x", 8, kernel=2, groups=4, a=2, b=1, group_lanes=2, update_lanes=4),
    ),
}


@pytest.mark.parametrize("rounding", [Rounding.HALF_EVEN, Rounding.STOCHASTIC])
@pytest.mark.parametrize("name", LAYERS)
def test_every_kind_of_layer_gives_the_golden_bits(name, rounding):
    shape, spec = LAYERS[name]
    layer = chain(shape, spec, linear("end", 2), sized=True).layer("x")
    coarser = tuple((5 * n + 3) % 7 for n in range(layer.o_shape[0]))
    layer = replace(layer, weight=replace(layer.weight, coarser=coarser))
    got, expected = train_layer(layer, rounding=rounding, stall=0.3)
    assert got.o == expected.o
    assert got.i_error == expected.i_error
    assert got.masters == expected.masters
    assert got.saturated == expected.saturated


@pytest.mark.timeout(600)
def test_a_board_of_channels_with_ranges_of_their_own_trains_to_the_golden_bits():
    wide = replace(NARROW, coarser=(0, 4, 2, 1, 3))
    plan = chain(
        (2, 5, 5),
        conv("c1", 5, kernel=3, a=2, b=2, weight=wide),
        relu("r"),
        linear("l", 3, a=3, weight=replace(NARROW, coarser=(2, 0, 1))),
        probes=True,
        sized=True,
    )
    x, y = data(plan, 4)
    report = verify(Design(plan, masters(plan)), x, y, hyper(plan), stalls=0.3, seed=1)
    report.raise_for_difference()
    assert report.bit_exact
    assert Plan.from_json(plan.to_json()) == plan


def test_a_channel_is_rounded_and_clipped_by_its_own_fraction():
    plan = ParameterPlan(Format(4, 3), Format(16, 8), PARAMETER.gradient, coarser=(0, 2))
    master = torch.tensor([[0x68, 0x200], [0x68, 0x200]])  # 0.40625 and 2.0
    values, clipped = to_working(plan, Rounding.HALF_EVEN, master)
    # In eighths 3.25 and 16, of which 7 fit; in halves 0.8125 and 4.
    assert values.tolist() == [[3, 7], [1, 4]]
    assert clipped.tolist() == [[False, True], [False, False]]


def test_narrow_weights_of_unlike_channels_are_nearer_to_float_channel_by_channel():
    """Output channels from 1 to 2**-7 in size, five-bit weights."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.Flatten(), nn.Linear(128, 4))
    with torch.no_grad():
        model[0].weight *= 2.0 ** -torch.arange(8).view(-1, 1, 1, 1)
    x = torch.randn(32, 3, 6, 6)
    error = {}
    for per_channel in (False, True):
        design = gw.compile(model, x, batch=4, formats={"0.weight": 5}, per_channel=per_channel)
        layer = design.plan.layer("0")
        assert bool(layer.weight.spread) == per_channel
        working, _ = to_working(layer.weight, Rounding.HALF_EVEN, design.masters["0.weight"])
        coarser = torch.tensor(layer.weight.coarser or (0,) * 8).view(-1, 1, 1, 1)
        found = working.double() * 2.0 ** (coarser - layer.weight.working.frac)
        true = model[0].weight.detach().double()
        wrong = (found - true).flatten(1).norm(dim=1)
        error[per_channel] = wrong / true.flatten(1).norm(dim=1)
    # Each channel keeps what the largest one has.
    assert float(error[True].max()) < 0.3
    assert float(error[False].max()) > 0.9  # the smallest channels are lost


@pytest.mark.parametrize("coarser", [(1, 2), (0, 0, 0, 0, 32), (-1, 0, 0, 0, 0)])
def test_shifts_that_are_no_shifts_are_refused(coarser):
    plan = chain((2, 5, 5), conv("c1", 5, kernel=3), linear("l", 3))
    layer = plan.layer("c1")
    with pytest.raises(PlanError, match="c1: coarser must be 5 numbers of bits from 0 to 31"):
        replace(layer, weight=replace(layer.weight, coarser=coarser))
