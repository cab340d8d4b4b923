"""A board as a device, simulated or real, behind a transport that moves registers and words.

Registers and packets: ``model/registers.py``. RTL: ``rtl/board.py``. Test:
``tests/test_device.py``.
"""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..model.errors import DeviceError, InputError
from ..model.hyper import Hyper
from ..model.plan import LayerPlan, Plan
from ..model.registers import (
    HYPER_REGISTERS,
    MAGIC,
    Command,
    ErrorBit,
    Memory,
    PacketKind,
    register_map,
)
from . import packets
from .device import (
    Parameters,
    Progress,
    Transport,
    check_first_sample,
    check_name,
    check_parameter,
    check_parameters,
    check_samples,
    check_targets,
)
from .quantize import parameter_shapes

__all__ = ["BoardDevice"]

POLL_CYCLES = 256
IDLE_CYCLES = 100_000
EXCHANGE_WORDS = 1 << 24  # words in one exchange: bounds the memory of a long segment

_ERROR_TEXTS = {
    ErrorBit.PACKET_KIND: "a packet of unknown kind or of the other mode",
    ErrorBit.PACKET_LENGTH: "a packet that ended early or late",
    ErrorBit.LABEL: "a label that is no output, or a target outside 0 to 1",
    ErrorBit.LAYER: "a layer or memory that does not exist",
    ErrorBit.BUSY: "a segment command while the board was busy",
}


