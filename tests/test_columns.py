"""The gathered correlation equals torch's convolution, forwards, backwards and in its gradient, on
drawn shapes.
"""

import random

import pytest
import torch

from gradweave.model.columns import Correlation


@pytest.fixture(autouse=True)
def one_thread():
    """Many tiny products: on busy cores, threads wait for each other longer than they work."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def drawn(seed: int):
    rng = random.Random(seed)
    kernel = (rng.randint(1, 6), rng.randint(1, 6))
    stride = (rng.randint(1, 4), rng.randint(1, 4))
    padding = (rng.randint(0, kernel[0]), rng.randint(0, kernel[1]))
    size = tuple(rng.randint(max(1, k - 2 * p), 13) for k, p in zip(kernel, padding, strict=True))
    outputs = tuple(
        (n + 2 * p - k) // s + 1 for n, k, s, p in zip(size, kernel, stride, padding, strict=True)
    )
    counts = rng.randint(1, 5), rng.randint(1, 3), rng.randint(1, 3)
    return kernel, stride, padding, size, outputs, counts


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64])
def test_drawn_shapes_equal_torch(dtype):
    generator = torch.Generator().manual_seed(1)

    def integers(*shape: int) -> torch.Tensor:
        return torch.randint(-99, 100, shape, generator=generator)

    for seed in range(120):
        kernel, stride, padding, size, outputs, (samples, inputs, results) = drawn(seed)
        x, e = integers(samples, inputs, *size), integers(samples, results, *outputs)
        w = integers(results, inputs, *kernel)
        x_real, w_real = x.double().requires_grad_(), w.double().requires_grad_()
        y = torch.conv2d(x_real, w_real, None, stride, padding)
        y.backward(e.double())

        forward = Correlation(
            size=size, kernel=kernel, stride=stride, padding=padding, outputs=outputs, dtype=dtype
        )
        back = Correlation(
            size=outputs,
            kernel=kernel,
            padding=(kernel[0] - 1 - padding[0], kernel[1] - 1 - padding[1]),
            outputs=size,
            spread=stride,
            dtype=dtype,
        )
        # Twice, so that what the first pass left behind could be seen.
        for _ in range(2):
            forward.load(x)
            got = forward.apply(forward.arrange(w))
            gradient = forward.gradient(e)
            back.load(e)
            below = back.apply(back.arrange(w.flip(2, 3).transpose(0, 1)))
            assert got.dtype == gradient.dtype == below.dtype == dtype
            assert torch.equal(got.double(), y.detach()), seed
            assert torch.equal(gradient.double(), w_real.grad), seed
            assert torch.equal(below.double(), x_real.grad), seed


def test_many_blocks_of_positions_give_the_same_sums(monkeypatch):
    generator = torch.Generator().manual_seed(2)
    x = torch.randint(-99, 100, (5, 2, 7, 7), generator=generator)
    w = torch.randint(-99, 100, (3, 2, 3, 3), generator=generator)
    sums = []
    for positions in (1 << 20, 16):
        monkeypatch.setattr("gradweave.model.columns.BLOCK_POSITIONS", positions)
        unit = Correlation(size=(7, 7), kernel=(3, 3), padding=(1, 1), outputs=(7, 7))
        unit.load(x)
        sums.append((unit.apply(unit.arrange(w)), unit.gradient(x[:, :1])))
    assert torch.equal(sums[0][0], sums[1][0])
    assert torch.equal(sums[0][1], sums[1][1])


def test_another_number_of_samples_or_channels_leaves_nothing_behind():
    unit = Correlation(size=(4, 4), kernel=(3, 3), padding=(1, 1), outputs=(4, 4))
    for samples, channels in ((3, 2), (1, 2), (2, 1), (3, 2)):
        unit.load(torch.ones(samples, channels, 4, 4))
        got = unit.apply(unit.arrange(torch.ones(1, channels, 3, 3)))
        assert got[0, 0].tolist() == [
            [channels * n for n in row] for row in ([4, 6, 6, 4], [6, 9, 9, 6]) * 2
        ][:2] + [[channels * n for n in row] for row in ([6, 9, 9, 6], [4, 6, 6, 4])]
        assert unit.gradient(torch.ones(samples, 1, 4, 4))[0, 0, 1, 1] == 16 * samples


def test_a_start_value_is_added_to_every_position():
    unit = Correlation(size=(2, 2), kernel=(1, 1), outputs=(2, 2))
    unit.load(torch.tensor([[[[1, 2], [3, 4]]]]))
    matrices = unit.arrange(torch.tensor([2, -1]).view(2, 1, 1, 1))
    got = unit.apply(matrices, torch.tensor([10.0, 20.0]).double())
    assert got[0].tolist() == [[[12, 14], [16, 18]], [[19, 18], [17, 16]]]
