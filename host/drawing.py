"""Draws a plan: its engines with their foldings, and how evenly the work is spread over them.

Test: ``tests/test_report.py``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

from ..model.plan import INPUT, LOSS, LayerPlan, Plan

__all__ = ["pipeline_picture"]

INK = "#22303c"
FAINT = "#8a97a3"
# Row: height of its centre, colour, and what flows along it.
FORWARD = (2.9, "#3a78b5", "features")
BACKWARD = (1.6, "#c8642b", "errors")
GRADIENT = (0.3, "#3b8f5a", "weights")
WIDE, NARROW, GAP, TALL = 1.5, 0.92, 0.42, 0.86
NAMES = {"maxpool2d": "pool", "avgpool2d": "average", "leaky_relu": "leaky"}
TRACK = 4.6  # from one branch to the one drawn below it


@dataclass(frozen=True)
class Place:
    """Where a block is drawn: its column, counted from the input, and its branch; in units of the
    picture its left edge, its width and how far its branch lies below the first.
    """

    column: int
    branch: int
    left: float = 0.0
    width: float = NARROW

    @property
    def drop(self) -> float:
        return self.branch * TRACK


def pipeline_picture(plan: Plan, path: Path) -> None:
    """Write a PNG of the plan's engines.

    One column a layer, branches one below another; the rows are the forward pass (FP), the errors
    (EB) and the weight gradients with their update (WG). The bar in a box is the engine's interval
    as a share of the pipeline's: full bars everywhere are a perfect balance.
    """
    places = _places(plan)
    total = max(place.left + place.width for place in places.values())
    below = max(place.drop for place in places.values())
    size = (0.95 * (total + 1.2), 0.95 * (5.2 + below))
    figure = Figure(figsize=size, dpi=110, facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set_xlim(-0.95, total + 0.25)
    axes.set_ylim(-0.6 - below, 4.6)
    axes.axis("off")

    _title(axes, plan, total)
    _ends(axes, plan, places)
    for layer in plan.layers:
        _layer(axes, plan, layer, places[layer.name])
    _streams(axes, plan, places)
    figure.savefig(path)


def _places(plan: Plan) -> dict[str, Place]:
    """Where everything is drawn. A fork's first consumer goes on straight, the others each in a
    branch below; a join goes on where the uppermost of its sources came.
    """
    places = {INPUT: Place(0, 0)}
    taken = {(0, 0)}
    for name in [*(layer.name for layer in plan.layers), LOSS]:
        edges = plan.edges_in[name]
        column = 1 + max(places[edge.source].column for edge in edges)
        branch = min(places[edge.source].branch + edge.source_port for edge in edges)
        while (column, branch) in taken:
            branch += 1
        places[name] = Place(column, branch)
        taken.add((column, branch))
    last = max(place.column for place in places.values())
    widths = [NARROW] * (last + 1)
    for layer in plan.trainable:
        widths[places[layer.name].column] = WIDE
    lefts = [sum(widths[:n]) + n * GAP for n in range(len(widths))]
    return {
        name: Place(x.column, x.branch, lefts[x.column], widths[x.column])
        for name, x in places.items()
    }


def _title(axes: Axes, plan: Plan, total: float) -> None:
    rate = plan.clock_hz / plan.interval
    axes.text(0, 4.3, plan.name, fontsize=13, weight="bold", color=INK, va="center")
    axes.text(
        total,
        4.3,
        f"{plan.multipliers} multipliers, a sample every {plan.interval:,} cycles"
        f" = {rate:,.0f} samples/s at {plan.clock_hz / 1e6:g} MHz",
        fontsize=9.5,
        color=INK,
        ha="right",
        va="center",
    )
    for y, colour, name in (FORWARD, BACKWARD, GRADIENT):
        axes.text(-0.25, y, name, fontsize=9, color=colour, rotation=90, ha="center", va="center")


def _ends(axes: Axes, plan: Plan, places: dict[str, Place]) -> None:
    place = places[INPUT]
    lines = ["input", _shape(plan.input_shape)]
    _box(axes, place.left, FORWARD[0], place.width, FAINT, lines)
    place = places[LOSS]
    centre = (FORWARD[0] + BACKWARD[0]) / 2 - place.drop
    height = FORWARD[0] - BACKWARD[0] + TALL
    lines = ["loss", plan.loss.kind.replace("_", "-"), f"{plan.loss.outputs} logits"]
    share = plan.loss_interval / plan.interval
    _box(axes, place.left, centre, place.width, "#7d5ba6", lines, share=share, height=height)


def _layer(axes: Axes, plan: Plan, layer: LayerPlan, place: Place) -> None:
    middle, drop = place.left + place.width / 2, place.drop
    top, below = 3.92 - drop, 3.62 - drop
    axes.text(middle, top, layer.name, fontsize=9.5, weight="bold", color=INK, ha="center")
    axes.text(middle, below, _geometry(layer), fontsize=7.5, color=FAINT, ha="center", va="center")
    rows = [("FP", FORWARD, layer.fp_interval)]
    if layer.backward:
        rows.append(("EB", BACKWARD, layer.eb_interval))
    if layer.trainable:
        rows.append(("WG", GRADIENT, layer.fp_interval))
    for engine, (y, colour, _), interval in rows:
        if layer.trainable:
            lines = [f"{engine}  {layer.a} × {layer.b}", f"{interval:,} cycles"]
        else:
            lines = [NAMES.get(layer.kind, layer.kind), f"{interval:,}"]
        share = interval / plan.interval
        _box(axes, place.left, y - drop, place.width, colour, lines, share=share)
    if layer.trainable:
        versions = (
            f"delay {layer.delay}, {layer.back_delay}" if layer.backward else f"delay {layer.delay}"
        )
        below = GRADIENT[0] - TALL / 2 - 0.18 - drop
        axes.text(middle, below, versions, fontsize=7.5, color=FAINT, ha="center", va="center")


def _streams(axes: Axes, plan: Plan, places: dict[str, Place]) -> None:
    for edge in plan.edges:
        source, sink = places[edge.source], places[edge.sink]
        right_of, left_of = source.left + source.width, sink.left
        ends = (right_of, FORWARD[0] - source.drop), (left_of, FORWARD[0] - sink.drop)
        # A stream past other columns bends around what is drawn there.
        bend = 0.0 if sink.column == source.column + 1 else 0.25
        _arrow(axes, *ends, FORWARD[1], bend=bend)
        if not plan.passes_error(edge.source):
            continue
        if plan.layer(edge.source).backward:
            ends = (left_of, BACKWARD[0] - sink.drop), (right_of, BACKWARD[0] - source.drop)
            _arrow(axes, *ends, BACKWARD[1], bend=bend)
            continue
        corner = source.left + 0.8 * source.width
        y = BACKWARD[0] - source.drop
        axes.plot(
            [left_of, corner], [y - sink.drop + source.drop, y], color=BACKWARD[1], linewidth=1.4
        )
        top = GRADIENT[0] + TALL / 2 - source.drop
        _arrow(axes, (corner, y), (corner, top), BACKWARD[1])
    for layer in plan.trainable:
        place = places[layer.name]
        top = GRADIENT[0] + TALL / 2 - place.drop
        if layer.backward:
            x = place.left + 0.8 * place.width
            _arrow(axes, (x, BACKWARD[0] - TALL / 2 - place.drop), (x, top), BACKWARD[1])
        # Features pass behind the error engine on their way to the weight gradient.
        x = place.left + 0.2 * place.width
        start = (x, FORWARD[0] - TALL / 2 - place.drop)
        _arrow(axes, start, (x, top), FORWARD[1], behind=True)


def _box(
    axes: Axes,
    left: float,
    centre: float,
    width: float,
    colour: str,
    lines: Sequence[str],
    *,
    share: float | None = None,
    height: float = TALL,
) -> None:
    bottom = centre - height / 2
    box = FancyBboxPatch(
        (left, bottom),
        width,
        height,
        boxstyle="round,pad=0,rounding_size=0.07",
        facecolor="white",
        edgecolor=colour,
        linewidth=1.5,
        zorder=3,
    )
    axes.add_patch(box)
    for n, line in enumerate(lines):
        y = centre + 0.06 + 0.25 * ((len(lines) - 1) / 2 - n)
        size, colour_of = (9.0, INK) if n == 0 else (8.0, "#55626e")
        axes.text(
            left + width / 2,
            y,
            line,
            fontsize=size,
            color=colour_of,
            ha="center",
            va="center",
            zorder=4,
        )
    if share is not None:
        track = Rectangle((left + 0.1, bottom + 0.08), width - 0.2, 0.07, color="#e3e8ec", zorder=4)
        bar = Rectangle(
            (left + 0.1, bottom + 0.08),
            (width - 0.2) * min(1.0, share),
            0.07,
            color=colour,
            zorder=5,
        )
        axes.add_patch(track)
        axes.add_patch(bar)


def _arrow(
    axes: Axes,
    start: tuple[float, float],
    end: tuple[float, float],
    colour: str,
    *,
    behind: bool = False,
    bend: float = 0.0,
) -> None:
    axes.add_patch(
        FancyArrowPatch(
            start,
            end,
            arrowstyle="-|>",
            mutation_scale=9,
            color=colour,
            linewidth=1.4,
            shrinkA=0,
            shrinkB=0,
            connectionstyle=f"arc3,rad={bend}",
            zorder=1 if behind or bend else 2,
        )
    )


def _shape(shape: tuple[int, int, int]) -> str:
    return " × ".join(str(size) for size in shape)


def _geometry(layer: LayerPlan) -> str:
    if layer.kind == "linear":
        channels, height, width = layer.i_shape
        return f"{channels * height * width} → {layer.o_shape[0]}"
    if layer.kind == "conv2d":
        text = f"{layer.kernel[0]} × {layer.kernel[1]}, {layer.i_shape[0]} → {layer.o_shape[0]}"
        return text if layer.groups == 1 else f"{text}, {layer.groups} groups"
    if layer.pattern == "window" and not layer.adaptive:
        return f"{layer.kernel[0]} × {layer.kernel[1]}"
    return _shape(layer.o_shape)
