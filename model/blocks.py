"""The golden blocks by kind of layer, with one way to call them all.

Each layer without weights is a class of its own in ``model/pipeline``; this file registers them.

RTL: ``rtl/pipeline/network.py``. Test: ``tests/test_network.py``.
"""

from typing import Protocol

from torch import Tensor

from .formats import Rounding
from .kinds import TABLES
from .pipeline.activation import Clip, LeakyRelu
from .pipeline.add import Add
from .pipeline.affine import Affine
from .pipeline.avgpool import AvgPool
from .pipeline.concat import Concat
from .pipeline.dropout import Dropout
from .pipeline.fork import Fork
from .pipeline.maxpool import MaxPool
from .pipeline.relu import Relu
from .pipeline.softmax import Softmax
from .pipeline.table import Table
from .plan import LayerPlan
from .step import Step

__all__ = ["Block", "make_block"]


class _Single(Protocol):
    """One source, one consumer. Results are values and how many of them were clipped."""

    def __init__(self, layer: LayerPlan, rounding: Rounding) -> None: ...
    def forward(self, features: Tensor, step: Step) -> tuple[Tensor, int]: ...
    def backward(self, errors: Tensor) -> tuple[Tensor, int]: ...


class _Join(Protocol):
    """Several sources, which get an error each."""

    def __init__(self, layer: LayerPlan, rounding: Rounding) -> None: ...
    def forward(self, features: list[Tensor], step: Step) -> tuple[Tensor, int]: ...
    def backward(self, errors: Tensor) -> tuple[list[Tensor], int]: ...


SINGLES: dict[str, type[_Single]] = {
    "relu": Relu,
    "clip": Clip,
    "leaky_relu": LeakyRelu,
    **dict.fromkeys(TABLES, Table),
    "softmax": Softmax,
    "dropout": Dropout,
    "affine": Affine,
    "maxpool2d": MaxPool,
    "avgpool2d": AvgPool,
}
JOINS: dict[str, type[_Join]] = {"add": Add, "concat": Concat}


class Block(Protocol):
    """Any layer without weights: features of its sources in, errors of its consumers back.

    ``forward`` returns the feature, ``backward`` an error per source; both also return how many
    values were clipped. All tensors are [B, C, H, W].
    """

    def forward(self, features: list[Tensor], step: Step) -> tuple[Tensor, int]: ...
    def backward(self, errors: list[Tensor]) -> tuple[list[Tensor], int]: ...


def make_block(layer: LayerPlan, rounding: Rounding) -> Block:
    """Return the golden block of a layer without weights."""
    if layer.pattern == "join":
        return _OfJoin(JOINS[layer.kind](layer, rounding))
    if layer.pattern == "fork":
        return _OfFork(Fork(layer, rounding))
    return _OfSingle(SINGLES[layer.kind](layer, rounding))


class _OfSingle:
    def __init__(self, layer: _Single) -> None:
        self.layer = layer

    def forward(self, features: list[Tensor], step: Step) -> tuple[Tensor, int]:
        return self.layer.forward(features[0], step)

    def backward(self, errors: list[Tensor]) -> tuple[list[Tensor], int]:
        below, clipped = self.layer.backward(errors[0])
        return [below], clipped


class _OfJoin:
    def __init__(self, layer: _Join) -> None:
        self.layer = layer

    def forward(self, features: list[Tensor], step: Step) -> tuple[Tensor, int]:
        return self.layer.forward(features, step)

    def backward(self, errors: list[Tensor]) -> tuple[list[Tensor], int]:
        return self.layer.backward(errors[0])


class _OfFork:
    def __init__(self, layer: Fork) -> None:
        self.layer = layer

    def forward(self, features: list[Tensor], step: Step) -> tuple[Tensor, int]:
        return self.layer.forward(features[0], step)

    def backward(self, errors: list[Tensor]) -> tuple[list[Tensor], int]:
        below, clipped = self.layer.backward(errors)
        return [below], clipped
