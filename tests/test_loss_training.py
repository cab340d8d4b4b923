"""Small networks train under every loss: golden model as the slow definition, boards as the golden
model, and the trainer as torch.
"""

import copy
import dataclasses
import re
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import gradweave as gw
from gradweave.host import packets
from gradweave.host.board_device import BoardDevice
from gradweave.host.golden_device import GoldenDevice
from gradweave.host.trainer import Trainer
from gradweave.model.formats import Format
from gradweave.model.network import Network
from gradweave.model.plan import LossPlan
from gradweave.model.registers import Command, ErrorBit
from gradweave.model.schedule import size_buffers, steady_interval
from gradweave.sim.simulate import simulate
from gradweave.tests.fake_board import FakeBoard
from gradweave.tests.golden.trainer import SlowNetwork
from gradweave.tests.plans import ERROR, FEATURE, chain, linear, relu
from gradweave.tests.small_board import BATCH, assert_same_state, hyper, masters

LOSSES = {
    "weighted": LossPlan(
        "cross_entropy",
        3,
        FEATURE,
        ERROR,
        class_weights=(3, 1, 2),
        weight_frac=1,
        ignore_index=-100,
    ),
    "huber": LossPlan("huber", 3, FEATURE, ERROR, delta=700),
    "binary_cross_entropy": LossPlan("binary_cross_entropy", 3, FEATURE, ERROR),
}


def perceptron(name):
    plan = chain(
        (6, 1, 1),
        linear("hidden", 4, a=2, b=1, delay=4, back_delay=4),
        relu("relu", lanes=2),
        linear("out", 3, a=1, b=2, delay=4, back_delay=4),
    )
    return size_buffers(dataclasses.replace(plan, loss=LOSSES[name]))


def data(plan, batches, seed=2):
    generator = torch.Generator().manual_seed(seed)
    count = batches * BATCH
    x = torch.randint(-(1 << 11), 1 << 11, (count, *plan.input_shape), generator=generator)
    low, high = plan.loss.target_range
    shape = (count,) if plan.loss.labels else (count, plan.loss.outputs)
    return x, torch.randint(low, high + 1, shape, generator=generator)


@pytest.mark.parametrize("name", LOSSES)
def test_the_golden_model_trains_as_the_slow_definition(name):
    plan = perceptron(name)
    fast, slow = Network(plan), SlowNetwork(plan, masters(plan))
    fast.load(masters(plan))
    x, y = data(plan, 3)
    for n in range(3):
        part = slice(n * BATCH, (n + 1) * BATCH)
        record = {}
        fast.train_batch(x[part], y[part], hyper(plan), record)
        expected = slow.train_batch(x[part], y[part], hyper(plan))
        assert torch.equal(record["loss.error"].long(), expected["loss.error"])
    for tensor, values in fast.masters.items():
        assert torch.equal(values, slow.masters[tensor])
    assert fast.saturated == slow.saturated


@pytest.mark.parametrize("name", LOSSES)
def test_a_board_trains_bit_for_bit_and_names_bad_targets(name):
    plan = perceptron(name)
    with simulate(plan) as simulation:
        device, golden = BoardDevice(plan, simulation), GoldenDevice(plan)
        for each in (device, golden):
            each.write_parameters(masters(plan))
        x, y = data(plan, 16)
        assert torch.equal(device.train(x, y, hyper(plan)), golden.train(x, y, hyper(plan)))
        counters = device.counters()
        for counter, count in golden.counters().items():
            assert counters[counter] == count, counter
        assert torch.equal(device.infer(x[:3]), golden.infer(x[:3]))
        assert_same_state(device, golden)
        # The first samples find the loss idle: logits run ahead by what its buffers hold.
        span = counters["last_cycle"] - counters["first_cycle"]
        ahead = (counters["samples"] - 1) * steady_interval(plan) - span
        assert 0 <= ahead <= 3 * steady_interval(plan)

        device.write_register("batch", BATCH)
        device.write_register("command", Command.TRAIN)
        simulation.step(500)
        samples = x[:BATCH].to(torch.int16).numpy()
        words, lasts = packets.pack_samples(plan, samples, y[:BATCH].numpy())
        if name != "huber":
            words[1] = plan.loss.target_range[1] + 1
        simulation.exchange(words, lasts, BATCH * packets.answer_words(plan))
        assert device.read_register("errors") == (name != "huber") << ErrorBit.LABEL


