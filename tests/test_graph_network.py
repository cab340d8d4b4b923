"""The golden model of a graph equals the slow definition bit for bit, and float autograd within
quantisation.
"""

from dataclasses import replace

import pytest
import torch
from torch import nn

from gradweave.bench.golden import random_batch, random_masters
from gradweave.model.errors import PlanError
from gradweave.model.fixed import dequantize
from gradweave.model.formats import Format, Rounding
from gradweave.model.hyper import Hyper
from gradweave.model.network import Network
from gradweave.model.plan import ParameterPlan
from gradweave.tests.golden.trainer import SlowNetwork
from gradweave.tests.graphs import GRAPHS, make
from gradweave.tests.plans import add, conv, fork, graph, linear, relu

NARROW = Format(8, 7)
# So fine that no feature passes a ReLU in one arithmetic and not in the other.
FEATURE, ERROR = Format(28, 22), Format(28, 22)
WEIGHT = ParameterPlan(working=Format(24, 22), master=Format(40, 36), gradient=Format(40, 26))


@pytest.mark.parametrize("rounding", [Rounding.HALF_EVEN, Rounding.FLOOR])
@pytest.mark.parametrize("delays", [(0, 0), (2, 1)], ids=["flush", "delayed"])
@pytest.mark.parametrize("name", GRAPHS)
def test_every_tensor_of_every_step_equals_the_slow_definition(name, delays, rounding):
    plan = make(name, *delays, rounding=rounding)
    hyper = Hyper.of(plan, batch=3, lr=0.5, momentum=0.9)
    start = random_masters(plan, 1)
    network, slow = Network(plan), SlowNetwork(plan, start)
    network.load(start)
    for seed in range(3):
        x, target = random_batch(plan, 3, seed)
        record = {}
        network.train_batch(x, target, hyper, record)
        expected = slow.train_batch(x, target, hyper)
        assert sorted(record) == sorted(expected)
        for tensor, values in record.items():
            assert torch.equal(values, expected[tensor]), tensor
    assert all(torch.equal(values, slow.masters[n]) for n, values in network.masters.items())
    assert network.saturated == slow.saturated


def test_sums_of_features_and_errors_that_do_not_fit_are_counted_by_layer_and_tensor():
    plan = graph(
        (1, 4, 4),
        conv("conv", 2, kernel=1),
        fork("fork", error=NARROW),
        add("add", feature=NARROW).on("fork", "fork"),
        linear("fc", 3, error=Format(16, 7)),
        batch_max=4,
    )
    hyper = Hyper.of(plan, batch=4, lr=0.5)
    start = {name: 4 * values for name, values in random_masters(plan, 1).items()}
    network, slow = Network(plan), SlowNetwork(plan, start)
    network.load(start)
    x, target = random_batch(plan, 4, 1)
    record = {}
    network.train_batch(x, target, hyper, record)
    slow.train_batch(x, target, hyper)
    assert network.saturated == slow.saturated
    assert network.saturated["add.o_feature"] > 0
    assert network.saturated["fork.i_error"] > 0
    assert "add.i_error" in record
    assert "fork.o_feature" not in record


