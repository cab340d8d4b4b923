"""The timing model: a chain worked by hand, what holds for any plan, depths that suffice."""

import dataclasses
import random

import pytest

from gradweave.host.planner import plan_design
from gradweave.model.errors import PlanError
from gradweave.model.pace import paced_intervals
from gradweave.model.plan import Buffers
from gradweave.model.schedule import (
    check_buffers,
    delays,
    flush_interval,
    interval_at,
    loop_intervals,
    minimum_buffers,
    schedule,
    size_buffers,
    steady_interval,
)
from gradweave.tests.chains import DIGITS, LENET, chain, fold, formats_of
from gradweave.tests.flow import Flow


def plan_of(graph, **options):
    return plan_design(graph, formats_of(graph), **{"batch": 8, **options})


@pytest.fixture(scope="module")
def tiny():
    """Conv 1 to 2 channels, 1x1, on 2x2, then 2 outputs; all engines with one multiplier."""
    graph = chain((1, 2, 2), ("conv", 2, 1, 1, 0), ("fc", 2), loss="mse")
    return fold(plan_of(graph))


def test_a_chain_of_two_layers_is_timed_as_by_hand(tiny):
    state = schedule(tiny)
    # FC takes 4 taps x 2 x 2 = 16 cycles; a packet takes 1 + 2 + 2.
    assert state.interval == 16
    # Rows of 2 pixels are in at 5 and 7; FP spends 2 x 2 cycles on each: 5 to 9 to 13. Its rows are
    # out 16 cycles later, at 25 and 29; FC runs 29 to 45, its logits are out at 61, errors at 64.
    assert state.latency == 61
    assert state.engines["conv0.fp"] == (5, 13)
    assert state.engines["fc1.fp"] == (29, 45)
    assert state.engines["loss"] == (61, 64)
    # WG takes 8 cycles for the last error, until 72; it begins when it has ended the sample before.
    # EB begins with the last error; its rows take 8 cycles: 64 to 72 to 80.
    assert state.engines["fc1.wg"] == (72 - 16, 72)
    assert state.engines["fc1.eb"] == (64, 80)
    # EB's rows are out at 88 and 96, and WG needs one more cycle for the last word.
    assert state.engines["conv0.wg"] == (97 - 16, 97)
    # 12 cycles for the sums to settle, 4 and 18 chunks, 16 cycles for the sweep itself.
    assert state.sweep_done == {"conv0": 97 + 12 + 4 + 16, "fc1": 80 + 12 + 18 + 16}


def test_depths_of_two_layers_are_those_worked_by_hand(tiny):
    state = schedule(tiny)
    # Two input rows are held from 3 to 9 + 16 and 7 to 13 + 16: with a period of 16, at most 4.
    # WG frees them at 89 + 16 and 97 + 16: 6 periods each, and both in cycle 7: 14.
    # Error rows of 4 words wait from 64 to 89 and 72 to 97: at most 16 words. One row more each.
    assert state.buffers["conv0"] == Buffers(fp_rows=5, wg_rows=15, error_words=20)
    # 5 to 61 and 9 to 61; 5 to 88 and 9 to 88; 29 to 96; 2 words from 29 to 72.
    assert state.buffers["fc1"] == Buffers(fp_rows=9, wg_rows=12, eb_rows=6, error_words=8)
    assert state.target_samples == 5  # 0 to 61


def test_delays_and_intervals_of_two_layers_are_those_worked_by_hand(tiny):
    # conv0: 129 - 5 - 16 = 108 cycles late; fc1: 126 - 29 - 16 = 81.
    assert delays(tiny, 1) == {"conv0": 7, "fc1": 6}
    assert delays(tiny, 2) == {"conv0": 4, "fc1": 3}
    assert delays(tiny, 7) == {"conv0": 1, "fc1": 1}
    assert delays(tiny, 100) == {"conv0": 1, "fc1": 1}
    # One sample at a time: 129 - 5 cycles; eight behind one another: 7 intervals more.
    assert flush_interval(tiny, 1) == 124
    assert flush_interval(tiny, 8) == (7 * 16 + 124) / 8
    loops = loop_intervals(tiny, 1)
    assert loops["fc1.update"] == 34
    assert loops["fc1.eb"] == 126 - 64


