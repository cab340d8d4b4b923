"""Integer softmax with cross-entropy equals its definition, and float softmax within the bound of
its tables.
"""

import pytest
import torch

from gradweave.model.formats import Format, Rounding
from gradweave.model.pipeline import cross_entropy
from gradweave.model.pipeline.softmax import probabilities
from gradweave.model.plan import LossPlan
from gradweave.tests.golden import reference

# The definition's table, by the platform's floats: tests/test_tables.py shows that no entry is near
# a tie.
TABLE = [round(2 ** (16 - f / 1024)) for f in range(1024)]
ROUNDINGS = [Rounding.HALF_EVEN, Rounding.HALF_UP, Rounding.FLOOR]


ERROR = Format(16, 14)


def loss_of(outputs, feature=10, error=ERROR):
    return LossPlan("cross_entropy", outputs, Format(16, feature), error)


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize(("feature", "outputs"), [(10, 10), (2, 3), (15, 7), (-3, 4), (10, 1)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.int64])
def test_every_error_equals_its_definition(rounding, feature, outputs, dtype):
    loss = loss_of(outputs, feature)
    generator = torch.Generator().manual_seed(feature)
    z = torch.randint(-32768, 32768, (40, outputs), generator=generator)
    z[20:] //= 16
    labels = torch.randint(0, outputs, (40,), generator=generator)
    errors, clipped = cross_entropy.error(z.to(dtype), labels, loss, rounding)
    rows = [
        reference.cross_entropy(row, label, loss, rounding, TABLE)
        for row, label in zip(z.tolist(), labels.tolist(), strict=True)
    ]
    assert errors.tolist() == [row for row, _ in rows]
    assert clipped == sum(hits for _, hits in rows) == 0


def test_equal_logits_share_the_probability():
    errors, clipped = cross_entropy.error(
        torch.tensor([[5, 5, 5, 5]]), torch.tensor([2]), loss_of(4), Rounding.HALF_EVEN
    )
    assert (errors.tolist(), clipped) == ([[4096, 4096, -12288, 4096]], 0)


def test_a_quotient_half_way_goes_to_the_even_neighbour_in_every_mode():
    # Two equal logits share one unit: 1/2 goes to 0.
    loss = loss_of(2, error=Format(4, 0))
    for rounding in ROUNDINGS:
        got = probabilities(torch.tensor([[7, 7]]), loss.feature, 0, rounding)
        assert got.tolist() == [[0, 0]]


def test_a_format_without_room_for_one_saturates_and_counts():
    # Error format s16.15 cannot hold -1 + 0 exactly at +1: a sure wrong class clips at 32767.
    loss = loss_of(2, 0, Format(16, 15))
    errors, clipped = cross_entropy.error(
        torch.tensor([[1000, -1000]]), torch.tensor([1]), loss, Rounding.HALF_EVEN
    )
    assert (errors.tolist(), clipped) == ([[32767, -32768]], 1)


def test_probabilities_lie_close_to_float_softmax():
    loss = loss_of(10)
    z = torch.randint(-8192, 8192, (500, 10), generator=torch.Generator().manual_seed(1))
    got = probabilities(z, loss.feature, 14, Rounding.HALF_EVEN).double() / 2**14
    # The exponent's grid of 1/1024 errs by ln(2)/2048 and log2(e)'s rounding by 7e-6 of an exponent
    # below 32, in power and in sum alike; ten powers floor by 2**-16 each; the quotient rounds by
    # 2**-15.
    tolerance = 2 * (0.6932 / 2048 + 32 * 7e-6) + 10 * 2**-16 + 2**-15
    assert (got - torch.softmax(z.double() / 1024, 1)).abs().max() < tolerance


def weighted(weights, frac, error=ERROR, ignore=None):
    return LossPlan(
        "cross_entropy",
        3,
        Format(16, 10),
        error,
        class_weights=weights,
        weight_frac=frac,
        ignore_index=ignore,
    )


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize(
    "loss",
    [
        weighted((3, 1, 2), 1, Format(16, 13)),
        weighted((65535, 0, 1), 14, Format(16, 12), -100),
        weighted((40000, 2, 65535), 16, ignore=1),
        weighted((), 0, ignore=-100),
        weighted((9, 3, 4), 0, Format(8, 6)),
    ],
    ids=str,
)
def test_every_weighted_error_equals_its_definition(rounding, loss):
    generator = torch.Generator().manual_seed(5)
    z = torch.randint(-8192, 8192, (40, 3), generator=generator)
    labels = torch.randint(0, loss.target_range[1] + 1, (40,), generator=generator)
    errors, clipped = cross_entropy.error(z.double(), labels, loss, rounding)
    rows = [
        reference.cross_entropy(row, label, loss, rounding, TABLE)
        for row, label in zip(z.tolist(), labels.tolist(), strict=True)
    ]
    assert errors.tolist() == [row for row, _ in rows]
    assert clipped == sum(hits for _, hits in rows)
    assert (clipped > 0) == (loss.error.width == 8)
    assert not errors[labels == 3].any()


def test_weights_of_one_and_an_ignored_label_change_no_other_error():
    generator = torch.Generator().manual_seed(6)
    z = torch.randint(-8192, 8192, (40, 3), generator=generator)
    labels = torch.randint(0, 3, (40,), generator=generator)
    expected, _ = cross_entropy.error(z, labels, loss_of(3), Rounding.HALF_UP)
    for loss in (weighted((), 0, ignore=-100), weighted((1, 1, 1), 0)):
        assert torch.equal(cross_entropy.error(z, labels, loss, Rounding.HALF_UP)[0], expected)


def test_weighted_errors_lie_close_to_torchs_gradient():
    loss = weighted((3, 1, 10), 2, Format(16, 13), -100)
    generator = torch.Generator().manual_seed(7)
    z = torch.randint(-4096, 4096, (200, 3), generator=generator)
    labels = torch.randint(0, 4, (200,), generator=generator)
    real = (z.double() / 1024).requires_grad_()
    weight = torch.tensor([0.75, 0.25, 2.5]).double()
    torch.nn.functional.cross_entropy(
        real, labels, weight, ignore_index=3, reduction="sum"
    ).backward()
    errors, _ = cross_entropy.error(z, labels, loss, Rounding.HALF_EVEN)
    # Of the tables as without weights, times 2.5; half a step each by division and by the product.
    tolerance = 2.5 * (2 * (0.6932 / 2048 + 32 * 7e-6) + 3 * 2**-16) + 2**-13
    assert (errors * 2.0**-13 - real.grad).abs().max() < tolerance
