"""Training in simulated hardware gives the golden model's bits, also when it is interrupted."""

import os
import re
import signal

import pytest
import torch
from torch import nn

from gradweave.host.board_device import BoardDevice
from gradweave.host.golden_device import GoldenDevice
from gradweave.host.trainer import Trainer
from gradweave.model.errors import InputError
from gradweave.sim import simulate as simulate_module
from gradweave.sim.simulate import simulate
from gradweave.tests import killed_run
from gradweave.tests.killed_run import (
    assert_same_weights,
    interrupt_once,
    make_loader,
    make_trainer,
    tensors_of,
)
from gradweave.tests.small_board import assert_same_state, data, hyper, masters, small_board

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def plan():
    return small_board()


@pytest.fixture(scope="module")
def simulation(plan):
    with simulate(plan) as simulation:
        yield simulation


@pytest.fixture
def trainer(plan, simulation):
    """A trainer like ``make_trainer(plan)`` on the shared simulated board."""
    simulation.reset()
    device = BoardDevice(plan, simulation)
    device.write_parameters(make_trainer(plan).device.read_parameters()[0])
    return Trainer(device, lr=0.03, momentum=0.9, weight_decay=0.01)


@pytest.fixture(scope="module")
def straight(plan):
    """Three epochs of the golden model without any interruption."""
    golden = make_trainer(plan)
    golden.fit(make_loader(plan), 3)
    return golden


def test_fit_gives_the_golden_models_history_weights_and_momenta(plan, trainer):
    golden = make_trainer(plan)
    held_out = list(make_loader(plan))[:3]
    for each in (golden, trainer):
        each.fit(make_loader(plan), 2, validation=held_out)
    assert trainer.history == golden.history
    assert_same_weights(trainer, golden)
    assert any(tensor.any() for tensor in trainer.device.read_parameters()[1].values())
    x = torch.cat([x for x, _ in held_out])
    assert torch.equal(trainer.predict(x), golden.predict(x))


def test_a_checkpoint_goes_on_in_another_simulated_board(plan, trainer, straight, tmp_path):
    loader = make_loader(plan)
    trainer.fit(loader, 1)
    trainer.save(tmp_path / "a")
    other = make_trainer(plan, kind="simulated")
    other.load(tmp_path / "a")
    assert_same_weights(other, trainer)
    assert other.history == trainer.history
    other.fit(make_loader(plan), 3, resume=True)
    assert_same_weights(other, straight)
    assert other.history == straight.history
    other.device.close()


def test_ctrl_c_in_mid_segment_leaves_a_board_that_goes_on(plan, trainer, straight, monkeypatch):
    loader = make_loader(plan)
    trainer.fit(loader, 1)
    before = tensors_of(trainer)
    # Slices of so few cycles that the signal comes while samples are in the pipeline.
    monkeypatch.setattr(simulate_module, "SLICE_SECONDS", 1e-9)
    trainer.device.transport.step(1 << 20)
    seen = []
    exchange = trainer.device.transport.exchange

    def watched(words, lasts, expect, progress=None):
        def note(given):
            seen.append((given, expect))
            progress(given)

        return exchange(words, lasts, expect, note if progress else None)

    with monkeypatch.context() as patch:
        patch.setattr(trainer.device.transport, "exchange", watched)
        patch.setattr(trainer.device, "train", interrupt_once(trainer.device, 8))
        with pytest.raises(KeyboardInterrupt):
            trainer.fit(loader, 2)
    given, expect = seen[-1]
    assert 0 < given < expect
    assert all(torch.equal(before[name], tensor) for name, tensor in tensors_of(trainer).items())
    assert trainer.epoch == 1
    trainer.fit(loader, 3, resume=True)
    assert_same_weights(trainer, straight)
    assert trainer.history == straight.history


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_run_on_a_board_resumes_to_the_very_weights(
    plan, simulation, straight, tmp_path, number
):
    path, text = killed_run.killed(plan, tmp_path, number, epochs=3, delay=1.0, kind="simulated")
    assert (b"KeyboardInterrupt" in text) == (number == signal.SIGINT)
    resumed = killed_run.run(plan, path, 3, resume=True, kind="simulated")
    assert_same_weights(resumed, straight)
    assert resumed.history == straight.history
    assert os.listdir(tmp_path).count("run.safetensors") == 1
    resumed.device.close()


