"""Pictures and tables of a training run: what it learned, and what every engine did with its
cycles.

Pictures are PNG files, drawn without a display. Test: ``tests/test_report.py``.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter
from rich.table import Table

from ..model.errors import InputError
from ..model.plan import Plan
from .drawing import pipeline_picture

__all__ = ["engine_shares", "learning_curve", "occupancy", "pipeline_picture", "summary_table"]

INK = "#22303c"
FAINT = "#8a97a3"
STATES = {"busy": "#3b8f5a", "starved": "#d9b44a", "blocked": "#c8642b", "waiting": "#7d5ba6"}
STATE_TEXT = {
    "busy": "multiplying",
    "starved": "waits for data",
    "blocked": "waits for room",
    "waiting": "waits for weights",
}
SERIES = ("#3a78b5", "#c8642b", "#3b8f5a", "#7d5ba6")

History = Sequence[Mapping[str, float]]


def learning_curve(history: History, path: Path, reference: History | None = None) -> None:
    """Write a PNG of loss and accuracy per epoch.

    ``history`` has one mapping an epoch; keys that end in ``loss`` are drawn left, keys that end in
    ``accuracy`` (0 to 1) right. ``reference`` is a run of the same network in float32, drawn
    dashed. Raises InputError on an empty history.
    """
    if not history:
        raise InputError("history must have at least one epoch, not none; call fit first")
    losses = [key for key in history[0] if key.endswith("loss")]
    accuracies = [key for key in history[0] if key.endswith("accuracy")]
    panels = [keys for keys in (losses, accuracies) if keys]
    figure = Figure(figsize=(4.9 * len(panels), 3.5), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    for axes, keys in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for key, colour in zip(keys, SERIES, strict=False):
            _curve(axes, history, key, colour, "-", "hardware")
            _curve(axes, reference or [], key, colour, "--", "float32")
        _plain(axes)
        axes.set_xlabel("epoch", color=INK)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        if keys is accuracies:
            axes.yaxis.set_major_formatter(PercentFormatter(1.0))
            axes.set_title("accuracy", loc="left", fontsize=11, color=INK)
        else:
            axes.set_ylim(bottom=0)
            axes.set_title("loss", loc="left", fontsize=11, color=INK)
        axes.legend(frameon=False, fontsize=9, labelcolor=INK)
    figure.savefig(path)


def _curve(axes: Axes, history: History, key: str, colour: str, line: str, run: str) -> None:
    values = [(epoch, row[key]) for epoch, row in enumerate(history, 1) if key in row]
    if values:
        marker = "o" if line == "-" else None
        axes.plot(
            *zip(*values, strict=True),
            color=colour,
            linestyle=line,
            linewidth=1.8,
            marker=marker,
            markersize=3.5,
            label=f"{key.replace('_', ' ')}, {run}",
        )


def engine_shares(plan: Plan, counters: Mapping[str, int]) -> dict[str, dict[str, float]]:
    """Return what share of the segment's cycles each engine spent in each state, by engine such as
    ``conv1.fp``.

    States are those of ``ENGINE_COUNTERS``; what is missing from 1 are cycles before the first and
    after the last sample. Raises InputError where the counters are not those of a segment that ran.
    """
    cycles = counters.get("cycles", 0)
    if cycles <= 0:
        raise InputError("counters must be those of a segment that ran: cycles is 0 or missing")
    shares = {}
    for layer in plan.trainable:
        for engine in layer.engines:
            name = f"{layer.name}.{engine}"
            missing = [state for state in STATES if f"{name}.{state}" not in counters]
            if missing:
                raise InputError(
                    f"counters must contain {name}.{missing[0]}: not this plan's design"
                )
            shares[name] = {state: counters[f"{name}.{state}"] / cycles for state in STATES}
    return shares


def occupancy(plan: Plan, counters: Mapping[str, int], path: Path) -> None:
    """Write a PNG with one stacked bar an engine: the share of cycles in each state. Raises as
    ``engine_shares``.
    """
    shares = engine_shares(plan, counters)
    names = list(shares)
    figure = Figure(figsize=(8.6, 1.5 + 0.34 * len(names)), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    left = [0.0] * len(names)
    for state, colour in STATES.items():
        values = [shares[name][state] for name in names]
        axes.barh(names, values, left=left, color=colour, height=0.68, label=STATE_TEXT[state])
        for row, value in enumerate(values):
            if value >= 0.06:
                middle = left[row] + value / 2
                axes.text(
                    middle,
                    row,
                    f"{value:.0%}",
                    color="white",
                    fontsize=8.5,
                    ha="center",
                    va="center",
                )
            left[row] += value
    _plain(axes)
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.grid(visible=False, axis="y")
    axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_xlabel(f"share of {counters['cycles']:,} cycles", color=INK)
    figure.legend(loc="outside upper left", ncols=4, frameon=False, fontsize=9, labelcolor=INK)
    figure.savefig(path)


def _plain(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(FAINT)
    axes.tick_params(colors=INK, labelsize=9)
    axes.grid(color="#e3e8ec", linewidth=0.8)
    axes.set_axisbelow(True)


def summary_table(summary: Mapping[str, Any], title: str = "") -> Table:
    """Return a table of the figures of a ``summary.json``; nested mappings become rows such as
    ``counters cycles``.
    """
    table = Table(title=title or None, title_justify="left", show_header=False, pad_edge=False)
    table.add_column("figure", style="bold")
    table.add_column("value", justify="right", overflow="fold")
    for key, value in _flat(summary):
        table.add_row(key.replace("_", " "), _text(value))
    return table


def _flat(summary: Mapping[str, Any], above: str = "") -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = []
    for key, value in summary.items():
        name = f"{above} {key}".strip()
        if isinstance(value, Mapping):
            rows += _flat(value, name)
        elif not isinstance(value, list | tuple):
            rows.append((name, value))
    return rows


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    return "-" if value is None else str(value)
