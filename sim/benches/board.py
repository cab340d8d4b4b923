"""Drives any board through cocotbext-axi: writes registers, sends words, checks answers in order.

Variables (given as ``parameters`` of ``run_bench``):

``GRADWEAVE_WORDS``
    npz files, one after another without a reset between them, with ``os.pathsep`` between their
    names. Each has ``writes`` uint32 [n, 2] (address, value), ``reads`` uint32 [n, 2] (address,
    expected value, after all answers), ``words`` uint32, ``lasts`` bool, ``answers`` uint32,
    ``answer_lasts`` bool; optionally ``ready`` uint32 [n, 3] (address, mask, value): between writes
    and words, wait until each register's masked bits have that value
``GRADWEAVE_PAUSE``
    probability that either stream pauses in a cycle, by default 0
``GRADWEAVE_CYCLES``
    the deadline in clock cycles, by default 1,000,000

Made by ``sim/cocotb_run.py``'s callers. Test: ``tests/test_cocotb.py``.
"""

import os
import random
from collections.abc import Iterator

import cocotb
import numpy as np
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, RisingEdge, SimTimeoutError, with_timeout
from cocotbext.axi import (
    AxiLiteBus,
    AxiLiteMaster,
    AxiStreamBus,
    AxiStreamFrame,
    AxiStreamSink,
    AxiStreamSource,
)

__all__ = ["board_answers_every_word_in_order"]

PERIOD_NS = 10


def pauses(probability: float, random_bits: random.Random) -> Iterator[bool]:
    while True:
        yield random_bits.random() < probability


@cocotb.test()
async def board_answers_every_word_in_order(dut):
    paths = os.environ["GRADWEAVE_WORDS"].split(os.pathsep)
    steps = [np.load(path, allow_pickle=False) for path in paths]
    cycles = int(os.environ.get("GRADWEAVE_CYCLES", "1000000"))
    bench = Bench(dut)
    try:
        await with_timeout(bench.run(steps), cycles * PERIOD_NS, "ns")
    except SimTimeoutError:
        wanted = sum(len(data["answers"]) for data in steps)
        raise AssertionError(
            f"board must give {wanted} words within {cycles} cycles, but gave {bench.checked}"
        ) from None


class Bench:
    """Source, sink, register master and the in-order checker between them."""

    def __init__(self, dut):
        self.dut = dut
        self.checked = 0
        cocotb.start_soon(Clock(dut.clk, PERIOD_NS, "ns").start())
        bus = AxiStreamBus.from_prefix(dut, "s_axis")
        # One word is one byte lane of 32 bits: frames are lists of words.
        self.source = AxiStreamSource(bus, dut.clk, dut.rst, byte_lanes=1)
        bus = AxiStreamBus.from_prefix(dut, "m_axis")
        self.sink = AxiStreamSink(bus, dut.clk, dut.rst, byte_lanes=1)
        self.registers = AxiLiteMaster(AxiLiteBus.from_prefix(dut, "s_axil"), dut.clk, dut.rst)
        probability = float(os.environ.get("GRADWEAVE_PAUSE", "0"))
        if probability:
            for n, stream in enumerate((self.source, self.sink)):
                drawn = random.Random(cocotb.RANDOM_SEED * 2 + n)
                stream.set_pause_generator(pauses(probability, drawn))

    async def run(self, steps):
        await self.reset()
        for data in steps:
            await self.step(data)

    async def step(self, data):
        for address, value in data["writes"].tolist():
            await self.registers.write_dword(address, value)
        for address, mask, value in data["ready"].tolist() if "ready" in data else ():
            while await self.registers.read_dword(address) & mask != value:
                pass
        for frame in frames(data["words"], data["lasts"]):
            await self.source.send(AxiStreamFrame(frame))
        await self.check(data["answers"].tolist(), data["answer_lasts"].tolist())
        for address, value in data["reads"].tolist():
            found = await self.registers.read_dword(address)
            assert found == value, (
                f"register 0x{address:04x} must be 0x{value:08x}, not 0x{found:08x}"
            )

    async def reset(self):
        self.dut.rst.value = 1
        await ClockCycles(self.dut.clk, 4)
        self.dut.rst.value = 0
        await RisingEdge(self.dut.clk)

    async def check(self, answers, lasts):
        start = self.checked
        while self.checked < start + len(answers):
            frame = await self.sink.recv()
            for n, word in enumerate(frame.tdata):
                at = self.checked - start
                assert at < len(answers), f"board must give {len(answers)} words, but gives more"
                assert word == answers[at], (
                    f"answer {self.checked} must be 0x{answers[at]:08x}, not 0x{word:08x}"
                )
                last = n == len(frame.tdata) - 1
                assert last == lasts[at], f"answer {self.checked} must have last = {lasts[at]}"
                self.checked += 1


def frames(words: np.ndarray, lasts: np.ndarray) -> list[list[int]]:
    """Split words behind every last."""
    return [part.tolist() for part in np.split(words, np.flatnonzero(lasts) + 1) if len(part)]
