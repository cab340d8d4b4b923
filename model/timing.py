"""How one sample passes the pipeline behind another: a row-granular max-plus model of every engine.

A windowed engine starts a row when the rows that it needs have been written in full and its row
before is done, spends the cycles of its walk, and then drops the rows that no later position reads.
A relay passes a row as it comes; so does a join once the row's first words are there from all of
its sources, and a fork, backward, from all of its consumers. Every engine handles samples in order.
Buffers are unbounded here: ``model/schedule.py`` derives their depths from what they hold.

Leaf of the standard library. RTL that it describes: ``rtl/parts/window.py``,
``rtl/pipeline/sum_engine.py``, ``rtl/pipeline/gradient_engine.py``, and the blocks of all kinds.
Test: ``tests/test_schedule.py``, ``tests/test_graph_schedule.py``.
"""

from dataclasses import dataclass, field

from .geometry import Walk
from .kinds import KINDS
from .pace import beats, eb_cycles, entries, entry_interval, fp_cycles, row_cycles
from .plan import INPUT, LOSS, LayerPlan, Plan

__all__ = [
    "ENGINE_LATENCY",
    "HANDOFF_CYCLES",
    "WORD_LATENCY",
    "Hold",
    "Pass",
    "Rows",
]

# Cycles from an engine's last beat to its result: memory, product, sum, requantisation, FIFO.
ENGINE_LATENCY = 16
WORD_LATENCY = 2  # cycles of a relay of latency 1 and the gear beside it
HANDOFF_CYCLES = 16  # cycles by which a freed row's room may come back late

Rows = list[tuple[int, int]]  # (first cycle, cycle after the last) of each row of a map
Hold = tuple[int, int, int]  # (from, until, amount)


