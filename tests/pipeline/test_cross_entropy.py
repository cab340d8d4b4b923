# amaranth: UnusedElaboratable=no
# ruff: noqa: ERA001
"""Cross-entropy gives the integer softmax minus the one-hot label, exactly."""

import random

import pytest
import torch

from gradweave.model.errors import PlanError
from gradweave.model.fixed import requantize
from gradweave.model.formats import Format, Rounding
from gradweave.model.pipeline import cross_entropy as golden
from gradweave.model.pipeline.softmax import probabilities
from gradweave.model.plan import LossPlan, Plan
from gradweave.rtl.pipeline.cross_entropy import CrossEntropy
from gradweave.tests.streams import random_lanes, run_streams


def reference(samples, labels, loss, rounding):
    """The errors of all samples, a word each, and how many saturated."""
    logits, classes = torch.tensor(samples), torch.tensor(labels)
    if max(labels) <= loss.target_range[1]:
        errors, clipped = golden.error(logits, classes, loss, rounding)
    else:
        # The golden model is never given such a label: no logit matches it.
        matches = classes[:, None] == torch.arange(loss.outputs)
        exact = probabilities(logits, loss.feature, loss.error.frac, rounding)
        exact -= matches * (1 << loss.error.frac)
        errors, clipped = requantize(exact, loss.error.frac, loss.error, rounding)
    return errors.reshape(-1, 1).tolist(), clipped


def train(loss, samples, labels, rounding=Rounding.HALF_EVEN, **options):
    words = [[logit] for sample in samples for logit in sample]
    run = run_streams(
        CrossEntropy(loss, rounding),
        {"i": words, "target": labels},
        {"o_logits": len(words), "o_error": len(words)},
        set_up={"training": 1},
        sample=["clipped"],
        count_pulses=["sample_done", "bad_label"],
        **options,
    )
    errors, clipped = reference(samples, labels, loss, rounding)
    assert run["o_logits"] == words
    assert run["o_error"] == errors
    assert run.sampled["clipped"] == clipped
    assert run.pulses["sample_done"] == len(samples)
    return run


