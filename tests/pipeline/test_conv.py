"""The convolution in RTL against its golden model, every output, error, weight and momentum."""

import re
from dataclasses import replace

import pytest

from gradweave.model.errors import PlanError
from gradweave.model.formats import Format, Rounding
from gradweave.model.hyper import Hyper
from gradweave.model.plan import Buffers, LayerPlan
from gradweave.tests.layer_bench import HYPER, train_layer
from gradweave.tests.plans import PARAMETER, chain, conv


def layer_of(
    shape: tuple[int, int, int] = (4, 5, 5),
    outputs: int = 4,
    *,
    backward: bool = True,
    rows: tuple[int, int, int] | None = None,
    **spec,
) -> LayerPlan:
    """The plan of one convolution with roomy windows."""
    layer = chain(shape, conv("conv", outputs, **{"kernel": 3, "padding": 1, **spec})).layers[0]
    fp, eb, wg = rows or (shape[1] + 2, layer.o_shape[1] + 2, 3 * shape[1])
    return replace(layer, backward=backward, buffers=Buffers(fp, eb, wg, 16, 0))


def assert_equal(layer: LayerPlan, **options) -> None:
    got, expected = train_layer(layer, **options)
    assert got.o == expected.o
    assert got.i_error == expected.i_error
    assert got.masters == expected.masters
    assert got.momenta == expected.momenta
    assert got.saturated == expected.saturated


FOLDINGS = [(1, 1, 1), (2, 2, 2), (4, 2, 4), (2, 4, 8), (4, 4, 8), (4, 1, 2)]


@pytest.mark.parametrize(("a", "b", "update_lanes"), FOLDINGS)
def test_every_folding_gives_the_golden_bits(a, b, update_lanes):
    layer = layer_of((4, 2, 1), kernel=(2, 1), padding=(1, 0), a=a, b=b, update_lanes=update_lanes)
    assert_equal(layer, batches=2, stall=0.5 if b > 1 else 0.0)


@pytest.mark.slow
@pytest.mark.parametrize("stall", [0.0, 0.5])
@pytest.mark.parametrize(("a", "b", "update_lanes"), FOLDINGS)
def test_every_folding_gives_the_golden_bits_on_larger_maps(a, b, update_lanes, stall):
    layer = layer_of((4, 4, 5), a=a, b=b, update_lanes=update_lanes, delay=1)
    assert_equal(layer, batches=4, stall=stall)


@pytest.mark.parametrize(
    ("shape", "kernel", "stride", "padding"),
    [
        ((2, 1, 1), 1, 1, 0),
        ((2, 7, 4), 2, 3, 0),
        ((2, 6, 5), 3, 2, 1),
        ((2, 3, 2), 5, 1, 2),
        ((2, 3, 3), 3, 1, 0),
        ((2, 4, 6), (1, 3), (1, 2), (0, 1)),
        ((2, 3, 3), 2, 1, 2),
    ],
)
def test_every_shape_gives_the_golden_bits(shape, kernel, stride, padding):
    layer = layer_of(shape, 2, kernel=kernel, stride=stride, padding=padding, a=2, b=1)
    assert_equal(layer, hyper=replace(HYPER, batch=1), stall=0.2)


@pytest.mark.parametrize("stall", [0.0, 0.5])
@pytest.mark.parametrize(
    ("shape", "kernel", "stride", "padding", "a", "b", "update_lanes"),
    [
        ((1, 4, 4), 3, 1, 1, 2, 3, 6),
        ((1, 4, 4), 3, 1, 1, 1, 1, 1),
        ((3, 3, 5), 3, (1, 2), 1, 2, 9, 2),
        ((2, 5, 4), (3, 2), 2, (1, 0), 2, 2, 4),
        ((2, 3, 5), (1, 3), (1, 3), (0, 1), 1, 6, 3),
        ((1, 2, 3), 2, 1, 2, 2, 1, 1),
    ],
)
def test_unfolded_kernels_give_the_golden_bits(
    shape, kernel, stride, padding, a, b, update_lanes, stall
):
    folding = {"a": a, "b": b, "update_lanes": update_lanes, "unfold": True}
    spans = {"kernel": kernel, "stride": stride, "padding": padding}
    layer = layer_of(shape, 2, backward=False, **spans, **folding)
    assert_equal(layer, hyper=replace(HYPER, batch=1), stall=stall)


def test_an_unfolded_layer_takes_its_planned_interval():
    layer = layer_of((1, 4, 5), 4, backward=False, a=4, b=3, delay=4, unfold=True)
    got, _ = train_layer(layer, batches=5, hyper=replace(HYPER, batch=1))
    assert layer.fp_interval == (3 * 4 - 2) * 5
    ends = got.times["o"][4 * 5 - 1 :: 4 * 5]
    assert ends[-1] - ends[-2] == layer.fp_interval
    assert got.counts["fp"]["busy"] == got.counts["wg"]["busy"] == 5 * layer.fp_interval


@pytest.mark.parametrize(("delay", "back_delay"), [(1, 0), (2, 1), (3, 3)])
def test_delayed_versions_give_the_golden_bits(delay, back_delay):
    layer = layer_of((2, 3, 2), 2, a=2, b=2, delay=delay, back_delay=back_delay)
    assert_equal(layer, batches=6, hyper=replace(HYPER, batch=1), stall=0.3)


