"""Exported programs: turns what ``torch.export.export`` returns into a module that ``trace`` reads.

An exported program calls aten operators on lifted parameters. ``as_module`` puts the parameters
back under their names, into the Conv2d, Linear and BatchNorm modules that own them, and makes
torch's functions of the other operators that ``model/aten.py`` lists. What is not listed stays, and
``model/rules.py`` refuses it by name. Test: ``tests/test_exported.py``.
"""

from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind

from .aten import CALLS, DECOMPOSED, IN_PLACE, LAYERS, ROLES, WITH_INDICES, arguments
from .calls import called
from .errors import UnsupportedError

__all__ = ["ExportedModule", "as_module"]


class ExportedModule(nn.Module):
    """A module whose ``exported_graph`` is read as it stands, without another trace."""

    def __init__(self) -> None:
        super().__init__()
        self.exported_graph = fx.Graph()

    def forward(self, x: Tensor) -> Any:
        return fx.Interpreter(self, graph=self.exported_graph).run(x)


def as_module(program: ExportedProgram) -> ExportedModule:
    """Return a module that computes what the program does; its parameters and buffers are the
    program's own, under the same names.

    The number of samples may differ from the exported one. Dropout follows the module's mode again
    where it came from ``nn.Dropout`` or was exported in training mode.

    Raises
    ------
    UnsupportedError
        When the program returns anything but a tensor, or a tuple or list of tensors, or was
        decomposed into operators that are no layers.
    """
    return _Rebuild(program).module()


