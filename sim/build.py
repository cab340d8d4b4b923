"""Verilog to a simulator: Verilator, the C++ compiler and a cache keyed by all that goes in.

The result is a shared library with the C interface of ``sim/harness.cpp``, or a program around
another main file. Test: ``tests/test_build.py``.
"""

import functools
import os
import platform
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ..model.errors import InputError, ToolError
from .cache import cached, key_of
from .tools import INSTALL, Tool, Verilator, find_compiler, find_verilator, run
from .verilog import WRAPPER, compress_initial_blocks, register_inputs

__all__ = ["HARNESS", "build", "trace_format"]

HARNESS = Path(__file__).parent / "harness.cpp"
CORE_FLAGS = ["-std=gnu++20", "-fPIC", "-fvisibility=hidden", "-fno-strict-aliasing", "-w"]
FAST_FLAGS = ["-O1", "-march=native"]
SLOW_FLAGS = ["-O0"]  # constructors and first values: run once
RUNTIME_FLAGS = ["-O1"]  # Verilator's library: hardly runs, its inline functions apart
VERILATOR_FLAGS = [
    *("--cc", "--savable", "-O3", "--x-assign", "fast", "--x-initial", "fast", "--noassert"),
    *("--no-timing", "-Wno-fatal", "-Wno-lint", "-Wno-style", "--output-split", "20000"),
    "-fno-merge-cond-motion",  # takes minutes on boards, quadratic, and gains nothing
]
UNIT_BYTES = 120_000  # of C++ source: small enough for all processors to have work
MODEL = "Vmodel"
TRACES = {"vcd": "--trace-vcd", "fst": "--trace-fst"}


def trace_format(path: str | os.PathLike[str] | None) -> str | None:
    """Return ``vcd`` or ``fst`` by the ending of a waveform's path; None for None.

    Raises
    ------
    InputError
        For another ending.
    """
    if path is None:
        return None
    ending = Path(path).suffix.removeprefix(".")
    if ending not in TRACES:
        raise InputError(f"trace must end with .vcd or .fst, not {str(path)!r}")
    return ending


def build(
    verilog: str,
    top: str = "board",
    *,
    probes: int = 0,
    trace: str | None = None,
    threads: int = 1,
    main: Path = HARNESS,
    cache: Path | None = None,
) -> Path:
    """Return the path of the design's shared library, from the cache where it was built before.

    Parameters
    ----------
    verilog : a design whose module ``top`` has the ports of ``rtl/board.py``
    probes : number of its ports ``probe_<n>_valid`` and ``probe_<n>_data``
    trace : ``vcd`` or ``fst`` to be able to write that waveform (slower), or None
    threads : threads that evaluate one model
    main : the C++ file around the model; any other than the harness makes a program
    cache : the cache's folder, by default ``cache_root()``

    Raises
    ------
    ToolError
        When a tool is missing or fails.
    """
    verilator, compiler = find_verilator(), find_compiler()
    source = main.read_text()
    text = register_inputs(compress_initial_blocks(verilog), top)
    glue = _glue(probes, trace)
    options = [*VERILATOR_FLAGS, "--threads", str(threads), *([TRACES[trace]] if trace else [])]
    tools = [verilator.version, str(verilator.root), str(compiler.path), compiler.version]
    flags = [*CORE_FLAGS, *FAST_FLAGS, *SLOW_FLAGS, _processor()]
    key = key_of(text, source, glue, *options, *tools, *flags)
    shared = main == HARNESS

    def make(folder: Path) -> None:
        (folder / "design.v").write_text(text)
        (folder / "glue.h").write_text(glue)
        (folder / "main.cpp").write_text(source)
        command = [str(verilator.path), *options, "--top-module", WRAPPER, "--prefix", MODEL]
        run(
            [*command, "-Mdir", str(folder), str(folder / "design.v")],
            environment=verilator.environment,
            what=f"Verilating {top}",
        )
        runtime = _runtime(verilator, compiler, trace, cache)
        objects = _compile(verilator, compiler, _units(folder), folder, trace)
        _link(compiler, [*objects, *sorted(runtime.glob("*.o"))], folder / "out", shared, trace)
        for file in folder.iterdir():
            if file.name not in ("out", "design.v"):
                file.unlink()

    return cached("library" if shared else "program", key, make, root=cache) / "out"


