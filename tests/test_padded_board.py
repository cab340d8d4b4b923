"""Boards whose foldings divide no channels train to the bits of those that fold by one."""

import dataclasses

import pytest
import torch

import gradweave as gw
from gradweave.host.board_device import BoardDevice
from gradweave.host.design import Design
from gradweave.host.golden_device import GoldenDevice
from gradweave.host.verify import verify
from gradweave.model.formats import Rounding
from gradweave.model.schedule import size_buffers, steady_interval
from gradweave.sim.simulate import simulate
from gradweave.tests.plans import (
    add,
    chain,
    concat,
    conv,
    fork,
    graph,
    linear,
    maxpool,
    relu,
    table,
)
from gradweave.tests.small_board import data, hyper, masters

pytestmark = pytest.mark.timeout(900)

LATE = {"delay": 1, "back_delay": 1}


def straight():
    return chain(
        (3, 7, 6),
        conv("c1", 5, kernel=3, padding=1, a=3, b=2, update_lanes=3, **LATE),
        relu("r1", lanes=5),
        conv("c2", 10, kernel=2, groups=5, a=1, b=1, **LATE),
        table("t", "tanh", lanes=2),
        maxpool("p", 2, lanes=5),
        conv("c3", 7, kernel=2, a=4, b=3, update_lanes=2, **LATE),
        linear("l1", 3, a=2, b=5, update_lanes=2, **LATE),
        probes=True,
        sized=True,
    )


def unfolded_and_grouped():
    return chain(
        (3, 6, 6),
        conv("c1", 6, kernel=3, padding=1, a=4, b=5, unfold=True, update_lanes=2, **LATE),
        conv("c2", 10, kernel=3, groups=2, a=3, b=2, update_lanes=3, **LATE),
        linear("l1", 5, a=3, b=4, **LATE),
        probes=True,
        sized=True,
    )


def branches():
    return graph(
        (5, 6, 6),
        conv("c1", 5, kernel=3, padding=1, a=2, b=3, update_lanes=2, **LATE),
        fork("f", lanes=5),
        conv("c2", 5, kernel=3, padding=1, a=3, b=4, **LATE).on("f"),
        add("sum", lanes=1).on("f", "c2"),
        fork("g", lanes=5),
        conv("c3", 3, kernel=1, a=2, b=2, **LATE).on("g"),
        conv("c4", 4, kernel=3, padding=1, a=3, b=3, **LATE).on("g"),
        concat("cat", lanes=1).on("c3", "c4"),
        linear("l1", 3, a=2, b=4, **LATE),
        probes=True,
        sized=True,
    )


def vectors():
    """As LeNet-5 ends: each layer's errors come in narrower words than the one below takes."""
    late = [{"delay": n, "back_delay": n} for n in (4, 3, 2)]
    return chain(
        (4, 3, 3),
        conv("c1", 8, kernel=1, a=8, b=1, update_lanes=8, **late[0]),
        linear("l1", 30, a=13, b=1, update_lanes=13, **late[0]),
        relu("r1"),
        linear("l2", 16, a=4, b=1, update_lanes=4, **late[1]),
        relu("r2"),
        linear("l3", 3, **late[2]),
        sized=True,
    )


def by_one(plan):
    layers = tuple(
        dataclasses.replace(x, a=1, b=1, group_lanes=1, update_lanes=1, unfold=False)
        if x.trainable
        else x
        for x in plan.layers
    )
    return size_buffers(dataclasses.replace(plan, layers=layers))


@pytest.mark.parametrize(
    ("make", "rounding"),
    [
        (straight, Rounding.STOCHASTIC),
        pytest.param(straight, Rounding.HALF_EVEN, marks=pytest.mark.slow),
        pytest.param(unfolded_and_grouped, Rounding.STOCHASTIC, marks=pytest.mark.slow),
        pytest.param(unfolded_and_grouped, Rounding.FLOOR, marks=pytest.mark.slow),
        pytest.param(branches, Rounding.HALF_UP, marks=pytest.mark.slow),
    ],
)
def test_pad_lanes_change_no_bit(make, rounding):
    plan = dataclasses.replace(make(), rounding=rounding, seed=3)
    x, y = data(plan, 4)
    report = verify(Design(plan, masters(plan)), x, y, hyper(plan), stalls=0.3, seed=1)
    report.raise_for_difference()
    assert report.bit_exact
    golden = [GoldenDevice(plan), GoldenDevice(by_one(plan))]
    for device in golden:
        device.write_parameters(masters(plan))
        device.train(x, y, hyper(plan))
    first, second = (device.read_parameters()[0] for device in golden)
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize(
    "make", [straight, vectors, pytest.param(branches, marks=pytest.mark.slow)]
)
def test_a_padded_pipeline_keeps_its_planned_interval(make):
    plan = make()
    x, y = data(plan, 10)
    with simulate(plan) as simulation:
        device = BoardDevice(plan, simulation)
        device.write_parameters(masters(plan))
        device.train(x, y, hyper(plan))
        counters = device.counters()
    cycles = counters["last_cycle"] - counters["first_cycle"]
    measured = cycles / (len(x) - 1)
    assert measured <= 1.02 * steady_interval(plan)


def test_channels_that_no_number_divides_are_folded_within_the_budget():
    """17 channels: with divisors alone a layer of 17 x 17 has 1, 17 or 289 multipliers."""
    model = torch.nn.Sequential(
        torch.nn.Conv2d(17, 17, 3, padding=1), torch.nn.ReLU(), torch.nn.Flatten(),
        torch.nn.Linear(17 * 16, 5),
    )  # fmt: skip
    design = gw.compile(model, torch.randn(8, 17, 4, 4), batch=4, board="sim")
    conv1 = design.plan.layer("0")
    assert 17 % conv1.a or 17 % conv1.b
