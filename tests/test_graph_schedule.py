"""The timing of graphs: a residual block worked by hand, and what holds for any graph."""

import dataclasses
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradweave.model.errors import PlanError
from gradweave.model.join_depths import least_join_words
from gradweave.model.pace import paced_intervals, takers
from gradweave.model.plan import Plan
from gradweave.model.schedule import (
    check_buffers,
    delays,
    interval_at,
    minimum_buffers,
    schedule,
    size_buffers,
    steady_interval,
)
from gradweave.tests.flow import Flow
from gradweave.tests.plans import (
    add,
    avgpool,
    concat,
    conv,
    fork,
    graph,
    leaky_relu,
    linear,
    maxpool,
    relu,
    softmax,
    table,
)
from gradweave.tests.random_graphs import random_graph


def with_depths(plan, name, **depths):
    """The plan with some depths of one layer changed."""
    layers = tuple(
        dataclasses.replace(x, buffers=dataclasses.replace(x.buffers, **depths))
        if x.name == name
        else x
        for x in plan.layers
    )
    return dataclasses.replace(plan, layers=layers)


def least(plan):
    """The plan with the least depths."""
    joins = least_join_words(plan)
    layers = []
    for x in plan.layers:
        depths = dataclasses.replace(minimum_buffers(x), join_words=joins.get(x.name, ()))
        layers.append(dataclasses.replace(x, buffers=depths))
    return dataclasses.replace(plan, layers=tuple(layers))


def residual(**options):
    """A convolution of one channel on 4x4 whose source is added to it, then two outputs."""
    layers = (
        fork("f"),
        conv("c", 1, kernel=3, padding=1),
        add("a").on("c", "f"),
        linear("l", 2),
    )
    return graph((1, 4, 4), *layers, loss="mse", **options)


def trained_residual(shape=(1, 4, 4)):
    """The same behind a convolution, so that the fork adds errors."""
    layers = (
        conv("c0", 1, kernel=1),
        fork("f"),
        conv("c", 1, kernel=3, padding=1),
        add("a").on("c", "f"),
        linear("l", 2),
    )
    return graph(shape, *layers, loss="mse")


def test_a_residual_block_is_timed_as_by_hand():
    state = schedule(residual())
    # Rows of the convolution take 2 x 10, 3 x 10, 3 x 10 and 2 x 10 taps.
    assert state.interval == 100
    # Two rows are in at 11; the rows run 11 to 31 to 61 to 91 to 111, and are out 16 later.
    assert state.engines["c.fp"] == (11, 111)
    # The sum takes the convolution's last word at 127 and is free 2 later, and begins when it has
    # ended the sample before. With its latency of 5 its last word is out 6 behind, at 133.
    assert state.engines["a.fp"] == (129 - 100, 129)
    # Linear: 16 taps for each of 2 outputs, when the last row is in.
    assert state.engines["l.fp"] == (133, 165)
    assert state.latency == 181


def test_the_skip_path_waits_as_long_as_the_convolution_takes():
    state = schedule(residual())
    # The convolution takes rows at 11, 11, 31, 61, so the skip path has them from 3, 7, 27, 57
    # until their sums are out at 53, 83, 113, 133. With a period of 100 cycles all four overlap
    # from 27 to 33 (the last one is that of the sample before): 16 words, and a row more.
    # The convolution's rows wait from 11, 31, 61, 91 for the same ends: three from 111 to 113,
    # where the next sample's first is there already.
    assert state.buffers["a"].join_words == (12 + 4, 16 + 4)


def test_least_depths_of_a_residual_block_are_those_worked_by_hand():
    # The convolution takes two rows before it gives one, and a pixel is one word.
    assert least_join_words(residual()) == {"a": (1, 2 * 4 + 1)}
    # Backward, too: its errors need two rows of those that the skip path brings at once.
    assert least_join_words(trained_residual()) == {"a": (1, 9), "f": (1, 9)}


