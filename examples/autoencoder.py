"""An autoencoder of 8x8 digits: sixteen numbers an image, trained by mean squared error.

``gradweave train examples/autoencoder.py:Autoencoder``
"""

from torch import Tensor, nn

import gradweave as gw


def data() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Digits as vectors [N, 64], each its own target."""
    split = gw.digits()
    train, test = split.train_x.flatten(1), split.test_x.flatten(1)
    return train, train, test, test


class Autoencoder(nn.Module):
    """64 - 32 - 16 - 32 - 64."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU())
        self.decoder = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 64))

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.encoder(x))
