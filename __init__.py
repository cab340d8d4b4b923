"""gradweave turns a PyTorch model into FPGA hardware that trains it.

Everything here loads on first use, so ``import gradweave`` is light. Test:
``tests/test_compile.py``.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = [
    "Batches",
    "CheckpointError",
    "Design",
    "DeviceError",
    "Format",
    "FormatError",
    "GradweaveError",
    "GradweaveWarning",
    "InputError",
    "Plan",
    "PlanError",
    "Rounding",
    "ToolError",
    "Trainer",
    "UnsupportedError",
    "VerifyError",
    "compile",
    "digits",
    "mnist",
]

_HOMES = {
    "model.errors": [name for name in __all__ if name.endswith(("Error", "Warning"))],
    "model.formats": ["Format", "Rounding"],
    "model.plan": ["Plan"],
    "host.compile": ["compile"],
    "host.data": ["Batches", "digits", "mnist"],
    "host.design": ["Design"],
    "host.trainer": ["Trainer"],
}

if TYPE_CHECKING:
    from .host.compile import compile  # noqa: A004
    from .host.data import Batches, digits, mnist
    from .host.design import Design
    from .host.trainer import Trainer
    from .model.errors import (
        CheckpointError,
        DeviceError,
        FormatError,
        GradweaveError,
        GradweaveWarning,
        InputError,
        PlanError,
        ToolError,
        UnsupportedError,
        VerifyError,
    )
    from .model.formats import Format, Rounding
    from .model.plan import Plan


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f".{home}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
