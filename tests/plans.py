"""Small plans without torch: layer specifications in, a consistent ``Plan`` out.

``chain((1, 8, 8), conv("c", 4, kernel=3, padding=1), relu("r"), linear("l", 10))`` works out
shapes, formats that layers share, and which layers pass an error on. ``graph`` does so where specs
name their sources::

    graph(
        (4, 8, 8),
        fork("f"),
        conv("c", 4, kernel=3, padding=1),
        add("a").on("c", "f"),
        linear("l", 10),
    )
"""

from dataclasses import dataclass, field, replace
from typing import Any

from gradweave.model.formats import Format, Rounding
from gradweave.model.geometry import output_size
from gradweave.model.kinds import KINDS
from gradweave.model.plan import INPUT, LayerPlan, LossPlan, ParameterPlan, Plan
from gradweave.model.schedule import size_buffers

__all__ = [
    "ERROR",
    "FEATURE",
    "PARAMETER",
    "Spec",
    "add",
    "affine",
    "avgpool",
    "chain",
    "clip",
    "concat",
    "conv",
    "dropout",
    "fork",
    "graph",
    "leaky_relu",
    "linear",
    "maxpool",
    "relu",
    "scale",
    "softmax",
    "table",
]

FEATURE = Format(16, 10)
ERROR = Format(16, 13)
PARAMETER = ParameterPlan(working=Format(16, 14), master=Format(32, 28), gradient=Format(32, 20))

Pair = tuple[int, int]
Shape = tuple[int, int, int]


@dataclass(frozen=True)
class Spec:
    """One layer; ``feature`` and ``error`` are what FP and EB produce, where its kind does not keep
    the format. ``size`` is the map that goes out, where floor mode does not tell. Without
    ``sources`` it reads the layer before.
    """

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
    size: Pair | None = None
    sources: tuple[str, ...] = ()

    def on(self, *sources: str) -> "Spec":
        """The layer with the features of ``sources``; ``"input"`` is the sample."""
        return replace(self, sources=sources)


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
    size: Pair | None = None,
    **rest: Any,
) -> Spec:
    """A convolution; ``rest`` goes to ``LayerPlan`` (a, b, groups, dilation as a pair,
    update_lanes, delay, back_delay, buffers).
    """
    pairs = [_pair(kernel), _pair(stride), _pair(padding)]
    return Spec(name, "conv2d", outputs, *pairs, feature, error, weight, bias, rest, size)


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


def scale(
    name: str,
    *,
    weight: ParameterPlan = PARAMETER,
    bias: ParameterPlan | None = PARAMETER,
    feature: Format = FEATURE,
    error: Format = ERROR,
    **rest: Any,
) -> Spec:
    """A trained factor and offset per channel."""
    return Spec(name, "scale", feature=feature, error=error, weight=weight, bias=bias, rest=rest)


def relu(name: str, lanes: int = 1) -> Spec:
    return Spec(name, "relu", rest={"lanes": lanes})


def clip(name: str, lower: int, upper: int, lanes: int = 1) -> Spec:
    """Bounds are integers in the feature's format."""
    return Spec(name, "clip", rest={"lower": lower, "upper": upper, "lanes": lanes})


def leaky_relu(name: str, slope: int, lanes: int = 1) -> Spec:
    """``slope`` is times 2**-16."""
    return Spec(name, "leaky_relu", rest={"slope": slope, "lanes": lanes})


def table(
    name: str, kind: str, *, feature: Format = FEATURE, error: Format = ERROR, lanes: int = 1
) -> Spec:
    """``kind`` is one of ``TABLES`` in ``model/kinds.py``."""
    return Spec(name, kind, feature=feature, error=error, rest={"lanes": lanes})


def softmax(name: str, *, feature: Format = FEATURE, error: Format = ERROR, lanes: int = 1) -> Spec:
    return Spec(name, "softmax", feature=feature, error=error, rest={"lanes": lanes})


def dropout(name: str, drop: int, number: int = 0, lanes: int = 1, seed: int = 0) -> Spec:
    """``drop`` is the share of dropped values times 2**16."""
    rest = {"drop": drop, "number": number, "lanes": lanes, "seed": seed}
    return Spec(name, "dropout", rest=rest)


def affine(
    name: str,
    factors: tuple[int, ...],
    offsets: tuple[int, ...],
    factor_frac: int,
    *,
    feature: Format = FEATURE,
    error: Format = ERROR,
    lanes: int = 1,
) -> Spec:
    """A fixed factor and offset per channel, as ``LayerPlan`` states them."""
    rest = {"factors": factors, "offsets": offsets, "factor_frac": factor_frac, "lanes": lanes}
    return Spec(name, "affine", feature=feature, error=error, rest=rest)


def maxpool(
    name: str,
    kernel: int | Pair,
    *,
    stride: int | Pair | None = None,
    padding: int | Pair = 0,
    size: Pair | None = None,
    lanes: int = 1,
    **rest: Any,
) -> Spec:
    """Max-pooling; like torch's, it strides by its kernel unless told otherwise."""
    step = _pair(kernel if stride is None else stride)
    pairs = (_pair(kernel), step, _pair(padding))
    return Spec(name, "maxpool2d", 0, *pairs, rest={"lanes": lanes, **rest}, size=size)


