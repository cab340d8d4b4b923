# amaranth: UnusedElaboratable=no
# ruff: noqa: ERA001
"""The exponential equals its definition for every stall, and keeps tags beside their values."""

import random

import pytest
import torch

from gradweave.model.fixed import requantize
from gradweave.model.formats import Format, Rounding
from gradweave.rtl.parts.exponential import Exponential
from gradweave.tests.streams import run_streams

TABLE = [round(2 ** (16 - f / 1024)) for f in range(1024)]


def reference(below, frac, rounding):
    exact = torch.tensor(below) * 47274
    octaves, _ = requantize(exact, frac + 15, Format(15, 10, signed=False), rounding)
    return [TABLE[t % 1024] >> (t // 1024) for t in octaves.tolist()]


def test_powers_worked_by_hand():
    # 0 gives 1; exp(-1) is 1477.3/1024 octaves, so 2**16 * 2**(-1477/1024) = 24114.1; 4095 is far.
    dut = Exponential(width=12, frac=0, rounding=Rounding.HALF_EVEN, tag=1)
    words = [{"below": below, "tag": below & 1} for below in (0, 1, 4095)]
    run = run_streams(dut, {"i": words}, {"o": 3})
    assert run["o"] == [
        {"value": 65536, "tag": 0},
        {"value": 24114, "tag": 1},
        {"value": 0, "tag": 1},
    ]


@pytest.mark.parametrize("stall", [0.0, 0.5])
@pytest.mark.parametrize("rounding", [Rounding.HALF_EVEN, Rounding.HALF_UP, Rounding.FLOOR])
@pytest.mark.parametrize(("width", "frac"), [(16, 10), (8, 5), (12, -3), (16, 15)])
def test_every_value_is_right(width, frac, rounding, stall):
    rng = random.Random(width)
    below = [0, (1 << width) - 1, *(rng.getrandbits(rng.randint(1, width)) for _ in range(60))]
    words = [{"below": value, "tag": n % 8} for n, value in enumerate(below)]
    dut = Exponential(width=width, frac=frac, rounding=rounding, tag=3)
    run = run_streams(dut, {"i": words}, {"o": len(words)}, stall=stall)
    assert [word["value"] for word in run["o"]] == reference(below, frac, rounding)
    assert [word["tag"] for word in run["o"]] == [word["tag"] for word in words]


def test_interval_and_latency_are_as_stated():
    dut = Exponential(width=8, frac=4, rounding=Rounding.FLOOR, tag=1)
    run = run_streams(dut, {"i": [{"below": n, "tag": 0} for n in range(20)]}, {"o": 20})
    first = run.times["i"][0]
    assert run.times["i"] == list(range(first, first + 20))
    assert run.times["o"] == [cycle + dut.latency for cycle in run.times["i"]]


def test_reset_in_mid_stream_drops_what_is_inside():
    dut = Exponential(width=8, frac=4, rounding=Rounding.FLOOR, tag=1)
    words = [{"below": n, "tag": 1} for n in range(20)]
    run = run_streams(dut, {"i": words}, {"o": 20}, stall=0.5, reset_at=7)
    assert [word["value"] for word in run["o"]] == reference(range(20), 4, Rounding.FLOOR)
