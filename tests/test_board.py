"""The whole board in simulation: registers, packets, modes, counters, misuse and reset."""

import numpy as np
import pytest
import torch

from gradweave.host import packets
from gradweave.host.board_device import BoardDevice
from gradweave.host.golden_device import GoldenDevice
from gradweave.model.errors import DeviceError
from gradweave.model.plan import Plan
from gradweave.model.registers import MAGIC, Command, ErrorBit, PacketKind, header
from gradweave.model.schedule import steady_interval
from gradweave.sim.simulate import simulate
from gradweave.tests.plans import chain, linear
from gradweave.tests.small_board import (
    BATCH,
    assert_same_state,
    data,
    hyper,
    masters,
    small_board,
)


@pytest.fixture(scope="module")
def plan() -> Plan:
    return small_board(probes=True)


@pytest.fixture(scope="module")
def transport(plan):
    with simulate(plan, stalls=0.2, seed=3) as simulation:
        yield simulation


@pytest.fixture
def device(plan, transport):
    transport.reset()
    device = BoardDevice(plan, transport)
    device.write_parameters(masters(plan))
    return device


def test_training_inference_and_training_again_equal_the_golden_model(plan, device):
    golden = GoldenDevice(plan)
    golden.write_parameters(masters(plan))
    for seed in (2, 3):
        x, y = data(plan, 5, seed)
        assert torch.equal(device.train(x, y, hyper(plan)), golden.train(x, y, hyper(plan)))
        counters = device.counters()
        for name, count in golden.counters().items():
            assert counters[name] == count, name
        assert torch.equal(device.infer(x[:3]), golden.infer(x[:3]))
        assert_same_state(device, golden)


def test_memories_start_at_zero_as_in_the_golden_model(plan):
    with simulate(plan) as simulation:
        device, golden = BoardDevice(plan, simulation), GoldenDevice(plan)
        assert_same_state(device, golden)
        # Not even a parameter needs to be written before the first segment.
        x, y = data(plan, 3)
        assert torch.equal(device.train(x, y, hyper(plan)), golden.train(x, y, hyper(plan)))
        assert_same_state(device, golden)


def test_a_board_reset_in_mid_training_starts_again_with_the_same_bits_and_cycles(plan):
    with simulate(plan) as simulation:
        device = BoardDevice(plan, simulation)
        x, y = data(plan, 3)
        runs = []
        for seed in (1, 7, 1):
            device.write_parameters(masters(plan, seed))
            logits = device.train(x, y, hyper(plan))
            runs.append((logits, device.read_parameters(), device.counters()))
            # Samples, errors and gradient sums of a mini-batch are left in the board.
            device.write_register("command", Command.TRAIN)
            simulation.step(500)
            words, lasts = packets.pack_samples(plan, x[:3].to(torch.int16).numpy(), y[:3].numpy())
            simulation.exchange(words[:-5], lasts[:-5], 2 * packets.answer_words(plan))
            simulation.reset()
        first, other, again = runs
        assert not torch.equal(first[0], other[0])
        assert torch.equal(first[0], again[0])
        for left, right in zip(first[1], again[1], strict=True):
            assert all(torch.equal(left[name], right[name]) for name in left)
        timed = ("samples", "first_cycle", "last_cycle", "conv.fp.busy", "linear.wg.starved")
        assert {name: first[2][name] for name in timed} == {name: again[2][name] for name in timed}


def test_inference_changes_no_parameter(plan, device):
    before = device.read_parameters()
    device.infer(data(plan, 2)[0])
    for ours, theirs in zip(device.read_parameters(), before, strict=True):
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_the_measured_interval_is_the_planned_one(plan):
    # Without pauses of the host, which would be its own delay.
    with simulate(plan) as simulation:
        device = BoardDevice(plan, simulation)
        device.write_parameters(masters(plan))
        x, y = data(plan, 16)
        device.train(x, y, hyper(plan))
        counters = device.counters()
        span = counters["last_cycle"] - counters["first_cycle"]
        assert span == (counters["samples"] - 1) * steady_interval(plan)


