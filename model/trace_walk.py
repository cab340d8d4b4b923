"""The walk through a traced model: every call in order, with the shapes that reach it.

Used by ``model/trace.py``. Test: ``tests/test_trace.py``.
"""

import dataclasses
from typing import Any

import torch
from torch import Tensor, fx, nn

from .calls import Call, Value, called, show
from .errors import InputError, UnsupportedError
from .graph import Node, Shape
from .plan import INPUT, LOSS
from .rules import judge, zeros_around

__all__ = ["GraphWalk"]

_READS = ("size", "dim", "numel")
# Running these would change the model's statistics or draw random numbers; their shape is known.
_NOT_RUN = ("affine", "scale", "dropout")


class GraphWalk:
    """Follows the data through a traced graph, running calls on two samples to learn shapes.

    ``layers`` are all layers found, each with its sources by name; ``output`` names the last one.
    ``ends`` counts the tensors that the model returns.
    """

    def __init__(self, model: nn.Module, graph: fx.Graph) -> None:
        self.graph = graph
        self.root = f"model ({type(model).__name__})"
        self.modules = dict(model.named_modules())
        self.attributes = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        self.order = {node: n for n, node in enumerate(graph.nodes)}
        self.live = _live(graph)
        self.called = {str(node.target) for node in graph.nodes if node.op == "call_module"}
        self.values: dict[fx.Node, Any] = {}
        self.features: dict[fx.Node, Value] = {}
        self.used = {INPUT, LOSS}
        self.layers: list[Node] = []
        self.output = INPUT
        self.ends = 1

    def walk(self, sample: Tensor) -> int:
        """Follow the data from ``sample`` [2, ...]; return the number of outputs."""
        inputs = [node for node in self.graph.nodes if node.op == "placeholder"]
        if len(inputs) != 1:
            names = [node.target for node in inputs]
            raise UnsupportedError(f"{self.root}.forward must take one tensor, not {names}")
        sizes = tuple(sample.shape[1:])
        self._keep(inputs[0], sample, Value(INPUT, _map_shape(sizes), sizes))
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            for node in self.graph.nodes:
                if node.op == "get_attr":
                    self.values[node] = self.attributes.get(str(node.target))
                elif node in self.live and node.op not in ("placeholder", "output"):
                    self._step(node)
        self._check_in_place()
        return self._end()

    def _end(self) -> int:
        """Find the output; several outputs are joined to one vector, in order."""
        returned = next(node for node in self.graph.nodes if node.op == "output").args[0]
        ends = list(returned) if isinstance(returned, (tuple, list)) else [returned]
        if not ends or not all(isinstance(end, fx.Node) and end in self.features for end in ends):
            raise UnsupportedError(
                f"{self.root}.forward must return the output of a layer, or several outputs as a "
                f"tuple, not {returned}"
            )
        self.ends = len(ends)
        values = [self._output(end) for end in ends]
        parts = tuple(value.shape[0] for value in values)
        self.output = values[0].name
        if len(values) > 1:
            shape = (sum(parts), 1, 1)
            self.output = self._free("outputs")
            sources = tuple(value.name for value in values)
            self.layers.append(
                Node(self.output, "concat", shape, shape, sources=sources, parts=parts)
            )
        return sum(parts)

    def _output(self, end: fx.Node) -> Value:
        value = self.features[end]
        if any(value.zeros):
            raise UnsupportedError(
                f"{self._title(end)} is not supported: its zeros must go to a Conv2d alone"
            )
        if value.shape[1:] != (1, 1):
            raise UnsupportedError(
                f"{self._title(end)} ends the model with a map of {show(value.shape)}: the output "
                "must be a vector of logits; "
                "end with a Linear layer, or a layer whose map is 1x1"
            )
        return value

    def _keep(self, node: fx.Node, result: Tensor, value: Value) -> None:
        self.values[node], self.features[node] = result, value

    def _title(self, node: fx.Node) -> str:
        """The path and type of what is called."""
        if node.op == "call_module":
            return f"{node.target} ({type(self.modules[str(node.target)]).__name__})"
        if node.op == "placeholder":
            return "the input"
        if "leaf" in node.meta:
            return "{} ({})".format(*node.meta["leaf"])
        around = [path for path in node.meta.get("nn_module_stack", {}) if path]
        path = ".".join([*around[-1:], node.name])
        return f"{path} ({called(node.target)})"

    def _run(self, node: fx.Node, title: str) -> Any:
        args = fx.node.map_arg(node.args, lambda n: self.values[n])
        kwargs = fx.node.map_arg(node.kwargs, lambda n: self.values[n])
        try:
            if node.op == "call_module":
                return self.modules[str(node.target)](*args, **kwargs)
            if node.op == "call_method":
                return getattr(args[0], str(node.target))(*args[1:], **kwargs)
            return node.target(*args, **kwargs)  # type: ignore[operator]
        except Exception as error:
            raise InputError(
                f"{title} fails on example_input: {str(error).splitlines()[0]}"
            ) from error

    def _is_size(self, node: fx.Node, title: str) -> bool:
        """Evaluate what is no tensor: a read of a shape, and what is computed from it."""
        if node.op == "call_module":
            return False
        reads = node.target is getattr or (node.op == "call_method" and node.target in _READS)
        if not reads and any(n in self.features for n in node.all_input_nodes):
            return False
        value = self._run(node, title)
        self.values[node] = value
        return not isinstance(value, Tensor)

    def _step(self, node: fx.Node) -> None:
        title = self._title(node)
        taken = _features(node, self.features)
        if taken:
            title = f"{title[:-1]}, input {show(taken[0].sizes)})"
        if self._is_size(node, title):
            return
        module = self.modules[str(node.target)] if node.op == "call_module" else None
        args = [value for value in node.args if not _nodes(value) & self.features.keys()]
        kwargs = {k: v for k, v in node.kwargs.items() if not _nodes(v) & self.features.keys()}
        call = Call(
            title=title,
            name=self._name(node, module, title),
            values=taken,
            module=module,
            args=tuple(fx.node.map_arg(args, lambda n: self.values[n])),
            kwargs=fx.node.map_arg(kwargs, lambda n: self.values[n]),
        )
        zeros = zeros_around(call, node.target)
        if zeros is not None:
            result = self._run(node, title)
            padded = dataclasses.replace(call.value, sizes=tuple(result.shape[1:]), zeros=zeros)
            self._keep(node, result, padded)
            return
        made = judge(call, node.target)
        held = next(n for n in node.all_input_nodes if n in self.features)
        still = bool(made) and made[-1].kind in _NOT_RUN
        result = self.values[held] if still else self._run(node, title)
        sizes = tuple(result.shape[1:])
        if not made:
            _check_reshape(call, tuple(result.shape), len(self.values[held]))
            self._keep(node, result, dataclasses.replace(call.value, sizes=sizes))
            return
        self._add(call, made, _map_shape(sizes) if made[-1].pattern != "join" else None)
        shape = self.layers[-1].o_shape
        self._keep(node, result, Value(self.layers[-1].name, shape, sizes))

    def _add(self, call: Call, made: tuple[Node, ...], o_shape: Shape | None) -> None:
        """Take over a call's layers, one behind the other."""
        sources = tuple(value.name for value in call.values)
        for layer in made:
            if layer.name != call.name:
                layer = dataclasses.replace(layer, name=self._free(layer.name))
            self.used.add(layer.name)
            self.layers.append(dataclasses.replace(layer, sources=sources))
            sources = (layer.name,)
        last = self.layers[-1]
        if o_shape is not None and last.pattern in ("sum", "window") and last.kind != "scale":
            self.layers[-1] = dataclasses.replace(last, o_shape=o_shape)

    def _name(self, node: fx.Node, module: nn.Module | None, title: str) -> str:
        leaf = node.meta.get("leaf")
        if module is None and leaf is None:
            return self._free(node.name)
        name = str(node.target) if leaf is None else str(leaf[0])
        if module is not None and next(module.parameters(), None) is not None:
            if name in (INPUT, LOSS):
                raise UnsupportedError(
                    f"{title} must have another name: {INPUT!r} and {LOSS!r} are taken"
                )
            if name in self.used:
                raise UnsupportedError(
                    f"{title} is called twice: each layer must own its parameters"
                )
            return name
        return name if name not in self.used else self._free(node.name)

    def _free(self, name: str) -> str:
        """A name that no layer has, and no module that is called."""
        while name in self.used or name in self.called:
            name += "_"
        return name

    def _check_in_place(self) -> None:
        """Refuse a call that changes a feature which is read again: a graph has no such order."""
        for node in self.graph.nodes:
            changed = self.features.get((*node.all_input_nodes, node)[0])
            if changed is None or not self._in_place(node):
                continue
            for later in self.features:
                reads = [self.features[n].name for n in later.all_input_nodes if n in self.features]
                if self.order[later] > self.order[node] and changed.name in reads:
                    raise UnsupportedError(
                        f"{self._title(node)} changes its input in place, which "
                        f"{self._title(later)} reads afterwards: let it return a new tensor"
                    )

    def _in_place(self, node: fx.Node) -> bool:
        if node.op not in ("call_module", "call_function", "call_method"):
            return False
        made, source = (self.features.get(n) for n in (node, node.all_input_nodes[0]))
        if made is not None and source is not None and made.name == source.name:
            return False  # it was dropped
        if node.op == "call_module":
            return bool(getattr(self.modules[str(node.target)], "inplace", False))
        name = called(node.target)
        return bool(node.kwargs.get("inplace")) or (name.endswith("_") and name[-2:] != "__")


