"""What the golden model costs: its training step over a float32 torch step of the same network.

Test: ``tests/test_golden_speed.py``.
"""

import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from gradweave.model.hyper import Hyper
from gradweave.model.network import Network
from gradweave.model.plan import LayerPlan, Plan

__all__ = ["float_model", "golden_slowdown", "random_batch", "random_masters"]

WARM_UP = 3


def float_model(plan: Plan) -> nn.Sequential:
    """Return the float32 torch network of a plan, with torch's own initial weights."""
    modules: list[nn.Module] = []
    for layer in plan.layers:
        modules += _modules(layer)
    return nn.Sequential(*modules, nn.Flatten())


def random_masters(plan: Plan, seed: int) -> dict[str, Tensor]:
    """Return master weights drawn like torch's initial ones: uniform within 1/sqrt(fan-in)."""
    generator = torch.Generator().manual_seed(seed)
    masters = {}
    for name, values in Network(plan).masters.items():
        layer = plan.layer(name.rsplit(".", 1)[0])
        parameter = layer.weight if name.endswith(".weight") else layer.bias
        assert parameter is not None
        fan_in = layer.i_shape[0] * layer.kernel[0] * layer.kernel[1]
        span = int(2**parameter.master.frac / fan_in**0.5)
        masters[name] = torch.randint(-span, span + 1, values.shape, generator=generator)
    return masters


def random_batch(plan: Plan, batch: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return one mini-batch of normal features and random targets, int64."""
    generator = torch.Generator().manual_seed(seed)
    fmt = plan.layers[0].i_feature
    real = torch.randn(batch, *plan.input_shape, generator=generator)
    x = (real * 2.0**fmt.frac).round().clamp(fmt.min, fmt.max).to(torch.int64)
    if plan.loss.kind == "cross_entropy":
        return x, torch.randint(0, plan.loss.outputs, (batch,), generator=generator)
    scale = 2.0**plan.loss.feature.frac
    target = torch.randn(batch, plan.loss.outputs, generator=generator) * scale
    return x, target.round().clamp(plan.loss.feature.min, plan.loss.feature.max).to(torch.int64)


def golden_slowdown(plan: Plan, batch: int, repeats: int = 25, seed: int = 1) -> float:
    """Return the median golden step over the median float32 step (forward, backward, SGD with
    momentum).

    Both take turns, so that another load on the machine meets both alike.
    """
    golden, floating = _golden_step(plan, batch, seed), _float_step(plan, batch, seed)
    golden_seconds, float_seconds = [], []
    for n in range(WARM_UP + repeats):
        float_time, golden_time = _seconds(floating), _seconds(golden)
        if n >= WARM_UP:
            float_seconds.append(float_time)
            golden_seconds.append(golden_time)
    return statistics.median(golden_seconds) / statistics.median(float_seconds)


def _golden_step(plan: Plan, batch: int, seed: int) -> Callable[[], object]:
    network = Network(plan)
    network.load(random_masters(plan, seed))
    x, target = random_batch(plan, batch, seed)
    hyper = Hyper.of(plan, batch=batch, lr=0.01, momentum=0.9)
    return lambda: network.train_batch(x, target, hyper)


def _float_step(plan: Plan, batch: int, seed: int) -> Callable[[], object]:
    torch.manual_seed(seed)
    model = float_model(plan)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    entropy = plan.loss.kind == "cross_entropy"
    criterion: nn.Module = nn.CrossEntropyLoss() if entropy else nn.MSELoss()
    integers, target = random_batch(plan, batch, seed)
    x = integers * plan.layers[0].i_feature.step
    target = target if entropy else target * plan.loss.feature.step

    def step() -> None:
        optimizer.zero_grad()
        criterion(model(x), target).backward()
        optimizer.step()

    return step


def _seconds(step: Callable[[], object]) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def _modules(layer: LayerPlan) -> list[nn.Module]:
    if layer.kind == "conv2d":
        return [
            nn.Conv2d(
                layer.i_shape[0],
                layer.o_shape[0],
                layer.kernel,
                layer.stride,
                layer.padding,
                bias=layer.bias is not None,
            )
        ]
    if layer.kind == "linear":
        inputs = layer.i_shape[0] * layer.i_shape[1] * layer.i_shape[2]
        return [nn.Flatten(), nn.Linear(inputs, layer.o_shape[0], bias=layer.bias is not None)]
    if layer.kind == "relu":
        return [nn.ReLU()]
    return [nn.MaxPool2d(layer.kernel, layer.stride, layer.padding)]
