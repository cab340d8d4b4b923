"""The demo: a small CNN learns real digits in simulated hardware, and every bit is accounted for.

Test: ``tests/test_demo.py``.
"""

import json
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from ..model.hyper import Hyper
from ..model.schedule import steady_interval
from .board_device import BoardDevice
from .checkpoint import write_atomically
from .compile import compile as compile_design
from .data import Batches, Split, digits
from .design import Design
from .float_reference import float_accuracy, train_float
from .plan_table import plan_table
from .report import learning_curve, occupancy, summary_table
from .subjects import digits_model
from .trainer import Trainer
from .verify import VerifyReport, verify

__all__ = ["measured_interval", "run_demo"]

BATCH = 16
EPOCHS = 10
MOMENTUM = 0.5
SEED = 1
VERIFIED_BATCHES = 8
# Held-out accuracy that the demo must reach, and how far it may stay from float32's.
LEAST_ACCURACY = 0.95
ACCURACY_GAP = 0.02
INTERVAL_RATIO = 1.02


def learning_rate(epoch: int) -> float:
    """The demo's schedule: 0.1, and 0.02 from epoch 8 on."""
    return 0.1 if epoch < 8 else 0.02


def measured_interval(counters: dict[str, int]) -> float:
    """Cycles per sample between a segment's first and last logits, from the board's counters."""
    return (counters["last_cycle"] - counters["first_cycle"]) / (counters["samples"] - 1)


def run_demo(out: Path, epochs: int | None = None, json_file: Path | None = None) -> int:
    """Train, verify, compare and draw; return 0 when everything is equal and good, else 1.

    Writes ``board.v``, ``plan.json``, ``learning_curve.png``, ``occupancy.png``,
    ``demo.safetensors`` and ``summary.json`` to ``out``.
    """
    console = Console(stderr=True)
    started = time.monotonic()
    epochs = EPOCHS if epochs is None else epochs
    out.mkdir(parents=True, exist_ok=True)
    data = digits()
    torch.manual_seed(SEED)
    model = digits_model()
    with console.status("model to plan to Verilog"):
        design = compile_design(
            model,
            data.train_x[:512],
            targets=data.train_y[:512],
            batch=BATCH,
            versions="delayed",
            probes=True,
            name="digits",
        )
        plan = design.plan
        (out / "plan.json").write_text(plan.to_json())
        (out / "board.v").write_text(design.verilog())
    console.print(plan_table(plan))
    with console.status("Verilog to simulator (once; kept for the next run)"):
        device = design.simulate()

    console.print(f"RTL against golden model, every tensor of {VERIFIED_BATCHES} mini-batches:")
    report = _verify(design, data)
    console.print(report.table())
    report.raise_for_difference()

    console.print(f"training {epochs} epochs on {len(data.train_x)} digits in simulated hardware:")
    trainer, seconds = _train(device, design, data, epochs, out / "demo.safetensors", progress=True)
    counters = trainer.counters
    with console.status("the same training in the golden model, and in float32"):
        golden, _ = _train(design.golden(), design, data, epochs, None, progress=False)
        net, reference = train_float(
            model,
            data,
            batch=BATCH,
            epochs=epochs,
            lr=learning_rate,
            momentum=MOMENTUM,
            seed=SEED,
        )
    exact = _equal(trainer, golden)
    learning_curve(trainer.history, out / "learning_curve.png", reference)
    occupancy(plan, counters, out / "occupancy.png")

    interval = measured_interval(counters)
    accuracy = trainer.history[-1]["validation_accuracy"]
    summary: dict[str, Any] = {
        "test_accuracy": accuracy,
        "float_accuracy": float_accuracy(net, data),
        "bit_exact": exact and report.bit_exact,
        "tensors_compared": report.tensors_compared,
        "values_compared": sum(report.values.values()),
        "final_weights_equal": exact,
        "interval_measured": interval,
        "interval_planned": steady_interval(plan),
        "multipliers": plan.multipliers,
        "epochs": epochs,
        "samples": epochs * counters["samples"],
        "training_seconds": seconds,
        "total_seconds": time.monotonic() - started,
        "identity": plan.identity,
    }
    write_atomically(out / "summary.json", json.dumps(summary, indent=1).encode())
    if json_file is not None:
        write_atomically(json_file, json.dumps(summary, indent=1).encode())
    Console().print(summary_table(summary, "gradweave demo"))
    console.print(f"pictures, Verilog and summary.json are in {out}/")
    device.close()
    faults = _faults(summary) if epochs == EPOCHS else []
    for fault in faults:
        console.print(f"[red]{fault}[/]")
    return 1 if faults or not summary["bit_exact"] else 0


def _verify(design: Design, data: Split) -> VerifyReport:
    """The first mini-batches of the training, with a host that pauses in a tenth of all cycles."""
    count = VERIFIED_BATCHES * BATCH
    hyper = Hyper.of(design.plan, batch=BATCH, lr=learning_rate(0), momentum=MOMENTUM)
    samples = design.quantize_input(data.train_x[:count]).long()
    return verify(design, samples, data.train_y[:count], hyper, stalls=0.1, seed=SEED)


def _train(
    device: Any,
    design: Design,
    data: Split,
    epochs: int,
    checkpoint: Path | None,
    *,
    progress: bool,
) -> tuple[Trainer, float]:
    if not isinstance(device, BoardDevice):
        device.write_parameters(design.masters)
    trainer = Trainer(device, lr=learning_rate, momentum=MOMENTUM)
    loader = Batches(data.train_x, data.train_y, BATCH, seed=SEED)
    held_out = Batches(data.test_x, data.test_y, 1, shuffle=False)
    started = time.monotonic()
    trainer.fit(loader, epochs, validation=held_out, checkpoint=checkpoint, progress=progress)
    return trainer, time.monotonic() - started


def _equal(trainer: Trainer, golden: Trainer) -> bool:
    """True when both runs have the same logits' scores in every epoch and the same final state."""
    ours, theirs = trainer.device.read_parameters(), golden.device.read_parameters()
    weights = all(
        torch.equal(mine[name], other[name])
        for mine, other in zip(ours, theirs, strict=True)
        for name in other
    )
    return weights and trainer.history == golden.history


def _faults(summary: dict[str, Any]) -> list[str]:
    """What the demo promises and this run did not keep."""
    checks = [
        (summary["bit_exact"], "hardware and golden model must be equal"),
        (
            summary["test_accuracy"] >= LEAST_ACCURACY,
            f"test_accuracy must be at least {LEAST_ACCURACY}, not {summary['test_accuracy']:.4f}",
        ),
        (
            summary["test_accuracy"] >= summary["float_accuracy"] - ACCURACY_GAP,
            f"test_accuracy must be within {ACCURACY_GAP} of float32, "
            f"{summary['float_accuracy']:.4f}, not {summary['test_accuracy']:.4f}",
        ),
        (
            summary["interval_measured"] <= INTERVAL_RATIO * summary["interval_planned"],
            f"interval must be planned as {summary['interval_planned']} cycles, not measured as "
            f"{summary['interval_measured']:.1f}",
        ),
    ]
    return [text for kept, text in checks if not kept]
