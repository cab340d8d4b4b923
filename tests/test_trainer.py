"""Training trains, resumes bit for bit, and gives weights that torch takes."""

import dataclasses
import os
import re
import signal
import sys
import time
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from gradweave.host.board_device import BoardDevice
from gradweave.host.data import Batches
from gradweave.host.golden_device import GoldenDevice
from gradweave.host.progress import Bar
from gradweave.host.quantize import quantize_samples
from gradweave.host.trainer import Trainer
from gradweave.model.errors import CheckpointError, GradweaveWarning, InputError
from gradweave.model.hyper import Hyper
from gradweave.model.plan import LossPlan
from gradweave.tests import killed_run
from gradweave.tests.fake_board import FakeBoard
from gradweave.tests.killed_run import (
    assert_same_weights,
    interrupt_once,
    make_loader,
    make_trainer,
    tensors_of,
)


def separable(count=48):
    """Bright rows, two to a label: easy to learn."""
    rows = torch.arange(count) % 8
    x = torch.zeros(count, 1, 8, 8)
    x[torch.arange(count), 0, rows] = 1.0
    return x, rows // 2


def test_fit_learns(hand_plan):
    x, y = separable()
    trainer = Trainer(make_trainer(hand_plan).device, lr=0.03, momentum=0.9)
    history = trainer.fit(Batches(x, y, 8), 3, validation=[(x, y)])
    assert [row["epoch"] for row in history] == [1, 2, 3]
    assert history[0]["accuracy"] < 0.5
    assert history[-1]["validation_accuracy"] == 1.0
    assert history[-1]["validation_loss"] < 0.1
    assert trainer.history == history
    assert trainer.epoch == 3
    assert trainer.evaluate([(x[:5], y[:5])]) == {
        "loss": pytest.approx(float(F.cross_entropy(trainer.predict(x[:5]), y[:5]))),
        "accuracy": 1.0,
        "samples": 5,
    }


def test_each_epoch_is_one_segment_of_the_device(hand_plan):
    trainer = make_trainer(hand_plan)
    x, y = separable(16)
    calls, numbers = [], []
    train = trainer.device.train

    def noted(*values, first_sample):
        calls.append(values[:3])
        numbers.append(first_sample)
        return train(*values, first_sample=first_sample)

    trainer.device.train = noted
    trainer.fit(Batches(x, y, 4, shuffle=False), 2)
    assert numbers == [0, 16]
    samples, targets, hyper = calls[0]
    assert torch.equal(samples, quantize_samples(hand_plan, x))
    assert samples.dtype == torch.int16
    assert torch.equal(targets, y)
    assert hyper == Hyper.of(hand_plan, batch=4, lr=0.03, momentum=0.9, weight_decay=0.01)


def test_the_rate_may_depend_on_the_epoch(hand_plan):
    device = make_trainer(hand_plan).device
    trainer = Trainer(device, lr=lambda epoch: 0.1 / (epoch + 1), schedule=lambda epoch: 0.5)
    history = trainer.fit(Batches(*separable(8), 4), 3)
    assert [row["lr"] for row in history] == [0.05, 0.025, 0.1 / 3 * 0.5]
    trainer = Trainer(device, lr=lambda epoch: -1.0)
    with pytest.raises(InputError, match=r"^lr must be finite and above 0, not -1\.0 in epoch 0$"):
        trainer.fit(Batches(*separable(8), 4), 1)


def test_a_second_fit_goes_on(hand_plan):
    once, twice = make_trainer(hand_plan), make_trainer(hand_plan)
    x, y = separable(16)
    once.fit(Batches(x, y, 4), 3)
    twice.fit(Batches(x, y, 4), 1)
    twice.fit(Batches(x, y, 4), 2)
    assert_same_weights(once, twice)
    assert twice.epoch == 3


