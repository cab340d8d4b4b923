"""Drives and watches Amaranth streams in Amaranth's own simulator.

``run_streams`` feeds lists of words into a component and collects what leaves it, with random
stalls on both sides. It notes the cycle of every transfer, and fails when a stream breaks its
contract, a surplus word leaves or something is missing at the deadline.
"""

import random
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from amaranth.hdl import Module, ResetInserter, Signal
from amaranth.lib import data
from amaranth.sim import Simulator

__all__ = ["Run", "collect", "drive", "plain", "random_lanes", "resolve", "run_streams"]


@dataclass
class Run:
    """What a run gave.

    ``words`` and ``times`` (the cycle of each transfer) are per stream, ``sampled`` holds plain
    outputs read at the end, ``pulses`` how many cycles a one-bit output was high.
    """

    words: dict[str, list[Any]] = field(default_factory=dict)
    times: dict[str, list[int]] = field(default_factory=dict)
    sampled: dict[str, Any] = field(default_factory=dict)
    pulses: dict[str, int] = field(default_factory=dict)
    cycles: int = 0

    def __getitem__(self, name: str) -> list[Any]:
        return self.words[name]


def plain(value: Any) -> Any:
    """Turn a sampled payload into ints, lists and dicts."""
    if not isinstance(value, data.Const):
        return value
    shape = value.shape()
    if isinstance(shape, data.ArrayLayout):
        return [plain(value[n]) for n in range(shape.length)]
    return {name: plain(value[name]) for name, _ in shape}


def resolve(dut: Any, path: str) -> Any:
    """Return the member at a dotted path such as ``o`` or ``o.1``."""
    for part in path.split("."):
        dut = dut[int(part)] if part.isdigit() else getattr(dut, part)
    return dut


def random_lanes(rng: random.Random, width: int, lanes: int, count: int) -> list[list[int]]:
    """Return ``count`` words of ``lanes`` signed integers, a third of them at or near an edge."""
    low, high = -(1 << (width - 1)), (1 << (width - 1)) - 1
    edges = [low, low + 1, -1, 0, 1, high - 1, high]

    def value() -> int:
        return rng.choice(edges) if rng.random() < 0.33 else rng.randint(low, high)

    return [[value() for _ in range(lanes)] for _ in range(count)]


async def _wait(ctx: Any, cycles: int) -> None:
    # ctx.tick().repeat() and .until() leave a generator running when a bench is abandoned.
    for _ in range(cycles):
        await ctx.tick()


async def drive(
    ctx: Any,
    stream: Any,
    words: Iterable[Any],
    stall: float,
    rng: random.Random,
    note: Callable[[], None] = lambda: None,
) -> None:
    """Offer ``words`` in order, pausing with probability ``stall`` a cycle; notes each transfer."""
    for word in words:
        while rng.random() < stall:
            ctx.set(stream.valid, 0)
            await ctx.tick()
        ctx.set(stream.payload, word)
        ctx.set(stream.valid, 1)
        ready = False
        while not ready:
            _, _, ready = await ctx.tick().sample(stream.ready)
        note()
    ctx.set(stream.valid, 0)


async def collect(
    ctx: Any,
    stream: Any,
    count: int,
    stall: float,
    rng: random.Random,
    note: Callable[[], None] = lambda: None,
) -> list[Any]:
    """Take ``count`` words, refusing with probability ``stall`` a cycle.

    Fails when an offered word is withdrawn or changes before it is taken.
    """
    words: list[Any] = []
    held = None
    while len(words) < count:
        ready = rng.random() >= stall
        ctx.set(stream.ready, ready)
        _, _, valid, payload = await ctx.tick().sample(stream.valid, stream.payload)
        word = plain(payload)
        assert held is None or (valid and word == held), f"{held} withdrawn: {valid=} {word}"
        held = word if valid and not ready else None
        if valid and ready:
            words.append(word)
            note()
    ctx.set(stream.ready, 0)
    return words


