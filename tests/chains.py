"""Graphs and formats for tests of the planner and the schedule, in one line each."""

import dataclasses

from gradweave.model.formats import Format
from gradweave.model.graph import Formats, Graph, LayerFormats, Node
from gradweave.model.plan import ParameterPlan

FEATURE = Format(16, 10)
ERROR = Format(16, 14)
PARAMETER = ParameterPlan(Format(16, 13), Format(32, 24), Format(32, 20))


def chain(i_shape, *layers, loss="cross_entropy"):
    """A graph of ``("conv", channels, kernel, stride, padding)``, ``"relu"``, ``("pool", size)``,
    ``("fc", outputs)``; names are kind and place, such as ``conv0``.
    """
    nodes = []
    shape = i_shape
    for n, layer in enumerate(layers):
        kind, *rest = (layer,) if isinstance(layer, str) else layer
        channels, height, width = shape
        if kind == "conv":
            outputs, kernel, stride, padding = rest
            height, width = ((x + 2 * padding - kernel) // stride + 1 for x in (height, width))
            o_shape = (outputs, height, width)
            spans = ((kernel, kernel), (stride, stride), (padding, padding), True)
        elif kind == "pool":
            (size,) = rest
            o_shape = (channels, height // size, width // size)
            spans = ((size, size), (size, size))
        elif kind == "fc":
            o_shape = (rest[0], 1, 1)
            spans = ((height, width), (1, 1), (0, 0), True)
        else:
            o_shape, spans = shape, ()
        full = {"conv": "conv2d", "pool": "maxpool2d", "fc": "linear"}.get(kind, kind)
        nodes.append(Node(f"{kind}{n}", full, shape, o_shape, *spans))
        shape = o_shape
    return Graph(i_shape, tuple(nodes), loss, shape[0])


def formats_of(graph):
    """16-bit formats, the same for every layer."""
    layer = LayerFormats(FEATURE, FEATURE, ERROR, ERROR, PARAMETER, PARAMETER)
    return Formats(FEATURE, {node.name: layer for node in graph.trainable}, FEATURE, ERROR)


LENET = chain(
    (1, 28, 28),
    ("conv", 6, 5, 1, 2),
    "relu",
    ("pool", 2),
    ("conv", 16, 5, 1, 0),
    "relu",
    ("pool", 2),
    ("fc", 120),
    "relu",
    ("fc", 84),
    "relu",
    ("fc", 10),
)
DIGITS = chain(
    (1, 8, 8),
    ("conv", 8, 3, 1, 1),
    "relu",
    ("conv", 16, 3, 1, 1),
    "relu",
    ("pool", 2),
    ("fc", 10),
)


def fold(plan, **foldings):
    """The plan with ``(a, b)``, ``(a, b, unfold)`` or lanes by layer name; update units with one
    lane.
    """
    layers = []
    for layer in plan.layers:
        if layer.trainable:
            a, b, *unfold = foldings.get(layer.name, (1, 1))
            layer = dataclasses.replace(layer, update_lanes=1, a=a, b=b, unfold=any(unfold))
        else:
            layer = dataclasses.replace(layer, lanes=foldings.get(layer.name, 1))
        layers.append(layer)
    return dataclasses.replace(plan, layers=tuple(layers))
