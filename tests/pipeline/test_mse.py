"""Mean squared error gives logit minus target, and copies every logit to the host."""

import random

import pytest
import torch

from gradweave.model.formats import Format, Rounding
from gradweave.model.pipeline import mse as golden
from gradweave.model.plan import LossPlan, Plan
from gradweave.rtl.pipeline.mse import Mse
from gradweave.tests.streams import random_lanes, run_streams

FORMATS = [
    (Format(8, 4), Format(8, 6)),
    (Format(10, 8), Format(6, 4)),
    (Format(8, 5), Format(8, 5)),
]


def reference(logits, targets, loss, rounding):
    """The errors, a word each, and how many saturated."""
    errors, clipped = golden.error(torch.tensor(logits), torch.tensor(targets), loss, rounding)
    return errors.tolist(), clipped


def test_an_error_is_the_logit_minus_the_target():
    # 1.5 - (-0.25) and -1.0 - 0.75 in steps of 1/4, to steps of 1/2: the ties 3.5 and -3.5.
    loss = LossPlan("mse", 2, Format(8, 2), Format(8, 1))
    run = run_streams(
        Mse(loss, Rounding.HALF_EVEN),
        {"i": [[6], [-4]], "target": [[-1], [3]]},
        {"o_logits": 2, "o_error": 2},
        set_up={"training": 1},
    )
    assert run["o_error"] == [[4], [-4]]
    assert run["o_logits"] == [[6], [-4]]


@pytest.mark.parametrize("stall", [0.0, 0.5])
@pytest.mark.parametrize("rounding", [Rounding.HALF_EVEN, Rounding.HALF_UP, Rounding.FLOOR])
@pytest.mark.parametrize("formats", FORMATS, ids=str)
def test_errors_and_their_clips_are_right(formats, rounding, stall):
    loss = LossPlan("mse", 3, *formats)
    rng = random.Random(4)
    logits = random_lanes(rng, loss.feature.width, 1, 60)
    targets = random_lanes(rng, loss.feature.width, 1, 60)
    run = run_streams(
        Mse(loss, rounding),
        {"i": logits, "target": targets},
        {"o_logits": 60, "o_error": 60},
        stall=stall,
        set_up={"training": 1},
        sample=["clipped"],
        count_pulses=["sample_done", "bad_label"],
    )
    errors, clipped = reference(logits, targets, loss, rounding)
    assert run["o_logits"] == logits
    assert run["o_error"] == errors
    assert run.sampled["clipped"] == clipped > 0
    assert run.pulses == {"sample_done": 20, "bad_label": 0}


def test_without_training_logits_pass_and_no_target_is_taken():
    logits = random_lanes(random.Random(4), 8, 1, 30)
    run = run_streams(
        Mse(LossPlan("mse", 3, *FORMATS[0]), Rounding.HALF_EVEN),
        {"i": logits},
        {"o_logits": 30, "o_error": 0},
        stall=0.5,
        count_pulses=["sample_done"],
    )
    assert run["o_logits"] == logits
    assert run.pulses == {"sample_done": 10}


def test_interval_and_latency_are_as_stated():
    dut = Mse(LossPlan("mse", 5, *FORMATS[0]), Rounding.HALF_EVEN)
    words = [[n] for n in range(25)]
    run = run_streams(
        dut,
        {"i": words, "target": words},
        {"o_logits": 25, "o_error": 25},
        set_up={"training": 1},
    )
    first = run.times["i"][0]
    plan = Plan("loss", (), dut.loss, batch_max=1)
    assert dut.interval == plan.loss_interval == 5
    assert dut.latency == plan.loss_latency
    assert run.times["i"][::5] == [first + n * dut.interval for n in range(5)]
    assert run.times["o_error"] == [first + n + dut.latency for n in range(25)]


def test_reset_in_mid_sample_starts_at_a_first_logit():
    loss = LossPlan("mse", 3, *FORMATS[0])
    rng = random.Random(6)
    logits, targets = random_lanes(rng, 8, 1, 30), random_lanes(rng, 8, 1, 30)
    run = run_streams(
        Mse(loss, Rounding.HALF_EVEN),
        {"i": logits, "target": targets},
        {"o_logits": 30, "o_error": 30},
        stall=0.5,
        set_up={"training": 1},
        sample=["clipped"],
        count_pulses=["sample_done"],
        reset_at=14,
    )
    errors, clipped = reference(logits, targets, loss, Rounding.HALF_EVEN)
    assert run["o_error"] == errors
    assert run.sampled["clipped"] == clipped
    assert run.pulses["sample_done"] == 10