def test_the_computed_depth_keeps_the_interval_and_a_smaller_one_stalls():
    # Each 1x1 convolution takes a row before it gives one: the skip path waits for three in a row.
    deep = [conv(f"c{n}", 1, kernel=1) for n in range(3)]
    layers = (fork("f"), *deep, add("a").on("c2", "f"), linear("l", 2, a=2, update_lanes=1))
    plan = size_buffers(graph((1, 8, 8), *layers, loss="mse"))
    main, skip = plan.layer("a").buffers.join_words
    assert skip == 13 * 8

    def measured(depth):
        ends = Flow(with_depths(plan, "a", join_words=(main, depth))).run(12)
        return (ends[-1] - ends[-5]) / 4

    assert measured(skip) == steady_interval(plan) == 64
    assert measured(skip // 2) > 67
    assert measured(least_join_words(plan)["a"][1]) > 400


@pytest.mark.parametrize("layer", ["a", "f"])
def test_a_row_less_than_the_least_depth_deadlocks(layer):
    plan = least(trained_residual((1, 4, 8)))
    main, skip = plan.layer(layer).buffers.join_words
    assert skip == 2 * 8 + 1
    assert Flow(plan).run(3)
    assert Flow(with_depths(plan, layer, join_words=(main, skip - 8))).run(3) is None


def test_join_depths_that_would_deadlock_are_refused():
    plan = least(residual())
    check_buffers(plan)
    with pytest.raises(PlanError) as error:
        check_buffers(with_depths(plan, "a", join_words=(1, 8)))
    assert str(error.value) == (
        "a: join_words[1] must be at least 9, not 8: a shallower buffer deadlocks; "
        "take the depths that size_buffers computes"
    )
    with pytest.raises(PlanError) as error:
        check_buffers(with_depths(plan, "a", join_words=()))
    assert str(error.value) == (
        "a: join_words must be 2 depths, one per stream that waits, not 0: "
        "take the depths that size_buffers computes"
    )


def test_branches_of_equal_reach_need_a_pixel_and_no_row():
    layers = (fork("f"), relu("r"), concat("j").on("r", "f"), linear("l", 2))
    plan = graph((6, 4, 4), *layers)
    assert least_join_words(plan) == {"j": (6, 6)}
    assert Flow(least(dataclasses.replace(plan, loss=residual().loss))).run(3)


def test_rows_that_deeper_branches_ask_for_add_up():
    layers = (
        fork("f"),
        conv("c0", 2, kernel=3, padding=1),
        conv("c1", 2, kernel=3, padding=1),
        maxpool("m", 2).on("c1"),
        maxpool("n", 2).on("f"),
        concat("j").on("m", "n"),
        linear("l", 2),
    )
    plan = graph((2, 8, 8), *layers)
    # Row 0 of m takes rows 0 and 1 of c1, so 0 to 2 of c0 and 0 to 3 of f, of which n makes 2.
    assert least_join_words(plan)["j"] == (2, (2 * 4 + 1) * 2)


def test_two_convolutions_in_a_block_take_three_rows():
    pair = [conv(name, 1, kernel=3, padding=1) for name in ("c", "d")]
    plan = graph((1, 8, 8), fork("f"), *pair, add("a").on("d", "f"), linear("l", 2))
    assert least_join_words(plan) == {"a": (1, 3 * 8 + 1)}


def test_results_wait_for_the_narrowest_stream_that_takes_them():
    layers = (
        conv("c", 8, kernel=1, a=8, update_lanes=1),
        fork("f", lanes=8),
        relu("r", lanes=2).on("f"),
        add("s", lanes=4).on("f", "r"),
        leaky_relu("k", 1, lanes=8),
        conv("d", 8, kernel=1, b=4, update_lanes=1),
        linear("l", 2, b=8, update_lanes=1),
    )
    plan = graph((1, 4, 4), *layers)
    assert sorted(x.name for x in takers(plan, "c", "fp")) == ["f", "r", "s", "s"]
    assert sorted(x.name for x in takers(plan, "d", "eb")) == ["f", "f", "k", "r", "s"]
    paced = paced_intervals(plan)
    # A word of c is 8 channels; the ReLU takes 2 a cycle.
    assert paced["c.fp"] == 16 * 4
    assert paced["f.fp"] == 16 * 4
    assert paced["r.fp"] == 16 * 4  # its own words of 2 channels, one a cycle
    assert paced["s.fp"] == 16 * 2
    assert paced["k.fp"] == 16 * 2  # d takes 4 channels a cycle
    assert paced["k.eb"] == 16 * 4  # through the sum to the ReLU
    assert paced["f.eb"] == 16 * 1


def test_latencies_of_relays_add_up():
    def latency(*relays):
        chain = graph((4, 4, 4), conv("c", 4, kernel=1), *relays, linear("l", 2), loss="mse")
        return schedule(chain).latency

    plain = latency(relu("r"))
    assert latency(leaky_relu("r", 655)) == plain + 2
    assert latency(table("r", "gelu")) == plain + 5
    assert latency(relu("r"), relu("s")) == plain + 2
    # Four words of one channel, six cycles each: the last pixel's, and 8 more, after its last word.
    assert latency(softmax("r")) > latency(softmax("r", lanes=4)) > plain + 8


def test_a_frozen_branch_holds_nothing_for_errors():
    layers = (
        fork("f"),
        maxpool("m", 3, stride=1, padding=1).on("f"),
        conv("c", 2, kernel=3, padding=1).on("f"),
        concat("j").on("m", "c"),
        fork("g"),
        relu("r").on("g"),
        add("a").on("r", "g"),
        avgpool("p", 2),
        linear("l", 2),
    )
    plan = size_buffers(graph((2, 4, 4), *layers))
    check_buffers(plan)
    assert plan.layer("m").buffers.index_words == plan.layer("m").buffers.eb_rows == 0
    assert plan.layer("f").buffers.join_words == ()
    assert len(plan.layer("g").buffers.join_words) == 2
    assert plan.layer("p").buffers.index_words == 0  # an average needs no index
    assert plan.layer("r").buffers.index_words > 0
    state = schedule(plan)
    assert "m.eb" not in state.engines
    assert "f.eb" not in state.engines


SEEDS = [*range(6), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(6, 60))]


