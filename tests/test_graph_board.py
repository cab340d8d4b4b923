"""Boards with forks and joins train to the golden model's bits, in every tensor, at any stalls."""

from dataclasses import replace

import pytest
import torch

from gradweave.host import packets
from gradweave.host.board_device import BoardDevice
from gradweave.host.design import Design
from gradweave.host.golden_device import GoldenDevice
from gradweave.host.verify import verify
from gradweave.model.errors import DeviceError
from gradweave.model.registers import Command
from gradweave.sim.simulate import simulate
from gradweave.tests.graphs import BOARDS, make, with_least_buffers
from gradweave.tests.plans import add, conv, fork, graph, linear
from gradweave.tests.small_board import BATCH, assert_same_state, data, hyper, masters

pytestmark = pytest.mark.timeout(900)

FLUSH, DELAYED = (0, 0), (2, 1)
# The boards that the quick tests build; the others are slow.
QUICK = {("double", DELAYED)}
CASES = [
    pytest.param(name, late, id=f"{name}-{'delayed' if late[0] else 'flush'}")
    if (name, late) in QUICK
    else pytest.param(
        name, late, id=f"{name}-{'delayed' if late[0] else 'flush'}", marks=pytest.mark.slow
    )
    for name in BOARDS
    for late in (FLUSH, DELAYED)
]


@pytest.mark.parametrize(("name", "late"), CASES)
def test_every_tensor_of_a_graph_is_the_golden_models(name, late):
    plan = make(name, *late)
    x, y = data(plan, 4)
    report = verify(Design(plan, masters(plan)), x, y, hyper(plan), stalls=0.3, seed=1)
    report.raise_for_difference()
    assert report.bit_exact
    # Joins have what they add and what they copy; a fork only the sum of its errors.
    for layer in plan.layers:
        assert (f"{layer.name}.o_feature" in report.values) == (layer.kind != "fork")
        assert (f"{layer.name}.i_error" in report.values) == layer.backward


def test_training_inference_and_training_again_after_a_reset_equal_the_golden_model():
    plan = make("double", *DELAYED, probes=True)
    golden = GoldenDevice(plan)
    golden.write_parameters(masters(plan))
    with simulate(plan, stalls=0.2, seed=3) as simulation:
        device = BoardDevice(plan, simulation)
        device.write_parameters(masters(plan))
        for seed in (2, 3):
            x, y = data(plan, 3, seed)
            assert torch.equal(device.train(x, y, hyper(plan)), golden.train(x, y, hyper(plan)))
            counters = device.counters()
            for name, count in golden.counters().items():
                assert counters[name] == count, name
            assert torch.equal(device.infer(x[:5]), golden.infer(x[:5]))
            assert_same_state(device, golden)
            # Features and errors on every edge are left in the board.
            device.write_register("batch", BATCH)
            device.write_register("command", Command.TRAIN)
            simulation.step(500)
            words, lasts = packets.pack_samples(plan, x[:3].to(torch.int16).numpy(), y[:3].numpy())
            simulation.exchange(words[:-5], lasts[:-5], 2 * packets.answer_words(plan))
            device.write_register("command", Command.RESET)


@pytest.mark.slow
@pytest.mark.parametrize(("depth", "trains"), [(6, False), (7, True)])
def test_a_skip_trains_at_the_least_depth_and_deadlocks_below_it(depth, trains):
    """The convolution gives its first word once 8 are in; the fork gives it its 8th while the skip
    does not yet take it.
    """
    specs = (
        fork("skip"),
        conv("conv", 1, kernel=3, padding=1),
        add("add").on("conv", "skip"),
        linear("fc", 2),
    )
    plan = with_least_buffers(graph((1, 4, 4), *specs, batch_max=BATCH))
    layers = [
        replace(x, buffers=replace(x.buffers, join_words=(1, depth))) if x.kind == "add" else x
        for x in plan.layers
    ]
    shallow = replace(plan, layers=tuple(layers))
    golden = GoldenDevice(shallow)
    golden.write_parameters(masters(shallow))
    x, y = data(shallow, 3)
    with simulate(shallow) as simulation:
        device = BoardDevice(shallow, simulation)
        device.write_parameters(masters(shallow))
        if trains:
            logits = device.train(x, y, hyper(shallow))
            assert torch.equal(logits, golden.train(x, y, hyper(shallow)))
            assert_same_state(device, golden)
        else:
            with pytest.raises(DeviceError, match="board must move a word within"):
                device.train(x, y, hyper(shallow))
