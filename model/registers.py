"""The board's register map and packet layout, declared once.

From this table come the RTL (``rtl/board.py``), the host accessors (``host/device.py``) and the
documentation. A leaf of the standard library. Test: ``tests/test_registers.py``.

Packets are runs of 32-bit words on AXI4-Stream that end with ``last``. Their first word is a
header: bits 31..28 the kind, bits 15..8 the memory, bits 7..0 the trainable layer's number.
Features and targets travel as 16-bit two's complement, two to a word, low half first, padded with
zero to a whole word; features pixel by pixel in raster order, channels innermost. A class label
takes one word; where the plan ignores a label, the number of outputs stands for it. Parameters
travel as 32-bit words.

| packet to the board | words after the header |
| --- | --- |
| ``TRAIN`` | target, features |
| ``INFER`` | features |
| ``WRITE`` | ``sweep_chunks * update_lanes`` parameters of one memory of one layer |
| ``READ`` | none; answered by a ``READ`` packet with the parameters |

| packet from the board | words after the header |
| --- | --- |
| ``TRAIN``, ``INFER`` | the sample's logits, in order of samples |
| ``READ`` | ``sweep_chunks * update_lanes`` parameters |
"""

from dataclasses import dataclass
from enum import IntEnum

from .kinds import KINDS
from .plan import LayerPlan, Plan

__all__ = [
    "ENGINE_COUNTERS",
    "HYPER_REGISTERS",
    "MAGIC",
    "Command",
    "ErrorBit",
    "Memory",
    "PacketKind",
    "Register",
    "header",
    "register_map",
    "saturating_tensors",
]

MAGIC = 0x47574156  # "GWAV"


class PacketKind(IntEnum):
    """Bits 31..28 of a packet's header."""

    TRAIN = 1
    INFER = 2
    WRITE = 3
    READ = 4


class Memory(IntEnum):
    """Which of an update unit's memories a WRITE or READ packet moves."""

    MASTER = 0
    MOMENTUM = 1


class Command(IntEnum):
    """Values for the ``command`` register. Both segment commands need a drained board and clear all
    counters.

    ``RESET`` drops every sample in flight and empties all streams; parameters stay as they are.
    """

    TRAIN = 1
    INFER = 2
    RESET = 3


class ErrorBit(IntEnum):
    """Sticky bits of the ``errors`` register, cleared by a segment command and by RESET."""

    PACKET_KIND = 0  # a packet of unknown kind, or a sample of the other mode
    PACKET_LENGTH = 1  # last came early or late
    LABEL = 2  # a label that is neither a class nor ignored, or a target outside its 0 to 1
    LAYER = 3  # a WRITE or READ of a layer or memory that does not exist
    BUSY = 4  # a segment command while the board was not drained


@dataclass(frozen=True)
class Register:
    """A 32-bit register at byte ``address``; ``access`` is ``ro`` or ``rw``; 64-bit counters are
    two, low half first.
    """

    name: str
    address: int
    access: str
    text: str


_FIXED = [
    ("magic", "ro", f"always 0x{MAGIC:08x}"),
    ("identity_0", "ro", "the design's identity, bits 31..0"),
    ("identity_1", "ro", "the design's identity, bits 63..32"),
    ("identity_2", "ro", "the design's identity, bits 95..64"),
    ("identity_3", "ro", "the design's identity, bits 127..96"),
    (
        "command",
        "rw",
        "write 1 to start a training segment, 2 an inference segment, 3 to reset; "
        "reads as the running one",
    ),
    ("status", "ro", "bit 0: a reload or an update runs, or samples wait for theirs"),
    ("errors", "ro", "sticky error bits, see ErrorBit"),
    ("batch", "rw", "samples per mini-batch, 1 to batch_max"),
    ("lr_mantissa", "rw", "learning rate = lr_mantissa * 2**-lr_shift; 16 bits"),
    ("lr_shift", "rw", "6 bits"),
    ("momentum", "rw", "momentum = momentum * 2**-16; 16 bits"),
    ("nesterov", "rw", "bit 0: Nesterov's form of the step"),
    ("decay_mantissa", "rw", "weight decay = decay_mantissa * 2**-decay_shift; 16 bits"),
    ("decay_shift", "rw", "6 bits"),
    (
        "first_sample",
        "rw",
        "number, in the whole training, of the next training segment's first sample, modulo 2**32: "
        "random bits go on by it",
    ),
    ("samples", "ro", "samples whose logits have left the loss in this segment"),
    ("cycles", "ro", "cycles since the segment began, low half; reading it latches the high half"),
    ("cycles_high", "ro", "cycles since the segment began, latched high half"),
    (
        "first_cycle",
        "ro",
        "value of cycles (low half) when the segment's first logits were complete",
    ),
    (
        "last_cycle",
        "ro",
        "value of cycles (low half) when the segment's latest logits were complete",
    ),
]

# What a training segment is set up with, beside the command: fields of ``Hyper`` by their names.
HYPER_REGISTERS = (
    "batch",
    "lr_mantissa",
    "lr_shift",
    "momentum",
    "nesterov",
    "decay_mantissa",
    "decay_shift",
)

ENGINE_COUNTERS = {
    "busy": "cycles in which the engine issued a beat to its multipliers",
    "starved": "cycles in which it waited for features or errors",
    "blocked": "cycles in which it waited for room behind it",
    "waiting": "cycles in which it waited for a weight version or a gradient bank",
}


def header(kind: PacketKind, memory: int = 0, layer: int = 0) -> int:
    """The first word of a packet."""
    return int(kind) << 28 | int(memory) << 8 | layer


def register_map(plan: Plan) -> list[Register]:
    """All registers of a design: the fixed ones, then per layer its version, engine counters and
    saturation counts.
    """
    rows = list(_FIXED)
    for layer in plan.layers:
        if layer.trainable:
            rows.append((f"{layer.name}.version", "ro", "weight versions finished in this segment"))
            for engine in layer.engines:
                for counter, text in ENGINE_COUNTERS.items():
                    rows.append(
                        (f"{layer.name}.{engine}.{counter}", "ro", f"{text} (32 bits, wraps)")
                    )
        for tensor in saturating_tensors(layer):
            rows.append(
                (f"{layer.name}.{tensor}.saturated", "ro", "values clipped to the tensor's format")
            )
    rows.append(("loss.error.saturated", "ro", "values clipped to the tensor's format"))
    return [Register(name, 4 * n, access, text) for n, (name, access, text) in enumerate(rows)]


def saturating_tensors(layer: LayerPlan) -> tuple[str, ...]:
    """Tensors of a layer whose clipped values are counted.

    ``weight`` and ``bias`` count the parameters of every update for which any intermediate value
    was clipped.
    """
    tensors = tuple(
        tensor for tensor in KINDS[layer.kind].saturates if tensor != "i_error" or layer.backward
    )
    if not layer.trainable:
        return tensors
    return (*tensors, "weight", *(("bias",) if layer.bias else ()))
