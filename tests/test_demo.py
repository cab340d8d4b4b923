"""The demo keeps its promises, or says which it does not; float32 trains by the same schedule."""

import copy
import json
import struct

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from gradweave.host import demo
from gradweave.host.data import Batches, Split
from gradweave.host.demo import measured_interval, run_demo
from gradweave.host.float_reference import float_accuracy, train_float
from gradweave.model.plan import Plan

KEPT = {
    "bit_exact": True,
    "test_accuracy": 0.97,
    "float_accuracy": 0.975,
    "interval_measured": 101.0,
    "interval_planned": 100,
}


def test_a_run_at_the_limit_of_every_promise_has_no_fault():
    assert demo._faults(KEPT) == []
    limits = {"test_accuracy": 0.95, "float_accuracy": 0.97, "interval_measured": 102.0}
    assert demo._faults(KEPT | limits) == []


BROKEN = {
    "bits": ({"bit_exact": False}, "hardware and golden model must be equal"),
    "accuracy": (
        {"test_accuracy": 0.9499, "float_accuracy": 0.95},
        "test_accuracy must be at least 0.95, not 0.9499",
    ),
    "float": (
        {"float_accuracy": 0.995},
        "test_accuracy must be within 0.02 of float32, 0.9950, not 0.9700",
    ),
    "interval": (
        {"interval_measured": 102.1},
        "interval must be planned as 100 cycles, not measured as 102.1",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_promise_is_named_alone(case):
    changes, message = BROKEN[case]
    assert demo._faults(KEPT | changes) == [message]


def test_all_broken_promises_are_named_together():
    worst = {"bit_exact": False, "test_accuracy": 0.1, "interval_measured": 300.0}
    assert len(demo._faults(KEPT | worst)) == 4


def test_the_interval_is_measured_between_first_and_last_logits():
    # Ten samples have nine intervals between them.
    assert measured_interval({"first_cycle": 500, "last_cycle": 1400, "samples": 10}) == 100.0
    assert measured_interval({"first_cycle": 7, "last_cycle": 10, "samples": 3}) == 1.5


def test_the_rate_falls_at_epoch_8():
    assert [demo.learning_rate(epoch) for epoch in (0, 7, 8, 9)] == [0.1, 0.1, 0.02, 0.02]


@pytest.fixture
def subject():
    generator = torch.Generator().manual_seed(3)
    x = torch.rand(14, 1, 2, 2, generator=generator)
    y = torch.randint(3, (14,), generator=generator)
    torch.manual_seed(4)
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 3)), Split(x[:10], y[:10], x[10:], y[10:])


OPTIONS = {"batch": 3, "epochs": 3, "lr": lambda epoch: 0.5 / (epoch + 1), "momentum": 0.5}


def by_hand(model, data, seed):
    """Heavy-ball SGD on softmax's gradient, (p - 1) times x, in the order of ``Batches``."""
    weight, bias = (tensor.detach().double().clone() for tensor in model[1].parameters())
    velocity = [torch.zeros_like(weight), torch.zeros_like(bias)]
    losses = []
    batches = Batches(data.train_x, data.train_y, 3, seed=seed)
    for epoch, rate in enumerate((0.5, 0.25, 0.5 / 3)):
        batches.set_epoch(epoch)
        total = 0.0
        for x, y in batches:
            flat = x.double().flatten(1)
            z = flat @ weight.T + bias
            p = z.exp() / z.exp().sum(1, keepdim=True)
            total -= float(p[torch.arange(3), y].log().sum())
            error = (p - F.one_hot(y, 3)) / 3
            for n, gradient in enumerate((error.T @ flat, error.sum(0))):
                velocity[n] = 0.5 * velocity[n] + gradient
            weight -= rate * velocity[0]
            bias -= rate * velocity[1]
        losses.append(total / 9)
    return weight, bias, losses


def test_float32_follows_the_schedule_and_the_order_of_the_mini_batches(subject):
    model, data = subject
    before = copy.deepcopy(model.state_dict())
    net, history = train_float(model, data, seed=5, **OPTIONS)
    weight, bias, losses = by_hand(model, data, 5)
    # float32 against float64, 9 steps.
    close = {"atol": 1e-5, "rtol": 0}
    assert torch.allclose(net[1].weight.double(), weight, **close)
    assert torch.allclose(net[1].bias.double(), bias, **close)
    assert [row["loss"] for row in history] == pytest.approx(losses, abs=1e-5)
    assert [row["epoch"] for row in history] == [1, 2, 3]
    assert history[-1]["validation_accuracy"] == float_accuracy(net, data)
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in before.items())
    # Another order or schedule is another run, by far more than that tolerance.
    for changes in ({"seed": 6}, {"lr": lambda epoch: 0.5}):
        other, _ = train_float(model, data, **{"seed": 5, **OPTIONS, **changes})
        assert (other[1].weight.double() - weight).abs().max() > 1e-3


def test_accuracy_is_the_share_of_right_answers():
    x = torch.eye(4).reshape(4, 1, 2, 2)
    y = torch.tensor([0, 1, 2, 0])
    assert float_accuracy(nn.Flatten(), Split(x, y, x, y)) == 0.75


def png_size(path):
    head = path.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", head[16:])


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_one_epoch_of_the_demo_leaves_all_it_promises(tmp_path, capsys):
    out, copied = tmp_path / "demo", tmp_path / "figures.json"
    assert run_demo(out, epochs=1, json_file=copied) == 0
    plan = Plan.from_json((out / "plan.json").read_text())
    assert (out / "board.v").read_text().count("\nmodule board(") == 1
    assert min(*png_size(out / "learning_curve.png"), *png_size(out / "occupancy.png")) > 200
    assert (out / "demo.safetensors").stat().st_size > 0
    summary = json.loads((out / "summary.json").read_text())
    assert json.loads(copied.read_text()) == summary
    assert summary["bit_exact"] is True
    assert summary["tensors_compared"] > 0
    assert summary["values_compared"] > summary["tensors_compared"]
    assert 0.1 < summary["test_accuracy"] <= 1
    assert 0.1 < summary["float_accuracy"] <= 1
    assert 1 <= summary["interval_measured"] / summary["interval_planned"] <= 1.02
    assert summary["identity"] == plan.identity
    assert summary["epochs"] == 1
    assert plan.identity in capsys.readouterr().out
