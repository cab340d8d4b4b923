"""Runs a cocotb bench under Verilator and tells what failed. Needs no makefile and no container.

The simulator of a design is built once and cached by content. Test: ``tests/test_cocotb.py``.
"""

import importlib.metadata
import logging
import os
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..model.errors import ToolError, VerifyError
from .cache import cached, key_of
from .tools import Verilator, find_compiler, find_tool, find_verilator
from .verilog import compress_initial_blocks, top_ports

__all__ = ["BENCHES", "BenchResult", "run_bench"]

TAIL_LINES = 25
BENCHES = Path(__file__).parent / "benches"
BUILD_ARGUMENTS = [
    *("-Wno-fatal", "-Wno-lint", "-Wno-style", "--no-timing", "--x-initial", "fast"),
    *("-CFLAGS", "-O1", "-fno-merge-cond-motion"),
]
# Where the C++ is split into several files, the package's makefile leaves these unset.
MAKE_VARIABLES = {"MAKEFLAGS": "-- CFG_CXXFLAGS_PCH_I=-include CFG_GCH_IF_CLANG="}


@dataclass(frozen=True)
class BenchResult:
    """Names of the tests of a bench that passed, and what the simulator printed."""

    passed: tuple[str, ...]
    log: str


def run_bench(
    verilog: str,
    top: str,
    module: str,
    *,
    parameters: Mapping[str, str | int | float] | None = None,
    seed: int = 1,
    folder: Path = BENCHES,
    cache: Path | None = None,
) -> BenchResult:
    """Run every cocotb test of ``module`` on a design, and return when all have passed.

    Parameters
    ----------
    verilog : the design
    top : its top module, the bench's ``dut``; the bench sees its ports alone
    module : the bench's module name
    parameters : given to the bench as environment variables, by name
    seed : of the bench's random numbers (``COCOTB_RANDOM_SEED``)
    folder : where the module is
    cache : the cache's folder, by default ``cache_root()``

    Raises
    ------
    VerifyError
        When a test fails: names it, with its failing assertion and the seed.
    ToolError
        When a tool is missing or fails, or the bench has no test.
    """
    verilator = find_verilator()
    find_tool("make")
    built = _build(verilog, top, verilator, cache)
    with tempfile.TemporaryDirectory(prefix="gradweave-bench-") as name:
        scratch = Path(name)
        log, results = scratch / "log", scratch / "results.xml"
        variables = {key: str(value) for key, value in (parameters or {}).items()}
        variables["PYTHONPATH"] = os.pathsep.join([str(folder), *sys.path])
        # Each test that fails makes the runner exit; the results say which.
        with suppress(SystemExit):
            _runner(verilator, variables).test(
                test_module=module,
                hdl_toplevel=top,
                hdl_toplevel_lang="verilog",
                build_dir=built,
                test_dir=scratch,
                results_xml=str(results),
                seed=seed,
                log_file=log,
            )
        return _judge(module, results, seed, _text(log))


def _judge(module: str, results: Path, seed: int, log: str) -> BenchResult:
    if not results.is_file():
        raise ToolError(f"bench {module} must write its results, but wrote none:\n{_tail(log)}")
    cases = list(ElementTree.parse(results).iter("testcase"))  # noqa: S314 cocotb wrote it
    if not cases:
        raise ToolError(f"bench {module} must have a cocotb test, but has none:\n{_tail(log)}")
    passed = []
    for case in cases:
        name = case.get("name", "")
        failure = next((child for child in case if child.tag in ("failure", "error")), None)
        if failure is not None:
            said = failure.get("message") or failure.get("error_msg") or failure.text or ""
            kind = failure.get("type") or failure.get("error_type") or ""
            raise VerifyError(
                f"bench {module}.{name} must pass, but with seed {seed} fails: "
                f"{kind} {said}".rstrip()
                + f"\n{_tail(log)}"
            )
        if case.find("skipped") is None:
            passed.append(name)
    return BenchResult(tuple(passed), log)


def _build(verilog: str, top: str, verilator: Verilator, cache: Path | None) -> Path:
    text = compress_initial_blocks(verilog)
    visible = "".join(
        f'public_flat_rw -module "{top}" -var "{port}"\n' for port in top_ports(text, top)
    )
    compiler = find_compiler()
    versions = [importlib.metadata.version("cocotb"), verilator.version, compiler.version]
    key = key_of(text, visible, top, *versions, *BUILD_ARGUMENTS, str(verilator.root), sys.prefix)

    def make(folder: Path) -> None:
        source = folder / "design.v"
        source.write_text(text)
        control = folder / "visible.vlt"
        control.write_text(f"`verilator_config\n{visible}")
        log = folder / "build.log"
        try:
            _runner(verilator, MAKE_VARIABLES).build(
                sources=[control, source],
                hdl_toplevel=top,
                build_dir=folder,
                build_args=BUILD_ARGUMENTS,
                timescale=("1ns", "1ps"),
                log_file=log,
            )
        except RuntimeError as error:
            raise ToolError(f"building the bench of {top} failed:\n{_tail(_text(log))}") from error
        for file in folder.iterdir():
            if file.name != top:
                file.unlink()

    return cached("bench", key, make, root=cache)


def _runner(verilator: Verilator, variables: Mapping[str, str]) -> Any:
    """cocotb's runner for this Verilator, whose processes see ``variables``."""
    try:
        from cocotb_tools.runner import Verilator as Runner
    except ImportError as error:
        raise ToolError("cocotb must be installed: pip install 'cocotb>=2.1,<3'") from error

    class OurRunner(Runner):
        def _simulator_in_path_build_only(self) -> None:
            self.executable = str(verilator.path)

        def _build_command(self) -> list[list[str]]:
            # With every signal visible, a board takes many minutes to build.
            return [
                [word for word in command if word != "--public-flat-rw"]
                for command in super()._build_command()
            ]

        def _set_env_common(self) -> None:
            super()._set_env_common()
            self.env.update({"VERILATOR_ROOT": str(verilator.root), **variables})

    runner = OurRunner()
    runner.log.setLevel(logging.CRITICAL)
    return runner


def _text(log: Path) -> str:
    return log.read_text(errors="replace") if log.is_file() else ""


def _tail(text: str) -> str:
    return "\n".join(text.splitlines()[-TAIL_LINES:])
