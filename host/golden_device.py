"""The golden model as a device: same calls, same bits, no hardware.

Golden: ``model/network.py``. Test: ``tests/test_device.py``.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from ..model.hyper import Hyper
from ..model.network import Network
from ..model.plan import Plan
from .device import (
    Parameters,
    Progress,
    check_first_sample,
    check_name,
    check_parameter,
    check_parameters,
    check_samples,
    check_targets,
)

__all__ = ["GoldenDevice"]

INFER_SAMPLES = 256


class GoldenDevice:
    """A ``Device`` that computes with the integer golden model of ``plan``."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.network = Network(plan)
        self.frozen: dict[str, Tensor] = {}

    def write_parameters(
        self, masters: Mapping[str, Tensor], momenta: Mapping[str, Tensor] | None = None
    ) -> None:
        checked = check_parameters(self.plan, masters, "masters")
        self.network.load(
            checked, None if momenta is None else check_parameters(self.plan, momenta, "momenta")
        )

    def read_parameters(self) -> tuple[Parameters, Parameters]:
        masters, momenta = self.network.masters, self.network.momenta
        return (
            {name: tensor.clone() for name, tensor in masters.items()},
            {name: tensor.clone() for name, tensor in momenta.items()},
        )

    def peek(self, name: str) -> Tensor:
        return self.network.masters[check_name(self.plan, name)].clone()

    def poke(self, name: str, values: Tensor) -> None:
        masters, momenta = self.read_parameters()
        self.network.load(masters | {name: check_parameter(self.plan, name, values)}, momenta)

    def train(
        self,
        samples: Tensor,
        targets: Tensor,
        hyper: Hyper,
        progress: Progress | None = None,
        *,
        first_sample: int = 0,
    ) -> Tensor:
        samples = check_samples(self.plan, samples, hyper.batch)
        targets = check_targets(self.plan, targets, len(samples))
        logits = []
        self.network.start_segment(check_first_sample(first_sample))
        for start in range(0, len(samples), hyper.batch):
            part = slice(start, start + hyper.batch)
            logits.append(
                self.network.train_batch(samples[part].long(), targets[part].long(), hyper)
            )
            if progress is not None:
                progress(start + hyper.batch)
        return torch.cat(logits)

    def infer(self, samples: Tensor, progress: Progress | None = None) -> Tensor:
        samples = check_samples(self.plan, samples)
        logits = []
        self.network.start_segment()
        for start in range(0, len(samples), INFER_SAMPLES):
            logits.append(self.network.infer(samples[start : start + INFER_SAMPLES].long()))
            if progress is not None:
                progress(min(start + INFER_SAMPLES, len(samples)))
        return torch.cat(logits)

    def counters(self) -> dict[str, int]:
        return {f"{name}.saturated": count for name, count in self.network.saturated.items()}

    def reset(self) -> None:
        self.network.start_segment()

    def close(self) -> None:
        return
