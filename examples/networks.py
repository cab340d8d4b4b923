"""Networks of the usual families, small enough to train in simulation on real 8x8 digits.

``gradweave verify examples/networks.py:ResNet8`` compares every tensor of a few mini-batches
between hardware and golden model; ``gradweave train`` trains one.
"""

import torch
from torch import Tensor, nn

import gradweave as gw

CLASSES = 10


def data() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Digits: samples [N, 1, 8, 8] and labels [N], for training and for testing."""
    split = gw.digits()
    return split.train_x, split.train_y, split.test_x, split.test_y


class Vgg6(nn.Module):
    """Six 3x3 convolutions in three stages, each but the last followed by pooling."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 1
        for stage, width in enumerate((8, 16, 16)):
            for _ in range(2):
                layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
                channels = width
            if stage < 2:
                layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(16 * 2 * 2, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(torch.flatten(self.features(x), 1))


class Residual(nn.Module):
    """Two convolutions beside a shortcut, which is a 1x1 convolution where the shape changes."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        same = stride == 1 and channels == width
        self.shortcut = nn.Identity() if same else nn.Conv2d(channels, width, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


class ResNet8(nn.Module):
    """A convolution, three residual blocks, global average pooling, a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 8, 3, padding=1)
        self.blocks = nn.Sequential(Residual(8, 8, 1), Residual(8, 16, 2), Residual(16, 16, 2))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.pool(self.blocks(torch.relu(self.stem(x)))).flatten(1))


class MobileNet(nn.Module):
    """Depthwise convolutions, each followed by a 1x1 convolution."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(1, 8, 3, padding=1), nn.ReLU6()]
        channels = 8
        for width, stride in ((16, 1), (16, 2), (32, 2)):
            layers += [
                nn.Conv2d(channels, channels, 3, stride, 1, groups=channels),
                nn.ReLU6(),
                nn.Conv2d(channels, width, 1),
                nn.ReLU6(),
            ]
            channels = width
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(channels, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x).mean((2, 3)))


class Inception(nn.Module):
    """Branches of several kernel sizes, concatenated."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 8, 3, padding=1)
        self.branch1 = nn.Conv2d(8, 4, 1)
        self.reduce3, self.branch3 = nn.Conv2d(8, 4, 1), nn.Conv2d(4, 8, 3, padding=1)
        self.reduce5, self.branch5 = nn.Conv2d(8, 4, 1), nn.Conv2d(4, 4, 5, padding=2)
        self.pool, self.project = nn.MaxPool2d(3, 1, 1), nn.Conv2d(8, 4, 1)
        self.head = nn.Linear(20 * 4 * 4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        branches = [
            self.branch1(x),
            self.branch3(torch.relu(self.reduce3(x))),
            self.branch5(torch.relu(self.reduce5(x))),
            self.project(self.pool(x)),
        ]
        x = nn.functional.max_pool2d(torch.relu(torch.cat(branches, 1)), 2)
        return self.head(x.flatten(1))


class Mlp4(nn.Module):
    """Four linear layers with the usual activations between them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(),
            nn.Linear(64, 32),
            nn.Tanh(),
            nn.Linear(32, 32),
            nn.GELU(),
            nn.Linear(32, 16),
            nn.LeakyReLU(0.1),
            nn.Linear(16, CLASSES),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)
