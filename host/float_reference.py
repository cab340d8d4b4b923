"""The same network trained in float32 by torch, with the same schedule: what accuracy is compared
with.

Test: ``tests/test_demo.py``.
"""

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from .data import Batches, Split

__all__ = ["float_accuracy", "train_float"]


def train_float(
    model: nn.Module,
    data: Split,
    *,
    batch: int,
    epochs: int,
    lr: Callable[[int], float],
    momentum: float,
    seed: int,
) -> tuple[nn.Module, list[dict[str, Any]]]:
    """Return a trained copy of ``model``, and a history like ``Trainer.history``.

    Mini-batches come in the order of ``Batches(seed=seed)``; the loss is cross-entropy.
    """
    net = copy.deepcopy(model)
    optimiser = torch.optim.SGD(net.parameters(), lr=lr(0), momentum=momentum)
    loader = Batches(data.train_x, data.train_y, batch, seed=seed)
    history = []
    for epoch in range(epochs):
        loader.set_epoch(epoch)
        optimiser.param_groups[0]["lr"] = lr(epoch)
        total, right, samples = 0.0, 0, 0
        for x, y in loader:
            logits = net(x)
            loss = F.cross_entropy(logits, y)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            total += float(loss.detach()) * len(x)
            right += int((logits.argmax(1) == y).sum())
            samples += len(x)
        row = {"epoch": epoch + 1, "loss": total / samples, "accuracy": right / samples}
        row["validation_accuracy"] = float_accuracy(net, data)
        history.append(row)
    return net, history


def float_accuracy(model: nn.Module, data: Split) -> float:
    """Return the share of test samples that ``model`` classifies rightly."""
    with torch.no_grad():
        return float((model(data.test_x).argmax(1) == data.test_y).double().mean())
