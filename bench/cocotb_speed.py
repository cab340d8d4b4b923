"""Cycles per second of driving a board from cocotb, for comparison with the simulated device.

The bench is the plainest that keeps the stream full: one coroutine that sets and reads the
stream's signals at every clock edge, without a bus model.
"""

import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gradweave.sim.cocotb_run import run_bench

__all__ = ["cocotb_cycles_per_second"]


def cocotb_cycles_per_second(
    verilog: str,
    writes: Mapping[int, int],
    words: npt.NDArray[np.uint32],
    lasts: npt.NDArray[np.bool_],
    *,
    cycles: int = 20_000,
) -> float:
    """Write registers (address to value), stream ``words`` and return cycles per second."""
    with tempfile.TemporaryDirectory() as name:
        packed, result = Path(name) / "words.npz", Path(name) / "seconds"
        registers = np.array(list(writes.items()), np.int64).reshape(-1, 2)
        np.savez(packed, writes=registers, words=words, lasts=lasts)
        parameters = {
            "GRADWEAVE_WORDS": str(packed),
            "GRADWEAVE_CYCLES": cycles,
            "GRADWEAVE_RESULT": str(result),
        }
        run_bench(verilog, "board", "drive", parameters=parameters)
        return cycles / float(result.read_text())
