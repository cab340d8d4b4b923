"""A training that is slow enough to be killed: ``python killed_run.py PLAN CHECKPOINT EPOCHS
DELAY``.

Run by ``tests/test_trainer.py``, which also calls ``run`` for the same training without delay.
"""

import sys
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

from gradweave.host.golden_device import GoldenDevice
from gradweave.host.quantize import parameter_shapes
from gradweave.host.trainer import Trainer
from gradweave.model.plan import Plan


class SlowDevice(GoldenDevice):
    """Waits after every mini-batch, so that a signal falls into the middle of an epoch."""

    delay = 0.0

    def train(self, samples, targets, hyper, progress=None):
        def wait(done):
            time.sleep(self.delay)
            if progress is not None:
                progress(done)

        return super().train(samples, targets, hyper, wait)


def make_loader():
    """Eight mini-batches an epoch, in an order that only a generator's state knows."""
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(32, 1, 8, 8, generator=generator)
    y = torch.randint(10, (32,), generator=generator)
    return DataLoader(TensorDataset(x, y), batch_size=4, shuffle=True, generator=generator)


def make_trainer(plan, delay=0.0):
    generator = torch.Generator().manual_seed(6)
    device = SlowDevice(plan)
    device.delay = delay
    device.write_parameters(
        {
            name: torch.randint(-(2**26), 2**26, shape, generator=generator)
            for name, shape in parameter_shapes(plan).items()
        }
    )
    return Trainer(device, lr=0.03, momentum=0.9, weight_decay=0.01)


def run(plan, checkpoint, epochs, delay=0.0, resume=False):
    trainer = make_trainer(plan, delay)
    trainer.fit(make_loader(), epochs, checkpoint=checkpoint, resume=resume)
    return trainer


if __name__ == "__main__":
    plan_path, checkpoint_path, epoch_count, seconds = sys.argv[1:]
    run(
        Plan.from_json(Path(plan_path).read_text()),
        checkpoint_path,
        int(epoch_count),
        float(seconds),
    )
