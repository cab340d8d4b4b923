"""What a device is, and the checks that every device makes before it takes data.

Implemented by ``host/golden_device.py`` and ``host/board_device.py``. Test:
``tests/test_device.py``.
"""

from collections.abc import Callable, Mapping
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..model.errors import InputError
from ..model.formats import Format
from ..model.hyper import Hyper
from ..model.plan import Plan
from .quantize import parameter_plans, parameter_shapes

__all__ = [
    "Device",
    "Parameters",
    "Progress",
    "Transport",
    "check_first_sample",
    "check_name",
    "check_parameter",
    "check_parameters",
    "check_samples",
    "check_targets",
]

Parameters = dict[str, Tensor]
Progress = Callable[[int], None]

_INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)


@runtime_checkable
class Device(Protocol):
    """A design that trains: golden model, simulated board or real board, all with the same bits."""

    plan: Plan
    frozen: dict[str, Tensor]  # of the torch model's state, what is not trained

    def write_parameters(
        self, masters: Mapping[str, Tensor], momenta: Mapping[str, Tensor] | None = None
    ) -> None:
        """Load integer master weights and momenta (zero when None), by their key in
        ``state_dict()``.
        """

    def read_parameters(self) -> tuple[Parameters, Parameters]:
        """Return master weights and momenta, int64 in torch's shapes."""

    def peek(self, name: str) -> Tensor:
        """Return one tensor of master weights, int64 in torch's shape, by its key in
        ``state_dict()`` such as ``conv1.weight``; raises InputError for another name.
        """

    def poke(self, name: str, values: Tensor) -> None:
        """Replace one tensor of master weights and nothing else, between two segments; raises
        InputError for another name, dtype or shape, or a value outside the master format.
        """

    def train(
        self,
        samples: Tensor,
        targets: Tensor,
        hyper: Hyper,
        progress: Progress | None = None,
        *,
        first_sample: int = 0,
    ) -> Tensor:
        """Run one training segment and return its logits.

        Parameters
        ----------
        samples : integers [N, C, H, W] in the input's format; N is a multiple of ``hyper.batch``
        targets : labels [N], or values [N, outputs] in the logits' format
        hyper : the run-time registers
        progress : called with the number of samples done so far
        first_sample : number of the first sample in the whole training, by which random bits go on;
            they repeat after 2**32 samples

        Returns
        -------
        int64 [N, outputs] in the logits' format, each by the weights that its forward pass used.
        """

    def infer(self, samples: Tensor, progress: Progress | None = None) -> Tensor:
        """Run an inference segment: logits int64 [N, outputs], and no weight changes."""

    def counters(self) -> dict[str, int]:
        """Return the registers by name, such as ``cycles`` and ``conv1.o_feature.saturated``, of
        the last segment.
        """

    def reset(self) -> None:
        """Leave any state in which an interrupted call left the device; parameters must be written
        again.
        """

    def close(self) -> None:
        """Free the device; it cannot be used afterwards."""


class Transport(Protocol):
    """Moves registers and stream words to and from one board."""

    def read(self, address: int) -> int:
        """Return the 32-bit register at a byte address."""

    def write(self, address: int, value: int) -> None:
        """Write the 32-bit register at a byte address."""

    def exchange(
        self,
        words: npt.NDArray[np.uint32],
        lasts: npt.NDArray[np.bool_],
        expect: int,
        progress: Progress | None = None,
    ) -> npt.NDArray[np.uint32]:
        """Send all words while receiving ``expect`` of them; ``progress`` is called with the number
        received.

        Raises
        ------
        DeviceError
            When nothing moves for too long.
        """

    def step(self, cycles: int) -> None:
        """Let at least that many clock cycles pass."""

    def reset(self) -> None:
        """Reset the board as at power-on."""

    def close(self) -> None:
        """Free the board."""


def check_samples(plan: Plan, samples: Tensor, multiple: int = 1) -> Tensor:
    """Return ``samples`` as a tensor of integers [N, C, H, W] whose N is a positive multiple of
    ``multiple``.

    Raises
    ------
    InputError
        For another type, dtype or shape, or a value outside the input's format.
    """
    values = _integers("samples", samples)
    if values.ndim != 4 or tuple(values.shape[1:]) != plan.input_shape:
        shape = ", ".join(str(size) for size in plan.input_shape)
        raise InputError(f"samples must have shape [N, {shape}], not {list(values.shape)}")
    if len(values) == 0:
        raise InputError("samples must be at least one sample, not 0")
    if len(values) % multiple:
        raise InputError(
            f"samples must be a multiple of the mini-batch of {multiple} samples, not {len(values)}"
        )
    _check_range("samples", values, plan.layers[0].i_feature)
    return values


