"""Checkpoints: a training's whole state between two epochs, in one safetensors file that is never
half written.

Test: ``tests/test_checkpoint.py``.
"""

import contextlib
import hashlib
import json
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from ..model.errors import CheckpointError
from ..model.plan import Plan

__all__ = ["FORMAT_VERSION", "Checkpoint", "load_checkpoint", "save_checkpoint", "write_atomically"]

FORMAT_VERSION = "2"
_GROUPS = ("masters", "momenta", "random")


@dataclass
class Checkpoint:
    """What a run needs to go on as if it had never stopped.

    ``masters`` and ``momenta`` are integers by their key in ``state_dict()``; ``random`` holds
    generator states (uint8) by name; ``epoch`` counts the epochs done; ``hyperparameters`` are
    those of the last one, and for information. ``samples`` counts all samples trained: the number
    of the next one, by which random bits go on.
    """

    masters: dict[str, Tensor]
    momenta: dict[str, Tensor]
    epoch: int = 0
    hyperparameters: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    random: dict[str, Tensor] = field(default_factory=dict)
    samples: int = 0


def save_checkpoint(path: str | Path, plan: Plan, checkpoint: Checkpoint) -> None:
    """Write the file so that at every moment ``path`` is the old checkpoint or the new one, whole
    and on the disk.

    Raises
    ------
    CheckpointError
        When the folder cannot be written.
    """
    tensors = {
        f"{group}/{name}": (tensor if group == "random" else tensor.to(torch.int32)).contiguous()
        for group in _GROUPS
        for name, tensor in getattr(checkpoint, group).items()
    }
    metadata = {
        "format": FORMAT_VERSION,
        "design": plan.identity,
        "name": plan.name,
        "epoch": str(checkpoint.epoch),
        "samples": str(checkpoint.samples),
        "hyperparameters": json.dumps(checkpoint.hyperparameters, sort_keys=True),
        "history": json.dumps(checkpoint.history, sort_keys=True),
    }
    metadata["sha256"] = _digest(tensors, metadata)
    try:
        write_atomically(Path(path), save(tensors, metadata))
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be written: {error.strerror}; the checkpoint before it is intact"
        ) from error


def load_checkpoint(path: str | Path, plan: Plan) -> Checkpoint:
    """Return the checkpoint of a run of ``plan``.

    Raises
    ------
    CheckpointError
        When the file is missing, cut short, edited, of another format version or of another design.
    """
    if not Path(path).is_file():
        raise CheckpointError(
            f"{path} is no file: give the checkpoint that Trainer.fit or Trainer.save wrote"
        )
    try:
        with safe_open(str(path), framework="pt") as file:
            metadata = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(
            f"{path} is cut short or no safetensors file ({error}): use an older checkpoint"
        ) from error
    if metadata.get("format") != FORMAT_VERSION:
        raise CheckpointError(
            f"{path} must be a gradweave checkpoint of format {FORMAT_VERSION}, not "
            f"{metadata.get('format')}"
        )
    if metadata.pop("sha256", None) != _digest(tensors, metadata):
        raise CheckpointError(
            f"{path} was edited or damaged, as its sha256 does not fit: use an older checkpoint"
        )
    if metadata["design"] != plan.identity:
        raise CheckpointError(
            f"{path} was made by design {metadata['design']} ({metadata['name']}), not "
            f"{plan.identity} ({plan.name}): "
            "compile the model as for that run"
        )
    groups: dict[str, dict[str, Tensor]] = {group: {} for group in _GROUPS}
    for key, tensor in tensors.items():
        group, _, name = key.partition("/")
        groups[group][name] = tensor if group == "random" else tensor.long()
    return Checkpoint(
        epoch=int(metadata["epoch"]),
        samples=int(metadata["samples"]),
        hyperparameters=json.loads(metadata["hyperparameters"]),
        history=json.loads(metadata["history"]),
        **groups,
    )


def _digest(tensors: dict[str, Tensor], metadata: dict[str, str]) -> str:
    """Hash every tensor's name, type, shape and bytes, and the metadata but for the hash itself."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        digest.update(tensor.numpy().tobytes())
    digest.update(
        json.dumps(
            {key: text for key, text in metadata.items() if key != "sha256"}, sort_keys=True
        ).encode()
    )
    return digest.hexdigest()


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file beside ``path``, flush it to the disk, and put it in the place of ``path`` in
    one step.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
