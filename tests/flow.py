"""A second, cycle-stepped model of a plan's flow: words, finite buffers, stalls, and no arithmetic.

Written from what the components promise (``rtl/parts/window.py``, ``fork.py``, ``gear.py``; the
engines), not from ``model/timing.py``, so that depths and intervals of the one can be held against
the other.
"""

import math
from collections import deque

LATENCY = 10  # cycles from a result's last beat to its transfer
QUIET_CYCLES = 1500  # without any step: a deadlock


class Pipe:
    """Values between a producer and a consumer of other lanes; values in flight take room, too."""

    def __init__(self, capacity):
        self.capacity = capacity
        self.held = self.ready = 0
        self.flight = deque()

    def room(self, values):
        return self.held + values <= self.capacity

    def push(self, values, at):
        self.flight.append((at, values))

    def tick(self, now):
        while self.flight and self.flight[0][0] <= now:
            self.ready += self.flight.popleft()[1]

    def pop(self, values):
        self.ready -= values
        self.held -= values


class Window:
    def __init__(self, depth, row_words):
        self.room, self.row_words = depth, row_words
        self.column = self.level = self.base = 0

    def write(self):
        self.column += 1
        if self.column == self.row_words:
            self.column = 0
            self.level += 1
            self.room -= 1

    def free(self, rows, end):
        self.level -= rows
        self.room += rows
        self.base = 0 if end else self.base + rows


class Unfold:
    """Columns into vectors: a step a cycle, or as many cycles as its vector has words."""

    def __init__(self, layer):
        size, kernel = layer.i_shape[2], layer.kernel[1]
        padding, stride = layer.padding[1], layer.stride[1]
        ends = {x * stride + kernel - 1 for x in range(layer.o_shape[2])}
        self.steps = [
            (padding <= n < padding + size, layer.i_blocks if n in ends else 0)
            for n in range(max(padding + size, max(ends) + 1))
        ]
        self.at = self.words = 0

    def step(self, source, lanes, takers):
        """A word out where one is due, and a column in behind the last."""
        moved = False
        if self.words:
            if not all(window.room for window in takers):
                return False
            for window in takers:
                window.write()
            self.words -= 1
            moved = True
        taken, words = self.steps[self.at]
        if self.words or (taken and source.ready < lanes):
            return moved
        if taken:
            source.pop(lanes)
        self.words = words
        self.at = (self.at + 1) % len(self.steps)
        return True


class Engine:
    """FP, EB or WG: ``results`` lists (need, beats, rows freed behind it) of one sample."""

    def __init__(self, walks, outer, inner, window, out=None, lanes=0, errors=None, fifo=None):
        rows, cols = walks
        self.results = []
        freed = 0
        for y in rows.positions:
            for x in cols.positions:
                beats = max(1, y.taps) * max(1, x.taps) * inner
                self.results += [[y.need, beats, 0] for _ in range(outer)]
            self.results[-1][2] = y.free - freed
            freed = y.free
        self.window, self.out, self.lanes, self.errors, self.fifo = window, out, lanes, errors, fifo
        self.at = self.beat = self.done = 0

    def step(self, now, go):
        need, beats, free = self.results[self.at]
        if self.window.base + self.window.level < need:
            return False
        if self.errors is not None and not self.errors.ready:
            return False
        if not self.beat:
            if self.at == 0 and not go(self.done):
                return False
            if self.out and not self.out.room(self.lanes):
                return False
            if self.fifo and not self.fifo.room(1):
                return False
            for pipe, values in ((self.out, self.lanes), (self.fifo, 1)):
                if pipe:
                    pipe.held += values
        self.beat += 1
        if self.beat < beats:
            return True
        for pipe, values in ((self.out, self.lanes), (self.fifo, 1)):
            if pipe:
                pipe.push(values, now + LATENCY)
        if self.errors is not None:
            self.errors.pop(1)
        self.beat = 0
        self.at = (self.at + 1) % len(self.results)
        if free:
            self.window.free(free, not self.at)
        self.done += not self.at
        return True


