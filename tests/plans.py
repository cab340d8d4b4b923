"""Small plans without torch: layer specifications in, a consistent ``Plan`` out.

``chain((1, 8, 8), conv("c", 4, kernel=3, padding=1), relu("r"), linear("l", 10))`` works out
shapes, formats that layers share, and which layers pass an error on.
"""

from dataclasses import dataclass, field, replace
from typing import Any

from gradweave.model.formats import Format, Rounding
from gradweave.model.geometry import output_size
from gradweave.model.plan import LayerPlan, LossPlan, ParameterPlan, Plan
from gradweave.model.schedule import size_buffers

__all__ = [
    "ERROR",
    "FEATURE",
    "PARAMETER",
    "Spec",
    "chain",
    "conv",
    "linear",
    "maxpool",
    "relu",
]

FEATURE = Format(16, 10)
ERROR = Format(16, 13)
PARAMETER = ParameterPlan(working=Format(16, 14), master=Format(32, 28), gradient=Format(32, 20))

Pair = tuple[int, int]


@dataclass(frozen=True)
class Spec:
    """One layer to be chained; ``feature`` and ``error`` are what FP and EB produce."""

    name: str
    kind: str
    outputs: int = 0
    kernel: Pair = (1, 1)
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    feature: Format = FEATURE
    error: Format = ERROR
    weight: ParameterPlan | None = None
    bias: ParameterPlan | None = None
    rest: dict[str, Any] = field(default_factory=dict)


def conv(
    name: str,
    outputs: int,
    *,
    kernel: int | Pair,
    stride: int | Pair = 1,
    padding: int | Pair = 0,
    weight: ParameterPlan = PARAMETER,
    bias: ParameterPlan | None = PARAMETER,
    feature: Format = FEATURE,
    error: Format = ERROR,
    **rest: Any,
) -> Spec:
    """A convolution; ``rest`` goes to ``LayerPlan`` (a, b, update_lanes, delay, back_delay,
    buffers).
    """
    pairs = [_pair(kernel), _pair(stride), _pair(padding)]
    return Spec(name, "conv2d", outputs, *pairs, feature, error, weight, bias, rest)


def linear(
    name: str,
    outputs: int,
    *,
    weight: ParameterPlan = PARAMETER,
    bias: ParameterPlan | None = PARAMETER,
    feature: Format = FEATURE,
    error: Format = ERROR,
    **rest: Any,
) -> Spec:
    """A linear layer on the whole map that reaches it."""
    return Spec(
        name, "linear", outputs, feature=feature, error=error, weight=weight, bias=bias, rest=rest
    )


def relu(name: str, lanes: int = 1) -> Spec:
    return Spec(name, "relu", rest={"lanes": lanes})


def maxpool(
    name: str,
    kernel: int | Pair,
    *,
    stride: int | Pair | None = None,
    padding: int | Pair = 0,
    lanes: int = 1,
) -> Spec:
    """Max-pooling; like torch's, it strides by its kernel unless told otherwise."""
    step = _pair(kernel if stride is None else stride)
    return Spec(name, "maxpool2d", 0, _pair(kernel), step, _pair(padding), rest={"lanes": lanes})


def chain(
    input_shape: tuple[int, int, int],
    *specs: Spec,
    loss: str = "cross_entropy",
    batch_max: int = 8,
    input_feature: Format = FEATURE,
    loss_error: Format = ERROR,
    rounding: Rounding = Rounding.HALF_EVEN,
    name: str = "test",
    probes: bool = False,
    sized: bool = False,
) -> Plan:
    """Return the plan of ``specs`` one after another; ``sized`` adds the buffer depths of
    ``model/schedule.py``.
    """
    layers = []
    shape, feature, backward = input_shape, input_feature, False
    for spec in specs:
        layer = _layer(spec, shape, feature, backward)
        layers.append(layer)
        shape, feature, backward = layer.o_shape, layer.o_feature, backward or layer.trainable
    error = loss_error
    for n in reversed(range(len(layers))):
        below = specs[n].error if layers[n].trainable else error
        layers[n] = replace(layers[n], o_error=error, i_error=below)
        error = below
    end = LossPlan(loss, shape[0], feature, loss_error)
    plan = Plan(name, tuple(layers), end, batch_max, rounding, probes=probes)
    return size_buffers(plan) if sized else plan


def _layer(spec: Spec, shape: tuple[int, int, int], feature: Format, backward: bool) -> LayerPlan:
    trainable = spec.kind in ("conv2d", "linear")
    kernel = (shape[1], shape[2]) if spec.kind == "linear" else spec.kernel
    outputs = spec.outputs if trainable else shape[0]
    size = shape[1:]
    if spec.kind != "relu":
        walks = zip(size, kernel, spec.stride, spec.padding, strict=True)
        size = tuple(output_size(*axis) for axis in walks)
    return LayerPlan(
        name=spec.name,
        kind=spec.kind,
        i_shape=shape,
        o_shape=(outputs, *size),
        i_feature=feature,
        o_feature=spec.feature if trainable else feature,
        i_error=spec.error,
        o_error=spec.error,
        backward=backward,
        kernel=kernel,
        stride=spec.stride,
        padding=spec.padding,
        weight=spec.weight,
        bias=spec.bias,
        **spec.rest,
    )


def _pair(value: int | Pair) -> Pair:
    return (value, value) if isinstance(value, int) else value
