"""Tracing: turns a torch module into a ``Graph``, or refuses it by the module's path, its type and
the rule.

Single layers are judged in ``model/rules.py``; this file follows the chain. Test:
``tests/test_trace.py``.
"""

from typing import Any

import torch
from torch import Tensor, fx, nn

from .errors import InputError, UnsupportedError
from .graph import Graph, Node
from .losses import check_loss, read_loss
from .rules import FLATTEN, Judge, show

__all__ = ["trace"]


class _Tracer(fx.Tracer):
    """Remembers which module was being traced when torch.fx gave up."""

    def __init__(self) -> None:
        super().__init__()
        self.stack: list[str] = []

    def call_module(self, m: nn.Module, forward: Any, args: Any, kwargs: Any) -> Any:
        self.stack.append(f"{self.path_of_module(m)} ({type(m).__name__})")
        result = super().call_module(m, forward, args, kwargs)
        self.stack.pop()
        return result


def trace(
    model: nn.Module, example_input: Tensor, loss: str | nn.Module = "cross_entropy"
) -> Graph:
    """Return the graph of ``model``, a chain of supported layers.

    Parameters
    ----------
    model : nn.Module of Conv2d, Linear, ReLU, MaxPool2d, Flatten and Identity, or the functions
        relu, max_pool2d, flatten, view and reshape; left as it is
    example_input : floating tensor [N, C, H, W] or [N, features]; its shape counts, and N is free
    loss : a name or a torch loss module, see ``model/losses.py``

    Raises
    ------
    InputError
        When ``example_input`` or ``loss`` cannot be used, or a layer fails on the shape that
        reaches it.
    UnsupportedError
        For every module, argument or connection that the hardware does not have.
    """
    kind, options = read_loss(loss)
    _check_example(example_input)
    _check_parameters(model)
    graph = _symbolic(model)
    dtype = next((p.dtype for p in model.parameters()), torch.float32)
    sample = example_input[:1].detach().to(dtype)
    nodes, outputs = _Chain(model, graph).walk(torch.cat([sample, sample]))
    if not any(node.trainable for node in nodes):
        raise UnsupportedError(
            f"model ({type(model).__name__}) has no trainable layer: it must use at least one "
            "Conv2d or Linear"
        )
    check_loss(kind, options, outputs)
    _check_used(model, nodes)
    first = nodes[0].i_shape
    return Graph(first, tuple(nodes), kind, outputs, options)


def _check_example(example: Tensor) -> None:
    if not isinstance(example, Tensor):
        raise InputError(f"example_input must be a torch tensor, not {type(example).__name__}")
    if example.ndim not in (2, 4) or 0 in example.shape:
        raise InputError(
            "example_input must have shape [N, channels, height, width] or [N, features], not "
            f"{list(example.shape)}"
        )
    if example.dtype not in (torch.float32, torch.float64):
        raise InputError(f"example_input must be float32 or float64, not {_dtype(example)}")


