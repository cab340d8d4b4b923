"""The golden update equals its transcription in Python integers, and counts parameters, not
intermediates.
"""

import random

import pytest
import torch

from gradweave.model.formats import Format, Rounding
from gradweave.model.hyper import Hyper
from gradweave.model.pipeline.update import state_dtype, update
from gradweave.model.plan import ParameterPlan
from gradweave.tests.golden import reference

FORMATS = {
    "default": ParameterPlan(Format(16, 14), Format(32, 28), Format(32, 20)),
    "narrow": ParameterPlan(Format(8, 6), Format(16, 12), Format(10, 5)),
    "int64": ParameterPlan(Format(20, 14), Format(44, 38), Format(40, 24)),
}
ROUNDINGS = list(Rounding)
FIELDS = ("gradient", "decay", "momentum", "delta")


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("nesterov", [False, True])
def test_every_parameter_equals_the_transcription(rounding, name, nesterov):
    formats, rng = FORMATS[name], random.Random(3)
    dtype = state_dtype(formats)
    assert dtype == (torch.int64 if name == "int64" else torch.float64)
    for _ in range(12):
        hyper = Hyper(
            batch=1,
            lr_mantissa=rng.randrange(65536),
            lr_shift=rng.randrange(8, 30),
            momentum=rng.choice([0, 65535, rng.randrange(65536)]),
            nesterov=nesterov,
            decay_mantissa=rng.choice([0, rng.randrange(65536)]),
            decay_shift=rng.randrange(12, 40),
        )
        rows = [
            (
                rng.randrange(formats.master.min, formats.master.max + 1),
                rng.randrange(formats.gradient.min, formats.gradient.max + 1),
                rng.randrange(-(1 << rng.randrange(1, 44)), 1 << rng.randrange(1, 44)),
            )
            for _ in range(40)
        ]
        frac = rng.randrange(2, 30)
        master, momentum, sums = torch.tensor(rows).t()
        draws = torch.tensor([[rng.randrange(1 << 16) for _ in FIELDS] for _ in rows])
        noise = dict(zip(FIELDS, draws.t(), strict=True))
        for sum_dtype in (torch.int64, torch.float64):
            new = update(
                formats, hyper, rounding, master.to(dtype), momentum.to(dtype),
                sums.to(sum_dtype), frac, noise,
            )  # fmt: skip
            expected = [
                reference.update(formats, hyper, rounding, *row, frac, tuple(draw))
                for row, draw in zip(rows, draws.tolist(), strict=True)
            ]
            got = zip(new.master.tolist(), new.momentum.tolist(), new.working.tolist(), strict=True)
            assert list(got) == [row[:3] for row in expected], hyper
            assert new.clipped == sum(row[3] for row in expected)


def test_one_update_worked_by_hand():
    formats = ParameterPlan(Format(8, 4), Format(16, 8), Format(16, 4))
    # lr 1/2, momentum 1/2, decay 1/4 in the registers' scales.
    hyper = Hyper(1, 1, 1, momentum=32768, decay_mantissa=1, decay_shift=2)
    # w = 2, v = 3, gradient 5: d = 5.5, v' = 1.5 + 5.5 = 7, w' = 2 - 3.5 = -1.5.
    new = update(
        formats, hyper, Rounding.HALF_EVEN, torch.tensor([512.0]).double(),
        torch.tensor([48.0]).double(), torch.tensor([5 * 64]), 6,
    )  # fmt: skip
    assert new.momentum.item() == 7 * 16
    assert new.master.item() == -1.5 * 256
    assert new.working.item() == -1.5 * 16
    assert new.clipped == 0
    # Nesterov: step = 5.5 + 3.5 = 9, w' = 2 - 4.5.
    ahead = Hyper(1, 1, 1, momentum=32768, nesterov=True, decay_mantissa=1, decay_shift=2)
    new = update(
        formats, ahead, Rounding.HALF_EVEN, torch.tensor([512.0]).double(),
        torch.tensor([48.0]).double(), torch.tensor([5 * 64]), 6,
    )  # fmt: skip
    assert (new.master.item(), new.momentum.item()) == (-2.5 * 256, 7 * 16)


def test_a_parameter_that_clips_twice_counts_once():
    formats = ParameterPlan(Format(4, 0), Format(8, 0), Format(8, 0))
    hyper = Hyper(1, 1, 0)
    # The first gradient and its working weight clip, the second fits, the third working weight
    # clips.
    new = update(
        formats, hyper, Rounding.HALF_EVEN, torch.tensor([100.0, 3.0, 50.0]).double(),
        torch.zeros(3).double(), torch.tensor([-1000, 1, 0]), 0,
    )  # fmt: skip
    assert new.working.tolist() == [7, 2, 7]
    assert new.clipped == 2