class BoardDevice:
    """A ``Device`` that drives one board of ``plan`` through ``transport``.

    Raises
    ------
    DeviceError
        At once, when the board was not generated from ``plan``.
    """

    def __init__(self, plan: Plan, transport: Transport) -> None:
        self.plan = plan
        self.transport = transport
        self.frozen: dict[str, Tensor] = {}
        self.registers = {register.name: register for register in register_map(plan)}
        self._check_identity()

    def _check_identity(self) -> None:
        magic = self.read_register("magic")
        if magic != MAGIC:
            raise DeviceError(
                f"board must answer 0x{MAGIC:08x} at address 0, not 0x{magic:08x}: it holds no "
                "design of gradweave"
            )
        found = "".join(f"{self.read_register(f'identity_{n}'):08x}" for n in (3, 2, 1, 0))
        if found != self.plan.identity:
            raise DeviceError(
                f"board must hold design {self.plan.identity} ({self.plan.name}), not {found}: "
                "load the design that the "
                "plan was made for"
            )

    def read_register(self, name: str) -> int:
        """Return a 32-bit register by its name in ``register_map``."""
        return self.transport.read(self._address(name))

    def write_register(self, name: str, value: int) -> None:
        """Write a 32-bit register by its name in ``register_map``."""
        address = self._address(name)
        if self.registers[name].access != "rw":
            raise InputError(f"register {name} is read-only")
        self.transport.write(address, value)

    def _address(self, name: str) -> int:
        if name not in self.registers:
            raise InputError(f"register must be one of {list(self.registers)}, not {name!r}")
        return self.registers[name].address

    def write_parameters(
        self, masters: Mapping[str, Tensor], momenta: Mapping[str, Tensor] | None = None
    ) -> None:
        checked = check_parameters(self.plan, masters, "masters")
        zeros = {name: torch.zeros_like(tensor) for name, tensor in checked.items()}
        moving = zeros if momenta is None else check_parameters(self.plan, momenta, "momenta")
        sent = []
        for number, layer in enumerate(self.plan.trainable):
            for memory, tensors in ((Memory.MASTER, checked), (Memory.MOMENTUM, moving)):
                sent.append(packets.pack_write(number, memory, _packed(layer, tensors)))
        self._write(sent)

    def _write(self, sent: list[tuple[packets.Words, npt.NDArray[np.bool_]]]) -> None:
        words, lasts = (np.concatenate(parts) for parts in zip(*sent, strict=True))
        self._exchange(words, lasts, 0)
        # A read is answered behind the writes, so its answer says that all of them are done.
        self._read_memory(len(self.plan.trainable) - 1, Memory.MOMENTUM)
        self._check_errors()

    def read_parameters(self) -> tuple[Parameters, Parameters]:
        memories: tuple[Parameters, Parameters] = ({}, {})
        for number in range(len(self.plan.trainable)):
            for memory, found in zip((Memory.MASTER, Memory.MOMENTUM), memories, strict=True):
                found |= self._read_layer(number, memory)
        self._check_errors()
        return memories

    def peek(self, name: str) -> Tensor:
        return self._read_layer(self._number_of(name), Memory.MASTER)[name]

    def poke(self, name: str, values: Tensor) -> None:
        checked = check_parameter(self.plan, name, values)
        number = self._number_of(name)
        tensors = self._read_layer(number, Memory.MASTER) | {name: checked}
        layer = self.plan.trainable[number]
        self._write([packets.pack_write(number, Memory.MASTER, _packed(layer, tensors))])

    def _number_of(self, name: str) -> int:
        """Return the number of the trainable layer that has the tensor ``name``."""
        layer, _, _ = check_name(self.plan, name).rpartition(".")
        return [trainable.name for trainable in self.plan.trainable].index(layer)

    def _read_layer(self, number: int, memory: Memory) -> Parameters:
        layer = self.plan.trainable[number]
        weight, bias = packets.unpack_parameters(layer, self._read_memory(number, memory))
        tensor = torch.from_numpy(weight.astype(np.int64))
        shape = parameter_shapes(self.plan)[f"{layer.name}.weight"]
        found = {f"{layer.name}.weight": tensor.reshape(shape)}
        if bias is not None:
            found[f"{layer.name}.bias"] = torch.from_numpy(bias.astype(np.int64))
        return found

    def _read_memory(self, number: int, memory: Memory) -> packets.Int32:
        layer = self.plan.trainable[number]
        words, lasts = packets.pack_read(number, memory)
        answer = self._exchange(words, lasts, 1 + layer.sweep_chunks * layer.update_lanes)
        return packets.unpack_read(number, memory, answer)

    def train(
        self,
        samples: Tensor,
        targets: Tensor,
        hyper: Hyper,
        progress: Progress | None = None,
        *,
        first_sample: int = 0,
    ) -> Tensor:
        samples = check_samples(self.plan, samples, hyper.batch)
        targets = check_targets(self.plan, targets, len(samples))
        for name in HYPER_REGISTERS:
            self.write_register(name, int(getattr(hyper, name)))
        self.write_register("first_sample", check_first_sample(first_sample))
        self._start(Command.TRAIN)
        logits = self._run(PacketKind.TRAIN, samples, targets, progress, hyper.batch)
        self._await_versions(len(samples) // hyper.batch)
        self._check_errors()
        return logits

    def infer(self, samples: Tensor, progress: Progress | None = None) -> Tensor:
        samples = check_samples(self.plan, samples)
        self._start(Command.INFER)
        logits = self._run(PacketKind.INFER, samples, None, progress)
        self._check_errors()
        return logits

    def _start(self, command: Command) -> None:
        self.write_register("command", int(command))
        longest = max(layer.sweep_chunks * layer.update_lanes for layer in self.plan.trainable)
        for _ in range(2 + (IDLE_CYCLES + 4 * longest) // POLL_CYCLES):
            if not self.read_register("status") & 1:
                return
            self.transport.step(POLL_CYCLES)
        raise DeviceError(
            "board did not prepare its segment in time (status bit 0 stays set): reset the device"
        )

    def _run(
        self,
        kind: PacketKind,
        samples: Tensor,
        targets: Tensor | None,
        progress: Progress | None,
        batch: int = 1,
    ) -> Tensor:
        """Stream the samples through the board, in as few exchanges as memory allows, and return
        their logits.
        """
        size = packets.answer_words(self.plan)
        most = EXCHANGE_WORDS // packets.packet_words(self.plan, kind)
        most = max(batch, most // batch * batch)
        logits = []
        for start in range(0, len(samples), most):
            part = slice(start, start + most)
            pixels = samples[part].to(torch.int16).numpy()
            words, lasts = packets.pack_samples(
                self.plan, pixels, None if targets is None else targets[part].numpy()
            )
            received = _in_samples(progress, start, size)
            answer = self._exchange(words, lasts, len(pixels) * size, received)
            logits.append(
                torch.from_numpy(packets.unpack_logits(self.plan, answer, kind).astype(np.int64))
            )
        return torch.cat(logits)

    def _exchange(
        self,
        words: packets.Words,
        lasts: npt.NDArray[np.bool_],
        expect: int,
        progress: Progress | None = None,
    ) -> packets.Words:
        try:
            return self.transport.exchange(words, lasts, expect, progress)
        except DeviceError as error:
            found = self._error_texts()
            if not found:
                raise
            raise DeviceError(f"{error}; board reports {found}") from error

    def _await_versions(self, count: int) -> None:
        """Wait until every layer has finished its update ``count``, as long as some layer still
        gets on.
        """
        idle = max(layer.sweep_chunks for layer in self.plan.trainable) + IDLE_CYCLES
        names = [f"{layer.name}.version" for layer in self.plan.trainable]
        seen: list[int] = []
        waited = 0
        while True:
            versions = [self.read_register(name) for name in names]
            if all(version == count for version in versions):
                return
            waited = 0 if versions != seen else waited + POLL_CYCLES
            if waited > idle:
                behind = {
                    name: version
                    for name, version in zip(names, versions, strict=True)
                    if version != count
                }
                raise DeviceError(
                    f"board must finish {count} updates, but stands at {behind}: reset the device"
                )
            seen = versions
            self.transport.step(POLL_CYCLES)

    def _error_texts(self) -> str:
        bits = self.read_register("errors")
        return ", ".join(
            f"{bit.name} ({text})" for bit, text in _ERROR_TEXTS.items() if bits >> bit & 1
        )

    def _check_errors(self) -> None:
        found = self._error_texts()
        if found:
            raise DeviceError(
                f"board reports {found}: reset the device and write its parameters again"
            )

    def counters(self) -> dict[str, int]:
        """Return every register by name; ``cycles`` has all its 64 bits."""
        found = {
            name: self.transport.read(register.address) for name, register in self.registers.items()
        }
        found["cycles"] += found["cycles_high"] << 32
        return found

    def reset(self) -> None:
        self.transport.reset()

    def close(self) -> None:
        self.transport.close()


def _packed(layer: LayerPlan, tensors: Parameters) -> npt.NDArray[np.integer]:
    bias = tensors[f"{layer.name}.bias"].numpy() if layer.bias else None
    return packets.pack_parameters(layer, tensors[f"{layer.name}.weight"].numpy(), bias)


def _in_samples(progress: Progress | None, start: int, words_per_sample: int) -> Progress | None:
    if progress is None:
        return None
    return lambda words: progress(start + words // words_per_sample)
