"""A training that is slow enough to be killed: ``python killed_run.py PLAN CHECKPOINT EPOCHS DELAY
KIND``.

Run by ``killed``, for ``tests/test_trainer.py`` and ``tests/test_rtl_trainer.py``, which also call
``run`` for the same training without delay. ``KIND`` is ``golden`` or ``simulated``.
"""

import signal
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

from gradweave.host.board_device import BoardDevice
from gradweave.host.checkpoint import load_checkpoint
from gradweave.host.golden_device import GoldenDevice
from gradweave.host.quantize import parameter_shapes
from gradweave.host.trainer import Trainer
from gradweave.model.plan import Plan
from gradweave.sim.simulate import simulate

PATIENCE_SECONDS = 60


class Slow:
    """Waits whenever the device tells its progress, so that a signal falls into an epoch."""

    delay = 0.0

    def train(self, samples, targets, hyper, progress=None, **rest):
        def wait(done):
            time.sleep(self.delay)
            if progress is not None:
                progress(done)

        return super().train(samples, targets, hyper, wait, **rest)


class SlowGolden(Slow, GoldenDevice):
    pass


class SlowBoard(Slow, BoardDevice):
    pass


def make_loader(plan):
    """Eight mini-batches an epoch, in an order that only a generator's state knows."""
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(32, *plan.input_shape, generator=generator)
    y = torch.randint(plan.loss.outputs, (32,), generator=generator)
    return DataLoader(TensorDataset(x, y), batch_size=4, shuffle=True, generator=generator)


def make_trainer(plan, delay=0.0, kind="golden"):
    generator = torch.Generator().manual_seed(6)
    device = SlowGolden(plan) if kind == "golden" else SlowBoard(plan, simulate(plan))
    device.delay = delay
    device.write_parameters(
        {
            name: torch.randint(-(2**26), 2**26, shape, generator=generator)
            for name, shape in parameter_shapes(plan).items()
        }
    )
    return Trainer(device, lr=0.03, momentum=0.9, weight_decay=0.01)


def run(plan, checkpoint, epochs, delay=0.0, resume=False, kind="golden"):
    trainer = make_trainer(plan, delay, kind)
    trainer.fit(make_loader(plan), epochs, checkpoint=checkpoint, resume=resume)
    return trainer


def tensors_of(trainer):
    masters, momenta = trainer.device.read_parameters()
    return {**masters, **{f"momentum of {name}": tensor for name, tensor in momenta.items()}}


def assert_same_weights(left, right):
    first, second = tensors_of(left), tensors_of(right)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def interrupt_once(device, after):
    """Let Ctrl-C fall into the device's work, once, when ``after`` samples are done."""
    train, pending = device.train, [True]

    def interrupted(samples, targets, hyper, progress=None, **rest):
        def watch(done):
            if pending and done >= after:
                pending.clear()
                signal.raise_signal(signal.SIGINT)

        return train(samples, targets, hyper, watch, **rest)

    return interrupted


def killed(plan, folder, number, *, epochs, delay, kind="golden"):
    """Send the signal to a run in a process of its own, in the epoch behind its first checkpoint.

    Returns the checkpoint's path, and what the process wrote to stderr.
    """
    (folder / "plan.json").write_text(plan.to_json())
    path = folder / "run.safetensors"
    command = [sys.executable, __file__, folder / "plan.json", path, str(epochs), str(delay), kind]
    process = subprocess.Popen(command, stderr=subprocess.PIPE)
    try:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not path.exists():
            assert process.poll() is None, "the run ended before its first checkpoint"
            assert time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(0.2)
        process.send_signal(number)
        _, text = process.communicate(timeout=PATIENCE_SECONDS)
    finally:
        process.kill()
    assert process.returncode != 0
    assert 1 <= load_checkpoint(path, plan).epoch < epochs
    return path, text


if __name__ == "__main__":
    plan_path, checkpoint_path, epoch_count, seconds, device_kind = sys.argv[1:]
    run(
        Plan.from_json(Path(plan_path).read_text()),
        checkpoint_path,
        int(epoch_count),
        float(seconds),
        kind=device_kind,
    )
