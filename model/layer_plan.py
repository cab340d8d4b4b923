"""The plan of one layer: its shapes, formats, folding and buffers, and what follows from them.

Leaf of the standard library. Part of ``model/plan.py``. Test: ``tests/test_plan.py``.
"""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from .formats import Format, accumulator_width, division_cycles
from .geometry import (
    Unfolding,
    Walk,
    adaptive_backward_walk,
    adaptive_walk,
    backward_walk,
    forward_walk,
)
from .kinds import KINDS
from .layer_checks import check_layer
from .layer_parts import Buffers, ParameterPlan
from .padding import Layout, channel_words

__all__ = ["Buffers", "LayerPlan", "ParameterPlan", "Shape"]

Shape = tuple[int, int, int]
Pair = tuple[int, int]
# Cycles of a softmax beside those that its words take: queues, exponential, division; products,
# sum, rounding.
SOFTMAX_LATENCY, SOFTMAX_ERROR_LATENCY = 8, 6


@dataclass(frozen=True)
class LayerPlan:
    """One layer. Shapes are (channels, height, width) of one sample.

    ``kind`` is one of ``model/kinds.py``. A linear layer is a convolution whose kernel is its whole
    input map, so ``kernel`` is (height, width), ``stride`` (1, 1) and ``padding`` (0, 0); this
    keeps torch's flatten order. A ``scale`` is a convolution of one tap and ``groups`` = channels.
    ``padding`` lies above and to the left; how far windows reach beyond the other ends follows
    from ``o_shape``. ``a`` outputs by ``b`` inputs (within a group) are multiplied per cycle by
    each engine of a trainable layer, for ``group_lanes`` groups at once, which is above 1 only
    where ``a`` and ``b`` are whole groups; ``lanes`` channels per cycle pass any other layer.
    Where ``a`` or ``b`` does not divide a group's channels, its last word has pad lanes
    (``model/padding.py``).
    ``backward`` says whether the layer passes an error to the layer below. With ``unfold`` an input
    pixel comes with all channels at once, and the kernel's columns become channels in front of the
    engines, which work on ``hardware``: ``b`` folds those channels.

    ``sources`` are the names of the layers whose features come in, ``"input"`` for the sample;
    empty for the layer before. A name that several layers would read is read by a ``fork`` alone:
    its consumers, in the plan's order, are its outputs 0, 1, ... A ``concat`` joins ``parts``
    channels of each source into ``i_shape``; ``errors`` says which sources of a join take an error
    (empty: all do).
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
    dilation: Pair = (1, 1)
    groups: int = 1
    sources: tuple[str, ...] = ()
    errors: tuple[bool, ...] = ()
    parts: tuple[int, ...] = ()  # concat: channels of each source
    fan: int = 1  # fork: consumers
    adaptive: bool = False  # avgpool2d: windows of an adaptive pool; kernel is not used
    count_padding: bool = True  # avgpool2d: padded entries count in the divisor
    lower: int = 0  # clip: least and greatest result, integers in the feature's format
    upper: int = 0
    slope: int = 0  # leaky_relu: times 2**-16, 0 to 2**16
    drop: int = 0  # dropout: share of dropped values times 2**16
    number: int = 0  # dropout: of its random stream, in a plan of seed ``seed``
    seed: int = 0
    # affine: result = (feature * factors[channel] + offsets[channel]) * 2**-factor_frac, in the
    # feature's format; rounded to o_feature
    factors: tuple[int, ...] = ()
    offsets: tuple[int, ...] = ()
    factor_frac: int = 0
    weight: ParameterPlan | None = None
    bias: ParameterPlan | None = None
    a: int = 1
    b: int = 1
    group_lanes: int = 1
    lanes: int = 1
    update_lanes: int = 1
    delay: int = 0
    back_delay: int = 0
    buffers: Buffers = field(default_factory=Buffers)
    unfold: bool = False

    def __post_init__(self) -> None:
        check_layer(self)

    def fits_update(self, lanes: int) -> bool:
        """Whether the update can handle ``lanes`` parameters at once: part of an output block's
        biases, or all of them and a part of a word of weights.
        """
        even = self.o_lanes % lanes == 0 or lanes % self.o_lanes == 0
        return even and self.word_size % lanes == 0

    @property
    def trainable(self) -> bool:
        return self.pattern == "sum"

    @property
    def pattern(self) -> str:
        """How data pass, see ``model/kinds.py``."""
        return KINDS[self.kind].pattern

    @property
    def source_errors(self) -> tuple[bool, ...]:
        """Per source of a join whether it takes an error."""
        return self.errors or (self.backward,) * len(self.sources)

    @property
    def unfoldable(self) -> bool:
        """Whether ``unfold`` may be set."""
        dense = self.groups == 1 and self.dilation[1] == 1
        return self.kind == "conv2d" and not self.backward and dense

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
        """How a row of the input becomes one of ``hardware`` where ``unfold`` is set."""
        axis = (self.kernel[1], self.stride[1], self.padding[1], self.o_shape[2])
        return Unfolding(self.i_shape[2], *axis)

    @property
    def i_lanes(self) -> int:
        """Channels per transfer of the feature that comes in, and of the error that goes out."""
        if self.unfold:
            return self.i_shape[0]
        return self.b * self.group_lanes if self.trainable else self.lanes

    @property
    def o_lanes(self) -> int:
        """Channels per transfer of the feature that goes out, and of the error that comes in."""
        return self.a * self.group_lanes if self.trainable else self.lanes

    @property
    def i_blocks(self) -> int:
        """Words per pixel on the input side, as engines read it."""
        if self.trainable:
            return self.group_passes * self.fp_inner
        return self.i_shape[0] // self.lanes

    @property
    def i_row_cycles(self) -> int:
        """Cycles, at least, in which a row of the input enters."""
        if self.unfold:
            return self.unfolding.row_cycles(self.i_blocks)
        return self.i_shape[2] * self.i_blocks * self.word_cycles

    @property
    def o_blocks(self) -> int:
        """Transfers per pixel on the output side."""
        if self.trainable:
            return self.group_passes * self.eb_inner
        return self.o_shape[0] // self.lanes

    @property
    def group_shape(self) -> Pair:
        """Output and input channels of one group."""
        return self.o_shape[0] // self.groups, self.i_shape[0] // self.groups

    @property
    def group_passes(self) -> int:
        """Times that the groups at once must change to go through all groups."""
        return self.groups // self.group_lanes

    @property
    def fp_inner(self) -> int:
        """Input blocks that FP and WG take per tap of an output block: those of its group."""
        return -(-self.hardware.group_shape[1] // self.b)

    @property
    def eb_inner(self) -> int:
        """Output blocks that EB takes per tap of an input block: those of its group."""
        return -(-self.group_shape[0] // self.a)

    @property
    def i_layout(self) -> Layout:
        """Lanes and runs of the stream of features that comes in."""
        return self.i_lanes, self._runs

    @property
    def o_layout(self) -> Layout:
        """Lanes and runs of the stream of features that goes out."""
        return self.o_lanes, self._runs

    @property
    def coarser_words(self) -> tuple[tuple[int, ...], ...]:
        """``weight.coarser`` of each lane of each output block, 0 in pad lanes; empty for none."""
        if self.weight is None or not self.weight.spread:
            return ()
        coarser = self.weight.coarser
        words = channel_words(self.o_shape[0], self.o_layout)
        return tuple(tuple(0 if n is None else coarser[n] for n in word) for word in words)

    @property
    def _runs(self) -> int:
        """Groups that each begin a word."""
        return self.groups if self.trainable and self.group_lanes == 1 else 1

    @property
    def word_size(self) -> int:
        """Weights of a word, and multipliers of each engine: ``a*b`` for each group at once."""
        return self.group_lanes * self.a * self.b

    @property
    def join_blocks(self) -> tuple[int, ...]:
        """Transfers per pixel of each stream that waits in ``buffers.join_words``: of a join's
        sources, of the errors of a fork's consumers.
        """
        if self.kind == "concat":
            return tuple(part // self.lanes for part in self.parts)
        if self.pattern == "join":
            return (self.i_blocks,) * len(self.sources)
        return (self.i_blocks,) * self.fan if self.pattern == "fork" and self.backward else ()

    @property
    def weight_blocks(self) -> int:
        """Words of ``word_size`` weights of one tap."""
        return self.o_blocks * self.fp_inner

    @property
    def weight_words(self) -> int:
        """Words of ``word_size`` weights."""
        return self.weight_blocks * math.prod(self.hardware.kernel)

    @property
    def sweep_chunks(self) -> int:
        """Chunks of ``update_lanes`` parameters in one update sweep: weights word by word, then
        biases.
        """
        weights = self.weight_words * (self.word_size // self.update_lanes)
        biases = self.o_blocks * -(-self.o_lanes // self.update_lanes)
        return weights + (biases if self.bias else 0)

    @cached_property
    def fp_walks(self) -> tuple[Walk, Walk]:
        """Rows and columns as FP and WG walk them: over outputs, gathering inputs."""
        rows, cols = (self._axis(n, forward_walk, adaptive_walk) for n in (0, 1))
        return rows, cols

    @cached_property
    def eb_walks(self) -> tuple[Walk, Walk]:
        """Rows and columns as EB walks them: over inputs, gathering output errors."""
        rows, cols = (self._axis(n, backward_walk, adaptive_backward_walk) for n in (0, 1))
        return rows, cols

    def _axis(self, n: int, walk: Callable[..., Walk], adaptive: Callable[..., Walk]) -> Walk:
        seen = self.hardware
        size, outputs = seen.i_shape[n + 1], seen.o_shape[n + 1]
        if self.adaptive:
            return adaptive(size, outputs)
        kernel, stride, padding = seen.kernel[n], seen.stride[n], seen.padding[n]
        return walk(size, kernel, stride, padding, outputs, seen.dilation[n])

    @property
    def word_cycles(self) -> int:
        """Cycles of a word of features that passes without a window: a softmax divides."""
        return division_cycles(self.o_feature.frac) if self.kind == "softmax" else 1

    @property
    def fp_latency(self) -> int:
        """Cycles, at most, from a word of features to its result, without a window; of a softmax,
        from a pixel's last word to its last result.
        """
        if self.kind == "softmax":
            return SOFTMAX_LATENCY + self.i_blocks * (1 + self.word_cycles)
        return KINDS[self.kind].latency

    @property
    def eb_latency(self) -> int:
        """As ``fp_latency``, from a word of errors."""
        if self.kind == "softmax":
            levels = (self.lanes - 1).bit_length()  # of the adder tree, a cycle each at most
            return SOFTMAX_ERROR_LATENCY + self.i_blocks + levels
        return KINDS[self.kind].latency

    @property
    def windowed(self) -> bool:
        """Whether rows are gathered in a window; otherwise words pass in order."""
        return self.pattern in ("sum", "window")

    @property
    def fp_interval(self) -> int:
        """Cycles per sample of FP, and of WG. A layer without a window passes a word per cycle."""
        if not self.windowed:
            return self.i_shape[1] * self.i_shape[2] * self.i_blocks * self.word_cycles
        rows, cols = self.fp_walks
        return rows.beats * cols.beats * self.o_blocks * (self.fp_inner if self.trainable else 1)

    @property
    def eb_interval(self) -> int:
        """Cycles per sample of EB; zero where there is none."""
        if not self.backward:
            return 0
        if not self.windowed:
            return self.fp_interval // self.word_cycles
        rows, cols = self.eb_walks
        return rows.beats * cols.beats * self.i_blocks * (self.eb_inner if self.trainable else 1)

    @property
    def engines(self) -> tuple[str, ...]:
        """Engines with multipliers, each of ``word_size``."""
        if not self.trainable:
            return ()
        return ("fp", "eb", "wg") if self.backward else ("fp", "wg")

    @property
    def fp_banks(self) -> int:
        """Versions of the working weights that FP's copy holds, see docs/architecture.md."""
        return self.delay + 1

    @property
    def eb_banks(self) -> int:
        return self.back_delay + 1

    @property
    def gradient_banks(self) -> int:
        """Two where WG may start a mini-batch while the sums of the one before are being
        applied.
        """
        return 2 if self.delay else 1

    @property
    def fp_acc_width(self) -> int:
        """Bits of FP's exact accumulator: every product and the aligned bias."""
        assert self.weight is not None
        terms = self.group_shape[1] * self.kernel[0] * self.kernel[1]
        width = accumulator_width(self.weight.width, self.i_feature.width, terms)
        if self.bias is None:
            return width
        shift = self.weight.working.frac + self.i_feature.frac - self.bias.working.frac
        return max(width, self.bias.working.width + shift) + 1

    @property
    def eb_acc_width(self) -> int:
        assert self.weight is not None
        terms = self.group_shape[0] * self.kernel[0] * self.kernel[1]
        return accumulator_width(self.weight.width, self.o_error.width, terms)

    def wg_acc_width(self, batch_max: int) -> int:
        """Bits of one weight's exact gradient sum over a mini-batch of ``batch_max`` samples."""
        terms = self.o_shape[1] * self.o_shape[2] * batch_max
        return accumulator_width(self.o_error.width, self.i_feature.width, terms)

    def bias_acc_width(self, batch_max: int) -> int:
        terms = self.o_shape[1] * self.o_shape[2] * batch_max
        return self.o_error.width + (terms - 1).bit_length()