def test_a_board_is_trained_like_the_golden_model(hand_plan, tmp_path):
    golden = make_trainer(hand_plan)
    device = BoardDevice(hand_plan, FakeBoard(hand_plan))
    device.write_parameters(golden.device.read_parameters()[0])
    board = Trainer(device, lr=0.03, momentum=0.9, weight_decay=0.01)
    x, y = separable(16)
    for trainer, name in ((golden, "golden"), (board, "board")):
        loader = Batches(x, y, 4)
        trainer.fit(loader, 2, checkpoint=tmp_path / name, validation=[(x, y)])
    assert_same_weights(golden, board)
    assert golden.history == board.history
    assert torch.equal(golden.predict(x), board.predict(x))
    assert board.counters["linear.version"] == 4


def test_the_weights_load_into_the_torch_model(hand_plan):
    trainer = make_trainer(hand_plan)
    x, y = separable(16)
    trainer.fit(Batches(x, y, 4), 2)
    model = nn.Sequential()
    model.add_module("conv", nn.Conv2d(1, 4, 3, padding=1))
    model.add_module("relu", nn.ReLU())
    model.add_module("pool", nn.MaxPool2d(2))
    model.add_module("flat", nn.Flatten())
    model.add_module("linear", nn.Linear(64, 10))
    model.load_state_dict(trainer.state_dict())
    # Working weights have 14 fraction bits and features 12, over 64 products of values up to 2.
    bound = 64 * 2 * 2.0**-12
    assert (model(x) - trainer.predict(x)).abs().max() < bound


def test_mean_squared_error_is_torchs(hand_plan):
    loss = LossPlan("mse", 10, hand_plan.loss.feature, hand_plan.loss.error)
    plan = dataclasses.replace(hand_plan, loss=loss)
    trainer = make_trainer(plan)
    x, y = separable(16)
    t = F.one_hot(y, 10).float()
    history = trainer.fit(Batches(x, t, 4), 3)
    assert history[-1]["loss"] < history[0]["loss"]
    found = trainer.evaluate([(x, t)])
    assert found == {"loss": pytest.approx(float(F.mse_loss(trainer.predict(x), t))), "samples": 16}


def test_saving_and_loading_give_the_same_run(hand_plan, tmp_path):
    straight, resumed = make_trainer(hand_plan), make_trainer(hand_plan)
    x, y = separable(16)
    straight.fit(Batches(x, y, 4), 2)
    straight.save(tmp_path / "a")
    resumed.load(tmp_path / "a")
    assert_same_weights(straight, resumed)
    assert resumed.history == straight.history
    straight.fit(Batches(x, y, 4), 1)
    resumed.fit(Batches(x, y, 4), 1)
    assert_same_weights(straight, resumed)


def test_resuming_restores_the_order_of_a_data_loader(hand_plan, tmp_path):
    straight = killed_run.run(hand_plan, tmp_path / "straight", 4)
    killed_run.run(hand_plan, tmp_path / "parts", 2)
    torch.rand(3)
    resumed = killed_run.run(hand_plan, tmp_path / "parts", 4, resume=True)
    assert_same_weights(straight, resumed)
    assert straight.history == resumed.history
    # A run that is complete already changes nothing.
    again = killed_run.run(hand_plan, tmp_path / "parts", 4, resume=True)
    assert_same_weights(straight, again)


def test_torchs_own_random_state_is_restored_too(hand_plan, tmp_path):
    def noisy(trainer, epochs, resume=False):
        x, y = separable(8)

        class Noise:
            def __iter__(self):
                yield x + torch.randn(x.shape), y

        return trainer.fit(Noise(), epochs, checkpoint=tmp_path / "a", resume=resume)

    torch.manual_seed(1)
    straight = make_trainer(hand_plan)
    noisy(straight, 4)
    torch.manual_seed(1)
    noisy(make_trainer(hand_plan), 2)
    torch.manual_seed(2)
    resumed = make_trainer(hand_plan)
    noisy(resumed, 4, resume=True)
    assert_same_weights(straight, resumed)


def test_resuming_without_a_checkpoint_starts_afresh(hand_plan, tmp_path):
    fresh = killed_run.run(hand_plan, tmp_path / "a", 1, resume=True)
    assert fresh.epoch == 1


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_run_resumes_to_the_very_weights(hand_plan, tmp_path, number):
    path, text = killed_run.killed(hand_plan, tmp_path, number, epochs=4, delay=0.1)
    assert (b"KeyboardInterrupt" in text) == (number == signal.SIGINT)
    resumed = killed_run.run(hand_plan, path, 4, resume=True)
    straight = killed_run.run(hand_plan, tmp_path / "straight", 4)
    assert_same_weights(straight, resumed)
    assert os.listdir(tmp_path).count("run.safetensors") == 1


