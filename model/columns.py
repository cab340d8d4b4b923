"""Exact two-dimensional correlation as a few large matrix products: the engine of the fast golden.

A map is kept channel-major, group by group: channels are the rows of a matrix, and all positions of
all samples its columns. Kernel columns are gathered into rows beforehand; a kernel row is reached
by an offset into the same buffer, because moving down one map row is moving ``outputs`` columns
further. So a kernel of R rows takes R products and no more copies than it has columns; dilated and
strided rows meet where their steps do. Zero padding below one sample doubles as the padding above
the next.

Every sum is exact whatever its order, as long as the caller picks a dtype that holds the worst
case.

Used by ``model/pipeline/conv.py``. Test: ``tests/test_columns.py``.
"""

import math

import torch
from torch import Tensor

__all__ = ["Correlation"]

Pair = tuple[int, int]

# Positions per product and thread: keeps the block of results in a core's second-level cache.
BLOCK_POSITIONS = 4096

# Extra work above which gathering every kernel row beats reading them by offset.
WASTE_LIMIT = 1.4


class Correlation:
    """``o[y, x] = sum over taps of w[tap] * i[y*stride + ky*dilation - padding, ...]``, in each of
    ``groups`` blocks of channels.

    Parameters
    ----------
    size, outputs : (height, width) of a source map and of a result map
    kernel, stride : (rows, columns)
    padding : (rows, columns) of zeros in front; may be negative, which drops source rows or columns
    spread : (rows, columns), the distance of source entries, with zeros between; 1 is none. Needs
        ``stride`` 1.
    dilation : (rows, columns), the distance of taps
    groups : int; each has an equal share of source channels and of result channels
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
        dilation: Pair = (1, 1),
        groups: int = 1,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        self.size, self.kernel, self.stride, self.padding = size, kernel, stride, padding
        self.outputs, self.spread, self.dilation = outputs, spread, dilation
        self.groups, self.dtype = groups, dtype
        self.phases, self.offsets, self.step, self.pitch = self._rows()
        self._buffer = torch.zeros(0, dtype=dtype)
        self._errors = torch.zeros(0, dtype=dtype)
        self._body: list[tuple[Tensor, tuple[slice, slice]]] = []
        self._shape = (0, 0)

    def load(self, source: Tensor) -> None:
        """Gather ``source`` [B, C, height, width], integers of any dtype and memory layout."""
        samples, channels = source.shape[:2]
        if self._shape != (samples, channels):
            self._allocate(samples, channels)
        maps = source.transpose(0, 1).unflatten(0, (self.groups, -1))
        for target, (rows, cols) in self._body:
            target.copy_(maps[:, :, :, rows, cols])

    def arrange(self, weight: Tensor) -> list[Tensor]:
        """Return ``weight`` [O, C/groups, rows, columns] as the matrices that ``apply`` wants, one
        per row offset.
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
        share = result.shape[0] // self.groups
        for first, last in self._blocks(positions):
            for group in range(self.groups):
                part = slice(group * share, (group + 1) * share)
                block = result[part, first:last]
                columns = self._columns(group, 0, first, last)
                if start is None:
                    torch.mm(matrices[0][part], columns, out=block)
                else:
                    torch.addmm(start[part, None], matrices[0][part], columns, out=block)
                for offset in range(1, self.offsets):
                    columns = self._columns(group, offset, first, last)
                    block.addmm_(matrices[offset][part], columns)
        return self._maps(result)

    def gradient(self, errors: Tensor) -> Tensor:
        """Return the exact sums over samples and positions [O, C/groups, rows, columns] of
        ``errors`` [B, O, height, width].
        """
        samples, channels = self._shape
        positions = samples * self.pitch * self.outputs[1]
        if self._errors.shape != (errors.shape[1], positions):
            self._errors = torch.zeros(errors.shape[1], positions, dtype=self.dtype)
        rows = self._errors
        self._maps(rows).copy_(errors)
        sums = torch.zeros(self.offsets, errors.shape[1], self._buffer.shape[1], dtype=self.dtype)
        share = errors.shape[1] // self.groups
        for first, last in self._blocks(positions):
            for group in range(self.groups):
                part = slice(group * share, (group + 1) * share)
                for offset in range(self.offsets):
                    columns = self._columns(group, offset, first, last)
                    sums[offset, part].addmm_(rows[part, first:last], columns.t())
        shape = (self.offsets, -1, self.phases, channels // self.groups, self.kernel[1])
        taps = sums.view(shape).permute(1, 3, 0, 2, 4)
        return taps.flatten(2, 3)[:, :, : self.kernel[0]]

    def _maps(self, flat: Tensor) -> Tensor:
        maps = flat.view(flat.shape[0], self._shape[0], self.pitch, self.outputs[1])
        return maps[:, :, : self.outputs[0]].transpose(0, 1)

    def _columns(self, group: int, offset: int, first: int, last: int) -> Tensor:
        start = offset * self.step * self.outputs[1]
        return self._buffer[group, :, start + first : start + last]

    @staticmethod
    def _blocks(positions: int) -> list[Pair]:
        step = BLOCK_POSITIONS * torch.get_num_threads()
        return [(n, min(n + step, positions)) for n in range(0, positions, step)]

    def _rows(self) -> tuple[int, int, int, int]:
        """Pick how kernel rows are reached: ``row = offset * phases + phase``, an offset being
        ``step`` rows of the buffer; and the rows a sample takes.
        """
        gathered = self.kernel[0], 1, 1, self.outputs[0]
        common = math.gcd(self.stride[0], self.dilation[0])
        phases, step = self.stride[0] // common, self.dilation[0] // common
        if phases > self.kernel[0]:
            return gathered
        offsets = -(-self.kernel[0] // phases)
        beyond = (offsets - 1) * step
        depth = self.outputs[0] + beyond
        spare = []
        for phase in range(phases):
            target, _ = _overlap(self._span(phase, 0), self.size[0], depth)
            spare += [target.start, depth - target.stop]
        pitch = depth - min(beyond, *spare)
        if pitch * offsets * phases > WASTE_LIMIT * self.outputs[0] * self.kernel[0]:
            return gathered
        return phases, offsets, step, pitch

    def _span(self, tap: int, axis: int) -> tuple[int, int, int]:
        first = tap * self.dilation[axis] - self.padding[axis]
        return first, self.stride[axis], self.spread[axis]

    def _allocate(self, samples: int, channels: int) -> None:
        height, width = self.outputs
        beyond = (self.offsets - 1) * self.step
        rows = samples * self.pitch + beyond
        taps = (self.phases, channels // self.groups, self.kernel[1])
        buffer = torch.zeros(self.groups, *taps, rows, width, dtype=self.dtype)
        self._buffer = buffer.view(self.groups, -1, rows * width)
        self._shape = (samples, channels)
        self._body = []
        depth = height + beyond
        shape = (self.groups, *taps, samples, depth, width)
        maps = buffer.as_strided(shape, (*buffer.stride()[:4], self.pitch * width, width, 1))
        for phase in range(self.phases):
            target_rows, source_rows = _overlap(self._span(phase, 0), self.size[0], depth)
            for column in range(self.kernel[1]):
                target_cols, source_cols = _overlap(self._span(column, 1), self.size[1], width)
                body = maps[:, phase, :, column, :, target_rows, target_cols]
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
