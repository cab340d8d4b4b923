"""Layers of a plan from a graph and its formats, before they are folded.

Used by ``host/planner.py``. Test: ``tests/test_layers.py``.
"""

import math

from ..model.errors import PlanError
from ..model.formats import Format
from ..model.graph import Formats, Graph, Node
from ..model.plan import LayerPlan

__all__ = ["layer_plans"]

SLOPE_FRAC = 16
FACTOR_MAX = (1 << 17) - 1  # a factor of an affine layer has 18 bits with its sign
FACTOR_FRAC_MAX = 40


def layer_plans(graph: Graph, formats: Formats, seed: int = 0) -> tuple[LayerPlan, ...]:
    """Return every layer with folding 1, its formats, and its constants as integers; ``seed`` is
    that of the random bits.
    """
    return tuple(_layer(graph, formats, node, seed) for node in graph.nodes)


def _layer(graph: Graph, formats: Formats, node: Node, seed: int) -> LayerPlan:
    own = formats.layers[node.name]
    errors = tuple(source in graph.error_takers for source in graph.sources[node.name])
    factors, offsets, factor_frac = _affine(node, own.i_feature)
    return LayerPlan(
        name=node.name,
        kind=node.kind,
        i_shape=node.i_shape,
        o_shape=node.o_shape,
        i_feature=own.i_feature,
        o_feature=own.o_feature,
        i_error=own.i_error,
        o_error=own.o_error,
        backward=any(errors),
        kernel=node.kernel,
        stride=node.stride,
        padding=node.padding,
        dilation=node.dilation,
        groups=node.groups,
        sources=node.sources,
        errors=errors if node.pattern == "join" and not all(errors) else (),
        parts=node.parts,
        fan=node.fan,
        adaptive=node.adaptive,
        count_padding=node.count_padding,
        lower=_bound(node.lower, own.o_feature),
        upper=_bound(node.upper, own.o_feature),
        slope=round(node.slope * 2**SLOPE_FRAC),
        drop=round(node.drop * 2**SLOPE_FRAC),
        number=node.number,
        seed=seed if node.kind == "dropout" else 0,
        factors=factors,
        offsets=offsets,
        factor_frac=factor_frac,
        weight=own.weight,
        bias=own.bias,
    )


def _bound(value: float, fmt: Format) -> int:
    """The integer of a clip's bound; what lies beyond the format becomes the format's end."""
    if math.isinf(value):
        return fmt.max if value > 0 else fmt.min
    return min(max(round(value * 2.0**fmt.frac), fmt.min), fmt.max)


def _affine(node: Node, fmt: Format) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Return the factors, offsets and fraction bits of an affine layer's sums."""
    if not node.factors:
        return (), (), 0
    largest = max(abs(factor) for factor in node.factors)
    frac = min(FACTOR_FRAC_MAX, math.floor(math.log2(FACTOR_MAX / largest)))
    if round(largest * 2**frac) > FACTOR_MAX:
        frac -= 1
    if frac < 0:
        raise PlanError(f"{node.name}: factors must be at most {FACTOR_MAX}, not {largest}")
    factors = tuple(round(factor * 2**frac) for factor in node.factors)
    offsets = tuple(round(offset * 2.0 ** (fmt.frac + frac)) for offset in node.offsets)
    return factors, offsets, frac
