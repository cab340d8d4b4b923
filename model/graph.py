"""The graph: a traced model as plain data, and the number formats that were chosen for it.

``model/trace.py`` makes a ``Graph`` from a torch module, ``model/calibrate.py`` chooses its
``Formats``, and ``host/layers.py`` joins both into the layers of a ``Plan``. A leaf of the standard
library.

Test: ``tests/test_trace.py``, ``tests/test_calibrate.py``.
"""

from dataclasses import dataclass, field
from functools import cached_property

from .formats import Format
from .kinds import KINDS
from .loss_options import LossOptions
from .plan import INPUT, ParameterPlan

__all__ = ["Formats", "Graph", "LayerFormats", "Node"]

Shape = tuple[int, int, int]
Pair = tuple[int, int]


@dataclass(frozen=True)
class Node:
    """One layer. Shapes are (channels, height, width) of one sample.

    ``kind`` is one of ``model/kinds.py``, and all else is as in ``LayerPlan``, but with floats for
    ``lower``, ``upper``, ``slope``, ``drop`` and for an affine layer's ``factors`` and ``offsets``:
    ``result = feature * factors[channel] + offsets[channel]``. Flatten is dropped, because a linear
    layer is a convolution whose kernel is its whole input map. ``name`` is the module's path in the
    torch model, so ``name + ".weight"`` is its key in ``state_dict()``; a functional call takes the
    name that torch.fx gives it; a fork is its producer's name with ``.fork``, and BatchNorm's
    statistics the module's path with ``.statistics``.
    """

    name: str
    kind: str
    i_shape: Shape
    o_shape: Shape
    kernel: Pair = (1, 1)
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    bias: bool = False
    dilation: Pair = (1, 1)
    groups: int = 1
    sources: tuple[str, ...] = ()
    parts: tuple[int, ...] = ()
    fan: int = 1
    adaptive: bool = False
    count_padding: bool = True
    lower: float = 0.0
    upper: float = 0.0
    slope: float = 0.0
    drop: float = 0.0
    number: int = 0
    factors: tuple[float, ...] = ()
    offsets: tuple[float, ...] = ()

    @property
    def trainable(self) -> bool:
        return self.pattern == "sum"

    @property
    def pattern(self) -> str:
        """How data pass, see ``model/kinds.py``."""
        return KINDS[self.kind].pattern

    @property
    def weight_shape(self) -> tuple[int, int, int, int]:
        """The weight as a convolution's: [Co, Ci/groups, Kh, Kw]."""
        return (self.o_shape[0], self.i_shape[0] // self.groups, *self.kernel)


@dataclass(frozen=True)
class Graph:
    """Layers in an order in which data can pass them; the last one's output goes to the loss.

    ``loss`` is a kind of ``LossPlan``; ``outputs`` counts the logits. A feature that several layers
    read is read by a ``fork`` alone.
    """

    input_shape: Shape
    nodes: tuple[Node, ...]
    loss: str
    outputs: int
    loss_options: LossOptions = field(default_factory=LossOptions)

    @property
    def trainable(self) -> tuple[Node, ...]:
        return tuple(node for node in self.nodes if node.trainable)

    @cached_property
    def sources(self) -> dict[str, tuple[str, ...]]:
        """What each layer reads, by its name: earlier layers or ``"input"``."""
        found = {}
        before = INPUT
        for node in self.nodes:
            found[node.name] = node.sources or (before,)
            before = node.name
        return found

    @cached_property
    def error_takers(self) -> frozenset[str]:
        """Layers whose output has an error: the trainable ones and all that read one of these."""
        found: set[str] = set()
        for node in self.nodes:
            if node.trainable or found.intersection(self.sources[node.name]):
                found.add(node.name)
        return frozenset(found)

    def passes_back(self, node: Node) -> bool:
        """Whether a layer passes an error to a layer below."""
        return not self.error_takers.isdisjoint(self.sources[node.name])


@dataclass(frozen=True)
class LayerFormats:
    """Formats around one layer, and those of its parameters.

    ``i_feature`` is the ``o_feature`` of what the layer reads (``Formats.input`` for the sample),
    ``o_error`` the ``i_error`` of what reads it (``Formats.loss_error`` at the end). A layer that
    passes no error down repeats its ``o_error``, which is never used.
    """

    i_feature: Format
    o_feature: Format
    i_error: Format
    o_error: Format
    weight: ParameterPlan | None = None
    bias: ParameterPlan | None = None


@dataclass(frozen=True)
class Formats:
    """All formats of a graph: ``layers`` has one entry per layer, by name.

    ``loss_feature`` is the format of the logits, that is the last layer's ``o_feature``;
    ``loss_error`` that of the error of the logits, with at least one integer bit so that +1 and -1
    fit.
    """

    input: Format
    layers: dict[str, LayerFormats]
    loss_feature: Format
    loss_error: Format
