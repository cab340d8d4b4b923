# amaranth: UnusedElaboratable=no
# ruff: noqa: ERA001
"""Binary cross-entropy gives the integer sigmoid minus the target, exactly."""

import random

import pytest
import torch

from gradweave.model.errors import PlanError
from gradweave.model.formats import Format, Rounding
from gradweave.model.pipeline import binary_cross_entropy as golden
from gradweave.model.plan import LossPlan, Plan
from gradweave.rtl.pipeline.binary_cross_entropy import BinaryCrossEntropy
from gradweave.tests.streams import random_lanes, run_streams

FEATURE, ERROR = Format(16, 9), Format(16, 14)


def loss_of(outputs=3, feature=FEATURE, error=ERROR):
    return LossPlan("binary_cross_entropy", outputs, feature, error)


def train(loss, logits, targets, rounding=Rounding.HALF_EVEN, **options):
    run = run_streams(
        BinaryCrossEntropy(loss, rounding),
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
    assert run.pulses["sample_done"] == len(logits) // loss.outputs
    return run


def random_words(seed, loss, count):
    rng = random.Random(seed)
    width = loss.feature.width
    logits = [random_lanes(rng, max(2, width - n % 4 * width // 4), 1, 1)[0] for n in range(count)]
    one = loss.target_range[1]
    return logits, [[rng.choice([0, one, rng.randint(0, one)])] for _ in range(count)]


def test_errors_worked_by_hand():
    # sigmoid(0) - 1/4 = 1/4; far out 1 - 1 and 0 - 1, in steps of 2**-6.
    loss = loss_of(3, Format(8, 2), Format(8, 6))
    run = train(loss, [[0], [127], [-128]], [[1], [4], [4]])
    assert run["o_error"] == [[16], [0], [-64]]


@pytest.mark.parametrize("stall", [0.0, 0.5])
@pytest.mark.parametrize("rounding", [Rounding.HALF_EVEN, Rounding.HALF_UP, Rounding.FLOOR])
@pytest.mark.parametrize(
    ("outputs", "feature", "error"),
    [
        (3, Format(16, 9), Format(16, 14)),
        (1, Format(8, 5), Format(8, 7)),
        (2, Format(12, 0), Format(16, 15)),
        (5, Format(16, 14), Format(12, 0)),
        (1, Format(6, 4), Format(24, 20)),
    ],
    ids=str,
)
def test_errors_and_their_clips_are_right(outputs, feature, error, rounding, stall):
    loss = loss_of(outputs, feature, error)
    logits, targets = random_words(outputs, loss, 30)
    run = train(loss, logits, targets, rounding, stall=stall, seed=outputs)
    assert run.pulses["bad_label"] == 0


def test_an_error_that_its_format_does_not_hold_is_counted():
    run = train(loss_of(2, Format(8, 0), Format(8, 7)), [[99], [99]], [[0], [1]])
    assert run["o_error"] == [[127], [0]]
    assert run.sampled["clipped"] == 1


def test_a_target_outside_0_to_1_is_reported():
    loss = loss_of(1, Format(8, 4), Format(10, 8))
    run = train(loss, [[1]] * 5, [[0], [16], [17], [-1], [-128]], stall=0.5)
    assert run.pulses["bad_label"] == 3


def test_without_training_logits_pass_and_no_target_is_taken():
    logits = random_lanes(random.Random(5), 16, 1, 60)
    run = run_streams(
        BinaryCrossEntropy(loss_of(), Rounding.HALF_EVEN),
        {"i": logits},
        {"o_logits": 60, "o_error": 0},
        count_pulses=["sample_done"],
    )
    assert run["o_logits"] == logits
    assert run.times["i"][-1] - run.times["i"][0] == 59
    assert run.pulses["sample_done"] == 20


@pytest.mark.parametrize(("outputs", "frac"), [(10, 14), (3, 7), (2, 0), (1, 14), (1, 0)])
def test_interval_and_latency_are_as_stated(outputs, frac):
    loss = loss_of(outputs, error=Format(16, frac))
    run = train(loss, *random_words(1, loss, 12 * outputs))
    dut = BinaryCrossEntropy(loss, Rounding.HALF_EVEN)
    plan = Plan("loss", (), loss, batch_max=1)
    assert dut.interval == plan.loss_interval == outputs * -(-(frac + 1) // 2)
    assert run.times["o_error"][0] - run.times["i"][0] == dut.latency
    assert run.times["o_error"][outputs - 1] - run.times["i"][outputs - 1] == plan.loss_latency
    for name in ("i", "o_error"):
        starts = run.times[name][::outputs]
        assert {b - a for a, b in zip(starts[-5:], starts[-4:], strict=False)} == {dut.interval}


def test_reset_in_mid_sample_starts_at_a_first_logit():
    loss = loss_of(3, Format(8, 4), Format(10, 8))
    train(loss, *random_words(9, loss, 30), stall=0.5, reset_at=50)


@pytest.mark.parametrize(
    ("feature", "error", "message"),
    [
        (Format(8, 4), Format(8, -1), "loss.error.frac must be at least 0 bits, not -1"),
        (Format(8, -1), Format(8, 4), "loss.feature.frac must be 0 to 6 bits, not -1"),
        (Format(8, 7), Format(8, 4), "loss.feature.frac must be 0 to 6 bits, not 7"),
    ],
)
def test_formats_that_hold_no_target_or_quotient_are_refused(feature, error, message):
    with pytest.raises(PlanError) as caught:
        BinaryCrossEntropy(loss_of(3, feature, error), Rounding.HALF_EVEN)
    assert str(caught.value) == message
