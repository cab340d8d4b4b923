"""How one sample passes the pipeline behind another: a row-granular max-plus model of every engine.

An engine starts a row when the rows that it needs have been written in full and its row before is
done, spends the cycles of its walk, and then drops the rows that no later position reads. Every
engine handles samples in order. Buffers are unbounded here: ``model/schedule.py`` derives their
depths from what they hold.

Leaf of the standard library. RTL that it describes: ``rtl/parts/window.py``,
``rtl/pipeline/sum_engine.py``, ``rtl/pipeline/gradient_engine.py``. Test:
``tests/test_schedule.py``.
"""

import math
from dataclasses import dataclass, field
from functools import lru_cache

from .geometry import Unfolding, Walk
from .plan import LayerPlan, Plan

__all__ = [
    "ENGINE_LATENCY",
    "HANDOFF_CYCLES",
    "WORD_LATENCY",
    "Hold",
    "Pass",
    "Rows",
    "entry_interval",
    "paced_intervals",
    "steady_interval",
    "takers",
]

# Cycles from an engine's last beat to its result: memory, product, sum, requantisation, FIFO.
ENGINE_LATENCY = 16
WORD_LATENCY = 2  # cycles of a ReLU and the gear beside it
HANDOFF_CYCLES = 16  # cycles by which a freed row's room may come back late

Rows = list[tuple[int, int]]  # (first cycle, cycle after the last) of each row of a map
Hold = tuple[int, int, int]  # (from, until, amount)


def paced_intervals(plan: Plan) -> dict[str, int]:
    """Cycles per sample of every ``<layer>.fp`` and ``<layer>.eb``, waits behind them included.

    An engine whose results are wider than the stream that takes them waits where its results come
    quickly, as they do at padded borders; there is no buffer in between to even that out.
    """
    paced = {}
    for n, layer in enumerate(plan.layers):
        for engine, rows in (("fp", _fp_cycles(plan, n)), ("eb", _eb_cycles(plan, n))):
            if rows:
                paced[f"{layer.name}.{engine}"] = sum(rows)
    return paced


def steady_interval(plan: Plan) -> int:
    """Cycles per sample that the pipeline keeps up: ``Plan.interval``, or what paces it more."""
    return max(plan.interval, entry_interval(plan), *paced_intervals(plan).values())


def entry_interval(plan: Plan) -> int:
    """Cycles per sample of packets, gear and unfold at the pipeline's entry; 0 without unfold."""
    first = plan.layers[0]
    if not first.unfold:
        return 0
    channels, height, _ = plan.input_shape
    lanes = plan.packet_lanes
    ahead = plan.packet_interval - math.prod(plan.input_shape) // lanes
    return _entry_cycles(first.unfolding, first.i_blocks, height, channels, lanes, ahead)


@lru_cache(maxsize=256)
def _entry_cycles(
    row: Unfolding, words: int, height: int, channels: int, lanes: int, ahead: int
) -> int:
    """Every transfer in turn, because nothing between packets and unfold evens out their pauses.

    A packet sends nothing for ``ahead`` cycles, then ``lanes`` values a cycle. The gear fills a
    word of both sides' least common multiple, then gives it away pixel by pixel.
    """
    word = math.lcm(lanes, channels)
    parts, pixels = word // lanes, word // channels
    vectors = range(row.kernel - 1, row.steps, row.stride)
    free = given = taken = left = 0  # when the unfold, a gear's word, a pixel went on; pixels held
    sent = -1  # when the packet's last values left
    ends = []
    for _ in range(3):
        sent += ahead
        for step in (step for _ in range(height) for step in range(row.steps)):
            if row.padding <= step < row.padding + row.size:
                if not left:
                    if parts > 1:
                        sent = max(given, sent + 1) + parts - 1
                    given = max(sent + 1, taken if pixels > 1 else free)
                    sent = given if parts == 1 else sent
                    left = pixels
                free = taken = max(free, given + (pixels > 1))
                left -= 1
            free += words if step in vectors else 1
        ends.append(free)
    return ends[2] - ends[1]


def takers(plan: Plan, n: int, engine: str) -> list[LayerPlan]:
    """Layers that a result of layer ``n`` passes until a window stores it; ``fp`` or ``eb``."""
    behind = plan.layers[n + 1 :] if engine == "fp" else plan.layers[:n][::-1]
    passed = []
    for layer in behind:
        passed.append(layer)
        if layer.kind != "relu":
            break
    return passed


