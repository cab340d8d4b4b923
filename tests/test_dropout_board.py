"""Boards with dropouts train to the golden model's bits, and go on in their random streams."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import gradweave as gw
from gradweave.host.board_device import BoardDevice
from gradweave.host.golden_device import GoldenDevice
from gradweave.host.trainer import Trainer
from gradweave.host.verify import verify
from gradweave.model.errors import InputError
from gradweave.sim.simulate import simulate
from gradweave.tests import killed_run
from gradweave.tests.fake_board import FakeBoard
from gradweave.tests.plans import chain, conv, dropout, linear, relu
from gradweave.tests.small_board import BATCH, assert_same_state, data, hyper, masters

SEED = 2**63 + 5


def plan_of(delay=1):
    """A dropout of two lanes behind a convolution and one of one lane behind a ReLU."""
    late = {"delay": delay, "back_delay": delay}
    return chain(
        (1, 5, 5),
        conv("conv", 4, kernel=3, padding=1, a=2, b=1, **late),
        dropout("first", 1 << 15, number=0, lanes=2, seed=SEED),
        relu("relu", lanes=2),
        dropout("second", 13107, number=1, lanes=1, seed=SEED),
        linear("last", 3, a=1, b=1, **late),
        sized=True,
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_tensor_of_a_torch_model_with_dropouts_is_the_golden_models():
    torch.manual_seed(3)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.ReLU(),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(100, 6),
        nn.Dropout(),
        nn.Linear(6, 3),
    )
    design = gw.compile(model, torch.randn(8, 1, 5, 5), batch=BATCH, seed=9, versions="delayed")
    dropouts = [layer for layer in design.plan.layers if layer.kind == "dropout"]
    assert [(x.drop, x.number, x.seed) for x in dropouts] == [(1 << 14, 0, 9), (1 << 15, 1, 9)]
    x, y = data(design.plan, 4)
    report = verify(design, x, y, hyper(design.plan), stalls=0.3, seed=1)
    report.raise_for_difference()
    assert report.bit_exact
    for layer in dropouts:
        assert {f"{layer.name}.o_feature", f"{layer.name}.i_error"} <= report.values.keys()


@pytest.mark.timeout(300)
def test_segments_with_inference_between_them_go_on_in_the_random_stream():
    plan = plan_of()
    golden = GoldenDevice(plan)
    golden.write_parameters(masters(plan))
    first = 2**32 - 2 * BATCH  # numbers of samples wrap in the first segment
    with simulate(plan, stalls=0.2, seed=3) as simulation:
        device = BoardDevice(plan, simulation)
        device.write_parameters(masters(plan))
        for seed, number in ((2, first), (3, first + 3 * BATCH), (4, 0)):
            x, y = data(plan, 3, seed)
            logits = device.train(x, y, hyper(plan), first_sample=number)
            assert torch.equal(logits, golden.train(x, y, hyper(plan), first_sample=number))
            counters = device.counters()
            for name, count in golden.counters().items():
                assert counters[name] == count, name
            assert counters["first_sample"] == number % 2**32
            assert torch.equal(device.infer(x[:5]), golden.infer(x[:5]))
            assert_same_state(device, golden)


def test_a_training_in_two_segments_is_the_training_in_one():
    plan = plan_of(delay=0)
    x, y = data(plan, 6)
    straight, parts, repeated = (GoldenDevice(plan) for _ in range(3))
    for device in (straight, parts, repeated):
        device.write_parameters(masters(plan))
    straight.train(x, y, hyper(plan))
    half = 3 * BATCH
    for device, number in ((parts, half), (repeated, 0)):
        device.train(x[:half], y[:half], hyper(plan))
        device.train(x[half:], y[half:], hyper(plan), first_sample=number)
    assert_same_state(parts, straight)
    with pytest.raises(AssertionError):
        assert_same_state(repeated, straight)


def test_another_seed_gives_other_weights():
    plan = plan_of()
    x, y = data(plan, 2)
    trained = []
    for seed in (SEED, SEED + 1):
        layers = [replace(n, seed=seed) if n.kind == "dropout" else n for n in plan.layers]
        device = GoldenDevice(replace(plan, layers=tuple(layers)))
        device.write_parameters(masters(plan))
        device.train(x, y, hyper(plan))
        trained.append(device.peek("last.weight"))
    assert not torch.equal(*trained)


@pytest.mark.parametrize("board", [False, True])
def test_resuming_goes_on_with_the_samples_of_an_uninterrupted_run(tmp_path, board):
    plan = plan_of()

    def trainer():
        device = killed_run.make_trainer(plan).device
        if board:
            start = device.read_parameters()[0]
            device = BoardDevice(plan, FakeBoard(plan))
            device.write_parameters(start)
        return Trainer(device, lr=0.03, momentum=0.9)

    straight = trainer()
    straight.fit(killed_run.make_loader(plan), 4, checkpoint=tmp_path / "straight")
    parts = trainer()
    parts.fit(killed_run.make_loader(plan), 1, checkpoint=tmp_path / "parts")
    resumed = trainer()
    loader = killed_run.make_loader(plan)
    resumed.fit(loader, 3, checkpoint=tmp_path / "parts", resume=True)
    resumed.fit(loader, 1)
    killed_run.assert_same_weights(straight, resumed)
    assert straight.history == resumed.history
    # Without the count of samples the masks of the first epoch would come again.
    forgetful = trainer()
    forgetful.load(tmp_path / "parts")
    forgetful._state.samples = 0
    forgetful.fit(killed_run.make_loader(plan), 4, resume=True)
    assert forgetful.history != straight.history


@pytest.mark.parametrize("number", [-1, 1.0, True])
def test_a_wrong_number_of_the_first_sample_is_refused(number):
    plan = plan_of()
    x, y = data(plan, 1)
    for device in (GoldenDevice(plan), BoardDevice(plan, FakeBoard(plan))):
        with pytest.raises(InputError) as caught:
            device.train(x, y, hyper(plan), first_sample=number)
        assert str(caught.value) == (
            f"first_sample must be an integer of at least 0, not {number!r}"
        )
