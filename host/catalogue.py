"""The catalogue of layers in the README: what can be trained in hardware, under which limits, and
where it is told.

Figures and status are those of the code: ``host/kind_figures.py``, and which files there are.
``scripts/docs.py`` writes it between its markers. Test: ``tests/test_readme.py``.
"""

from dataclasses import dataclass
from pathlib import Path

from ..model.formats import Format
from ..model.plan import LossPlan, Plan
from .kind_figures import kind_figures

__all__ = ["BEGIN", "CATALOGUE", "END", "Entry", "catalogue_table", "paths", "replace_catalogue"]

BEGIN = "<!-- catalogue: written by scripts/docs.py -->"
END = "<!-- end of catalogue -->"
ROOT = Path(__file__).resolve().parent.parent
CAPTION = (
    "Interval (cycles per sample forward, backward), latency (cycles from a word, or a row's last"
    "\nbeat, to its result), DSP slices and block RAMs (RAMB36) are those of one layer of 16"
    "\nchannels on 16 × 16 maps, of 2 × 2 windows or 3 × 3 taps, in 16 bits, with one channel or"
    "\nproduct a cycle; of a loss, those of 16 logits. Every interval shrinks with the folding."
)


@dataclass(frozen=True)
class Entry:
    """One row. ``stem`` names golden, RTL and test file; None where nothing is left to compute.
    ``kind`` is the layer's in ``model/kinds.py``.
    """

    torch: str
    stem: str | None
    takes: str
    engines: str
    kind: str | None = None


CATALOGUE = (
    Entry(
        "`Conv2d`",
        "conv",
        "kernel 1 to 11, any stride, zero padding, groups, dilation, bias or none",
        "FP, EB, WG",
        "conv2d",
    ),
    Entry("`Linear`", "linear", "bias or none", "FP, EB, WG", "linear"),
    Entry("`BatchNorm2d`", "affine", "its frozen statistics", "multiplier", "affine"),
    Entry("`BatchNorm2d`", "scale", "its weight and bias, trained", "FP, EB, WG", "scale"),
    Entry("`ReLU`", "relu", "module or function", "mask", "relu"),
    Entry("`ReLU6`, `Hardtanh`", "activation", "any bounds", "mask", "clip"),
    Entry("`LeakyReLU`", "activation", "slopes from 0 to 1", "mask, multiplier", "leaky_relu"),
    Entry("`Sigmoid`, `Tanh`", "table", "to the last place or its table's error", "table", "tanh"),
    Entry("`GELU`, `SiLU`", "table", "the exact `GELU`", "table", "gelu"),
    Entry("`Softmax`", "softmax", "over channels", "table, divider", "softmax"),
    Entry("`Dropout`", "dropout", "golden and RTL share the generator", "cipher", "dropout"),
    Entry("`MaxPool2d`", "maxpool", "any kernel, stride and padding", "router", "maxpool2d"),
    Entry("`AvgPool2d`", "avgpool", "also `AdaptiveAvgPool2d`, `mean`", "sum", "avgpool2d"),
    Entry("`+`", "add", "residuals: any number of equal shapes", "sum, FIFOs", "add"),
    Entry("`cat`", "concat", "along channels", "turns, FIFOs", "concat"),
    Entry("several readers", "fork", "any feature; errors are added", "sum, FIFOs", "fork"),
    Entry("`Flatten`", None, "also `flatten`, `view`, `reshape`; in torch's order", "none needed"),
    Entry("`Identity`", None, "dropped", "none needed"),
    Entry(
        "`CrossEntropyLoss`",
        "cross_entropy",
        "class labels, class weights, `ignore_index`; softmax in hardware",
        "loss",
    ),
    Entry("`MSELoss`", "mse", "one target an output", "loss"),
    Entry("`HuberLoss`, `SmoothL1Loss`", "huber", "one target an output; any delta", "loss"),
    Entry(
        "`BCEWithLogitsLoss`",
        "binary_cross_entropy",
        "one target from 0 to 1 an output; sigmoid in hardware",
        "loss",
    ),
    Entry("`SGD`", "update", "momentum, Nesterov, weight decay; registers at run time", "update"),
)


def paths(entry: Entry) -> dict[str, str]:
    """The files of an entry that there are, by what they are."""
    if entry.stem is None:
        return {}
    files = {
        "golden": f"model/pipeline/{entry.stem}.py",
        "RTL": f"rtl/pipeline/{entry.stem}.py",
        "test": f"tests/pipeline/test_{entry.stem}.py",
    }
    return {name: path for name, path in files.items() if (ROOT / path).is_file()}


def catalogue_table() -> str:
    """Return the catalogue as a Markdown table with links to golden model, RTL and test."""
    heads = ["torch", "takes", "in hardware", "interval", "latency", "DSP", "BRAM", "status"]
    heads.append("golden, RTL, test")
    lines = [_row(heads), _row(["---"] * len(heads))]
    for entry in CATALOGUE:
        found = paths(entry)
        links = ", ".join(f"[{name}]({path})" for name, path in found.items()) or "-"
        cells = [entry.torch, entry.takes, entry.engines, *_figures(entry), _status(entry)]
        lines.append(_row([*cells, links]))
    return "\n".join((*lines, "", CAPTION))


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _status(entry: Entry) -> str:
    if entry.stem is None or len(found := paths(entry)) == 3:
        return "trains"
    return "golden only" if "golden" in found else "to come"


def _figures(entry: Entry) -> list[str]:
    """Interval, latency, DSP slices and block RAMs."""
    if entry.kind is not None:
        found = kind_figures(entry.kind)
        intervals = f"{found.fp_interval:,}, {found.eb_interval:,}"
        return [intervals, str(found.latency), str(found.dsp), f"{found.bram36:g}"]
    if entry.engines == "loss" and entry.stem is not None:
        loss = LossPlan(entry.stem, 16, Format(16, 10), Format(16, 13))
        plan = Plan("loss", (), loss, batch_max=1)
        return [str(plan.loss_interval), str(plan.loss_latency), "-", "-"]
    return ["-"] * 4


def replace_catalogue(text: str) -> str:
    """Return ``text`` with the catalogue between its markers made current; raises ValueError
    without markers.
    """
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise ValueError("text must have both markers of the catalogue once")
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    return f"{before}{BEGIN}\n{catalogue_table()}\n{END}{after}"
