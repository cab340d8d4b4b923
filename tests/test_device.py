"""Boards and golden devices take the same calls, give the same bits and refuse the same
mistakes.
"""

import dataclasses
import re

import numpy as np
import pytest
import torch

from gradweave.host.board_device import BoardDevice
from gradweave.host.device import Device
from gradweave.host.golden_device import GoldenDevice
from gradweave.host.quantize import (
    float_logits,
    float_parameters,
    parameter_shapes,
    quantize_parameters,
    quantize_samples,
    quantize_targets,
)
from gradweave.model.errors import DeviceError, InputError
from gradweave.model.formats import Format
from gradweave.model.hyper import Hyper
from gradweave.model.plan import LossPlan
from gradweave.model.registers import register_map
from gradweave.tests.fake_board import FakeBoard


@pytest.fixture
def masters(hand_plan):
    generator = torch.Generator().manual_seed(4)
    return {
        name: torch.randint(-(2**26), 2**26, shape, generator=generator)
        for name, shape in parameter_shapes(hand_plan).items()
    }


def data(plan, count=8, seed=1):
    generator = torch.Generator().manual_seed(seed)
    samples = torch.randint(-4096, 4096, (count, *plan.input_shape), generator=generator)
    return samples, torch.randint(plan.loss.outputs, (count,), generator=generator)


def hyper_of(plan, batch=4):
    return Hyper.of(plan, batch=batch, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01)


def equal(left, right):
    same = left.keys() == right.keys()
    return same and all(torch.equal(left[name], right[name]) for name in left)


def with_mse(plan, outputs=10):
    loss = LossPlan("mse", outputs, plan.loss.feature, plan.loss.error)
    return dataclasses.replace(plan, loss=loss)


def test_both_devices_keep_the_protocol(hand_plan):
    assert isinstance(GoldenDevice(hand_plan), Device)
    assert isinstance(BoardDevice(hand_plan, FakeBoard(hand_plan)), Device)


def test_parameters_are_written_and_read_back(hand_plan, masters):
    momenta = {name: tensor % 1000 for name, tensor in masters.items()}
    for device in (GoldenDevice(hand_plan), BoardDevice(hand_plan, FakeBoard(hand_plan))):
        device.write_parameters(masters, momenta)
        found = device.read_parameters()
        assert equal(found[0], masters)
        assert equal(found[1], momenta)
        device.write_parameters(masters)
        assert not any(tensor.any() for tensor in device.read_parameters()[1].values())


def test_what_is_read_is_a_copy(hand_plan, masters):
    device = GoldenDevice(hand_plan)
    device.write_parameters(masters)
    device.read_parameters()[0]["conv.bias"].zero_()
    assert equal(device.read_parameters()[0], masters)


@pytest.mark.parametrize("loss", ["cross_entropy", "mse"])
def test_a_board_trains_like_the_golden_model(hand_plan, masters, loss):
    plan = hand_plan if loss == "cross_entropy" else with_mse(hand_plan)
    samples, targets = data(plan)
    if loss == "mse":
        targets = torch.randint(-9000, 9000, (8, 10), generator=torch.Generator().manual_seed(6))
    golden, board = GoldenDevice(plan), BoardDevice(plan, FakeBoard(plan))
    done = {"golden": [], "board": []}
    for _ in range(2):
        for device, seen in ((golden, done["golden"]), (board, done["board"])):
            if not seen:
                device.write_parameters(masters)
            logits = device.train(samples, targets, hyper_of(plan), seen.append)
            assert logits.shape == (8, 10)
            assert logits.dtype == torch.int64
            seen.append(logits)
        assert torch.equal(done["golden"].pop(), done["board"].pop())
    assert not equal(golden.read_parameters()[0], masters)
    for left, right in zip(golden.read_parameters(), board.read_parameters(), strict=True):
        assert equal(left, right)
    assert done["golden"] == [4, 8, 4, 8]
    assert done["board"][-1] == 8
    counters = board.counters()
    assert set(counters) == {register.name for register in register_map(plan)}
    assert all(counters[name] == count for name, count in golden.counters().items())