def avgpool(
    name: str,
    kernel: int | Pair = 1,
    *,
    stride: int | Pair | None = None,
    padding: int | Pair = 0,
    size: Pair | None = None,
    adaptive: bool = False,
    error: Format = ERROR,
    lanes: int = 1,
    **rest: Any,
) -> Spec:
    """Average pooling; ``adaptive`` takes ``size`` alone."""
    step = _pair(kernel if stride is None else stride)
    pairs = (_pair(kernel), step, _pair(padding))
    rest = {"lanes": lanes, "adaptive": adaptive, **rest}
    return Spec(name, "avgpool2d", 0, *pairs, error=error, rest=rest, size=size)


def add(name: str, *, feature: Format = FEATURE, lanes: int = 1) -> Spec:
    return Spec(name, "add", feature=feature, rest={"lanes": lanes})


def concat(name: str, lanes: int = 1) -> Spec:
    return Spec(name, "concat", rest={"lanes": lanes})


def fork(name: str, *, error: Format = ERROR, lanes: int = 1) -> Spec:
    """As many outputs as other layers name it as their source."""
    return Spec(name, "fork", error=error, rest={"lanes": lanes})


def chain(input_shape: Shape, *specs: Spec, **options: Any) -> Plan:
    """Return the plan of ``specs`` one after another; options as ``graph``."""
    return graph(input_shape, *(replace(spec, sources=()) for spec in specs), **options)


def graph(
    input_shape: Shape,
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
    """Return the plan of ``specs``; ``sized`` adds the buffer depths of ``model/schedule.py``.

    A fork's consumers must give their errors one format, and so must sources their features.
    """
    layers: dict[str, LayerPlan] = {}
    taken = {INPUT: (input_shape, input_feature, False)}
    before = INPUT
    for spec in specs:
        sources = [taken[source] for source in spec.sources or (before,)]
        layer = layers[spec.name] = _layer(spec, sources)
        passes = layer.trainable or layer.backward
        taken[spec.name] = (layer.o_shape, layer.o_feature, passes)
        before = spec.name
    last = layers[before]
    end = LossPlan(loss, last.o_shape[0], last.o_feature, loss_error)
    unread = Plan(name, tuple(layers.values()), end, batch_max, rounding, probes=probes)
    plan = replace(unread, layers=tuple(_with_errors(unread, specs)))
    return size_buffers(plan) if sized else plan


def _with_errors(plan: Plan, specs: tuple[Spec, ...]) -> list[LayerPlan]:
    """The layers with the formats of their errors, from the loss up, and forks with their fan."""
    names = [spec.name for spec in specs]
    sources = [spec.sources or (names[n - 1] if n else INPUT,) for n, spec in enumerate(specs)]
    errors: dict[str, list[Format]] = {name: [] for name in names}
    errors[names[-1]].append(plan.loss.error)
    layers = []
    for spec, layer, read in reversed(list(zip(specs, plan.layers, sources, strict=True))):
        (error,) = set(errors[spec.name])
        below = error if KINDS[spec.kind].keeps_error else spec.error
        for source in read:
            if source != INPUT:
                errors[source].append(below)
        fan = len(errors[spec.name])
        layers.append(replace(layer, o_error=error, i_error=below, fan=fan))
    return layers[::-1]


def _layer(spec: Spec, sources: list[tuple[Shape, Format, bool]]) -> LayerPlan:
    """The layer behind ``sources``: shape, format and whether an error is taken of each."""
    kind = KINDS[spec.kind]
    shapes = [shape for shape, _, _ in sources]
    (feature,) = {feature for _, feature, _ in sources}
    takes = tuple(error for _, _, error in sources)
    rest = dict(spec.rest)
    shape = shapes[0]
    if spec.kind == "concat":
        parts = tuple(channels for channels, _, _ in shapes)
        rest["parts"], shape = parts, (sum(parts), *shape[1:])
    if kind.pattern == "join":
        rest["errors"] = takes
    if spec.kind == "scale":
        rest["groups"] = shape[0]
    kernel = (shape[1], shape[2]) if spec.kind == "linear" else spec.kernel
    size = shape[1:]
    if kind.pattern in ("sum", "window"):
        dilation = rest.get("dilation", (1, 1))
        walks = zip(size, kernel, spec.stride, spec.padding, dilation, strict=True)
        size = spec.size or tuple(output_size(*axis) for axis in walks)
    return LayerPlan(
        name=spec.name,
        kind=spec.kind,
        i_shape=shape,
        o_shape=(spec.outputs or shape[0], *size),
        i_feature=feature,
        o_feature=feature if kind.keeps_feature else spec.feature,
        i_error=spec.error,
        o_error=spec.error,
        backward=any(takes),
        kernel=kernel,
        stride=spec.stride,
        padding=spec.padding,
        sources=spec.sources,
        weight=spec.weight,
        bias=spec.bias,
        **rest,
    )


def _pair(value: int | Pair) -> Pair:
    return (value, value) if isinstance(value, int) else value