def run_streams(
    dut: Any,
    inputs: Mapping[str, Sequence[Any]],
    outputs: Mapping[str, int],
    *,
    stall: float | Mapping[str, float] = 0.0,
    seed: int = 0,
    deadline_cycles: int = 20_000,
    set_up: Mapping[str, int] | None = None,
    sample: Iterable[str] = (),
    count_pulses: Iterable[str] = (),
    settle_cycles: int = 12,
    reset_at: int = 0,
) -> Run:
    """Simulate ``dut`` until every input has entered and every output has left.

    Parameters
    ----------
    inputs : stream path -> words to feed
    outputs : stream path -> number of words to take; an output not named is never ready
    stall : probability per cycle that a driver pauses or a collector refuses, one or per stream
    set_up : plain input -> value, held during the run
    sample : plain outputs to read at the end
    count_pulses : one-bit outputs whose high cycles are counted
    settle_cycles : cycles to run after the last transfer, in which no surplus word may leave
    reset_at : when not 0, the inputs are first fed for so many cycles, then the component is reset
        and everything starts again; only what happens afterwards is returned
    """
    m = Module()
    reset = Signal()
    m.submodules.dut = ResetInserter(reset)(dut)
    always = Signal()  # keeps the clock alive where the component is wires alone
    m.d.sync += always.eq(~always)
    simulator = Simulator(m)
    simulator.add_clock(1e-8)
    run = Run()
    finished: set[str] = set()
    stalls = {
        name: stall.get(name, 0.0) if isinstance(stall, Mapping) else stall
        for name in (*inputs, *outputs)
    }

    def note(name: str) -> Callable[[], None]:
        run.times[name] = []
        return lambda: run.times[name].append(run.cycles)

    def feeder(name: str) -> Callable[[Any], Awaitable[None]]:
        async def bench(ctx: Any) -> None:
            stream = resolve(dut, name)
            words = iter(inputs[name])
            word = next(words, None)
            for _ in range(reset_at):
                ctx.set(stream.valid, word is not None)
                if word is not None:
                    ctx.set(stream.payload, word)
                _, _, taken = await ctx.tick().sample(stream.ready)
                word = next(words, None) if taken else word
            if reset_at:
                ctx.set(stream.valid, 0)
                await _wait(ctx, 2)
            rng = random.Random(f"{seed} {name}")
            await drive(ctx, stream, inputs[name], stalls[name], rng, note(name))
            finished.add(name)

        return bench

    def taker(name: str) -> Callable[[Any], Awaitable[None]]:
        async def bench(ctx: Any) -> None:
            stream = resolve(dut, name)
            if reset_at:
                ctx.set(stream.ready, 1)
                await _wait(ctx, reset_at)
                ctx.set(stream.ready, 0)
                await _wait(ctx, 2)
            rng = random.Random(f"{seed} {name}")
            run.words[name] = await collect(
                ctx, stream, outputs[name], stalls[name], rng, note(name)
            )
            finished.add(name)
            ctx.set(stream.ready, settle_cycles > 0)
            while True:
                _, _, valid, payload = await ctx.tick().sample(stream.valid, stream.payload)
                assert not (valid and settle_cycles), f"{name}: surplus word {plain(payload)}"

        return bench

    async def watch(ctx: Any) -> None:
        run.pulses = dict.fromkeys(count_pulses, 0)
        signals = [resolve(dut, name) for name in run.pulses]
        while True:
            _, _, *highs = await ctx.tick().sample(*signals)
            run.cycles += 1
            for name, high in zip(run.pulses, highs, strict=True):
                run.pulses[name] += high

    async def main(ctx: Any) -> None:
        for name, value in (set_up or {}).items():
            ctx.set(resolve(dut, name), value)
        if reset_at:
            await _wait(ctx, reset_at)
            ctx.set(reset, 1)
            await ctx.tick()
            ctx.set(reset, 0)
            run.pulses = dict.fromkeys(run.pulses, 0)
        while len(finished) < len(inputs) + len(outputs):
            await ctx.tick()
            if run.cycles >= deadline_cycles:
                moved = {name: len(times) for name, times in run.times.items()}
                raise AssertionError(f"deadline of {deadline_cycles} cycles, transfers: {moved}")
        await _wait(ctx, max(1, settle_cycles))
        for name in sample:
            run.sampled[name] = plain(ctx.get(resolve(dut, name)))

    simulator.add_testbench(watch, background=True)
    for name in inputs:
        simulator.add_testbench(feeder(name), background=True)
    for name in outputs:
        simulator.add_testbench(taker(name), background=True)
    simulator.add_testbench(main)
    simulator.run()
    return run
