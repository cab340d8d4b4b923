"""Integer sigmoid and binary cross-entropy equal their definition, and float ones within the bound
of the table.
"""

import pytest
import torch
import torch.nn.functional as F

from gradweave.model.formats import Format, Rounding
from gradweave.model.pipeline import binary_cross_entropy
from gradweave.model.plan import LossPlan
from gradweave.tests.golden import reference

TABLE = [round(2 ** (16 - f / 1024)) for f in range(1024)]
ROUNDINGS = [Rounding.HALF_EVEN, Rounding.HALF_UP, Rounding.FLOOR]
# The exponent's grid of 1/1024 and log2(e)'s rounding change a power by at most 3.4e-4 of itself,
# its floor by 2**-16 of 1; the sigmoid changes by a quarter of the first, and by the second.
TABLE_BOUND = 2.0**-13


FEATURE, ERROR = Format(16, 9), Format(16, 14)


def loss_of(feature=FEATURE, error=ERROR, outputs=3):
    return LossPlan("binary_cross_entropy", outputs, feature, error)


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("error", [Format(16, 14), Format(16, 4), Format(8, 7), Format(4, 0)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.int64])
def test_every_error_equals_its_definition(rounding, error, dtype):
    loss = loss_of(error=error)
    generator = torch.Generator().manual_seed(error.frac)
    z = torch.randint(-32768, 32768, (40, 3), generator=generator)
    z[20:] //= 16
    t = torch.randint(0, 513, (40, 3), generator=generator)
    errors, clipped = binary_cross_entropy.error(z.to(dtype), t, loss, rounding)
    rows = [
        reference.value_errors(*row, loss, rounding, TABLE)
        for row in zip(z.tolist(), t.tolist(), strict=True)
    ]
    assert errors.tolist() == [row for row, _ in rows]
    assert clipped == sum(hits for _, hits in rows)


def test_errors_worked_by_hand():
    # sigmoid(0) = 1/2; far out it is 0 or 1; targets 0, 1, 1/4 and 1.
    z, t = torch.tensor([[0, 0, 32767, -32768]]), torch.tensor([[0, 512, 128, 512]])
    errors, clipped = binary_cross_entropy.error(z, t, loss_of(), Rounding.HALF_EVEN)
    assert (errors.tolist(), clipped) == ([[8192, -8192, 12288, -16384]], 0)


def test_both_signs_of_a_logit_share_one():
    loss = loss_of(error=Format(20, 18))
    z = torch.arange(0, 32768, 7)
    up = binary_cross_entropy.sigmoid(z, loss, Rounding.HALF_EVEN)
    down = binary_cross_entropy.sigmoid(-z, loss, Rounding.HALF_EVEN)
    assert (up + down == 1 << 18).all()


@pytest.mark.parametrize("feature", [0, 5, 9, 12, 14])
@pytest.mark.parametrize("error", [Format(16, 14), Format(24, 20)])
def test_every_sigmoid_lies_within_the_stated_bound(feature, error):
    loss = loss_of(Format(16, feature), error)
    z = torch.arange(-32768, 32768)
    got = binary_cross_entropy.sigmoid(z, loss, Rounding.HALF_EVEN).double() * error.step
    expected = torch.sigmoid(z.double() * loss.feature.step)
    assert (got - expected).abs().max() < TABLE_BOUND + error.step / 2


def test_the_error_is_torchs_gradient_within_the_bound():
    loss = loss_of()
    generator = torch.Generator().manual_seed(2)
    z = torch.randint(-4096, 4096, (50, 3), generator=generator)
    t = torch.randint(0, 513, (50, 3), generator=generator)
    real = (z.double() / 512).requires_grad_()
    F.binary_cross_entropy_with_logits(real, t.double() / 512, reduction="sum").backward()
    errors, _ = binary_cross_entropy.error(z, t, loss, Rounding.HALF_EVEN)
    assert (errors * 2.0**-14 - real.grad).abs().max() < TABLE_BOUND + 2.0**-15