def _glue(probes: int, trace: str | None) -> str:
    kind = {"vcd": "VerilatedVcdC", "fst": "VerilatedFstC"}.get(trace or "")
    lines = [f'#include "{MODEL}.h"']
    if kind:
        lines.append(f'#include "verilated_{trace}_c.h"')
        lines.append(f"using Trace = {kind};")
    else:
        lines.append("struct Trace { void open(const char*) {} bool isOpen() { return false; }")
        lines.append("    void close() {} void dump(unsigned long long) {} };")
    lines.append(f"using Model = {MODEL};")
    lines.append(f"constexpr bool kTrace = {'true' if kind else 'false'};")
    lines.append(f"constexpr unsigned kProbes = {probes};")
    attached = "model.trace(&trace, 99);" if kind else ""
    lines.append(f"inline void attach(Model& model, Trace& trace) {{ {attached} }}")
    lines.append("template <class Probe> void wire_probes(Model& model, Probe* probes) {")
    for n in range(probes):
        port = f"model.probe_{n}_data"
        lines.append(f"    probes[{n}].valid = &model.probe_{n}_valid;")
        lines.append(f"    probes[{n}].data = reinterpret_cast<const unsigned char*>(&{port});")
        lines.append(f"    probes[{n}].bytes = sizeof({port});")
    return "\n".join([*lines, "}", ""])


def _runtime(verilator: Verilator, compiler: Tool, trace: str | None, cache: Path | None) -> Path:
    """The folder with the objects of Verilator's own library, built once per toolchain."""
    names = ["verilated", "verilated_threads", "verilated_save"]
    names += [f"verilated_{trace}_c"] if trace else []
    sources = [verilator.root / "include" / f"{name}.cpp" for name in names]
    key = key_of(
        *(verilator.version, str(verilator.root), str(compiler.path), compiler.version),
        *(*CORE_FLAGS, *RUNTIME_FLAGS, trace or ""),
    )

    def make(folder: Path) -> None:
        _compile(verilator, compiler, sources, folder, trace)

    return cached("runtime", key, make, root=cache)


def _units(folder: Path) -> list[Path]:
    """Files that include all C++ files of ``folder``, so that each header is read a few times."""
    sources = sorted(folder.glob("*.cpp"), key=lambda path: (path.name != "main.cpp", path.name))
    units: list[Path] = []
    for speed in ("", "__Slow"):
        groups: list[list[Path]] = [[]]
        filled = 0
        for source in (path for path in sources if path.stem.endswith("__Slow") == bool(speed)):
            filled += source.stat().st_size
            if groups[-1] and filled > UNIT_BYTES:
                groups.append([])
                filled = source.stat().st_size
            groups[-1].append(source)
        for n, group in enumerate(groups):
            unit = folder / f"unit_{n}{speed}.cc"
            unit.write_text("".join(f'#include "{source.name}"\n' for source in group))
            units.append(unit)
    return units


def _compile(
    verilator: Verilator, compiler: Tool, sources: list[Path], folder: Path, trace: str | None
) -> list[Path]:
    """Compile every source into an object of ``folder``, on all processors."""
    include = verilator.root / "include"
    # What Verilator's own makefile passes; its headers test them.
    defines = {"VM_COVERAGE": 0, "VM_SC": 0, "VM_TIMING": 0, "VM_TRACE": int(bool(trace))}
    defines |= {f"VM_TRACE_{kind.upper()}": int(kind == trace) for kind in (*TRACES, "saif")}
    common = [*CORE_FLAGS, *(f"-D{name}={value}" for name, value in defines.items())]
    common += [f"-I{folder}", f"-I{include}", f"-I{include / 'vltstd'}"]

    def one(source: Path) -> Path:
        target = folder / f"{source.stem}.o"
        level = RUNTIME_FLAGS if source.suffix == ".cpp" else FAST_FLAGS
        level = SLOW_FLAGS if source.stem.endswith("__Slow") else level
        command = [str(compiler.path), *common, *level, "-c", str(source), "-o", str(target)]
        try:
            run(command, what=f"Compiling {source.name}")
        except ToolError as error:
            if trace == "fst" and ("lz4.h" in str(error) or "zlib.h" in str(error)):
                raise ToolError(
                    "an .fst waveform needs lz4.h and zlib.h: apt-get install liblz4-dev "
                    "zlib1g-dev, or ask for a .vcd"
                ) from error
            raise
        return target

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(one, sources))


def _link(
    compiler: Tool, objects: list[Path], target: Path, shared: bool, trace: str | None
) -> None:
    kind = ["-shared", "-Wl,-Bsymbolic"] if shared else []
    libraries = ["-pthread", *(["-llz4", "-lz"] if trace == "fst" else [])]
    command = [str(compiler.path), *kind, *map(str, objects), *libraries, "-o", str(target)]
    run(command, what=f"Linking {target.name} ({INSTALL['c++']} if its library is missing)")


@functools.cache
def _processor() -> str:
    """What ``-march=native`` depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.platform() + platform.processor()
    telling = ("model name", "flags", "Features", "CPU part")
    return "\n".join(sorted({line for line in lines if line.startswith(telling)}))
