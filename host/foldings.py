"""The foldings that a layer may have, and sets of them in order of cost.

For a given interval every layer's cheapest folding is independent of the others', because
multipliers add up. So the least interval within a DSP budget is found exactly by bisecting the
intervals that any folding can have. Memories and LUTs depend on the whole schedule:
``cheapest_sets`` yields sets by DSP slices until the planner finds one that fits.

Test: ``tests/test_planner.py``.
"""

import dataclasses
import heapq
import math
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from ..model.plan import LayerPlan, Plan
from ..model.schedule import SWEEP_LATENCY, minimum_buffers
from .resources import (
    Resources,
    layer_resources,
    multiplier_dsp,
    update_lane_dsp,
    update_memories,
)

__all__ = [
    "Folding",
    "FoldingTable",
    "block_sizes",
    "cheapest_sets",
    "divisors",
    "lane_choices",
    "lane_interval",
]


@dataclass(frozen=True)
class Folding:
    """One way to fold a trainable layer, the interval that it keeps and what that takes."""

    a: int
    b: int
    update_lanes: int
    interval: int
    dsp: int
    update_bram36: float = 0.0
    unfold: bool = False
    group_lanes: int = 1

    def apply(self, layer: LayerPlan) -> LayerPlan:
        """The layer, folded this way."""
        return dataclasses.replace(
            layer,
            a=self.a,
            b=self.b,
            group_lanes=self.group_lanes,
            update_lanes=self.update_lanes,
            unfold=self.unfold,
        )


def divisors(number: int) -> list[int]:
    """All positive divisors, ascending."""
    return [n for n in range(1, number + 1) if number % n == 0]