@pytest.mark.parametrize("rounding", [Rounding.HALF_UP, Rounding.FLOOR])
def test_the_other_roundings_give_the_golden_bits(rounding):
    assert_equal(layer_of((2, 3, 3), 2, a=1, b=2), batches=2, rounding=rounding)


@pytest.mark.parametrize(("backward", "bias"), [(False, None), (False, PARAMETER), (True, None)])
def test_first_layers_and_layers_without_bias_give_the_golden_bits(backward, bias):
    layer = layer_of((2, 3, 3), 2, a=2, b=1, backward=backward, bias=bias)
    assert_equal(layer, batches=2)


def test_large_values_saturate_and_are_counted_as_in_the_golden_model():
    layer = layer_of((2, 3, 3), 2, a=2, b=1, feature=Format(16, 13), error=Format(16, 15))
    got, expected = train_layer(layer, batches=2, scale=15)
    assert got.o == expected.o
    assert got.saturated == expected.saturated
    assert got.saturated["o_feature"] > 0
    assert got.saturated["i_error"] > 0


def test_nesterov_and_weight_decay_give_the_golden_bits():
    hyper = Hyper(2, 40000, 18, 60000, True, decay_mantissa=40000, decay_shift=19)
    assert_equal(layer_of((2, 3, 3), 2, a=2, b=2, update_lanes=2), batches=2, hyper=hyper)


def test_narrow_and_mixed_formats_give_the_golden_bits():
    narrow = replace(PARAMETER, working=Format(6, 4))
    layer = layer_of(
        (2, 3, 3), 2, a=2, b=2, weight=narrow, feature=Format(8, 4), error=Format(10, 8)
    )
    assert_equal(layer, batches=2)


def test_engines_take_their_planned_intervals():
    layer = layer_of((2, 3, 4), 4, a=2, b=2, delay=2, back_delay=2)
    got, _ = train_layer(layer, batches=5, hyper=replace(HYPER, batch=1))
    per_sample = 3 * 4 * layer.o_blocks
    ends = got.times["o"][per_sample - 1 :: per_sample]
    assert ends[-1] - ends[-2] == layer.fp_interval
    for engine, interval in (("fp", layer.fp_interval), ("eb", layer.eb_interval)):
        assert got.counts[engine]["busy"] == 5 * interval
    assert got.counts["wg"]["busy"] == 5 * layer.fp_interval
    assert layer.fp_interval == (3 * 3 - 2) * (4 * 3 - 2) * 2


def test_the_smallest_window_gives_the_same_bits():
    assert_equal(layer_of((2, 4, 4), 2, a=2, b=2, rows=(3, 3, 4)), batches=2, stall=0.3)


def test_large_values_of_a_grouped_layer_saturate_as_in_the_golden_model():
    layer = layer_of((4, 3, 3), 4, groups=2, a=2, b=2, feature=Format(16, 13), error=Format(16, 15))
    got, expected = train_layer(layer, batches=2, scale=15)
    assert got.o == expected.o
    assert got.i_error == expected.i_error
    assert got.saturated == expected.saturated
    assert got.saturated["o_feature"] > 0
    assert got.saturated["i_error"] > 0


def test_engines_of_a_depthwise_layer_take_their_planned_intervals():
    layer = layer_of((4, 3, 4), 8, groups=4, a=2, b=1, group_lanes=2, delay=2, back_delay=2)
    assert (layer.i_blocks, layer.o_blocks, layer.fp_inner, layer.eb_inner) == (2, 2, 1, 1)
    assert layer.fp_interval == layer.eb_interval == (3 * 3 - 2) * (4 * 3 - 2) * 2
    got, expected = train_layer(layer, batches=5, hyper=replace(HYPER, batch=1))
    assert got.masters == expected.masters
    per_sample = 3 * 4 * layer.o_blocks
    ends = got.times["o"][per_sample - 1 :: per_sample]
    assert ends[-1] - ends[-2] == layer.fp_interval
    busy = {engine: got.counts[engine]["busy"] for engine in ("fp", "eb", "wg")}
    assert busy == dict.fromkeys(("fp", "eb", "wg"), 5 * layer.fp_interval)


@pytest.mark.parametrize(
    ("folding", "message"),
    [
        ({"a": 5, "b": 2}, "conv: folding (5, 2) must be from (1, 1) to channels (4, 4)"),
        ({"groups": 3}, "conv: groups must divide channels (4, 4), not 3"),
        (
            {"groups": 2, "a": 4},
            "conv: folding (4, 1) must be from (1, 1) to a group's channels (2, 2)",
        ),
        (
            {"groups": 2, "a": 2, "b": 1, "group_lanes": 2},
            "conv: group_lanes must divide 2 groups, and be 1 unless folding (2, 1) is a whole "
            "group (2, 2), not 2",
        ),
        (
            {"groups": 4, "group_lanes": 3},
            "conv: group_lanes must divide 4 groups, and be 1 unless folding (1, 1) is a whole "
            "group (1, 1), not 3",
        ),
        (
            {"groups": 2, "a": 2, "b": 2, "group_lanes": 2, "update_lanes": 3},
            "conv: update_lanes must divide a * group_lanes, or be a * group_lanes times a "
            "divisor of b, not 3",
        ),
    ],
)
def test_a_folding_that_cannot_be_is_refused(folding, message):
    with pytest.raises(PlanError, match=f"^{re.escape(message)}$"):
        layer_of(**folding)
