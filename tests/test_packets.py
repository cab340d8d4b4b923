"""Whole segments become words and back, as if every value were placed by hand."""

import dataclasses
import re

import numpy as np
import pytest

from gradweave.host import packets
from gradweave.model.errors import DeviceError
from gradweave.model.plan import LossPlan
from gradweave.model.registers import Memory, PacketKind
from gradweave.tests.fake_board import parameter_order, signed


def conv(plan, **changes):
    return dataclasses.replace(plan.layers[0], i_shape=(6, 5, 5), o_shape=(12, 5, 5), **changes)


def test_a_training_packet_worked_by_hand(hand_plan):
    first = dataclasses.replace(hand_plan.layers[0], i_shape=(3, 1, 1))
    plan = dataclasses.replace(hand_plan, layers=(first, *hand_plan.layers[1:]))
    samples = np.array([[1, -2, 3], [4, 5, -6]], np.int16).reshape(2, 3, 1, 1)
    words, lasts = packets.pack_samples(plan, samples, np.array([7, 9]))
    assert words.tolist() == [
        *(0x10000000, 7, 0xFFFE0001, 0x00000003),
        *(0x10000000, 9, 0x00050004, 0x0000FFFA),
    ]
    assert lasts.tolist() == [False, False, False, True] * 2
    words, lasts = packets.pack_samples(plan, samples, None)
    assert words.tolist() == [
        *(0x20000000, 0xFFFE0001, 0x00000003),
        *(0x20000000, 0x00050004, 0x0000FFFA),
    ]
    assert lasts.tolist() == [False, False, True] * 2


def test_channels_are_innermost(hand_plan):
    first = dataclasses.replace(hand_plan.layers[0], i_shape=(2, 2, 2))
    plan = dataclasses.replace(hand_plan, layers=(first, *hand_plan.layers[1:]))
    samples = np.arange(8, dtype=np.int16).reshape(1, 2, 2, 2)
    words, _ = packets.pack_samples(plan, samples, None)
    assert [(int(w) & 0xFFFF, int(w) >> 16) for w in words[1:]] == [(0, 4), (1, 5), (2, 6), (3, 7)]


@pytest.mark.parametrize("outputs", [1, 2, 3])
def test_targets_of_mse_are_halves(hand_plan, outputs):
    loss = LossPlan("mse", outputs, hand_plan.loss.feature, hand_plan.loss.error)
    plan = dataclasses.replace(hand_plan, loss=loss)
    targets = np.array([[-1, 2, -3]], np.int16)[:, :outputs]
    words, lasts = packets.pack_samples(plan, np.zeros((1, 1, 8, 8), np.int16), targets)
    expected = {1: [0x0000FFFF], 2: [0x0002FFFF], 3: [0x0002FFFF, 0x0000FFFD]}[outputs]
    assert words[1 : 1 + len(expected)].tolist() == expected
    assert len(words) == len(lasts) == packets.packet_words(plan, PacketKind.TRAIN)
    assert len(words) == 1 + len(expected) + 32


def test_logits_come_back_signed(hand_plan):
    loss = dataclasses.replace(hand_plan.loss, outputs=3)
    plan = dataclasses.replace(hand_plan, loss=loss)
    words = np.array([0x10000000, 0x8000FFFF, 0x5, 0x10000000, 0x00020001, 0xFFFD], np.uint32)
    logits = packets.unpack_logits(plan, words, PacketKind.TRAIN)
    assert logits.tolist() == [[-1, -32768, 5], [1, 2, -3]]


def test_an_answer_of_another_kind_is_refused(hand_plan):
    words = np.zeros((3, packets.answer_words(hand_plan)), np.uint32)
    words[:, 0] = [0x10000000, 0x20000000, 0x10000000]
    message = "answer 1 of 3 must start with header 0x10000000, not 0x20000000: reset the device"
    with pytest.raises(DeviceError, match=f"^{message}$"):
        packets.unpack_logits(hand_plan, words.reshape(-1), PacketKind.TRAIN)


FOLDINGS = [
    (1, 1, 1),
    (4, 3, 1),
    (4, 3, 2),
    (4, 3, 4),
    (4, 3, 12),
    (2, 6, 4),
    (12, 6, 24),
    (3, 2, 6),
]


@pytest.mark.parametrize(("a", "b", "update_lanes"), FOLDINGS)
@pytest.mark.parametrize("bias", [True, False])
def test_parameters_go_in_the_order_of_the_sweep_and_come_back(hand_plan, a, b, update_lanes, bias):
    layer = conv(hand_plan, a=a, b=b, update_lanes=update_lanes)
    if not bias:
        layer = dataclasses.replace(layer, bias=None)
    draw = np.random.default_rng(a * b)
    weight = draw.integers(-(2**31), 2**31, (12, 6, 3, 3))
    biases = draw.integers(-(2**31), 2**31, 12)
    values = packets.pack_parameters(layer, weight, biases if bias else None)
    tensors = {"weight": weight.reshape(-1), "bias": biases}
    order = list(parameter_order(layer))
    assert values.tolist() == [tensors[place[0]][place[1]] if place else 0 for place in order]
    assert len(values) == layer.sweep_chunks * layer.update_lanes
    words, lasts = packets.pack_write(1, Memory.MOMENTUM, values)
    assert words[0] == 0x30000101
    assert [signed(word, 32) for word in words[1:].tolist()] == values.tolist()
    assert np.flatnonzero(lasts).tolist() == [len(words) - 1]
    found_weight, found_bias = packets.unpack_parameters(layer, values)
    assert np.array_equal(found_weight, weight)
    assert np.array_equal(found_bias, biases) if bias else found_bias is None