def test_inference_changes_no_weight(hand_plan, masters):
    samples, _ = data(hand_plan, 5)
    golden, board = GoldenDevice(hand_plan), BoardDevice(hand_plan, FakeBoard(hand_plan))
    for device in (golden, board):
        device.write_parameters(masters)
    seen = []
    assert torch.equal(golden.infer(samples, seen.append), board.infer(samples))
    assert seen == [5]
    assert equal(golden.read_parameters()[0], masters)
    assert equal(board.read_parameters()[0], masters)


def test_int16_and_numpy_are_taken_as_they_are(hand_plan, masters):
    samples, targets = data(hand_plan)
    device = GoldenDevice(hand_plan)
    device.write_parameters(masters)
    expected = device.infer(samples)
    assert torch.equal(device.infer(samples.to(torch.int16)), expected)
    assert torch.equal(device.infer(samples.numpy()), expected)
    device.train(samples.numpy(), targets.numpy(), hyper_of(hand_plan))


def test_long_segments_go_in_several_exchanges(hand_plan, masters, monkeypatch):
    samples, targets = data(hand_plan, 12)
    expected = GoldenDevice(hand_plan)
    monkeypatch.setattr("gradweave.host.board_device.EXCHANGE_WORDS", 8 * 40)
    board = FakeBoard(hand_plan)
    device = BoardDevice(hand_plan, board)
    for each in (expected, device):
        each.write_parameters(masters)
    exchanges = []
    exchange = board.exchange
    monkeypatch.setattr(board, "exchange", lambda *a: exchanges.append(len(a[0])) or exchange(*a))
    seen = []
    logits = device.train(samples, targets, hyper_of(hand_plan), seen.append)
    assert torch.equal(logits, expected.train(samples, targets, hyper_of(hand_plan)))
    assert exchanges == [8 * 34, 4 * 34]
    assert seen == sorted(seen)
    assert seen[-1] == 12


def test_registers_are_set_before_the_segment_starts(hand_plan, masters):
    board = FakeBoard(hand_plan)
    device = BoardDevice(hand_plan, board)
    device.write_parameters(masters)
    hyper = hyper_of(hand_plan)
    device.train(*data(hand_plan), hyper, first_sample=2**32 + 40)
    names = ["batch", "lr_mantissa", "lr_shift", "momentum", "nesterov", "decay_mantissa"]
    names.append("decay_shift")
    rates = [(name, getattr(hyper, name)) for name in names]
    assert board.log == [*rates, ("first_sample", 40), ("command", 1)]


def test_registers_have_names(hand_plan):
    board = FakeBoard(hand_plan)
    device = BoardDevice(hand_plan, board)
    device.write_register("batch", 7)
    assert device.read_register("batch") == 7
    with pytest.raises(InputError, match=r"^register cycles is read-only$"):
        device.write_register("cycles", 1)
    with pytest.raises(InputError, match=r"^register must be one of \['magic', .*, not 'speed'$"):
        device.read_register("speed")


def test_cycles_have_64_bits(hand_plan):
    board = FakeBoard(hand_plan)
    board.values |= {"cycles": 5, "cycles_high": 2}
    assert BoardDevice(hand_plan, board).counters()["cycles"] == 2 * 2**32 + 5


def test_close_and_reset_reach_the_board(hand_plan):
    board = FakeBoard(hand_plan)
    device = BoardDevice(hand_plan, board)
    board.values["errors"] = 1
    device.reset()
    assert board.values["errors"] == 0
    device.close()
    assert board.closed


def test_another_design_is_refused_before_any_transfer(hand_plan):
    other = dataclasses.replace(hand_plan, seed=1)
    board = FakeBoard(other)
    message = (
        f"board must hold design {hand_plan.identity} (hand), not {other.identity}: "
        "load the design that the plan was made for"
    )
    with pytest.raises(DeviceError, match=f"^{re.escape(message)}$"):
        BoardDevice(hand_plan, board)
    assert board.log == []


