"""A compiled design: its plan and its first weights, and the ways on from there.

Test: ``tests/test_compile.py``.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor, nn

from ..model.errors import CheckpointError, PlanError
from ..model.plan import Plan
from .board_device import BoardDevice
from .checkpoint import Checkpoint, load_checkpoint, save_checkpoint, write_atomically
from .golden_device import GoldenDevice
from .quantize import float_parameters, quantize_samples

__all__ = ["Design"]

PLAN_FILE = "plan.json"
WEIGHTS_FILE = "weights.safetensors"

AnyDevice = TypeVar("AnyDevice", GoldenDevice, BoardDevice)


@dataclass
class Design:
    """What ``compile`` returns.

    ``masters`` are the model's weights as integers in the master formats, by their key in
    ``state_dict()``. ``model`` is the torch module, None in a design that was loaded from a folder;
    ``frozen`` is what its state has beside the weights, such as the statistics of BatchNorm.
    """

    plan: Plan
    masters: dict[str, Tensor]
    model: nn.Module | None = field(default=None, repr=False)
    frozen: dict[str, Tensor] = field(default_factory=dict, repr=False)

    def golden(self) -> GoldenDevice:
        """Return the golden model as a device that holds the first weights."""
        return self._ready(GoldenDevice(self.plan))

    def simulate(self, **options: Any) -> BoardDevice:
        """Build (or take from the cache) the simulated board and return it as a device that holds
        the first weights.

        ``options`` go to ``gradweave.sim.simulate.simulate``.
        """
        from ..sim.simulate import simulate

        return self._ready(BoardDevice(self.plan, simulate(self.plan, **options)))

    def _ready(self, device: AnyDevice) -> AnyDevice:
        device.write_parameters(self.masters)
        device.frozen = self.frozen
        return device

    def verilog(self) -> str:
        """Return the board's Verilog; its top module is ``board``."""
        from ..rtl.generate import verilog

        return verilog(self.plan)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the first weights as the hardware holds them, float32."""
        return {**self.frozen, **float_parameters(self.plan, self.masters)}

    def quantize_input(self, x: Tensor) -> Tensor:
        """Return samples [N, C, H, W] as the integers (int16) that a device takes; raises
        InputError.
        """
        return quantize_samples(self.plan, x)

    def report(self) -> str:
        """Return the plan as a table: engine, multipliers, folding, interval, cost."""
        from .plan_table import plan_text

        return plan_text(self.plan)

    def save(self, folder: str | Path) -> None:
        """Write ``plan.json`` and ``weights.safetensors`` into a folder, which is made where
        needed.
        """
        write_atomically(Path(folder) / PLAN_FILE, self.plan.to_json().encode())
        momenta = {name: tensor.new_zeros(tensor.shape) for name, tensor in self.masters.items()}
        save_checkpoint(Path(folder) / WEIGHTS_FILE, self.plan, Checkpoint(self.masters, momenta))

    @staticmethod
    def load(folder: str | Path) -> "Design":
        """Read a folder that ``save`` wrote; raises PlanError or CheckpointError."""
        path = Path(folder) / PLAN_FILE
        if not path.is_file():
            raise CheckpointError(f"{path} is no file: give a folder that Design.save wrote")
        try:
            plan = Plan.from_json(path.read_text())
        except (PlanError, UnicodeDecodeError) as error:
            raise PlanError(f"{path}: {error}") from error
        return Design(plan, load_checkpoint(Path(folder) / WEIGHTS_FILE, plan).masters)
