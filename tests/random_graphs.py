"""Random graphs for tests: any acyclic mix of layers, forks and joins, with random lanes."""

import math

from gradweave.tests.plans import (
    add,
    avgpool,
    concat,
    conv,
    dropout,
    fork,
    graph,
    leaky_relu,
    linear,
    maxpool,
    relu,
    softmax,
    table,
)

__all__ = ["KINDS", "random_graph"]

KINDS = ("conv", "conv", "relu", "leaky", "dropout", "table", "softmax", "max", "avg")


def random_graph(draw, steps=7, size=6, channels=4, kinds=KINDS):
    """A plan of about ``steps`` layers of ``kinds``, a linear layer at its end; ``draw`` is a
    ``random.Random``.
    """
    return _Builder(draw, size, channels, kinds).plan(steps)


class _Builder:
    def __init__(self, draw, size, channels, kinds):
        self.draw, self.specs, self.kinds = draw, [], kinds
        self.shape = draw.choice([2, channels]), size, draw.choice([size - 1, size])
        self.open = [("input", self.shape)]

    def plan(self, steps):
        for _ in range(steps):
            self._step()
        while len(self.open) > 1:
            first, second = self._take(), self._take()
            if first[1][1:] != second[1][1:]:
                first, second = self._average(first), self._average(second)
            self._join([first, second])
        name, shape = self._take()
        a, b = self.draw.choice([2, 4]), shape[0]  # the widest layer must not hide the others
        self.specs.append(linear("end", 4, a=a, b=b, update_lanes=1).on(name))
        return graph(self.shape, *self.specs, loss="mse")

    def _step(self):
        kind = self.draw.random()
        if kind < 0.3 and len(self.open) < 4:
            name, shape = self._take()
            new = self._name("fork")
            self.specs.append(fork(new, lanes=self._lanes(shape[0])).on(name))
            self.open += [(new, shape)] * 2
        elif kind < 0.5 and (alike := self._alike()):
            for stream in alike:
                self.open.remove(stream)
            self._join(alike)
        else:
            self._layer()

    def _layer(self):
        name, (channels, height, width) = self._take()
        lanes = self._lanes(channels)
        kind = self.draw.choice(self.kinds)
        new = self._name(kind)
        size = height, width
        if kind == "conv":
            outputs = self.draw.choice([2, 4])
            kernel, stride, padding, dilation = self.draw.choice(
                [(1, 1, 0, 1), (3, 1, 1, 1), (3, 2, 1, 1), (2, 1, 1, 1), (3, 1, 2, 2), (1, 2, 0, 1)]
            )
            spans = {"kernel": kernel, "stride": stride, "padding": padding}
            size = tuple(_positions(x, kernel, stride, padding, dilation) for x in size)
            folding = {"a": self._lanes(outputs), "b": lanes, "dilation": (dilation, dilation)}
            spec = conv(new, outputs, **spans, size=size, update_lanes=1, **folding)
            channels = outputs
        elif kind == "max":
            kernel, stride, padding = self.draw.choice([(3, 1, 1), (2, 1, 0), (2, 2, 0), (3, 2, 1)])
            if min(size) + 2 * padding < kernel:
                kernel, stride, padding = 1, 1, 0
            size = tuple(_positions(x, kernel, stride, padding, 1) for x in size)
            spec = maxpool(new, kernel, stride=stride, padding=padding, lanes=lanes)
        elif kind == "avg":
            size = tuple(self.draw.randint(1, x) for x in size)
            spec = avgpool(new, size=size, adaptive=True, lanes=lanes)
        else:
            spec = {
                "relu": lambda: relu(new, lanes),
                "leaky": lambda: leaky_relu(new, 655, lanes),
                "dropout": lambda: dropout(new, 1 << 14, lanes=lanes),
                "table": lambda: table(new, "tanh", lanes=lanes),
                "softmax": lambda: softmax(new, lanes=lanes),
            }[kind]()
        self.specs.append(spec.on(name))
        self.open.append((new, (channels, *size)))

    def _join(self, streams):
        parts = [shape[0] for _, shape in streams]
        if len(set(parts)) == 1 and self.draw.random() < 0.6:
            spec, channels = add(self._name("add"), lanes=self._lanes(parts[0])), parts[0]
        else:
            lanes = self._lanes(math.gcd(*parts))
            spec, channels = concat(self._name("concat"), lanes=lanes), sum(parts)
        self.specs.append(spec.on(*(name for name, _ in streams)))
        self.open.append((spec.name, (channels, *streams[0][1][1:])))

    def _average(self, stream):
        name, (channels, _, _) = stream
        new = self._name("avg")
        lanes = self._lanes(channels)
        self.specs.append(avgpool(new, size=(1, 1), adaptive=True, lanes=lanes).on(name))
        return new, (channels, 1, 1)

    def _alike(self):
        """Some streams of one map size, if there are any."""
        maps = {shape[1:] for _, shape in self.open}
        found = [[x for x in self.open if x[1][1:] == size] for size in sorted(maps)]
        groups = [streams for streams in found if len(streams) > 1]
        return self.draw.choice(groups)[: self.draw.choice([2, 3])] if groups else None

    def _take(self):
        return self.open.pop(self.draw.randrange(len(self.open)))

    def _lanes(self, channels):
        return self.draw.choice([n for n in range(1, channels + 1) if channels % n == 0])

    def _name(self, kind):
        return f"{kind}{len(self.specs)}"


def _positions(size, kernel, stride, padding, dilation):
    """At least one position: the walk's rest lies in the padding behind the map."""
    return max(1, (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1)