def test_an_unknown_board_is_refused(hand_plan):
    board = FakeBoard(hand_plan)
    board.values["magic"] = 0xFFFFFFFF
    message = (
        "board must answer 0x47574156 at address 0, not 0xffffffff: it holds no design of gradweave"
    )
    with pytest.raises(DeviceError, match=f"^{message}$"):
        BoardDevice(hand_plan, board)


FAULTS = {
    "label": r"board sent \d+ words, not 48; board reports LABEL \(a label that is no output, or a "
    r"target outside 0 to 1\)",
    "never_ready": r"board did not prepare its segment in time \(status bit 0 stays set\): "
    "reset the device",
    "stuck_update": r"board must finish 2 updates, but stands at "
    r"{'conv\.version': 0, 'linear\.version': 0}: "
    "reset the device",
    "header": "answer 0 of 8 must start with header 0x10000000, not 0x70000000: reset the device",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_failing_board_is_named(hand_plan, masters, fault):
    device = BoardDevice(hand_plan, FakeBoard(hand_plan, [fault]))
    device.write_parameters(masters)
    with pytest.raises(DeviceError, match=f"^{FAULTS[fault]}$"):
        device.train(*data(hand_plan), hyper_of(hand_plan))


def test_error_bits_are_reported_by_name(hand_plan, masters):
    board = FakeBoard(hand_plan)
    device = BoardDevice(hand_plan, board)
    board.values["errors"] = 0b10010
    message = (
        "board reports PACKET_LENGTH (a packet that ended early or late), BUSY (a segment command "
        "while the board was busy): reset the device and write its parameters again"
    )
    with pytest.raises(DeviceError, match=f"^{re.escape(message)}$"):
        device.write_parameters(masters)


def with_value(tensor, value):
    changed = tensor.clone()
    changed.view(-1)[3] = value
    return changed


BAD_DATA = {
    "dtype": (
        lambda s, t: (s.float(), t),
        "samples must be integers in the device's format, not float32",
    ),
    "type": (lambda s, t: ([1], t), "samples must be a torch tensor, not list"),
    "shape": (
        lambda s, t: (s[:, :, :7], t),
        "samples must have shape [N, 1, 8, 8], not [8, 1, 7, 8]",
    ),
    "empty": (lambda s, t: (s[:0], t[:0]), "samples must be at least one sample, not 0"),
    "partial": (
        lambda s, t: (s[:6], t[:6]),
        "samples must be a multiple of the mini-batch of 4 samples, not 6",
    ),
    "range": (
        lambda s, t: (with_value(s, 40000), t),
        "samples must be -32768 to 32767 in format s16.12, not 40000",
    ),
    "targets": (lambda s, t: (s, t[:7]), "targets must have shape [8], not [7]"),
    "label": (
        lambda s, t: (s, with_value(t, 10)),
        "targets must be labels from 0 to 9, not 10 at index 3",
    ),
    "negative_label": (
        lambda s, t: (s, with_value(t, -1)),
        "targets must be labels from 0 to 9, not -1 at index 3",
    ),
    "float_label": (
        lambda s, t: (s, t.float()),
        "targets must be integers in the device's format, not float32",
    ),
}


@pytest.mark.parametrize("case", BAD_DATA)
@pytest.mark.parametrize("make", [GoldenDevice, lambda plan: BoardDevice(plan, FakeBoard(plan))])
def test_bad_data_are_refused_before_anything_moves(hand_plan, masters, make, case):
    change, message = BAD_DATA[case]
    device = make(hand_plan)
    device.write_parameters(masters)
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        device.train(*change(*data(hand_plan)), hyper_of(hand_plan))
    assert equal(device.read_parameters()[0], masters)


def test_targets_of_mse_must_fit_the_logits(hand_plan):
    plan = with_mse(hand_plan)
    device = GoldenDevice(plan)
    samples, _ = data(plan)
    with pytest.raises(InputError, match=r"^targets must have shape \[8, 10\], not \[8, 9\]$"):
        device.train(samples, torch.zeros(8, 9).long(), hyper_of(plan))
    with pytest.raises(InputError, match=r"^targets must be .* in format s16\.12, not 32768$"):
        device.train(samples, torch.full((8, 10), 32768), hyper_of(plan))


BAD_PARAMETERS = {
    "missing": (
        lambda m: {"conv.weight": m["conv.weight"]},
        "masters must have the tensors ['conv.bias', 'conv.weight', 'linear.bias', "
        "'linear.weight'], not ['conv.weight']",
    ),
    "shape": (
        lambda m: {**m, "linear.weight": m["linear.weight"].reshape(10, 4, 4, 4)},
        "masters['linear.weight'] must have shape [10, 64], not [10, 4, 4, 4]",
    ),
    "range": (
        lambda m: {**m, "conv.bias": torch.full((4,), 2**31)},
        "masters['conv.bias'] must be -2147483648 to 2147483647 in format s32.28, not 2147483648",
    ),
    "dtype": (
        lambda m: {**m, "conv.bias": torch.zeros(4)},
        "masters['conv.bias'] must be integers in the device's format, not float32",
    ),
}


@pytest.mark.parametrize("case", BAD_PARAMETERS)
@pytest.mark.parametrize("make", [GoldenDevice, lambda plan: BoardDevice(plan, FakeBoard(plan))])
def test_bad_parameters_are_refused(hand_plan, masters, make, case):
    change, message = BAD_PARAMETERS[case]
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        make(hand_plan).write_parameters(change(masters))


def test_momenta_must_fit_the_gradient(hand_plan, masters):
    momenta = {name: torch.full_like(tensor, 2**23) for name, tensor in masters.items()}
    with pytest.raises(
        InputError, match=r"^momenta\['conv\.weight'\] must be .* s24\.16, not 8388608$"
    ):
        GoldenDevice(hand_plan).write_parameters(masters, momenta)


def test_floats_become_the_nearest_integers(hand_plan):
    x = torch.zeros(1, 1, 8, 8)
    x[0, 0, 0, :6] = torch.tensor([0.5, 1.5, 2.5, -0.5, 8 * 4096, -9 * 4096]) / 4096
    found = quantize_samples(hand_plan, x)
    assert found.dtype == torch.int16
    assert found[0, 0, 0, :6].tolist() == [0, 2, 2, 0, 32767, -32768]


def test_vectors_are_taken_as_samples(hand_plan):
    first = dataclasses.replace(hand_plan.layers[0], i_shape=(5, 1, 1))
    plan = dataclasses.replace(hand_plan, layers=(first, *hand_plan.layers[1:]))
    assert quantize_samples(plan, torch.ones(2, 5)).shape == (2, 5, 1, 1)
    assert quantize_samples(plan, torch.ones(2, 5, 1, 1)).shape == (2, 5, 1, 1)


def test_targets_of_one_output_may_be_a_vector(hand_plan):
    plan = with_mse(hand_plan, 1)
    assert quantize_targets(plan, torch.tensor([1.0, -2.0]), 2).tolist() == [[4096], [-8192]]


def test_parameters_survive_the_way_there_and_back(hand_plan, masters):
    state = float_parameters(hand_plan, masters)
    assert {tensor.dtype for tensor in state.values()} == {torch.float32}
    again = quantize_parameters(hand_plan, state)
    step = Format(32, 28).step
    for name, tensor in again.items():
        # float32 keeps 24 bits of the 32.
        assert (tensor - masters[name]).abs().max() <= 2
        assert state[name].flatten()[0] == np.float32(int(masters[name].flatten()[0]) * step)


def test_a_state_of_another_model_is_refused(hand_plan, masters):
    state = float_parameters(hand_plan, masters)
    with pytest.raises(InputError, match=r"^state_dict must have 'conv\.bias'; it has \['conv\.w"):
        quantize_parameters(hand_plan, {"conv.weight": state["conv.weight"]})
    state["linear.bias"] = torch.zeros(9)
    with pytest.raises(InputError, match=r"^linear\.bias must have shape \[10\], not \[9\]$"):
        quantize_parameters(hand_plan, state)


def test_logits_become_exact_floats(hand_plan):
    assert float_logits(hand_plan, torch.tensor([[32767, -1]])).tolist() == [
        [32767 / 4096, -1 / 4096]
    ]
