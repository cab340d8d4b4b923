"""The schedule of a design, from its plan alone: latency, buffer depths, delays, intervals.

A sample arrives each ``steady_interval`` cycles and passes as ``model/timing.py`` says. Depths
are the most that a buffer holds in the periodic state. That periodic schedule stays feasible with
these depths, and hardware that starts everything as early as it can is never slower than a
feasible schedule. This holds for any graph: whatever is there, each block takes and gives the same
words in the same order (a marked graph, in which a buffer's room is a stream of its own, back to
the producer), so to start one step earlier can never make another later.

Leaf of the standard library. RTL that it describes: ``rtl/pipeline/versions.py`` and
``model/timing.py``'s. Test: ``tests/test_schedule.py``, ``tests/test_graph_schedule.py``.
"""

import dataclasses
from dataclasses import dataclass
from functools import lru_cache

from .errors import PlanError
from .geometry import Walk
from .join_depths import least_join_words
from .kinds import KINDS
from .pace import paced_intervals, steady_interval
from .plan import Buffers, LayerPlan, Plan
from .timing import Hold, Pass

__all__ = [
    "SETTLE_CYCLES",
    "SWEEP_LATENCY",
    "Schedule",
    "check_buffers",
    "delays",
    "flush_interval",
    "interval_at",
    "loop_intervals",
    "minimum_buffers",
    "paced_intervals",
    "schedule",
    "size_buffers",
    "steady_interval",
    "sweep_cycles",
]

# Cycles of a sweep beyond its chunks: reading, the update's arithmetic, writing.
SWEEP_LATENCY = 16
# Cycles from WG's last beat of a mini-batch to its sums lying ready for the sweep.
SETTLE_CYCLES = 12


@dataclass(frozen=True)
class Schedule:
    """The periodic state. All cycles count from the arrival of a sample's first word.

    ``latency`` is when its logits are complete; ``engines`` has the first and last cycle of
    ``<layer>.<engine>`` and ``loss``; ``sweep_done`` is when the update that follows the sample,
    if it ends a mini-batch, has finished.
    """

    interval: int
    latency: int
    engines: dict[str, tuple[int, int]]
    buffers: dict[str, Buffers]
    target_samples: int
    sweep_done: dict[str, int]


def sweep_cycles(layer: LayerPlan) -> int:
    """Cycles in which an update sweep of a trainable layer occupies its update unit."""
    return layer.sweep_chunks + SWEEP_LATENCY


def schedule(plan: Plan) -> Schedule:
    """Run samples until one behaves as the one before, and return that periodic state."""
    # What no engine's time depends on is left out of the key of what is known already.
    layers = tuple(
        dataclasses.replace(x, update_lanes=1, delay=0, back_delay=0, buffers=Buffers())
        for x in plan.layers
    )
    loss = dataclasses.replace(plan.loss, target_samples=0)
    state = _periodic(dataclasses.replace(plan, layers=layers, loss=loss))
    sweep_done = {}
    for layer in plan.trainable:
        ends = [state.engines[f"{layer.name}.{engine}"][1] for engine in layer.engines[1:]]
        sweep_done[layer.name] = max(ends) + SETTLE_CYCLES + sweep_cycles(layer)
    return dataclasses.replace(state, sweep_done=sweep_done)


@lru_cache(maxsize=256)
def _periodic(plan: Plan) -> Schedule:
    period = steady_interval(plan)
    before: dict[str, tuple[int, int]] = {}
    while True:
        sample = Pass(plan, period, before)
        sample.run()
        # An engine that needs at most a period per sample settles once its sources have.
        if sample.engines == before:
            break
        before = sample.engines
    peaks = {key: _peak(holds, period) for key, holds in sample.holds.items()}
    joins = least_join_words(plan)
    buffers = {
        layer.name: _depths(layer, peaks, joins.get(layer.name, ())) for layer in plan.layers
    }
    targets = peaks["loss", "target_samples"] + 1
    return Schedule(period, sample.latency, sample.engines, buffers, targets, {})


def _peak(holds: list[Hold], period: int) -> int:
    """The most that is held at once when every hold repeats each ``period`` cycles."""
    always = 0
    changes = []
    for start, end, amount in holds:
        whole, rest = divmod(end - start, period)
        always += amount * whole
        begin = start % period
        changes += [(begin, amount), (begin + rest, -amount)]
        if begin + rest > period:
            changes += [(0, amount), (begin + rest - period, -amount)]
    held = most = 0
    for _, change in sorted(changes):
        held += change
        most = max(most, held)
    return always + most


def _depths(layer: LayerPlan, peaks: dict[tuple[str, str], int], joins: tuple[int, ...]) -> Buffers:
    """What is held at most, and one row more, for a consumer that is a little late."""
    row_words = layer.o_shape[2] * layer.o_blocks
    slack = {"error_words": row_words, "index_words": row_words}
    least = minimum_buffers(layer)

    def depth(buffer: str) -> int:
        peak = peaks.get((layer.name, buffer))
        floor: int = getattr(least, buffer)
        return 0 if peak is None else max(floor, peak + slack.get(buffer, 1))

    join_words = tuple(
        max(floor, peaks[layer.name, f"join_words[{port}]"] + layer.i_shape[2] * blocks)
        for port, (floor, blocks) in enumerate(zip(joins, layer.join_blocks, strict=True))
    )
    return Buffers(
        fp_rows=depth("fp_rows"),
        eb_rows=depth("eb_rows"),
        wg_rows=depth("wg_rows"),
        error_words=depth("error_words"),
        index_words=depth("index_words"),
        join_words=join_words,
    )


