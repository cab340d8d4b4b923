"""The graph: a traced chain of layers as plain data, and the number formats that were chosen for
it.

``model/trace.py`` makes a ``Graph`` from a torch module, ``model/calibrate.py`` chooses its
``Formats``, and ``host/planner.py`` joins both into a ``Plan``. A leaf of the standard library.

Test: ``tests/test_trace.py``, ``tests/test_calibrate.py``.
"""

from dataclasses import dataclass, field

from .formats import Format
from .loss_options import LossOptions
from .plan import ParameterPlan

__all__ = ["Formats", "Graph", "LayerFormats", "Node"]

Shape = tuple[int, int, int]
Pair = tuple[int, int]


@dataclass(frozen=True)
class Node:
    """One layer of the chain. Shapes are (channels, height, width) of one sample.

    ``kind`` is ``conv2d``, ``linear``, ``relu`` or ``maxpool2d``; flatten is dropped, because a
    linear layer is a convolution whose kernel is its whole input map (see ``LayerPlan``). ``name``
    is the module's path in the torch model, so ``name + ".weight"`` is its key in ``state_dict()``;
    a functional call takes the name that torch.fx gives it.
    """

    name: str
    kind: str
    i_shape: Shape
    o_shape: Shape
    kernel: Pair = (1, 1)
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    bias: bool = False

    @property
    def trainable(self) -> bool:
        return self.kind in ("conv2d", "linear")


@dataclass(frozen=True)
class Graph:
    """A chain of layers that ends in a loss. ``loss`` is a kind of ``LossPlan``; ``outputs`` counts
    the logits.
    """

    input_shape: Shape
    nodes: tuple[Node, ...]
    loss: str
    outputs: int
    loss_options: LossOptions = field(default_factory=LossOptions)

    @property
    def trainable(self) -> tuple[Node, ...]:
        return tuple(node for node in self.nodes if node.trainable)


@dataclass(frozen=True)
class LayerFormats:
    """Formats around one trainable layer.

    Along the chain ``i_feature`` is the ``o_feature`` of the trainable layer before (or
    ``Formats.input``), and ``o_error`` is the ``i_error`` of the trainable layer behind (or
    ``Formats.loss_error``): ReLU and pooling in between keep both. The first trainable layer passes
    no error down; its ``i_error`` repeats its ``o_error`` and is never used.
    """

    i_feature: Format
    o_feature: Format
    i_error: Format
    o_error: Format
    weight: ParameterPlan
    bias: ParameterPlan | None


@dataclass(frozen=True)
class Formats:
    """All formats of a graph: ``layers`` has one entry per trainable layer, by name.

    ``loss_feature`` is the format of the logits, that is the last trainable layer's ``o_feature``;
    ``loss_error`` that of the error of the logits, with at least one integer bit so that +1 and -1
    fit.
    """

    input: Format
    layers: dict[str, LayerFormats]
    loss_feature: Format
    loss_error: Format
