"""LeNet-5 for one epoch of MNIST in simulated hardware.

``make bench-mnist DATA=DIR`` writes ``build/bench/mnist.json``. LeNet-5's first convolution has one
input and six output channels, so at most six multipliers an engine, and sets an interval of 17,956
cycles: the epoch is about 1.08e9 cycles, about two hours of simulation. The board's weights are
kept in ``build/bench/mnist.safetensors``.
"""

import time
from pathlib import Path
from typing import Any

import torch

import gradweave as gw
from gradweave.host.demo import measured_interval
from gradweave.host.subjects import lenet5
from gradweave.model.errors import InputError, VerifyError
from gradweave.model.schedule import steady_interval

__all__ = ["run"]

BATCH = 16
LR, MOMENTUM = 0.05, 0.5
SEED = 1
# Test images that the board classifies, too; the golden model, with the board's weights, takes all.
BOARD_TESTS = 500


def run(data: Path | None = None) -> dict[str, Any]:
    """Train, and return accuracy, cycles and time.

    Raises
    ------
    InputError
        Without ``data``, the folder of the four IDX files.
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
        batch=BATCH,
        versions="delayed",
        name="lenet5",
    )
    device = design.simulate()
    trainer = gw.Trainer(device, lr=LR, momentum=MOMENTUM)
    started, cycles = time.monotonic(), device.transport.cycles
    out = Path("build/bench/mnist.safetensors")
    out.parent.mkdir(parents=True, exist_ok=True)
    trainer.fit(gw.Batches(split.train_x, split.train_y, BATCH, seed=SEED), 1, checkpoint=out)
    seconds, cycles = time.monotonic() - started, device.transport.cycles - cycles

    golden = design.golden()
    golden.write_parameters(*device.read_parameters())
    tests = design.quantize_input(split.test_x)
    logits = golden.infer(tests)
    if not torch.equal(device.infer(tests[:BOARD_TESTS]), logits[:BOARD_TESTS]):
        raise VerifyError("board and golden model must classify equally; run gradweave verify")
    device.close()
    return {
        "test_accuracy": float((logits.argmax(1) == split.test_y).double().mean()),
        "samples": len(split.train_x) // BATCH * BATCH,
        "cycles": cycles,
        "seconds": seconds,
        "cycles_per_second": cycles / seconds,
        "interval_measured": measured_interval(trainer.counters),
        "interval_planned": steady_interval(design.plan),
        "multipliers": design.plan.multipliers,
    }
