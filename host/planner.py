"""The one-board planner: from a graph, its formats and a board to a plan.

Chooses for every trainable layer the folding (a, b) and the lanes of its update, and for every
ReLU and pool its lanes, so that the slowest engine is as fast as the board's DSP slices, block
RAMs and LUTs allow, or so that a given interval is kept with the fewest; then the delays of
versions and the depths of all buffers. Among equally fast plans the one with the fewest DSP
slices wins, then the one with the fewest block RAMs, then LUTs.

The search itself is ``host/search.py``.

Test: ``tests/test_planner.py``.
"""

from collections.abc import Mapping

from ..boards.catalog import Board, load
from ..model.errors import PlanError
from ..model.formats import Rounding
from ..model.graph import Formats, Graph
from ..model.loss_options import loss_plan
from ..model.plan import Plan
from .layers import layer_plans
from .resources import Resources
from .search import Search

__all__ = ["Versions", "board_budget", "plan_design"]

Versions = str | Mapping[str, int]  # "flush", "delayed", or the delay of every trainable layer

LUT_SHARE = 0.8  # of a part's LUTs: fuller parts rarely route


def board_budget(board: Board, dsp: int | None = None) -> Resources:
    """What a plan may take of a board; ``dsp`` replaces the board's number of slices."""
    slices = board.dsp if dsp is None else dsp
    return Resources(dsp=slices, bram36=board.bram36, lut=int(board.lut * LUT_SHARE))


def plan_design(
    graph: Graph,
    formats: Formats,
    *,
    board: str = "sim",
    batch: int = 32,
    batch_max: int | None = None,
    versions: Versions = "flush",
    back_versions: Versions | None = None,
    interval: int | None = None,
    rounding: Rounding = Rounding.HALF_EVEN,
    seed: int = 0,
    probes: bool = False,
    name: str = "design",
    dsp: int | None = None,
) -> Plan:
    """The fastest plan within the board's budget or, with ``interval``, the cheapest that keeps it.

    Parameters
    ----------
    batch : int, samples per mini-batch that the plan is made for: with ``"delayed"`` versions no
        engine waits for an update at this size or above
    batch_max : int, samples; the largest mini-batch that the hardware can sum; ``batch`` by default
    versions : ``"flush"`` (every mini-batch waits for the update before it), ``"delayed"`` (the
        least delays with which nothing waits) or the delay of every trainable layer, in
        mini-batches
    back_versions : the same for error backpropagation; as ``versions`` by default
    interval : int, cycles per sample to keep
    dsp : int, DSP slices, instead of the board's

    Raises
    ------
    PlanError
        nothing fits: names the limit, what is needed and what there is; or an argument out of range
    """
    target = load(board)
    largest = batch if batch_max is None else batch_max
    for text, value in (("batch_max", largest), ("interval", interval), ("dsp", dsp)):
        if value is not None and value < 1:
            raise PlanError(f"{text} must be a positive integer, not {value}")
    if not 1 <= batch <= largest:
        raise PlanError(f"batch must be from 1 to batch_max = {largest} samples, not {batch}")
    if not graph.trainable:
        raise PlanError("graph must have a layer with weights (Conv2d or Linear), not none")
    given = _explicit(graph, versions, "versions")
    back = None if back_versions is None else _explicit(graph, back_versions, "back_versions")
    empty = Plan(
        name=name,
        layers=layer_plans(graph, formats, seed),
        loss=loss_plan(
            graph.loss,
            graph.outputs,
            formats.loss_feature,
            formats.loss_error,
            graph.loss_options,
        ),
        batch_max=largest,
        rounding=rounding,
        seed=seed,
        board=board,
        clock_hz=target.clock_hz,
        probes=probes,
    )
    search = Search(empty, board_budget(target, dsp), batch, given, back)
    return search.fastest() if interval is None else search.cheapest(interval)


def _explicit(graph: Graph, versions: Versions, text: str) -> dict[str, int] | None:
    """The delays by layer, or None where they are yet to be computed."""
    names = [node.name for node in graph.trainable]
    if isinstance(versions, str):
        if versions not in ("flush", "delayed"):
            raise PlanError(f"{text} must be 'flush', 'delayed' or a dict, not {versions!r}")
        return dict.fromkeys(names, 0) if versions == "flush" else None
    if set(versions) != set(names):
        raise PlanError(
            f"{text} must name every trainable layer ({', '.join(names)}), "
            f"not {', '.join(versions)}"
        )
    for name, delay in versions.items():
        if type(delay) is not int or delay < 0:
            raise PlanError(f"{text}[{name!r}] must be a number of mini-batches, not {delay!r}")
    return dict(versions)
