"""Networks that are no chains, small: what people build from the layers of the catalogue."""

import torch
import torch.nn.functional as F
from torch import nn

__all__ = ["NETWORKS", "Autoencoder", "Inception", "MobileNet", "ResNet", "Residual", "seeded"]


class Block(nn.Module):
    """A residual block; its shortcut is a projection where shapes change."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Identity()
        if stride != 1 or inputs != outputs:
            projection = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.shortcut = nn.Sequential(projection, nn.BatchNorm2d(outputs))

    def forward(self, x):
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += self.shortcut(x)
        return self.relu(out)


class Residual(nn.Module):
    """One addition around one convolution, from the very sample."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)
        self.fc = nn.Linear(192, 5)

    def forward(self, x):
        return self.fc(torch.flatten(F.relu(self.conv(x) + x), 1))


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.blocks = nn.Sequential(Block(4, 4, 1), Block(4, 6, 2), Block(6, 6, 1))
        self.fc = nn.Linear(6, 5)

    def forward(self, x):
        x = self.blocks(torch.relu(self.stem(x)))
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))


class Inception(nn.Module):
    """Four branches, one of them of one map, joined; and a branch that nobody reads."""

    def __init__(self):
        super().__init__()
        self.one = nn.Conv2d(3, 2, 1)
        self.three = nn.Sequential(nn.Conv2d(3, 2, 1), nn.ReLU(), nn.Conv2d(2, 4, 3, padding=1))
        self.five = nn.Sequential(nn.Conv2d(3, 1, 1), nn.Tanh(), nn.Conv2d(1, 2, 5, padding=2))
        self.pool = nn.Sequential(nn.MaxPool2d(3, 1, 1), nn.Conv2d(3, 2, 1))
        self.act = nn.LeakyReLU(0.1)
        self.fc = nn.Linear(10 * 16, 5)

    def forward(self, x):
        x.mean((2, 3))
        branches = [self.one(x), self.three(x), self.five(x), self.pool(x)]
        x = F.avg_pool2d(self.act(torch.cat(branches, dim=1)), 3, 2, padding=1)
        return self.fc(x.view(x.size(0), -1))


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(12, 6), nn.Sigmoid(), nn.Linear(6, 2), nn.SiLU())
        self.decoder = nn.Sequential(nn.Linear(2, 6), nn.GELU(), nn.Linear(6, 12))

    def forward(self, x):
        return self.decoder(self.encoder(x))


class MobileNet(nn.Module):
    """Depthwise and pointwise convolutions, an inverted residual, dropout."""

    def __init__(self):
        super().__init__()
        self.stem = self.layer(3, 4, 3, stride=2)
        self.expand = self.layer(4, 8, 1)
        self.depth = self.layer(8, 8, 3, groups=8)
        self.project = nn.Sequential(nn.Conv2d(8, 4, 1, bias=False), nn.BatchNorm2d(4))
        self.head = nn.Sequential(nn.Dropout(0.2), nn.Linear(4, 5))

    def layer(self, inputs, outputs, kernel, **options):
        padding = (kernel - 1) // 2
        conv = nn.Conv2d(inputs, outputs, kernel, padding=padding, bias=False, **options)
        return nn.Sequential(conv, nn.BatchNorm2d(outputs), nn.ReLU6(inplace=True))

    def forward(self, x):
        x = self.stem(x)
        x = x + self.project(self.depth(self.expand(x)))
        return self.head(x.mean([2, 3]))


# Each with the shape of one sample.
NETWORKS = {
    "residual": (Residual, (3, 8, 8)),
    "resnet": (ResNet, (3, 8, 8)),
    "inception": (Inception, (3, 8, 8)),
    "autoencoder": (Autoencoder, (12,)),
    "mobilenet": (MobileNet, (3, 9, 9)),
}


def seeded(name, seed=0, samples=6):
    """Return a network and samples; BatchNorm with statistics, and negative and zero gammas."""
    make, shape = NETWORKS[name]
    torch.manual_seed(seed)
    model = make()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            with torch.no_grad():
                module.running_mean.normal_()
                module.running_var.uniform_(0.25, 4.0)
                module.weight.normal_()
                module.weight[0], module.weight[1] = 0.0, -1.5
                module.bias.normal_()
    return model, torch.randn(samples, *shape)
