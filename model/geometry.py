"""Which kernel taps exist at which position: the walk that an engine takes along one axis of a map.

A walk visits every position of its axis in order. At each position a run of taps exists; tap
``first_tap + n*tap_step`` reads source coordinate ``first_source + n*source_step``. A forward walk
gathers an output from inputs, a backward walk gathers an input's error from output errors. Taps
that would read padding are not visited, so they cost no cycle.

Leaf of the standard library, used by planner, RTL and the timing model.
Test: ``tests/test_geometry.py``.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

__all__ = [
    "Position",
    "Unfolding",
    "Walk",
    "adaptive_backward_walk",
    "adaptive_walk",
    "backward_walk",
    "forward_walk",
    "output_size",
]


@dataclass(frozen=True)
class Position:
    """One position of a walk: its run of taps, and what it asks of the buffered source.

    ``taps`` may be zero: the walk then spends one null beat, which contributes nothing. ``need``
    source entries (counted from the sample's start) must be present before the position starts; the
    first ``free`` source entries are not read by any later position of the sample. ``need`` is at
    least ``free``, so entries that no tap reads are waited for before they are dropped; and it is
    at least 1, so that a walk never runs ahead of its sample.
    """

    first_tap: int
    taps: int
    first_source: int
    need: int
    free: int


@dataclass(frozen=True)
class Walk:
    """All positions of one axis; ``source_size`` is the number of source entries of a sample."""

    positions: tuple[Position, ...]
    source_size: int
    tap_step: int
    source_step: int

    @property
    def beats(self) -> int:
        """Tap visits over the whole axis, null beats included."""
        return sum(max(1, position.taps) for position in self.positions)


@dataclass(frozen=True)
class Unfolding:
    """A row of ``size`` columns laid out as one vector of ``kernel`` columns per output column.

    The row passes a register of ``kernel`` columns in steps: padding that is made, columns that are
    taken. Every step takes a cycle, but one that completes an output's vector takes as many as that
    has words. Columns behind the last vector are taken and dropped.
    """

    size: int
    kernel: int
    stride: int
    padding: int
    outputs: int

    @property
    def steps(self) -> int:
        """Columns that pass, padding included, up to the last vector and the last column."""
        return max(self.padding + self.size, (self.outputs - 1) * self.stride + self.kernel)

    def row_cycles(self, words: int) -> int:
        """Cycles per row with ``words`` words per vector when nothing stalls, rows back to back."""
        return self._cycles(0, words)

    def tail_cycles(self, words: int) -> int:
        """Cycles from a row's last column to the last word that waits for it; 0 for none."""
        last = self.padding + self.size - 1
        waits = (self.outputs - 1) * self.stride + self.kernel > last
        return self._cycles(last, words) if waits else 0

    def between_cycles(self, words: int) -> int:
        """Cycles from a row's last column to the next row's first when nothing stalls."""
        leading = self._cycles(0, words) - self._cycles(self.padding, words)
        return self._cycles(self.padding + self.size - 1, words) + leading

    def _cycles(self, start: int, words: int) -> int:
        """Cycles of the steps from ``start`` on."""
        vectors = range(self.kernel - 1, self.steps, self.stride)
        return self.steps - start + (words - 1) * sum(step >= start for step in vectors)


def output_size(size: int, kernel: int, stride: int, padding: int, dilation: int = 1) -> int:
    """Positions of a kernel on an axis of ``size`` entries with ``padding`` on both ends (floor
    mode).
    """
    return (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1


@lru_cache(maxsize=1024)
def forward_walk(
    size: int,
    kernel: int,
    stride: int,
    padding: int,
    outputs: int | None = None,
    dilation: int = 1,
) -> Walk:
    """Walk the outputs: output ``y`` reads source ``y*stride + tap*dilation - padding`` for each
    tap inside the source.

    ``padding`` lies in front of the axis. ``outputs`` positions are walked, however far the last
    ones reach beyond the axis; the default pads both ends alike.
    """
    if outputs is None:
        outputs = output_size(size, kernel, stride, padding, dilation)
    runs = []
    for y in range(outputs):
        origin = y * stride - padding
        taps = [tap for tap in range(kernel) if 0 <= origin + tap * dilation < size]
        first = taps[0] if taps else 0
        runs.append((first, len(taps), origin + first * dilation if taps else 0))
    return _walk(runs, size, 1, dilation)


@lru_cache(maxsize=1024)
def backward_walk(
    size: int,
    kernel: int,
    stride: int,
    padding: int,
    outputs: int | None = None,
    dilation: int = 1,
) -> Walk:
    """Walk the inputs: input ``x`` gathers output ``(x + padding - tap*dilation)/stride`` for each
    tap where that exists; arguments as ``forward_walk``.
    """
    if outputs is None:
        outputs = output_size(size, kernel, stride, padding, dilation)
    common = math.gcd(stride, dilation)
    runs = []
    for x in range(size):
        taps = [
            tap
            for tap in range(kernel)
            if (x + padding - tap * dilation) % stride == 0
            and 0 <= (x + padding - tap * dilation) // stride < outputs
        ]
        first = taps[0] if taps else 0
        runs.append((first, len(taps), (x + padding - first * dilation) // stride if taps else 0))
    return _walk(runs, outputs, stride // common, -(dilation // common))


@lru_cache(maxsize=1024)
def adaptive_walk(size: int, outputs: int) -> Walk:
    """Walk the outputs of an adaptive pool: output ``y`` reads the source from
    ``floor(y*size/outputs)`` up to, not including, ``ceil((y + 1)*size/outputs)``.
    """
    runs = []
    for y in range(outputs):
        first = y * size // outputs
        runs.append((0, -(-(y + 1) * size // outputs) - first, first))
    return _walk(runs, size, 1, 1)


@lru_cache(maxsize=1024)
def adaptive_backward_walk(size: int, outputs: int) -> Walk:
    """Walk the inputs of an adaptive pool: input ``x`` gathers every output whose window has it."""
    windows = [(y * size // outputs, -(-(y + 1) * size // outputs)) for y in range(outputs)]
    runs = []
    for x in range(size):
        readers = [y for y, (first, last) in enumerate(windows) if first <= x < last]
        runs.append((0, len(readers), readers[0]))
    return _walk(runs, outputs, 1, 1)


def _walk(
    runs: list[tuple[int, int, int]], source_size: int, tap_step: int, source_step: int
) -> Walk:
    spans = []
    for _, taps, source in runs:
        ends = (source, source + (taps - 1) * source_step)
        spans.append((min(ends), max(ends) + 1) if taps else None)
    positions = []
    need = 1
    for n, (first, taps, source) in enumerate(runs):
        span = spans[n]
        later = [s[0] for s in spans[n + 1 :] if s]
        free = min(later) if later else source_size
        need = max(need, free, span[1] if span else 0)
        positions.append(Position(first, taps, source, need, free))
    return Walk(tuple(positions), source_size, tap_step, source_step)
