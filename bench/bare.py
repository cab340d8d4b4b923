"""Cycles per second of a board in a plain C++ loop: what the simulated device is measured against.

The same Verilated model as ``sim/simulate.py`` builds, around ``bench/bare.cpp``.
"""

import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gradweave.model.errors import DeviceError
from gradweave.model.plan import Plan
from gradweave.rtl.probes import probe_table
from gradweave.sim.build import build
from gradweave.sim.simulate import generate

__all__ = ["BareRun", "run_bare", "run_bare_verilog"]

MAIN = Path(__file__).parent / "bare.cpp"


@dataclass(frozen=True)
class BareRun:
    cycles: int
    seconds: float
    cycles_per_second: float


def run_bare(
    plan: Plan,
    writes: Mapping[int, int],
    words: npt.NDArray[np.uint32],
    lasts: npt.NDArray[np.bool_],
    expect: int,
    *,
    cycles: int = 1 << 40,
) -> BareRun:
    """Write registers (address to value, in order), then stream ``words`` until ``expect`` came.

    Stops after ``cycles``. The time is that of the streaming alone.
    """
    verilog = generate(plan)
    return run_bare_verilog(
        verilog, writes, words, lasts, expect, cycles=cycles, probes=len(probe_table(plan))
    )


def run_bare_verilog(
    verilog: str,
    writes: Mapping[int, int],
    words: npt.NDArray[np.uint32],
    lasts: npt.NDArray[np.bool_],
    expect: int,
    *,
    cycles: int = 1 << 40,
    probes: int = 0,
) -> BareRun:
    program = build(verilog, probes=probes, main=MAIN)
    with tempfile.NamedTemporaryFile(suffix=".words") as file:
        np.stack([lasts.astype("<u4"), words.astype("<u4")], axis=1).tofile(file.name)
        registers = [str(number) for pair in writes.items() for number in pair]
        command = [str(program), file.name, str(expect), str(cycles), *registers]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    passed, seconds, sent, received = int(said[0]), float(said[1]), int(said[2]), int(said[3])
    if passed < cycles and (sent, received) != (len(words), expect):
        raise DeviceError(
            f"board must take {len(words)} words and give {expect}, not {sent} and {received}"
        )
    return BareRun(passed, seconds, passed / seconds)
