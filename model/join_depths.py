"""The least FIFOs in front of joins and forks with which a graph cannot deadlock.

A join waits for all of its sources. If one source's branch has a window that takes several rows
before it gives its first, the other source must go on meanwhile, because one fork feeds both; what
it brings waits in the join's FIFO. Backward, a fork waits so for the errors of its consumers.

**Depth.** One sample is passed row by row in this order of events: an engine gives a row as soon as
the rows that it needs are there, the one nearest the end first; the input gives a row only when no
engine can. A row passes relays, forks and joins word by word until a window or a FIFO takes it. The
depth of a FIFO is the most whole rows that wait in it between two such events, and the words of one
pixel more.

**Proof that no order of events gets stuck.** First, that order of events is possible with the least
depths of all buffers. When a row passes, all windows that it reaches have room for it: their
engines have given every row that they could, so the position at which such an engine stands needs a
row more than is there, and ``minimum_buffers`` gives room for all that a position needs. A FIFO
takes the rows that wait between events by definition. While a row passes, it holds at most one
pixel more: words never straddle pixels, since lanes divide channels, so once the words of a pixel
are past a fork they can reach every FIFO and window behind it, and every join whose sources have
that pixel passes it on, in the plan's order; what stays is whole rows again. Features of a whole
sample fit in front of WG, and its indices in front of EB, so the errors can follow when the sample
has passed, in the same way from the loss up; then the next sample. Updates wait for nothing else.
Second, every block takes from its inputs and gives to its outputs in an order that no timing
changes, and a buffer's room comes back in that order, too. In such a network the steps that can be
done are the same in any order: one that stops for good with steps left to do would have done less
than this order of events, whose next step it could then do.

Leaf of the standard library. Used by ``model/schedule.py``. RTL: joins and forks in
``rtl/pipeline``. Test: ``tests/test_graph_schedule.py``.
"""

import dataclasses
import heapq
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from .geometry import Walk
from .plan import INPUT, LOSS, Buffers, Plan

__all__ = ["least_join_words"]

Ports = Sequence[tuple[str, int]]


def least_join_words(plan: Plan) -> dict[str, tuple[int, ...]]:
    """The least ``buffers.join_words`` of every join and fork that has some, by name."""
    meeting = [layer for layer in plan.layers if layer.join_blocks]
    if not meeting:
        return {}
    # Rows do not depend on lanes; the planner asks again for every choice of them.
    folding: dict[str, Any] = dict.fromkeys(("a", "b", "group_lanes", "lanes", "update_lanes"), 1)
    narrow = tuple(
        dataclasses.replace(x, **folding, delay=0, back_delay=0, buffers=Buffers())
        for x in plan.layers
    )
    rows = _waiting_rows(dataclasses.replace(plan, layers=narrow))
    return {
        layer.name: tuple(
            (count * layer.i_shape[2] + 1) * blocks
            for count, blocks in zip(rows[layer.name], layer.join_blocks, strict=True)
        )
        for layer in meeting
    }


@lru_cache(maxsize=64)
def _waiting_rows(plan: Plan) -> dict[str, list[int]]:
    """Rows that wait at each port of every join and fork, in the order of events told above."""
    names = [layer.name for layer in plan.layers]
    forward = _Events(
        order=[INPUT, *names, LOSS],
        readers={
            name: [(edge.sink, edge.sink_port) for edge in edges]
            for name, edges in plan.edges_out.items()
        },
        walks={x.name: x.fp_walks[0] for x in plan.layers if x.windowed},
        ports={x.name: len(x.sources) for x in plan.layers if x.pattern == "join"},
    )
    forward.run(INPUT, plan.input_shape[1])
    backward = _Events(
        order=[LOSS, *reversed(names)],
        readers={
            name: [(x.source, x.source_port) for x in edges if plan.passes_error(x.source)]
            for name, edges in plan.edges_in.items()
        },
        walks={x.name: x.eb_walks[0] for x in plan.layers if x.windowed and x.backward},
        ports={x.name: x.fan for x in plan.layers if x.pattern == "fork" and x.backward},
    )
    backward.run(LOSS, plan.layers[-1].o_shape[1])
    return {**forward.waiting, **backward.waiting}


class _Events:
    """Rows of one sample on their way from a first block.

    ``order`` names the blocks so that data flow forwards, ``readers`` says who takes a block's
    rows at which port, ``walks`` tells the windowed ones and ``ports`` those that wait for several.
    """

    def __init__(
        self,
        order: Sequence[str],
        readers: Mapping[str, Ports],
        walks: Mapping[str, Walk],
        ports: Mapping[str, int],
    ) -> None:
        self.place = {name: n for n, name in enumerate(order)}
        self.readers = readers
        self.needs = {name: [p.need for p in walk.positions] for name, walk in walks.items()}
        self.nearest = [name for name in reversed(order) if name in walks]
        self.written = dict.fromkeys(walks, 0)
        self.given = dict.fromkeys(walks, 0)
        self.arrived = {name: [0] * count for name, count in ports.items()}
        self.waiting = {name: [0] * count for name, count in ports.items()}

    def run(self, first: str, rows: int) -> None:
        """Pass ``rows`` rows; then ``waiting`` has the most that waited, by block and port."""
        for _ in range(rows):
            self._give(first)
            while (ready := next(filter(self._ready, self.nearest), None)) is not None:
                self.given[ready] += 1
                self._give(ready)

    def _ready(self, name: str) -> bool:
        given, needs = self.given[name], self.needs[name]
        return given < len(needs) and self.written[name] >= needs[given]

    def _give(self, name: str) -> None:
        """One row of a block to the windows and FIFOs behind it, nearest first."""
        todo: list[tuple[int, str, int]] = []
        self._send(name, todo)
        while todo:
            _, sink, port = heapq.heappop(todo)
            if sink in self.written:
                self.written[sink] += 1
            elif sink not in self.arrived:
                self._send(sink, todo)
            else:
                arrived = self.arrived[sink]
                before = min(arrived)
                arrived[port] += 1
                if min(arrived) > before:
                    self._send(sink, todo)
                elif todo and todo[0][1] == sink:
                    continue
                left = [count - min(arrived) for count in arrived]
                self.waiting[sink] = list(map(max, self.waiting[sink], left))

    def _send(self, name: str, todo: list[tuple[int, str, int]]) -> None:
        for sink, port in self.readers.get(name, ()):
            heapq.heappush(todo, (self.place[sink], sink, port))
