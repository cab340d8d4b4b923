"""Drives a board's streams from a plain cocotb coroutine and measures the time: see
``bench/cocotb_speed.py``. Test: ``tests/test_cocotb.py``.
"""

import os
import time
from pathlib import Path

import cocotb
import numpy as np
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, RisingEdge

__all__ = ["drive_streams"]

PREPARE_CYCLES = 200


@cocotb.test()
async def drive_streams(dut):
    data = np.load(os.environ["GRADWEAVE_WORDS"], allow_pickle=False)
    cycles = int(os.environ["GRADWEAVE_CYCLES"])
    for port in ("tvalid", "tdata", "tlast"):
        getattr(dut, f"s_axis_{port}").value = 0
    for port in ("awvalid", "wvalid", "bready", "arvalid", "rready", "araddr"):
        getattr(dut, f"s_axil_{port}").value = 0
    dut.m_axis_tready.value = 1
    cocotb.start_soon(Clock(dut.clk, 10, "ns").start())
    dut.rst.value = 1
    await ClockCycles(dut.clk, 4)
    dut.rst.value = 0
    for address, value in data["writes"].tolist():
        await write(dut, address, value)
    await ClockCycles(dut.clk, PREPARE_CYCLES)
    began = time.perf_counter()
    sent = await stream(dut, data["words"].tolist(), data["lasts"].tolist(), cycles)
    assert sent, "board must take a word, but takes none: write the register that starts it"
    Path(os.environ["GRADWEAVE_RESULT"]).write_text(str(time.perf_counter() - began))


async def write(dut, address, value):
    dut.s_axil_awaddr.value = address
    dut.s_axil_wdata.value = value
    dut.s_axil_wstrb.value = 15
    for port in ("awvalid", "wvalid", "bready"):
        getattr(dut, f"s_axil_{port}").value = 1
    answered = False
    while not answered:
        await RisingEdge(dut.clk)
        answered = bool(dut.s_axil_bvalid.value)
        for channel in ("aw", "w"):
            if getattr(dut, f"s_axil_{channel}ready").value:
                getattr(dut, f"s_axil_{channel}valid").value = 0
    dut.s_axil_bready.value = 0


async def stream(dut, words, lasts, cycles):
    edge = RisingEdge(dut.clk)
    data, valid, last, ready = (
        getattr(dut, f"s_axis_{port}") for port in ("tdata", "tvalid", "tlast", "tready")
    )
    sent = 0
    data.value, last.value, valid.value = words[0], lasts[0], 1
    for _ in range(cycles):
        await edge
        if ready.value and sent < len(words):
            sent += 1
            if sent < len(words):
                data.value, last.value = words[sent], lasts[sent]
            else:
                valid.value = 0
    return sent
