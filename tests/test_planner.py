"""The planner: optimal against brute force, within budget, quick, clear about the impossible."""

import dataclasses
import functools
import itertools
import math
import time

import pytest

from gradweave.boards.catalog import load
from gradweave.host import planner
from gradweave.host.foldings import Folding, cheapest_sets, divisors
from gradweave.host.plan_table import binding_limit, plan_rows, plan_summary, plan_text
from gradweave.host.planner import plan_design
from gradweave.host.resources import (
    Resources,
    dsp_per_product,
    layer_resources,
    memory,
    plan_resources,
)
from gradweave.model.errors import PlanError
from gradweave.model.formats import Format
from gradweave.model.graph import Graph
from gradweave.model.schedule import (
    check_buffers,
    delays,
    interval_at,
    loop_intervals,
    size_buffers,
    steady_interval,
    sweep_cycles,
)
from gradweave.tests.chains import DIGITS, ERROR, LENET, chain, fold, formats_of

SMALL = chain((2, 4, 4), ("conv", 4, 3, 1, 1), "relu", ("fc", 2), loss="mse")
DIRECT = chain((2, 4, 4), ("conv", 4, 3, 1, 1), ("conv", 2, 1, 2, 0), ("fc", 2), loss="mse")
POOLED = chain((2, 4, 4), ("conv", 4, 3, 1, 1), "relu", ("pool", 2), ("fc", 2), loss="mse")
HEAVY = chain((4, 4, 4), ("conv", 4, 3, 1, 1), ("fc", 4), loss="mse")


def plan_of(graph, **options):
    return plan_design(graph, formats_of(graph), **{"batch": 16, **options})


def lanes_of(layer):
    for lanes in divisors(layer.a * layer.b):
        if layer.a % lanes == 0 or lanes % layer.a == 0:
            yield dataclasses.replace(layer, update_lanes=lanes)


def foldings_of(layer):
    """Every way to fold a layer, by its definition."""
    if not layer.trainable:
        return [dataclasses.replace(layer, lanes=n) for n in divisors(layer.i_shape[0])]
    pairs = itertools.product(divisors(layer.o_shape[0]), divisors(layer.i_shape[0]))
    folded = [dataclasses.replace(layer, a=a, b=b, update_lanes=1) for a, b in pairs]
    if layer.kind == "conv2d" and not layer.backward:
        columns = divisors(layer.i_shape[0] * layer.kernel[1])
        folded += [
            dataclasses.replace(layer, a=a, b=b, update_lanes=1, unfold=True)
            for a, b in itertools.product(divisors(layer.o_shape[0]), columns)
        ]
    return [x for layer in folded for x in lanes_of(layer)]


def every_plan(graph):
    empty = fold(plan_of(graph))
    for layers in itertools.product(*map(foldings_of, empty.layers)):
        yield dataclasses.replace(empty, layers=layers)


def flushed(plan, batch):
    """The interval where sweeps take at most a tenth of a mini-batch, or one sample's time."""
    sweeps = [math.ceil(sweep_cycles(x) / max(1, batch / 10)) for x in plan.trainable]
    return max(steady_interval(plan), *sweeps)


def delayed(plan, batch):
    """The interval in training with the least delays."""
    found = delays(plan, batch)
    layers = [
        dataclasses.replace(x, delay=found[x.name], back_delay=found[x.name]) if x.trainable else x
        for x in plan.layers
    ]
    return math.ceil(interval_at(dataclasses.replace(plan, layers=tuple(layers)), batch))


MEASURES = {"flush": flushed, "delayed": delayed}


@functools.cache
def all_of(graph, versions, batch):
    """Interval and DSP slices of every plan."""
    measure = MEASURES[versions]
    return [(measure(x, batch), plan_resources(x).dsp) for x in every_plan(graph)]


