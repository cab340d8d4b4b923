"""The plan of one layer from plain data.

Leaf of the standard library. Used by ``model/plan.py``. Test: ``tests/test_plan.py``.
"""

from typing import Any

from .formats import Format
from .layer_parts import Buffers, ParameterPlan
from .layer_plan import LayerPlan

__all__ = ["layer_from_dict"]


def _parameter(raw: dict[str, Any] | None) -> ParameterPlan | None:
    return (
        None
        if raw is None
        else ParameterPlan(
            coarser=tuple(raw["coarser"]),
            **{key: Format(**raw[key]) for key in ("working", "master", "gradient")},
        )
    )


def layer_from_dict(raw: dict[str, Any]) -> LayerPlan:
    """The layer that ``dataclasses.asdict`` turned into ``raw``, with lists for tuples."""
    values: dict[str, Any] = {}
    for key, value in raw.items():
        values[key] = tuple(value) if isinstance(value, list) else value
    for key in ("i_feature", "o_feature", "i_error", "o_error"):
        values[key] = Format(**raw[key])
    for key in ("weight", "bias"):
        values[key] = _parameter(raw[key])
    join_words = tuple(raw["buffers"]["join_words"])
    values["buffers"] = Buffers(**{**raw["buffers"], "join_words": join_words})
    return LayerPlan(**values)
