"""The planner on graphs: the best of all plans, lanes that fit every part, costs of every kind."""

import dataclasses
import functools
import itertools
import math

import pytest

from gradweave.host.foldings import divisors, lane_choices
from gradweave.host.plan_table import plan_rows, plan_text
from gradweave.host.resources import (
    Resources,
    engine_resources,
    layer_resources,
    memory,
    plan_resources,
)
from gradweave.host.search import Search
from gradweave.model.formats import Format
from gradweave.model.kinds import TABLES
from gradweave.model.plan import Buffers
from gradweave.model.schedule import (
    check_buffers,
    delays,
    interval_at,
    size_buffers,
    steady_interval,
    sweep_cycles,
)
from gradweave.tests.plans import (
    add,
    affine,
    avgpool,
    clip,
    concat,
    conv,
    dropout,
    fork,
    graph,
    leaky_relu,
    linear,
    maxpool,
    relu,
    softmax,
    table,
)

BATCH = 16

RESIDUAL = graph(
    (1, 4, 4),
    conv("c0", 2, kernel=3, padding=1),
    fork("f"),
    affine("n", (3, -5), (1, 2), 2).on("f"),
    conv("c1", 2, kernel=3, padding=1),
    add("a").on("c1", "f"),
    linear("l", 2),
    loss="mse",
    batch_max=BATCH,
)
BRANCHES = graph(
    (2, 4, 4),
    fork("f"),
    conv("c", 2, kernel=3, padding=1),
    maxpool("m", 3, stride=1, padding=1).on("f"),
    concat("j").on("c", "m"),
    linear("l", 2),
    loss="mse",
    batch_max=BATCH,
)


def search(plan, dsp, versions="flush"):
    given = {x.name: 0 for x in plan.trainable} if versions == "flush" else None
    return Search(plan, Resources(dsp, 10**6, 10**9), BATCH, given, None)


def choices(layer):
    """Every way to fold a layer, by its definition."""
    if not layer.trainable:
        shares = [n for n in divisors(layer.i_shape[0]) if all(x % n == 0 for x in layer.parts)]
        return [dataclasses.replace(layer, lanes=n) for n in shares]
    found = []
    for unfold in (False, True) if layer.unfoldable else (False,):
        columns = layer.kernel[1] if unfold else 1
        inputs = divisors(layer.i_shape[0] * columns)
        for a, b in itertools.product(divisors(layer.o_shape[0]), inputs):
            for lanes in divisors(a * b):
                if a % lanes == 0 or lanes % a == 0:
                    found.append(
                        dataclasses.replace(layer, a=a, b=b, update_lanes=lanes, unfold=unfold)
                    )
    return found


def flushed(plan):
    """The interval where sweeps take at most a tenth of a mini-batch."""
    sweeps = [math.ceil(sweep_cycles(x) / (BATCH / 10)) for x in plan.trainable]
    return max(steady_interval(plan), *sweeps)


def delayed(plan):
    """The interval in training with the least delays."""
    found = delays(plan, BATCH)
    layers = [
        dataclasses.replace(x, delay=found[x.name], back_delay=found[x.name]) if x.trainable else x
        for x in plan.layers
    ]
    return math.ceil(interval_at(dataclasses.replace(plan, layers=tuple(layers)), BATCH))


MEASURES = {"flush": flushed, "delayed": delayed}


@functools.cache
def all_of(empty, versions):
    """Interval and DSP slices of every plan."""
    seen = set()
    for layers in itertools.product(*map(choices, empty.layers)):
        plan = dataclasses.replace(empty, layers=layers)
        seen.add((MEASURES[versions](plan), plan_resources(plan).dsp))
    return seen


CASES = [
    pytest.param(RESIDUAL, "flush", id="residual-flush"),
    pytest.param(BRANCHES, "flush", id="branches-flush"),
    pytest.param(RESIDUAL, "delayed", id="residual-delayed", marks=pytest.mark.slow),
    pytest.param(BRANCHES, "delayed", id="branches-delayed"),
]


