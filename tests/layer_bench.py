"""Trains one trainable layer in Amaranth's simulator and in the golden model, on the same streams.

``train_layer`` feeds features and errors with random stalls, waits for all versions, reads the
parameters back through the host's door, and returns both sides. It fails at its deadline.
"""

import math
import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from amaranth.sim import Simulator

from gradweave.host.packets import pack_parameters
from gradweave.model.fixed import requantize
from gradweave.model.formats import Rounding
from gradweave.model.hyper import Hyper
from gradweave.model.noise import sample_noise, update_noise
from gradweave.model.padding import Layout, channel_words
from gradweave.model.pipeline.conv import Conv as GoldenConv
from gradweave.model.pipeline.linear import Linear as GoldenLinear
from gradweave.model.pipeline.scale import Scale as GoldenScale
from gradweave.model.pipeline.update import state_dtype, to_working, update
from gradweave.model.plan import LayerPlan
from gradweave.model.step import Step
from gradweave.model.trained import on_finest_grid
from gradweave.model.versions import version
from gradweave.rtl.pipeline.conv import Conv
from gradweave.rtl.pipeline.linear import Linear
from gradweave.rtl.pipeline.scale import Scale
from gradweave.tests.streams import drive, plain

__all__ = ["HYPER", "Side", "train_layer"]

BATCH_MAX = 8
SEED = 2**35 + 7
GOLDEN = {"conv2d": GoldenConv, "linear": GoldenLinear, "scale": GoldenScale}
HARDWARE = {"conv2d": Conv, "linear": Linear, "scale": Scale}
HYPER = Hyper(batch=2, lr_mantissa=40000, lr_shift=18, momentum=50000)


@dataclass
class Side:
    """What one side gave: streams as lists of words, parameters as lists in the host's order."""

    o: list[list[int]] = field(default_factory=list)
    i_error: list[list[int]] = field(default_factory=list)
    masters: list[int] = field(default_factory=list)
    momenta: list[int] = field(default_factory=list)
    saturated: dict[str, int] = field(default_factory=dict)
    counts: dict[str, dict[str, int]] = field(default_factory=dict)
    times: dict[str, list[int]] = field(default_factory=dict)


@dataclass
class _Case:
    layer: LayerPlan
    hyper: Hyper
    rounding: Rounding
    features: torch.Tensor
    errors: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor | None


def train_layer(
    layer: LayerPlan,
    *,
    batches: int = 3,
    hyper: Hyper = HYPER,
    rounding: Rounding = Rounding.HALF_EVEN,
    stall: float = 0.0,
    seed: int = 1,
    scale: int = 12,
    deadline_cycles: int = 60_000,
    bias: torch.Tensor | None = None,
) -> tuple[Side, Side]:
    """Return (hardware, golden) after ``batches`` mini-batches of random values below 2**scale.

    ``bias`` replaces the drawn master biases of a layer that has some.
    """
    generator = torch.Generator().manual_seed(seed)

    def draw(bits: int, *shape: int) -> torch.Tensor:
        return torch.randint(-(1 << bits), 1 << bits, shape, generator=generator)

    samples = batches * hyper.batch
    shape = {
        "conv2d": (layer.o_shape[0], layer.group_shape[1], *layer.kernel),
        "linear": (layer.o_shape[0], math.prod(layer.i_shape)),
        "scale": layer.o_shape[:1],
    }[layer.kind]
    case = _Case(
        layer,
        hyper,
        rounding,
        draw(min(scale, layer.i_feature.width - 1), samples, *layer.i_shape),
        draw(min(scale - 2, layer.o_error.width - 1), samples, *layer.o_shape),
        draw(min(26, layer.weight.master.width - 1), *shape),
        (drawn_bias(layer, draw) if bias is None else bias) if layer.bias else None,
    )
    return _Hardware(case, batches, stall, seed, deadline_cycles).run(), _golden(case, batches)


def drawn_bias(layer, draw):
    return draw(min(26, layer.bias.master.width - 1), layer.o_shape[0])


