"""One call between two layers: what the tests of the rules trace."""

import torch
from torch import nn

from gradweave.model.trace import trace

__all__ = ["IMAGE", "MAP", "Net", "nodes_of"]

IMAGE = torch.randn(2, 4, 9, 8, generator=torch.Generator().manual_seed(5))
MAP = (4, 9, 8)


class Net(nn.Module):
    """A convolution of one tap, then the call under test, then a linear layer that fits."""

    def __init__(self, call, first=True):
        super().__init__()
        self.first = nn.Conv2d(4, 4, 1) if first else nn.Identity()
        self.call = call
        with torch.no_grad():
            features = self.eval().middle(IMAGE).flatten(1).shape[1]
        self.last = nn.Linear(features, 3)
        self.train()

    def middle(self, x):
        return self.call(self.first(x))

    def forward(self, x):
        return self.last(self.middle(x).flatten(1))


def nodes_of(call, first=True):
    """The layers of a call between a convolution and a linear layer."""
    torch.manual_seed(7)
    nodes = trace(Net(call, first), IMAGE).nodes
    return nodes[1 if first else 0 : -1]