def with_delays(plan, batch):
    found = delays(plan, batch)
    layers = tuple(
        dataclasses.replace(x, delay=found[x.name], back_delay=found[x.name]) if x.trainable else x
        for x in plan.layers
    )
    return dataclasses.replace(plan, layers=layers)


@pytest.mark.parametrize("batch", [1, 2, 5, 32])
def test_computed_delays_are_the_least_with_which_fp_never_waits(batch):
    plan = with_delays(fold(plan_of(DIGITS), conv2=(4, 4)), batch)
    state = schedule(plan)
    loops = loop_intervals(plan, batch)
    for layer in plan.trainable:
        assert loops[f"{layer.name}.fp"] <= state.interval
        if layer.delay:
            fewer = dataclasses.replace(layer, delay=layer.delay - 1, back_delay=layer.delay)
            layers = tuple(fewer if x.name == layer.name else x for x in plan.layers)
            slower = dataclasses.replace(plan, layers=layers)
            assert loop_intervals(slower, batch)[f"{layer.name}.fp"] > state.interval


def test_a_sweep_longer_than_a_mini_batch_bounds_the_interval():
    graph = chain((16, 1, 1), ("fc", 64), ("fc", 4), loss="mse")
    plan = with_delays(fold(plan_of(graph), fc0=(16, 16), fc1=(4, 64)), 1)
    assert steady_interval(plan) == 1 + 4 + 8  # the packet: header, targets, features
    assert interval_at(plan, 1) == 64 * 16 + 64 + 16
    assert interval_at(plan, 128) == 13


def test_more_multipliers_never_lengthen_latency_or_interval():
    plan = plan_of(DIGITS)
    before = None
    for a, b in ((1, 1), (2, 1), (2, 2), (4, 2), (8, 4), (16, 8)):
        state = schedule(fold(plan, conv0=(8, 1), conv2=(a, b), relu1=8, relu3=16, pool4=16))
        if before:
            assert state.interval <= before.interval
            assert state.latency <= before.latency
        before = state


def test_larger_batches_never_slow_the_pipeline():
    plan = plan_of(LENET)
    figures = [flush_interval(plan, batch) for batch in (1, 2, 4, 16, 64, 256)]
    assert figures == sorted(figures, reverse=True)
    assert figures[-1] < 1.05 * steady_interval(plan)


def test_the_input_is_held_back_to_what_the_first_engine_needs():
    # The packet is in after 400 cycles, but FP takes 16 times as long: five rows, not 28.
    plan = size_buffers(fold(plan_of(LENET)))
    assert plan.layers[0].buffers.fp_rows <= 7


def test_wide_results_wait_for_narrow_streams():
    graph = chain((1, 4, 4), ("conv", 8, 3, 1, 1), "relu", ("fc", 2), loss="mse")
    plan = fold(plan_of(graph), conv0=(8, 1), relu1=1)
    # A ReLU of one lane takes 8 cycles a pixel; corners have 4 products, edges 6, the inside 9.
    assert paced_intervals(plan)["conv0.fp"] == 4 * 8 + 8 * 8 + 4 * 9
    assert plan.layers[0].fp_interval == 4 * 4 + 8 * 6 + 4 * 9
    # Four lanes would need 2 cycles a pixel, but the linear layer's window still takes one channel.
    wider = fold(plan, conv0=(8, 1), relu1=4)
    assert paced_intervals(wider)["conv0.fp"] == paced_intervals(plan)["conv0.fp"]
    widest = fold(plan, conv0=(8, 1), relu1=4, fc2=(1, 4))
    assert paced_intervals(widest)["conv0.fp"] == plan.layers[0].fp_interval


LEAST_DEPTHS = [
    ("fp_rows", "conv0", 3),
    ("wg_rows", "conv0", 8),
    ("fp_rows", "conv2", 3),
    ("eb_rows", "conv2", 3),
    ("wg_rows", "conv2", 8),
    ("error_words", "conv2", 1),
    ("index_words", "relu1", 512),
    ("fp_rows", "pool4", 2),
    ("eb_rows", "pool4", 1),
    ("index_words", "pool4", 256),
    ("fp_rows", "fc5", 4),
    ("eb_rows", "fc5", 1),
    ("wg_rows", "fc5", 4),
]


