"""The command line: ``gradweave COMMAND``.

Exit code 0: done; 1: failed, with one line on stderr (``--debug`` shows the traceback); 2: wrong
usage. Commands load what they need when they run. The work is in ``host/commands.py``. Test:
``tests/test_cli.py``.
"""

import sys
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from ..model.errors import GradweaveError
from ..model.formats import Rounding

if TYPE_CHECKING:
    from .commands import Compiling

__all__ = ["app", "main"]

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Turns a PyTorch model into FPGA hardware that trains it, bit-exact to a golden model.",
)


class DeviceKind(str, Enum):
    """What runs the training."""

    sim = "sim"
    golden = "golden"


class VersionsKind(str, Enum):
    """Which weights a forward pass uses."""

    flush = "flush"
    delayed = "delayed"


class LossKind(str, Enum):
    """What training makes small; the keys of ``model/losses.py``."""

    cross_entropy = "cross_entropy"
    mse = "mse"
    huber = "huber"
    bce_with_logits = "bce_with_logits"


Subject = Annotated[
    str,
    typer.Argument(
        metavar="WHAT",
        help="digits; mnist (needs --data); or FILE.py:NAME, a torch module or what makes one",
    ),
]
Data = Annotated[
    Path | None,
    typer.Option(
        metavar="PATH",
        help="mnist: folder of the four IDX files; FILE.py: an .npz or .safetensors with x and y, "
        "instead of its function data()",
    ),
]
Batch = Annotated[int, typer.Option(min=1, help="samples per mini-batch")]
BoardName = Annotated[
    str, typer.Option(help="board whose budget the plan keeps; a wrong name lists all")
]
Versions = Annotated[
    VersionsKind,
    typer.Option(
        help="flush: plain SGD; delayed: keeps the pipeline full with weights some updates old, "
        "wants less momentum or a lower rate"
    ),
]
Interval = Annotated[
    int | None,
    typer.Option(
        min=1, help="cycles per sample to reach at the least cost; else as fast as the board allows"
    ),
]
RoundingName = Annotated[
    Rounding,
    typer.Option(help="of results; stochastic draws for each element, seeded, and costs LUTs"),
]
LossName = Annotated[
    LossKind | None,
    typer.Option("--loss", help="instead of cross_entropy for labels and mse for values"),
]
PerChannel = Annotated[
    bool, typer.Option("--per-channel", help="weights of each output channel get their own range")
]
Seed = Annotated[int, typer.Option(min=0, help="of first weights, order of samples and split")]
Json = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", help="write the figures here too")
]
Out = Annotated[Path | None, typer.Option(metavar="DIR", help="where results go, instead")]


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="show the traceback of an error")] = False,
) -> None:
    """Options of every command."""


@app.command(short_help="List tools, and what a missing one disables.")
def doctor(json: Json = None) -> None:
    """List every tool that was found, its version, and what a missing one disables."""
    from . import commands

    commands.doctor(json)


@app.command(short_help="Train on real digits in RTL, and compare.")
def demo(
    out: Annotated[Path, typer.Option(metavar="DIR", help="where results go")] = Path("build/demo"),
    epochs: Annotated[int | None, typer.Option(min=1, help="instead of 10")] = None,
    json: Json = None,
) -> None:
    """Train a CNN on real digits in simulated hardware, and compare it with the golden model:
    every tensor of 8 mini-batches, and the whole training's history and final weights.

    Exits with 1 when anything differs or accuracy or interval are not as promised.
    """
    from .demo import run_demo

    raise typer.Exit(run_demo(out, epochs, json))


@app.command(short_help="Train a network in simulated hardware.")
def train(
    what: Subject,
    data: Data = None,
    epochs: Annotated[
        int, typer.Option(min=1, help="passes over the data; in all when resumed")
    ] = 10,
    batch: Batch = 32,
    lr: Annotated[float, typer.Option(help="learning rate, as in torch.optim.SGD")] = 0.05,
    momentum: Annotated[float, typer.Option(help="0 to below 1")] = 0.9,
    nesterov: Annotated[bool, typer.Option("--nesterov", help="Nesterov's momentum")] = False,
    weight_decay: Annotated[float, typer.Option(help="as in torch.optim.SGD")] = 0.0,
    device: Annotated[
        DeviceKind, typer.Option(help="sim: the hardware, simulated; golden: its integer model")
    ] = DeviceKind.sim,
    versions: Versions = VersionsKind.flush,
    board: BoardName = "sim",
    interval: Interval = None,
    checkpoint: Annotated[
        Path | None, typer.Option(metavar="FILE", help="written after every epoch")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="go on from the checkpoint")] = False,
    rounding: RoundingName = Rounding.HALF_EVEN,
    per_channel: PerChannel = False,
    loss: LossName = None,
    seed: Seed = 0,
    json: Json = None,
    out: Out = None,
) -> None:
    """Train a network on its data; writes weights, checkpoint, figures and pictures to
    build/train/NAME.

    Ctrl-C keeps the epochs that are whole; --resume goes on from there.
    """
    from . import commands

    commands.train(
        what,
        data,
        epochs=epochs,
        lr=lr,
        momentum=momentum,
        nesterov=nesterov,
        weight_decay=weight_decay,
        device=device.value,
        checkpoint=checkpoint,
        resume=resume,
        json_file=json,
        out=out,
        compiling=_compiling(batch, versions, board, interval, seed, rounding, per_channel, loss),
    )