def random_samples(seed, outputs, width, count):
    """Samples of all kinds: wide apart, close together, equal, at the edges."""
    rng = random.Random(seed)
    samples = []
    for n in range(count):
        words = random_lanes(rng, max(2, width - n % 4 * width // 4), 1, outputs)
        samples.append([word[0] for word in words])
    samples[-1] = [samples[-1][0]] * outputs
    return samples, [rng.randrange(outputs) for _ in range(count)]


def test_equal_logits_share_one():
    # Each of 4 equal logits has probability 1/4 = 64 * 2**-8; the label's error is 64 - 256.
    loss = LossPlan("cross_entropy", 4, Format(8, 4), Format(10, 8))
    run = train(loss, [[5, 5, 5, 5]], [2])
    assert run["o_error"] == [[64], [64], [-192], [64]]


def test_a_logit_far_below_has_no_part():
    # (m - z) * log2(e) saturates at 31.999 octaves, and T[1023] >> 31 = 0: the maximum takes all.
    loss = LossPlan("cross_entropy", 2, Format(16, 2), Format(8, 7))
    run = train(loss, [[32767, -32768]], [1])
    assert run["o_error"] == [[127], [-128]]
    assert run.sampled["clipped"] == 1


@pytest.mark.parametrize("stall", [0.0, 0.5])
@pytest.mark.parametrize(
    ("outputs", "feature", "error"),
    [
        (10, Format(16, 12), Format(16, 13)),
        (3, Format(8, 5), Format(8, 7)),
        (2, Format(12, -7), Format(16, 15)),
        (5, Format(16, 15), Format(12, 0)),
        (1, Format(8, 4), Format(8, 1)),
        (4, Format(6, 2), Format(24, 16)),
    ],
    ids=str,
)
def test_errors_are_right(outputs, feature, error, stall):
    loss = LossPlan("cross_entropy", outputs, feature, error)
    samples, labels = random_samples(outputs, outputs, feature.width, 12)
    run = train(loss, samples, labels, stall=stall, seed=outputs)
    assert run.pulses["bad_label"] == 0


def weighted(outputs, feature, error, weights=(), frac=0, ignore=-100):
    return LossPlan(
        "cross_entropy",
        outputs,
        feature,
        error,
        class_weights=weights,
        weight_frac=frac,
        ignore_index=ignore,
    )


def test_a_weight_multiplies_the_errors_of_its_label():
    # Weight 3/2 of class 2: 1.5 * 64 and 1.5 * -192; of class 0, 1/2; class 4 is ignored.
    loss = weighted(4, Format(8, 4), Format(12, 8), (1, 2, 3, 4), 1)
    run = train(loss, [[5, 5, 5, 5]] * 3, [2, 0, 4])
    assert run["o_error"][:4] == [[96], [96], [-288], [96]]
    assert run["o_error"][4:8] == [[-96], [32], [32], [32]]
    assert run["o_error"][8:] == [[0]] * 4
    assert run.pulses["bad_label"] == 0


@pytest.mark.parametrize("stall", [0.0, 0.5])
@pytest.mark.parametrize(
    ("rounding", "loss"),
    [
        (Rounding.HALF_EVEN, weighted(3, Format(16, 12), Format(16, 13), (50000, 0, 17), 15)),
        (Rounding.HALF_UP, weighted(5, Format(8, 5), Format(8, 4), (3, 1, 4, 1, 5))),
        (Rounding.HALF_EVEN, weighted(2, Format(12, -7), Format(16, 14))),
        (Rounding.FLOOR, weighted(3, Format(16, 10), Format(16, 14), (1, 65535, 300), 16, None)),
        (Rounding.HALF_EVEN, weighted(3, Format(10, 6), Format(6, 4), (65535, 1, 40000), 13, 1)),
    ],
    ids=["below_2", "integers", "ignored", "below_1", "clipped"],
)
def test_weighted_errors_are_right(loss, rounding, stall):
    samples, _ = random_samples(loss.outputs, loss.outputs, loss.feature.width, 12)
    rng = random.Random(3)
    labels = [rng.randint(0, loss.target_range[1]) for _ in samples]
    run = train(loss, samples, labels, rounding, stall=stall, seed=loss.outputs)
    assert run.pulses["bad_label"] == 0


def test_an_unknown_label_beside_an_ignored_one_is_reported_and_gives_no_error():
    loss = weighted(3, Format(8, 4), Format(10, 8), (1, 1, 1))
    words = [[logit] for logit in (1, 2, 3)] * 3
    run = run_streams(
        CrossEntropy(loss, Rounding.HALF_EVEN),
        {"i": words, "target": [4, 3, 2**32 - 1]},
        {"o_logits": 9, "o_error": 9},
        set_up={"training": 1},
        count_pulses=["bad_label"],
    )
    assert run["o_error"] == [[0]] * 9
    assert run.pulses["bad_label"] == 2


def test_exponents_round_as_the_plan_says():
    loss = LossPlan("cross_entropy", 4, Format(10, 6), Format(20, 17))
    samples, labels = random_samples(7, 4, 10, 12)
    train(loss, samples, labels, Rounding.HALF_UP)
    run = train(loss, samples, labels, Rounding.FLOOR)
    halves, _ = reference(samples, labels, loss, Rounding.HALF_EVEN)
    assert run["o_error"] != halves


def test_an_unknown_label_is_reported_and_matches_nothing():
    loss = LossPlan("cross_entropy", 3, Format(8, 4), Format(10, 8))
    run = train(loss, [[1, 2, 3]] * 4, [3, 2, 2**32 - 1, 2**31], stall=0.5)
    assert run.pulses["bad_label"] == 3


def test_without_training_logits_pass_and_no_label_is_taken():
    words = random_lanes(random.Random(5), 8, 1, 60)
    run = run_streams(
        CrossEntropy(LossPlan("cross_entropy", 3, Format(8, 4), Format(10, 8)), Rounding.HALF_EVEN),
        {"i": words},
        {"o_logits": 60, "o_error": 0},
        count_pulses=["sample_done"],
    )
    assert run["o_logits"] == words
    assert run.times["i"][-1] - run.times["i"][0] == 59
    assert run.pulses["sample_done"] == 20


@pytest.mark.parametrize(("outputs", "frac"), [(10, 13), (10, 12), (2, 7), (3, 0), (1, 0)])
def test_interval_and_latency_are_as_stated(outputs, frac):
    check_timing(LossPlan("cross_entropy", outputs, Format(16, 12), Format(16, frac)), frac)


@pytest.mark.parametrize(("outputs", "frac"), [(10, 13), (2, 7), (3, 0)])
def test_interval_and_latency_with_weights_are_as_stated(outputs, frac):
    # A largest weight of 5 asks for 3 more bits of each probability.
    weights = (5,) * outputs
    check_timing(weighted(outputs, Format(16, 12), Format(16, frac), weights), frac + 3)
    check_timing(weighted(outputs, Format(16, 12), Format(16, frac)), frac)


def check_timing(loss, frac):
    outputs = loss.outputs
    samples, labels = random_samples(1, outputs, 16, 12)
    run = train(loss, samples, labels)
    dut = CrossEntropy(loss, Rounding.HALF_EVEN)
    plan = Plan("loss", (), loss, batch_max=1)
    assert dut.interval == plan.loss_interval == outputs * -(-(frac + 1) // 2)
    assert run.times["o_error"][0] - run.times["i"][0] == dut.latency
    assert run.times["o_error"][outputs - 1] - run.times["i"][outputs - 1] == plan.loss_latency
    for name in ("i", "o_error"):
        starts = run.times[name][::outputs]
        assert {b - a for a, b in zip(starts[-5:], starts[-4:], strict=False)} == {dut.interval}


def test_reset_in_mid_sample_starts_at_a_first_logit():
    loss = LossPlan("cross_entropy", 3, Format(8, 4), Format(10, 8))
    samples, labels = random_samples(9, 3, 8, 10)
    train(loss, samples, labels, stall=0.5, reset_at=50)


def test_a_negative_error_frac_is_refused():
    loss = LossPlan("cross_entropy", 3, Format(8, 4), Format(10, -1))
    with pytest.raises(PlanError) as caught:
        CrossEntropy(loss, Rounding.HALF_EVEN)
    assert str(caught.value) == "loss.error.frac must be at least 0 bits, not -1"