def _fp_cycles(plan: Plan, n: int) -> list[int]:
    layer = plan.layers[n]
    narrowest = min((taker.i_lanes for taker in takers(plan, n, "fp")), default=1)
    words_each = -(-layer.o_lanes // narrowest)
    if layer.kind == "relu":
        rows = _relay_cycles(layer, words_each)
    else:
        beats = layer.fp_inner if layer.trainable else 1
        rows = _row_cycles(layer.fp_walks, layer.o_blocks, beats, words_each)
    slowest = max((x.i_row_cycles for x in takers(plan, n, "fp") if x.unfold), default=0)
    return [max(cycles, slowest) for cycles in rows]


def _eb_cycles(plan: Plan, n: int) -> list[int]:
    layer = plan.layers[n]
    if not layer.backward:
        return []
    narrowest = min(taker.o_lanes for taker in takers(plan, n, "eb"))
    words_each = -(-layer.i_lanes // narrowest)
    if layer.kind == "relu":
        return _relay_cycles(layer, words_each)
    beats = layer.eb_inner if layer.trainable else 1
    return _row_cycles(layer.eb_walks, layer.i_blocks, beats, words_each)


def _relay_cycles(layer: LayerPlan, words_each: int) -> list[int]:
    _, height, width = layer.i_shape
    return [width * layer.i_blocks * words_each] * height


def _row_cycles(walks: tuple[Walk, Walk], words: int, beats: int, least: int) -> list[int]:
    """Cycles of each row: ``words`` a pixel, each ``beats`` a tap and at least ``least``."""
    rows, cols = walks
    known: dict[int, int] = {}
    for taps in {max(1, position.taps) for position in rows.positions}:
        visits = [taps * max(1, position.taps) * beats for position in cols.positions]
        known[taps] = words * sum(max(visit, least) for visit in visits)
    return [known[max(1, position.taps)] for position in rows.positions]


@dataclass
class Pass:
    """One sample's way through the pipeline, after the sample before it."""

    plan: Plan
    period: int
    before: dict[str, tuple[int, int]]
    engines: dict[str, tuple[int, int]] = field(default_factory=dict)
    holds: dict[tuple[str, str], list[Hold]] = field(default_factory=dict)
    features: list[Rows] = field(default_factory=list)
    latency: int = 0

    def run(self) -> None:
        """Fill ``engines``, ``holds`` and ``latency``."""
        layers = self.plan.layers
        self.features = [self._input_rows()]
        for n, layer in enumerate(layers):
            if layer.unfold:
                late = layer.unfolding.tail_cycles(layer.i_blocks)
                self.features[n] = [(first, last + late) for first, last in self.features[n]]
            self.features.append(self._forward(n))
        errors = self._loss(self.features[-1])
        first_trainable = next(n for n, layer in enumerate(layers) if layer.trainable)
        for n in range(len(layers) - 1, first_trainable - 1, -1):
            errors = self._backward(n, self.features[n], self.features[n + 1], errors)

    def _input_rows(self) -> Rows:
        """Rows as the packet stream brings them, behind header and target."""
        channels, height, width = self.plan.input_shape
        lanes = self.plan.packet_lanes
        start = self.plan.packet_interval - channels * height * width // lanes
        values = width * channels
        words = max(self.plan.layers[0].i_row_cycles, -(-entry_interval(self.plan) // height))
        rows = []
        for y in range(height):
            first = start + max(y * values // lanes, y * words)
            last = start + max(-(-(y + 1) * values // lanes), (y + 1) * words)
            rows.append((first, last))
        return rows

    def _forward(self, n: int) -> Rows:
        layer = self.plan.layers[n]
        name = f"{layer.name}.fp"
        cycles = _fp_cycles(self.plan, n)
        if layer.kind == "relu":
            return self._relay(name, self.features[n], cycles)
        walk = layer.fp_walks[0]
        rows = self._gather(name, walk, cycles, self.features[n])
        if n == 0:
            self.features[0] = self._held_back(walk, rows)
        self._hold_rows(layer.name, "fp_rows", walk, self.features[n], rows)
        return [(start, end + ENGINE_LATENCY) for start, end in rows]

    def _held_back(self, walk: Walk, rows: Rows) -> Rows:
        """Input rows as late as the first engine allows: its full window stops the stream."""
        arrivals = self.features[0]
        header = arrivals[0][0]
        held = list(arrivals)
        following = rows[-1][1] + self.period
        for _ in range(2):  # once without the sample behind, once before it
            for r in reversed(range(len(held))):
                user = next(n for n, position in enumerate(walk.positions) if position.need > r)
                end = min(rows[user][0], following)
                following = end - (arrivals[r][1] - arrivals[r][0])
                held[r] = (following, end)
            following += self.period - header
        return held

    def _loss(self, logits: Rows) -> Rows:
        """Errors of the logits; cross-entropy waits for a sample's last, others begin with each."""
        self.latency = logits[-1][1]
        interval = self.plan.loss_interval
        end = max(self.latency + self.plan.loss_latency, self._free("loss") + interval)
        self.engines["loss"] = (self.latency, end)
        self.holds["loss", "target_samples"] = [(0, self.latency, 1)]
        start = end - interval if self.plan.loss.labels else logits[0][0]
        return [(start, end)] * len(logits)

    def _backward(self, n: int, feature: Rows, result: Rows, errors: Rows) -> Rows:
        """Errors of layer ``n``'s input, and the layer's own use of the errors of its output."""
        layer = self.plan.layers[n]
        words = layer.o_shape[2] * layer.o_blocks
        if layer.trainable:
            walk = layer.fp_walks[0]
            cycles = _row_cycles(layer.fp_walks, layer.o_blocks, layer.fp_inner, 1)
            rows = self._gather(f"{layer.name}.wg", walk, cycles, feature, errors, words)
            self._hold_rows(layer.name, "wg_rows", walk, feature, rows)
            self.holds[layer.name, "error_words"] = [
                (arrival[0], row[1], words) for arrival, row in zip(errors, rows, strict=True)
            ]
        if not layer.backward:
            return []
        cycles = _eb_cycles(self.plan, n)
        if layer.kind == "relu":
            passed = self._relay(f"{layer.name}.eb", errors, cycles)
            released = [end for _, end in passed]
        else:
            walk = layer.eb_walks[0]
            rows = self._gather(f"{layer.name}.eb", walk, cycles, errors)
            holds = self._hold_rows(layer.name, "eb_rows", walk, errors, rows)
            released = [until for _, until, _ in holds]
            passed = [(start, end + ENGINE_LATENCY) for start, end in rows]
        if not layer.trainable:
            # An index waits from its result until the error that it routes is done with.
            self.holds[layer.name, "index_words"] = [
                (row[0], until, words) for row, until in zip(result, released, strict=True)
            ]
        return passed

    def _free(self, engine: str) -> int:
        """When an engine has finished the sample before."""
        return self.before[engine][1] - self.period if engine in self.before else -self.period

    def _relay(self, engine: str, source: Rows, cycles: list[int]) -> Rows:
        clock = self._free(engine)
        rows = []
        for (first, last), row_cycles in zip(source, cycles, strict=True):
            start = max(clock, first)
            clock = max(start + row_cycles, last + WORD_LATENCY)
            rows.append((start, clock))
        self.engines[engine] = (rows[0][0], clock)
        return rows

    def _gather(
        self,
        engine: str,
        walk: Walk,
        cycles: list[int],
        source: Rows,
        errors: Rows | None = None,
        words: int = 1,
    ) -> Rows:
        """An engine's rows; it also takes ``words`` of ``errors`` a row, as they arrive."""
        clock = self._free(engine)
        rows = []
        for n, position in enumerate(walk.positions):
            start = max(clock, source[position.need - 1][1])
            clock = start + cycles[n]
            if errors is not None:
                start = max(start, errors[n][0])
                clock = max(start + cycles[n], errors[n][1] + -(-cycles[n] // words))
            rows.append((start, clock))
        self.engines[engine] = (rows[0][0], clock)
        return rows

    def _hold_rows(
        self, name: str, buffer: str, walk: Walk, source: Rows, rows: Rows
    ) -> list[Hold]:
        holds: list[Hold] = []
        for position, (_, end) in zip(walk.positions, rows, strict=True):
            for first, _ in source[len(holds) : position.free]:
                holds.append((first, end + HANDOFF_CYCLES, 1))
        self.holds[name, buffer] = holds
        return holds
