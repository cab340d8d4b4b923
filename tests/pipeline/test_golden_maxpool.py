"""Max-pooling takes the first maximum in tap order, adds errors where windows overlap, and counts
what it clips.
"""

import pytest
import torch

from gradweave.model.formats import Format
from gradweave.model.pipeline import maxpool
from gradweave.tests.golden import reference
from gradweave.tests.golden.reference import numbers
from gradweave.tests.plans import chain, conv
from gradweave.tests.plans import maxpool as pool


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "padding"),
    [
        ((4, 4), (2, 2), (2, 2), (0, 0)),
        ((5, 7), (3, 3), (1, 2), (1, 1)),
        ((6, 5), (3, 2), (2, 1), (1, 0)),
        ((7, 7), (2, 2), (3, 3), (0, 0)),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.int64])
def test_values_places_and_errors_equal_their_definition(size, kernel, stride, padding, dtype):
    plan = chain(
        (2, *size),
        conv("c", 2, kernel=1),
        pool("p", kernel, stride=stride, padding=padding),
        loss_error=Format(6, 3),
    )
    layer = plan.layers[1]
    generator = torch.Generator().manual_seed(4)
    # Few distinct values, so that ties abound.
    x = torch.randint(-3, 2, (3, 2, *size), generator=generator)
    e = torch.randint(-32, 32, (3, *layer.o_shape), generator=generator)

    values, places = maxpool.forward(x.to(dtype), kernel, stride, padding)
    expected, where = reference.maxpool(layer, numbers(x), 3)
    assert values.dtype == dtype
    assert numbers(values) == expected
    assert numbers(places) == {n: row * size[1] + col for n, (row, col) in where.items()}
    below, clipped = maxpool.backward(e.to(dtype), places, size, layer.i_error)
    assert (numbers(below), clipped) == reference.maxpool_errors(layer, numbers(e), where, 3)


def test_overlapping_errors_saturate_and_are_counted():
    x = torch.zeros(1, 1, 3, 3)
    x[0, 0, 1, 1] = 7
    values, places = maxpool.forward(x.double(), (2, 2), (1, 1), (0, 0))
    assert values.flatten().tolist() == [7, 7, 7, 7]
    errors = torch.full((1, 1, 2, 2), 50).double()
    below, clipped = maxpool.backward(errors, places, (3, 3), Format(8, 0))
    assert (int(below[0, 0, 1, 1]), int(below.sum()), clipped) == (127, 127, 1)


def test_padding_never_wins_over_a_negative_maximum():
    values, _ = maxpool.forward(torch.full((1, 1, 2, 2), -5).double(), (2, 2), (1, 1), (1, 1))
    assert values.flatten().tolist() == [-5] * 9
