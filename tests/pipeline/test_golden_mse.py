"""The error of the mean squared error is the requantised difference."""

import pytest
import torch

from gradweave.model.formats import Format, Rounding
from gradweave.model.pipeline import mse
from gradweave.model.plan import LossPlan
from gradweave.tests.golden.reference import rq

LOSS = LossPlan("mse", 4, feature=Format(16, 10), error=Format(12, 8))


@pytest.mark.parametrize("rounding", [Rounding.HALF_EVEN, Rounding.HALF_UP, Rounding.FLOOR])
@pytest.mark.parametrize("dtype", [torch.float64, torch.int64])
def test_every_error_equals_its_definition(rounding, dtype):
    generator = torch.Generator().manual_seed(1)
    z, t = torch.randint(-32768, 32768, (2, 50, 4), generator=generator)
    errors, clipped = mse.error(z.to(dtype), t, LOSS, rounding)
    pairs = [rq(d, 10, LOSS.error, rounding) for d in (z - t).flatten().tolist()]
    assert errors.flatten().tolist() == [value for value, _ in pairs]
    assert clipped == sum(hit for _, hit in pairs) > 0


def test_errors_worked_by_hand():
    # 6/4 and 2/4 round to even, 10000/4 saturates at 2047.
    z, t = torch.tensor([[106, 102, 100, 9000]]), torch.tensor([[100, 100, 100, -1000]])
    errors, clipped = mse.error(z.double(), t, LOSS, Rounding.HALF_EVEN)
    assert (errors.tolist(), clipped) == ([[2, 0, 0, 2047]], 1)
