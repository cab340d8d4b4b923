"""What a design costs on an FPGA: DSP slices, 36-Kbit block RAMs and LUTs, estimated from the
plan alone.

DSP slices follow from widths (a DSP48E1 multiplies 25 by 18 signed bits). Block RAMs follow from
the shape of every memory. LUTs are a rough linear model of adders, accumulators and control: good
to tell a design that fits from one that does not by a margin, to be replaced by a synthesis of
the design where one is made.

RTL: ``rtl/pipeline``. Test: ``tests/test_planner.py``.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from ..model.formats import Rounding, accumulator_width
from ..model.kinds import TABLES
from ..model.plan import LayerPlan, Plan
from ..model.relay import keep_factor, softmax_widths

__all__ = [
    "Resources",
    "dsp_per_product",
    "engine_resources",
    "layer_resources",
    "memory",
    "multiplier_dsp",
    "plan_resources",
    "update_lane_dsp",
    "update_memories",
]

# Widths and depths of a RAMB18 with one read and one write port; a RAMB36 is two of them.
RAMB18_SHAPES = ((36, 512), (18, 1024), (9, 2048), (4, 4096), (2, 8192), (1, 16384))
LUTRAM_DEPTH = 64  # below it four LUTs hold three bits (RAM64M) and a block RAM would stand empty
UPDATE_PRODUCTS = 4  # momentum twice, learning rate, weight decay: 32 by 17 bits each
UPDATE_LUT = 1200  # per lane: seven saturating or rounding steps of about 64 bits, pipelined
ENGINE_LUT = 400  # per engine: walk, window control, version handshake
REQUANTIZE_LUT = (
    3  # per accumulator bit and lane: shifter by constant is free, rounding, saturation
)
LOSS_LUT = {"cross_entropy": 900, "mse": 300, "huber": 400, "binary_cross_entropy": 900}
BOARD_LUT = 2500  # registers, packets, AXI
TABLE_WORDS = 1024  # of a table: the cross-entropies' powers, 17 bits, or an activation's segments
CONSTANT_WIDTH = 18  # signed bits of a constant factor: a slope, a reciprocal, a derivative
GUARD_WIDTH = 4  # bits of a table's entries beyond those of the result
DIVIDER_LUT = 200  # per lane that divides: two steps of a restoring division
RANDOM_LUT = 27 * 64  # per lane that draws: rounds of the cipher, two 32-bit words each


@dataclass(frozen=True)
class Resources:
    """Counts; ``bram36`` counts in halves, because a RAMB36 splits into two RAMB18."""

    dsp: int = 0
    bram36: float = 0.0
    lut: int = 0

    def __add__(self, other: "Resources") -> "Resources":
        return Resources(self.dsp + other.dsp, self.bram36 + other.bram36, self.lut + other.lut)


def dsp_per_product(width_a: int, width_b: int) -> int:
    """DSP slices of one signed product; the lower pieces of a wide factor lose the sign bit."""

    def pieces(width: int, port: int) -> int:
        return 1 if width <= port else 1 + -(-(width - port) // (port - 1))

    return min(pieces(width_a, 25) * pieces(width_b, 18), pieces(width_a, 18) * pieces(width_b, 25))


def multiplier_dsp(layer: LayerPlan) -> int:
    """DSP slices of one product in each engine of a trainable layer."""
    assert layer.weight is not None
    working, feature = layer.weight.working.width, layer.i_feature.width
    error = layer.o_error.width
    pairs = {"fp": (working, feature), "eb": (working, error), "wg": (error, feature)}
    return sum(dsp_per_product(*pairs[engine]) for engine in layer.engines)


def update_lane_dsp(layer: LayerPlan) -> int:
    """DSP slices of one lane of a trainable layer's update unit."""
    assert layer.weight is not None
    widest = max(layer.weight.master.width, layer.weight.gradient.width)
    return UPDATE_PRODUCTS * dsp_per_product(widest, 17)


