"""Packets: whole segments of samples to and from 32-bit stream words, in one numpy expression each.

The layout is declared in ``model/registers.py`` and, for parameters, in ``docs/architecture.md``.
RTL: ``rtl/board.py``. Test: ``tests/test_packets.py``.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from ..model.errors import DeviceError
from ..model.plan import LayerPlan, Plan
from ..model.registers import Memory, PacketKind, header

__all__ = [
    "Words",
    "answer_words",
    "pack_parameters",
    "pack_read",
    "pack_samples",
    "pack_write",
    "packet_words",
    "pad_outputs",
    "unpack_logits",
    "unpack_parameters",
    "unpack_read",
]

Words = npt.NDArray[np.uint32]
Lasts = npt.NDArray[np.bool_]
Int16 = npt.NDArray[np.int16]
Int32 = npt.NDArray[np.int32]


def packet_words(plan: Plan, kind: PacketKind) -> int:
    """Words of one sample's packet to the board, header included."""
    channels, height, width = plan.input_shape
    targets = plan.target_words if kind is PacketKind.TRAIN else 0
    return 1 + targets + _pairs(channels * height * width)


def answer_words(plan: Plan) -> int:
    """Words of one sample's logits from the board, header included."""
    return 1 + _pairs(plan.loss.outputs)