@dataclass
class Pass:
    """One sample's way through the pipeline, after the sample before it.

    ``features`` and ``errors`` are the rows of every edge, by its sink and the sink's port.
    """

    plan: Plan
    period: int
    before: dict[str, tuple[int, int]]
    engines: dict[str, tuple[int, int]] = field(default_factory=dict)
    holds: dict[tuple[str, str], list[Hold]] = field(default_factory=dict)
    features: dict[tuple[str, int], Rows] = field(default_factory=dict)
    errors: dict[tuple[str, int], Rows] = field(default_factory=dict)
    latency: int = 0
    _runs: dict[str, Rows] = field(default_factory=dict)

    def run(self) -> None:
        """Fill ``engines``, ``holds`` and ``latency``."""
        layers = self.plan.layers
        self._give(INPUT, self._input_rows())
        for layer in layers:
            self._forward(layer)
        self._hold_back()
        for layer in layers:
            self._hold_features(layer)
        self.errors[LOSS, 0] = self._loss(self.features[LOSS, 0])
        for layer in reversed(layers):
            if self.plan.passes_error(layer.name):
                self._backward(layer)

    def _give(self, name: str, rows: Rows) -> None:
        """Rows to those who read a layer's feature."""
        for edge in self.plan.edges_out[name]:
            self.features[edge.sink, edge.sink_port] = rows

    def _sources(self, layer: LayerPlan) -> list[Rows]:
        edges = self.plan.edges_in[layer.name]
        return [self.features[layer.name, edge.sink_port] for edge in edges]

    def _input_rows(self) -> Rows:
        """Rows as the packet stream brings them, behind header and target."""
        channels, height, width = self.plan.input_shape
        lanes = self.plan.packet_lanes
        start = self.plan.packet_interval - channels * height * width // lanes
        readers = [(self.plan.layer(sink), port) for sink, port in entries(self.plan)]
        values = width * channels
        words = max(
            width * x.join_blocks[port] if x.pattern == "join" else x.i_row_cycles
            for x, port in readers
        )
        words = max(words, -(-entry_interval(self.plan) // height))
        rows = []
        for y in range(height):
            first = start + max(y * values // lanes, y * words)
            last = start + max(-(-(y + 1) * values // lanes), (y + 1) * words)
            rows.append((first, last))
        return rows

    def _forward(self, layer: LayerPlan) -> None:
        if layer.unfold:
            late = layer.unfolding.tail_cycles(layer.i_blocks)
            whole = self.features[layer.name, 0]
            self.features[layer.name, 0] = [(first, last + late) for first, last in whole]
        sources = self._sources(layer)
        if layer.pattern == "fork":
            self._give(layer.name, sources[0])
            return
        engine = f"{layer.name}.fp"
        cycles = fp_cycles(self.plan, layer)
        if layer.windowed:
            rows = self._gather(engine, layer.fp_walks[0], cycles, sources[0])
            self._give(layer.name, [(start, end + ENGINE_LATENCY) for start, end in rows])
        else:
            below = [self._below(edge.source) for edge in self.plan.edges_in[layer.name]]
            first = [_filled(x, *b, layer.lanes) for x, b in zip(sources, below, strict=True)]
            rows = self._pass_words(engine, first, cycles, layer.fp_latency)
            self._give(layer.name, rows)
        self._runs[engine] = rows

    def _hold_back(self) -> None:
        """Input rows as late as their readers allow: a full window, or a reader that waits for
        others, stops the stream.
        """
        ports = entries(self.plan)
        arrivals = self.features[ports[0]]
        readers = [self.plan.layer(sink) for sink, _ in ports]
        users = [x for x in readers if x.pattern != "fork"]
        latest = [self._latest(x, arrivals) for x in users]
        header = arrivals[0][0]
        held = list(arrivals)
        following = min(self._runs[f"{x.name}.fp"][-1][1] for x in users) + self.period
        for _ in range(2):  # once without the sample behind, once before it
            for r in reversed(range(len(held))):
                end = min(following, *(ends[r] for ends in latest))
                following = end - (arrivals[r][1] - arrivals[r][0])
                held[r] = (following, end)
            following += self.period - header
        for port in ports:
            self.features[port] = held

    def _latest(self, reader: LayerPlan, arrivals: Rows) -> list[int]:
        """By when each input row must be there for a reader to run as it does."""
        rows = self._runs[f"{reader.name}.fp"]
        if reader.windowed:
            starts = zip(reader.fp_walks[0].positions, rows, strict=True)
            needs = [(position.need, start) for position, (start, _) in starts]
            return [next(at for need, at in needs if need > r) for r in range(len(arrivals))]
        late = reader.fp_latency - 1 + WORD_LATENCY
        return [
            min(start + last - first, end - late)
            for (start, end), (first, last) in zip(rows, arrivals, strict=True)
        ]

    def _hold_features(self, layer: LayerPlan) -> None:
        """What waits in front of FP, or of a join for its other sources."""
        if layer.windowed:
            walk, rows = layer.fp_walks[0], self._runs[f"{layer.name}.fp"]
            self._hold_rows(layer.name, "fp_rows", walk, self._sources(layer)[0], rows)
        elif layer.pattern == "join":
            self._hold_words(layer, self._sources(layer), self._runs[f"{layer.name}.fp"])

    def _loss(self, logits: Rows) -> Rows:
        """Errors of the logits; cross-entropy waits for a sample's last, others begin with each."""
        self.latency = logits[-1][1]
        interval = self.plan.loss_interval
        end = max(self.latency + self.plan.loss_latency, self._free("loss") + interval)
        self.engines["loss"] = (self.latency, end)
        self.holds["loss", "target_samples"] = [(0, self.latency, 1)]
        start = end - interval if self.plan.loss.labels else logits[0][0]
        return [(start, end)] * len(logits)

    def _backward(self, layer: LayerPlan) -> None:
        """Errors of a layer's sources, and its own use of the errors of its output."""
        edges = self.plan.edges_out[layer.name]
        errors = [self.errors[edge.sink, edge.sink_port] for edge in edges]
        values = layer.o_shape[0] * layer.o_shape[2]
        above = [self._lanes_above(edge.sink) for edge in edges]
        whole = [_filled(x, values, n, layer.o_lanes) for x, n in zip(errors, above, strict=True)]
        if layer.trainable:
            self._gradient(layer, errors[0], whole[0])
        if not layer.backward:
            return
        engine = f"{layer.name}.eb"
        cycles = eb_cycles(self.plan, layer)
        if layer.pattern == "join":
            passed = whole[0]
        elif layer.windowed:
            walk = layer.eb_walks[0]
            rows = self._gather(engine, walk, cycles, errors[0])
            holds = self._hold_rows(layer.name, "eb_rows", walk, errors[0], rows)
            passed = [(start, end + ENGINE_LATENCY) for start, end in rows]
            self._hold_indices(layer, [until for _, until, _ in holds])
        else:
            passed = self._pass_words(engine, whole, cycles, layer.eb_latency)
            self._hold_indices(layer, [end for _, end in passed])
        if layer.pattern == "fork":
            self._hold_words(layer, errors, passed)
        for edge in self.plan.edges_in[layer.name]:
            self.errors[layer.name, edge.sink_port] = passed

    def _gradient(self, layer: LayerPlan, errors: Rows, whole: Rows) -> None:
        """WG takes ``whole`` words of errors, which wait for it from their arrival."""
        words = layer.o_shape[2] * layer.o_blocks
        walk, feature = layer.fp_walks[0], self._sources(layer)[0]
        each = beats(layer.fp_walks, layer.fp_interval, layer.o_blocks)
        cycles = row_cycles(layer.fp_walks, layer.o_blocks, each, 1)
        rows = self._gather(f"{layer.name}.wg", walk, cycles, feature, whole, words)
        self._hold_rows(layer.name, "wg_rows", walk, feature, rows)
        self.holds[layer.name, "error_words"] = [
            (arrival[0], row[1], words) for arrival, row in zip(errors, rows, strict=True)
        ]

    def _hold_indices(self, layer: LayerPlan, released: list[int]) -> None:
        """What waits from a result until the error that it changes is done with."""
        if not KINDS[layer.kind].holds:
            return
        edge = self.plan.edges_out[layer.name][0]
        result = self.features[edge.sink, edge.sink_port]
        words = layer.o_shape[2] * layer.o_blocks
        self.holds[layer.name, "index_words"] = [
            (row[0], until, words) for row, until in zip(result, released, strict=True)
        ]

    def _hold_words(self, layer: LayerPlan, sources: list[Rows], rows: Rows) -> None:
        """What waits of each source, from its arrival until the row has passed."""
        for port, (source, blocks) in enumerate(zip(sources, layer.join_blocks, strict=True)):
            words = layer.i_shape[2] * blocks
            self.holds[layer.name, f"join_words[{port}]"] = [
                (first, end, words) for (first, _), (_, end) in zip(source, rows, strict=True)
            ]

    def _below(self, source: str) -> tuple[int, int]:
        """Values of a row of features, and channels of a word, as their source gives them."""
        if source == INPUT:
            channels, _, width = self.plan.input_shape
            return channels * width, self.plan.packet_lanes
        layer = self.plan.layer(source)
        return layer.o_shape[0] * layer.o_shape[2], layer.o_lanes

    def _lanes_above(self, sink: str) -> int:
        """Channels of a word of errors as it comes back."""
        return 1 if sink == LOSS else self.plan.layer(sink).i_lanes

    def _free(self, engine: str) -> int:
        """When an engine has finished the sample before."""
        return self.before[engine][1] - self.period if engine in self.before else -self.period

    def _pass_words(
        self, engine: str, sources: list[Rows], cycles: list[int], latency: int
    ) -> Rows:
        """Rows that pass word by word as they come, from all sources at once."""
        clock = self._free(engine)
        rows = []
        for n, needed in enumerate(cycles):
            start = max(clock, *(source[n][0] for source in sources))
            last = max(source[n][1] for source in sources)
            clock = max(start + needed, last + WORD_LATENCY)
            rows.append((start, clock + latency - 1))
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


def _filled(rows: Rows, values: int, given: int, taken: int) -> Rows:
    """Rows of ``values`` that come in words of ``given`` channels, each from when its first word of
    ``taken`` channels is whole: a gear fills that word first.
    """
    if given >= taken:
        return rows
    missing = min(taken - given, values)
    return [(first + (last - first) * missing // values, last) for first, last in rows]