@pytest.mark.parametrize(("buffer", "layer", "least"), LEAST_DEPTHS)
def test_a_buffer_that_would_deadlock_is_refused(buffer, layer, least):
    plan = size_buffers(fold(plan_of(DIGITS)))
    check_buffers(plan)
    for depth in (least, least - 1):
        layers = tuple(
            dataclasses.replace(x, buffers=dataclasses.replace(x.buffers, **{buffer: depth}))
            if x.name == layer
            else x
            for x in plan.layers
        )
        changed = dataclasses.replace(plan, layers=layers)
        if depth == least:
            check_buffers(changed)
            continue
        with pytest.raises(PlanError) as error:
            check_buffers(changed)
        assert str(error.value) == (
            f"{layer}: {buffer} must be at least {least}, not {depth}: a shallower buffer "
            "deadlocks; take the depths that size_buffers computes"
        )


def test_targets_need_room():
    plan = size_buffers(fold(plan_of(DIGITS)))
    loss = dataclasses.replace(plan.loss, target_samples=0)
    with pytest.raises(PlanError) as error:
        check_buffers(dataclasses.replace(plan, loss=loss))
    assert str(error.value) == "target_samples must be at least 1, not 0"


SEEDS = [*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 40))]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("unfold", [False, True])
def test_computed_depths_keep_the_interval_when_every_word_is_stepped(seed, unfold):
    plan = size_buffers(random_plan(random.Random(seed), unfold))
    check_buffers(plan)
    ends = Flow(plan).run(14)
    assert ends[-1] - ends[-5] <= 4 * steady_interval(plan)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("batch", "unfold"), [(None, False), (2, False), (2, True)])
def test_the_least_depths_are_slow_but_never_deadlock(seed, batch, unfold):
    plan = random_plan(random.Random(seed), unfold)
    layers = tuple(dataclasses.replace(x, buffers=minimum_buffers(x)) for x in plan.layers)
    assert Flow(dataclasses.replace(plan, layers=layers), batch).run(6)


@pytest.mark.parametrize(("buffer", "layer", "least"), LEAST_DEPTHS)
def test_one_less_than_the_least_depth_deadlocks(buffer, layer, least):
    graph = dataclasses.replace(DIGITS, loss="mse")
    plan = fold(plan_of(graph), conv0=(8, 1), conv2=(16, 8), relu1=8, relu3=16, pool4=16)
    layers = []
    for x in plan.layers:
        depths = dataclasses.asdict(minimum_buffers(x))
        if x.name == layer:
            depths[buffer] -= 1
        layers.append(dataclasses.replace(x, buffers=Buffers(**depths)))
    assert Flow(dataclasses.replace(plan, layers=tuple(layers))).run(3) is None


def random_plan(draw, unfold=False):
    """A chain of random layers and foldings; ``draw`` is a ``random.Random``."""
    size = draw.randint(4, 9)
    layers = []
    left = size
    for _ in range(draw.randint(1, 3)):
        kernel, padding = draw.choice([(1, 0), (3, 1), (3, 0), (2, 1)])
        stride = draw.choice([1, 1, 2])
        if left + 2 * padding < kernel + 1:
            break
        layers.append(("conv", draw.choice([2, 4, 6]), kernel, stride, padding))
        left = (left + 2 * padding - kernel) // stride + 1
        if draw.random() < 0.6:
            layers.append("relu")
        if draw.random() < 0.4 and left >= 4:
            layers.append(("pool", 2))
            left //= 2
    graph = chain((draw.choice([1, 2]), size, size), *layers, ("fc", 4), loss="mse")
    plan = plan_of(graph)
    foldings = {}
    for node in graph.nodes:
        inputs = [n for n in range(1, 7) if node.i_shape[0] % n == 0]
        outputs = [n for n in range(1, 7) if node.o_shape[0] % n == 0]
        a, b = draw.choice(outputs), draw.choice(inputs)
        foldings[node.name] = (a, b) if node.trainable else b
        if unfold and node is graph.nodes[0] and node.kind == "conv2d":
            columns = node.i_shape[0] * node.kernel[1]
            b = draw.choice([n for n in range(1, columns + 1) if columns % n == 0])
            foldings[node.name] = (a, b, True)
    return fold(plan, **foldings)
