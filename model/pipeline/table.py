"""Golden sigmoid, tanh, GELU and SiLU by table: the formula of ``model/activation_tables.py``, then
one rounding; the error is multiplied by the derivative, itself rounded to 18 bits.

RTL: ``rtl/pipeline/table.py``. Test: ``tests/pipeline/test_golden_table.py``.
"""

import torch
from torch import Tensor

from ..activation_tables import DERIVATIVE, ActivationTable, derivative_table, value_table
from ..fixed import requantize
from ..formats import Format, Rounding
from ..plan import LayerPlan
from ..relay import check_relay
from ..step import Step

__all__ = ["Table"]


class Table:
    """A layer of one of ``model/kinds.py``'s ``TABLES``.

    Raises
    ------
    PlanError
        Formats that are too wide for a table.
    """

    def __init__(self, layer: LayerPlan, rounding: Rounding) -> None:
        check_relay(layer)
        self.layer = layer
        self.rounding = rounding
        self.value = value_table(layer.kind, layer.i_feature, layer.o_feature.frac)
        self.slope = derivative_table(layer.kind, layer.i_feature)

    def forward(self, features: Tensor, step: Step) -> tuple[Tensor, int]:
        """Return the function of ``features`` in ``o_feature``, and how many were clipped to it."""
        if step.training:
            self._features = features
        results, clipped = self._look_up(self.value, features, self.layer.o_feature)
        return results.to(features.dtype), clipped

    def backward(self, errors: Tensor) -> tuple[Tensor, int]:
        """Return the errors of the features of the last training pass in ``i_error``, and how many
        were clipped to it.
        """
        slopes, _ = self._look_up(self.slope, self._features, DERIVATIVE)
        products = errors.to(torch.int64) * slopes
        frac = self.layer.o_error.frac + DERIVATIVE.frac
        results, clipped = requantize(products, frac, self.layer.i_error, self.rounding)
        return results.to(errors.dtype), clipped

    def _look_up(self, table: ActivationTable, features: Tensor, fmt: Format) -> tuple[Tensor, int]:
        """Return a table's function of ``features``, rounded to ``fmt``, int64."""
        x = features.to(torch.int64)
        positions = (x.clamp(-table.reach, table.reach - 1) + table.reach) >> table.drop
        segments = positions >> table.step_width
        steps = positions & ((1 << table.step_width) - 1)
        bases, rises = torch.tensor(table.bases), torch.tensor(table.rises)
        sums = (bases[segments] << table.step_width) + rises[segments] * steps
        if not table.clamped:
            return requantize(sums, table.result_frac, fmt, self.rounding)
        low, high = positions == 0, positions == (1 << table.width) - 1
        inside, clipped = requantize(
            sums.masked_fill(low | high, 0), table.result_frac, fmt, self.rounding
        )
        limits = torch.where(low, table.low, x if table.high is None else table.high)
        limit_frac = self.layer.i_feature.frac if table.high is None else 0
        outside, clipped_outside = requantize(
            limits.masked_fill(~(low | high), 0), limit_frac, fmt, self.rounding
        )
        return inside + outside, clipped + clipped_outside