def check_first_sample(number: int) -> int:
    """Return the number of a sample modulo 2**32.

    Raises
    ------
    InputError
        For what is no integer, or below 0.
    """
    if type(number) is not int or number < 0:
        raise InputError(f"first_sample must be an integer of at least 0, not {number!r}")
    return number % (1 << 32)


def check_targets(plan: Plan, targets: Tensor, count: int) -> Tensor:
    """Return ``targets`` as a tensor of integers, labels [N] or values [N, outputs], for ``count``
    samples; label ``outputs`` is the ignored one, where the plan has one.

    Raises
    ------
    InputError
        For another type, dtype or shape, a label that is no output, or a value outside the logits'
        format or, under binary cross-entropy, outside 0 to 1.
    """
    values = _integers("targets", targets)
    outputs = plan.loss.outputs
    low, high = plan.loss.target_range
    shape = (count,) if plan.loss.labels else (count, outputs)
    if tuple(values.shape) != shape:
        raise InputError(f"targets must have shape {list(shape)}, not {list(values.shape)}")
    if not plan.loss.labels:
        _check_range("targets", values, plan.loss.feature)
    wrong = torch.nonzero((values < low) | (values > high))
    if len(wrong):
        first = wrong[0].tolist()
        found = int(values[tuple(first)])
        if not plan.loss.labels:
            raise InputError(
                f"targets must be {low} to {high}, that is 0 to 1, not {found} at {first}"
            )
        ignored = f" or {outputs} for ignored samples" if high == outputs else ""
        raise InputError(
            f"targets must be labels from 0 to {outputs - 1}{ignored}, not {found} at index "
            f"{first[0]}"
        )
    return values


def check_parameters(plan: Plan, parameters: Mapping[str, Tensor], what: str) -> Parameters:
    """Return ``parameters`` as int64; ``what`` is ``masters`` or ``momenta`` and chooses the
    format.

    Raises
    ------
    InputError
        For a missing or unknown tensor, another dtype or shape, or a value outside its format.
    """
    shapes, plans = parameter_shapes(plan), parameter_plans(plan)
    if set(parameters) != set(shapes):
        raise InputError(f"{what} must have the tensors {sorted(shapes)}, not {sorted(parameters)}")
    checked = {}
    for name, shape in shapes.items():
        chosen = plans[name].master if what == "masters" else plans[name].gradient
        checked[name] = _tensor(f"{what}[{name!r}]", parameters[name], shape, chosen)
    return checked


def check_name(plan: Plan, name: str) -> str:
    """Return ``name`` when it is a trained tensor of the plan.

    Raises
    ------
    InputError
        For another name; the message lists the tensors there are.
    """
    names = list(parameter_shapes(plan))
    if name not in names:
        raise InputError(f"name must be one of {names}, not {name!r}")
    return name


def check_parameter(plan: Plan, name: str, values: Tensor) -> Tensor:
    """Return the master weights ``values`` of one tensor as int64.

    Raises
    ------
    InputError
        For an unknown name, another dtype or shape, or a value outside the master format.
    """
    name = check_name(plan, name)
    return _tensor(name, values, parameter_shapes(plan)[name], parameter_plans(plan)[name].master)


def _tensor(label: str, values: Tensor, shape: tuple[int, ...], chosen: Format) -> Tensor:
    integers = _integers(label, values)
    if tuple(integers.shape) != shape:
        raise InputError(f"{label} must have shape {list(shape)}, not {list(integers.shape)}")
    _check_range(label, integers, chosen)
    return integers.long()


def _integers(name: str, values: Tensor) -> Tensor:
    tensor = torch.from_numpy(values) if isinstance(values, np.ndarray) else values
    if not isinstance(tensor, Tensor):
        raise InputError(f"{name} must be a torch tensor, not {type(values).__name__}")
    if tensor.dtype not in _INTEGERS:
        raise InputError(
            f"{name} must be integers in the device's format, not {str(tensor.dtype)[6:]}"
        )
    return tensor.detach().cpu()


def _check_range(name: str, values: Tensor, chosen: Format) -> None:
    if not values.numel():
        return
    low, high = (int(value) for value in torch.aminmax(values))
    if low < chosen.min or high > chosen.max:
        value = low if low < chosen.min else high
        raise InputError(
            f"{name} must be {chosen.min} to {chosen.max} in format {chosen}, not {value}"
        )
