"""ReLU passes what is positive, forward and backward, a word per cycle."""

import random

import pytest
import torch

from gradweave.model.formats import Format, Rounding
from gradweave.model.pipeline.relu import Relu as Golden
from gradweave.model.plan import Buffers, LayerPlan
from gradweave.model.step import Step
from gradweave.rtl.pipeline.relu import Relu
from gradweave.tests.streams import random_lanes, run_streams

SHAPE = (4, 3, 5)


def layer(lanes=2, backward=True, index_words=32):
    feature, error = Format(12, 8), Format(10, 9)
    return LayerPlan(
        name="relu",
        kind="relu",
        i_shape=SHAPE,
        o_shape=SHAPE,
        i_feature=feature,
        o_feature=feature,
        i_error=error,
        o_error=error,
        backward=backward,
        lanes=lanes,
        buffers=Buffers(index_words=index_words),
    )


def relu(*options, **named):
    return Relu(layer(*options, **named), Rounding.HALF_EVEN)


def forward(words):
    golden = Golden(layer(), Rounding.HALF_EVEN)
    return golden.forward(torch.tensor(words), Step(True))[0].tolist()


def backward(features, errors):
    golden = Golden(layer(), Rounding.HALF_EVEN)
    golden.forward(torch.tensor(features), Step(True))
    return golden.backward(torch.tensor(errors))[0].tolist()


def test_the_gradient_at_zero_is_zero():
    run = run_streams(
        relu(lanes=4),
        {"i": [[5, 0, -7, 1]], "o_error": [[3, 4, 5, -6]]},
        {"o": 1, "i_error": 1},
        set_up={"training": 1},
    )
    assert run["o"] == [[5, 0, 0, 1]]
    assert run["i_error"] == [[3, 0, 0, -6]]


@pytest.mark.parametrize("stall", [0.0, 0.5])
@pytest.mark.parametrize(("lanes", "index_words"), [(1, 64), (2, 30), (4, 1), (4, 2), (4, 3)])
def test_features_and_errors_are_right(lanes, index_words, stall):
    rng = random.Random(lanes)
    features = random_lanes(rng, 12, lanes, 120)
    errors = random_lanes(rng, 10, lanes, 120)
    run = run_streams(
        relu(lanes, index_words=index_words),
        {"i": features, "o_error": errors},
        {"o": 120, "i_error": 120},
        stall=stall,
        seed=index_words,
        set_up={"training": 1},
    )
    assert run["o"] == forward(features)
    assert run["i_error"] == backward(features, errors)


def test_without_training_no_mask_is_kept():
    features = random_lanes(random.Random(2), 12, 2, 50)
    run = run_streams(relu(index_words=4), {"i": features}, {"o": 50, "i_error": 0})
    assert run["o"] == forward(features)


def test_features_wait_while_all_masks_are_waiting():
    with pytest.raises(AssertionError, match=r"^deadline .*'i': 4, 'o': 4"):
        run_streams(
            relu(index_words=4),
            {"i": [[1, 2]] * 5},
            {"o": 5},
            set_up={"training": 1},
            deadline_cycles=60,
        )


def test_a_first_layer_has_no_error_streams():
    features = random_lanes(random.Random(3), 12, 2, 50)
    dut = relu(backward=False, index_words=0)
    assert set(dut.signature.members) == {"i", "o", "training", "clear"}
    run = run_streams(dut, {"i": features}, {"o": 50}, stall=0.5, set_up={"training": 1})
    assert run["o"] == forward(features)


def test_interval_and_latency_are_as_stated():
    dut = relu(lanes=2, index_words=64)
    words = 3 * dut.interval
    run = run_streams(
        dut,
        {"i": [[1, -1]] * words, "o_error": [[1, 1]] * words},
        {"o": words, "i_error": words},
        set_up={"training": 1},
    )
    assert dut.interval == dut.layer.fp_interval == dut.layer.eb_interval == 30
    for source, result in (("i", "o"), ("o_error", "i_error")):
        first = run.times[source][0]
        assert run.times[source] == [first + n for n in range(words)]
        assert run.times[result] == [first + n + dut.latency for n in range(words)]


def test_reset_in_mid_stream_drops_words_and_masks():
    rng = random.Random(8)
    features, errors = random_lanes(rng, 12, 2, 60), random_lanes(rng, 10, 2, 60)
    run = run_streams(
        relu(index_words=7),
        {"i": features, "o_error": errors},
        {"o": 60, "i_error": 60},
        stall=0.5,
        set_up={"training": 1},
        reset_at=11,
    )
    assert run["o"] == forward(features)
    assert run["i_error"] == backward(features, errors)
