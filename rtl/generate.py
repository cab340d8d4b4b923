"""From a plan to Verilog.

Test: ``tests/test_generate.py``.
"""

import gc

from amaranth.back import verilog as backend

from ..model.plan import Plan
from .board import Board
from .memories import RAM_VERILOG, RamPlatform

__all__ = ["TOP", "verilog"]

TOP = "board"


def verilog(plan: Plan) -> str:
    """Return the design as Verilog; the top module is ``board``, its ports are ``clk``, ``rst`` and those of ``Board``."""
    collecting = gc.isenabled()
    # Conversion makes millions of small tuples and no cycles: collecting would double its time.
    gc.disable()
    try:
        text = backend.convert(
            Board(plan), name=TOP, platform=RamPlatform(), strip_internal_attrs=True
        )
    finally:
        if collecting:
            gc.enable()
    return text + "\n" + RAM_VERILOG
