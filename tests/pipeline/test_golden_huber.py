"""The error of Huber's loss is the difference within delta, requantised, and torch's gradient."""

import pytest
import torch
import torch.nn.functional as F

from gradweave.model.formats import Format, Rounding
from gradweave.model.pipeline import huber
from gradweave.model.plan import LossPlan
from gradweave.tests.golden import reference

LOSS = LossPlan("huber", 4, feature=Format(16, 10), error=Format(12, 8), delta=3001)


@pytest.mark.parametrize("rounding", [Rounding.HALF_EVEN, Rounding.HALF_UP, Rounding.FLOOR])
@pytest.mark.parametrize("dtype", [torch.float64, torch.int64])
@pytest.mark.parametrize("delta", [1, 3001, 20000])
def test_every_error_equals_its_definition(rounding, dtype, delta):
    loss = LossPlan("huber", 4, LOSS.feature, LOSS.error, delta=delta)
    generator = torch.Generator().manual_seed(1)
    z, t = torch.randint(-32768, 32768, (2, 50, 4), generator=generator)
    errors, clipped = huber.error(z.to(dtype), t, loss, rounding)
    rows = [
        reference.value_errors(*row, loss, rounding, [])
        for row in zip(z.tolist(), t.tolist(), strict=True)
    ]
    assert errors.tolist() == [row for row, _ in rows]
    # 2047 of the format are 8188 of the feature: only the largest delta lets an error be clipped.
    assert clipped == sum(hits for _, hits in rows)
    assert (clipped > 0) == (delta == 20000)


def test_errors_worked_by_hand():
    # 8/4; 9000 and -9000 are limited to 3001/4 = 750.25.
    z, t = torch.tensor([[108, 9000, -9000, 0]]), torch.tensor([[100, 0, 0, 0]])
    errors, clipped = huber.error(z.double(), t, LOSS, Rounding.HALF_EVEN)
    assert (errors.tolist(), clipped) == ([[2, 750, -750, 0]], 0)


def test_the_error_is_torchs_gradient_within_half_a_step():
    generator = torch.Generator().manual_seed(2)
    z, t = torch.randint(-5000, 5000, (2, 50, 4), generator=generator)
    real = (z.double() / 1024).requires_grad_()
    F.huber_loss(real, t.double() / 1024, reduction="sum", delta=3001 / 1024).backward()
    errors, _ = huber.error(z, t, LOSS, Rounding.HALF_EVEN)
    assert (errors.double() / 256 - real.grad).abs().max() <= 0.5 / 256