@pytest.mark.parametrize("name", LOSSES)
def test_targets_out_of_range_never_reach_a_device(name):
    plan = perceptron(name)
    x, y = data(plan, 1)
    y.view(-1)[-1] = plan.loss.target_range[1] + 1
    messages = {
        "weighted": "targets must be labels from 0 to 2 or 3 for ignored samples, not 4 at index 3",
        "huber": "targets must be -32768 to 32767 in format s16.10, not 32768",
        "binary_cross_entropy": "targets must be 0 to 1024, that is 0 to 1, not 1025 at [3, 2]",
    }
    for device in (GoldenDevice(plan), BoardDevice(plan, FakeBoard(plan))):
        with pytest.raises(gw.InputError, match=f"^{re.escape(messages[name])}$"):
            device.train(x, y, hyper(plan))


X = torch.randn(32, 5, generator=torch.Generator().manual_seed(3))
LABELS = torch.randint(3, (32,), generator=torch.Generator().manual_seed(4))
VALUES = torch.randn(32, 3, generator=torch.Generator().manual_seed(5))
UNIT = (VALUES > 0).float() * 0.875
WEIGHTS = torch.tensor([0.5, 2.0, 1.0])
TORCH = {
    "entropy": (nn.CrossEntropyLoss(), LABELS, 0.2),
    "entropy_sum": (nn.CrossEntropyLoss(reduction="sum"), LABELS, 0.02),
    "weighted": (
        nn.CrossEntropyLoss(WEIGHTS, ignore_index=2, reduction="sum"),
        LABELS,
        0.02,
    ),
    "mse": (nn.MSELoss(), VALUES, 0.2),
    "mse_sum": (nn.MSELoss(reduction="sum"), VALUES, 0.01),
    "huber": (nn.HuberLoss(delta=0.5), VALUES, 0.4),
    "huber_sum": (nn.HuberLoss(reduction="sum"), VALUES, 0.02),
    "smooth": (nn.SmoothL1Loss(beta=0.25), VALUES, 0.2),
    "bce": (nn.BCEWithLogitsLoss(), UNIT, 0.5),
    "bce_sum": (nn.BCEWithLogitsLoss(reduction="sum"), UNIT, 0.02),
}
# Of weights up to 1: steps of 2**-12 in weights and logits, over 16 updates of rates as above.
WEIGHT_TOLERANCE = 4e-3


def small_model():
    torch.manual_seed(6)
    # Without ReLU, whose derivative jumps: a rounding could pass another error down.
    return nn.Sequential(nn.Linear(5, 6), nn.Linear(6, 3))


def batches(x, y):
    return [(x[n : n + 8], y[n : n + 8]) for n in range(0, len(x), 8)]


@pytest.mark.parametrize("case", TORCH)
def test_the_trainer_follows_torchs_own_training(case):
    criterion, y, lr = TORCH[case]
    model = small_model()
    design = gw.compile(model, X, loss=criterion, targets=y, batch=8)
    trainer = Trainer(design.golden(), lr=lr, momentum=0.5)
    history = trainer.fit(batches(X, y), 4, progress=False)
    assert history[-1]["loss"] < history[0]["loss"]
    twin = copy.deepcopy(model)
    optimizer = torch.optim.SGD(twin.parameters(), lr=lr, momentum=0.5)
    for _ in range(4):
        for part, target in batches(X, y):
            optimizer.zero_grad()
            criterion(twin(part), target).backward()
            optimizer.step()
    moved = max(
        float((twin.state_dict()[name] - value).abs().max())
        for name, value in model.state_dict().items()
    )
    assert moved > 10 * WEIGHT_TOLERANCE
    for name, value in trainer.state_dict().items():
        assert (value - twin.state_dict()[name]).abs().max() < WEIGHT_TOLERANCE, name
    # Evaluation tells torch's mean, whatever the reduction.
    mean = copy.copy(criterion)
    mean.reduction = "mean"
    found = trainer.evaluate([(X, y)])
    assert found["loss"] == pytest.approx(float(mean(trainer.predict(X), y)), abs=2e-3)
    assert ("accuracy" in found) == (y is LABELS)


