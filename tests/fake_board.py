"""A board in plain Python: registers and packets word by word, computing with the golden network.

It is written from ``model/registers.py`` and docs/architecture.md, one value at a time, and shares
no code with the driver that it tests.
"""

import numpy as np
import torch

from gradweave.model.errors import DeviceError
from gradweave.model.hyper import Hyper
from gradweave.model.network import Network
from gradweave.model.registers import MAGIC, register_map


def signed(word: int, bits: int) -> int:
    return word - (1 << bits) if word >> (bits - 1) else word


def parameter_order(layer):
    """(part, index) of every place of an update sweep, None where it is padding."""
    inputs = layer.i_shape[0] // layer.groups
    shape = (layer.o_shape[0], inputs, *layer.kernel)
    columns, channels = layer.kernel[1], inputs
    if layer.unfold:
        columns, channels = 1, inputs * columns
    words = layer.o_shape[0] // (layer.group_lanes * layer.a)
    for block in range(words):
        for row in range(layer.kernel[0]):
            for column in range(columns):
                for i_block in range(channels // layer.b):
                    for lane in range(layer.group_lanes * layer.a * layer.b):
                        output = block * layer.group_lanes * layer.a + lane // layer.b
                        channel = i_block * layer.b + lane % layer.b
                        if layer.unfold:
                            column, channel = divmod(channel, layer.i_shape[0])
                        place = (output, channel, row, column)
                        yield "weight", int(np.ravel_multi_index(place, shape))
    if layer.bias is None:
        return
    lanes = layer.group_lanes * layer.a
    for block in range(words):
        for lane in range(lanes):
            yield "bias", block * lanes + lane
        for _ in range(-lanes % layer.update_lanes):
            yield None


class FakeBoard:
    """A transport whose board is always right, unless ``faults`` says how it is not."""

    def __init__(self, plan, faults=()):
        self.plan = plan
        self.faults = set(faults)
        self.names = {register.address: register.name for register in register_map(plan)}
        self.values = dict.fromkeys(self.names.values(), 0)
        self.values["magic"] = MAGIC
        identity = int(plan.identity, 16)
        for n in range(4):
            self.values[f"identity_{n}"] = identity >> 32 * n & 0xFFFFFFFF
        self.log = []
        self.closed = False
        self.reset()

    def reset(self):
        self.network = Network(self.plan)
        self.memories = [dict(self.network.masters), dict(self.network.momenta)]
        self.waiting = []
        self.finished = 0
        self.preparing = 0
        self.moving = False
        self.values["errors"] = 0

    def read(self, address):
        name = self.names[address]
        if name == "status":
            return 1 if self.preparing else 0
        return self.values[name]

    def write(self, address, value):
        name = self.names[address]
        self.log.append((name, value))
        self.values[name] = value
        if name == "command":
            self.network.load(*self.memories)
            self.network.start_segment(self.values["first_sample"])
            self.finished = 0
            self.preparing = 2
            self.values["errors"] = 0
            for layer in self.plan.trainable:
                self.values[f"{layer.name}.version"] = 0

    def step(self, cycles):
        assert cycles > 0
        if "never_ready" not in self.faults:
            self.preparing = max(0, self.preparing - 1)
        if "stuck_update" in self.faults:
            return
        for layer in self.plan.trainable:
            name = f"{layer.name}.version"
            self.values[name] = min(self.values[name] + 1, self.finished)

    def exchange(self, words, lasts, expect, progress=None):
        assert words.dtype == np.uint32
        assert lasts.dtype == np.bool_
        assert not self.moving, "an exchange was broken off, so the board must be reset"
        self.moving = True
        answers, packet = [], []
        for word, last in zip(words.tolist(), lasts.tolist(), strict=True):
            packet.append(word)
            if last:
                answers += self.take(packet)
                packet = []
                if progress is not None:
                    progress(len(answers))
        assert not packet
        self.moving = False
        if len(answers) != expect:
            raise DeviceError(f"board sent {len(answers)} words, not {expect}")
        return np.array(answers, np.uint32)

    def take(self, packet):
        kind, memory, number = packet[0] >> 28, packet[0] >> 8 & 0xFF, packet[0] & 0xFF
        if kind == 1:
            return self.take_sample(packet)
        if kind == 2:
            x = self.pixels(packet[1:]).unsqueeze(0)
            return self.answer(2, self.network.infer(x))
        layer = self.plan.trainable[number]
        order = list(parameter_order(layer))
        if kind == 4:
            assert len(packet) == 1
            return [packet[0]] + [self.parameter(memory, layer, place) for place in order]
        assert kind == 3
        assert len(packet) == 1 + len(order)
        for place, word in zip(order, packet[1:], strict=True):
            if place is None:
                assert word == 0
                continue
            part, index = place
            flat = self.memories[memory][f"{layer.name}.{part}"].view(-1)
            flat[index] = signed(word, 32)
        return []

    def parameter(self, memory, layer, place):
        if place is None:
            return 0
        part, index = place
        return int(self.memories[memory][f"{layer.name}.{part}"].reshape(-1)[index]) & 0xFFFFFFFF

    def take_sample(self, packet):
        if "label" in self.faults:
            self.values["errors"] |= 0b100
            return []
        if self.plan.loss.kind == "cross_entropy":
            target, rest = torch.tensor(packet[1]), packet[2:]
        else:
            count = -(-self.plan.loss.outputs // 2)
            target = torch.tensor(self.halves(packet[1 : 1 + count])[: self.plan.loss.outputs])
            rest = packet[1 + count :]
        self.waiting.append((self.pixels(rest), target))
        if len(self.waiting) < self.values["batch"]:
            return []
        x, y = (torch.stack(parts) for parts in zip(*self.waiting, strict=True))
        self.waiting = []
        names = ("batch", "lr_mantissa", "lr_shift", "momentum", "nesterov")
        decay = ("decay_mantissa", "decay_shift")
        hyper = Hyper(**{name: self.values[name] for name in (*names, *decay)})
        logits = self.network.train_batch(x, y, hyper)
        self.memories = [dict(self.network.masters), dict(self.network.momenta)]
        self.finished += 1
        for name, count in self.network.saturated.items():
            self.values[f"{name}.saturated"] = count
        return self.answer(1, logits)

    def halves(self, words):
        return [signed(half, 16) for word in words for half in (word & 0xFFFF, word >> 16)]

    def pixels(self, words):
        channels, height, width = self.plan.input_shape
        halves = iter(self.halves(words))
        x = torch.zeros(channels, height, width, dtype=torch.int64)
        for row in range(height):
            for column in range(width):
                for channel in range(channels):
                    x[channel, row, column] = next(halves)
        assert list(halves) in ([], [0])
        return x

    def answer(self, kind, logits):
        words = []
        for row in logits.tolist():
            halves = [value & 0xFFFF for value in row] + [0] * (len(row) % 2)
            words.append((kind if "header" not in self.faults else 7) << 28)
            words += [low | high << 16 for low, high in zip(halves[::2], halves[1::2], strict=True)]
        return words

    def close(self):
        self.closed = True