CASES = [
    pytest.param(SMALL, "flush", 16, id="small-flush"),
    pytest.param(DIRECT, "flush", 16, id="direct-flush"),
    pytest.param(POOLED, "flush", 16, id="pooled-flush"),
    pytest.param(SMALL, "delayed", 16, id="small-delayed"),
    pytest.param(SMALL, "delayed", 1, id="small-delayed-1"),
    pytest.param(DIRECT, "delayed", 16, id="direct-delayed", marks=pytest.mark.slow),
    pytest.param(DIRECT, "delayed", 1, id="direct-delayed-1", marks=pytest.mark.slow),
    pytest.param(POOLED, "delayed", 16, id="pooled-delayed", marks=pytest.mark.slow),
    pytest.param(POOLED, "delayed", 1, id="pooled-delayed-1", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("graph", "versions", "batch"), CASES)
def test_the_plan_is_the_best_of_all_within_the_budget(graph, versions, batch):
    measure = MEASURES[versions]
    seen = all_of(graph, versions, batch)
    for dsp in (40, 60, 90, 130, 200):
        within = [(interval, slices) for interval, slices in seen if slices <= dsp]
        plan = plan_of(graph, versions=versions, batch=batch, dsp=dsp)
        assert (measure(plan, batch), plan_resources(plan).dsp) == min(within)


@pytest.mark.parametrize("graph", [SMALL, DIRECT, POOLED], ids=["small", "direct", "pooled"])
def test_a_given_interval_is_kept_with_the_fewest_slices(graph):
    seen = all_of(graph, "flush", 16)
    for interval in (100, 250, 600, 5000):
        fewest = min(slices for cycles, slices in seen if cycles <= interval)
        plan = plan_of(graph, interval=interval)
        assert flushed(plan, 16) <= interval
        assert plan_resources(plan).dsp == fewest


def test_the_plan_is_the_best_of_all_when_block_rams_bind(monkeypatch):
    seen = []
    for plan in every_plan(HEAVY):
        cost = plan_resources(size_buffers(plan))
        seen.append((flushed(plan, 16), cost.dsp, cost.bram36, cost.lut))
    found = sorted({bram36 for *_, bram36, _ in seen})
    assert len(found) > 5
    bound = set()
    for bram36 in [x for x in found if x][:6]:
        board = dataclasses.replace(load("sim"), bram36=bram36)
        monkeypatch.setattr(planner, "load", lambda name, board=board: board)
        plan = plan_of(HEAVY)
        cost = plan_resources(plan)
        best = min(row for row in seen if row[1] <= board.dsp and row[2] <= bram36)
        assert (flushed(plan, 16), cost.dsp, cost.bram36) == best[:3]
        bound.add(best)
    assert len(bound) > 1, "the budgets must bind"


def test_sets_of_foldings_come_in_order_and_all():
    first = [Folding(1, 1, 1, 9, dsp) for dsp in (1, 4, 6)]
    second = [Folding(1, 1, 1, 9, dsp) for dsp in (2, 3, 9)]
    totals = [sum(x.dsp for x in found) for found in cheapest_sets([first, second], 11)]
    assert totals == [3, 4, 6, 7, 8, 9, 10]
    assert list(cheapest_sets([first, []], 11)) == []


# At mini-batches of 1 the sweeps' loops bind: many sets of foldings are scheduled in vain.
@pytest.mark.parametrize(
    ("versions", "batch", "seconds", "interval"),
    [
        ("flush", 1, 2, 5000),
        ("flush", 32, 2, 5000),
        ("delayed", 32, 2, 5000),
        pytest.param("delayed", 1, 20, 15000, marks=pytest.mark.slow),
    ],
)
def test_lenet_is_planned_within_seconds(versions, batch, seconds, interval):
    start = time.perf_counter()
    plan = plan_of(LENET, versions=versions, batch=batch, dsp=400)
    assert time.perf_counter() - start < seconds
    assert plan_resources(plan).dsp <= 400
    assert plan.interval == interval  # conv3, 100 pixels of 25 taps, 2 blocks of 8 channels: 5000
    assert plan.layers[0].unfold
    check_buffers(plan)


def test_lenets_first_convolution_unfolds():
    plan = plan_of(LENET, versions="delayed", dsp=600)
    first = plan.layers[0]
    assert (first.a, first.b, first.unfold) == (6, 5, True)
    assert plan.interval == first.fp_interval == 134 * 28  # 134 row taps, 28 columns
    assert binding_limit(plan) == "conv0.fp, at its widest"
    assert "6 x 5 unfolded" in plan_text(plan)
    row = next(x for x in plan_rows(plan) if (x["layer"], x["engine"]) == ("conv0", "fp"))
    assert row["macs"] == 134 * 134 * 6


def test_delayed_versions_keep_the_interval_at_the_planned_mini_batch():
    for batch in (1, 2, 16):
        plan = plan_of(DIGITS, versions="delayed", batch=batch)
        assert interval_at(plan, batch) == steady_interval(plan) == plan.interval
        assert interval_at(plan, 4 * batch) == plan.interval


def test_a_plan_of_a_small_board_fits_it():
    for name in ("arty-a7-100t", "pynq-z2", "kc705", "vc709", "alveo-u50"):
        plan = plan_of(DIGITS, board=name)
        cost, board = plan_resources(plan), load(name)
        assert cost.dsp <= board.dsp
        assert cost.bram36 <= board.bram36
        assert cost.lut <= board.lut
        assert plan.clock_hz == board.clock_hz


def test_formats_and_shapes_come_from_graph_and_formats():
    formats = formats_of(DIGITS)
    own = dataclasses.replace(
        formats.layers["conv2"], i_error=Format(16, 9), o_feature=Format(16, 7)
    )
    formats = dataclasses.replace(formats, layers={**formats.layers, "conv2": own})
    plan = plan_design(DIGITS, formats, batch=4)
    assert [x.name for x in plan.layers] == [x.name for x in DIGITS.nodes]
    assert [x.backward for x in plan.layers] == [False, True, True, True, True, True]
    assert plan.layer("conv2").i_error == Format(16, 9)
    assert plan.layer("conv2").o_feature == Format(16, 7)
    assert plan.layer("conv2").o_error == ERROR
    assert plan.layer("fc5").kernel == (4, 4)


def test_explicit_delays_are_taken_as_they_are():
    forward = {"conv0": 3, "conv2": 1, "fc5": 0}
    plan = plan_of(DIGITS, versions=forward, back_versions="flush")
    assert {x.name: x.delay for x in plan.trainable} == forward
    assert {x.back_delay for x in plan.trainable} == {0}
    assert loop_intervals(plan, 16)["conv0.wg"] <= plan.interval


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch": 0}, "batch must be from 1 to batch_max = 8 samples, not 0"),
        ({"batch": 9}, "batch must be from 1 to batch_max = 8 samples, not 9"),
        ({"interval": 0}, "interval must be a positive integer, not 0"),
        ({"dsp": -1}, "dsp must be a positive integer, not -1"),
        ({"versions": "late"}, "versions must be 'flush', 'delayed' or a dict, not 'late'"),
        (
            {"versions": {"conv0": 1}},
            "versions must name every trainable layer (conv0, conv2, fc5), not conv0",
        ),
        (
            {"back_versions": {"conv0": 1, "conv2": -1, "fc5": 0}},
            "back_versions['conv2'] must be a number of mini-batches, not -1",
        ),
        (
            {"dsp": 20},
            "board sim must have 33 DSP slices or more for design, not 20: "
            "take a larger board or a smaller network",
        ),
        (
            {"interval": 100},
            "conv2: interval must be at least 484 cycles per sample, not 100",
        ),
        (
            {"interval": 484, "dsp": 300},
            "interval must be at least 968 cycles per sample on board sim, not 484: that needs 529 "
            "DSP slices or more of 300, most of them (416) for conv2",
        ),
    ],
)
def test_what_cannot_be_planned_is_told(options, message):
    with pytest.raises(PlanError) as error:
        plan_of(DIGITS, **{"batch": 8, "batch_max": 8, **options})
    assert str(error.value) == message


