"""The plan as data: JSON and back, an identity that every field changes, derived sizes by hand."""

import dataclasses
import json

import pytest

from gradweave.host.planner import plan_design
from gradweave.model import plan as plan_module
from gradweave.model.errors import PlanError
from gradweave.model.formats import Format
from gradweave.model.plan import Plan
from gradweave.tests.chains import DIGITS, chain, formats_of


@pytest.fixture(scope="module")
def plan():
    return plan_design(DIGITS, formats_of(DIGITS), batch=8, versions="delayed")


def changes(value):
    """Copies of plain data, each with one leaf changed."""
    if isinstance(value, dict):
        for key in value:
            for changed in changes(value[key]):
                yield {**value, key: changed}
    elif isinstance(value, list):
        for n in range(len(value)):
            for changed in changes(value[n]):
                yield [*value[:n], changed, *value[n + 1 :]]
    elif isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield value + 1
    elif isinstance(value, str):
        yield value + "x"


def test_json_brings_back_the_very_plan(plan):
    again = Plan.from_json(plan.to_json())
    assert again == plan
    assert again.identity == plan.identity


def test_every_field_changes_the_identity(plan):
    raw = json.loads(plan.to_json())
    identities = {plan.identity}
    count = 1
    for changed in changes(raw):
        try:
            other = Plan.from_json(json.dumps(changed))
        except PlanError:
            continue  # such as a folding that no longer divides the channels
        identities.add(other.identity)
        count += 1
    assert count > 200
    assert len(identities) == count


def test_a_newer_generator_changes_the_identity(plan, monkeypatch):
    monkeypatch.setattr(plan_module, "GENERATOR_VERSION", plan_module.GENERATOR_VERSION + 1)
    assert dataclasses.replace(plan, seed=plan.seed).identity != plan.identity


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"layers": 3}'])
def test_what_is_no_plan_is_refused(text):
    with pytest.raises(PlanError, match=r"^plan must be JSON as written by Plan\.to_json; "):
        Plan.from_json(text)


@pytest.mark.parametrize(("a", "b"), [(17, 4), (0, 4), (4, 9), (4, 0)])
def test_a_folding_must_have_channels(plan, a, b):
    with pytest.raises(PlanError) as error:
        dataclasses.replace(plan.layer("conv2"), a=a, b=b, update_lanes=1)
    assert str(error.value) == f"conv2: folding ({a}, {b}) must be from (1, 1) to channels (16, 8)"


def test_a_folding_that_does_not_divide_has_pad_lanes(plan):
    layer = dataclasses.replace(plan.layer("conv2"), a=3, b=5, update_lanes=1)
    assert (layer.o_blocks, layer.i_blocks) == (6, 2)
    assert layer.weight_words == 6 * 2 * 9
    even = dataclasses.replace(layer, a=1, b=1)
    assert layer.fp_interval * 16 * 8 == even.fp_interval * 6 * 2


def test_an_unfolded_layer_is_that_of_a_kernel_of_one_column(plan):
    graph = chain((3, 7, 6), ("conv", 8, 3, 2, 1), ("fc", 4))
    layers = plan_design(graph, formats_of(graph), batch=4).layers
    layer = dataclasses.replace(layers[0], a=4, b=3, update_lanes=1, unfold=True)
    seen = layer.hardware
    assert (seen.i_shape, seen.o_shape) == ((9, 7, 3), (8, 4, 3))
    assert (seen.kernel, seen.stride, seen.padding) == ((3, 1), (2, 1), (1, 0))
    assert (layer.i_lanes, layer.i_blocks, layer.weight_words) == (3, 3, 2 * 3 * 3)
    assert layer.fp_interval == seen.fp_interval == (2 + 3 + 3 + 2) * 3 * 2 * 3
    assert layer.fp_acc_width == seen.fp_acc_width
    # Eight columns with padding, of which the last is not read, three vectors of three words.
    assert layer.i_row_cycles == 7 + 3 * 2
    assert dataclasses.replace(layer, b=1, unfold=False).hardware.kernel == (3, 3)


def test_unfolding_is_refused_where_it_cannot_be(plan):
    for name in ("conv2", "fc5", "relu1"):
        with pytest.raises(PlanError) as error:
            dataclasses.replace(plan.layer(name), unfold=True)
        assert str(error.value) == (
            f"{name}: unfold must be a conv2d's that passes no error down, of one group and "
            "without dilation"
        )
    with pytest.raises(PlanError) as error:
        dataclasses.replace(plan.layer("conv0"), unfold=True, a=1, b=4, update_lanes=1)
    assert str(error.value) == "conv0: folding (1, 4) must be from (1, 1) to channels (8, 3)"


def test_update_lanes_must_fit_words(plan):
    with pytest.raises(PlanError) as error:
        dataclasses.replace(plan.layer("conv2"), a=4, b=2, update_lanes=3)
    assert str(error.value) == (
        "conv2: update_lanes must divide a, or be a times a divisor of b, not 3"
    )


def test_lanes_must_divide_the_channels(plan):
    with pytest.raises(PlanError) as error:
        dataclasses.replace(plan.layer("relu1"), lanes=3)
    assert str(error.value) == "relu1: lanes must divide 8 channels, not 3"


def test_an_unknown_layer_lists_the_known_ones(plan):
    with pytest.raises(PlanError) as error:
        plan.layer("fc9")
    assert str(error.value) == (
        "layer must be one of ['conv0', 'relu1', 'conv2', 'relu3', 'pool4', 'fc5'], not 'fc9'"
    )


def test_intervals_and_widths_worked_by_hand():
    graph = chain((4, 6, 6), ("conv", 8, 3, 1, 1), "relu", ("conv", 6, 3, 2, 0), ("fc", 4))
    layers = plan_design(graph, formats_of(graph), batch=4).layers
    conv = dataclasses.replace(layers[0], a=4, b=2, update_lanes=2, unfold=False)
    assert conv.weight_words == 2 * 3 * 3 * 2
    assert conv.sweep_chunks == 36 * 4 + 2 * 2  # 4 chunks a word, then 2 blocks of 4 biases
    assert conv.fp_interval == 16 * 16 * 2 * 2  # border rows have 2 of 3 taps: 2 + 4 * 3 + 2
    assert conv.eb_interval == 0
    assert not conv.backward
    strided = dataclasses.replace(layers[2], a=6, b=8, update_lanes=1)
    assert strided.fp_interval == (2 * 3) ** 2
    # Inputs 0 to 4 have 1, 1, 2, 1, 1 taps; input 5 has none and costs a null beat.
    assert strided.eb_interval == 7 * 7
    # 72 * 2**30 needs 37 bits and a sign, and the aligned bias one more.
    assert strided.i_feature == Format(16, 10)
    assert strided.fp_acc_width == 39
    assert strided.wg_acc_width(4) == 36  # 4 pixels, 4 samples: 2**34 and a sign
    assert strided.bias_acc_width(4) == 20


def test_a_narrow_input_window_bounds_the_interval():
    # A 1x1 kernel of stride 4 multiplies 4 pixels but its window takes all 64, one channel a cycle.
    graph = chain((8, 8, 8), ("conv", 8, 1, 4, 0), ("fc", 2), loss="mse")
    plan = plan_design(graph, formats_of(graph), batch=4)
    first = dataclasses.replace(plan.layers[0], a=8, b=1, update_lanes=1, unfold=False)
    narrow = dataclasses.replace(plan, layers=(first, *plan.layers[1:]))
    assert first.fp_interval == 4 * 8
    assert narrow.interval == 64 * 8
