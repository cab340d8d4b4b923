"""Refuse the plan of a layer that cannot be: its folding, and the ranges of its channels.

Leaf of the standard library. Part of ``model/layer_plan.py``. Test: ``tests/test_plan.py``.
"""

from typing import TYPE_CHECKING

from .errors import PlanError
from .kinds import KINDS

if TYPE_CHECKING:
    from .layer_plan import LayerPlan

__all__ = ["check_layer"]

COARSER_MAX = 31  # bits between the fractions of two channels of a weight tensor


def check_layer(layer: "LayerPlan") -> None:
    """Raise PlanError with the layer's name and the rule."""
    if layer.kind not in KINDS:
        raise PlanError(f"{layer.name}: kind must be one of {list(KINDS)}, not {layer.kind!r}")
    if layer.unfold and not layer.unfoldable:
        raise PlanError(
            f"{layer.name}: unfold must be a conv2d's that passes no error down, of one group "
            "and without dilation"
        )
    if layer.trainable:
        _check_folding(layer)
    elif layer.i_shape[0] % layer.lanes:
        raise PlanError(
            f"{layer.name}: lanes must divide {layer.i_shape[0]} channels, not {layer.lanes}"
        )


def _check_folding(layer: "LayerPlan") -> None:
    if layer.i_shape[0] % layer.groups or layer.o_shape[0] % layer.groups:
        raise PlanError(
            f"{layer.name}: groups must divide channels ({layer.o_shape[0]}, "
            f"{layer.i_shape[0]}), not {layer.groups}"
        )
    outputs, inputs = layer.hardware.group_shape
    if not (1 <= layer.a <= outputs and 1 <= layer.b <= inputs):
        whose = "channels" if layer.groups == 1 else "a group's channels"
        raise PlanError(
            f"{layer.name}: folding ({layer.a}, {layer.b}) must be from (1, 1) to {whose} "
            f"({outputs}, {inputs})"
        )
    if layer.weight and layer.weight.coarser:
        _check_coarser(layer, layer.weight.coarser)
    whole = (layer.a, layer.b) == (outputs, inputs)
    if layer.groups % layer.group_lanes or (layer.group_lanes > 1 and not whole):
        raise PlanError(
            f"{layer.name}: group_lanes must divide {layer.groups} groups, and be 1 unless "
            f"folding ({layer.a}, {layer.b}) is a whole group ({outputs}, {inputs}), "
            f"not {layer.group_lanes}"
        )
    if not layer.fits_update(layer.update_lanes):
        outer = "a" if layer.group_lanes == 1 else "a * group_lanes"
        raise PlanError(
            f"{layer.name}: update_lanes must divide {outer}, or be {outer} times a divisor "
            f"of b, not {layer.update_lanes}"
        )


def _check_coarser(layer: "LayerPlan", coarser: tuple[int, ...]) -> None:
    if len(coarser) != layer.o_shape[0] or not all(0 <= n <= COARSER_MAX for n in coarser):
        raise PlanError(
            f"{layer.name}: coarser must be {layer.o_shape[0]} numbers of bits from 0 to "
            f"{COARSER_MAX}, one an output channel, not {list(coarser)}"
        )
