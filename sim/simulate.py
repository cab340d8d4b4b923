"""The simulated board: a Verilated design in this process, moved in bursts.

Harness: ``sim/harness.cpp``. Test: ``tests/test_simulate.py``.
"""

import ctypes
import importlib.metadata
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..model.errors import DeviceError, InputError, ToolError
from ..model.plan import Plan
from .build import build, trace_format
from .cache import cached, key_of
from .lanes import unpack_lanes

if TYPE_CHECKING:
    from ..rtl.probes import Probe

__all__ = ["Simulation", "generate", "idle_limit", "simulate"]

SLICE_SECONDS = 0.3  # between two looks at Ctrl-C and progress
FIRST_SLICE_CYCLES = 1 << 14
IDLE_CYCLES = 100_000
DONE, IDLE = 0, 2

Progress = Callable[[int], None]
Words = npt.NDArray[np.uint32]


class _Exchange(ctypes.Structure):
    """The layout of ``Exchange`` in ``sim/harness.cpp``."""

    _fields_ = [
        ("words", ctypes.c_void_p),
        ("lasts", ctypes.c_void_p),
        ("count", ctypes.c_uint64),
        ("received", ctypes.c_void_p),
        ("received_lasts", ctypes.c_void_p),
        ("expected", ctypes.c_uint64),
        ("taken", ctypes.c_uint64),
        ("given", ctypes.c_uint64),
        ("idle_cycles", ctypes.c_uint64),
        ("presented", ctypes.c_uint64),
    ]


def simulate(
    plan: Plan,
    *,
    stalls: float = 0.0,
    seed: int = 0,
    trace: str | os.PathLike[str] | None = None,
    threads: int = 1,
    cache: Path | None = None,
) -> "Simulation":
    """Return the plan's board, generated, built and reset; what is unchanged comes from the cache.

    Parameters
    ----------
    stalls : probability, 0 to 0.95, that the host's side pauses in a cycle
    seed : of the stalls
    trace : write a waveform of every cycle to this path, .vcd or .fst
    threads : threads that evaluate the board
    cache : the cache's folder, by default ``cache_root()``

    Raises
    ------
    InputError
        For an option out of range.
    ToolError
        When a tool is missing or fails.
    """
    from ..rtl.probes import probe_table

    _check_stalls(stalls)
    table = probe_table(plan)
    kind = trace_format(trace)
    verilog = generate(plan, cache=cache)
    library = build(verilog, probes=len(table), trace=kind, threads=threads, cache=cache)
    return Simulation(
        library,
        probes=table,
        stalls=stalls,
        seed=seed,
        trace=trace,
        threads=threads,
        idle_cycles=idle_limit(plan),
    )


def generate(plan: Plan, *, cache: Path | None = None) -> str:
    """Return the plan's Verilog, from the cache where neither plan nor generator has changed."""
    package = Path(__file__).parent.parent
    sources = sorted([*(package / "rtl").rglob("*.py"), *(package / "model").glob("*.py")])
    code = [part for path in sources for part in (path.name, path.read_bytes())]
    version = importlib.metadata.version("amaranth")
    key = key_of(plan.to_json(), plan.identity, version, *code)

    def make(folder: Path) -> None:
        from ..rtl.generate import verilog

        (folder / "board.v").write_text(verilog(plan))

    return (cached("verilog", key, make, root=cache) / "board.v").read_text()


def idle_limit(plan: Plan) -> int:
    """Cycles without a transfer after which a board of this plan is stuck.

    Longer than the way of a sample through all layers and back with a sweep of every parameter.
    """
    passes = sum(layer.fp_interval + layer.eb_interval for layer in plan.layers)
    sweeps = sum(layer.sweep_chunks * layer.update_lanes for layer in plan.trainable)
    return IDLE_CYCLES + 4 * (passes + sweeps)


def _check_stalls(stalls: float) -> None:
    if not 0 <= stalls <= 0.95:
        raise InputError(f"stalls must be a probability from 0 to 0.95, not {stalls}")


