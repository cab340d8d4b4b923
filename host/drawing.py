"""Draws a plan: its engines with their foldings, and how evenly the work is spread over them.

Test: ``tests/test_report.py``.
"""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

from ..model.plan import LayerPlan, Plan

__all__ = ["pipeline_picture"]

INK = "#22303c"
FAINT = "#8a97a3"
# Row: height of its centre, colour, and what flows along it.
FORWARD = (2.9, "#3a78b5", "features")
BACKWARD = (1.6, "#c8642b", "errors")
GRADIENT = (0.3, "#3b8f5a", "weights")
WIDE, NARROW, GAP, TALL = 1.5, 0.92, 0.42, 0.86


def pipeline_picture(plan: Plan, path: Path) -> None:
    """Write a PNG of the plan's engines.

    One column a layer; the rows are the forward pass (FP), the errors (EB) and the weight gradients
    with their update (WG). The bar in a box is the engine's interval as a share of the pipeline's:
    full bars everywhere are a perfect balance.
    """
    widths = [NARROW, *(WIDE if layer.trainable else NARROW for layer in plan.layers), NARROW]
    lefts = [sum(widths[:n]) + n * GAP for n in range(len(widths))]
    total = lefts[-1] + widths[-1]
    figure = Figure(figsize=(0.95 * (total + 1.2), 0.95 * 5.2), dpi=110, facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set_xlim(-0.95, total + 0.25)
    axes.set_ylim(-0.6, 4.6)
    axes.axis("off")

    columns = list(zip(lefts, widths, strict=True))
    _title(axes, plan, total)
    _ends(axes, plan, columns)
    for layer, (left, width) in zip(plan.layers, columns[1:-1], strict=True):
        _layer(axes, plan, layer, left, width)
    _streams(axes, plan, columns)
    figure.savefig(path)


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


def _ends(axes: Axes, plan: Plan, columns: Sequence[tuple[float, float]]) -> None:
    left, width = columns[0]
    _box(axes, left, FORWARD[0], width, FAINT, ["input", _shape(plan.input_shape)])
    left, width = columns[-1]
    centre = (FORWARD[0] + BACKWARD[0]) / 2
    height = FORWARD[0] - BACKWARD[0] + TALL
    lines = ["loss", plan.loss.kind.replace("_", "-"), f"{plan.loss.outputs} logits"]
    share = plan.loss_interval / plan.interval
    _box(axes, left, centre, width, "#7d5ba6", lines, share=share, height=height)


def _layer(axes: Axes, plan: Plan, layer: LayerPlan, left: float, width: float) -> None:
    middle = left + width / 2
    axes.text(middle, 3.92, layer.name, fontsize=9.5, weight="bold", color=INK, ha="center")
    axes.text(middle, 3.62, _geometry(layer), fontsize=7.5, color=FAINT, ha="center", va="center")
    rows = [("FP", FORWARD, layer.fp_interval)]
    if layer.backward:
        rows.append(("EB", BACKWARD, layer.eb_interval))
    if layer.trainable:
        rows.append(("WG", GRADIENT, layer.fp_interval))
    for engine, (y, colour, _), interval in rows:
        if layer.trainable:
            lines = [f"{engine}  {layer.a} × {layer.b}", f"{interval:,} cycles"]
        else:
            lines = ["pool" if layer.kind == "maxpool2d" else layer.kind, f"{interval:,}"]
        _box(axes, left, y, width, colour, lines, share=interval / plan.interval)
    if layer.trainable:
        versions = (
            f"delay {layer.delay}, {layer.back_delay}" if layer.backward else f"delay {layer.delay}"
        )
        below = GRADIENT[0] - TALL / 2 - 0.18
        axes.text(middle, below, versions, fontsize=7.5, color=FAINT, ha="center", va="center")


def _streams(axes: Axes, plan: Plan, columns: Sequence[tuple[float, float]]) -> None:
    for n in range(len(columns) - 1):
        right_of, left_of = columns[n][0] + columns[n][1], columns[n + 1][0]
        _arrow(axes, (right_of, FORWARD[0]), (left_of, FORWARD[0]), FORWARD[1])
        if n == 0:
            continue
        below = plan.layers[n - 1]
        if below.backward:
            _arrow(axes, (left_of, BACKWARD[0]), (right_of, BACKWARD[0]), BACKWARD[1])
        elif below.trainable:
            corner = columns[n][0] + 0.8 * columns[n][1]
            axes.plot([left_of, corner], [BACKWARD[0]] * 2, color=BACKWARD[1], linewidth=1.4)
            top = GRADIENT[0] + TALL / 2
            _arrow(axes, (corner, BACKWARD[0]), (corner, top), BACKWARD[1])
    for layer, (left, width) in zip(plan.layers, columns[1:-1], strict=True):
        if not layer.trainable:
            continue
        top = GRADIENT[0] + TALL / 2
        if layer.backward:
            x = left + 0.8 * width
            _arrow(axes, (x, BACKWARD[0] - TALL / 2), (x, top), BACKWARD[1])
        # Features pass behind the error engine on their way to the weight gradient.
        x = left + 0.2 * width
        _arrow(axes, (x, FORWARD[0] - TALL / 2), (x, top), FORWARD[1], behind=True)


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
            zorder=1 if behind else 2,
        )
    )


def _shape(shape: tuple[int, int, int]) -> str:
    return " × ".join(str(size) for size in shape)


def _geometry(layer: LayerPlan) -> str:
    if layer.kind == "linear":
        channels, height, width = layer.i_shape
        return f"{channels * height * width} → {layer.o_shape[0]}"
    if layer.kind == "conv2d":
        return f"{layer.kernel[0]} × {layer.kernel[1]}, {layer.i_shape[0]} → {layer.o_shape[0]}"
    if layer.kind == "maxpool2d":
        return f"{layer.kernel[0]} × {layer.kernel[1]}"
    return _shape(layer.i_shape)
