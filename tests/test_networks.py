"""The networks of the usual families, from torch to simulated hardware.

Every one is compiled as a user would and trains in the golden model, where its loss falls. Hardware
equals it in every tensor over three mini-batches, with a host that pauses in a fifth of all cycles:
a small residual network and one of two outputs in every run of the tests, the others with
``-m slow``.
"""

import pytest
import torch
from torch import Tensor, nn

import gradweave as gw
from gradweave.examples import autoencoder, networks
from gradweave.host.quantize import float_logits, quantize_targets
from gradweave.host.subjects import lenet5
from gradweave.host.verify import verify
from gradweave.model.hyper import Hyper

BATCH, BATCHES = 4, 3
LOSSES = {"cross_entropy": nn.CrossEntropyLoss(), "mse": nn.MSELoss()}


class Residual(nn.Module):
    """The least network with a shortcut: one convolution beside it, from the very sample."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 1, 3, padding=1)
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.conv(x) + x)
        return self.head(nn.functional.max_pool2d(x, 2).flatten(1))


class Heads(nn.Module):
    """Two outputs behind one convolution: ten probabilities, and two values."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3, stride=2)
        self.digit, self.ink = nn.Linear(18, 10), nn.Linear(18, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = torch.relu(self.conv(x)).flatten(1)
        return self.digit(x).softmax(1), self.ink(x)


def digits_and_ink() -> tuple[Tensor, Tensor]:
    """Targets of ``Heads``: one of ten, and how dark the upper and lower half are."""
    x, y, *_ = networks.data()
    return x, torch.cat([nn.functional.one_hot(y, 10), x.reshape(len(x), 2, 32).mean(2)], 1)


def random_digits() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(7)
    x = torch.rand(128, 1, 28, 28, generator=generator)
    return x, torch.randint(0, 10, (128,), generator=generator)


# Network, samples and targets, learning rate, and cycles per sample, which keep the boards small.
NETWORKS = {
    "residual": (Residual, lambda: networks.data()[:2], 0.2, 1024),
    "heads": (Heads, digits_and_ink, 0.2, 1024),
    "vgg6": (networks.Vgg6, lambda: networks.data()[:2], 0.2, 8000),
    "resnet8": (networks.ResNet8, lambda: networks.data()[:2], 0.1, 8000),
    "mobilenet": (networks.MobileNet, lambda: networks.data()[:2], 0.2, 8000),
    "inception": (networks.Inception, lambda: networks.data()[:2], 0.1, 8000),
    "mlp4": (networks.Mlp4, lambda: networks.data()[:2], 0.2, 1024),
    "autoencoder": (autoencoder.Autoencoder, lambda: autoencoder.data()[:2], 0.5, 1024),
    "lenet5": (lenet5, random_digits, 0.1, 20000),
}
QUICK = {"residual", "heads"}


def compiled(name):
    """Return the design, 12 quantised samples and targets, the targets as they are, and the
    rate.
    """
    make, data, rate, interval = NETWORKS[name]
    torch.manual_seed(3)
    x, y = data()
    loss = "mse" if y.is_floating_point() else "cross_entropy"
    design = gw.compile(
        make(), x[:64], loss=loss, targets=y[:64], batch=BATCH, versions="flush", interval=interval
    )
    count = BATCH * BATCHES
    samples = design.quantize_input(x[:count]).long()
    return design, samples, quantize_targets(design.plan, y[:count], count).long(), y[:count], rate


@pytest.mark.parametrize("name", NETWORKS)
def test_the_loss_on_a_mini_batch_falls_as_the_golden_model_trains_on_it(name):
    design, samples, targets, real, rate = compiled(name)
    golden = design.golden()
    first, hyper = slice(0, BATCH), Hyper.of(design.plan, batch=BATCH, lr=rate)
    loss = LOSSES[design.plan.loss.kind]
    again = [
        values[first].repeat(BATCHES, *[1] * (values.ndim - 1)) for values in (samples, targets)
    ]
    logits = golden.train(*again, hyper)
    logits = torch.cat([logits, golden.infer(samples[first])])
    losses = [float(loss(part, real[first])) for part in float_logits(design.plan, logits).split(4)]
    assert len(losses) == BATCHES + 1
    assert losses[-1] < losses[0], losses


CASES = [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in NETWORKS]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", CASES)
def test_hardware_is_bit_exact_over_three_mini_batches(name):
    design, samples, targets, _, rate = compiled(name)
    hyper = Hyper.of(design.plan, batch=BATCH, lr=rate, momentum=0.5)
    report = verify(design, samples, targets, hyper, stalls=0.2, seed=5)
    report.raise_for_difference()
    assert report.bit_exact
    assert report.batches == BATCHES
    for layer in design.plan.trainable:
        assert report.values[f"{layer.name}.weight_gradient"] > 0
