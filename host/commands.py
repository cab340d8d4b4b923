"""What the commands of the command line do. Each prints to stdout and raises what it cannot do.

Test: ``tests/test_cli.py``.
"""

import importlib
import json
import platform
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from ..model.errors import GradweaveError, InputError
from ..model.plan import Plan
from .design import Design
from .subjects import Subject, load_subject

__all__ = ["Compiling", "bench", "build", "doctor", "plan", "report", "train", "verify"]

ROOT = Path(__file__).resolve().parent.parent
CALIBRATION_SAMPLES = 256
EVALUATED_TOGETHER = 256
BENCHES = ("pipeline", "layers", "mnist")


@dataclass(frozen=True)
class Compiling:
    """Options of ``compile`` that the commands share."""

    batch: int
    versions: str
    board: str
    interval: int | None
    seed: int
    rounding: str = "half_even"
    per_channel: bool = False
    loss: str | None = None

    def design(self, subject: Subject) -> Design:
        """Compile a subject's model, with number formats from its first training samples."""
        from .compile import compile as compile_model

        x, y = subject.data.train_x, subject.data.train_y
        return compile_model(
            subject.model,
            x[:CALIBRATION_SAMPLES],
            loss=self.loss or subject.loss,
            targets=y[:CALIBRATION_SAMPLES],
            board=self.board,
            batch=self.batch,
            versions=self.versions,
            interval=self.interval,
            rounding=self.rounding,
            per_channel=self.per_channel,
            seed=self.seed,
            name=subject.name,
        )


def doctor(json_file: Path | None) -> None:
    """Print the tools that were found and what a missing one disables."""
    from .doctor import doctor_table, probe_tools

    tools = probe_tools()
    Console().print(doctor_table(tools))
    if json_file is not None:
        _write_json(json_file, {"tools": [vars(tool) for tool in tools]})


def train(
    what: str,
    data: Path | None,
    *,
    epochs: int,
    lr: float,
    momentum: float,
    nesterov: bool,
    weight_decay: float,
    device: str,
    checkpoint: Path | None,
    resume: bool,
    json_file: Path | None,
    out: Path | None,
    compiling: Compiling,
) -> None:
    """Train a subject and write its weights, checkpoint, figures and pictures."""
    from safetensors.torch import save_file

    from .data import Batches
    from .report import learning_curve, occupancy, summary_table
    from .trainer import Trainer

    subject = load_subject(what, data, compiling.seed)
    design = compiling.design(subject)
    folder = out or Path("build/train") / subject.name
    folder.mkdir(parents=True, exist_ok=True)
    state = checkpoint or folder / "checkpoint.safetensors"
    if resume and not state.is_file():
        raise InputError(
            f"{state} is no file, so there is nothing to resume: train without --resume first"
        )
    runner = design.simulate() if device == "sim" else design.golden()
    try:
        trainer = Trainer(
            runner, lr=lr, momentum=momentum, nesterov=nesterov, weight_decay=weight_decay
        )
        split = subject.data
        held_out = list(
            zip(
                split.test_x.split(EVALUATED_TOGETHER),
                split.test_y.split(EVALUATED_TOGETHER),
                strict=True,
            )
        )
        loader = Batches(split.train_x, split.train_y, compiling.batch, compiling.seed)
        start = time.perf_counter()
        try:
            trainer.fit(loader, epochs, checkpoint=state, validation=held_out, resume=resume)
        except KeyboardInterrupt:
            raise GradweaveError(
                f"stopped after {trainer.epoch} whole epochs, which are kept: "
                f"the same command with --resume goes on from {state}"
            ) from None
        seconds = time.perf_counter() - start
        save_file(trainer.state_dict(), folder / "model.safetensors")
        summary = _train_summary(design.plan, device, trainer.history, trainer.counters, seconds)
        summary |= {"test_" + key: value for key, value in trainer.evaluate(held_out).items()}
        learning_curve(trainer.history, folder / "learning_curve.png")
        if "cycles" in trainer.counters:
            occupancy(design.plan, trainer.counters, folder / "occupancy.png")
    finally:
        runner.close()
    for file in {folder / "summary.json", *([json_file] if json_file else [])}:
        _write_json(file, summary)
    Console().print(summary_table(summary, f"{subject.name}: results in {folder}"))


def _train_summary(
    plan: Plan,
    device: str,
    history: list[dict[str, Any]],
    counters: Mapping[str, int],
    seconds: float,
) -> dict[str, Any]:
    summary: dict[str, Any] = {
        "design": plan.identity,
        "device": device,
        "epochs": len(history),
        "wall_seconds": seconds,
        "multipliers": plan.multipliers,
        "interval_planned": plan.interval,
    }
    if "cycles" in counters:
        samples = counters["samples"]
        between = (counters["last_cycle"] - counters["first_cycle"]) % (1 << 32)
        summary["interval_measured"] = between / max(1, samples - 1)
        summary["cycles_last_epoch"] = counters["cycles"]
    return summary | {"python": platform.python_version(), "history": history}


