"""Parts of the cycle-stepped model in ``flow.py``: what takes, holds and gives words."""

from collections import deque

__all__ = ["LATENCY", "Copying", "Engine", "Gathering", "Meeting", "Pipe", "Unfold", "Window"]

LATENCY = 10  # cycles from a result's last beat to its transfer
GATHERED = 7  # cycles from a softmax's last word of a pixel to its first result


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


class Meeting:
    """The FIFOs in front of a join, or of a fork's errors. A word of each leaves, or, where words
    are dealt out in ``turns``, that of the port whose turn it is.
    """

    def __init__(self, depths, lanes, turns=None):
        self.fifos = [Pipe(depth) for depth in depths]
        self.lanes, self.turns, self.turn = lanes, turns, 0

    def step(self, now, sources, out):
        moved = False
        for source, fifo in zip(sources, self.fifos, strict=True):
            if source.ready >= self.lanes and fifo.room(1):
                source.pop(self.lanes)
                fifo.held += 1
                fifo.push(1, now + 1)
                moved = True
        leaving = [self.fifos[self.turns[self.turn]]] if self.turns else self.fifos
        if out.room(self.lanes) and all(fifo.ready for fifo in leaving):
            for fifo in leaving:
                fifo.pop(1)
            self.turn = (self.turn + 1) % len(self.turns or [0])
            out.held += self.lanes
            out.push(self.lanes, now + 1)
            moved = True
        return moved


class Gathering:
    """A softmax, one way: when a pixel is whole its words leave, ``each`` cycles apart. Two pixels
    are inside, and as many words as its stages hold.
    """

    def __init__(self, layer, each):
        self.lanes, self.words, self.each = layer.lanes, layer.i_blocks, each
        self.inside = self.taken = self.free = 0
        self.leaving = deque()

    def step(self, now, source, out, index, pushes):
        moved = False
        if (
            source.ready >= self.lanes
            and self.inside < 2 * self.words + 2
            and (pushes or not index or index.ready)
        ):
            source.pop(self.lanes)
            if index and not pushes:
                index.pop(1)
            self.inside += 1
            self.taken = (self.taken + 1) % self.words
            if not self.taken:
                self.leaving += [now + GATHERED] * self.words
            moved = True
        if not self.leaving or now < max(self.leaving[0], self.free) or not out.room(self.lanes):
            return moved
        if index and pushes:
            if not index.room(1):
                return moved
            index.held += 1
            index.push(1, now + 1)
        self.leaving.popleft()
        self.inside -= 1
        self.free = now + self.each
        out.held += self.lanes
        out.push(self.lanes, now + 1)
        return True


class Copying:
    """A fork, or a join's errors: a word leaves when all have taken it, or the one in turn."""

    def __init__(self, count, lanes, turns=None):
        self.lanes, self.turns, self.turn = lanes, turns, 0
        self.fresh = [{n} for n in turns] if turns else [set(range(count))]
        self.missing = set(self.fresh[0])

    def step(self, now, source, outs):
        if source.ready < self.lanes:
            return False
        taking = {n for n in self.missing if outs[n] is None or outs[n].room(self.lanes)}
        for out in (outs[n] for n in taking):
            if out is not None:
                out.held += self.lanes
                out.push(self.lanes, now + 1)
        self.missing -= taking
        if not self.missing:
            source.pop(self.lanes)
            self.turn = (self.turn + 1) % len(self.fresh)
            self.missing = set(self.fresh[self.turn])
        return bool(taking)