@pytest.mark.parametrize("loss", ["huber", "bce_with_logits"])
def test_a_loss_by_name_trains_like_its_module(loss):
    module = {"huber": nn.HuberLoss(), "bce_with_logits": nn.BCEWithLogitsLoss()}[loss]
    plans = [
        gw.compile(small_model(), X, loss=each, targets=UNIT, batch=8).plan
        for each in (loss, module)
    ]
    assert plans[0] == plans[1]


def ignoring(**options):
    return gw.compile(
        small_model(), X, loss=nn.CrossEntropyLoss(**options), targets=LABELS, batch=8
    )


def test_accuracy_counts_labels_that_are_not_ignored():
    design = ignoring(ignore_index=-1, reduction="sum")
    trainer = Trainer(design.golden(), lr=0.01)
    right = trainer.predict(X).argmax(1)
    y = right.clone()
    y[:16] = -1
    y[16:20] = (y[16:20] + 1) % 3
    found = trainer.evaluate([(X, y)])
    assert (found["accuracy"], found["samples"]) == (0.75, 32)
    expected = F.cross_entropy(trainer.predict(X), y, ignore_index=-1)
    assert found["loss"] == pytest.approx(float(expected))


def test_ignored_labels_change_no_weight():
    trainer = Trainer(ignoring(ignore_index=-1, reduction="sum").golden(), lr=0.1)
    before = trainer.state_dict()
    y = torch.full((32,), -1)
    y[0] = 1
    trainer.fit([(X[8:16], y[8:16]), (X[:8], y[:8])], 1, progress=False)
    alone = Trainer(ignoring(ignore_index=-1, reduction="sum").golden(), lr=0.1)
    alone.fit([(X[:8], y[:8])], 1, progress=False)
    for name, value in alone.state_dict().items():
        assert torch.equal(trainer.state_dict()[name], value)
        assert not torch.equal(before[name], value)


def test_ignored_labels_under_a_mean_are_warned_of_once():
    trainer = Trainer(ignoring().golden(), lr=0.1)
    y = LABELS.clone()
    y[3:5] = -100
    message = "^2 of 32 labels are ignored: reduction='mean' divides by all samples"
    with pytest.warns(gw.GradweaveWarning, match=message):
        trainer.fit(batches(X, y), 1, progress=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer.fit(batches(X, y), 1, progress=False)


def test_labels_that_are_all_ignored_are_refused():
    trainer = Trainer(ignoring(ignore_index=1).golden(), lr=0.1)
    message = (
        "loader must give a label that is not ignored and whose class weight is above 0, and has "
        "none in 8 samples"
    )
    with pytest.raises(gw.InputError, match=f"^{message}$"):
        trainer.evaluate([(X[:8], torch.ones(8, dtype=torch.int64))])


def test_targets_are_checked_by_their_loss():
    design = gw.compile(small_model(), X, loss="bce_with_logits", batch=8)
    trainer = Trainer(design.golden(), lr=0.1)
    y = UNIT[:8].clone()
    y[3, 2] = 1.5
    message = "y of mini-batch 0 must be values from 0 to 1, not 1.5 at [3, 2]"
    with pytest.raises(gw.InputError, match=f"^{re.escape(message)}$"):
        trainer.fit([(X[:8], y)], 1)
    message = "y of mini-batch 0 must be float32 or float64 for binary_cross_entropy, not int64"
    with pytest.raises(gw.InputError, match=f"^{message}$"):
        trainer.fit([(X[:8], y.long())], 1)
    trainer = Trainer(ignoring(ignore_index=-1).golden(), lr=0.1)
    message = "y of mini-batch 0 must be labels from 0 to 2 or ignore_index = -1, not -2 at index 5"
    labels = LABELS[:8].clone()
    labels[5] = -2
    with pytest.raises(gw.InputError, match=f"^{message}$"):
        trainer.fit([(X[:8], labels)], 1)


def test_an_input_format_by_hand_reaches_the_loss():
    formats = {"1.feature": Format(12, 6)}
    design = gw.compile(small_model(), X, loss="bce_with_logits", batch=8, formats=formats)
    assert design.plan.loss.target_range == (0, 64)
