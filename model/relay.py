"""Refuse plans of activations and fixed factors that would not mean what they say.

Leaf of the standard library. Used by golden and RTL of ``activation.py``, ``table.py``,
``affine.py``, ``dropout.py`` and ``softmax.py``. Test:
``tests/pipeline/test_golden_activation.py``, and those of the others.
"""

import math
from fractions import Fraction

from .activation_tables import value_table
from .errors import PlanError
from .formats import Rounding
from .kinds import KINDS, TABLES
from .layer_plan import LayerPlan

__all__ = [
    "KEEP_FRAC",
    "SHARE_BITS",
    "SLOPE_FRAC",
    "check_relay",
    "exact_width",
    "keep_factor",
    "softmax_widths",
]

SLOPE_FRAC = 16  # fraction bits of a leaky ReLU's slope
SHARE_BITS = 16  # fraction bits of a dropout's share, and random bits that it is compared with
KEEP_FRAC = 14  # fraction bits of the factor of what a dropout keeps
QUOTIENT_FRAC = 40  # of a softmax, at most: its dividends have 17 bits more
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
    elif layer.kind == "dropout":
        _check_dropout(layer)
    elif layer.kind == "softmax":
        _check_softmax(layer)
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


def keep_factor(drop: int, rounding: Rounding) -> int:
    """Return ``2**KEEP_FRAC / (1 - p)`` of the share ``p = drop * 2**-SHARE_BITS``, rounded: to
    even by ``STOCHASTIC``, as a constant is.
    """
    exact = Fraction(1 << (KEEP_FRAC + SHARE_BITS), (1 << SHARE_BITS) - drop)
    if rounding is Rounding.FLOOR:
        return math.floor(exact)
    return math.floor(exact + Fraction(1, 2)) if rounding is Rounding.HALF_UP else round(exact)


def softmax_widths(layer: LayerPlan) -> tuple[int, int]:
    """Bits of a ``softmax``'s sum of probabilities times errors, and of a probability times the
    difference of an error and that sum.

    Probabilities sum up to one and half a step a channel at most.
    """
    one = 1 << layer.o_feature.frac
    largest = min(one, layer.o_feature.max)
    total = min(one + layer.i_shape[0], largest * layer.i_shape[0])
    error = 1 << (layer.o_error.width - 1)
    product = largest * error * (one + total)
    return (error * total).bit_length() + 1, product.bit_length() + 1


def _check_softmax(layer: LayerPlan) -> None:
    frac = layer.o_feature.frac
    if not 0 <= frac <= QUOTIENT_FRAC:
        _refuse(layer, f"o_feature must have 0 to {QUOTIENT_FRAC} fraction bits, not {frac}")
    if layer.backward and softmax_widths(layer)[1] > EXACT_WIDTH:
        _refuse(
            layer,
            f"o_feature and o_error must give products of at most {EXACT_WIDTH} bits, "
            f"not {softmax_widths(layer)[1]}: give them fewer bits in formats",
        )


def _check_dropout(layer: LayerPlan) -> None:
    if not 0 < layer.drop < 1 << SHARE_BITS:
        _refuse(layer, f"drop must be 1 to {(1 << SHARE_BITS) - 1}, not {layer.drop}")
    for name, bits in (("number", 32), ("seed", 64)):
        value = getattr(layer, name)
        if not 0 <= value < 1 << bits:
            _refuse(layer, f"{name} must be 0 to 2**{bits} - 1, not {value}")
    if math.prod(layer.i_shape) > 1 << 32:
        _refuse(layer, f"sample must have at most 2**32 values, not {math.prod(layer.i_shape)}")
    widest = max(layer.i_feature.width, layer.o_error.width if layer.backward else 0)
    width = widest + keep_factor(layer.drop, Rounding.HALF_UP).bit_length()
    if width > EXACT_WIDTH:
        _refuse(layer, f"drop must give products of at most {EXACT_WIDTH} bits, not {width}")


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
