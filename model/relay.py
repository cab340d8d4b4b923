"""Refuse plans of activations and fixed factors that would not mean what they say.

Leaf of the standard library. Used by golden and RTL of ``activation.py``, ``table.py`` and
``affine.py``. Test: ``tests/pipeline/test_golden_activation.py``, and those of the other two.
"""

from .activation_tables import value_table
from .errors import PlanError
from .kinds import KINDS, TABLES
from .layer_plan import LayerPlan

__all__ = ["SLOPE_FRAC", "check_relay", "exact_width"]

SLOPE_FRAC = 16  # fraction bits of a leaky ReLU's slope
EXACT_WIDTH = 63


def check_relay(layer: LayerPlan) -> None:
    """Raise PlanError, with the layer's name and the rule, unless ``layer`` can be computed."""
    kind = KINDS[layer.kind]
    if kind.keeps_feature and layer.o_feature != layer.i_feature:
        _refuse(layer, f"o_feature must be i_feature, {layer.i_feature}, not {layer.o_feature}")
    if kind.keeps_error and layer.backward and layer.o_error != layer.i_error:
        _refuse(layer, f"i_error must be o_error, {layer.o_error}, not {layer.i_error}")
    if layer.kind == "clip":
        _check_clip(layer)
    elif layer.kind == "leaky_relu" and not 0 <= layer.slope <= 1 << SLOPE_FRAC:
        _refuse(layer, f"slope must be 0 to {1 << SLOPE_FRAC} (1.0), not {layer.slope}")
    elif layer.kind == "affine":
        _check_affine(layer)
    elif layer.kind in TABLES:
        try:
            value_table(layer.kind, layer.i_feature, layer.o_feature.frac)
        except PlanError as error:
            raise PlanError(f"{layer.name}: {error}") from None


def exact_width(layer: LayerPlan) -> int:
    """Bits of the widest result of an ``affine`` layer before it is rounded, both ways."""
    largest = max(abs(factor) for factor in layer.factors)
    forward = (largest << (layer.i_feature.width - 1)) + max(abs(n) for n in layer.offsets)
    backward = largest << (layer.o_error.width - 1) if layer.backward else 0
    return max(forward, backward).bit_length() + 1


def _check_clip(layer: LayerPlan) -> None:
    fmt = layer.i_feature
    if layer.lower >= layer.upper:
        _refuse(
            layer,
            f"lower must be below upper in steps of {fmt}, not {layer.lower} and {layer.upper}",
        )
    if layer.lower > fmt.max or layer.upper < fmt.min:
        _refuse(
            layer,
            f"lower and upper must leave some of {fmt.min} to {fmt.max}, the integers of {fmt}, "
            f"not {layer.lower} and {layer.upper}",
        )


def _check_affine(layer: LayerPlan) -> None:
    channels = layer.i_shape[0]
    for name, values in (("factors", layer.factors), ("offsets", layer.offsets)):
        if len(values) != channels:
            _refuse(layer, f"{name} must be one a channel, {channels}, not {len(values)}")
    if exact_width(layer) > EXACT_WIDTH:
        _refuse(
            layer,
            f"factors and offsets must give sums of at most {EXACT_WIDTH} bits, "
            f"not {exact_width(layer)}",
        )


def _refuse(layer: LayerPlan, rule: str) -> None:
    raise PlanError(f"{layer.name}: {rule}")
