"""Refuse data that does not fit a plan, before the golden model computes with it.

Used by ``model/network.py``. Test: ``tests/test_network.py``.
"""

import torch
from torch import Tensor

from .errors import InputError
from .plan import Plan

__all__ = ["check_integers", "check_samples", "check_target"]


def check_integers(name: str, values: Tensor, low: int, high: int) -> None:
    """Raise InputError unless ``values`` are int64 from ``low`` to ``high``; ``name`` is theirs."""
    if values.dtype != torch.int64:
        raise InputError(f"{name} must be int64, not {values.dtype}; quantise it first")
    least, most = torch.aminmax(values)
    if least < low or most > high:
        raise InputError(f"{name} must lie in {low} to {high}, not {int(least)} to {int(most)}")


def check_samples(plan: Plan, x: Tensor) -> None:
    """Raise InputError unless ``x`` is one or more samples of the plan's input, int64."""
    shape = list(plan.input_shape)
    if x.dim() != 4 or list(x.shape[1:]) != shape or not len(x):
        wanted = ", ".join(map(str, ["samples", *shape]))
        raise InputError(f"x must have shape [{wanted}], not {list(x.shape)}")
    fmt = plan.layers[0].i_feature
    check_integers("x", x, fmt.min, fmt.max)


def check_target(plan: Plan, target: Tensor, samples: int) -> None:
    """Raise InputError unless ``target`` is what the plan's loss wants for ``samples`` samples."""
    loss = plan.loss
    shape = [samples] if loss.labels else [samples, loss.outputs]
    if list(target.shape) != shape:
        raise InputError(f"target must have shape {shape}, not {list(target.shape)}")
    check_integers("target", target, *loss.target_range)
