"""Exact two-dimensional correlation as a few large matrix products: the engine of the fast golden.

A map is kept channel-major: channels are the rows of a matrix, and all positions of all samples its
columns. Kernel columns are gathered into rows beforehand; a kernel row is reached by an offset into
the same buffer, because moving down one map row is moving ``outputs`` columns further. So a kernel
of R rows takes R products and no more copies than it has columns. Zero padding below one sample
doubles as the padding above the next.

Every sum is exact whatever its order, as long as the caller picks a dtype that holds the worst
case.

Used by ``model/pipeline/conv.py``. Test: ``tests/test_columns.py``.
"""

import torch
from torch import Tensor

__all__ = ["Correlation"]

Pair = tuple[int, int]

# Positions per product and thread: keeps the block of results in a core's second-level cache.
BLOCK_POSITIONS = 4096

# Extra work above which gathering every kernel row beats reading them by offset.
WASTE_LIMIT = 1.4


class Correlation:
    """``o[y, x] = sum over taps of w[tap] * i[y*stride + ky - padding, x*stride + kx - padding]``.

    Parameters
    ----------
    size, outputs : (height, width) of a source map and of a result map
    kernel, stride : (rows, columns)
    padding : (rows, columns) of zeros in front; may be negative, which drops source rows or columns
    spread : (rows, columns), the distance of source entries, with zeros between; 1 is none. Needs
        ``stride`` 1.
    dtype : torch.float64 or torch.int64
    """

    def __init__(
        self,
        *,
        size: Pair,
        kernel: Pair,
        stride: Pair = (1, 1),
        padding: Pair = (0, 0),
        outputs: Pair,
        spread: Pair = (1, 1),
        dtype: torch.dtype = torch.float64,
    ) -> None:
        self.size, self.kernel, self.stride, self.padding = size, kernel, stride, padding
        self.outputs, self.spread, self.dtype = outputs, spread, dtype
        self.phases, self.offsets, self.pitch = self._rows()
        self._buffer = torch.zeros(0, dtype=dtype)
        self._errors = torch.zeros(0, dtype=dtype)
        self._body: list[tuple[Tensor, tuple[slice, slice]]] = []
        self._shape = (0, 0)

    def load(self, source: Tensor) -> None:
        """Gather ``source`` [B, C, height, width], integers of any dtype and memory layout."""
        samples, channels = source.shape[:2]
        if self._shape != (samples, channels):
            self._allocate(samples, channels)
        maps = source.transpose(0, 1)
        for target, (rows, cols) in self._body:
            target.copy_(maps[:, :, rows, cols])

    def arrange(self, weight: Tensor) -> list[Tensor]:
        """Return ``weight`` [O, C, rows, columns] as the matrices that ``apply`` wants, one per row
        offset.
        """
        missing = self.phases * self.offsets - self.kernel[0]
        rows = torch.nn.functional.pad(weight, (0, 0, 0, missing)) if missing else weight
        grouped = (
            rows.to(self.dtype).unflatten(2, (self.offsets, self.phases)).permute(2, 0, 3, 1, 4)
        )
        return list(grouped.reshape(self.offsets, weight.shape[0], -1))

    def apply(self, matrices: list[Tensor], start: Tensor | None = None) -> Tensor:
        """Correlate what was loaded: return the exact sums [B, O, height, width], a view of a
        channel-major tensor.

        ``start`` [O] is added to every position.
        """
        samples, _ = self._shape
        positions = samples * self.pitch * self.outputs[1]
        result = torch.empty(matrices[0].shape[0], positions, dtype=self.dtype)
        for first, last in self._blocks(positions):
            block = result[:, first:last]
            if start is None:
                torch.mm(matrices[0], self._columns(0, first, last), out=block)
            else:
                columns = self._columns(0, first, last)
                torch.addmm(start[:, None], matrices[0], columns, out=block)
            for offset in range(1, self.offsets):
                block.addmm_(matrices[offset], self._columns(offset, first, last))
        return self._maps(result)

    def gradient(self, errors: Tensor) -> Tensor:
        """Return the exact sums over samples and positions [O, C, rows, columns] of ``errors`` [B,
        O, height, width].
        """
        samples, channels = self._shape
        positions = samples * self.pitch * self.outputs[1]
        if self._errors.shape != (errors.shape[1], positions):
            self._errors = torch.zeros(errors.shape[1], positions, dtype=self.dtype)
        rows = self._errors
        self._maps(rows).copy_(errors)
        sums = torch.zeros(self.offsets, errors.shape[1], self._buffer.shape[0], dtype=self.dtype)
        for first, last in self._blocks(positions):
            for offset in range(self.offsets):
                sums[offset].addmm_(rows[:, first:last], self._columns(offset, first, last).t())
        taps = sums.view(self.offsets, -1, self.phases, channels, self.kernel[1]).permute(
            1, 3, 0, 2, 4
        )
        return taps.flatten(2, 3)[:, :, : self.kernel[0]]

    def _maps(self, flat: Tensor) -> Tensor:
        maps = flat.view(flat.shape[0], self._shape[0], self.pitch, self.outputs[1])
        return maps[:, :, : self.outputs[0]].transpose(0, 1)

    def _columns(self, offset: int, first: int, last: int) -> Tensor:
        start = offset * self.outputs[1]
        return self._buffer[:, start + first : start + last]

    @staticmethod
    def _blocks(positions: int) -> list[Pair]:
        step = BLOCK_POSITIONS * torch.get_num_threads()
        return [(n, min(n + step, positions)) for n in range(0, positions, step)]

    def _rows(self) -> tuple[int, int, int]:
        """Pick how kernel rows are reached: ``row = offset * phases + phase``; and the rows a
        sample takes.
        """
        phases = min(self.stride[0], self.kernel[0]) if self.spread[0] == 1 else 1
        if phases < self.stride[0]:
            return self.kernel[0], 1, self.outputs[0]
        offsets = -(-self.kernel[0] // phases)
        spare = []
        for phase in range(phases):
            target, _ = _overlap(self._span(phase, 0), self.size[0], self.outputs[0] + offsets - 1)
            spare += [target.start, self.outputs[0] + offsets - 1 - target.stop]
        pitch = self.outputs[0] + offsets - 1 - min(offsets - 1, *spare)
        if pitch * offsets * phases > WASTE_LIMIT * self.outputs[0] * self.kernel[0]:
            return self.kernel[0], 1, self.outputs[0]
        return phases, offsets, pitch

    def _span(self, tap: int, axis: int) -> tuple[int, int, int]:
        return tap - self.padding[axis], self.stride[axis], self.spread[axis]

    def _allocate(self, samples: int, channels: int) -> None:
        height, width = self.outputs
        rows = samples * self.pitch + self.offsets - 1
        buffer = torch.zeros(self.phases, channels, self.kernel[1], rows, width, dtype=self.dtype)
        self._buffer = buffer.view(self.phases * channels * self.kernel[1], rows * width)
        self._shape = (samples, channels)
        self._body = []
        depth = height + self.offsets - 1
        shape = (self.phases, channels, self.kernel[1], samples, depth, width)
        maps = buffer.as_strided(shape, (*buffer.stride()[:3], self.pitch * width, width, 1))
        for phase in range(self.phases):
            target_rows, source_rows = _overlap(self._span(phase, 0), self.size[0], depth)
            for column in range(self.kernel[1]):
                target_cols, source_cols = _overlap(self._span(column, 1), self.size[1], width)
                body = maps[phase, :, column, :, target_rows, target_cols]
                if body.numel():
                    self._body.append((body, (source_rows, source_cols)))


def _overlap(span: tuple[int, int, int], size: int, outputs: int) -> tuple[slice, slice]:
    """Match target ``n`` with source ``(first + n*stride) / spread`` wherever it exists."""
    first, stride, spread = span
    hits = [
        n
        for n in range(outputs)
        if (first + n * stride) % spread == 0 and 0 <= (first + n * stride) // spread < size
    ]
    if not hits:
        return slice(0, 0), slice(0, 0)
    begin, end = hits[0], hits[-1]
    step = hits[1] - hits[0] if len(hits) > 1 else 1
    source = (first + begin * stride) // spread
    source_step = step * stride // spread if len(hits) > 1 else 1
    last = (first + end * stride) // spread
    return slice(begin, end + 1, step), slice(source, last + 1, source_step)