def minimum_buffers(layer: LayerPlan) -> Buffers:
    """The least depths that can never deadlock, whatever the timing.

    A window must hold what one position reads beyond what the positions before it freed. The
    features of a whole sample must fit in front of WG, and its indices in front of EB: their
    errors come only after the sample has passed. ``join_words`` depend on the whole graph:
    ``least_join_words`` of ``model/join_depths.py``.
    """
    windowed = layer.windowed
    sample_words = layer.o_shape[1] * layer.o_shape[2] * layer.o_blocks
    return Buffers(
        fp_rows=_least_rows(layer.fp_walks[0]) if windowed else 0,
        eb_rows=_least_rows(layer.eb_walks[0]) if windowed and layer.backward else 0,
        wg_rows=layer.i_shape[1] if layer.trainable else 0,
        error_words=1 if layer.trainable else 0,
        index_words=sample_words if layer.backward and KINDS[layer.kind].holds else 0,
    )


def _least_rows(walk: Walk) -> int:
    freed = [0, *(position.free for position in walk.positions)]
    return max(p.need - f for p, f in zip(walk.positions, freed, strict=False))


def check_buffers(plan: Plan) -> None:
    """Refuse a plan that could deadlock.

    Raises
    ------
    PlanError
        naming the layer, the buffer, the depth needed and the depth given
    """
    joins = least_join_words(plan)
    for layer in plan.layers:
        given, needed = (
            dataclasses.asdict(layer.buffers),
            dataclasses.asdict(minimum_buffers(layer)),
        )
        words, least_words = given.pop("join_words"), joins.get(layer.name, ())
        del needed["join_words"]
        if len(words) != len(least_words):
            raise PlanError(
                f"{layer.name}: join_words must be {len(least_words)} depths, one per stream that "
                f"waits, not {len(words)}: take the depths that size_buffers computes"
            )
        given |= {f"join_words[{port}]": depth for port, depth in enumerate(words)}
        needed |= {f"join_words[{port}]": depth for port, depth in enumerate(least_words)}
        for buffer, least in needed.items():
            if given[buffer] < least:
                raise PlanError(
                    f"{layer.name}: {buffer} must be at least {least}, not {given[buffer]}: "
                    "a shallower buffer deadlocks; take the depths that size_buffers computes"
                )
    if plan.loss.target_samples < 1:
        raise PlanError(f"target_samples must be at least 1, not {plan.loss.target_samples}")


def size_buffers(plan: Plan) -> Plan:
    """The plan with the depths of its periodic schedule, which also satisfy ``check_buffers``."""
    state = schedule(plan)
    layers = tuple(dataclasses.replace(x, buffers=state.buffers[x.name]) for x in plan.layers)
    loss = dataclasses.replace(plan.loss, target_samples=state.target_samples)
    return dataclasses.replace(plan, layers=layers, loss=loss)


def delays(plan: Plan, batch: int) -> dict[str, int]:
    """Per trainable layer the least delay with which FP never waits, in mini-batches.

    The version that mini-batch k reads must be complete when its first sample reaches FP: the
    sweep behind the last sample of mini-batch ``k - delay - 1`` ends ``delay * batch + 1``
    samples later at the latest.
    """
    state = schedule(plan)
    result = {}
    for layer in plan.trainable:
        late = state.sweep_done[layer.name] - state.engines[f"{layer.name}.fp"][0] - state.interval
        result[layer.name] = max(0, -(-late // (batch * state.interval)))
    return result


def loop_intervals(plan: Plan, batch: int) -> dict[str, float]:
    """Cycles per sample to which the loops of versions hold the pipeline.

    ``<layer>.update`` sweeps once per mini-batch; ``<layer>.fp``, ``.eb`` and ``.wg`` wait for the
    sweep that gives them their version or their gradient bank back.
    """
    versions = {layer.name: (layer.delay, layer.back_delay) for layer in plan.trainable}
    return _loops(plan, batch, versions)


def interval_at(plan: Plan, batch: int) -> float:
    """Average cycles per sample in mini-batches of ``batch`` with the plan's delays."""
    return max(float(steady_interval(plan)), *loop_intervals(plan, batch).values())


def flush_interval(plan: Plan, batch: int) -> float:
    """Average cycles per sample if each mini-batch waited for the update before it."""
    loops = _loops(plan, batch, {layer.name: (0, 0) for layer in plan.trainable})
    return max(float(steady_interval(plan)), *loops.values())


def _loops(plan: Plan, batch: int, versions: dict[str, tuple[int, int]]) -> dict[str, float]:
    state = schedule(plan)
    burst = (batch - 1) * state.interval
    loops = {}
    for layer in plan.trainable:
        delay, back_delay = versions[layer.name]
        ahead = {"fp": delay + 1, "eb": back_delay + 1, "wg": 2 if delay else 1}
        loops[f"{layer.name}.update"] = sweep_cycles(layer) / batch
        for engine in layer.engines:
            name = f"{layer.name}.{engine}"
            turn = state.sweep_done[layer.name] - state.engines[name][0]
            loops[name] = (burst + turn) / (ahead[engine] * batch)
    return loops
