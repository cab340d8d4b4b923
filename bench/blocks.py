"""A layer's block alone in Amaranth's simulator, driven as fast as it takes: when words pass.

Used by ``bench/layers.py``. Test: ``tests/test_bench_layers.py``.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from amaranth.hdl import Module, Signal
from amaranth.sim import Simulator

from gradweave.model.formats import Rounding
from gradweave.model.kinds import KINDS
from gradweave.model.layer_plan import Buffers, LayerPlan
from gradweave.rtl.pipeline.network import BLOCKS, TRAINED

__all__ = ["SAMPLES", "Times", "deep", "run_block"]

SAMPLES = 5
DEADLINE_CYCLES = 60_000
DRAIN_CYCLES = 40


@dataclass
class Times:
    """The cycle in which each sample's last word has passed: of features in and out, of errors in
    and out, on all of a join's or fork's streams; and of its last beat for the weight gradient.
    ``first`` has the cycle of each stream's very first word, by the same names.
    """

    i: list[int] = field(default_factory=list)
    o: list[int] = field(default_factory=list)
    o_error: list[int] = field(default_factory=list)
    i_error: list[int] = field(default_factory=list)
    gradient: list[int] = field(default_factory=list)
    first: dict[str, int] = field(default_factory=dict)


def deep(layer: LayerPlan) -> Buffers:
    """Buffers in which nothing ever waits for room: what ``SAMPLES`` samples need."""
    windowed, back = layer.windowed, layer.backward
    o_words = SAMPLES * layer.o_shape[1] * layer.o_shape[2] * layer.o_blocks
    i_words = SAMPLES * layer.i_shape[1] * layer.i_shape[2] * layer.i_blocks
    ports = {"join": len(layer.sources), "fork": layer.fan * back}.get(layer.pattern, 0)
    return Buffers(
        fp_rows=SAMPLES * layer.i_shape[1] if windowed else 0,
        eb_rows=SAMPLES * layer.o_shape[1] if windowed and back else 0,
        wg_rows=SAMPLES * layer.i_shape[1] if layer.trainable else 0,
        error_words=o_words if layer.trainable else 0,
        index_words=o_words if back and KINDS[layer.kind].holds else 0,
        join_words=(i_words,) * ports,
    )


def run_block(layer: LayerPlan) -> Times:
    """Pass ``SAMPLES`` samples forward without a pause, and when all are through their errors back.

    Raises
    ------
    RuntimeError
        When a word is missing after ``DEADLINE_CYCLES`` cycles.
    """
    return _Run(layer).run()


class _Run:
    def __init__(self, layer: LayerPlan) -> None:
        self.layer, self.times = layer, Times()
        self.cycle = 0
        if layer.trainable:
            kind = TRAINED[layer.kind]
            self.dut = kind(layer, batch_max=SAMPLES, rounding=Rounding.HALF_EVEN)
        else:
            self.dut = BLOCKS[layer.kind](layer, Rounding.HALF_EVEN)
        pixels, results = math.prod(layer.i_shape[1:]), math.prod(layer.o_shape[1:])
        below, above = pixels * _entering(layer), results * layer.o_blocks
        join, fork = layer.pattern == "join", layer.pattern == "fork"
        parts = layer.join_blocks if join else ()
        self.words = {
            "i": [pixels * n for n in parts] if join else [below],
            "o": [above] * (layer.fan if fork else 1),
            "o_error": [above] * (layer.fan if fork else 1),
            "i_error": [pixels * n for n in parts] if join else [below],
        }
        self.arrays = {"i": join, "i_error": join, "o": fork, "o_error": fork}
        self.back = ("o_error",) * (layer.trainable or layer.backward) + (
            "i_error",
        ) * layer.backward
        self.forward_done = self.started = False
        self.moved: dict[tuple[str, int], list[int]] = {}

    def run(self) -> Times:
        m = Module()
        m.submodules.dut = self.dut
        always = Signal()  # keeps the clock alive where the block is wires alone
        m.d.sync += always.eq(~always)
        simulator = Simulator(m)
        simulator.add_clock(1e-8)
        simulator.add_testbench(self._main)
        simulator.add_testbench(self._clock, background=True)
        if self.layer.trainable:
            simulator.add_testbench(self._gradient, background=True)
        names = ("i", "o", *self.back)
        for name in names:
            for port in range(len(self.words[name])):
                feeds = name in ("i", "o_error")
                bench = self._feeder(name, port) if feeds else self._taker(name, port)
                simulator.add_testbench(bench, background=True)
        simulator.run()
        for name in names:
            streams = [self.moved[name, port] for port in range(len(self.words[name]))]
            setattr(self.times, name, self._by_sample(name, streams))
            self.times.first[name] = min(times[0] for times in streams)
        return self.times

    def _by_sample(self, name: str, streams: list[list[int]]) -> list[int]:
        """The cycle in which each sample's last word has passed on every stream."""
        ends = [
            times[words - 1 :: words]
            for times, words in zip(streams, self.words[name], strict=True)
        ]
        return [max(each) for each in zip(*ends, strict=True)]

    async def _main(self, ctx: Any) -> None:
        dut = self.dut
        ctx.set(dut.training, 1)
        if self.layer.trainable:
            ctx.set(dut.batch, SAMPLES)
            ctx.set(dut.reload, 1)
            await ctx.tick()
            ctx.set(dut.reload, 0)
            await ctx.tick()
            while ctx.get(dut.busy):
                await ctx.tick()
        self.started = True
        await self._until(ctx, lambda: self._through("o"))
        for _ in range(DRAIN_CYCLES):
            await ctx.tick()
        self.forward_done = True
        await self._until(ctx, lambda: all(self._through(name) for name in self.back))
        if self.layer.trainable:
            await self._until(ctx, lambda: len(self.times.gradient) == SAMPLES)

    def _through(self, name: str) -> bool:
        return all(
            len(self.moved[name, port]) == SAMPLES * words
            for port, words in enumerate(self.words[name])
        )

    async def _until(self, ctx: Any, done: Callable[[], bool]) -> None:
        while not done():
            if self.cycle >= DEADLINE_CYCLES:
                moved = {f"{name}.{port}": len(x) for (name, port), x in self.moved.items()}
                raise RuntimeError(
                    f"{self.layer.name} must be through by cycle {self.cycle}, "
                    f"not have moved only {moved} words"
                )
            await ctx.tick()

    async def _clock(self, ctx: Any) -> None:
        while True:
            await ctx.tick()
            self.cycle += 1

    async def _gradient(self, ctx: Any) -> None:
        while True:
            _, _, done = await ctx.tick().sample(self.dut.gradient.sample_done)
            if done:
                self.times.gradient.append(self.cycle)

    def _stream(self, name: str, port: int) -> Any:
        member = getattr(self.dut, name)
        return member[port] if self.arrays[name] else member

    def _feeder(self, name: str, port: int) -> Callable[[Any], Any]:
        times = self.moved[name, port] = []

        async def bench(ctx: Any) -> None:
            stream = self._stream(name, port)
            while not (self.forward_done if name == "o_error" else self.started):
                await ctx.tick()
            ctx.set(stream.valid, 1)
            while len(times) < SAMPLES * self.words[name][port]:
                _, _, ready = await ctx.tick().sample(stream.ready)
                if ready:
                    times.append(self.cycle)
            ctx.set(stream.valid, 0)

        return bench

    def _taker(self, name: str, port: int) -> Callable[[Any], Any]:
        times = self.moved[name, port] = []

        async def bench(ctx: Any) -> None:
            stream = self._stream(name, port)
            ctx.set(stream.ready, 1)
            while True:
                _, _, valid = await ctx.tick().sample(stream.valid)
                if valid:
                    times.append(self.cycle)

        return bench


def _entering(layer: LayerPlan) -> int:
    """Words per pixel that enter: unfold takes whole pixels."""
    return 1 if layer.unfold else layer.i_blocks