class Residual(nn.Module):
    """The network of ``residual`` in floating point."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 4, 3, padding=1)
        self.conv1 = nn.Conv2d(4, 4, 3, padding=1)
        self.conv2 = nn.Conv2d(4, 4, 3, padding=1)
        self.short = nn.Conv2d(4, 4, 1)
        self.fc = nn.Linear(64, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.stem(x))
        x = torch.relu(self.conv2(torch.relu(self.conv1(x))) + x)
        return self.fc(torch.flatten(self.short(x) + x + x, 1))


def residual():
    """A residual block, and a sum of a convolution of one tap and twice its input."""
    fine = {"feature": FEATURE, "error": ERROR, "weight": WEIGHT, "bias": WEIGHT}
    return graph(
        (2, 4, 4),
        conv("stem", 4, kernel=3, padding=1, **fine),
        relu("relu0"),
        fork("skip1", error=ERROR),
        conv("conv1", 4, kernel=3, padding=1, **fine),
        relu("relu1"),
        conv("conv2", 4, kernel=3, padding=1, **fine),
        add("add1", feature=FEATURE).on("conv2", "skip1"),
        relu("relu2"),
        fork("skip2", error=ERROR),
        conv("short", 4, kernel=1, **fine),
        add("add2", feature=FEATURE).on("short", "skip2", "skip2"),
        linear("fc", 3, **fine),
        loss="mse",
        loss_error=ERROR,
        input_feature=FEATURE,
        batch_max=8,
    )


def loaded(masters, fmt):
    """The float network with these integers of ``fmt`` as its weights."""
    model = Residual().double()
    model.load_state_dict({name: dequantize(values, fmt) for name, values in masters.items()})
    return model


def test_gradients_and_logits_of_a_residual_network_follow_float_autograd():
    plan = residual()
    network = Network(plan)
    network.load(random_masters(plan, 2))
    working = {
        f"{name}.{part}": values
        for name, trained in network._trained.items()
        for part, values in trained.working().items()
    }
    model = loaded(working, WEIGHT.working)
    x, target = random_batch(plan, 8, 5)
    record = {}
    logits = network.train_batch(x, target, Hyper.of(plan, batch=8, lr=0.1), record)
    real = model(dequantize(x, FEATURE))
    # Each feature errs by half a step of 2**-22 and passes on at most the next layers' gains.
    assert (dequantize(logits, FEATURE) - real.detach()).abs().max() < 12 * 2.0**-22
    (((real - dequantize(target, FEATURE)) ** 2).sum() / 2).backward()
    for name, parameter in model.named_parameters():
        layer_name, part = name.split(".")
        layer = plan.layer(layer_name)
        frac = layer.o_error.frac + (layer.i_feature.frac if part == "weight" else 0)
        got = record[f"{name}_gradient"].double() * 2.0**-frac
        # Errors and features err by 2**-23 each, summed over 8 samples of 16 positions.
        wrong = (got - parameter.grad.view_as(got)).norm()
        assert wrong < 1e-5 * parameter.grad.norm(), name


def test_ten_steps_of_a_residual_network_follow_torchs_sgd():
    plan = residual()
    hyper = Hyper.of(plan, batch=8, lr=0.05, momentum=0.9)
    network = Network(plan)
    network.load(random_masters(plan, 3))
    start = network.masters
    model = loaded(start, WEIGHT.master)
    optimizer = torch.optim.SGD(model.parameters(), lr=hyper.lr, momentum=hyper.momentum_rate)
    for seed in range(10):
        x, target = random_batch(plan, 8, seed)
        network.train_batch(x, target, hyper)
        optimizer.zero_grad()
        nn.functional.mse_loss(
            model(dequantize(x, FEATURE)), dequantize(target, FEATURE)
        ).backward()
        optimizer.step()
    for name, parameter in model.named_parameters():
        got = dequantize(network.masters[name], WEIGHT.master)
        moved = (parameter - dequantize(start[name], WEIGHT.master)).norm()
        # The paths part by the gradients' quantisation, ten times over.
        assert (got - parameter).norm() < 1e-4 * moved, name


def test_a_skip_carries_the_error_past_a_block_whose_weights_are_zero():
    # With a block of zeros the sum is the skip alone, forward and backward.
    plan = make("identity")
    network = Network(plan)
    masters = random_masters(plan, 4)
    network.load(masters | {f"conv2.{p}": 0 * masters[f"conv2.{p}"] for p in ("weight", "bias")})
    x, target = random_batch(plan, 4, 1)
    record = {}
    network.train_batch(x, target, Hyper.of(plan, batch=4, lr=0.1), record)
    assert torch.equal(record["add.o_feature"], record["relu0.o_feature"])
    assert torch.equal(record["skip.i_error"], record["add.i_error"])
    assert not record["conv1.i_error"].any()


def test_inference_of_a_graph_equals_its_forward_pass():
    plan = make("branches")
    network = Network(plan)
    network.load(random_masters(plan, 5))
    x, target = random_batch(plan, 4, 2)
    hyper = Hyper.of(plan, batch=4, lr=0.1)
    inferred = network.infer(x)
    assert torch.equal(network.train_batch(x, target, hyper), inferred)


def test_a_segment_may_begin_in_the_middle_of_a_training():
    # Nothing in this plan is random, so the numbers change no bit.
    plan = make("double")
    x, target = random_batch(plan, 4, 2)
    hyper = Hyper.of(plan, batch=4, lr=0.1)
    networks = [Network(plan), Network(plan)]
    for network, numbers in zip(networks, ((), (400, 100)), strict=True):
        network.load(random_masters(plan, 5))
        network.start_segment(*numbers)
    first, later = (network.train_batch(x, target, hyper) for network in networks)
    assert torch.equal(first, later)
    assert (networks[0]._step.first_sample, networks[0]._step.batch) == (4, 1)
    assert (networks[1]._step.first_sample, networks[1]._step.batch) == (404, 101)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"errors": (True, False)},
            "add: the error for skip must be passed exactly where skip takes one (True), not "
            "False: set backward and errors so",
        ),
        (
            {"backward": False},
            "add: the error for conv2 must be passed exactly where conv2 takes one (True), not "
            "False: set backward and errors so",
        ),
    ],
)
def test_errors_that_meet_nobody_are_refused(changes, message):
    plan = make("identity")
    layers = [replace(x, **changes) if x.name == "add" else x for x in plan.layers]
    with pytest.raises(PlanError) as caught:
        Network(replace(plan, layers=tuple(layers)))
    assert str(caught.value) == message
