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
    """Shapes with dilation, groups and, at either end of an axis, padding of its own."""
    rng = random.Random(seed)
    kernel = (rng.randint(1, 6), rng.randint(1, 6))
    stride = (rng.randint(1, 4), rng.randint(1, 4))
    padding = (rng.randint(0, kernel[0]), rng.randint(0, kernel[1]))
    dilation = (rng.choice((1, 1, 2, 3)), rng.choice((1, 1, 2, 3)))
    groups = rng.choice((1, 1, 2, 3))
    reach = tuple(d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True))
    behind = (rng.randint(0, kernel[0]), rng.randint(0, kernel[1]))
    ends = tuple(zip(padding, behind, strict=True))
    least = (max(1, r - sum(e)) for r, e in zip(reach, ends, strict=True))
    size = tuple(rng.randint(n, max(n, 13)) for n in least)
    outputs = tuple(
        (n + sum(e) - r) // s + 1 for n, r, s, e in zip(size, reach, stride, ends, strict=True)
    )
    counts = rng.randint(1, 5), groups * rng.randint(1, 3), groups * rng.randint(1, 3)
    return kernel, stride, ends, dilation, groups, size, outputs, counts


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64])
def test_drawn_shapes_equal_torch(dtype):
    generator = torch.Generator().manual_seed(1)

    def integers(*shape: int) -> torch.Tensor:
        return torch.randint(-99, 100, shape, generator=generator)

    for seed in range(120):
        kernel, stride, ends, dilation, groups, size, outputs, counts = drawn(seed)
        samples, inputs, results = counts
        padding = (ends[0][0], ends[1][0])
        x, e = integers(samples, inputs, *size), integers(samples, results, *outputs)
        w = integers(results, inputs // groups, *kernel)
        x_real, w_real = x.double().requires_grad_(), w.double().requires_grad_()
        padded = torch.nn.functional.pad(x_real, (*ends[1], *ends[0]))
        y = torch.conv2d(padded, w_real, None, stride, 0, dilation, groups)
        y.backward(e.double())

        shared = {"kernel": kernel, "dilation": dilation, "groups": groups, "dtype": dtype}
        forward = Correlation(size=size, stride=stride, padding=padding, outputs=outputs, **shared)
        back = Correlation(
            size=outputs,
            padding=tuple(
                d * (k - 1) - p for d, k, p in zip(dilation, kernel, padding, strict=True)
            ),
            outputs=size,
            spread=stride,
            **shared,
        )
        flipped = w.flip(2, 3).unflatten(0, (groups, -1)).transpose(1, 2).flatten(0, 1)
        # Twice, so that what the first pass left behind could be seen.
        for _ in range(2):
            forward.load(x)
            got = forward.apply(forward.arrange(w))
            gradient = forward.gradient(e)
            back.load(e)
            below = back.apply(back.arrange(flipped))
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