def test_identity_and_magic_answer(plan, device):
    assert device.read_register("magic") == MAGIC
    words = [device.read_register(f"identity_{n}") for n in (3, 2, 1, 0)]
    assert "".join(f"{word:08x}" for word in words) == plan.identity
    assert device.transport.read(0xFF00) == 0


def test_the_reset_command_drops_samples_and_keeps_parameters(plan, device, transport):
    before = device.read_parameters()
    x, y = data(plan, 2)
    device.write_register("batch", BATCH)
    device.write_register("command", Command.TRAIN)
    transport.step(500)
    words, lasts = packets.pack_samples(plan, x[:1].to(torch.int16).numpy(), y[:1].numpy())
    transport.exchange(words[:-1], lasts[:-1], 0)
    device.write_register("command", Command.RESET)
    assert device.read_register("errors") == 0
    for ours, theirs in zip(device.read_parameters(), before, strict=True):
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    golden = GoldenDevice(plan)
    golden.write_parameters(masters(plan))
    assert torch.equal(device.train(x, y, hyper(plan)), golden.train(x, y, hyper(plan)))


@pytest.mark.parametrize(
    ("words", "bit"),
    [
        ([header(PacketKind.TRAIN), 0], ErrorBit.PACKET_KIND),
        ([0xF0000000, 0], ErrorBit.PACKET_KIND),
        ([header(PacketKind.WRITE, 0, 9), 0], ErrorBit.LAYER),
        ([header(PacketKind.READ, 5, 0)], ErrorBit.LAYER),
    ],
)
def test_packets_that_mean_nothing_are_dropped_and_reported(device, transport, words, bit):
    device.write_register("command", Command.INFER)
    transport.step(500)
    lasts = np.zeros(len(words), np.bool_)
    lasts[-1] = True
    transport.exchange(np.array(words, np.uint32), lasts, 0)
    transport.step(10)
    assert device.read_register("errors") == 1 << bit


def begin_training(plan, device, transport):
    """Start a training segment and return the packets of its first mini-batch, not yet sent."""
    x, y = data(plan, 1)
    device.write_register("batch", BATCH)
    device.write_register("command", Command.TRAIN)
    transport.step(500)
    return packets.pack_samples(plan, x.to(torch.int16).numpy(), y.numpy())


def test_a_label_that_is_no_class_is_reported(plan, device, transport):
    words, lasts = begin_training(plan, device, transport)
    words[1] = plan.loss.outputs
    transport.exchange(words, lasts, BATCH * packets.answer_words(plan))
    assert device.read_register("errors") == 1 << ErrorBit.LABEL


def test_a_segment_command_while_samples_are_in_flight_is_refused(plan, device, transport):
    words, lasts = begin_training(plan, device, transport)
    transport.exchange(words[:4], lasts[:4], 0)
    transport.step(20)
    device.write_register("command", Command.INFER)
    assert device.read_register("command") == Command.TRAIN
    assert device.read_register("errors") == 1 << ErrorBit.BUSY


def test_a_segment_command_before_the_last_update_is_refused(plan, device, transport):
    words, lasts = begin_training(plan, device, transport)
    transport.exchange(words, lasts, BATCH * packets.answer_words(plan))
    device.write_register("command", Command.INFER)
    assert device.read_register("errors") == 1 << ErrorBit.BUSY
    assert device.read_register("status") == 1
    transport.step(5000)
    assert device.read_register("status") == 0
    device.write_register("command", Command.INFER)
    assert device.read_register("command") == Command.INFER


def test_another_design_is_refused_before_the_first_transfer(plan, transport):
    other = chain((1, 6, 6), linear("linear", 3), sized=True)
    with pytest.raises(DeviceError, match=f"board must hold design {other.identity}"):
        BoardDevice(other, transport)
