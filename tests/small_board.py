"""A small board for tests of whole boards, with parameters and data drawn by a seed."""

import torch

from gradweave.model.hyper import Hyper
from gradweave.model.network import Network
from gradweave.model.plan import Plan
from gradweave.tests.plans import chain, conv, linear, maxpool, relu

BATCH = 4


def small_board(*, probes: bool = False) -> Plan:
    """Convolution 1 to 4 channels on 6x6, ReLU, max-pooling, linear to 3; versions delayed by 1."""
    return chain(
        (1, 6, 6),
        conv("conv", 4, kernel=3, padding=1, a=2, b=1, delay=1, back_delay=1),
        relu("relu", lanes=2),
        maxpool("pool", 2, lanes=2),
        linear("linear", 3, a=1, b=2, delay=1, back_delay=1),
        probes=probes,
        sized=True,
    )


def masters(plan: Plan, seed: int = 1) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randint(-(1 << 27), 1 << 27, values.shape, generator=generator)
        for name, values in Network(plan).masters.items()
    }


def data(plan: Plan, batches: int, seed: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    count = batches * BATCH
    x = torch.randint(-(1 << 11), 1 << 11, (count, *plan.input_shape), generator=generator)
    return x, torch.randint(0, plan.loss.outputs, (count,), generator=generator)


def hyper(plan: Plan) -> Hyper:
    return Hyper.of(plan, batch=BATCH, lr=0.1, momentum=0.5)


def assert_same_state(device, golden):
    for ours, theirs in zip(device.read_parameters(), golden.read_parameters(), strict=True):
        assert ours.keys() == theirs.keys()
        for name, values in theirs.items():
            assert torch.equal(ours[name], values), name
