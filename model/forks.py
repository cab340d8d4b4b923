"""Forks: gives every feature one reader, and a place to each layer.

Used by ``model/trace.py``. Test: ``tests/test_graphs.py``.
"""

import dataclasses
from collections import Counter
from collections.abc import Sequence

from .graph import Node, Shape
from .plan import INPUT

__all__ = ["with_forks"]


def with_forks(nodes: Sequence[Node], output: str, input_shape: Shape) -> tuple[Node, ...]:
    """Return the layers that ``output`` depends on, with a fork behind each that several read.

    ``nodes`` have their sources by name, each behind its sources. A layer that reads the one before
    it loses its ``sources``; dropouts are numbered.
    """
    kept = _ancestors(nodes, output)
    readers = Counter(source for node in kept for source in node.sources)
    names = {node.name for node in kept}
    forks: dict[str, str] = {}
    found: list[Node] = []

    def fork(name: str, shape: Shape) -> None:
        if readers[name] > 1:
            forks[name] = f"{name}.fork"
            while forks[name] in names:
                forks[name] += "_"
            made = Node(forks[name], "fork", shape, shape, sources=(name,), fan=readers[name])
            found.append(made)

    fork(INPUT, input_shape)
    dropouts = 0
    for node in kept:
        sources = tuple(forks.get(source, source) for source in node.sources)
        number = dropouts if node.kind == "dropout" else 0
        dropouts += node.kind == "dropout"
        found.append(dataclasses.replace(node, sources=sources, number=number))
        fork(node.name, node.o_shape)
    before = INPUT
    for n, node in enumerate(found):
        if node.sources == (before,):
            found[n] = dataclasses.replace(node, sources=())
        before = node.name
    return tuple(found)


def _ancestors(nodes: Sequence[Node], output: str) -> list[Node]:
    needed = {output}
    kept = []
    for node in reversed(nodes):
        if node.name in needed:
            needed.update(node.sources)
            kept.append(node)
    return kept[::-1]
