"""The plan: everything that was decided about a design, as plain data.

It is the only contract between deciding and generating. Whoever holds a plan can generate,
simulate, build or draw the design without asking the planner again; it is saved as JSON and its
hash is the design's identity.

Leaf of the standard library. Made by ``host/compile.py``; read by ``rtl``, ``sim``, ``boards`` and
``host``. Test: ``tests/test_plan.py``.
"""

import dataclasses
import hashlib
import json
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from .errors import PlanError
from .formats import Format, Rounding, division_cycles
from .layer_json import layer_from_dict
from .layer_plan import Buffers, LayerPlan, ParameterPlan, Shape
from .padding import padded

__all__ = [
    "GENERATOR_VERSION",
    "INPUT",
    "LOSS",
    "Buffers",
    "Edge",
    "LayerPlan",
    "LossPlan",
    "ParameterPlan",
    "Plan",
]

# Part of every identity: raise it when the same plan would generate different hardware.
GENERATOR_VERSION = 4

# Names at the ends of edges that no layer can have.
INPUT = "input"
LOSS = "loss"


@dataclass(frozen=True)
class LossPlan:
    """The end of the chain: which error the logits get.

    Parameters
    ----------
    kind : ``cross_entropy``, ``mse``, ``huber`` or ``binary_cross_entropy``
    outputs : number of logits
    feature, error : formats of the logits, in which targets that are values travel too, and of
        their error
    target_samples : how many samples' targets may wait for their logits
    class_weights : of cross-entropy: none, or one unsigned integer an output, with ``weight_frac``
        fraction bits
    ignore_index : of cross-entropy: the label of samples without an error, as users give it;
        devices take ``outputs`` for it
    delta : of Huber's loss: the largest error, an integer of ``feature``
    smooth_l1 : of Huber's loss: torch's value is divided by ``delta``, as in ``SmoothL1Loss``
    reduction : ``mean`` or ``sum``: what torch's hyperparameters mean, see ``model/hyper.py``
    """

    kind: str
    outputs: int
    feature: Format
    error: Format
    target_samples: int = 8
    class_weights: tuple[int, ...] = ()
    weight_frac: int = 0
    ignore_index: int | None = None
    delta: int = 0
    smooth_l1: bool = False
    reduction: str = "mean"

    @property
    def labels(self) -> bool:
        """Whether a target is a class number, not a value an output."""
        return self.kind == "cross_entropy"

    @property
    def weighted(self) -> bool:
        """Whether errors are multiplied by a weight of the label."""
        return bool(self.class_weights) or self.ignore_index is not None

    @property
    def label_weights(self) -> tuple[int, ...]:
        """Weights of all classes, and 0 of label ``outputs``; ``weight_frac`` fraction bits."""
        return (*(self.class_weights or (1 << self.weight_frac,) * self.outputs), 0)

    @property
    def probability_frac(self) -> int:
        """Fraction bits of a probability: those of the error, and under class weights so many more
        that the largest weight makes at most half a step of the error out of half a step.
        """
        if not self.weighted:
            return self.error.frac
        largest = (max(self.label_weights) - 1).bit_length() - self.weight_frac
        return self.error.frac + max(0, largest)

    @property
    def division_cycles(self) -> int:
        """Cycles of one division, by 2 quotient bits a cycle: a bit more than a probability has."""
        return division_cycles(self.probability_frac)

    @property
    def target_range(self) -> tuple[int, int]:
        """The least and the largest integer of a target, as devices take it."""
        if self.labels:
            return 0, self.outputs - (self.ignore_index is None)
        if self.kind == "binary_cross_entropy":
            return 0, 1 << self.feature.frac
        return self.feature.min, self.feature.max


@dataclass(frozen=True)
class Edge:
    """One stream of features between two blocks, and back the errors, where there are any.

    ``source`` is a layer's name or ``INPUT``, ``sink`` a layer's name or ``LOSS``. Ports count a
    fork's outputs and a join's sources.
    """

    source: str
    source_port: int
    sink: str
    sink_port: int


