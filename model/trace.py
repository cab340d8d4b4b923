"""Tracing: turns a torch module into a ``Graph``, or refuses it by the module's path, its type and
the rule.

Single layers are judged in ``model/rules.py``; ``model/trace_walk.py`` follows the data, and
``model/forks.py`` gives every feature one reader. Test: ``tests/test_trace.py``.
"""

import copy
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from .errors import GradweaveWarning, InputError, UnsupportedError
from .exported import ExportedModule
from .float_forward import float_features
from .forks import with_forks
from .graph import Graph, Node
from .losses import check_loss, read_loss
from .trace_walk import GraphWalk

__all__ = ["trace"]

TOLERANCE = 1e-6  # of the largest logit, between two float64 sums in another order


class _Tracer(fx.Tracer):
    """Remembers which module was being traced when torch.fx gave up."""

    def __init__(self) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.grad = torch.is_grad_enabled()

    def create_node(self, kind: str, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        if torch.is_grad_enabled() != self.grad:
            raise UnsupportedError(
                f"{getattr(target, '__name__', target)} is called under torch.no_grad(): the "
                "hardware trains every layer"
            )
        return super().create_node(kind, target, *args, **kwargs)

    def call_module(self, m: nn.Module, forward: Any, args: Any, kwargs: Any) -> Any:
        self.stack.append(f"{self.path_of_module(m)} ({type(m).__name__})")
        result = super().call_module(m, forward, args, kwargs)
        self.stack.pop()
        return result


def trace(
    model: nn.Module, example_input: Tensor, loss: str | nn.Module = "cross_entropy"
) -> Graph:
    """Return the graph of ``model``: any acyclic one of the layers that ``model/rules.py`` lists.

    A feature that several layers read passes a fork, named ``<producer>.fork``. BatchNorm becomes
    its statistics, which stay frozen as the model holds them whether it is in training mode or
    not, and its trained factor and offset. The graph computes what the model does in evaluation
    mode; this is checked on the first sample. Several outputs, returned as a tuple, become one
    vector in their order, which the loss takes as a whole.

    Parameters
    ----------
    model : nn.Module that ends in a vector of logits, or in several; left as it is
    example_input : floating tensor [N, C, H, W] or [N, features]; its shape counts, and N is free
    loss : a name or a torch loss module, see ``model/losses.py``

    Warns
    -----
    GradweaveWarning
        Where a softmax stands before cross-entropy, which has its own; and as ``check_loss`` does.

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
    dtype = next((p.dtype for p in model.parameters()), torch.float32)
    sample = example_input[:1].detach().to(dtype)
    walk = GraphWalk(model, _symbolic(model))
    outputs = walk.walk(torch.cat([sample, sample]))
    channels, height, width = (*sample.shape[1:], 1, 1)[:3]
    shape = (channels, height, width)
    graph = Graph(shape, with_forks(walk.layers, walk.output, shape), kind, outputs, options)
    if not graph.trainable:
        raise UnsupportedError(
            f"model ({type(model).__name__}) has no trainable layer: it must use at least one "
            "Conv2d or Linear"
        )
    if walk.ends > 1 and kind == "cross_entropy":
        raise UnsupportedError(
            f"{walk.root}.forward returns {walk.ends} outputs, and cross_entropy is one softmax "
            "over one of them: use loss='mse', 'huber' or 'bce_with_logits', or return one"
        )
    check_loss(kind, options, outputs)
    if kind == "cross_entropy" and graph.nodes[-1].kind == "softmax":
        warnings.warn(
            f"{graph.nodes[-1].name} ends the model with softmax, and cross_entropy applies "
            "softmax itself: return the logits, unless two are meant",
            GradweaveWarning,
            stacklevel=3,
        )
    _check_used(model, graph.nodes)
    _check_equal(model, graph, sample)
    return graph


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
    if isinstance(model, ExportedModule):
        return model.exported_graph
    tracer = _Tracer()
    try:
        return tracer.trace(model)
    except UnsupportedError:
        raise
    except Exception as error:
        where = tracer.stack[-1] if tracer.stack else f"model ({type(model).__name__})"
        reason = str(error).strip().split("\n")[0]
        raise UnsupportedError(
            f"{where} cannot be traced: {reason}; forward must call layers in a fixed order, "
            "without branching on "
            "tensor values or shapes"
        ) from error


def _check_used(model: nn.Module, nodes: Sequence[Node]) -> None:
    used = {
        f"{node.name}.{kind}" for node in nodes if node.trainable for kind in ("weight", "bias")
    }
    for name, _ in model.named_parameters():
        if name not in used:
            raise UnsupportedError(f"{name} is never used by forward: remove it from the model")


def _check_equal(model: nn.Module, graph: Graph, sample: Tensor) -> None:
    """Raise unless the graph computes what a copy of the model does: a trace does not show, say,
    one tensor that is changed in place under two names.
    """
    twin = copy.deepcopy(model).double().eval()
    x = torch.cat([sample, sample]).double()
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        returned = twin(x.clone())
        ends = returned if isinstance(returned, (tuple, list)) else (returned,)
        expected = torch.cat([end.reshape(2, -1) for end in ends], 1)
        features = float_features(graph, twin.state_dict(), x.reshape(2, *graph.input_shape))
    got = features[graph.nodes[-1].name].reshape(2, -1)
    if not bool(torch.isfinite(expected).all()):
        return  # calibration names the tensor that is not finite
    if not torch.allclose(got, expected, TOLERANCE, TOLERANCE * float(expected.abs().max())):
        raise UnsupportedError(
            f"model ({type(model).__name__}) does not compute in evaluation mode what its trace "
            "does: no layer may change a tensor in place that is read again, or drop values "
            "without training=self.training"
        )
