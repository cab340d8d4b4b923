# amaranth: UnusedElaboratable=no
# ruff: noqa: ERA001
"""The linear layer in RTL against its golden model."""

from dataclasses import replace

import pytest

from gradweave.model.errors import PlanError
from gradweave.model.formats import Rounding
from gradweave.model.plan import Buffers, LayerPlan
from gradweave.rtl.pipeline.linear import Linear
from gradweave.tests.layer_bench import HYPER, train_layer
from gradweave.tests.plans import chain, linear


def layer_of(shape: tuple[int, int, int], outputs: int, **folding) -> LayerPlan:
    layer = chain(shape, linear("fc", outputs, **folding)).layers[0]
    return replace(
        layer, backward=True, buffers=Buffers(2 * shape[1], 2, 4 * shape[1], 2 * outputs, 0)
    )


@pytest.mark.parametrize("stall", [0.0, 0.5])
@pytest.mark.parametrize(
    ("shape", "outputs", "folding"),
    [
        ((6, 1, 1), 4, {"a": 2, "b": 3}),
        ((2, 3, 4), 5, {"a": 1, "b": 2}),
        ((3, 2, 2), 6, {"a": 3, "b": 1, "update_lanes": 3}),
        ((1, 1, 1), 1, {}),
    ],
)
def test_maps_and_vectors_give_the_golden_bits(shape, outputs, folding, stall):
    got, expected = train_layer(layer_of(shape, outputs, **folding), stall=stall)
    assert got.o == expected.o
    assert got.i_error == expected.i_error
    assert got.masters == expected.masters
    assert got.momenta == expected.momenta


def test_the_interval_is_weights_over_multipliers():
    layer = layer_of((4, 2, 2), 6, a=2, b=2, delay=4, back_delay=4)
    got, _ = train_layer(layer, batches=6, hyper=replace(HYPER, batch=1))
    ends = got.times["o"][layer.o_blocks - 1 :: layer.o_blocks]
    assert layer.fp_interval == 4 * 2 * 2 * 6 // 4
    assert got.counts["fp"]["busy"] == 6 * layer.fp_interval
    assert ends[1] - ends[0] == layer.fp_interval


def test_a_kernel_that_is_not_the_map_is_refused():
    layer = replace(layer_of((2, 3, 3), 2), kernel=(2, 2), o_shape=(2, 2, 2))
    message = r"fc: a linear layer's kernel must be its map \(3, 3\) without padding, not \(2, 2\)"
    with pytest.raises(PlanError, match=message):
        Linear(layer, batch_max=8, rounding=Rounding.HALF_EVEN)