@pytest.mark.parametrize(("a", "b", "update_lanes"), [(1, 1, 1), (4, 9, 12), (2, 6, 4)])
def test_unfolded_parameters_go_by_kernel_column_and_channel(hand_plan, a, b, update_lanes):
    layer = conv(hand_plan, a=a, b=b, update_lanes=update_lanes, unfold=True, kernel=(2, 3))
    draw = np.random.default_rng(a * b)
    weight, biases = draw.integers(-(2**31), 2**31, (12, 6, 2, 3)), draw.integers(0, 9, 12)
    values = packets.pack_parameters(layer, weight, biases)
    tensors = {"weight": weight.reshape(-1), "bias": biases}
    order = list(parameter_order(layer))
    assert values.tolist() == [tensors[place[0]][place[1]] if place else 0 for place in order]
    found_weight, found_bias = packets.unpack_parameters(layer, values)
    assert np.array_equal(found_weight, weight)
    assert np.array_equal(found_bias, biases)


def test_an_unfolded_kernel_worked_by_hand(hand_plan):
    layer = conv(hand_plan, a=1, b=6, unfold=True, kernel=(1, 3))
    weight = np.arange(12 * 6 * 3).reshape(12, 6, 1, 3)
    # A word has six of column 0's channels, three places apart in torch's order; then column 1's.
    values = packets.pack_parameters(layer, weight, np.zeros(12, np.int64))
    assert values[:8].tolist() == [0, 3, 6, 9, 12, 15, 1, 4]


@pytest.mark.parametrize(
    ("groups", "a", "b", "group_lanes", "update_lanes"),
    [(3, 2, 1, 1, 2), (3, 4, 2, 1, 8), (3, 4, 2, 3, 4), (6, 2, 1, 2, 4), (2, 6, 3, 2, 36)],
)
def test_grouped_parameters_go_in_the_order_of_the_sweep_and_come_back(
    hand_plan, groups, a, b, group_lanes, update_lanes
):
    folding = {"a": a, "b": b, "group_lanes": group_lanes, "update_lanes": update_lanes}
    layer = conv(hand_plan, groups=groups, **folding)
    weight = np.arange(12 * 6 // groups * 9).reshape(12, 6 // groups, 3, 3)
    biases = -np.arange(12)
    values = packets.pack_parameters(layer, weight, biases)
    tensors = {"weight": weight.reshape(-1), "bias": biases}
    order = list(parameter_order(layer))
    assert values.tolist() == [tensors[place[0]][place[1]] if place else 0 for place in order]
    assert len(values) == layer.sweep_chunks * layer.update_lanes
    found_weight, found_bias = packets.unpack_parameters(layer, values)
    assert np.array_equal(found_weight, weight)
    assert np.array_equal(found_bias, biases)


def test_two_groups_at_once_by_hand(hand_plan):
    """Weight [4, 2, 1, 1] in two groups of two outputs and two inputs: one word, in order."""
    layer = dataclasses.replace(
        hand_plan.layers[0], i_shape=(4, 1, 1), o_shape=(4, 1, 1), kernel=(1, 1), padding=(0, 0)
    )
    layer = dataclasses.replace(layer, groups=2, a=2, b=2, group_lanes=2, update_lanes=4)
    weight = np.array([11, 12, 21, 22, 33, 34, 43, 44]).reshape(4, 2, 1, 1)
    values = packets.pack_parameters(layer, weight, np.array([1, 2, 3, 4]))
    assert values.tolist() == [11, 12, 21, 22, 33, 34, 43, 44, 1, 2, 3, 4]
    single = dataclasses.replace(layer, a=1, b=1, group_lanes=1, update_lanes=1)
    values = packets.pack_parameters(single, weight, np.array([1, 2, 3, 4]))
    assert values.tolist() == [11, 12, 21, 22, 33, 34, 43, 44, 1, 2, 3, 4]


def test_a_scale_has_a_weight_and_a_bias_a_channel(hand_plan):
    layer = conv(hand_plan, kind="scale", kernel=(1, 1), padding=(0, 0), groups=6, group_lanes=3)
    layer = dataclasses.replace(layer, a=1, b=1, o_shape=(6, 5, 5), update_lanes=1)
    weight, bias = np.arange(6), np.arange(10, 16)
    values = packets.pack_parameters(layer, weight, bias)
    assert values.tolist() == [*weight, *bias]
    assert np.array_equal(packets.unpack_parameters(layer, values)[0].reshape(6), weight)


def test_linear_weights_are_seen_as_maps(hand_plan):
    layer = hand_plan.layer("linear")
    weight = np.arange(10 * 64).reshape(10, 64)
    values = packets.pack_parameters(layer, weight, np.zeros(10, np.int64))
    # Output 0, channels 0 and 1 of pixel (0, 0), then output 1.
    assert values[:4].tolist() == [0, 16, 64, 80]
    assert np.array_equal(packets.unpack_parameters(layer, values)[0].reshape(10, 64), weight)


def test_a_read_names_layer_and_memory():
    words, lasts = packets.pack_read(2, Memory.MASTER)
    assert (words.tolist(), lasts.tolist()) == ([0x40000002], [True])
    answer = np.array([0x40000002, 5, 0xFFFFFFFF], np.uint32)
    assert packets.unpack_read(2, Memory.MASTER, answer).tolist() == [5, -1]
    message = "answer 0 of 1 must start with header 0x40000102, not 0x40000002: reset the device"
    with pytest.raises(DeviceError, match=f"^{re.escape(message)}$"):
        packets.unpack_read(2, Memory.MOMENTUM, answer)
