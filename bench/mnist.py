"""LeNet-5 for one epoch of MNIST in simulated hardware.

``make bench-mnist DATA=DIR`` writes ``build/bench/mnist.json``. Its plan is the fastest for a
VC709: the first convolution, unfolded and at its widest, sets an interval of 3,752 cycles with 402
multipliers in all. The epoch is about 2.4e8 cycles, 22 to 40 minutes of simulation.

The epoch is trained in 30 parts, each of them a segment. After each part the state is written to
``build/bench/mnist-part.safetensors``: a bench that was stopped or killed goes on behind its last
whole part when it is started again, with the weights of an uninterrupted one. The board's final
weights are kept in ``build/bench/mnist.safetensors``.
"""

import itertools
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import gradweave as gw
from gradweave.host.demo import measured_interval
from gradweave.host.subjects import lenet5
from gradweave.model.errors import InputError, VerifyError
from gradweave.model.schedule import steady_interval

__all__ = ["run"]

BATCH = 16
BOARD = "vc709"
LR, MOMENTUM = 0.05, 0.5
PARTS = 30
SEED = 1
# Test images that the board classifies, too; the golden model, with the board's weights, takes all.
BOARD_TESTS = 500


class Parts:
    """One pass over ``batches`` in ``PARTS`` equal parts, each of which is a trainer's epoch."""

    def __init__(self, batches: gw.Batches) -> None:
        self.batches = batches
        self.size = len(batches) // PARTS
        self.part = 0

    def set_epoch(self, epoch: int) -> None:
        self.part = epoch

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        start = self.part * self.size
        return itertools.islice(iter(self.batches), start, start + self.size)


def run(data: Path | None = None) -> dict[str, Any]:
    """Train, and return accuracy, cycles and time; ``resumed_parts`` were trained by a run before
    and count in ``samples`` alone.

    Raises
    ------
    InputError
        Without ``data``, the folder of the four IDX files.
    CheckpointError
        When the state of a stopped bench is that of another design: remove it.
    VerifyError
        When board and golden model classify a test image differently.
    """
    if data is None:
        raise InputError(
            "data must be the folder of MNIST's four IDX files: make bench-mnist DATA=DIR"
        )
    split = gw.mnist(data)
    torch.manual_seed(0)
    design = gw.compile(
        lenet5(),
        split.train_x[:512],
        targets=split.train_y[:512],
        board=BOARD,
        batch=BATCH,
        versions="delayed",
        name="lenet5",
    )
    device = design.simulate()
    trainer = gw.Trainer(device, lr=LR, momentum=MOMENTUM)
    parts = Parts(gw.Batches(split.train_x, split.train_y, BATCH, seed=SEED))
    out = Path("build/bench/mnist.safetensors")
    stopped = out.with_name("mnist-part.safetensors")
    out.parent.mkdir(parents=True, exist_ok=True)
    if stopped.exists():
        trainer.load(stopped)
    resumed = trainer.epoch
    started, cycles = time.monotonic(), device.transport.cycles
    while trainer.epoch < PARTS:
        row = trainer.fit(parts, 1, checkpoint=stopped)[-1]
        seconds = (time.monotonic() - started) / (trainer.epoch - resumed)
        print(
            f"part {trainer.epoch} of {PARTS}: loss {row['loss']:.4f}, accuracy "
            f"{row['accuracy']:.4f}, {seconds * (PARTS - trainer.epoch) / 60:.0f} minutes to go",
            file=sys.stderr,
            flush=True,
        )
    seconds, cycles = time.monotonic() - started, device.transport.cycles - cycles

    golden = design.golden()
    golden.write_parameters(*device.read_parameters())
    tests = design.quantize_input(split.test_x)
    logits = golden.infer(tests)
    if not torch.equal(device.infer(tests[:BOARD_TESTS]), logits[:BOARD_TESTS]):
        raise VerifyError("board and golden model must classify equally; run gradweave verify")
    device.close()
    trainer.save(out)
    stopped.unlink()
    return {
        "test_accuracy": float((logits.argmax(1) == split.test_y).double().mean()),
        "samples": PARTS * parts.size * BATCH,
        "resumed_parts": resumed,
        "cycles": cycles,
        "seconds": seconds,
        "cycles_per_second": cycles / seconds if resumed < PARTS else None,
        "interval_measured": measured_interval(trainer.counters) if resumed < PARTS else None,
        "interval_planned": steady_interval(design.plan),
        "multipliers": design.plan.multipliers,
    }