def float_model():
    model = nn.Sequential()
    model.add_module("conv", nn.Conv2d(1, 4, 3, padding=1))
    model.add_module("relu", nn.ReLU())
    model.add_module("pool", nn.MaxPool2d(2))
    model.add_module("flat", nn.Flatten())
    model.add_module("linear", nn.Linear(36, 3))
    return model.double()


def worst_difference(plan, model, x):
    """What rounding of inputs, weights, features and logits can change of a logit, at most."""
    conv, linear = model.conv, model.linear
    half = {name: 0.5 * plan.layer(name).weight.working.step for name in ("conv", "linear")}
    feature = 0.5 * plan.loss.feature.step
    inside = conv.weight[0].numel() * (
        half["conv"] * (float(x.abs().max()) + feature) + feature * float(conv.weight.abs().max())
    )
    features = inside + half["conv"] + feature
    values = float(model.relu(conv(x)).max()) + features
    outside = linear.in_features * (
        half["linear"] * values + features * float(linear.weight.abs().max())
    )
    return outside + half["linear"] + feature


def test_trained_weights_load_into_torch_and_predict_like_the_board(plan, trainer):
    trainer.fit(make_loader(plan), 2)
    model = float_model()
    assert model.load_state_dict(trainer.state_dict()).missing_keys == []
    generator = torch.Generator().manual_seed(9)
    x = torch.rand(64, *plan.input_shape, generator=generator)
    with torch.no_grad():
        expected = model(x.double())
        bound = worst_difference(plan, model, x.double())
    assert bound < expected.std() / 2
    assert (expected - trainer.predict(x)).abs().max() <= bound


def test_peek_and_poke_reach_one_tensor_in_both_devices(plan, simulation):
    simulation.reset()
    board, golden = BoardDevice(plan, simulation), GoldenDevice(plan)
    x, y = data(plan, 3)
    generator = torch.Generator().manual_seed(8)
    for device in (board, golden):
        device.write_parameters(masters(plan))
        device.train(x, y, hyper(plan))
    for name, values in golden.read_parameters()[0].items():
        assert torch.equal(board.peek(name), values)
        assert torch.equal(golden.peek(name), values)
        fresh = torch.randint(-(1 << 31), 1 << 31, values.shape, generator=generator)
        for device in (board, golden):
            device.poke(name, fresh)
            assert torch.equal(device.peek(name), fresh)
        assert_same_state(board, golden)
    for device in (board, golden):
        device.poke("linear.bias", torch.tensor([1 << 28, 0, -(1 << 28)]))
        device.poke("linear.weight", torch.zeros(3, 36, dtype=torch.int64))
        # Without weights, logits are the biases: 1, 0 and -1, with 10 fraction bits.
        assert device.infer(x[:2]).tolist() == [[1024, 0, -1024]] * 2
    assert torch.equal(board.train(x, y, hyper(plan)), golden.train(x, y, hyper(plan)))
    assert_same_state(board, golden)


NAMES = ["conv.weight", "conv.bias", "linear.weight", "linear.bias"]
BAD_POKES = {
    "name": ("conv", torch.zeros(4), f"name must be one of {NAMES}, not 'conv'"),
    "no_weight": ("relu.weight", torch.zeros(4), f"name must be one of {NAMES}, not 'relu.weight'"),
    "shape": (
        "linear.weight",
        torch.zeros(36, 3, dtype=torch.int64),
        "linear.weight must have shape [3, 36], not [36, 3]",
    ),
    "dtype": (
        "conv.bias",
        torch.zeros(4),
        "conv.bias must be integers in the device's format, not float32",
    ),
    "range": (
        "conv.bias",
        torch.full((4,), 1 << 31),
        "conv.bias must be -2147483648 to 2147483647 in format s32.28, not 2147483648",
    ),
}


@pytest.mark.parametrize("case", BAD_POKES)
def test_a_poke_that_cannot_be_is_refused_and_changes_nothing(plan, simulation, case):
    name, values, message = BAD_POKES[case]
    simulation.reset()
    for device in (BoardDevice(plan, simulation), GoldenDevice(plan)):
        device.write_parameters(masters(plan))
        with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
            device.poke(name, values)
        if name not in NAMES:
            with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
                device.peek(name)
        found = device.read_parameters()[0]
        assert all(torch.equal(found[key], tensor) for key, tensor in masters(plan).items())