@pytest.mark.parametrize(("empty", "versions"), CASES)
def test_the_plan_of_a_graph_is_the_best_of_all_within_the_budget(empty, versions):
    seen = all_of(empty, versions)
    found = set()
    for dsp in range(20, 52, 3):
        within = [(interval, slices) for interval, slices in seen if slices <= dsp]
        if not within:
            continue
        plan = search(empty, dsp, versions).fastest()
        check_buffers(plan)
        assert (MEASURES[versions](plan), plan_resources(plan).dsp) == min(within)
        found.add(min(within))
    assert len(found) > 2, "the budgets must bind"


@pytest.mark.parametrize("empty", [RESIDUAL, BRANCHES], ids=["residual", "branches"])
def test_a_given_interval_of_a_graph_is_kept_with_the_fewest_slices(empty):
    seen = all_of(empty, "flush")
    for interval in (210, 300, 450, 5000):
        fewest = min(slices for cycles, slices in seen if cycles <= interval)
        plan = search(empty, 10**4).cheapest(interval)
        assert flushed(plan) <= interval
        assert plan_resources(plan).dsp == fewest


def test_lanes_of_a_concatenation_divide_every_part():
    plan = graph(
        (6, 2, 2), fork("f"), conv("c", 4, kernel=1), concat("j").on("c", "f"), linear("l", 2)
    )
    assert plan.layer("j").parts == (4, 6)
    assert lane_choices(plan.layer("j")) == [1, 2]
    assert lane_choices(plan.layer("f")) == [1, 2, 3, 6]


def sized(spec, **changes):
    """The layer behind a convolution, as planned."""
    plan = size_buffers(graph((8, 8, 8), conv("c", 8, kernel=1), spec, linear("l", 2)))
    layer = dataclasses.replace(plan.layers[1], **changes)
    return layer, engine_resources(layer, plan)


def test_lanes_multiply_what_they_use():
    for spec in (
        leaky_relu("x", 655),
        dropout("x", 1 << 14),
        affine("x", (3,) * 8, (1,) * 8, 2),
        avgpool("x", 2),
        softmax("x"),
        *(table("x", kind) for kind in TABLES),
    ):
        one, four = (layer_resources(sized(spec, lanes=n)[0], RESIDUAL) for n in (1, 4))
        assert one.dsp > 0
        assert four.dsp == 4 * one.dsp
        assert four.lut > one.lut
    for spec in (relu("x"), clip("x", 0, 6144), maxpool("x", 2), add("x").on("c"), fork("x")):
        assert layer_resources(sized(spec, lanes=4)[0], RESIDUAL).dsp == 0


def test_a_table_takes_a_block_ram_each_way_and_lane():
    layer, parts = sized(table("x", "tanh", feature=Format(14, 8)), lanes=2)
    # 1,024 entries of two values: 2 x 18 bits fill a RAMB36, 2 x 22 bits take 3 RAMB18.
    assert parts["fp"].bram36 == 2 * 1
    waiting = memory(2 * 16, layer.buffers.index_words).bram36
    assert parts["eb"].bram36 == 2 * 1.5 + waiting


def test_queues_of_joins_and_forks_take_memory():
    plan = size_buffers(RESIDUAL)
    deep = Buffers(join_words=(600, 100))
    for name, engine in (("a", "fp"), ("f", "eb")):
        layer = dataclasses.replace(plan.layer(name), buffers=deep, lanes=2)
        assert engine_resources(layer, plan)[engine].bram36 == 1 + 0.5
    assert "eb" not in engine_resources(size_buffers(BRANCHES).layer("f"), BRANCHES)


def test_the_table_of_a_graph_names_every_engine():
    plan = size_buffers(RESIDUAL)
    names = [f"{row['layer']}.{row['engine']}" for row in plan_rows(plan)]
    assert names == [
        *("c0.fp", "c0.wg", "c0.update", "f.fp", "f.eb", "n.fp", "n.eb"),
        *("c1.fp", "c1.eb", "c1.wg", "c1.update", "a.fp", "a.eb"),
        *("l.fp", "l.eb", "l.wg", "l.update"),
    ]
    assert all(name in plan_text(plan) for name in names)
