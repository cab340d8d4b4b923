"""Which tensors were clipped so often in a segment that the run suffers, from a device's counters.

Test: ``tests/test_trainer.py``.
"""

import math
from collections.abc import Mapping

from ..model.plan import Plan

__all__ = ["SATURATED_SHARE", "saturated_shares"]

SATURATED_SHARE = 0.01


def saturated_shares(
    plan: Plan, counters: Mapping[str, int], samples: int, updates: int
) -> dict[str, float]:
    """Return the share (0 to 1) of clipped values of every tensor that exceeds 1 %, by name.

    Of ``weight`` and ``bias`` it is the share of parameter updates with a clipped value.
    """
    totals = {"loss.error": samples * plan.loss.outputs}
    for layer in plan.layers:
        outputs = layer.o_shape[0]
        totals[f"{layer.name}.o_feature"] = samples * math.prod(layer.o_shape)
        totals[f"{layer.name}.i_error"] = samples * math.prod(layer.i_shape)
        weights = outputs * layer.i_shape[0] * math.prod(layer.kernel)
        totals[f"{layer.name}.weight"] = updates * weights
        totals[f"{layer.name}.bias"] = updates * outputs
    shares = {name: counters.get(f"{name}.saturated", 0) / total for name, total in totals.items()}
    return {name: share for name, share in shares.items() if share > SATURATED_SHARE}