@app.command(short_help="Print foldings, intervals and cost.")
def plan(
    what: Subject,
    data: Data = None,
    batch: Batch = 32,
    versions: Versions = VersionsKind.flush,
    board: BoardName = "sim",
    interval: Interval = None,
    rounding: RoundingName = Rounding.HALF_EVEN,
    per_channel: PerChannel = False,
    loss: LossName = None,
    seed: Seed = 0,
    save: Annotated[Path | None, typer.Option(metavar="FILE", help="write the plan (JSON)")] = None,
    json: Json = None,
) -> None:
    """Choose every layer's folding and print the plan as a table: multiplications, folding,
    interval and estimated cost of every engine.
    """
    from . import commands

    compiling = _compiling(batch, versions, board, interval, seed, rounding, per_channel, loss)
    commands.plan(what, data, save=save, json_file=json, compiling=compiling)


@app.command(short_help="Write Verilog, plan and register map.")
def build(
    what: Annotated[str, typer.Argument(metavar="WHAT", help="as for train, or a saved plan.json")],
    data: Data = None,
    batch: Batch = 32,
    versions: Versions = VersionsKind.flush,
    board: BoardName = "sim",
    interval: Interval = None,
    rounding: RoundingName = Rounding.HALF_EVEN,
    per_channel: PerChannel = False,
    loss: LossName = None,
    seed: Seed = 0,
    out: Out = None,
) -> None:
    """Write Verilog, plan, first weights, register map and a picture to build/NAME."""
    from . import commands

    compiling = _compiling(batch, versions, board, interval, seed, rounding, per_channel, loss)
    commands.build(what, data, out=out, compiling=compiling)


@app.command(short_help="Compare every tensor of RTL and golden.")
def verify(
    what: Subject,
    data: Data = None,
    batches: Annotated[int, typer.Option(min=1, help="mini-batches to compare")] = 4,
    batch: Batch = 8,
    lr: Annotated[float, typer.Option(help="learning rate")] = 0.05,
    momentum: Annotated[float, typer.Option(help="0 to below 1")] = 0.9,
    stalls: Annotated[
        float, typer.Option(min=0, max=0.95, help="share of cycles in which the host pauses")
    ] = 0.0,
    trace: Annotated[
        Path | None, typer.Option(metavar="FILE", help="write a waveform, .vcd or .fst")
    ] = None,
    versions: Versions = VersionsKind.flush,
    board: BoardName = "sim",
    interval: Interval = None,
    rounding: RoundingName = Rounding.HALF_EVEN,
    per_channel: PerChannel = False,
    loss: LossName = None,
    seed: Seed = 0,
    json: Json = None,
) -> None:
    """Train a few mini-batches in simulated hardware and in the golden model and compare every
    tensor, saturation count and final parameter.

    Exits with 1 and names layer, tensor, sample and index of the first difference.
    """
    from . import commands

    compiling = _compiling(batch, versions, board, interval, seed, rounding, per_channel, loss)
    commands.verify(
        what,
        data,
        batches=batches,
        lr=lr,
        momentum=momentum,
        stalls=stalls,
        trace=trace,
        json_file=json,
        compiling=compiling,
    )


@app.command(short_help="Measure the pipeline, or LeNet-5 on MNIST.")
def bench(
    name: Annotated[str, typer.Argument(metavar="NAME", help="pipeline or mnist")] = "pipeline",
    data: Data = None,
    json: Json = None,
) -> None:
    """Measure; writes build/bench/NAME.json. Needs a clone of the repository.

    pipeline takes some minutes; mnist, LeNet-5 for an epoch in RTL, about 40 minutes.
    """
    from . import commands

    commands.bench(name, data, json)


@app.command(short_help="Print the figures of a run as a table.")
def report(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="a summary.json of train, demo or bench")
    ],
    curve: Annotated[
        Path | None, typer.Option(metavar="PNG", help="draw its history as a learning curve")
    ] = None,
) -> None:
    """Print the figures of a run as a table."""
    from . import commands

    commands.report(file, curve)


def _compiling(
    batch: int,
    versions: VersionsKind,
    board: str,
    interval: int | None,
    seed: int,
    rounding: Rounding,
    per_channel: bool,
    loss: LossKind | None,
) -> "Compiling":
    from .commands import Compiling

    kind = None if loss is None else loss.value
    return Compiling(
        batch, versions.value, board, interval, seed, rounding.value, per_channel, kind
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit with its code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    try:
        app([word for word in given if word != "--debug"], prog_name="gradweave")
    except (GradweaveError, OSError) as error:
        if debug:
            raise
        console = Console(stderr=True, soft_wrap=True, highlight=False, markup=False)
        console.print(f"gradweave: {error}".replace("\n", " "))
        sys.exit(1)