def _golden(case: _Case, batches: int) -> Side:
    layer, side = case.layer, Side()
    engine = GOLDEN[layer.kind](layer, BATCH_MAX)
    names = ["weight"] + (["bias"] if layer.bias else [])
    plans = {name: getattr(layer, name) for name in names}
    states = {"weight": case.weight, "bias": case.bias}
    masters = {name: states[name].to(state_dtype(plans[name])) for name in names}
    momenta = {name: torch.zeros_like(masters[name]) for name in names}
    working = [
        {name: to_working(plan, case.rounding, masters[name])[0] for name, plan in plans.items()}
    ]
    by_chance = case.rounding is Rounding.STOCHASTIC
    counts = dict.fromkeys(["o_feature", *(["i_error"] if layer.backward else []), *names], 0)
    acc_frac = layer.weight.working.frac + layer.i_feature.frac
    outputs, errors_below = [], []
    for k in range(batches):
        part = slice(k * case.hyper.batch, (k + 1) * case.hyper.batch)
        features, errors = case.features[part].double(), case.errors[part].double()
        ahead, behind = (working[version(k, lag)] for lag in (layer.delay, layer.back_delay))
        bias = ahead["bias"] * 2.0 ** (acc_frac - layer.bias.working.frac) if layer.bias else None
        acc = engine.forward(features, on_finest_grid(layer.weight, ahead["weight"]), bias)
        step = Step(True, k * case.hyper.batch)

        def noise(tensor, shape, step=step):
            name = f"{layer.name}.{tensor}"
            return sample_noise(SEED, name, shape, step, case.hyper.batch)

        chance = noise("o_feature", layer.o_shape) if by_chance else None
        values, clipped = requantize(acc, acc_frac, layer.o_feature, case.rounding, chance)
        outputs.append(values)
        counts["o_feature"] += clipped
        if layer.backward:
            acc = engine.backward(errors, on_finest_grid(layer.weight, behind["weight"]))
            frac = layer.weight.working.frac + layer.o_error.frac
            chance = noise("i_error", layer.i_shape) if by_chance else None
            values, clipped = requantize(acc, frac, layer.i_error, case.rounding, chance)
            errors_below.append(values)
            counts["i_error"] += clipped
        sums = {"weight": engine.weight_gradient(errors)}
        fracs = {"weight": layer.o_error.frac + layer.i_feature.frac, "bias": layer.o_error.frac}
        if layer.bias:
            sums["bias"] = engine.bias_gradient(errors)
        new = {}
        for name in names:
            state = masters[name], momenta[name], sums[name], fracs[name]
            drawn = update_noise(SEED, layer, name, step) if by_chance else None
            result = update(plans[name], case.hyper, case.rounding, *state, drawn)
            masters[name], momenta[name], new[name] = result.master, result.momentum, result.working
            counts[name] += result.clipped
        working.append(new)
    side.o = _words(torch.cat(outputs).reshape(-1, *layer.o_shape), layer.o_layout)
    if errors_below:
        side.i_error = _words(torch.cat(errors_below).reshape(-1, *layer.i_shape), layer.i_layout)
    side.masters, side.momenta = _packed(layer, masters), _packed(layer, momenta)
    side.saturated = counts
    return side


def _words(maps: torch.Tensor, layout: Layout) -> list[list[int]]:
    pixels = torch.nn.functional.pad(maps.long().permute(0, 2, 3, 1), (0, 1))
    words = channel_words(maps.shape[1], layout)
    # Pad lanes take the zero behind the last channel.
    lanes = [-1 if channel is None else channel for word in words for channel in word]
    return pixels[..., lanes].reshape(-1, layout[0]).tolist()


def _packed(layer: LayerPlan, tensors: dict[str, torch.Tensor]) -> list[int]:
    arrays = {name: np.asarray(tensor.long()) for name, tensor in tensors.items()}
    return pack_parameters(layer, arrays["weight"], arrays.get("bias")).tolist()