def block_sizes(channels: int) -> list[int]:
    """The least channels of a block for each number of blocks, ascending: no other size is worth
    its multipliers.
    """
    return sorted({-(-channels // blocks) for blocks in range(1, channels + 1)})


def lane_choices(layer: LayerPlan) -> list[int]:
    """Lanes that a layer without weights may have, ascending: of a concat, each part's."""
    return divisors(math.gcd(layer.i_shape[0], *layer.parts))


def lane_interval(layer: LayerPlan, lanes: int) -> int:
    """Cycles per sample of a layer without weights, writes to its window included."""
    _, height, width = layer.i_shape
    blocks = layer.i_shape[0] // lanes
    engines = max(layer.fp_interval, layer.eb_interval) * layer.lanes // lanes
    return max(engines, height * width * blocks)


class FoldingTable:
    """All foldings of one trainable layer.

    Parameters
    ----------
    plan : Plan, read for ``batch_max``
    layer : LayerPlan, with ``a = b = update_lanes = 1``
    sweep_samples : Fraction, samples in whose time an update sweep must end
    """

    def __init__(self, plan: Plan, layer: LayerPlan, sweep_samples: Fraction) -> None:
        self.layer = layer
        self._plan = plan
        self._floors: dict[Folding, Resources] = {}
        self.foldings = sorted(_foldings(layer, sweep_samples), key=lambda x: x.interval)
        self.intervals = [folding.interval for folding in self.foldings]
        self._least_dsp: list[int] = []
        for folding in self.foldings:
            least = self._least_dsp[-1] if self._least_dsp else folding.dsp
            self._least_dsp.append(min(least, folding.dsp))

    def least_dsp(self, interval: int) -> int | None:
        """DSP slices of the cheapest folding that keeps ``interval``; None if none does."""
        n = bisect_right(self.intervals, interval)
        return self._least_dsp[n - 1] if n else None

    def within(self, interval: int, dsp: int) -> list[Folding]:
        """Foldings that keep ``interval`` within ``dsp`` slices, cheapest first.

        Of those that differ in update lanes alone, more lanes stay only where that spares block
        RAMs: shallower memories may turn into LUTs.
        """
        quick = self.foldings[: bisect_right(self.intervals, interval)]
        least: dict[tuple[int, int, int, bool], float] = {}
        kept = []
        for folding in sorted(quick, key=lambda x: x.dsp):
            if folding.dsp > dsp:
                break
            word = folding.a, folding.b, folding.group_lanes, folding.unfold
            if folding.update_bram36 < least.get(word, math.inf):
                least[word] = folding.update_bram36
                kept.append(folding)
        return sorted(kept, key=lambda x: (x.dsp, self.floor(x).bram36, self.floor(x).lut))

    def floor(self, folding: Folding) -> Resources:
        """What the folding takes with the shallowest buffers and one version of weights."""
        if folding not in self._floors:
            layer = folding.apply(self.layer)
            layer = dataclasses.replace(layer, buffers=minimum_buffers(layer))
            self._floors[folding] = layer_resources(layer, self._plan)
        return self._floors[folding]


def _foldings(layer: LayerPlan, sweep_samples: Fraction) -> Iterator[Folding]:
    """Folded as it is and, where it may be, unfolded."""
    yield from _foldings_of(layer, sweep_samples)
    if layer.unfoldable:
        yield from _foldings_of(dataclasses.replace(layer, unfold=True), sweep_samples)


def _foldings_of(layer: LayerPlan, sweep_samples: Fraction) -> Iterator[Folding]:
    multiplier, lane = multiplier_dsp(layer), update_lane_dsp(layer)
    slowest = max(layer.fp_interval, layer.eb_interval) // layer.weight_blocks
    taps = math.prod(layer.hardware.kernel)
    for a, b, groups in _words(layer):
        products, outputs = a * b * groups, a * groups
        folded = dataclasses.replace(layer, a=a, b=b, group_lanes=groups)
        writes = layer.i_shape[1] * folded.i_row_cycles
        engines = max(slowest * folded.weight_blocks, writes)
        for lanes in divisors(products):
            if outputs % lanes and lanes % outputs:
                continue
            chunks = folded.weight_blocks * taps * (products // lanes)
            if layer.bias:
                chunks += folded.o_blocks * -(-outputs // lanes)
            sweep = -(-(chunks + SWEEP_LATENCY) // sweep_samples)
            dsp = products * multiplier + lanes * lane
            bram36 = update_memories(layer, lanes, chunks).bram36
            interval = max(engines, sweep)
            yield Folding(a, b, lanes, interval, dsp, bram36, layer.unfold, groups)


def _words(layer: LayerPlan) -> Iterator[tuple[int, int, int]]:
    """Every (a, b, group_lanes): several groups at once only where each is whole."""
    outputs, inputs = layer.hardware.group_shape
    for a in block_sizes(outputs):
        for b in block_sizes(inputs):
            whole = (a, b) == (outputs, inputs)
            for groups in divisors(layer.groups) if whole else (1,):
                yield a, b, groups


def cheapest_sets(choices: list[list[Folding]], dsp: int) -> Iterator[tuple[Folding, ...]]:
    """Every set of one folding per layer within ``dsp`` slices, fewest slices first.

    ``choices`` has each layer's foldings by ascending slices; where sums are equal, earlier
    choices come first.
    """
    if not all(choices):
        return

    def entry(place: tuple[int, ...]) -> tuple[int, int, tuple[int, ...]]:
        total = sum(layer[n].dsp for layer, n in zip(choices, place, strict=True))
        return total, sum(place), place

    heap = [entry((0,) * len(choices))]
    seen = {heap[0][2]}
    while heap:
        total, _, place = heapq.heappop(heap)
        if total > dsp:
            return
        yield tuple(layer[n] for layer, n in zip(choices, place, strict=True))
        for n, layer in enumerate(choices):
            if place[n] + 1 < len(layer):
                successor = (*place[:n], place[n] + 1, *place[n + 1 :])
                if successor not in seen:
                    seen.add(successor)
                    heapq.heappush(heap, entry(successor))
