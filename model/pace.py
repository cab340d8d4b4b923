"""How many cycles each row of each engine takes, waits for the streams behind it included.

An engine spends a beat on each tap of each word of a result; where its results are wider than a
stream that takes them, it waits. Nothing between a result and the window or FIFO that stores it
evens that out.

Leaf of the standard library. Used by ``model/timing.py`` and the planner. Test:
``tests/test_schedule.py``, ``tests/test_graph_schedule.py``.
"""

import math
from functools import lru_cache

from .geometry import Unfolding, Walk
from .padding import Layout, words_of_a_word
from .plan import INPUT, LOSS, LayerPlan, Plan

__all__ = [
    "beats",
    "eb_cycles",
    "entries",
    "entry_interval",
    "fp_cycles",
    "paced_intervals",
    "row_cycles",
    "steady_interval",
    "takers",
]


def paced_intervals(plan: Plan) -> dict[str, int]:
    """Cycles per sample of every ``<layer>.fp`` and ``<layer>.eb``, waits behind them included.

    An engine whose results are wider than the stream that takes them waits where its results come
    quickly, as they do at padded borders; there is no buffer in between to even that out.
    """
    paced = {}
    for layer in plan.layers:
        for engine, rows in (("fp", fp_cycles(plan, layer)), ("eb", eb_cycles(plan, layer))):
            if rows:
                paced[f"{layer.name}.{engine}"] = sum(rows)
    return paced


def steady_interval(plan: Plan) -> int:
    """Cycles per sample that the pipeline keeps up: ``Plan.interval``, or what paces it more."""
    return max(plan.interval, entry_interval(plan), *paced_intervals(plan).values())


def entry_interval(plan: Plan) -> int:
    """Cycles per sample of packets, gear and unfold at the pipeline's entry; 0 without unfold."""
    channels, height, _ = plan.input_shape
    lanes = plan.packet_lanes
    ahead = plan.packet_interval - math.prod(plan.input_shape) // lanes
    readers = [plan.layer(sink) for sink, _ in entries(plan)]
    return max(
        (
            _entry_cycles(x.unfolding, x.i_blocks, height, channels, lanes, ahead)
            for x in readers
            if x.unfold
        ),
        default=0,
    )


def entries(plan: Plan) -> list[tuple[str, int]]:
    """Sinks and ports to which the sample comes as it is: from the input, and through forks."""
    found, todo = [], [INPUT]
    while todo:
        for edge in plan.edges_out[todo.pop()]:
            found.append((edge.sink, edge.sink_port))
            if plan.layer(edge.sink).pattern == "fork":
                todo.append(edge.sink)
    return found


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


def takers(plan: Plan, name: str, engine: str) -> list[LayerPlan]:
    """Layers that a result of a layer passes until a window, or the FIFO of a join, stores it.

    ``engine`` is ``fp`` for features, which relays pass on and forks to all of their consumers, or
    ``eb`` for errors, which relays pass on and joins to all of their sources.
    """
    passing = ("relay", "fork" if engine == "fp" else "join")
    passed, todo = [], [name]
    while todo:
        for neighbour in _neighbours(plan, todo.pop(), engine):
            layer = plan.layer(neighbour)
            passed.append(layer)
            if layer.pattern in passing:
                todo.append(neighbour)
    return passed


def _neighbours(plan: Plan, name: str, engine: str) -> list[str]:
    if engine == "fp":
        return [edge.sink for edge in plan.edges_out[name] if edge.sink != LOSS]
    return [edge.source for edge in plan.edges_in[name] if plan.passes_error(edge.source)]


def _words_each(plan: Plan, layer: LayerPlan, engine: str) -> int:
    """Cycles in which the slowest stream takes a word of a layer's result."""
    passed = takers(plan, layer.name, engine)
    if engine == "eb":
        channels, ours = layer.i_shape[0], layer.i_layout
        taken = [(taker.o_shape[0], taker.o_layout, 1) for taker in passed]
    else:
        channels, ours = layer.o_shape[0], layer.o_layout
        taken = [(taker.i_shape[0], taker.i_layout, taker.word_cycles) for taker in passed]
        last = plan.layers[-1]
        if layer is last or (last in passed and last.pattern in ("relay", "fork")):
            taken.append((channels, (1, 1), 1))
    return max(_cycles(channels, ours, *taker) for taker in taken)


def _cycles(channels: int, ours: Layout, count: int, its: Layout, each: int) -> int:
    """Cycles of a word of ours at a taker of ``count`` channels, ``each`` cycles for its words."""
    if count != channels or (each > 1 and ours[0] < its[0]):
        return -(-each * ours[0] // its[0])
    return each * words_of_a_word(channels, ours, its)


def fp_cycles(plan: Plan, layer: LayerPlan) -> list[int]:
    """Cycles of each row of a layer's features."""
    words_each = _words_each(plan, layer, "fp")
    if layer.windowed:
        each = beats(layer.fp_walks, layer.fp_interval, layer.o_blocks)
        rows = row_cycles(layer.fp_walks, layer.o_blocks, each, words_each)
    else:
        rows = _word_cycles(layer, max(words_each, layer.word_cycles))
    unfolding = (x.i_row_cycles for x in takers(plan, layer.name, "fp") if x.unfold)
    slowest = max(unfolding, default=0)
    return [max(cycles, slowest) for cycles in rows]


def eb_cycles(plan: Plan, layer: LayerPlan) -> list[int]:
    """Cycles of each row of a layer's errors; none where it passes none."""
    if not layer.backward:
        return []
    words_each = _words_each(plan, layer, "eb")
    if not layer.windowed:
        return _word_cycles(layer, words_each)
    each = beats(layer.eb_walks, layer.eb_interval, layer.i_blocks)
    return row_cycles(layer.eb_walks, layer.i_blocks, each, words_each)


def _word_cycles(layer: LayerPlan, words_each: int) -> list[int]:
    _, height, width = layer.i_shape
    return [width * layer.i_blocks * words_each] * height


def beats(walks: tuple[Walk, Walk], interval: int, words: int) -> int:
    """Beats of each tap of a result's word."""
    return interval // (walks[0].beats * walks[1].beats * words)


def row_cycles(walks: tuple[Walk, Walk], words: int, each: int, least: int) -> list[int]:
    """Cycles of each row: ``words`` a pixel, each ``each`` beats a tap and at least ``least``."""
    rows, cols = walks
    known: dict[int, int] = {}
    for taps in {max(1, position.taps) for position in rows.positions}:
        visits = [taps * max(1, position.taps) * each for position in cols.positions]
        known[taps] = words * sum(max(visit, least) for visit in visits)
    return [known[max(1, position.taps)] for position in rows.positions]