class Flow:
    """A whole plan; ``run`` gives the cycle of each sample's last error, or None in a deadlock."""

    def __init__(self, plan, batch=None):
        self.plan, self.batch = plan, batch
        layers = plan.layers
        self.features, self.errors = [Pipe(4 * layers[0].i_lanes + 4)], []
        for n, x in enumerate(layers):
            after = layers[n + 1].i_lanes if n + 1 < len(layers) else 1
            self.features.append(Pipe(self._capacity(x, x.o_lanes, after, x.i_blocks)))
            below = layers[n - 1].o_lanes if n else 1
            self.errors.append(Pipe(self._capacity(x, x.i_lanes, below, x.o_blocks)))
        self.errors.append(Pipe(2 * layers[-1].o_lanes))
        self.parts = [self._parts(n, x) for n, x in enumerate(layers)]
        self.sweeps = {n: [] for n, x in enumerate(layers) if x.trainable}
        self.fed = 0

    @staticmethod
    def _capacity(layer, lanes, other, inner):
        """A gear between different lanes; behind engines also a queue for what is in flight."""
        if layer.kind == "relu":
            return lanes + other
        results = -(-LATENCY // (inner if layer.trainable else 1)) + 1
        return results * lanes + lanes + other

    def _parts(self, n, x):
        parts = {}
        if x.backward and not x.trainable:
            parts["index"] = Pipe(x.buffers.index_words)
        if x.kind == "relu":
            return parts
        inner, back = (x.i_blocks, x.o_blocks) if x.trainable else (1, 1)
        if x.unfold:
            parts["unfold"] = Unfold(x)
        row_words = x.hardware.i_shape[2] * x.i_blocks
        window = Window(x.buffers.fp_rows, row_words)
        out = self.features[n + 1]
        parts["fp"] = Engine(
            x.fp_walks, x.o_blocks, inner, window, out, x.o_lanes, fifo=parts.get("index")
        )
        if x.trainable:
            waiting = parts["waiting"] = Pipe(x.buffers.error_words)
            window = Window(x.buffers.wg_rows, row_words)
            parts["wg"] = Engine(x.fp_walks, x.o_blocks, inner, window, errors=waiting)
        if x.backward:
            window = Window(x.buffers.eb_rows, x.o_shape[2] * x.o_blocks)
            parts["eb"] = Engine(x.eb_walks, x.i_blocks, back, window, self.errors[n], x.i_lanes)
        return parts

    def run(self, samples):
        ends, now, quiet = [], 0, 0
        last = self.parts[next(n for n, x in enumerate(self.plan.layers) if x.trainable)]["wg"]
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
        pipes = self.features + self.errors
        pipes += [p for parts in self.parts for p in parts.values() if isinstance(p, Pipe)]
        for pipe in pipes:
            pipe.tick(now)
        moved = False
        for n, x in enumerate(self.plan.layers):
            moved |= self._backward(n, x, now)
        moved |= self._loss(now)
        for n, x in reversed(list(enumerate(self.plan.layers))):
            moved |= self._forward(n, x, now)
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
        if not self.features[0].room(count):
            return False
        self.features[0].held += count
        self.features[0].push(count, now + 1)
        self.fed += 1
        return True

    def _go(self, n, engine):
        """Flushed versions: mini-batch k waits for k sweeps."""
        if self.batch is None or engine == "wg" or not self.plan.layers[n].trainable:
            return lambda sample: True
        return lambda sample: len(self.sweeps[n]) >= sample // self.batch

    def _forward(self, n, x, now):
        source, out, parts = self.features[n], self.features[n + 1], self.parts[n]
        if x.kind == "relu":
            return self._relay(source, out, x.lanes, now, parts.get("index"), pushes=True)
        moved = parts["fp"].step(now, self._go(n, "fp"))
        takers = [parts[name].window for name in ("fp", "wg") if name in parts]
        if x.unfold:
            return moved | parts["unfold"].step(source, x.i_lanes, takers)
        if source.ready >= x.i_lanes and all(window.room for window in takers):
            source.pop(x.i_lanes)
            for window in takers:
                window.write()
            moved = True
        return moved

    def _backward(self, n, x, now):
        source, parts = self.errors[n + 1], self.parts[n]
        if not x.backward and not x.trainable:
            return False
        if x.kind == "relu":
            return self._relay(source, self.errors[n], x.lanes, now, parts["index"], pushes=False)
        moved = False
        for name in ("wg", "eb"):
            if name in parts:
                moved |= parts[name].step(now, self._go(n, name))
        if n in self.sweeps and self.batch:
            done = min(parts[name].done for name in ("wg", "eb") if name in parts)
            if done // self.batch > len(self.sweeps[n]):
                self.sweeps[n].append(now)
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

    def _loss(self, now):
        """Mean squared error: an error per logit."""
        return self._relay(self.features[-1], self.errors[-1], 1, now, None, pushes=True)
