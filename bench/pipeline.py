"""The pipeline family's figures: utilisation, small batches, speeds, generation time.

``gradweave bench pipeline`` writes ``build/bench/pipeline.json``; every figure names its two
sides in a comment below. Times are ratios within one run, since machines are noisy.
"""

import statistics
import time
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import gradweave as gw
from bench.bare import run_bare
from bench.cocotb_speed import cocotb_cycles_per_second
from bench.golden import golden_slowdown
from gradweave.host import packets
from gradweave.host.board_device import BoardDevice
from gradweave.host.demo import measured_interval
from gradweave.model.hyper import Hyper
from gradweave.model.registers import HYPER_REGISTERS, Command
from gradweave.model.schedule import steady_interval
from gradweave.rtl.generate import verilog

__all__ = ["bench_network", "run"]

# Cycles per sample to reach at the least cost.
INTERVAL = 33_856
SMALL, LARGE = 1, 128
PAIRS = 3


def bench_network() -> nn.Module:
    """Return two convolutions of 16-32-32 channels on 16x16 maps, and a linear layer."""
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(16, 32, 3, padding=1),
            relu1=nn.ReLU(),
            conv2=nn.Conv2d(32, 32, 3, padding=1),
            relu2=nn.ReLU(),
            pool=nn.MaxPool2d(2),
            flatten=nn.Flatten(),
            linear=nn.Linear(2048, 10),
        )
    )


def run(data: Path | None = None) -> dict[str, Any]:
    """Measure everything; about ten minutes on two cores. ``data`` is not used."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    model = bench_network()
    example = torch.randn(64, 16, 16, 16, generator=generator)
    started = time.monotonic()
    design = gw.compile(
        model,
        example,
        batch=SMALL,
        batch_max=LARGE,
        versions="delayed",
        interval=INTERVAL,
        name="bench",
    )
    text = verilog(design.plan)
    generate_seconds = time.monotonic() - started

    plan = design.plan
    samples = design.quantize_input(torch.randn(256, 16, 16, 16, generator=generator)).long()
    labels = torch.randint(0, 10, (256,), generator=generator)
    device = design.simulate()
    small = _train(device, samples[:32], labels[:32], SMALL)
    shorter = _train(device, samples[:128], labels[:128], LARGE)
    longer = _train(device, samples, labels, LARGE)
    efficiency, simulated = _efficiency(device, samples[:16], labels[:16])
    figures = {
        "multipliers": plan.multipliers,
        # Both from the hardware's counters, between the ends of a short and a long segment.
        "mac_utilisation": _utilisation(device, shorter, longer),
        # Samples per cycle at mini-batch 1 over mini-batch 128.
        "small_batch_ratio": measured_interval(longer) / measured_interval(small),
        "interval_measured": measured_interval(longer),
        "interval_planned": steady_interval(plan),
        # The device while training over a C++ loop around the same Verilated model, pair by pair.
        "sim_efficiency": efficiency,
        "simulated_cycles_per_second": simulated,
        "speed_over_cocotb": simulated / _cocotb(device, text, samples[:4], labels[:4]),
        # The golden model's training step over float32 torch's, at mini-batch 32.
        "golden_slowdown": golden_slowdown(plan, 32),
        "generate_seconds": generate_seconds,
    }
    device.close()
    return figures


def _hyper(device: BoardDevice, batch: int) -> Hyper:
    return Hyper.of(device.plan, batch=batch, lr=0.001, momentum=0.5)


def _train(device: BoardDevice, samples: Tensor, labels: Tensor, batch: int) -> dict[str, int]:
    device.train(samples, labels, _hyper(device, batch))
    return device.counters()


def _utilisation(device: BoardDevice, shorter: dict[str, int], longer: dict[str, int]) -> float:
    """Busy multiplier-cycles over multipliers times cycles, of what the longer segment adds."""
    busy = sum(
        layer.word_size * (longer[f"{layer.name}.{e}.busy"] - shorter[f"{layer.name}.{e}.busy"])
        for layer in device.plan.trainable
        for e in layer.engines
    )
    return busy / device.plan.multipliers / (longer["last_cycle"] - shorter["last_cycle"])


def _stream(
    device: BoardDevice, samples: Tensor, labels: Tensor
) -> tuple[dict[int, int], Any, Any, int]:
    """Register writes, words, lasts and expected words of one segment at mini-batch 1."""
    hyper = _hyper(device, SMALL)
    words, lasts = packets.pack_samples(
        device.plan, samples.to(torch.int16).numpy(), labels.numpy()
    )
    addresses = {name: register.address for name, register in device.registers.items()}
    writes = {addresses[name]: int(getattr(hyper, name)) for name in HYPER_REGISTERS}
    writes[addresses["command"]] = int(Command.TRAIN)
    return writes, words, lasts, len(samples) * packets.answer_words(device.plan)


def _efficiency(device: BoardDevice, samples: Tensor, labels: Tensor) -> tuple[float, float]:
    """Median over pairs of (device's cycles/s) / (bare loop's), and the device's median."""
    stream = _stream(device, samples, labels)
    ratios, speeds = [], []
    for _ in range(PAIRS):
        cycles, started = device.transport.cycles, time.monotonic()
        _train(device, samples, labels, SMALL)
        speeds.append((device.transport.cycles - cycles) / (time.monotonic() - started))
        ratios.append(speeds[-1] / run_bare(device.plan, *stream).cycles_per_second)
    return statistics.median(ratios), statistics.median(speeds)


def _cocotb(device: BoardDevice, text: str, samples: Tensor, labels: Tensor) -> float:
    writes, words, lasts, _ = _stream(device, samples, labels)
    return cocotb_cycles_per_second(text, writes, words, np.asarray(lasts))
