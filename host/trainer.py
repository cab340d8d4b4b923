"""Training on a device, as PyTorch users know it: ``fit``, ``evaluate``, ``predict``,
``state_dict``.

Test: ``tests/test_trainer.py``.
"""

import math
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..model.errors import GradweaveWarning, InputError
from ..model.hyper import Hyper
from .checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from .device import Device
from .progress import Bar
from .quantize import float_logits, float_parameters, quantize_samples, quantize_targets
from .saturation import saturated_shares
from .score import check_counted, score, warn_of_ignored

__all__ = ["Trainer"]

Loader = Iterable[tuple[Tensor, Tensor]]
Rate = float | Callable[[int], float]


class Trainer:
    """Trains the design of a device by SGD.

    Parameters
    ----------
    device : Device
        From ``design.simulate()`` or ``design.golden()``; it keeps its weights.
    lr : float > 0, or a function from the epoch (0, 1, ...) to one
    momentum : float, 0 <= momentum < 1
    nesterov : bool
    weight_decay : float >= 0
    schedule : function from the epoch to a factor of ``lr``, optional

    All of them mean what they mean in ``torch.optim.SGD`` with the design's loss and reduction, see
    ``model/hyper.py``.

    Raises
    ------
    InputError
        For a value out of range.
    """

    def __init__(
        self,
        device: Device,
        *,
        lr: Rate,
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        schedule: Callable[[int], float] | None = None,
    ) -> None:
        if not callable(lr) and not (math.isfinite(lr) and lr > 0):
            raise InputError(f"lr must be finite and above 0, not {lr}")
        if not 0 <= momentum < 1:
            raise InputError(f"momentum must be at least 0 and below 1, not {momentum}")
        if not (math.isfinite(weight_decay) and weight_decay >= 0):
            raise InputError(f"weight_decay must be finite and at least 0, not {weight_decay}")
        if nesterov and not momentum:
            raise InputError("momentum must be above 0 for Nesterov's step, not 0")
        self.device = device
        self.plan = device.plan
        self.lr = lr
        self.momentum = momentum
        self.nesterov = nesterov
        self.weight_decay = weight_decay
        self.schedule = schedule
        self.counters: dict[str, int] = {}
        self._warned: set[str] = set()
        self._state = Checkpoint(*device.read_parameters())

    @property
    def epoch(self) -> int:
        """Epochs done."""
        return self._state.epoch

    @property
    def history(self) -> list[dict[str, Any]]:
        """One row per epoch: epoch, lr, loss, accuracy, samples, saturated values, and those of the
        validation.
        """
        return self._state.history

    def fit(
        self,
        loader: Loader,
        epochs: int,
        *,
        checkpoint: str | Path | None = None,
        validation: Loader | None = None,
        progress: bool = True,
        resume: bool = False,
    ) -> list[dict[str, Any]]:
        """Train and return the history. Each epoch is one segment, so that the pipeline never runs
        empty inside it.

        Parameters
        ----------
        loader : mini-batches (x, y) of one size; ``set_epoch`` is called where it exists
        epochs : how many more; with ``resume``, how many in all
        checkpoint : file that is written after every epoch
        validation : mini-batches of any size, evaluated after every epoch
        progress : draw a bar when stderr is a terminal
        resume : go on from ``checkpoint`` when that file exists, else from the last epoch that this
            trainer finished. The weights become those of an uninterrupted run, bit for bit: random
            states (torch's own and that of a ``DataLoader``'s generator) are restored too.

        Raises
        ------
        InputError
            For data that cannot be used; no weight has changed by the mini-batches of that epoch.
        CheckpointError
            For a checkpoint that cannot be read or is another design's.
        KeyboardInterrupt
            On Ctrl-C: the device holds the weights of the last finished epoch again, and a later
            ``fit`` may go on.

        Warns
        -----
        GradweaveWarning
            When more than 1 % of a tensor's values saturated in an epoch, once per tensor.
        """
        if epochs < 1:
            raise InputError(f"epochs must be at least 1, not {epochs}")
        if resume:
            if checkpoint is not None and Path(checkpoint).exists():
                self.load(checkpoint)
            _restore_random(loader, self._state.random)
        last = epochs if resume else self.epoch + epochs
        try:
            with Bar(progress) as bar:
                while self.epoch < last:
                    self._state = self._train_epoch(loader, validation, bar)
                    if checkpoint is not None:
                        self.save(checkpoint)
        except KeyboardInterrupt:
            self.device.reset()
            self.device.write_parameters(self._state.masters, self._state.momenta)
            raise
        return self.history

    def _train_epoch(self, loader: Loader, validation: Loader | None, bar: Bar) -> Checkpoint:
        """Run one epoch and return the state behind it."""
        epoch = self.epoch
        if hasattr(loader, "set_epoch"):
            loader.set_epoch(epoch)
        samples, targets, batch = self._gather(loader, whole=True)
        warn_of_ignored(self.plan.loss, targets, self._warned)
        lr = self._rate(epoch)
        hyper = Hyper.of(
            self.plan,
            batch=batch,
            lr=lr,
            momentum=self.momentum,
            nesterov=self.nesterov,
            weight_decay=self.weight_decay,
        )
        bar.start(f"epoch {epoch + 1}", len(samples))
        done = self._state.samples
        logits = self.device.train(samples, targets, hyper, bar.update, first_sample=done)
        self.counters = self.device.counters()
        self._warn_of_saturation(len(samples), len(samples) // batch)
        saturated = sum(
            count for name, count in self.counters.items() if name.endswith(".saturated")
        )
        row = {"epoch": epoch + 1, "lr": lr, **score(self.plan.loss, logits, targets)}
        row["saturated"] = saturated
        masters, momenta = self.device.read_parameters()
        if validation is not None:
            row |= {
                f"validation_{name}": value for name, value in self.evaluate(validation).items()
            }
        bar.finish(self._remark(row))
        used = {
            "lr": lr,
            "momentum": self.momentum,
            "nesterov": self.nesterov,
            "weight_decay": self.weight_decay,
        }
        used["batch"] = batch
        states = _random_states(loader)
        done += len(samples)
        return Checkpoint(masters, momenta, epoch + 1, used, [*self.history, row], states, done)

    def _warn_of_saturation(self, samples: int, updates: int) -> None:
        """Warn once of every tensor that is clipped more than rarely."""
        shares = saturated_shares(self.plan, self.counters, samples, updates)
        for name in sorted(shares.keys() - self._warned):
            self._warned.add(name)
            warnings.warn(
                f"{name} saturated at {100 * shares[name]:.1f} % of its values: give it fewer "
                "fraction bits in formats, or lower lr",
                GradweaveWarning,
                stacklevel=4,
            )

    def _remark(self, row: dict[str, Any]) -> str:
        texts = [
            f"{name} {row[name]:.4f}"
            for name in ("loss", "accuracy", "validation_accuracy")
            if name in row
        ]
        if "cycles" in self.counters:
            texts.append(f"{self.counters['cycles']:,} cycles")
        if row["saturated"]:
            texts.append(f"{row['saturated']:,} saturated")
        return ", ".join(texts)

    def _rate(self, epoch: int) -> float:
        lr = float(self.lr(epoch) if callable(self.lr) else self.lr)
        if self.schedule is not None:
            lr *= float(self.schedule(epoch))
        if not (math.isfinite(lr) and lr > 0):
            raise InputError(f"lr must be finite and above 0, not {lr} in epoch {epoch}")
        return lr

    def _gather(self, loader: Loader, whole: bool) -> tuple[Tensor, Tensor, int]:
        """Return all samples (int16) and targets of a loader, and the mini-batch; ``whole`` refuses
        a smaller last one.
        """
        samples, targets, batch = list[Tensor](), list[Tensor](), 0
        for number, pair in enumerate(loader):
            if not isinstance(pair, (tuple, list)) or len(pair) != 2:
                raise InputError(
                    f"mini-batch {number} must be a pair (x, y), not {type(pair).__name__}"
                )
            x = quantize_samples(self.plan, pair[0], f"x of mini-batch {number}")
            if len(x) == 0:
                raise InputError(f"mini-batch {number} must have samples, not 0")
            batch = batch or len(x)
            if whole and batch > self.plan.batch_max:
                raise InputError(
                    f"mini-batches must have at most {self.plan.batch_max} samples, not {batch}: "
                    f"compile with batch_max={batch}"
                )
            if whole and len(x) != batch:
                raise InputError(
                    f"mini-batch {number} must have {batch} samples like the first, not "
                    f"{len(x)}: give the DataLoader "
                    "drop_last=True"
                )
            samples.append(x)
            targets.append(
                quantize_targets(self.plan, pair[1], len(x), f"y of mini-batch {number}")
            )
        if not samples:
            raise InputError("loader must give at least one mini-batch, and is empty")
        found = torch.cat(targets)
        check_counted(self.plan.loss, found)
        return torch.cat(samples), found, batch

    def evaluate(self, loader: Loader) -> dict[str, Any]:
        """Return ``loss`` (torch's mean over all samples, whatever the reduction), ``accuracy`` (0
        to 1, of labels that are not ignored, under cross-entropy alone) and ``samples``; no weight
        changes.
        """
        samples, targets, _ = self._gather(loader, whole=False)
        return score(self.plan.loss, self.device.infer(samples), targets)

    def predict(self, x: Tensor) -> Tensor:
        """Return the logits float32 [N, outputs] of samples [N, C, H, W]."""
        return float_logits(self.plan, self.device.infer(quantize_samples(self.plan, x)))

    def state_dict(self) -> dict[str, Tensor]:
        """Return the trained float32 weights, and what the model has beside them, such as the
        statistics of BatchNorm: ``model.load_state_dict(trainer.state_dict())``.
        """
        trained = float_parameters(self.plan, self.device.read_parameters()[0])
        return {**self.device.frozen, **trained}

    def save(self, path: str | Path) -> None:
        """Write a checkpoint of the last finished epoch."""
        save_checkpoint(path, self.plan, self._state)

    def load(self, path: str | Path) -> None:
        """Go back to a checkpoint: the device takes its weights and momenta, the trainer its epoch
        and history.
        """
        state = load_checkpoint(path, self.plan)
        self.device.write_parameters(state.masters, state.momenta)
        self._state = state


def _generators(loader: Loader) -> dict[str, torch.Generator]:
    """Generators of a ``DataLoader`` and of its sampler, by name."""
    sampler = getattr(loader, "sampler", None)
    found = {
        "loader": getattr(loader, "generator", None),
        "sampler": getattr(sampler, "generator", None),
    }
    return {
        name: generator
        for name, generator in found.items()
        if isinstance(generator, torch.Generator)
    }


def _random_states(loader: Loader) -> dict[str, Tensor]:
    states = {name: generator.get_state() for name, generator in _generators(loader).items()}
    return {"torch": torch.get_rng_state(), **states}


def _restore_random(loader: Loader, states: dict[str, Tensor]) -> None:
    if "torch" in states:
        torch.set_rng_state(states["torch"])
    for name, generator in _generators(loader).items():
        if name in states:
            generator.set_state(states[name])
