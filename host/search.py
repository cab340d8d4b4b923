"""The search for a plan: sets of foldings, turned into whole plans and held against a board's
budget.

Exact in DSP slices: the least interval is found by bisection (see ``host/foldings.py``). Block
RAMs and LUTs do not fall steadily with the interval, so every interval from there on is tried in
turn, each with the cheapest sets of foldings first; only when ``EVALUATIONS`` plans have been
scheduled in vain the rest is bisected as if they did.

Test: ``tests/test_planner.py``.
"""

import dataclasses
import math
from bisect import insort
from fractions import Fraction

from ..model.errors import PlanError
from ..model.pace import paced_intervals, takers
from ..model.plan import LayerPlan, Plan
from ..model.schedule import delays, loop_intervals, size_buffers, steady_interval
from .foldings import (
    Folding,
    FoldingTable,
    block_sizes,
    cheapest_sets,
    divisors,
    lane_choices,
    lane_interval,
)
from .resources import Resources, layer_resources, plan_resources

__all__ = ["Search"]

SETS = 5000  # sets of foldings looked at per interval
TRIES = 48  # of them, those that are scheduled
TIES = 12  # of those, the ones in time whose block RAMs are compared
EVALUATIONS = 120  # plans that are scheduled before the search bisects
FLUSH_SHARE = 10  # with flushed versions a sweep takes at most a tenth of a mini-batch's time