def _pairs(values: int) -> int:
    return -(-values // 2)


def pack_samples(
    plan: Plan, samples: Int16, targets: npt.NDArray[np.integer] | None
) -> tuple[Words, Lasts]:
    """Return the TRAIN packets (or INFER ones, when ``targets`` is None) of all samples, and where
    each ends.

    Parameters
    ----------
    samples : int16 [N, C, H, W]
    targets : labels [N], or int16 values [N, outputs] where the loss takes values
    """
    kind = PacketKind.INFER if targets is None else PacketKind.TRAIN
    count, length = len(samples), packet_words(plan, kind)
    packets = np.zeros((count, length), "<u4")
    packets[:, 0] = header(kind)
    first = 1
    if targets is not None:
        first += plan.target_words
        if plan.loss.labels:
            packets[:, 1] = targets
        else:
            _halves(packets, 1, first)[:, : plan.loss.outputs] = targets
    pixels = samples.transpose(0, 2, 3, 1).reshape(count, -1)
    _halves(packets, first, length)[:, : pixels.shape[1]] = pixels
    lasts = np.zeros((count, length), np.bool_)
    lasts[:, -1] = True
    return packets.reshape(-1), lasts.reshape(-1)


def _halves(packets: Words, start: int, stop: int) -> Int16:
    """Columns ``start`` to ``stop`` of rows of words as a view of 16-bit integers, low half
    first.
    """
    return packets.view("<i2")[:, 2 * start : 2 * stop]


def unpack_logits(plan: Plan, words: Words, kind: PacketKind) -> Int16:
    """Return the logits int16 [N, outputs] of N answers of ``kind``.

    Raises
    ------
    DeviceError
        When an answer has another header.
    """
    packets = np.ascontiguousarray(words, "<u4").reshape(-1, answer_words(plan))
    _check_headers(packets[:, 0], header(kind))
    return _halves(packets, 1, packets.shape[1])[:, : plan.loss.outputs].copy()


def _check_headers(found: Words, expected: int) -> None:
    wrong = np.flatnonzero(found != expected)
    if len(wrong):
        first = int(wrong[0])
        raise DeviceError(
            f"answer {first} of {len(found)} must start with header 0x{expected:08x}, not "
            f"0x{int(found[first]):08x}: "
            "reset the device"
        )


def pack_parameters(
    layer: LayerPlan, weight: npt.NDArray[np.integer], bias: npt.NDArray[np.integer] | None
) -> npt.NDArray[np.integer]:
    """Return ``sweep_chunks * update_lanes`` parameters in the order in which the update unit
    handles them, with zeros for pad lanes.

    Parameters
    ----------
    weight : integers in torch's shape, [Co, Ci/groups, Kh, Kw], [out, in] or, of a scale, [C]
    bias : integers [Co], None where the layer has none
    """
    lanes, kernel = layer.o_lanes, layer.hardware.kernel
    if layer.unfold:
        weight = weight.transpose(0, 3, 1, 2)
    outputs, inputs = layer.hardware.group_shape
    grouped = weight.reshape(layer.groups, outputs, inputs, *kernel)
    pads = ((0, 0), (0, -outputs % layer.a), (0, -inputs % layer.b), (0, 0), (0, 0))
    blocks = np.pad(grouped, pads).reshape(layer.o_blocks, lanes, layer.fp_inner, layer.b, *kernel)
    weights = blocks.transpose(0, 4, 5, 2, 1, 3).reshape(-1)
    if layer.bias is None or bias is None:
        return weights
    biases = np.zeros((layer.o_blocks, _bias_lanes(layer)), weights.dtype)
    biases[:, :lanes] = pad_outputs(layer, bias)
    return np.concatenate([weights, biases.reshape(-1)])


def pad_outputs(layer: LayerPlan, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return one value an output channel as [o_blocks, o_lanes], zero in pad lanes."""
    outputs = layer.group_shape[0]
    grouped = values.reshape(layer.groups, outputs)
    return np.pad(grouped, ((0, 0), (0, -outputs % layer.a))).reshape(-1, layer.o_lanes)


def _bias_lanes(layer: LayerPlan) -> int:
    """Places of one output block's biases, padding included."""
    return -(-layer.o_lanes // layer.update_lanes) * layer.update_lanes


def unpack_parameters(layer: LayerPlan, values: Int32) -> tuple[Int32, Int32 | None]:
    """Return weight [Co, Ci/groups, Kh, Kw] and bias [Co]: the inverse of ``pack_parameters``."""
    lanes, inner, seen = layer.o_lanes, layer.fp_inner, layer.hardware
    count = layer.weight_words * layer.word_size
    blocks = values[:count].reshape(layer.o_blocks, *seen.kernel, inner, lanes, layer.b)
    outputs, inputs = seen.group_shape
    ordered = blocks.transpose(0, 4, 3, 5, 1, 2)
    grouped = ordered.reshape(layer.groups, -1, inner * layer.b, *seen.kernel)
    shape = (layer.o_shape[0], inputs, *seen.kernel)
    weight = grouped[:, :outputs, :inputs].reshape(shape)
    if layer.unfold:
        columns = weight.reshape(-1, layer.kernel[1], layer.i_shape[0], layer.kernel[0])
        weight = columns.transpose(0, 2, 3, 1)
    if layer.bias is None:
        return weight, None
    blocks = values[count:].reshape(layer.o_blocks, _bias_lanes(layer))[:, :lanes]
    return weight, blocks.reshape(layer.groups, -1)[:, :outputs].reshape(-1)


def pack_write(number: int, memory: Memory, values: npt.NDArray[np.integer]) -> tuple[Words, Lasts]:
    """Return the WRITE packet for the trainable layer ``number``."""
    words = np.empty(len(values) + 1, np.uint32)
    words[0] = header(PacketKind.WRITE, memory, number)
    words[1:] = values.astype(np.int32).view(np.uint32)
    lasts = np.zeros(len(words), np.bool_)
    lasts[-1] = True
    return words, lasts


def pack_read(number: int, memory: Memory) -> tuple[Words, Lasts]:
    """Return the READ packet for the trainable layer ``number``."""
    return np.array([header(PacketKind.READ, memory, number)], np.uint32), np.array([True])


def unpack_read(number: int, memory: Memory, words: Words) -> Int32:
    """Return the parameters of a READ answer.

    Raises
    ------
    DeviceError
        When the answer has another header.
    """
    _check_headers(words[:1], header(PacketKind.READ, memory, number))
    return words[1:].astype(np.uint32).view(np.int32)
