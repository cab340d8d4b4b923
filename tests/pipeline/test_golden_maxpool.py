"""Max-pooling takes the first maximum in tap order, adds errors where windows overlap, and counts
what it clips.
"""

from dataclasses import replace
from itertools import product

import pytest
import torch
from torch.nn import functional as F

from gradweave.model.formats import Format, Rounding
from gradweave.model.pipeline.maxpool import MaxPool
from gradweave.model.step import Step
from gradweave.tests.golden import reference
from gradweave.tests.golden.reference import numbers
from gradweave.tests.pools import windows

TRAINING = Step(training=True)
ERROR = Format(8, 0)


def pool(*where, i_error=ERROR, **rest):
    plan = windows("maxpool2d", *where, **rest)
    return MaxPool(replace(plan, i_error=i_error, o_error=i_error), Rounding.HALF_EVEN)


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "padding"),
    [
        ((4, 4), (2, 2), (2, 2), (0, 0)),
        ((5, 7), (3, 3), (1, 2), (1, 1)),
        ((6, 5), (3, 2), (2, 1), (1, 0)),
        ((7, 7), (2, 2), (3, 3), (0, 0)),
    ],
)
@pytest.mark.parametrize("ceil_mode", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.int64])
def test_values_and_errors_equal_their_definition(size, kernel, stride, padding, ceil_mode, dtype):
    golden = pool((2, *size), kernel, stride, padding, ceil_mode=ceil_mode, i_error=Format(6, 3))
    layer = golden.layer
    generator = torch.Generator().manual_seed(4)
    # Few distinct values, so that ties abound.
    x = torch.randint(-3, 2, (3, 2, *size), generator=generator)
    e = torch.randint(-32, 32, (3, *layer.o_shape), generator=generator)

    values, none = golden.forward(x.to(dtype), TRAINING)
    expected, where = reference.maxpool(layer, numbers(x), 3)
    assert values.dtype == dtype
    assert (numbers(values), none) == (expected, 0)
    below, clipped = golden.backward(e.to(dtype))
    assert below.dtype == dtype
    assert (numbers(below), clipped) == reference.maxpool_errors(layer, numbers(e), where, 3)


@pytest.mark.parametrize("size", [(6, 9), (11, 3), (1, 1), (5, 5)])
@pytest.mark.parametrize("ceil_mode", [False, True])
def test_values_and_errors_equal_float_torch(size, ceil_mode):
    generator = torch.Generator().manual_seed(7)
    cases = 0
    for kernel, stride, padding, dilation in product((1, 2, 3), (1, 2, 4), (0, 1), (1, 2)):
        # Torch refuses the first two; in the third a window could step over the whole map.
        span = dilation * (kernel - 1) + 1
        if padding > kernel // 2 or span > min(size) + 2 * padding or span > min(size) + 1:
            continue
        where = [(n, n) for n in (kernel, stride, padding)]
        golden = pool(
            (2, *size),
            *where,
            ceil_mode=ceil_mode,
            dilation=(dilation, dilation),
            i_error=Format(20, 0),
        )
        x = torch.randint(-2, 3, (2, 2, *size), generator=generator).double().requires_grad_()
        expected = F.max_pool2d(x, kernel, stride, padding, dilation, ceil_mode)
        e = torch.randint(-32, 32, expected.shape, generator=generator).double()
        expected.backward(e)
        values, _ = golden.forward(x.detach(), TRAINING)
        assert torch.equal(values, expected)
        assert torch.equal(golden.backward(e)[0], x.grad)
        cases += 1
    assert cases


def test_a_pass_without_training_keeps_the_places_of_the_last_one_in_training():
    golden = pool((1, 1, 2), (1, 2), (1, 2))
    golden.forward(torch.tensor([[[[1.0, 2.0]]]]).double(), TRAINING)
    golden.forward(torch.tensor([[[[2.0, 1.0]]]]).double(), Step(training=False))
    below, _ = golden.backward(torch.tensor([[[[5.0]]]]).double())
    assert below.flatten().tolist() == [0, 5]


def test_overlapping_errors_saturate_and_are_counted():
    golden = pool((1, 3, 3), (2, 2), (1, 1))
    x = torch.zeros(1, 1, 3, 3).double()
    x[0, 0, 1, 1] = 7
    values, _ = golden.forward(x, TRAINING)
    assert values.flatten().tolist() == [7, 7, 7, 7]
    below, clipped = golden.backward(torch.full((1, 1, 2, 2), 50).double())
    assert (int(below[0, 0, 1, 1]), int(below.sum()), clipped) == (127, 127, 1)


def test_padding_never_wins_over_a_negative_maximum():
    golden = pool((1, 2, 2), (2, 2), (1, 1), (1, 1))
    values, _ = golden.forward(torch.full((1, 1, 2, 2), -5).double(), TRAINING)
    assert values.flatten().tolist() == [-5] * 9


def test_what_a_window_has_beyond_the_map_never_wins():
    golden = pool((1, 3, 3), (2, 2), (2, 2), ceil_mode=True)
    values, _ = golden.forward(torch.full((1, 1, 3, 3), -5).double(), TRAINING)
    assert values.flatten().tolist() == [-5] * 4