@pytest.mark.parametrize("kind", ["golden", "board"])
@pytest.mark.parametrize("kept", [True, False])
def test_ctrl_c_leaves_a_device_that_can_go_on(hand_plan, tmp_path, kind, kept):
    straight = make_trainer(hand_plan)
    straight.fit(make_loader(hand_plan), 3)
    trainer = make_trainer(hand_plan)
    if kind == "board":
        device = BoardDevice(hand_plan, FakeBoard(hand_plan))
        device.write_parameters(trainer.device.read_parameters()[0])
        trainer = Trainer(device, lr=0.03, momentum=0.9, weight_decay=0.01)
    path = tmp_path / "a" if kept else None
    loader = make_loader(hand_plan)
    trainer.fit(loader, 1, checkpoint=path)
    before = tensors_of(trainer)
    trainer.device.train = interrupt_once(trainer.device, 16)
    with pytest.raises(KeyboardInterrupt):
        trainer.fit(loader, 2, checkpoint=path)
    assert all(torch.equal(before[name], tensor) for name, tensor in tensors_of(trainer).items())
    assert trainer.epoch == 1
    trainer.fit(loader, 3, checkpoint=path, resume=True)
    assert_same_weights(straight, trainer)
    assert trainer.history == straight.history


def test_ctrl_c_while_saving_keeps_the_old_checkpoint(hand_plan, tmp_path, monkeypatch):
    path = tmp_path / "a"
    killed_run.run(hand_plan, path, 1)
    before = path.read_bytes()
    trainer = make_trainer(hand_plan)

    def interrupt(_source, _target):
        signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", interrupt)
        with pytest.raises(KeyboardInterrupt):
            trainer.fit(make_loader(hand_plan), 2, checkpoint=path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["a"]


def test_a_damaged_checkpoint_stops_the_run_before_it_starts(hand_plan, tmp_path):
    path = tmp_path / "a"
    trainer = killed_run.run(hand_plan, path, 1)
    before = tensors_of(trainer)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=f"^{re.escape(str(path))} is cut short"):
        trainer.fit(make_loader(hand_plan), 2, checkpoint=path, resume=True)
    assert all(torch.equal(before[name], tensor) for name, tensor in tensors_of(trainer).items())


def test_the_bar_shows_speed_on_a_terminal_and_nothing_elsewhere(monkeypatch, capfd):
    with Bar(True) as bar:
        bar.start("epoch 1", 4)
        bar.update(2)
        bar.finish("loss 1.0")
    assert capfd.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "100")
    with Bar(True) as bar:
        bar.start("epoch 1", 4)
        bar.update(2)
        time.sleep(0.01)
        bar.update(4)
        bar.finish("loss 1.0, 123 cycles")
    text = capfd.readouterr().err
    assert "epoch 1" in text
    assert "4/4" in text
    assert "samples/s" in text
    assert "123 cycles" in text


def test_saturation_reaches_the_user(hand_plan):
    trainer = Trainer(GoldenDevice(hand_plan), lr=0.1)
    masters, _ = trainer.device.read_parameters()
    for name in masters:
        masters[name].fill_(2**31 - 1)
    trainer.device.write_parameters(masters)
    x, y = separable(8)
    with pytest.warns(GradweaveWarning) as seen:
        history = trainer.fit(Batches(x, y, 4), 1)
    texts = [str(warning.message) for warning in seen]
    # All weights are almost 8: each of the 10 logits of each sample exceeds 8.
    assert (
        "linear.o_feature saturated at 100.0 % of its values: give it fewer fraction bits in "
        "formats, or lower lr"
    ) in texts
    assert history[0]["saturated"] == sum(trainer.counters.values()) > 80
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer.fit(Batches(x, y, 4), 1)