@dataclass(frozen=True)
class Plan:
    """A whole single-board design; ``layers`` are in an order in which data can pass them."""

    name: str
    layers: tuple[LayerPlan, ...]
    loss: LossPlan
    batch_max: int
    rounding: Rounding = Rounding.HALF_EVEN
    seed: int = 0
    board: str = "sim"
    clock_hz: int = 100_000_000
    probes: bool = False

    @property
    def input_shape(self) -> Shape:
        return self.layers[0].i_shape

    @property
    def trainable(self) -> tuple[LayerPlan, ...]:
        return tuple(layer for layer in self.layers if layer.trainable)

    @cached_property
    def edges(self) -> tuple[Edge, ...]:
        """Every stream between blocks, by sink; the last layer's feature goes to the loss.

        Raises
        ------
        PlanError
            For a source that is no earlier layer, and an output that not exactly one sink reads.
        """
        outputs = {INPUT: 1}
        taken = {INPUT: 0}
        edges = []
        before = INPUT
        for layer in self.layers:
            for port, source in enumerate(layer.sources or (before,)):
                if source not in outputs:
                    raise PlanError(
                        f"{layer.name}: source must be {INPUT!r} or an earlier layer, "
                        f"not {source!r}"
                    )
                edges.append(Edge(source, taken[source], layer.name, port))
                taken[source] += 1
            outputs[layer.name], taken[layer.name] = layer.fan, 0
            before = layer.name
        edges.append(Edge(before, taken[before], LOSS, 0))
        taken[before] += 1
        for name, count in taken.items():
            if count != outputs[name]:
                raise PlanError(
                    f"{name}: its feature must be read {outputs[name]} times, not {count}: "
                    "a fork gives it to several layers"
                )
        return tuple(edges)

    @cached_property
    def edges_in(self) -> dict[str, tuple[Edge, ...]]:
        """The edges into every layer and ``LOSS``, by port."""
        found: dict[str, list[Edge]] = {}
        for edge in self.edges:
            found.setdefault(edge.sink, []).append(edge)
        return {sink: tuple(edges) for sink, edges in found.items()}

    @cached_property
    def edges_out(self) -> dict[str, tuple[Edge, ...]]:
        """The edges out of every layer and ``INPUT``, by port."""
        found: dict[str, list[Edge]] = {}
        for edge in self.edges:
            found.setdefault(edge.source, []).append(edge)
        return {source: tuple(edges) for source, edges in found.items()}

    def passes_error(self, name: str) -> bool:
        """Whether a layer's feature (``INPUT``: the sample) takes an error."""
        if name == INPUT:
            return False
        layer = self.layer(name)
        return layer.trainable or layer.backward

    @cached_property
    def error_edges(self) -> tuple[Edge, ...]:
        """The edges on which errors come back: those whose source takes an error.

        Raises
        ------
        PlanError
            For a layer that gives an error where none is taken, or none where one is.
        """
        taken = []
        for edge in self.edges:
            takes = self.passes_error(edge.source)
            if takes:
                taken.append(edge)
            if edge.sink == LOSS:
                continue
            sink = self.layer(edge.sink)
            gives = sink.backward and (not sink.errors or sink.errors[edge.sink_port])
            if gives != takes:
                raise PlanError(
                    f"{edge.sink}: the error for {edge.source} must be passed exactly where "
                    f"{edge.source} takes one ({takes}), not {gives}: set backward and errors so"
                )
        return tuple(taken)

    @property
    def interval(self) -> int:
        """Cycles per sample of the slowest engine, stream or sweep-free part of the pipeline."""
        slowest = max(max(layer.fp_interval, layer.eb_interval) for layer in self.layers)
        writes = max(layer.i_shape[1] * layer.i_row_cycles for layer in self.layers)
        return max(slowest, self.packet_interval, writes, self.loss_interval)

    @property
    def packet_lanes(self) -> int:
        """Features that leave a packet per cycle: both of a word where they fill the first layer's
        transfers, and with pad lanes its pixels, evenly, else one.
        """
        first = self.layers[0]
        if padded(first.i_shape[0], first.i_layout):
            return 1 if first.i_shape[0] % 2 else 2
        even = math.prod(self.input_shape) % math.lcm(2, first.i_lanes) == 0
        return 2 if even else 1

    @property
    def packet_interval(self) -> int:
        """Cycles per sample of a TRAIN packet: header, target, features."""
        target = 1 if self.loss.labels else self.loss.outputs
        return 1 + target + math.prod(self.input_shape) // self.packet_lanes

    @property
    def target_words(self) -> int:
        """32-bit words of one sample's target in a packet."""
        return 1 if self.loss.labels else -(-self.loss.outputs // 2)

    @property
    def loss_interval(self) -> int:
        """Cycles per sample of the loss in steady state.

        One logit a cycle for ``mse`` and ``huber``; one division per output, of two quotient bits a
        cycle, for both cross-entropies, whose other stages work on other logits meanwhile.
        """
        if self.loss.kind in ("mse", "huber"):
            return self.loss.outputs
        return self.loss.outputs * self.loss.division_cycles

    @property
    def loss_latency(self) -> int:
        """Cycles from a sample's last logit to its last error when nothing waits and logits come
        one a cycle.
        """
        if self.loss.kind in ("mse", "huber"):
            return 3
        if self.loss.kind == "binary_cross_entropy":
            queue = 1 if self.loss.outputs == 1 else 2
            return self.loss_interval - self.loss.outputs + queue + 11
        return self.loss_interval + self.loss.outputs + (11 if self.loss.weighted else 9)

    @property
    def multipliers(self) -> int:
        """Multipliers of all FP, EB and WG engines."""
        return sum(layer.word_size * len(layer.engines) for layer in self.layers)

    @cached_property
    def _by_name(self) -> dict[str, LayerPlan]:
        return {layer.name: layer for layer in self.layers}

    def layer(self, name: str) -> LayerPlan:
        if name in self._by_name:
            return self._by_name[name]
        raise PlanError(f"layer must be one of {[x.name for x in self.layers]}, not {name!r}")

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=1, sort_keys=True)

    @staticmethod
    def from_json(text: str) -> "Plan":
        try:
            raw = json.loads(text)
            return _plan(raw)
        except (ValueError, TypeError, KeyError) as error:
            raise PlanError(
                f"plan must be JSON as written by Plan.to_json; {type(error).__name__}: {error}"
            ) from error

    @cached_property
    def identity(self) -> str:
        """32 hex digits: a hash of the plan and the generator's version. The board answers with
        it.
        """
        text = json.dumps([GENERATOR_VERSION, dataclasses.asdict(self)], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]


def _plan(raw: dict[str, Any]) -> Plan:
    loss = {
        **raw["loss"],
        "class_weights": tuple(raw["loss"].get("class_weights", ())),
        "feature": Format(**raw["loss"]["feature"]),
        "error": Format(**raw["loss"]["error"]),
    }
    layers = tuple(layer_from_dict(layer) for layer in raw["layers"])
    return Plan(
        **{**raw, "layers": layers, "loss": LossPlan(**loss), "rounding": Rounding(raw["rounding"])}
    )
