"""The catalogue of layers in the README: what can be trained in hardware, under which limits, and
where it is told.

``scripts/docs.py`` writes it between its markers. Test: ``tests/test_readme.py``.
"""

from dataclasses import dataclass

__all__ = ["BEGIN", "CATALOGUE", "END", "Entry", "catalogue_table", "replace_catalogue"]

BEGIN = "<!-- catalogue: written by scripts/docs.py -->"
END = "<!-- end of catalogue -->"


@dataclass(frozen=True)
class Entry:
    """One row. ``stem`` names golden, RTL and test file; None where nothing is left to compute."""

    torch: str
    stem: str | None
    takes: str
    engines: str


CATALOGUE = (
    Entry(
        "`Conv2d`", "conv", "kernel 1 to 11, any stride, zero padding, bias or none", "FP, EB, WG"
    ),
    Entry("`Linear`", "linear", "bias or none", "FP, EB, WG"),
    Entry("`ReLU`", "relu", "module or function", "mask"),
    Entry("`ReLU6`, `Hardtanh`, `LeakyReLU`", "activation", "any bounds, slope 0 to 1", "mask"),
    Entry(
        "`Sigmoid`, `Tanh`, `GELU`, `SiLU`", "table", "GELU by erf; features to 24 bits", "table"
    ),
    Entry("`BatchNorm2d`", "affine", "its frozen statistics, in inference mode", "a product"),
    Entry("`MaxPool2d`", "maxpool", "any kernel, stride and padding; `ceil_mode` off", "router"),
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


def catalogue_table() -> str:
    """Return the catalogue as a Markdown table with links to golden model, RTL and test."""
    lines = ["| torch | takes | in hardware | golden, RTL, test |", "| --- | --- | --- | --- |"]
    for entry in CATALOGUE:
        links = "-"
        if entry.stem is not None:
            paths = {
                "golden": f"model/pipeline/{entry.stem}.py",
                "RTL": f"rtl/pipeline/{entry.stem}.py",
                "test": f"tests/pipeline/test_{entry.stem}.py",
            }
            links = ", ".join(f"[{name}]({path})" for name, path in paths.items())
        lines.append(f"| {entry.torch} | {entry.takes} | {entry.engines} | {links} |")
    return "\n".join(lines)


def replace_catalogue(text: str) -> str:
    """Return ``text`` with the catalogue between its markers made current; raises ValueError
    without markers.
    """
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise ValueError("text must have both markers of the catalogue once")
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    return f"{before}{BEGIN}\n{catalogue_table()}\n{END}{after}"