class Search:
    """Sets of foldings, turned into plans and held against the budget."""

    def __init__(
        self,
        empty: Plan,
        budget: Resources,
        batch: int,
        given: dict[str, int] | None,
        back: dict[str, int] | None,
    ) -> None:
        self.empty = empty
        self.budget = budget
        self.batch = batch
        self.given = given
        self.back = back
        self.packet = min(
            dataclasses.replace(empty, layers=(layer, *empty.layers[1:])).packet_interval
            for layer in _input_widths(empty.layers[0])
        )
        self.floor = max(self.packet, empty.loss_interval)
        self.shell_dsp = plan_resources(dataclasses.replace(empty, layers=())).dsp
        self.routing = [x for x in empty.layers if not x.trainable]
        self.tables = [
            FoldingTable(empty, layer, self._sweep_samples(layer)) for layer in empty.trainable
        ]
        self.evaluated = 0
        self.nearest: tuple[float, Plan] | None = None

    def _sweep_samples(self, layer: LayerPlan) -> Fraction:
        """Samples in whose time the layer's update sweep must end."""
        if self.given is None or self.given[layer.name]:
            return Fraction(self.batch)
        return max(Fraction(1), Fraction(self.batch, FLUSH_SHARE))

    def fastest(self) -> Plan:
        """The plan of least interval within the budget."""
        found = {self.floor}
        found |= {x for table in self.tables for x in table.intervals}
        found |= {lane_interval(x, lanes) for x in self.routing for lanes in lane_choices(x)}
        least = max(self.floor, *(lane_interval(x, lane_choices(x)[-1]) for x in self.routing), 0)
        intervals = sorted(x for x in found if x >= least)
        low, high = 0, len(intervals)
        while low < high:
            middle = (low + high) // 2
            if self._least_dsp(intervals[middle]) <= self.budget.dsp:
                high = middle
            else:
                low = middle + 1
        if low == len(intervals):
            raise self._unfit(self._least_dsp(intervals[-1]))
        # Every interval in turn, and those between them to which narrow streams hold a set back.
        while low < len(intervals) and self.evaluated < EVALUATIONS:
            plan = self._plan_at(intervals[low], intervals)
            if plan:
                return plan
            low += 1
        return self._bisected(intervals[low:])

    def _bisected(self, intervals: list[int]) -> Plan:
        best = self._plan_at(intervals[-1], []) if intervals else None
        if best is None:
            raise self._unfit(0)
        low, high = 0, len(intervals) - 1
        while low < high:
            middle = (low + high) // 2
            plan = self._plan_at(intervals[middle], [])
            if plan:
                best, high = plan, middle
            else:
                low = middle + 1
        return best

    def cheapest(self, interval: int) -> Plan:
        """The plan with the fewest resources that keeps ``interval``."""
        limits = [(f"{layer.name}: interval", self._best(layer)) for layer in self.empty.layers]
        limits.append(("input stream: interval", self.packet))
        limits.append(("loss: interval", self.empty.loss_interval))
        limit, best = max(limits, key=lambda x: x[1])
        if interval < best:
            raise PlanError(f"{limit} must be at least {best} cycles per sample, not {interval}")
        plan = self._plan_at(interval, [])
        if plan:
            return plan
        needed = self._least_dsp(interval)
        reachable = self.fastest()
        costs = {table.layer.name: table.least_dsp(interval) or 0 for table in self.tables}
        widest = max(costs, key=lambda x: costs[x])
        raise PlanError(
            f"interval must be at least {steady_interval(reachable)} cycles per sample on board "
            f"{self.empty.board}, not {interval}: that needs {needed} DSP slices or more of "
            f"{self.budget.dsp}, most of them ({costs[widest]}) for {widest}"
        )

    def _best(self, layer: LayerPlan) -> int:
        for table in self.tables:
            if table.layer is layer:
                return table.intervals[0]
        return lane_interval(layer, lane_choices(layer)[-1])

    def _other_dsp(self, interval: int) -> int:
        """DSP slices of all but the layers with weights, which no plan that keeps ``interval`` can
        spare.
        """
        narrow = (_with_least_lanes(layer, interval) for layer in self.routing)
        return self.shell_dsp + sum(layer_resources(x, self.empty).dsp for x in narrow)

    def _least_dsp(self, interval: int) -> int:
        """DSP slices without which no plan keeps ``interval``."""
        costs = [table.least_dsp(interval) for table in self.tables]
        never = self.budget.dsp + 1
        return self._other_dsp(interval) + sum(never if x is None else x for x in costs)

    def _plan_at(self, interval: int, intervals: list[int]) -> Plan | None:
        """The cheapest plan that keeps ``interval``; notes the intervals that paced sets keep."""
        slack = self.budget.dsp - self._least_dsp(interval)
        if slack < 0:
            return None
        choices = [
            table.within(interval, (table.least_dsp(interval) or 0) + slack)
            for table in self.tables
        ]
        if self._hopeless(choices):
            return None
        best: tuple[int, float, int] | None = None
        chosen: Plan | None = None
        tried = ties = 0
        other = self._other_dsp(interval)
        for n, foldings in enumerate(cheapest_sets(choices, self.budget.dsp - other)):
            slices = other + sum(folding.dsp for folding in foldings)
            if n == SETS or tried == TRIES or ties == TIES or (best and slices > best[0]):
                break
            floors = [table.floor(x) for table, x in zip(self.tables, foldings, strict=True)]
            if self._exceeds(sum(floors, Resources())):
                continue
            plan = self._routed(foldings, interval)
            paced = steady_interval(plan)
            if paced > interval:
                _note(intervals, paced)
                continue
            tried += 1
            plan = self._complete(plan, interval, intervals)
            if self._held_to(plan) > interval:
                continue
            ties += 1
            cost = plan_resources(plan)
            key = (cost.dsp, cost.bram36, cost.lut)
            excess = max(cost.bram36 / self.budget.bram36, cost.lut / self.budget.lut)
            if self.nearest is None or excess < self.nearest[0]:
                self.nearest = (excess, plan)
            if cost.dsp > self.budget.dsp:
                continue
            if excess <= 1 and (best is None or key < best):
                best, chosen = key, plan
        return chosen

    def _hopeless(self, choices: list[list[Folding]]) -> bool:
        """Whether even the least memories and LUTs of every layer exceed the budget."""
        total = Resources()
        for table, foldings in zip(self.tables, choices, strict=True):
            floors = [table.floor(folding) for folding in foldings]
            if not floors:
                return True
            total += Resources(0, min(x.bram36 for x in floors), min(x.lut for x in floors))
        return self._exceeds(total)

    def _exceeds(self, floor: Resources) -> bool:
        return floor.bram36 > self.budget.bram36 or floor.lut > self.budget.lut

    def _routed(self, foldings: tuple[Folding, ...], interval: int) -> Plan:
        """The folded plan with the fewest lanes of other layers that hold no engine back."""
        folded = iter(foldings)
        layers = [
            next(folded).apply(layer) if layer.trainable else _with_least_lanes(layer, interval)
            for layer in self.empty.layers
        ]
        while True:
            plan = dataclasses.replace(self.empty, layers=tuple(layers))
            slow = [name for name, cycles in paced_intervals(plan).items() if cycles > interval]
            wider = next(
                (x for x in (_to_widen(plan, name) for name in slow) if x is not None), None
            )
            if wider is None:
                return plan
            layer = layers[wider]
            lanes = next(n for n in lane_choices(layer) if n > layer.lanes)
            layers[wider] = dataclasses.replace(layer, lanes=lanes)

    def _held_to(self, plan: Plan) -> int:
        """Cycles per sample to which waiting for gradient banks holds a plan of own delays."""
        if self.given is not None:
            return 0
        loops = loop_intervals(plan, self.batch)
        return math.ceil(max(loops[f"{layer.name}.wg"] for layer in plan.trainable))

    def _complete(self, plan: Plan, interval: int, intervals: list[int]) -> Plan:
        """The plan with its delays and its buffers, and an update that gives WG its bank in time.

        Lanes of the update change no engine's time, so the fewest that suffice are found layer by
        layer; the interval that fewer of them would keep is noted. Before that ReLUs and pools take
        all their lanes: that shortens the way back and costs no slice.
        """
        self.evaluated += 1
        while (held := self._held_to(timed := self._timed(plan))) > interval:
            _note(intervals, held)
            widest = dataclasses.replace(plan, layers=tuple(map(_with_all_lanes, plan.layers)))
            if widest != plan:
                plan = widest
                continue
            loops = loop_intervals(timed, self.batch)
            late = [
                n
                for n, x in enumerate(timed.layers)
                if x.trainable and loops[f"{x.name}.wg"] > interval
            ]
            wider = [_with_more_update_lanes(plan.layers[n]) for n in late]
            if not any(wider):
                break
            layers = list(plan.layers)
            for n, layer in zip(late, wider, strict=True):
                layers[n] = layer or layers[n]
            plan = dataclasses.replace(plan, layers=tuple(layers))
        return timed

    def _timed(self, plan: Plan) -> Plan:
        forward = delays(plan, self.batch) if self.given is None else self.given
        backward = forward if self.back is None else self.back
        sized = size_buffers(plan)
        layers = tuple(
            dataclasses.replace(layer, delay=forward[layer.name], back_delay=backward[layer.name])
            if layer.trainable
            else layer
            for layer in sized.layers
        )
        return dataclasses.replace(sized, layers=layers)

    def _unfit(self, dsp: int) -> PlanError:
        """Why not even the slowest plan fits: what the one that came nearest lacks most."""
        budget = self.budget
        if dsp > budget.dsp:
            cost = Resources(dsp=dsp)
        elif self.nearest is not None:
            cost = plan_resources(self.nearest[1])
        else:
            cost = plan_resources(dataclasses.replace(self.empty, layers=()))
            for table in self.tables:
                floors = [table.floor(x) for x in table.within(table.intervals[-1], budget.dsp)]
                cost += Resources(0, min(x.bram36 for x in floors), min(x.lut for x in floors))
        ratios = {
            "DSP slices": (float(cost.dsp), float(budget.dsp)),
            "block RAMs": (cost.bram36, budget.bram36),
            "usable LUTs": (float(cost.lut), float(budget.lut)),
        }
        unit = max(ratios, key=lambda x: ratios[x][0] / ratios[x][1])
        needed, given = ratios[unit]
        return PlanError(
            f"board {self.empty.board} must have {needed:g} {unit} or more for {self.empty.name}, "
            f"not {given:g}: take a larger board or a smaller network"
        )


