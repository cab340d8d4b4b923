"""Boards that round by chance train to the golden model's bits, at every folding the same."""

import dataclasses

import pytest
import torch
from torch import nn

import gradweave as gw
from gradweave.host.board_device import BoardDevice
from gradweave.host.design import Design
from gradweave.host.golden_device import GoldenDevice
from gradweave.host.verify import verify
from gradweave.model.formats import Rounding
from gradweave.model.hyper import Hyper
from gradweave.sim.simulate import simulate
from gradweave.tests.plans import add, chain, conv, fork, graph, linear, relu, scale
from gradweave.tests.small_board import BATCH, assert_same_state, data, masters

pytestmark = pytest.mark.timeout(900)


def hyper(plan):
    """Every rounding of the update at work."""
    return Hyper.of(plan, batch=BATCH, lr=0.1, momentum=0.5, nesterov=True, weight_decay=0.01)


def by_chance(plan, seed=2**33 + 1):
    return dataclasses.replace(plan, rounding=Rounding.STOCHASTIC, seed=seed)


def narrow(late=1):
    late = {"delay": late, "back_delay": late}
    return chain(
        (2, 6, 5),
        conv("c1", 4, kernel=3, padding=1, groups=2, **late),
        relu("r1"),
        conv("c2", 4, kernel=2, **late),
        linear("l1", 3, **late),
        sized=True,
    )


def wide(late=1):
    late = {"delay": late, "back_delay": late}
    return chain(
        (2, 6, 5),
        conv("c1", 4, kernel=3, padding=1, groups=2, a=2, group_lanes=2, update_lanes=4, **late),
        relu("r1", lanes=4),
        conv("c2", 4, kernel=2, a=2, b=4, update_lanes=2, **late),
        linear("l1", 3, a=3, b=2, update_lanes=3, **late),
        probes=True,
        sized=True,
    )


def test_every_tensor_is_the_golden_models_and_foldings_change_no_bit():
    plan = by_chance(wide())
    x, y = data(plan, 4)
    report = verify(Design(plan, masters(plan)), x, y, hyper(plan), stalls=0.3, seed=1)
    report.raise_for_difference()
    assert report.bit_exact
    trained = []
    for folded in (plan, by_chance(narrow()), by_chance(narrow(), seed=5)):
        golden = GoldenDevice(folded)
        golden.write_parameters(masters(plan))
        golden.train(x, y, hyper(plan))
        trained.append(golden.read_parameters()[0]["c1.weight"])
    assert torch.equal(trained[0], trained[1])
    assert not torch.equal(trained[0], trained[2])


def test_segments_go_on_where_the_last_one_stopped_and_inference_repeats_itself():
    plan = by_chance(narrow(0))
    x, y = data(plan, 4)
    golden = GoldenDevice(plan)
    golden.write_parameters(masters(plan))
    golden.train(x, y, hyper(plan), first_sample=2**32 - 4)
    half = 2 * BATCH
    with simulate(plan, stalls=0.2, seed=3) as simulation:
        device = BoardDevice(plan, simulation)
        device.write_parameters(masters(plan))
        device.train(x[:half], y[:half], hyper(plan), first_sample=2**32 - 4)
        logits = device.infer(x)
        assert torch.equal(logits, device.infer(x))
        device.train(x[half:], y[half:], hyper(plan), first_sample=2**32 - 4 + half)
        assert_same_state(device, golden)
        assert torch.equal(device.infer(x[:3]), golden.infer(x[:3]))


@pytest.mark.slow
def test_branches_and_scales_by_chance():
    late = {"delay": 1, "back_delay": 1}
    plan = graph(
        (3, 6, 6),
        conv("c1", 6, kernel=(3, 3), padding=1, a=2, b=9, unfold=True, **late),
        fork("f", lanes=2),
        conv("c2", 6, kernel=3, padding=1, a=3, b=2, **late).on("f"),
        scale("s", group_lanes=2, **late),
        add("a", lanes=2).on("f", "s"),
        linear("l1", 3, a=1, b=2, **late),
        probes=True,
        sized=True,
    )
    plan = by_chance(plan)
    x, y = data(plan, 4)
    report = verify(Design(plan, masters(plan)), x, y, hyper(plan), stalls=0.3, seed=1)
    report.raise_for_difference()
    assert report.bit_exact


@pytest.mark.slow
def test_a_compiled_model_trains_by_chance():
    torch.manual_seed(3)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.Sigmoid(), nn.AvgPool2d(2), nn.Flatten(),
        nn.Dropout(0.25), nn.Linear(16, 3),
    )  # fmt: skip
    design = gw.compile(model, torch.randn(16, 1, 4, 4), batch=BATCH, seed=9, rounding="stochastic")
    x, y = data(design.plan, 4)
    report = verify(design, x, y, hyper(design.plan), stalls=0.3, seed=1)
    report.raise_for_difference()
    assert report.bit_exact
