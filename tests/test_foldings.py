"""The table of a layer's foldings: every one that its plan accepts, with the figures it gives."""

from dataclasses import replace
from fractions import Fraction
from itertools import product

import pytest

from gradweave.host.foldings import FoldingTable, divisors
from gradweave.host.resources import multiplier_dsp, update_lane_dsp, update_memories
from gradweave.model.errors import PlanError
from gradweave.model.schedule import sweep_cycles
from gradweave.tests.plans import chain, conv

SAMPLES = Fraction(2)
# (input channels, outputs, groups)
LAYERS = [
    (4, 6, 1),
    (5, 17, 1),
    (10, 5, 5),
    (6, 14, 2),
    (4, 4, 4),
    (6, 12, 6),
    (4, 12, 2),
    (8, 4, 4),
]


def layer_of(inputs, outputs, groups):
    plan = chain((inputs, 3, 3), conv("conv", outputs, kernel=3, stride=2, padding=1))
    return plan, replace(plan.layers[0], groups=groups, backward=True, dilation=(1, 2))


def needed(channels):
    """Block sizes without which the number of blocks would be another."""
    return [
        n for n in range(1, channels + 1)
        if n == 1 or -(-channels // n) < -(-channels // (n - 1))
    ]  # fmt: skip


def accepted(layer):
    """Every folding by its definition: what the layer's plan does not refuse."""
    outputs, inputs = layer.group_shape
    sides = (needed(outputs), needed(inputs), divisors(layer.groups))
    for a, b, group_lanes in product(*sides):
        for lanes in divisors(a * b * group_lanes):
            try:
                yield replace(layer, a=a, b=b, group_lanes=group_lanes, update_lanes=lanes)
            except PlanError:
                continue


def key(layer):
    return layer.a, layer.b, layer.group_lanes, layer.update_lanes


@pytest.mark.parametrize(("inputs", "outputs", "groups"), LAYERS)
def test_the_table_has_every_folding_that_the_plan_accepts(inputs, outputs, groups):
    plan, layer = layer_of(inputs, outputs, groups)
    found = [key(x) for x in FoldingTable(plan, layer, SAMPLES).foldings]
    assert len(found) == len(set(found))
    assert set(found) == {key(x) for x in accepted(layer)}
    assert max(x[2] for x in found) == groups


@pytest.mark.parametrize(("inputs", "outputs", "groups"), LAYERS)
def test_interval_slices_and_memories_are_those_of_the_folded_layer(inputs, outputs, groups):
    plan, layer = layer_of(inputs, outputs, groups)
    table = FoldingTable(plan, layer, SAMPLES)
    for folding in table.foldings:
        folded = folding.apply(layer)
        sweep = -(-sweep_cycles(folded) // SAMPLES)
        writes = 9 * folded.i_blocks
        assert folding.interval == max(folded.fp_interval, folded.eb_interval, writes, sweep)
        products = folded.word_size * multiplier_dsp(folded)
        assert folding.dsp == products + folded.update_lanes * update_lane_dsp(folded)
        assert folding.dsp == table.floor(folding).dsp
        memories = update_memories(folded, folded.update_lanes, folded.sweep_chunks)
        assert folding.update_bram36 == memories.bram36


def test_a_depthwise_layer_by_hand():
    """Four channels, 3 x 3 taps, two outputs each, all at once: eight products an engine."""
    plan, layer = layer_of(4, 8, 4)
    layer = replace(layer, dilation=(1, 1))
    widest = min(FoldingTable(plan, layer, Fraction(1000)).foldings, key=lambda x: x.interval)
    assert (widest.a, widest.b, widest.group_lanes) == (2, 1, 4)
    # Rows and columns of 2 + 2 taps for outputs, 1 + 2 + 1 for inputs.
    assert widest.interval == 16
    assert replace(plan, layers=(widest.apply(layer),)).multipliers == 3 * 8
