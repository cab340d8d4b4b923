"""A plan as a table: what every engine does, how it is folded, how long it takes and what it costs.

Test: ``tests/test_planner.py``.
"""

import dataclasses
import io

from rich.console import Console
from rich.table import Table

from ..boards.catalog import load
from ..model.plan import LayerPlan, Plan
from ..model.schedule import flush_interval, interval_at, paced_intervals, schedule, sweep_cycles
from .planner import board_budget
from .resources import engine_resources, plan_resources

__all__ = ["binding_limit", "plan_rows", "plan_summary", "plan_table", "plan_text"]


def plan_rows(plan: Plan) -> list[dict[str, object]]:
    """One record per engine: layer, engine, macs (per sample), folding, interval (cycles), dsp,
    bram36, lut.

    An update's interval is that of a sweep, once per mini-batch; its folding is its number of
    lanes.
    """
    paced = paced_intervals(plan)
    rows: list[dict[str, object]] = []
    for layer in plan.layers:
        for engine, cost in engine_resources(layer, plan).items():
            if engine == "update":
                interval, folding, macs = sweep_cycles(layer), str(layer.update_lanes), 0
            else:
                interval = paced.get(f"{layer.name}.{engine}", layer.fp_interval)
                folding = _folding(layer) if layer.trainable else str(layer.lanes)
                macs = _macs(layer)
            rows.append(
                {
                    "layer": layer.name,
                    "engine": engine,
                    "macs": macs,
                    "folding": folding,
                    "interval": interval,
                    "dsp": cost.dsp,
                    "bram36": cost.bram36,
                    "lut": cost.lut,
                }
            )
    return rows


def plan_summary(plan: Plan, batch: int | None = None) -> dict[str, object]:
    """What the whole design reaches: cycles, samples per second, delays, use of the board.

    ``batch`` is the mini-batch of ``interval_training``; the largest possible by default.
    """
    samples = batch or plan.batch_max
    state = schedule(plan)
    cost = plan_resources(plan)
    budget = board_budget(load(plan.board))
    training = interval_at(plan, samples)
    return {
        "interval": state.interval,
        "interval_training": training,
        "interval_flushed": flush_interval(plan, samples),
        "batch": samples,
        "samples_per_second": plan.clock_hz / training,
        "latency": state.latency,
        "delays": {layer.name: layer.delay for layer in plan.trainable},
        "back_delays": {layer.name: layer.back_delay for layer in plan.trainable},
        "dsp": cost.dsp,
        "bram36": cost.bram36,
        "lut": cost.lut,
        "dsp_share": cost.dsp / budget.dsp,
        "bram36_share": cost.bram36 / budget.bram36,
        "lut_share": cost.lut / budget.lut,
        "limit": binding_limit(plan),
    }


def binding_limit(plan: Plan) -> str:
    """What keeps the pipeline from being faster: the input stream, the loss, or an engine.

    An engine that is folded out completely, so that more slices would not help, is said to be at
    its widest.
    """
    interval = schedule(plan).interval
    for name, cycles in paced_intervals(plan).items():
        if cycles == interval:
            layer = plan.layer(name.rsplit(".", 1)[0])
            widest = layer.o_blocks == layer.i_blocks == 1 and layer.unfold == layer.unfoldable
            return f"{name}, at its widest" if layer.trainable and widest else name
    if interval == plan.loss_interval:
        return "loss"
    return "input stream"


def plan_table(plan: Plan, batch: int | None = None) -> Table:
    """The rows of ``plan_rows`` with the figures of ``plan_summary`` beneath, for ``rich`` to
    print.
    """
    summary = plan_summary(plan, batch)
    table = Table(title=f"{plan.name} on {plan.board}", caption=_caption(plan, summary))
    table.caption_justify = "left"
    table.add_column("engine")
    for heading in ("MACs/sample", "folding", "interval", "DSP", "BRAM36"):
        table.add_column(heading, justify="right")
    for row in plan_rows(plan):
        macs = f"{row['macs']:,}" if row["macs"] else ""
        cells = (
            macs,
            row["folding"],
            f"{row['interval']:,}",
            row["dsp"] or "",
            f"{row['bram36']:g}",
        )
        table.add_row(f"{row['layer']}.{row['engine']}", *map(str, cells))
    return table


def plan_text(plan: Plan, batch: int | None = None) -> str:
    """``plan_table`` as plain text, 100 columns wide."""
    console = Console(file=io.StringIO(), width=100)
    with console.capture() as capture:
        console.print(plan_table(plan, batch))
    return capture.get()


def _caption(plan: Plan, summary: dict[str, object]) -> str:
    delays = ", ".join(f"{layer.name} {layer.delay}" for layer in plan.trainable)
    return "\n".join(
        (
            f"interval {summary['interval']:,} cycles, set by {summary['limit']}; in training "
            f"{summary['interval_training']:,.1f} at mini-batches of {summary['batch']}",
            f"{summary['samples_per_second']:,.0f} samples/s at {plan.clock_hz / 1e6:g} MHz, "
            f"latency {summary['latency']:,} cycles",
            f"delays in mini-batches: {delays}",
            f"DSP {summary['dsp']} ({summary['dsp_share']:.0%}), "
            f"BRAM36 {summary['bram36']:g} ({summary['bram36_share']:.0%}), "
            f"LUT about {summary['lut']:,} ({summary['lut_share']:.0%} of the usable ones)",
        )
    )


def _folding(layer: LayerPlan) -> str:
    """Outputs by inputs, and by groups where several are multiplied at once."""
    words = (layer.a, layer.b) if layer.group_lanes == 1 else (layer.a, layer.b, layer.group_lanes)
    return " x ".join(map(str, words)) + (" unfolded" if layer.unfold else "")


def _macs(layer: LayerPlan) -> int:
    """Multiplications of one pass of a sample; every pair of pixel and existing tap once."""
    if not layer.trainable:
        return 0
    plain = dataclasses.replace(layer, unfold=False, a=1, b=1, group_lanes=1, update_lanes=1)
    rows, cols = (sum(position.taps for position in walk.positions) for walk in plain.fp_walks)
    return rows * cols * layer.group_shape[1] * layer.o_shape[0]
