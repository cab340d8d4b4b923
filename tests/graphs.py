"""Small plans of graphs that every level tests: residuals, branches, forks of the input."""

from dataclasses import replace

from gradweave.model.join_depths import least_join_words
from gradweave.model.plan import Plan
from gradweave.model.schedule import minimum_buffers
from gradweave.tests.plans import (
    add,
    affine,
    avgpool,
    clip,
    concat,
    conv,
    fork,
    graph,
    leaky_relu,
    linear,
    maxpool,
    relu,
    scale,
    table,
)

__all__ = ["BOARDS", "GRAPHS", "make", "with_least_buffers"]


def _identity(late):
    """A residual block whose skip is the block's input."""
    return (
        conv("stem", 4, kernel=3, padding=1, a=2, b=1, **late),
        relu("relu0", lanes=2),
        fork("skip", lanes=2),
        conv("conv1", 4, kernel=3, padding=1, a=2, b=2, **late),
        relu("relu1"),
        conv("conv2", 4, kernel=3, padding=1, a=1, b=4, **late),
        add("add", lanes=2).on("conv2", "skip"),
        relu("relu2", lanes=4),
        linear("fc", 3, a=1, b=2, **late),
    )


def _projection(late):
    """A residual block that halves the map, with a convolution of one tap beside it."""
    return (
        conv("stem", 2, kernel=3, padding=1, **late),
        fork("skip", lanes=1),
        conv("conv1", 4, kernel=3, stride=2, padding=1, a=2, b=1, **late),
        relu("relu1", lanes=2),
        conv("conv2", 4, kernel=3, padding=1, a=2, b=2, **late),
        conv("short", 4, kernel=1, stride=2, a=1, b=2, bias=None, **late).on("skip"),
        add("add").on("conv2", "short"),
        linear("fc", 3, b=2, **late),
    )


def _branches(late):
    """Two branches of different lengths, one with a pool, side by side, and a third one."""
    return (
        conv("stem", 2, kernel=1, **late),
        fork("split", lanes=2),
        conv("narrow", 2, kernel=1, b=2, **late),
        relu("relu1", lanes=2),
        maxpool("pool", 3, stride=1, padding=1, lanes=2).on("split"),
        conv("wide", 4, kernel=3, padding=1, a=4, b=1, **late),
        concat("concat", lanes=2).on("relu1", "wide", "split"),
        linear("fc", 3, a=3, b=1, **late),
    )


def _input(late):
    """The sample itself forks: to a convolution, and past it to a sum and to a concatenation."""
    return (
        fork("input_fork"),
        conv("conv", 2, kernel=3, padding=1, **late),
        add("add").on("conv", "input_fork"),
        relu("relu", lanes=2),
        concat("concat").on("input_fork", "relu"),
        linear("fc", 3, a=3, b=2, **late),
    )


def _double(late):
    """A feature that is added to itself."""
    return (
        conv("conv", 2, kernel=2, **late),
        relu("relu"),
        fork("twice"),
        add("add", lanes=2).on("twice", "twice"),
        linear("fc", 3, b=2, **late),
    )


def _kinds(late):
    """The kinds of layers that the other graphs lack, on two branches."""
    return (
        conv("stem", 4, kernel=1, a=2, b=2, **late),
        affine("affine", (300, -200, 256, 128), (1000, 0, -500, 77), 8, lanes=2),
        scale("scale", group_lanes=2, **late),
        fork("split", lanes=2),
        leaky_relu("leaky", 655, lanes=2),
        conv("conv", 4, kernel=3, padding=1, a=2, b=2, **late),
        table("tanh", "tanh", lanes=2),
        clip("clip", 0, 6 << 10, lanes=4).on("split"),
        table("silu", "silu", lanes=2),
        add("add", lanes=2).on("tanh", "silu"),
        avgpool("mean", 2, lanes=2),
        linear("fc", 3, a=3, b=1, **late),
    )


# The plain kinds have slow definitions in tests/golden as well.
GRAPHS = {
    "identity": _identity,
    "projection": _projection,
    "branches": _branches,
    "input": _input,
    "double": _double,
}
BOARDS = GRAPHS | {"kinds": _kinds}


def make(name: str, delay: int = 0, back_delay: int = 0, **options) -> Plan:
    """Return a plan of ``BOARDS`` for samples of (2, 4, 4), with the same delays everywhere.

    With delays its buffers are those of ``model/schedule.py``, without any the least that cannot
    deadlock.
    """
    specs = BOARDS[name]({"delay": delay, "back_delay": back_delay})
    plan = graph((2, 4, 4), *specs, batch_max=4, sized=delay > 0, **options)
    return plan if delay else with_least_buffers(plan)


def with_least_buffers(plan: Plan) -> Plan:
    """Return the plan with the least buffers with which it cannot deadlock."""
    joins = least_join_words(plan)
    layers = [
        replace(x, buffers=replace(minimum_buffers(x), join_words=joins.get(x.name, ())))
        for x in plan.layers
    ]
    return replace(plan, layers=tuple(layers))