@pytest.mark.parametrize("seed", SEEDS)
def test_computed_depths_keep_the_interval_when_every_word_is_stepped(seed):
    plan = size_buffers(random_graph(random.Random(seed)))
    check_buffers(plan)
    ends = Flow(plan).run(12)
    assert ends[-1] - ends[-5] <= 4 * steady_interval(plan)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("batch", [None, 2])
def test_the_least_depths_are_slow_but_never_deadlock(seed, batch):
    plan = least(random_graph(random.Random(seed)))
    check_buffers(plan)
    assert Flow(plan, batch).run(5)


@settings(derandomize=True, deadline=None, max_examples=60)
@given(st.integers(0, 10**9))
def test_every_graph_has_a_periodic_state(seed):
    plan = random_graph(random.Random(seed), steps=10)
    state = schedule(plan)
    assert state.interval == steady_interval(plan)
    for name, (start, end) in state.engines.items():
        assert 0 <= start < end, name
    needed = least(plan)
    for layer in plan.layers:
        depths, floor = state.buffers[layer.name], needed.layer(layer.name).buffers
        for buffer, value in dataclasses.asdict(floor).items():
            got = getattr(depths, buffer)
            if buffer == "join_words":
                assert all(a >= b for a, b in zip(got, value, strict=True))
            else:
                assert got >= value >= 0
    sized = size_buffers(plan)
    check_buffers(sized)
    assert Plan.from_json(sized.to_json()) == sized
    late = delays(plan, 2)
    layers = [
        dataclasses.replace(x, delay=late[x.name], back_delay=late[x.name]) if x.trainable else x
        for x in plan.layers
    ]
    assert interval_at(dataclasses.replace(plan, layers=tuple(layers)), 1000) == state.interval
