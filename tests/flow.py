"""A second, cycle-stepped model of a plan's flow: words, finite buffers, stalls, and no arithmetic.

Written from what the components promise (``rtl/parts/window.py``, ``fork.py``, ``gear.py``; the
engines), not from ``model/timing.py``, so that depths and intervals of the one can be held against
the other.
"""

import math

from gradweave.model.kinds import KINDS
from gradweave.model.plan import INPUT, LOSS
from gradweave.tests.flow_parts import (
    LATENCY,
    Copying,
    Engine,
    Gathering,
    Meeting,
    Pipe,
    Unfold,
    Window,
)

QUIET_CYCLES = 1500  # without any step: a deadlock


class Flow:
    """A whole plan; ``run`` gives the cycle of each sample's last error, or None in a deadlock."""

    def __init__(self, plan, batch=None):
        self.plan, self.batch = plan, batch
        layers = {x.name: x for x in plan.layers}
        self.features, self.errors = {}, {}
        for edge in plan.edges:
            key = edge.sink, edge.sink_port
            source, sink = layers.get(edge.source), layers.get(edge.sink)
            taking = sink.i_lanes if sink else 1
            if source is None:
                self.features[key] = Pipe(4 * taking + 4)
                continue
            self.features[key] = Pipe(
                self._capacity(source, source.o_lanes, taking, source.i_blocks)
            )
            if plan.passes_error(edge.source):
                self.errors[key] = Pipe(
                    self._capacity(sink, sink.i_lanes, source.o_lanes, sink.o_blocks)
                    if sink
                    else 2 * source.o_lanes
                )
        self.i_keys = {
            x.name: [(x.name, e.sink_port) for e in plan.edges_in[x.name]] for x in plan.layers
        }
        self.o_keys = {
            x.name: [(e.sink, e.sink_port) for e in plan.edges_out[x.name]] for x in plan.layers
        }
        self.parts = {x.name: self._parts(x) for x in plan.layers}
        self.sweeps = {x.name: [] for x in plan.trainable}
        self.entry = self.features[plan.edges_out[INPUT][0].sink, 0]
        self.fed = 0

    @staticmethod
    def _capacity(layer, lanes, other, inner):
        """A gear between different lanes; behind engines also a queue for what is in flight."""
        if not layer.windowed:
            return lanes + other
        results = -(-LATENCY // (inner if layer.trainable else 1)) + 1
        return results * lanes + lanes + other

    def _parts(self, x):
        parts = {}
        if x.backward and KINDS[x.kind].holds:
            parts["index"] = Pipe(x.buffers.index_words)
        turns = [n for n, count in enumerate(x.join_blocks) for _ in range(count)]
        turns = turns if x.kind == "concat" else None
        if x.pattern == "join":
            parts["meeting"] = Meeting(x.buffers.join_words, x.lanes, turns)
            parts["copying"] = Copying(len(x.sources), x.lanes, turns)
        if x.pattern == "fork":
            parts["meeting"] = Meeting(x.buffers.join_words, x.lanes)
            parts["copying"] = Copying(x.fan, x.lanes)
        if x.kind == "softmax":
            parts["gathering"] = Gathering(x, (x.o_feature.frac + 2) // 2)
            parts["back"] = Gathering(x, 1)
        if not x.windowed:
            return parts
        inner, back = (x.i_blocks, x.o_blocks) if x.trainable else (1, 1)
        if x.unfold:
            parts["unfold"] = Unfold(x)
        row_words = x.hardware.i_shape[2] * x.i_blocks
        window = Window(x.buffers.fp_rows, row_words)
        out = self.features[self.o_keys[x.name][0]]
        parts["fp"] = Engine(
            x.fp_walks, x.o_blocks, inner, window, out, x.o_lanes, fifo=parts.get("index")
        )
        if x.trainable:
            waiting = parts["waiting"] = Pipe(x.buffers.error_words)
            window = Window(x.buffers.wg_rows, row_words)
            parts["wg"] = Engine(x.fp_walks, x.o_blocks, inner, window, errors=waiting)
        if x.backward:
            window = Window(x.buffers.eb_rows, x.o_shape[2] * x.o_blocks)
            below = self.errors[self.i_keys[x.name][0]]
            parts["eb"] = Engine(x.eb_walks, x.i_blocks, back, window, below, x.i_lanes)
        return parts

    def run(self, samples):
        ends, now, quiet = [], 0, 0
        last = self.parts[self.plan.trainable[0].name]["wg"]
        while len(ends) < samples:
            moved = self._step(now, samples)
            quiet = 0 if moved else quiet + 1
            if quiet > QUIET_CYCLES:
                return None
            now += 1
            if last.done > len(ends):
                ends.append(now)
        return ends

    def _step(self, now, samples):
        pipes = [*self.features.values(), *self.errors.values()]
        for parts in self.parts.values():
            pipes += [part for part in parts.values() if isinstance(part, Pipe)]
            pipes += parts["meeting"].fifos if "meeting" in parts else []
        for pipe in pipes:
            pipe.tick(now)
        moved = False
        for x in self.plan.layers:
            if self.plan.passes_error(x.name):
                moved |= self._backward(x, now)
        moved |= self._relay(self.features[LOSS, 0], self.errors[LOSS, 0], 1, now, None, True)
        for x in reversed(self.plan.layers):
            moved |= self._forward(x, now)
        return moved | self._feed(now, samples)

    def _feed(self, now, samples):
        """A packet a time: header and target, then one or two values a cycle."""
        values, lanes = math.prod(self.plan.input_shape), self.plan.packet_lanes
        packet = self.plan.packet_interval
        header = packet - values // lanes
        sample, word = divmod(self.fed, packet)
        if sample == samples:
            return False
        count = 0 if word < header else lanes
        if not self.entry.room(count):
            return False
        self.entry.held += count
        self.entry.push(count, now + 1)
        self.fed += 1
        return True

    def _go(self, x, engine):
        """Flushed versions: mini-batch k waits for k sweeps."""
        if self.batch is None or engine == "wg" or not x.trainable:
            return lambda sample: True
        return lambda sample: len(self.sweeps[x.name]) >= sample // self.batch

    def _forward(self, x, now):
        parts = self.parts[x.name]
        sources = [self.features[key] for key in self.i_keys[x.name]]
        outs = [self.features[key] for key in self.o_keys[x.name]]
        if x.pattern == "fork":
            return parts["copying"].step(now, sources[0], outs)
        if x.pattern == "join":
            return parts["meeting"].step(now, sources, outs[0])
        source = sources[0]
        if x.kind == "softmax":
            return parts["gathering"].step(now, source, outs[0], parts.get("index"), True)
        if x.pattern == "relay":
            return self._relay(source, outs[0], x.lanes, now, parts.get("index"), True)
        moved = parts["fp"].step(now, self._go(x, "fp"))
        takers = [parts[name].window for name in ("fp", "wg") if name in parts]
        if x.unfold:
            return moved | parts["unfold"].step(source, x.i_lanes, takers)
        if source.ready >= x.i_lanes and all(window.room for window in takers):
            source.pop(x.i_lanes)
            for window in takers:
                window.write()
            moved = True
        return moved

    def _backward(self, x, now):
        parts = self.parts[x.name]
        sources = [self.errors[key] for key in self.o_keys[x.name]]
        outs = [self.errors.get(key) for key in self.i_keys[x.name]]
        if x.pattern == "fork":
            return parts["meeting"].step(now, sources, outs[0])
        if x.pattern == "join":
            return parts["copying"].step(now, sources[0], outs)
        source = sources[0]
        if x.kind == "softmax":
            return parts["back"].step(now, source, outs[0], parts.get("index"), False)
        if x.pattern == "relay":
            return self._relay(source, outs[0], x.lanes, now, parts.get("index"), False)
        moved = False
        for name in ("wg", "eb"):
            if name in parts:
                moved |= parts[name].step(now, self._go(x, name))
        if x.trainable and self.batch:
            done = min(parts[name].done for name in ("wg", "eb") if name in parts)
            if done // self.batch > len(self.sweeps[x.name]):
                self.sweeps[x.name].append(now)
        if source.ready < x.o_lanes:
            return moved
        waiting, index = parts.get("waiting"), parts.get("index")
        free = "eb" not in parts or parts["eb"].window.room
        if free and (not waiting or waiting.room(1)) and (not index or index.ready):
            source.pop(x.o_lanes)
            if "eb" in parts:
                parts["eb"].window.write()
            if waiting:
                waiting.held += 1
                waiting.push(1, now + 1)
            if index:
                index.pop(1)
            moved = True
        return moved

    def _relay(self, source, out, lanes, now, index, pushes):
        if source.ready < lanes or not out.room(lanes):
            return False
        if index and not (index.room(1) if pushes else index.ready):
            return False
        source.pop(lanes)
        out.held += lanes
        out.push(lanes, now + 1)
        if index and pushes:
            index.held += 1
            index.push(1, now + 1)
        elif index:
            index.pop(1)
        return True
