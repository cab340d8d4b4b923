"""Which tensors of a graph share one format: features and errors that pass layers unchanged.

Used by ``model/choose.py``. Test: ``tests/test_calibrate.py``.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from .graph import Graph
from .kinds import KINDS
from .plan import INPUT

__all__ = ["FormatClass", "error_classes", "feature_classes"]

# Activations whose results stay within one, however their network grows.
_BOUNDED = ("sigmoid", "tanh", "softmax")


@dataclass(frozen=True)
class FormatClass:
    """Tensors of one format, by name. ``name`` is the one that messages use: ``input``, else a
    trainable layer's, else the first in the graph's order. ``bounded`` says that nothing beyond one
    can occur.
    """

    name: str
    members: tuple[str, ...]
    bounded: bool = False


class _Ties:
    """Names that are joined, in their order of appearance."""

    def __init__(self, names: Iterable[str]) -> None:
        self.parent = {name: name for name in names}

    def root(self, name: str) -> str:
        while self.parent[name] != name:
            name = self.parent[name]
        return name

    def tie(self, names: Iterable[str]) -> None:
        roots = [self.root(name) for name in names]
        for root in roots:
            self.parent[self.root(root)] = self.root(roots[0])

    def groups(self) -> list[list[str]]:
        found: dict[str, list[str]] = {}
        for name in self.parent:
            found.setdefault(self.root(name), []).append(name)
        return list(found.values())


def feature_classes(graph: Graph) -> dict[str, FormatClass]:
    """Return the class of each layer's output by the layer's name, and that of ``input``.

    A layer that keeps its feature's format joins what it reads with what it writes; an addition
    joins what it reads.
    """
    kinds = {node.name: node.kind for node in graph.nodes}
    ties = _Ties([INPUT, *kinds])
    for node in graph.nodes:
        sources = graph.sources[node.name]
        ties.tie((*sources, node.name) if KINDS[node.kind].keeps_feature else sources)
    found: dict[str, FormatClass] = {}
    for group in ties.groups():
        makers = [kinds.get(name, INPUT) for name in group]
        bounded = all(kind in _BOUNDED or _keeps_feature(kind) for kind in makers)
        found |= dict.fromkeys(group, _named(graph, group, "feature", bounded))
    return found


def _keeps_feature(kind: str) -> bool:
    return kind != INPUT and KINDS[kind].keeps_feature


def error_classes(graph: Graph) -> dict[str, FormatClass]:
    """Return the class of the error of each layer's output by the layer's name, of those that have
    one.

    A layer that keeps its error's format joins the errors of what it reads with its own; the
    outputs of a fork have one format as they are.
    """
    ties = _Ties(node.name for node in graph.nodes if node.name in graph.error_takers)
    for node in graph.nodes:
        below = [name for name in graph.sources[node.name] if name in graph.error_takers]
        if below:
            ties.tie((*below, node.name) if KINDS[node.kind].keeps_error else below)
    found: dict[str, FormatClass] = {}
    for group in ties.groups():
        found |= dict.fromkeys(group, _named(graph, group, "error", False))
    return found


def _named(graph: Graph, group: list[str], noun: str, bounded: bool) -> FormatClass:
    members = tuple(name if name == INPUT else f"{name}.{noun}" for name in group)
    if INPUT in group:
        return FormatClass(INPUT, members, bounded)
    trainable = [node.name for node in graph.trainable if node.name in group]
    return FormatClass(f"{(trainable or group)[0]}.{noun}", members, bounded)