class Simulation:
    """A running simulated board; a ``Transport``.

    Other threads run while it clocks. Several may live at once, also of one library, each used by
    one thread at a time. Starts reset.

    Parameters
    ----------
    library : from ``build``
    probes : what the design's probe ports carry
    idle_cycles : cycles without a transfer after which ``exchange`` gives up
    stalls, seed, trace, threads : see ``simulate``

    Members
    -------
    cycles : clock cycles since creation
    """

    def __init__(
        self,
        library: Path,
        *,
        probes: Sequence["Probe"] = (),
        stalls: float = 0.0,
        seed: int = 0,
        trace: str | os.PathLike[str] | None = None,
        threads: int = 1,
        idle_cycles: int = IDLE_CYCLES,
    ) -> None:
        _check_stalls(stalls)
        self.idle_cycles = idle_cycles
        self._table = tuple(probes)
        self._slice_cycles = FIRST_SLICE_CYCLES
        self._library = _load(library)
        if self._library.gw_probe_count() != len(self._table):
            raise ToolError(
                f"library must have {len(self._table)} probes, not "
                f"{self._library.gw_probe_count()}: build it for this design"
            )
        self._self: int | None = self._library.gw_create(threads)
        if not self._self:
            raise ToolError("the simulated board could not be created: memory is short")
        self._library.gw_stall(self._self, stalls, seed)
        if trace is not None and not self._library.gw_trace(self._self, os.fsencode(trace)):
            self.close()
            raise ToolError(f"trace must be a path that can be written, not {str(trace)!r}")
        self.reset()

    def __enter__(self) -> "Simulation":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_self", None):
            self.close()

    @property
    def cycles(self) -> int:
        return self._library.gw_cycles(self._alive())

    def reset(self) -> None:
        """Reset the board as at power-on, memories apart."""
        self._library.gw_reset(self._alive())

    def read(self, address: int) -> int:
        """Return the 32-bit register at a byte address."""
        value = ctypes.c_uint32()
        if not self._library.gw_read(self._alive(), address, ctypes.byref(value)):
            raise DeviceError(self._silent("read", address))
        return value.value

    def write(self, address: int, value: int) -> None:
        """Write the 32-bit register at a byte address."""
        if not self._library.gw_write(self._alive(), address, value & 0xFFFFFFFF):
            raise DeviceError(self._silent("write", address))

    def step(self, cycles: int) -> None:
        """Let exactly that many clock cycles pass."""
        while cycles > 0:
            now = min(cycles, self._slice_cycles)
            began = time.perf_counter()
            self._library.gw_step(self._alive(), now)
            self._adapt(now, time.perf_counter() - began)
            cycles -= now

    def exchange(
        self,
        words: Words,
        lasts: npt.NDArray[np.bool_],
        expect: int,
        progress: Progress | None = None,
    ) -> Words:
        """Send all words, each with its ``last``, while receiving ``expect`` words; return these.

        ``progress`` is called about three times a second, and at the end, with the number received.
        A word more than expected stays in the board.

        Raises
        ------
        DeviceError
            When no word moves for ``idle_cycles``.
        """
        words = np.ascontiguousarray(words, np.uint32)
        lasts = np.ascontiguousarray(lasts, np.uint8)
        if words.ndim != 1 or words.shape != lasts.shape:
            raise InputError(
                f"words and lasts must be one-dimensional and as long as each other, not "
                f"{list(words.shape)} and {list(lasts.shape)}"
            )
        received = np.zeros(expect, np.uint32)
        received_lasts = np.zeros(expect, np.uint8)
        burst = _Exchange(words.ctypes.data, lasts.ctypes.data, len(words))
        burst.received, burst.received_lasts = received.ctypes.data, received_lasts.ctypes.data
        burst.expected = expect
        while True:
            before = self.cycles
            began = time.perf_counter()
            outcome = self._library.gw_exchange(
                self._alive(), ctypes.byref(burst), self._slice_cycles, self.idle_cycles
            )
            self._adapt(self.cycles - before, time.perf_counter() - began)
            if progress is not None:
                progress(burst.given)
            if outcome == DONE:
                self.received_lasts = received_lasts.astype(bool)
                return received
            if outcome == IDLE:
                raise DeviceError(
                    f"board must move a word within {self.idle_cycles} cycles, but at cycle "
                    f"{self.cycles} it stands: {burst.taken} of {burst.count} words went in and "
                    f"{burst.given} of {burst.expected} came out; read its registers, or record "
                    'a waveform with trace="stuck.vcd"'
                )

    def probe(self, enable: bool) -> None:
        """Record every probe from now on, or no longer; what was recorded stays."""
        self._library.gw_probe(self._alive(), int(enable))

    def probes(self, clear: bool = True) -> dict[str, npt.NDArray[np.int64]]:
        """Return what was recorded: by probe name int64 [transfers, lanes]; then forget it."""
        alive = self._alive()
        found = {}
        for n, probe in enumerate(self._table):
            size = self._library.gw_probe_size(alive, n)
            row = self._library.gw_probe_bytes(alive, n)
            raw = np.empty((size // row, row), np.uint8)
            if size:
                ctypes.memmove(raw.ctypes.data, self._library.gw_probe_data(alive, n), size)
            found[probe.name] = unpack_lanes(raw, probe.lanes, probe.width)
        if clear:
            self._library.gw_probe_clear(alive)
        return found

    def save_state(self, path: str | os.PathLike[str]) -> None:
        """Write all of the board's state to a file, which the same library alone can read."""
        if not self._library.gw_save(self._alive(), os.fsencode(path)):
            raise InputError(f"path must be a file that can be written, not {str(path)!r}")

    def restore_state(self, path: str | os.PathLike[str]) -> None:
        """Take the state that ``save_state`` wrote; ``cycles`` too."""
        if not Path(path).is_file():
            raise InputError(f"path must be a file of save_state, not {str(path)!r}")
        if not self._library.gw_restore(self._alive(), os.fsencode(path)):
            raise InputError(f"path must be a file that can be read, not {str(path)!r}")

    def close(self) -> None:
        """Free the board and finish its waveform."""
        if self._self:
            self._library.gw_destroy(self._self)
        self._self = None

    def _alive(self) -> int:
        if not self._self:
            raise DeviceError("the simulated board is closed: simulate again")
        return self._self

    def _silent(self, way: str, address: int) -> str:
        return (
            f"board must answer a register {way} at 0x{address:04x}, but at cycle {self.cycles} "
            "it does not: reset it"
        )

    def _adapt(self, cycles: int, seconds: float) -> None:
        """Choose the next slice so that it takes about ``SLICE_SECONDS``."""
        if seconds > SLICE_SECONDS / 8 or cycles >= self._slice_cycles:
            wanted = int(cycles * SLICE_SECONDS / max(seconds, 1e-6))
            self._slice_cycles = max(1024, min(wanted, 4 * self._slice_cycles))


def _load(path: Path) -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise ToolError(f"{path} must be a library of a simulated board: {error}") from error
    u32, u64, pointer, text = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_char_p
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "create": (pointer, [ctypes.c_uint]),
        "destroy": (None, [pointer]),
        "reset": (None, [pointer]),
        "step": (None, [pointer, u64]),
        "write": (ctypes.c_int, [pointer, u32, u32]),
        "read": (ctypes.c_int, [pointer, u32, pointer]),
        "exchange": (ctypes.c_int, [pointer, pointer, u64, u64]),
        "stall": (None, [pointer, ctypes.c_double, u64]),
        "cycles": (u64, [pointer]),
        "trace": (ctypes.c_int, [pointer, text]),
        "save": (ctypes.c_int, [pointer, text]),
        "restore": (ctypes.c_int, [pointer, text]),
        "probe": (None, [pointer, ctypes.c_int]),
        "probe_count": (u32, []),
        "probe_bytes": (u32, [pointer, u32]),
        "probe_size": (u64, [pointer, u32]),
        "probe_data": (pointer, [pointer, u32]),
        "probe_clear": (None, [pointer]),
    }
    for name, (returned, taken) in signatures.items():
        function = getattr(library, f"gw_{name}")
        function.restype, function.argtypes = returned, taken
    return library
