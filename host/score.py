"""What a trainer tells of logits and their targets: torch's mean loss, and the accuracy of labels.

Used by ``host/trainer.py``. Test: ``tests/test_loss_training.py``.
"""

import warnings
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..model.errors import GradweaveWarning, InputError
from ..model.plan import LossPlan

__all__ = ["check_counted", "score", "warn_of_ignored"]


def score(loss: LossPlan, logits: Tensor, targets: Tensor) -> dict[str, Any]:
    """Return ``loss``, torch's mean over all samples, ``accuracy`` where targets are labels, and
    ``samples``.

    ``logits`` [N, outputs] are integers of ``loss.feature``, ``targets`` those that devices take.
    """
    z = logits.float() * loss.feature.step
    result: dict[str, Any] = {"loss": float(_mean_loss(loss, z, targets))}
    if loss.labels:
        counted = targets != loss.outputs
        hits = int((logits.argmax(1) == targets)[counted].sum())
        result["accuracy"] = hits / int(counted.sum())
    return {**result, "samples": len(z)}


def _mean_loss(loss: LossPlan, z: Tensor, targets: Tensor) -> Tensor:
    if loss.labels:
        weights = torch.tensor(loss.class_weights) * 2.0**-loss.weight_frac
        weight = weights if loss.class_weights else None
        return F.cross_entropy(z, targets, weight, ignore_index=loss.outputs)
    t = targets.float() * loss.feature.step
    if loss.kind == "huber":
        delta = loss.delta * loss.feature.step
        if loss.smooth_l1:
            return F.smooth_l1_loss(z, t, beta=delta)
        return F.huber_loss(z, t, delta=delta)
    if loss.kind == "binary_cross_entropy":
        return F.binary_cross_entropy_with_logits(z, t)
    return F.mse_loss(z, t)


def check_counted(loss: LossPlan, targets: Tensor) -> None:
    """Raise InputError when every label is ignored or of a class whose weight is 0: no mean of
    their loss exists.
    """
    if loss.weighted and not bool(torch.tensor(loss.label_weights)[targets].any()):
        raise InputError(
            "loader must give a label that is not ignored and whose class weight is above 0, and "
            f"has none in {len(targets)} samples"
        )


def warn_of_ignored(loss: LossPlan, targets: Tensor, warned: set[str]) -> None:
    """Warn, once per ``warned``, of ignored labels under ``reduction='mean'``."""
    if loss.reduction == "sum" or loss.ignore_index is None or "ignore_index" in warned:
        return
    ignored = int((targets == loss.outputs).sum())
    if ignored:
        warned.add("ignore_index")
        warnings.warn(
            f"{ignored} of {len(targets)} labels are ignored: reduction='mean' divides by all "
            "samples of a mini-batch, where torch divides by those that are not ignored; use "
            "reduction='sum' for torch's very gradient",
            GradweaveWarning,
            stacklevel=5,
        )
