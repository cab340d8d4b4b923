# amaranth: UnusedElaboratable=no
# ruff: noqa: ERA001
"""Huber's loss gives logit minus target within delta, at the pace of the mean squared error."""

import random

import pytest
import torch

from gradweave.model.errors import PlanError
from gradweave.model.formats import Format, Rounding
from gradweave.model.pipeline import huber as golden
from gradweave.model.plan import LossPlan, Plan
from gradweave.rtl.pipeline.huber import Huber
from gradweave.tests.streams import random_lanes, run_streams

FORMATS = [
    (Format(8, 4), Format(8, 6)),
    (Format(10, 8), Format(6, 4)),
    (Format(8, 5), Format(8, 5)),
]


def loss_of(delta, formats=FORMATS[0], outputs=3):
    return LossPlan("huber", outputs, *formats, delta=delta)


def train(loss, logits, targets, rounding=Rounding.HALF_EVEN, **options):
    run = run_streams(
        Huber(loss, rounding),
        {"i": logits, "target": targets},
        {"o_logits": len(logits), "o_error": len(logits)},
        set_up={"training": 1},
        sample=["clipped"],
        count_pulses=["sample_done", "bad_label"],
        **options,
    )
    errors, clipped = golden.error(torch.tensor(logits), torch.tensor(targets), loss, rounding)
    assert run["o_logits"] == logits
    assert run["o_error"] == errors.tolist()
    assert run.sampled["clipped"] == clipped
    assert run.pulses == {"sample_done": len(logits) // loss.outputs, "bad_label": 0}
    return run


def test_an_error_is_limited_to_delta():
    # 6 - -1, limited to 5; -4 - 3, limited to -5; 2 - 1: in quarters, to steps of a half.
    loss = loss_of(5, (Format(8, 2), Format(8, 1)))
    run = train(loss, [[6], [-4], [2]], [[-1], [3], [1]])
    assert run["o_error"] == [[2], [-2], [0]]


@pytest.mark.parametrize("stall", [0.0, 0.5])
@pytest.mark.parametrize("rounding", [Rounding.HALF_EVEN, Rounding.HALF_UP, Rounding.FLOOR])
@pytest.mark.parametrize("formats", FORMATS, ids=str)
@pytest.mark.parametrize("delta", [1, 37, 255])
def test_errors_and_their_clips_are_right(formats, rounding, stall, delta):
    rng = random.Random(delta)
    width = formats[0].width
    logits, targets = random_lanes(rng, width, 1, 60), random_lanes(rng, width, 1, 60)
    run = train(loss_of(delta, formats), logits, targets, rounding, stall=stall)
    largest = delta * 2.0 ** (formats[1].frac - formats[0].frac)
    assert (run.sampled["clipped"] > 0) == (largest > formats[1].max)


def test_interval_and_latency_are_as_stated():
    dut = Huber(loss_of(9, outputs=5), Rounding.HALF_EVEN)
    words = [[n] for n in range(25)]
    run = train(dut.loss, words, words)
    first = run.times["i"][0]
    plan = Plan("loss", (), dut.loss, batch_max=1)
    assert dut.interval == plan.loss_interval == 5
    assert dut.latency == plan.loss_latency
    assert run.times["i"][::5] == [first + n * dut.interval for n in range(5)]
    assert run.times["o_error"] == [first + n + dut.latency for n in range(25)]


def test_reset_in_mid_sample_starts_at_a_first_logit():
    rng = random.Random(6)
    logits, targets = random_lanes(rng, 8, 1, 30), random_lanes(rng, 8, 1, 30)
    train(loss_of(20), logits, targets, stall=0.5, reset_at=14)


def test_a_delta_of_nothing_is_refused():
    with pytest.raises(PlanError) as caught:
        Huber(loss_of(0), Rounding.HALF_EVEN)
    assert str(caught.value) == "loss.delta must be at least 1 step of a logit, not 0"
