"""Probes: the tensors that a board shows to a simulator, transfer by transfer.

Golden: the names of ``model/network.py``'s records. Test: ``tests/test_verify.py``.
"""

from dataclasses import dataclass

from ..model.plan import Plan

__all__ = ["Probe", "probe_table"]


@dataclass(frozen=True)
class Probe:
    """One tensor's stream: ``lanes`` two's complement values of ``width`` bits per transfer."""

    name: str
    lanes: int
    width: int


def probe_table(plan: Plan) -> list[Probe]:
    """All probes of a design, in the order of their port numbers; empty unless ``plan.probes``.

    Features and errors come in raster order, channels innermost. A fork's feature is its source's
    and has no probe; a join's ``i_error`` is the one that comes in. ``weight`` and ``bias`` are the
    new working words of each update, ``weight_gradient`` and ``bias_gradient`` its sums in chunks
    of ``update_lanes`` (see the order of parameters in ``docs/architecture.md``).
    """
    if not plan.probes:
        return []
    first = plan.layers[0]
    table = [Probe("input", first.i_lanes, first.i_feature.width)]
    for layer in plan.layers:
        if layer.pattern != "fork":
            table.append(Probe(f"{layer.name}.o_feature", layer.o_lanes, layer.o_feature.width))
        if layer.backward:
            table.append(Probe(f"{layer.name}.i_error", layer.i_lanes, layer.i_error.width))
        if layer.weight is not None:
            widths = [p.working.width for p in (layer.weight, layer.bias) if p is not None]
            sums = max(layer.wg_acc_width(plan.batch_max), layer.bias_acc_width(plan.batch_max))
            for kind in ("weight", "bias") if layer.bias else ("weight",):
                table.append(Probe(f"{layer.name}.{kind}", layer.word_size, max(widths)))
                table.append(Probe(f"{layer.name}.{kind}_gradient", layer.update_lanes, sums))
    table.append(Probe("loss.error", 1, plan.loss.error.width))
    return table
