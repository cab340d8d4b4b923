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
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from .errors import PlanError
from .formats import Format, Rounding, accumulator_width
from .geometry import Unfolding, Walk, backward_walk, forward_walk

__all__ = ["GENERATOR_VERSION", "Buffers", "LayerPlan", "LossPlan", "ParameterPlan", "Plan"]

# Part of every identity: raise it when the same plan would generate different hardware.
GENERATOR_VERSION = 1

Shape = tuple[int, int, int]
Pair = tuple[int, int]


@dataclass(frozen=True)
class ParameterPlan:
    """Formats of one trained tensor.

    ``working`` is what FP and EB multiply by; ``master`` is what the update unit keeps;
    ``gradient`` is what the gradient sum is requantised to, and also the format of momentum and of
    the step.
    """

    working: Format
    master: Format
    gradient: Format


@dataclass(frozen=True)
class Buffers:
    """Computed depths. Rows are rows of a map, words are stream transfers (of ``lanes`` values)."""

    fp_rows: int = 0  # rows in front of FP
    eb_rows: int = 0  # error rows in front of EB
    wg_rows: int = 0  # feature rows that wait for WG
    error_words: int = 0  # errors that wait for WG
    index_words: int = 0  # ReLU masks or max-pool indices that wait for their errors


@dataclass(frozen=True)
class LayerPlan:
    """One layer of the chain. Shapes are (channels, height, width) of one sample.

    ``kind`` is ``conv2d``, ``linear``, ``relu`` or ``maxpool2d``. A linear layer is a convolution
    whose kernel is its whole input map, so ``kernel`` is (height, width), ``stride`` (1, 1) and
    ``padding`` (0, 0); this keeps torch's flatten order. ``a`` outputs by ``b`` inputs are
    multiplied per cycle by each engine of a trainable layer; ``lanes`` channels per cycle pass a
    ReLU or a pool. ``backward`` says whether the layer passes an error to the layer below. With
    ``unfold`` an input pixel comes with all channels at once, and the kernel's columns become
    channels in front of the engines, which work on ``hardware``: ``b`` divides those channels.
    """

    name: str
    kind: str
    i_shape: Shape
    o_shape: Shape
    i_feature: Format
    o_feature: Format
    i_error: Format
    o_error: Format
    backward: bool
    kernel: Pair = (1, 1)
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    weight: ParameterPlan | None = None
    bias: ParameterPlan | None = None
    a: int = 1
    b: int = 1
    lanes: int = 1
    update_lanes: int = 1
    delay: int = 0
    back_delay: int = 0
    buffers: Buffers = field(default_factory=Buffers)
    unfold: bool = False

    def __post_init__(self) -> None:
        if self.unfold and (self.kind != "conv2d" or self.backward):
            raise PlanError(f"{self.name}: unfold must be a conv2d's that passes no error down")
        if self.trainable:
            channels = self.hardware.i_shape[0]
            if channels % self.b or self.o_shape[0] % self.a:
                raise PlanError(
                    f"{self.name}: folding ({self.a}, {self.b}) must divide channels "
                    f"({self.o_shape[0]}, {channels})"
                )
            if (
                self.a % self.update_lanes and self.update_lanes % self.a
            ) or self.a * self.b % self.update_lanes:
                raise PlanError(
                    f"{self.name}: update_lanes must divide a, or be a times a divisor of b, "
                    f"not {self.update_lanes}"
                )
        elif self.i_shape[0] % self.lanes:
            raise PlanError(
                f"{self.name}: lanes must divide {self.i_shape[0]} channels, not {self.lanes}"
            )

    @property
    def trainable(self) -> bool:
        return self.kind in ("conv2d", "linear")

    @cached_property
    def hardware(self) -> "LayerPlan":
        """The layer as its engines see it. Unfolded, its channel ``dx*C + c`` at output column x is
        channel c at column ``x*stride + dx - padding``, or zero outside the map.
        """
        if not self.unfold:
            return self
        shape = (self.kernel[1] * self.i_shape[0], self.i_shape[1], self.o_shape[2])
        kernel, stride, padding = (self.kernel[0], 1), (self.stride[0], 1), (self.padding[0], 0)
        return dataclasses.replace(
            self, i_shape=shape, kernel=kernel, stride=stride, padding=padding, unfold=False
        )

    @property
    def unfolding(self) -> Unfolding:
        """How a row of the input becomes a row of ``hardware`` where ``unfold`` is set."""
        return Unfolding(self.i_shape[2], self.kernel[1], self.stride[1], self.padding[1])

    @property
    def i_lanes(self) -> int:
        """Channels per transfer of the feature that comes in, and of the error that goes out."""
        if self.unfold:
            return self.i_shape[0]
        return self.b if self.trainable else self.lanes

    @property
    def o_lanes(self) -> int:
        """Channels per transfer of the feature that goes out, and of the error that comes in."""
        return self.a if self.trainable else self.lanes

    @property
    def i_blocks(self) -> int:
        """Words per pixel on the input side, as the engines read it."""
        return self.hardware.i_shape[0] // self.hardware.i_lanes

    @property
    def i_row_cycles(self) -> int:
        """Cycles, at least, in which a row of the input enters."""
        if self.unfold:
            return self.unfolding.row_cycles(self.i_blocks)
        return self.i_shape[2] * self.i_blocks

    @property
    def o_blocks(self) -> int:
        """Transfers per pixel on the output side."""
        return self.o_shape[0] // self.o_lanes

    @property
    def weight_words(self) -> int:
        """Words of ``a*b`` weights."""
        return self.o_blocks * math.prod(self.hardware.kernel) * self.i_blocks

    @property
    def sweep_chunks(self) -> int:
        """Chunks of ``update_lanes`` parameters in one update sweep: weights word by word, then
        biases.
        """
        weights = self.weight_words * (self.a * self.b // self.update_lanes)
        return weights + (self.o_blocks * -(-self.a // self.update_lanes) if self.bias else 0)

    @cached_property
    def fp_walks(self) -> tuple[Walk, Walk]:
        """Rows and columns as FP and WG walk them: over outputs, gathering inputs."""
        return self._walks(forward_walk)

    @cached_property
    def eb_walks(self) -> tuple[Walk, Walk]:
        """Rows and columns as EB walks them: over inputs, gathering output errors."""
        return self._walks(backward_walk)

    def _walks(self, walk: Callable[[int, int, int, int], Walk]) -> tuple[Walk, Walk]:
        seen = self.hardware
        sizes = zip(seen.i_shape[1:], seen.kernel, seen.stride, seen.padding, strict=True)
        rows, cols = (walk(*axis) for axis in sizes)
        return rows, cols

    @property
    def fp_interval(self) -> int:
        """Cycles per sample of FP, and of WG. ReLU passes a word per cycle."""
        if self.kind == "relu":
            return self.i_shape[1] * self.i_shape[2] * self.i_blocks
        rows, cols = self.fp_walks
        return rows.beats * cols.beats * self.o_blocks * (self.i_blocks if self.trainable else 1)

    @property
    def eb_interval(self) -> int:
        """Cycles per sample of EB; zero where there is none."""
        if not self.backward:
            return 0
        if self.kind == "relu":
            return self.fp_interval
        rows, cols = self.eb_walks
        return rows.beats * cols.beats * self.i_blocks * (self.o_blocks if self.trainable else 1)

    @property
    def engines(self) -> tuple[str, ...]:
        """Engines with multipliers, each of ``a*b``."""
        if not self.trainable:
            return ()
        return ("fp", "eb", "wg") if self.backward else ("fp", "wg")

    @property
    def fp_banks(self) -> int:
        """Versions of the working weights in FP's copy (docs/architecture.md, versions)."""
        return self.delay + 1

    @property
    def eb_banks(self) -> int:
        return self.back_delay + 1

    @property
    def gradient_banks(self) -> int:
        """Two where WG may start a mini-batch while the sums of the one before are applied."""
        return 2 if self.delay else 1

    @property
    def fp_acc_width(self) -> int:
        """Bits of FP's exact accumulator: every product and the aligned bias."""
        assert self.weight is not None
        terms = self.i_shape[0] * self.kernel[0] * self.kernel[1]
        width = accumulator_width(self.weight.working.width, self.i_feature.width, terms)
        if self.bias is None:
            return width
        shift = self.weight.working.frac + self.i_feature.frac - self.bias.working.frac
        return max(width, self.bias.working.width + shift) + 1

    @property
    def eb_acc_width(self) -> int:
        assert self.weight is not None
        terms = self.o_shape[0] * self.kernel[0] * self.kernel[1]
        return accumulator_width(self.weight.working.width, self.o_error.width, terms)

    def wg_acc_width(self, batch_max: int) -> int:
        """Bits of one weight's exact gradient sum over a mini-batch of ``batch_max`` samples."""
        terms = self.o_shape[1] * self.o_shape[2] * batch_max
        return accumulator_width(self.o_error.width, self.i_feature.width, terms)

    def bias_acc_width(self, batch_max: int) -> int:
        terms = self.o_shape[1] * self.o_shape[2] * batch_max
        return self.o_error.width + (terms - 1).bit_length()


@dataclass(frozen=True)
class LossPlan:
    """The end of the chain. ``kind`` is ``cross_entropy`` or ``mse``; ``outputs`` the number of
    logits.

    ``target_samples`` is how many samples' targets may wait for their logits.
    """

    kind: str
    outputs: int
    feature: Format
    error: Format
    target_samples: int = 8


@dataclass(frozen=True)
class Plan:
    """A whole single-board design."""

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

    @property
    def interval(self) -> int:
        """Cycles per sample of the slowest engine, stream or sweep-free part of the pipeline."""
        slowest = max(max(layer.fp_interval, layer.eb_interval) for layer in self.layers)
        writes = max(layer.i_shape[1] * layer.i_row_cycles for layer in self.layers)
        return max(slowest, self.packet_interval, writes, self.loss_interval)

    @property
    def packet_lanes(self) -> int:
        """Features that leave a packet per cycle: both of a word where they fill the first layer's
        transfers evenly, else one.
        """
        even = math.prod(self.input_shape) % math.lcm(2, self.layers[0].i_lanes) == 0
        return 2 if even else 1

    @property
    def packet_interval(self) -> int:
        """Cycles per sample of a TRAIN packet: header, target, features."""
        target = 1 if self.loss.kind == "cross_entropy" else self.loss.outputs
        return 1 + target + math.prod(self.input_shape) // self.packet_lanes

    @property
    def target_words(self) -> int:
        """32-bit words of one sample's target in a packet."""
        return 1 if self.loss.kind == "cross_entropy" else -(-self.loss.outputs // 2)

    @property
    def loss_interval(self) -> int:
        """Cycles per sample of the loss in steady state.

        One logit a cycle for ``mse``; one division per output, of two quotient bits a cycle, for
        ``cross_entropy``, whose other stages work on other samples meanwhile.
        """
        if self.loss.kind == "mse":
            return self.loss.outputs
        return self.loss.outputs * ((self.loss.error.frac + 2) // 2)

    @property
    def loss_latency(self) -> int:
        """Cycles from a sample's last logit to its last error when nothing waits."""
        if self.loss.kind == "mse":
            return 3
        return self.loss_interval + self.loss.outputs + 9

    @property
    def multipliers(self) -> int:
        """Multipliers of all FP, EB and WG engines."""
        return sum(layer.a * layer.b * len(layer.engines) for layer in self.layers)

    def layer(self, name: str) -> LayerPlan:
        for layer in self.layers:
            if layer.name == name:
                return layer
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


def _parameter(raw: dict[str, Any] | None) -> ParameterPlan | None:
    if raw is None:
        return None
    return ParameterPlan(**{key: Format(**value) for key, value in raw.items()})


def _layer(raw: dict[str, Any]) -> LayerPlan:
    formats = {key: Format(**raw[key]) for key in ("i_feature", "o_feature", "i_error", "o_error")}
    pairs = {key: tuple(raw[key]) for key in ("i_shape", "o_shape", "kernel", "stride", "padding")}
    parameters = {key: _parameter(raw[key]) for key in ("weight", "bias")}
    return LayerPlan(
        **{**raw, **formats, **pairs, **parameters, "buffers": Buffers(**raw["buffers"])}
    )


def _plan(raw: dict[str, Any]) -> Plan:
    loss = {
        **raw["loss"],
        "feature": Format(**raw["loss"]["feature"]),
        "error": Format(**raw["loss"]["error"]),
    }
    layers = tuple(_layer(layer) for layer in raw["layers"])
    return Plan(
        **{**raw, "layers": layers, "loss": LossPlan(**loss), "rounding": Rounding(raw["rounding"])}
    )