def _live(graph: fx.Graph) -> set[fx.Node]:
    """Everything that the output depends on."""
    found: set[fx.Node] = set()
    waiting = [node for node in graph.nodes if node.op == "output"]
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting.extend(node.all_input_nodes)
    return found


def _nodes(value: Any) -> set[fx.Node]:
    found: set[fx.Node] = set()
    fx.node.map_arg(value, found.add)
    return found


def _features(node: fx.Node, features: dict[fx.Node, Value]) -> tuple[Value, ...]:
    """The features that a call takes, in the order of its arguments."""
    taken: list[Value] = []

    def take(n: fx.Node) -> None:
        if n in features:
            taken.append(features[n])

    fx.node.map_arg((node.args, node.kwargs), take)
    return tuple(taken)


def _map_shape(sizes: tuple[int, ...]) -> Shape:
    channels, height, width = (*sizes, 1, 1)[:3]
    return (channels, height, width)


def _check_reshape(call: Call, result: tuple[int, ...], samples: int) -> None:
    """Raise unless a call leaves the order of each sample's values, as a vector, as the map that it
    was, or without axes of size 1.
    """
    shape = call.value.shape
    count = shape[0] * shape[1] * shape[2]
    sizes = result[1:]
    kept = [size for size in sizes if size > 1] == [size for size in shape if size > 1]
    known = sizes in (call.value.sizes, (count,), shape) or (len(sizes) == 2 and kept)
    if not known or result[0] != samples:
        raise UnsupportedError(
            f"{call.title} is not supported: it must flatten each sample to [N, {count}], not "
            f"to {list(result)}"
        )