def memory(width: int, depth: int) -> Resources:
    """One memory of ``depth`` words of ``width`` bits with a read and a write port."""
    if width == 0 or depth == 0:
        return Resources()
    if depth <= LUTRAM_DEPTH:
        return Resources(lut=-(-4 * width // 3))
    halves = min(-(-width // w) * -(-depth // d) for w, d in RAMB18_SHAPES)
    return Resources(bram36=halves / 2)


def engine_resources(layer: LayerPlan, plan: Plan) -> dict[str, Resources]:
    """Resources by part: ``fp``, ``eb``, ``wg`` and ``update``, as far as the layer has them."""
    if not layer.trainable:
        return _routing(layer)
    assert layer.weight is not None
    products = layer.word_size
    working = layer.weight.working.width
    feature, error = layer.i_feature.width, layer.o_error.width
    parts = {
        "fp": _sums(
            layer, layer.fp_acc_width, outputs=layer.o_lanes, width=feature, working=working
        )
        + memory(products * working, layer.weight_words * layer.fp_banks)
        + _window(_row_words(layer), layer.buffers.fp_rows, layer.hardware.i_lanes * feature),
    }
    parts["fp"] += Resources(lut=_aligning(layer, layer.o_lanes, layer.fp_acc_width))
    if layer.unfold:
        columns = layer.kernel[1] * layer.i_shape[0] * feature
        parts["fp"] += Resources(lut=columns + layer.b * feature * (layer.i_blocks - 1))
    if layer.bias:
        width = layer.o_lanes * layer.bias.working.width
        parts["fp"] += memory(width, layer.o_blocks * layer.fp_banks)
    if layer.backward:
        parts["eb"] = (
            _sums(layer, layer.eb_acc_width, outputs=layer.i_lanes, width=error, working=working)
            + Resources(lut=_aligning(layer, products, working + error))
            + memory(products * working, layer.weight_words * layer.eb_banks)
            + _window(
                layer.o_shape[2] * layer.o_blocks, layer.buffers.eb_rows, layer.o_lanes * error
            )
        )
    parts["wg"] = _gradient(layer, plan)
    parts["update"] = _update(layer)
    if plan.rounding is Rounding.STOCHASTIC:
        drawing = {"fp": layer.o_lanes, "eb": layer.i_lanes, "update": layer.update_lanes}
        for part in drawing.keys() & parts.keys():
            parts[part] += Resources(lut=drawing[part] * RANDOM_LUT)
    return parts


def layer_resources(layer: LayerPlan, plan: Plan) -> Resources:
    """Resources of all parts of one layer."""
    return sum(engine_resources(layer, plan).values(), Resources())


def plan_resources(plan: Plan) -> Resources:
    """Resources of the whole board design: layers, loss, registers and packets."""
    total = Resources(lut=BOARD_LUT + LOSS_LUT[plan.loss.kind])
    if plan.loss.kind in ("cross_entropy", "binary_cross_entropy"):
        total += memory(17, TABLE_WORDS)
        total += Resources(dsp=dsp_per_product(plan.loss.feature.width + 1, 17))
    if plan.loss.class_weights:
        width = max(plan.loss.class_weights).bit_length()
        total += memory(width, plan.loss.outputs + 1)
        total += Resources(dsp=dsp_per_product(plan.loss.probability_frac + 2, width + 1))
    total += memory(32 * plan.target_words, plan.loss.target_samples)
    return sum((layer_resources(layer, plan) for layer in plan.layers), total)


def _aligning(layer: LayerPlan, count: int, width: int) -> int:
    """LUTs of ``count`` shifts, where channels of weights have fractions of their own: two inputs
    of a multiplexer a LUT.
    """
    assert layer.weight is not None
    return count * (width + layer.weight.spread) * (len(set(layer.weight.coarser or (0,))) // 2)


def _row_words(layer: LayerPlan) -> int:
    """Words of a row in front of the engines."""
    return layer.hardware.i_shape[2] * layer.i_blocks


def _window(row_words: int, rows: int, width: int) -> Resources:
    return memory(width, rows * row_words)


def _sums(layer: LayerPlan, acc_width: int, *, outputs: int, width: int, working: int) -> Resources:
    """Products, their adder trees, one accumulator and requantisation per output."""
    products = layer.word_size
    lut = (
        ENGINE_LUT
        + (products - outputs) * (width + working + 2)
        + outputs * acc_width * (1 + REQUANTIZE_LUT)
    )
    return Resources(dsp=products * dsp_per_product(working, width), lut=lut)


def _gradient(layer: LayerPlan, plan: Plan) -> Resources:
    products = layer.word_size
    feature, error = layer.i_feature.width, layer.o_error.width
    weight_width = layer.wg_acc_width(plan.batch_max)
    bias_width = layer.bias_acc_width(plan.batch_max)
    total = Resources(
        dsp=products * dsp_per_product(error, feature),
        lut=ENGINE_LUT + products * weight_width + layer.o_lanes * bias_width,
    )
    for _ in range(layer.gradient_banks):
        total += memory(products * weight_width, layer.weight_words)
        if layer.bias:
            total += memory(layer.o_lanes * bias_width, layer.o_blocks)
    total += _window(_row_words(layer), layer.buffers.wg_rows, layer.hardware.i_lanes * feature)
    return total + memory(layer.o_lanes * error, layer.buffers.error_words)


def update_memories(layer: LayerPlan, lanes: int, chunks: int) -> Resources:
    """Master weights and momenta of a layer in ``chunks`` words of ``lanes`` parameters."""
    assert layer.weight is not None
    master, gradient = layer.weight.master.width, layer.weight.gradient.width
    return memory(lanes * master, chunks) + memory(lanes * gradient, chunks)


def _update(layer: LayerPlan) -> Resources:
    lanes = layer.update_lanes
    lane = Resources(dsp=lanes * update_lane_dsp(layer), lut=UPDATE_LUT * lanes)
    return lane + update_memories(layer, lanes, layer.sweep_chunks)


def _routing(layer: LayerPlan) -> dict[str, Resources]:
    """What a layer without weights takes: ``fp`` and, where errors pass, ``eb``."""
    cost: Callable[[LayerPlan], tuple[Resources, Resources]] = {
        "window": _pool,
        "relay": _relay,
        "join": _join,
        "fork": _fork,
    }[layer.pattern]
    fp, eb = cost(layer)
    return {"fp": fp, "eb": eb} if layer.backward else {"fp": fp}


def _pool(layer: LayerPlan) -> tuple[Resources, Resources]:
    """Pooling: windows, comparisons and indices, or sums and a multiplication by a reciprocal."""
    lanes, width, error = layer.lanes, layer.i_feature.width, layer.o_error.width
    o_words = layer.o_shape[2] * layer.o_blocks
    fp = _window(_row_words(layer), layer.buffers.fp_rows, lanes * width)
    if layer.kind == "avgpool2d":
        taps = math.prod(max(x.taps for x in walk.positions) for walk in layer.fp_walks)
        acc_width = accumulator_width(width, 1, taps)
        fp += _mean(lanes, acc_width)
        eb = _window(o_words, layer.buffers.eb_rows, lanes * error)
        return fp, eb + _mean(lanes, accumulator_width(error, 1, taps))
    index_width = (layer.kernel[0] * layer.kernel[1] - 1).bit_length()
    eb = (
        _window(o_words, layer.buffers.eb_rows, lanes * (error + index_width))
        + memory(lanes * index_width, layer.buffers.index_words)
        + Resources(lut=ENGINE_LUT + 3 * lanes * error)
    )
    return fp + Resources(lut=ENGINE_LUT + 2 * lanes * width), eb


def _mean(lanes: int, acc_width: int) -> Resources:
    dsp = lanes * dsp_per_product(acc_width, CONSTANT_WIDTH)
    return Resources(dsp, lut=ENGINE_LUT + lanes * acc_width * (1 + REQUANTIZE_LUT))


def _relay(layer: LayerPlan) -> tuple[Resources, Resources]:
    """Word by word: comparisons, constant factors or tables, and what waits for the error."""
    lanes, width, error = layer.lanes, layer.i_feature.width, layer.o_error.width
    fp, eb = Resources(lut=lanes * width), Resources(lut=lanes * error)
    waiting = 1
    if layer.kind == "leaky_relu":
        fp += _products(lanes, width, CONSTANT_WIDTH)
        eb += _products(lanes, error, CONSTANT_WIDTH)
    elif layer.kind == "softmax":
        # A lane has an exponential and a divider; its error two products, of wide differences.
        total, product = softmax_widths(layer)
        powers = Resources(bram36=lanes * memory(17, TABLE_WORDS).bram36, lut=lanes * DIVIDER_LUT)
        fp += powers + _products(lanes, width, CONSTANT_WIDTH)
        multipliers = dsp_per_product(layer.o_feature.width, error)
        multipliers += dsp_per_product(layer.o_feature.width, total + 1)
        eb += Resources(lanes * multipliers, lut=lanes * product * REQUANTIZE_LUT)
        waiting = layer.o_feature.width
    elif layer.kind == "dropout":
        factor = 1 + keep_factor(layer.drop, Rounding.HALF_EVEN).bit_length()
        fp += _products(lanes, width, factor) + Resources(lut=lanes * RANDOM_LUT)
        eb += _products(lanes, error, factor)
    elif layer.kind == "affine":
        factor = 1 + max(abs(x) for x in layer.factors).bit_length()
        offset = 1 + max(abs(x) for x in layer.offsets).bit_length()
        rom = memory(lanes * factor, layer.i_blocks)
        fp += _products(lanes, width, factor) + rom + memory(lanes * offset, layer.i_blocks)
        eb += _products(lanes, error, factor) + rom
        waiting = 0
    elif layer.kind in TABLES:
        # Entries are a base and a rise; a lane looks up a word of its own.
        entries = [layer.o_feature.width + GUARD_WIDTH, CONSTANT_WIDTH + GUARD_WIDTH]
        value, slope = (lanes * memory(2 * entry, TABLE_WORDS).bram36 for entry in entries)
        fp += Resources(bram36=value) + _products(lanes, CONSTANT_WIDTH, CONSTANT_WIDTH)
        eb += Resources(bram36=slope) + _products(lanes, CONSTANT_WIDTH, CONSTANT_WIDTH)
        eb += _products(lanes, error, CONSTANT_WIDTH)
        waiting = min(width, CONSTANT_WIDTH)
    return fp, eb + memory(lanes * waiting, layer.buffers.index_words)


def _products(lanes: int, width: int, factor: int) -> Resources:
    """A multiplier and a requantisation for each lane."""
    lut = lanes * (width + factor) * REQUANTIZE_LUT
    return Resources(lanes * dsp_per_product(width, factor), lut=lut)


def _join(layer: LayerPlan) -> tuple[Resources, Resources]:
    lanes, width = layer.lanes, layer.i_feature.width
    fp = _meeting(layer, width) if layer.kind == "add" else _queues(layer, width)
    return fp, Resources(lut=lanes * layer.o_error.width)


def _fork(layer: LayerPlan) -> tuple[Resources, Resources]:
    return Resources(lut=2 * layer.fan), _meeting(layer, layer.o_error.width)


def _queues(layer: LayerPlan, width: int) -> Resources:
    """FIFOs of words that wait for others."""
    queues = (memory(layer.lanes * width, depth) for depth in layer.buffers.join_words)
    return sum(queues, Resources())


def _meeting(layer: LayerPlan, width: int) -> Resources:
    """The FIFOs, and the sum of their words requantised."""
    count = len(layer.join_blocks)
    acc_width = accumulator_width(width, 1, max(1, count))
    lut = layer.lanes * acc_width * (max(0, count - 1) + REQUANTIZE_LUT)
    return _queues(layer, width) + Resources(lut=lut)