def _check_parameters(model: nn.Module) -> None:
    if not isinstance(model, nn.Module):
        raise InputError(f"model must be a torch.nn.Module, not {type(model).__name__}")
    seen: dict[int, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            raise UnsupportedError(
                f"{name} is not initialised: pass the model an example before gradweave"
            )
        if parameter.dtype not in (torch.float32, torch.float64):
            raise UnsupportedError(
                f"{name} must be float32 or float64, not {_dtype(parameter)}: call model.float() "
                "first"
            )
        if not parameter.requires_grad:
            raise UnsupportedError(
                f"{name} is frozen (requires_grad=False): the hardware trains every layer"
            )
        if seen.setdefault(id(parameter), name) != name:
            raise UnsupportedError(
                f"{name} is shared with {seen[id(parameter)]}: each layer must own its parameters"
            )


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _symbolic(model: nn.Module) -> fx.Graph:
    tracer = _Tracer()
    try:
        return tracer.trace(model)
    except Exception as error:
        where = tracer.stack[-1] if tracer.stack else f"model ({type(model).__name__})"
        reason = str(error).strip().split("\n")[0]
        raise UnsupportedError(
            f"{where} cannot be traced: {reason}; forward must call layers in a fixed order, "
            "without branching on "
            "tensor values or shapes"
        ) from error


class _Chain:
    """Follows the data through a traced graph, running each call on two samples to learn the
    shapes.
    """

    def __init__(self, model: nn.Module, graph: fx.Graph) -> None:
        self.model = model
        self.graph = graph
        self.modules = dict(model.named_modules())
        self.values: dict[fx.Node, Any] = {}
        self.sizes: set[fx.Node] = set()
        self.nodes: list[Node] = []
        self.used: set[str] = set()

    def walk(self, sample: Tensor) -> tuple[list[Node], int]:
        """Return the layers and the number of outputs."""
        inputs = [node for node in self.graph.nodes if node.op == "placeholder"]
        if len(inputs) != 1:
            names = [node.target for node in inputs]
            raise UnsupportedError(
                f"model ({type(self.model).__name__}).forward must take one tensor, not {names}"
            )
        head = inputs[0]
        self.values[head] = sample
        shape = (*sample.shape[1:], 1, 1)[:3]
        for node in self.graph.nodes:
            if node.op in ("placeholder", "output") or self._is_size(node):
                continue
            self._check_branch(head)
            shape = self._step(node, head, shape)
            head = node
        output = next(node for node in self.graph.nodes if node.op == "output")
        if output.args[0] is not head:
            raise UnsupportedError(
                f"model ({type(self.model).__name__}).forward must return one tensor, the last "
                "layer's output, "
                f"not {output.args[0]}"
            )
        if shape[1:] != (1, 1):
            raise UnsupportedError(
                f"{self._title(head)} ends the model with a map of {show(shape)}: the output "
                "must be a vector of logits; "
                "end with a Linear layer, or a layer whose map is 1x1"
            )
        return self.nodes, shape[0]

    def _is_size(self, node: fx.Node) -> bool:
        """Evaluate a read of a tensor's shape, which only reshapes may use."""
        read = node.op == "call_method" and node.target == "size"
        read |= node.op == "call_function" and getattr(node.target, "__name__", "") in (
            "getattr",
            "getitem",
        )
        if not read or not all(n in self.values for n in node.all_input_nodes):
            return False
        value = self._run(node)
        if isinstance(value, Tensor):
            return False
        self.values[node] = value
        self.sizes.add(node)
        return True

    def _run(self, node: fx.Node) -> Any:
        args = fx.node.map_arg(node.args, lambda n: self.values[n])
        kwargs = fx.node.map_arg(node.kwargs, lambda n: self.values[n])
        with torch.no_grad():
            if node.op == "call_module":
                return self.modules[str(node.target)](*args, **kwargs)
            if node.op == "call_method":
                return getattr(args[0], str(node.target))(*args[1:], **kwargs)
            return node.target(*args, **kwargs)  # type: ignore[operator]

    def _check_branch(self, head: fx.Node) -> None:
        users = [
            user for user in head.users if user not in self.sizes and not self._reads_size(user)
        ]
        if len(users) > 1:
            names = " and ".join(self._title(user) for user in users)
            raise UnsupportedError(
                f"the output of {self._title(head)} goes to {names}: only a chain of layers is "
                "supported, "
                "without branches or residual additions"
            )

    def _reads_size(self, node: fx.Node) -> bool:
        shape = node.op == "call_function" and len(node.args) > 1 and node.args[1] == "shape"
        return shape or (node.op == "call_method" and node.target == "size")

    def _title(self, node: fx.Node) -> str:
        if node.op == "call_module":
            return f"{node.target} ({type(self.modules[str(node.target)]).__name__})"
        if node.op == "placeholder":
            return "the input"
        return f"{node.name} ({getattr(node.target, '__name__', node.target)})"

    def _step(self, node: fx.Node, head: fx.Node, shape: tuple[int, ...]) -> tuple[int, ...]:
        value = self.values[head]
        seen = tuple(value.shape[1:])
        title = (
            f"{self._title(node)[:-1]}, input {show(seen)})"
            if node.op != "get_attr"
            else self._title(node)
        )
        if (*node.args[:1], node.kwargs.get("input"))[0] is not head:
            raise UnsupportedError(
                f"{title} is not supported: it does not take the output of {self._title(head)}"
            )
        module = self.modules[str(node.target)] if node.op == "call_module" else None
        name = self._name(node, module, title)
        kind, make = Judge(title, value.ndim, shape).judge(node, module)
        try:
            result = self._run(node)
        except Exception as error:
            raise InputError(
                f"{title} fails on example_input: {str(error).splitlines()[0]}"
            ) from error
        self.values[node] = result
        if kind == FLATTEN:
            count = shape[0] * shape[1] * shape[2]
            if tuple(result.shape) != (len(value), count):
                raise UnsupportedError(
                    f"{title} is not supported: it must flatten each sample to [N, {count}], not "
                    f"to {list(result.shape)}"
                )
            return shape
        if make is None:
            return shape
        made = make(name, tuple(result.shape[1:]))
        self.nodes.append(made)
        return made.o_shape

    def _name(self, node: fx.Node, module: nn.Module | None, title: str) -> str:
        name = str(node.target) if module is not None else node.name
        if name in self.used and module is not None:
            if next(module.parameters(), None) is not None:
                raise UnsupportedError(
                    f"{title} is called twice: each layer must own its parameters"
                )
            name = node.name
        while name in self.used:
            name += "_"
        self.used.add(name)
        return name


def _check_used(model: nn.Module, nodes: list[Node]) -> None:
    used = {
        f"{node.name}.{kind}" for node in nodes if node.trainable for kind in ("weight", "bias")
    }
    for name, _ in model.named_parameters():
        if name not in used:
            raise UnsupportedError(f"{name} is never used by forward: remove it from the model")