class _Rebuild:
    """One pass over an exported graph; ``made`` maps its nodes to those of the new graph."""

    def __init__(self, program: ExportedProgram) -> None:
        self.program = program
        signature = program.graph_signature
        self.held = {
            **signature.inputs_to_parameters,
            **signature.inputs_to_buffers,
            **signature.inputs_to_lifted_tensor_constants,
        }
        self.paths = {path: kind for n in program.graph.nodes for path, kind in _stack(n).items()}
        self.kind = self.paths.get("", ExportedModule.__name__).rsplit(".", 1)[-1]
        self.root = type(self.kind, (ExportedModule,), {"__doc__": ExportedModule.__doc__})()
        self.graph = self.root.exported_graph
        self.made: dict[fx.Node, Any] = {}
        self.samples = ""  # torch's size or symbol of the first dimension
        for name in self.held.values():
            _place(self.root, name, self._tensor(name), name in program.state_dict)

    def module(self) -> ExportedModule:
        for node in self.program.graph.nodes:
            if node.op == "placeholder":
                self._placeholder(node)
            elif node.op == "output":
                self.graph.output(self._outputs(node))
            elif node.op == "get_attr":
                path = str(node.target)
                _place(self.root, path, getattr(self.program.graph_module, path))
                self.made[node] = self.graph.get_attr(path)
            elif node.users or getattr(getattr(node.target, "_schema", None), "is_mutable", True):
                self.made[node] = self._call(node)
        return self.root

    def _tensor(self, name: str) -> Any:
        state = self.program.state_dict
        return state[name] if name in state else self.program.constants[name]

    def _placeholder(self, node: fx.Node) -> None:
        if node.name in self.held:
            if node.users:
                self.made[node] = self.graph.get_attr(self.held[node.name])
            return
        self.made[node] = self.graph.placeholder(str(node.target))
        value = node.meta.get("val")
        if isinstance(value, Tensor) and value.ndim:
            self.samples = str(value.shape[0])

    def _outputs(self, node: fx.Node) -> Any:
        form = self.program.call_spec.out_spec
        if form is not None and form.type not in (None, tuple, list):
            raise UnsupportedError(
                f"model ({self.kind}).forward must return a tensor, or several as a tuple, not a "
                f"{form.type.__name__}"
            )
        values: Any = node.args[0]
        specs = self.program.graph_signature.output_specs
        kept = [v for v, spec in zip(values, specs, strict=True) if _is_result(spec.kind)]
        made = tuple(self.made.get(value, value) for value in kept)
        return made[0] if form is None or form.type is None else made

    def _call(self, node: fx.Node) -> Any:
        name = called(node.target)
        source: Any = node.args[0] if node.args else None
        if name == "getitem" and called(source.target) in WITH_INDICES:
            return self.made[source]
        path = self._owner(node, name) if name in LAYERS else None
        if path is not None:
            return self._layer(node, name, path)
        if name in ("dropout", "dropout_") and (node.args[2] or _leaf(node)[1] == "Dropout"):
            return self._dropout(node, name)
        args = fx.node.map_arg(node.args, self.made.__getitem__)
        kwargs = dict(fx.node.map_arg(node.kwargs, self.made.__getitem__))
        target = CALLS.get(name, node.target)
        if target is torch.reshape:
            args, kwargs = (args[0], self._sizes(node)), {}
        elif name in IN_PLACE:
            kwargs["inplace"] = True
        elif name.removesuffix("_no_training") in DECOMPOSED:
            raise UnsupportedError(
                f"model ({self.kind}) was decomposed, {_leaf(node)[0] or node.name} into {name}: "
                "give the program as torch.export.export returns it, without run_decompositions()"
            )
        elif name in WITH_INDICES:
            indices = any(user.args[1] == 1 and user.users for user in node.users)
            kwargs["return_indices"] = indices
        return self._function(node, target, args, kwargs)

    def _sizes(self, node: fx.Node) -> tuple[int, ...]:
        """A sample's shape was fixed by the export, the number of samples was not meant to be."""
        samples, *rest = node.meta["val"].shape
        first = -1 if str(samples) == self.samples else int(samples)
        return (first, *map(int, rest))

    def _function(self, node: fx.Node, target: Any, args: Any, kwargs: Any) -> fx.Node:
        path, kind = _leaf(node)
        op = "call_method" if isinstance(target, str) else "call_function"
        made = self.graph.create_node(
            op, target, args, kwargs, path or called(node.target).rstrip("_")
        )
        made.meta["nn_module_stack"] = _stack(node)
        if path:
            made.meta["leaf"] = (path, kind)
        return made

    def _dropout(self, node: fx.Node, name: str) -> fx.Node:
        """A module, as its mode is the trainer's to choose, not the export's."""
        path = _leaf(node)[0]
        if not path:
            path = node.name
            while path in self.paths:
                path += "_"
        share: Any = node.args[1]
        _place(self.root, path, nn.Dropout(float(share), name == "dropout_"))
        return self._module(node, path)

    def _layer(self, node: fx.Node, name: str, path: str) -> fx.Node:
        """A layer that owns its parameters; called again, it stays the one that it was."""
        holder = self.root.get_submodule(path)
        if type(holder) is nn.Module:
            layer = LAYERS[name](arguments(node), holder)
            layer._parameters.update(holder._parameters)
            layer._buffers.update(holder._buffers)
            _place(self.root, path, layer)
        return self._module(node, path)

    def _module(self, node: fx.Node, path: str) -> fx.Node:
        source: Any = node.args[0]
        return self.graph.create_node("call_module", path, (self.made[source],), {}, path)

    def _owner(self, node: fx.Node, name: str) -> str | None:
        """The path of the module that owns the parameters of a call; None where their names are
        not those that such a module gives.
        """
        given = arguments(node)
        paths = set()
        for role in ROLES:
            if given.get(role) is not None:
                held = self.held.get(given[role].name, "")
                paths.add(held.removesuffix(f".{role}") if held.endswith(f".{role}") else "")
        path = paths.pop() if len(paths) == 1 else ""
        return path or None


def _is_result(kind: OutputKind) -> bool:
    return kind == OutputKind.USER_OUTPUT


def _stack(node: fx.Node) -> dict[str, str]:
    """The modules around a call, outermost first: paths and types, as torch writes them."""
    return {path: str(kind) for path, kind in node.meta.get("nn_module_stack", {}).values()}


def _leaf(node: fx.Node) -> tuple[str, str]:
    """Path and type of the layer of torch's own that makes a call, empty where a user's does."""
    path, kind = ([("", ""), *_stack(node).items()])[-1]
    own = kind.startswith("torch.nn.modules.") and path
    return (path, kind.rsplit(".", 1)[-1]) if own else ("", "")


def _place(root: nn.Module, path: str, value: Any, persistent: bool = True) -> None:
    """Put a parameter, a buffer or a module at its path."""
    *parents, name = path.split(".")
    for parent in parents:
        if parent not in root._modules:
            root.add_module(parent, nn.Module())
        root = root.get_submodule(parent)
    if isinstance(value, nn.Parameter):
        root.register_parameter(name, value)
    elif isinstance(value, Tensor):
        root.register_buffer(name, value, persistent)
    else:
        setattr(root, name, value)
