"""From a plan to Verilog.

Test: ``tests/test_generate.py``.
"""

import gc
import re

from amaranth.back import verilog as backend

from ..model.plan import Plan
from .board import Board
from .memories import RAM_VERILOG, RamPlatform

__all__ = ["TOP", "verilog"]

TOP = "board"
_REPEAT = re.compile(r"(?<=[\s{])((?:\\\S+ |\w+)\[\d+\])(?:, \1)+(?=[,\s])")


def verilog(plan: Plan) -> str:
    """Return the design as Verilog; the top module is ``board``, its ports are ``clk``, ``rst`` and
    those of ``Board``.
    """
    collecting = gc.isenabled()
    # Conversion makes millions of small tuples and no cycles: collecting would double its time.
    gc.disable()
    try:
        text = backend.convert(
            Board(plan), name=TOP, platform=RamPlatform(), strip_internal_attrs=True, emit_src=False
        )
    finally:
        if collecting:
            gc.enable()
    return fold_repeats(text) + "\n" + RAM_VERILOG


def fold_repeats(text: str) -> str:
    """Return Verilog with runs of one repeated bit in a concatenation written as a replication.

    Sign extensions come as one term per bit, which Verilator evaluates one by one.
    """
    return _REPEAT.sub(lambda run: f"{{{run[0].count(', ') + 1}{{{run[1]}}}}}", text)