def plan(
    what: str, data: Path | None, *, save: Path | None, json_file: Path | None, compiling: Compiling
) -> None:
    """Print the plan of a subject."""
    design = compiling.design(load_subject(what, data, compiling.seed))
    Console().print(design.report())
    if save is not None:
        _write(save, design.plan.to_json())
    if json_file is not None:
        _write_json(json_file, _plan_figures(design.plan))


def _plan_figures(found: Plan) -> dict[str, Any]:
    rows = [
        {
            "engine": f"{layer.name}.{engine}",
            "a": layer.a,
            "b": layer.b,
            "interval": layer.eb_interval if engine == "eb" else layer.fp_interval,
        }
        for layer in found.trainable
        for engine in layer.engines
    ]
    return {
        "name": found.name,
        "design": found.identity,
        "board": found.board,
        "interval": found.interval,
        "multipliers": found.multipliers,
        "engines": rows,
    }


def build(what: str, data: Path | None, *, out: Path | None, compiling: Compiling) -> None:
    """Write everything that a design is, for a subject or a saved plan."""
    from ..rtl.generate import verilog
    from .register_docs import registers_html, registers_markdown
    from .report import pipeline_picture

    design = None
    if what.endswith(".json"):
        found = Plan.from_json(_read(Path(what)))
    else:
        design = compiling.design(load_subject(what, data, compiling.seed))
        found = design.plan
    folder = out or Path("build") / found.name
    folder.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    text = verilog(found)
    seconds = time.perf_counter() - start
    _write(folder / "board.v", text)
    if design is None:
        _write(folder / "plan.json", found.to_json())
    else:
        design.save(folder)
    _write(folder / "registers.md", registers_markdown(found))
    _write(folder / "registers.html", registers_html(found))
    pipeline_picture(found, folder / "pipeline.png")
    Console().print(
        f"{found.name}: {text.count(chr(10)):,} lines of Verilog in {seconds:.1f} s, in {folder}",
        highlight=False,
    )


def verify(
    what: str,
    data: Path | None,
    *,
    batches: int,
    lr: float,
    momentum: float,
    stalls: float,
    trace: Path | None,
    json_file: Path | None,
    compiling: Compiling,
) -> None:
    """Compare every tensor of a few mini-batches between hardware and golden model."""
    from ..model.hyper import Hyper
    from .quantize import quantize_samples, quantize_targets
    from .verify import verify as compare

    subject = load_subject(what, data, compiling.seed)
    design = compiling.design(subject)
    count = batches * compiling.batch
    x, y = subject.data.train_x[:count], subject.data.train_y[:count]
    if len(x) < count:
        raise InputError(f"{what} must have {count} training samples to compare, not {len(x)}")
    outcome = compare(
        design,
        quantize_samples(design.plan, x).long(),
        quantize_targets(design.plan, y, count).long(),
        Hyper.of(design.plan, batch=compiling.batch, lr=lr, momentum=momentum),
        stalls=stalls,
        seed=compiling.seed,
        trace=None if trace is None else str(trace),
    )
    Console().print(outcome.table())
    if json_file is not None:
        _write_json(json_file, outcome.as_dict())
    outcome.raise_for_difference()


def bench(name: str, data: Path | None, json_file: Path | None) -> None:
    """Run the bench of that name, whose ``run(data)`` returns figures, and write them down."""
    from .report import summary_table

    if name not in BENCHES:
        raise InputError(f"bench must be one of {', '.join(BENCHES)}, not {name!r}")
    if not (ROOT / "bench" / f"{name}.py").is_file():
        raise InputError(f"{ROOT / 'bench'} has no {name}.py: benches come with a clone alone")
    sys.path.insert(0, str(ROOT))
    figures = importlib.import_module(f"bench.{name}").run(data)
    for file in {Path("build/bench") / f"{name}.json", *([json_file] if json_file else [])}:
        _write_json(file, figures)
    Console().print(summary_table(figures, name))


def report(file: Path, curve: Path | None) -> None:
    """Print the figures of a run; draw its history where asked."""
    from .report import learning_curve, summary_table

    try:
        figures = json.loads(_read(file))
    except ValueError as error:
        raise InputError(
            f"{file} must be JSON as train, demo or bench write it: {error}"
        ) from error
    if not isinstance(figures, dict):
        raise InputError(f"{file} must be a JSON object of figures, not {type(figures).__name__}")
    if curve is not None:
        learning_curve(figures.get("history", []), curve)
    Console().print(summary_table(figures, str(file)))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _write_json(path: Path, figures: Mapping[str, Any]) -> None:
    _write(path, json.dumps(figures, indent=1, default=str) + "\n")