def _note(intervals: list[int], cycles: int) -> None:
    """Add an interval to the ascending ones that are being tried; not where none are."""
    if intervals and cycles not in intervals:
        insort(intervals, cycles)


def _input_widths(layer: LayerPlan) -> list[LayerPlan]:
    """The first layer with every number of input lanes."""
    if not layer.trainable:
        return [dataclasses.replace(layer, lanes=n) for n in lane_choices(layer)]
    outputs, inputs = layer.group_shape
    return [
        *(dataclasses.replace(layer, b=n) for n in block_sizes(inputs)),
        *(
            dataclasses.replace(layer, a=outputs, b=inputs, group_lanes=n)
            for n in divisors(layer.groups)
        ),
    ]


def _with_least_lanes(layer: LayerPlan, interval: int) -> LayerPlan:
    for lanes in lane_choices(layer):
        if lane_interval(layer, lanes) <= interval:
            break
    return dataclasses.replace(layer, lanes=lanes)


def _with_all_lanes(layer: LayerPlan) -> LayerPlan:
    return layer if layer.trainable else dataclasses.replace(layer, lanes=layer.i_shape[0])


def _with_more_update_lanes(layer: LayerPlan) -> LayerPlan | None:
    for lanes in divisors(layer.word_size):
        if lanes > layer.update_lanes and layer.fits_update(lanes):
            return dataclasses.replace(layer, update_lanes=lanes)
    return None


def _to_widen(plan: Plan, engine: str) -> int | None:
    """The layer whose narrow stream holds an engine back, if that can be widened."""
    name, part = engine.rsplit(".", 1)
    passed = takers(plan, name, part)
    if not passed:
        return None
    widths = [x.i_lanes if part == "fp" else x.o_lanes for x in passed]
    narrowest = passed[widths.index(min(widths))]
    if narrowest.trainable or narrowest.lanes == lane_choices(narrowest)[-1]:
        return None
    return plan.layers.index(narrowest)