class _Hardware:
    """The testbench: one coroutine per stream around the main one."""

    def __init__(self, case: _Case, batches: int, stall: float, seed: int, deadline: int):
        self.case, self.batches, self.stall, self.deadline = case, batches, stall, deadline
        self.seed = seed
        kind = HARDWARE[case.layer.kind]
        self.dut = kind(case.layer, batch_max=BATCH_MAX, rounding=case.rounding, seed=SEED)
        self.side = Side(times={"o": [], "i_error": []})
        self.running = self.ended = False
        self.cycle = 0
        samples = len(case.features)
        pixels = case.layer.o_shape[1] * case.layer.o_shape[2]
        self.o_words = pixels * case.layer.o_blocks
        below = case.layer.i_shape[1] * case.layer.i_shape[2] * case.layer.i_blocks
        self.expected = {"o": samples * self.o_words}
        if case.layer.backward:
            self.expected["i_error"] = samples * below

    def run(self) -> Side:
        simulator = Simulator(self.dut)
        simulator.add_clock(1e-8)
        simulator.add_testbench(self._main)
        for bench in (self._clock, self._features, self._errors, *map(self._sink, self.expected)):
            simulator.add_testbench(bench, background=True)
        simulator.run()
        return self.side

    async def _main(self, ctx: Any) -> None:
        dut, case = self.dut, self.case
        ctx.set(dut.training, 1)
        ctx.set(dut.batch, case.hyper.batch)
        for name in dut.hyper.shape().members:
            ctx.set(dut.hyper[name], int(getattr(case.hyper, name)))
        await self._load(ctx)
        ctx.set(dut.reload, 1)
        await ctx.tick()
        ctx.set(dut.reload, 0)
        await ctx.tick()
        await ctx.tick().until(~dut.busy)
        self.running, self.cycle = True, 0
        while not self._finished(ctx):
            await ctx.tick()
            if self.cycle >= self.deadline:
                got = {name: len(getattr(self.side, name)) for name in self.expected}
                raise AssertionError(f"deadline: {got} of {self.expected}, seed {self.seed}")
        self.side.counts = plain(ctx.get(dut.counts))
        self.side.saturated = plain(ctx.get(dut.saturated))
        self.side.masters = await self._dump(ctx, 0)
        self.side.momenta = await self._dump(ctx, 1)
        self.ended = True

    def _finished(self, ctx: Any) -> bool:
        moved = all(len(getattr(self.side, name)) >= n for name, n in self.expected.items())
        return moved and ctx.get(self.dut.version) == self.batches

    async def _clock(self, ctx: Any) -> None:
        while True:
            await ctx.tick()
            self.cycle += 1

    async def _start(self, ctx: Any, select: int) -> None:
        ctx.set(self.dut.host, 1)
        ctx.set(self.dut.select, select)
        ctx.set(self.dut.start, 1)
        await ctx.tick()
        ctx.set(self.dut.start, 0)

    async def _load(self, ctx: Any) -> None:
        tensors = {"weight": self.case.weight, "bias": self.case.bias}
        present = {name: tensor for name, tensor in tensors.items() if tensor is not None}
        words = [word & 0xFFFFFFFF for word in _packed(self.case.layer, present)]
        await self._start(ctx, 0)
        # Momenta are zero at power-up. The door's own stalls are test_update's claim.
        await drive(ctx, self.dut.load, words, 0.0, random.Random(self.seed))
        await ctx.tick().repeat(2)
        ctx.set(self.dut.host, 0)

    async def _dump(self, ctx: Any, select: int) -> list[int]:
        await self._start(ctx, select)
        ctx.set(self.dut.dumping, 1)
        ctx.set(self.dut.dump.ready, 1)
        words = []
        while len(words) < self.case.layer.sweep_chunks * self.case.layer.update_lanes:
            sampled = ctx.tick().sample(self.dut.dump.valid, self.dut.dump.payload)
            _, _, valid, word = await sampled
            if valid:
                words.append(word - (word >> 31 << 32))
        ctx.set(self.dut.dumping, 0)
        ctx.set(self.dut.host, 0)
        await ctx.tick()
        return words

    async def _features(self, ctx: Any) -> None:
        await self._until(ctx, lambda: self.running)
        words = _words(self.case.features, self.case.layer.i_layout)
        await drive(ctx, self.dut.i, words, self.stall, random.Random(self.seed))

    async def _errors(self, ctx: Any) -> None:
        """A sample's errors begin only after all of its outputs, as behind a loss."""
        rng = random.Random(self.seed + 1)
        words = _words(self.case.errors, self.case.layer.o_layout)
        for start in range(0, len(words), self.o_words):
            await self._until(ctx, lambda start=start: len(self.side.o) >= start + self.o_words)
            await drive(ctx, self.dut.o_error, words[start : start + self.o_words], self.stall, rng)

    def _sink(self, name: str) -> Any:
        async def bench(ctx: Any) -> None:
            port, rng = getattr(self.dut, name), random.Random(f"{self.seed} {name}")
            while not self.ended:
                ready = rng.random() >= self.stall
                ctx.set(port.ready, ready)
                _, _, valid, payload = await ctx.tick().sample(port.valid, port.payload)
                if valid and ready:
                    getattr(self.side, name).append(plain(payload))
                    self.side.times[name].append(self.cycle)

        return bench

    @staticmethod
    async def _until(ctx: Any, condition: Any) -> None:
        while not condition():
            await ctx.tick()
