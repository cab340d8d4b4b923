"""Scale: a trained factor and a trained offset per channel.

Golden: ``model/pipeline/scale.py``. Test: ``tests/pipeline/test_scale.py``.
"""

from ...model.errors import PlanError
from ...model.formats import Rounding
from ...model.plan import LayerPlan
from .conv import Conv

__all__ = ["Scale"]


class Scale(Conv):
    """A ``Conv`` of one tap whose groups are its channels: ``group_lanes`` channels per cycle.

    Interval: ``H * W * C/group_lanes`` cycles per sample for each of FP, EB and WG.
    """

    def __init__(self, layer: LayerPlan, *, batch_max: int, rounding: Rounding, seed: int = 0):
        channels = layer.i_shape[0]
        if layer.i_shape != layer.o_shape or layer.groups != channels or layer.kernel != (1, 1):
            raise PlanError(
                f"{layer.name}: a scale must have one tap for each of {channels} channels, "
                f"not kernel {layer.kernel} and {layer.groups} groups"
            )
        super().__init__(layer, batch_max=batch_max, rounding=rounding, seed=seed)
