"""A traced graph in float64: every feature, error and gradient of one training step.

Tensors are named ``input``, ``<layer>.feature`` (its output), ``<layer>.error`` (the error of its
output; of a fork, of all its outputs), ``<layer>.weight`` and ``<layer>.bias`` (each with
``.gradient``). Errors are those of the loss summed, not averaged, over samples, as the hardware's.
A dropout lets everything pass.

Used by ``model/calibrate.py`` and ``model/trace.py``. Test: ``tests/test_graphs.py``,
``tests/test_calibrate.py``.
"""

from collections.abc import Callable, Iterator, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from .geometry import output_size
from .graph import Graph, Node
from .losses import summed_loss
from .plan import INPUT

__all__ = ["float_features", "float_tensors", "parameter_names"]

Parameters = Mapping[str, Tensor]


def parameter_names(graph: Graph) -> list[str]:
    """Return the key of every trained tensor in ``state_dict()``."""
    return [
        f"{node.name}.{kind}"
        for node in graph.trainable
        for kind in (("weight", "bias") if node.bias else ("weight",))
    ]


def float_features(graph: Graph, parameters: Parameters, x: Tensor) -> dict[str, Tensor]:
    """Return every layer's output [B, C, H, W] by its name, and ``input``, which is ``x``."""
    return _forward(graph, parameters, x)[0]


def float_tensors(
    graph: Graph, state: Parameters, x: Tensor, targets: Tensor, batch: int
) -> Iterator[dict[str, Tensor]]:
    """Yield every tensor of one float64 training step per mini-batch, by name; ``.gradient`` is the
    sum over samples.
    """
    for start in range(0, len(x), batch):
        leaves = {name: state[name].clone().requires_grad_() for name in parameter_names(graph)}
        features, copies = _forward(graph, leaves, x[start : start + batch])
        for feature in [*features.values(), *(c for group in copies.values() for c in group)]:
            if feature.requires_grad:
                feature.retain_grad()
        logits = features[graph.nodes[-1].name].flatten(1)
        t = targets[start : start + batch]
        summed_loss(graph.loss, graph.loss_options, logits, t).backward()
        tensors = {INPUT: features.pop(INPUT)}
        for name, feature in features.items():
            tensors[f"{name}.feature"] = feature.detach()
            if name in graph.error_takers:
                errors = [_grad(c).flatten() for c in copies.get(name, [feature])]
                tensors[f"{name}.error"] = torch.cat(errors)
        for name, leaf in leaves.items():
            tensors[name] = leaf.detach()
            tensors[f"{name}.gradient"] = _grad(leaf)
        yield tensors


def _forward(
    graph: Graph, parameters: Parameters, x: Tensor
) -> tuple[dict[str, Tensor], dict[str, list[Tensor]]]:
    """Return every layer's output, and those of each fork one by one."""
    features = {INPUT: x}
    copies: dict[str, list[Tensor]] = {}
    taken: dict[str, int] = {}
    for node in graph.nodes:
        values = []
        for source in graph.sources[node.name]:
            place = taken[source] = taken.get(source, -1) + 1
            values.append(copies[source][place] if source in copies else features[source])
        features[node.name] = _layer(node, values, parameters)
        if node.kind == "fork":
            copies[node.name] = [features[node.name].clone() for _ in range(node.fan)]
    return features, copies


def _layer(node: Node, values: list[Tensor], parameters: Parameters) -> Tensor:
    """Return the output of one layer."""
    if node.kind == "add":
        return torch.stack(values).sum(0)
    if node.kind == "concat":
        return torch.cat(values, 1)
    (value,) = values
    if node.trainable:
        return _conv(node, value, parameters)
    if node.kind == "affine":
        factors, offsets = (
            value.new_tensor(v)[:, None, None] for v in (node.factors, node.offsets)
        )
        return value * factors + offsets
    if node.kind == "clip":
        return F.hardtanh(value, node.lower, node.upper)
    if node.kind == "leaky_relu":
        return F.leaky_relu(value, node.slope)
    if node.kind == "maxpool2d":
        span = (node.kernel, node.stride, node.padding)
        return F.max_pool2d(value, *span, node.dilation, ceil_mode=_reaches_beyond(node))
    if node.kind == "avgpool2d":
        if node.adaptive:
            return F.adaptive_avg_pool2d(value, node.o_shape[1:])
        span = (node.kernel, node.stride, node.padding)
        return F.avg_pool2d(value, *span, _reaches_beyond(node), node.count_padding)
    return _MAPS[node.kind](value)


_MAPS: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda value: torch.softmax(value, 1),
    "relu": F.relu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "gelu": F.gelu,
    "silu": F.silu,
    "dropout": torch.clone,
    "fork": torch.clone,
}


def _conv(node: Node, value: Tensor, parameters: Parameters) -> Tensor:
    weight = parameters[f"{node.name}.weight"].reshape(node.weight_shape)
    padding: list[int] = []
    for n in (1, 0):
        reach = (node.o_shape[n + 1] - 1) * node.stride[n] + node.dilation[n] * (node.kernel[n] - 1)
        padding += [node.padding[n], reach + 1 - node.i_shape[n + 1] - node.padding[n]]
    bias = parameters[f"{node.name}.bias"] if node.bias else None
    padded = F.pad(value, padding)
    return F.conv2d(padded, weight, bias, node.stride, 0, node.dilation, node.groups)


def _reaches_beyond(node: Node) -> bool:
    """Whether a pool's last window begins where only ``ceil_mode`` has one."""
    spans = zip(
        node.i_shape[1:], node.kernel, node.stride, node.padding, node.dilation, strict=True
    )
    return tuple(output_size(*span) for span in spans) != node.o_shape[1:]


def _grad(tensor: Tensor) -> Tensor:
    return torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