def test_a_board_too_small_for_the_weights_is_told():
    with pytest.raises(PlanError) as error:
        plan_of(LENET, board="arty-a7-100t")
    assert str(error.value) == (
        "board arty-a7-100t must have 224.5 block RAMs or more for design, not 135: "
        "take a larger board or a smaller network"
    )


def test_a_graph_without_weights_is_refused():
    graph = Graph((1, 4, 4), chain((1, 4, 4), "relu").nodes, "mse", 16)
    with pytest.raises(PlanError) as error:
        plan_design(graph, formats_of(graph))
    assert str(error.value) == ("graph must have a layer with weights (Conv2d or Linear), not none")


def test_a_stream_bound_interval_takes_the_cheapest_folding():
    graph = chain((16, 8, 8), ("fc", 2), loss="mse")
    plan = plan_of(graph)
    assert plan.interval == 1 + 2 + 512
    assert binding_limit(plan) == "input stream"
    # 2048 products in 515 cycles: four multipliers would do, but six, two of them pads in the last
    # word, go with three lanes of the update, and those are dear.
    fc = plan.layers[0]
    assert (fc.a * fc.b, fc.update_lanes) == (6, 3)


@pytest.mark.parametrize(
    ("width", "depth", "bram36"),
    [
        (16, 64, 0),
        (72, 512, 1),
        (36, 512, 0.5),
        (36, 1024, 1),
        (18, 1025, 1),
        (1, 32768, 1),
        (0, 9, 0),
    ],
)
def test_memories_take_the_block_rams_of_their_shape(width, depth, bram36):
    assert memory(width, depth).bram36 == bram36


def test_products_take_the_slices_of_their_widths():
    assert dsp_per_product(16, 16) == 1
    assert dsp_per_product(25, 18) == dsp_per_product(18, 25) == 1
    assert dsp_per_product(19, 25) == dsp_per_product(32, 17) == 2
    assert dsp_per_product(32, 32) == 4


def test_resources_add_up_over_engines_and_layers():
    plan = plan_of(DIGITS, versions="delayed")
    rows = plan_rows(plan)
    total = sum((layer_resources(x, plan) for x in plan.layers), Resources())
    assert sum(row["dsp"] for row in rows) == total.dsp
    assert sum(row["bram36"] for row in rows) == total.bram36
    # Three engines of 16-bit products, four products of 32 bits per lane; one for the softmax.
    lanes = sum(x.update_lanes for x in plan.trainable)
    assert plan_resources(plan).dsp == plan.multipliers + 8 * lanes + 1


def test_the_table_names_every_engine_and_the_limit():
    plan = plan_of(DIGITS, versions="delayed")
    names = [f"{row['layer']}.{row['engine']}" for row in plan_rows(plan)]
    assert names[:5] == ["conv0.fp", "conv0.wg", "conv0.update", "relu1.fp", "relu1.eb"]
    rows = dict(zip(names, plan_rows(plan), strict=True))
    assert rows["conv2.eb"]["macs"] == rows["conv2.fp"]["macs"] == 22 * 22 * 8 * 16
    text = plan_text(plan)
    assert all(name in text for name in names)
    summary = plan_summary(plan, 16)
    assert summary["interval"] == summary["interval_training"] == plan.interval == 968
    assert summary["samples_per_second"] == 1e8 / 968
    assert summary["limit"] == "conv0.fp"
    assert "interval 968 cycles, set by conv0.fp" in text
