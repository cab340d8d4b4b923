"""Linear: a fully connected layer that trains.

Golden: ``model/pipeline/linear.py``. Test: ``tests/pipeline/test_linear.py``.
"""

from ...model.errors import PlanError
from ...model.formats import Rounding
from ...model.plan import LayerPlan
from .conv import Conv

__all__ = ["Linear"]


class Linear(Conv):
    """A ``Conv`` whose kernel is its whole input map: one output pixel, torch's flatten order, the
    same engines.

    Interval: ``in_features/b * out_features/a`` cycles per sample for each of FP, EB and WG.
    """

    def __init__(self, layer: LayerPlan, *, batch_max: int, rounding: Rounding, seed: int = 0):
        if layer.kernel != layer.i_shape[1:] or layer.padding != (0, 0):
            raise PlanError(
                f"{layer.name}: a linear layer's kernel must be its map {layer.i_shape[1:]} "
                f"without padding, not {layer.kernel} with {layer.padding}"
            )
        super().__init__(layer, batch_max=batch_max, rounding=rounding, seed=seed)
