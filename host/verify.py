"""Verify: run hardware and golden model side by side and compare every tensor of every mini-batch.

Golden: ``model/network.py``. Test: ``tests/test_verify.py``.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.table import Table
from torch import Tensor

from ..model.errors import VerifyError
from ..model.formats import Format
from ..model.hyper import Hyper
from ..model.network import Network
from ..model.padding import channel_words
from ..model.plan import LayerPlan, Plan
from .board_device import BoardDevice
from .design import Design
from .packets import pack_parameters, pad_outputs

__all__ = ["Difference", "VerifyReport", "compare_tensors", "verify"]

Array = npt.NDArray[np.int64]
_Map = tuple[list[int], int, int]  # channel of each lane of a pixel, rows, columns


@dataclass(frozen=True)
class Difference:
    """The first value in which hardware and golden model differ.

    ``sample`` counts from the run's start, or is the mini-batch for parameters and gradients;
    ``index`` is (channel, row, column) of a map, or the value's place in the order of parameters.
    """

    layer: str
    tensor: str
    batch: int
    sample: int | None
    index: tuple[int, ...]
    expected: int
    got: int | None
    format: str
    values: int

    def __str__(self) -> str:
        where = f"sample {self.sample}" if self.sample is not None else f"mini-batch {self.batch}"
        got = "nothing" if self.got is None else self.got
        return (
            f"layer {self.layer}, tensor {self.tensor}, {where}, first index {self.index}: "
            f"expected {self.expected}, got {got}, format {self.format} "
            f"({self.values} values differ)"
        )


@dataclass
class VerifyReport:
    """What was compared: per tensor name the number of values; ``tensors_compared``, where a tensor
    of each mini-batch counts; and the first difference, layer by layer, if any.
    """

    batches: int
    values: dict[str, int] = field(default_factory=dict)
    difference: Difference | None = None
    tensors_compared: int = 0

    @property
    def bit_exact(self) -> bool:
        """True when everything was compared and nothing differs."""
        return self.difference is None and bool(self.values)

    def raise_for_difference(self) -> None:
        """Raise VerifyError with the first difference, if there is one."""
        if self.difference is not None:
            raise VerifyError(
                f"hardware and golden model differ in {self.difference}; run "
                "`gradweave verify --trace FILE.vcd` and look at that layer's streams"
            )

    def as_dict(self) -> dict[str, Any]:
        """The report as plain data."""
        return {
            "bit_exact": self.bit_exact,
            "tensors_compared": self.tensors_compared,
            "values_compared": sum(self.values.values()),
            "batches": self.batches,
            "difference": dataclasses.asdict(self.difference) if self.difference else None,
        }

    def table(self) -> Table:
        """A row per tensor."""
        table = Table(
            "tensor", "values", "equal", title=f"RTL against golden, {self.batches} mini-batches"
        )
        for name, values in self.values.items():
            differs = self.difference is not None and name == _name(self.difference)
            table.add_row(name, f"{values:,}", "[red]no[/]" if differs else "[green]yes[/]")
        return table


def verify(
    design: Design,
    samples: Tensor,
    targets: Tensor,
    hyper: Hyper,
    *,
    stalls: float = 0.0,
    seed: int = 0,
    trace: str | None = None,
) -> VerifyReport:
    """Train on ``samples`` in RTL and in the golden model, and compare every tensor and the final
    parameters.

    Parameters
    ----------
    samples : int64 [N, C, H, W], N a multiple of ``hyper.batch``; targets : int64
    stalls : probability that the simulated host pauses in a cycle, from 0 to 0.95
    trace : path of a waveform to write (``.vcd`` or ``.fst``)
    """
    from ..sim.simulate import simulate

    plan = dataclasses.replace(design.plan, probes=True)
    simulation = simulate(plan, stalls=stalls, seed=seed, trace=trace)
    device = BoardDevice(plan, simulation)
    try:
        device.write_parameters(design.masters)
        simulation.probe(True)
        logits = device.train(samples, targets, hyper)
        seen = simulation.probes()
        masters, momenta = device.read_parameters()
        counters = device.counters()
    finally:
        device.close()

    network = Network(plan)
    network.load(design.masters)
    records, expected_logits = [], []
    for k in range(len(samples) // hyper.batch):
        part = slice(k * hyper.batch, (k + 1) * hyper.batch)
        record: dict[str, Tensor] = {}
        x, target = samples[part].long(), targets[part].long()
        expected_logits.append(network.train_batch(x, target, hyper, record))
        records.append(record)
    report = compare_tensors(plan, hyper.batch, records, seen)
    finals = [("master", masters, network.masters), ("momentum", momenta, network.momenta)]
    for what, got, expected in finals:
        for name, values in expected.items():
            layer, tensor = name.rsplit(".", 1)
            _compare_final(report, layer, f"{tensor}.{what}", values, got[name])
    for n, values in enumerate(expected_logits):
        _compare_final(report, "loss", "logits", values, logits[n * hyper.batch :][: hyper.batch])
    for name, count in network.saturated.items():
        report.values[f"{name}.saturated"] = 1
        report.tensors_compared += 1
        if counters[f"{name}.saturated"] != count and report.difference is None:
            layer, tensor = name.rsplit(".", 1)
            report.difference = Difference(
                layer,
                f"{tensor}.saturated",
                0,
                None,
                (),
                count,
                counters[f"{name}.saturated"],
                "count",
                1,
            )
    return report


def compare_tensors(
    plan: Plan, batch: int, records: list[dict[str, Tensor]], seen: Mapping[str, Array]
) -> VerifyReport:
    """Compare probed streams ``seen`` (by name, [transfers, lanes]) with the golden model's
    records, in pipeline order.
    """
    report = VerifyReport(batches=len(records))
    for name in _order(plan, seen):
        got = seen[name].reshape(-1)
        layer_name, tensor = name.rsplit(".", 1) if "." in name else (plan.layers[0].name, name)
        layer = plan.layer(layer_name) if layer_name != "loss" else None
        per_batch = [_stream(layer, tensor, record, name) for record in records]
        report.values[name] = sum(int((values != _UNSEEN).sum()) for values, _ in per_batch)
        report.tensors_compared += len(records)
        start = 0
        for k, (values, shape) in enumerate(per_batch):
            part = got[start : start + len(values)]
            start += len(values)
            if report.difference is None and not (
                len(part) == len(values) and (part == values).all()
            ):
                fmt = _format(plan, layer, tensor)
                report.difference = _difference(
                    layer_name, tensor, k, batch, shape, values, part, fmt
                )
    return report


def _order(plan: Plan, seen: Mapping[str, Array]) -> list[str]:
    """Forward tensors from the input up, then errors and gradients from the loss down: a cause
    before its effects.
    """
    forward = [name for name in seen if name == "input" or name.endswith(".o_feature")]
    ranks = {layer.name: -n for n, layer in enumerate(plan.layers)} | {"loss": -len(plan.layers)}
    kinds = ["error", "weight_gradient", "bias_gradient", "weight", "bias", "i_error"]
    rest = [name for name in seen if name not in forward]
    return forward + sorted(
        rest, key=lambda x: (ranks[x.rsplit(".", 1)[0]], kinds.index(x.rsplit(".", 1)[1]))
    )


def _stream(
    layer: LayerPlan | None, tensor: str, record: dict[str, Tensor], name: str
) -> tuple[Array, _Map | None]:
    """A recorded tensor in the order in which the hardware streams it, and its map if it is one."""
    if tensor in ("weight", "weight_gradient", "bias", "bias_gradient"):
        assert layer is not None
        return _parameters(layer, tensor, record), None
    values = record[name].numpy()
    if values.ndim == 4:
        pixels = values.transpose(0, 2, 3, 1)
        assert layer is not None
        layout = layer.o_layout if tensor == "o_feature" else layer.i_layout
        words = channel_words(pixels.shape[-1], layout)
        # Pad lanes take the entry behind the last channel, a zero.
        zero = pixels.shape[-1]
        lanes = [zero if channel is None else channel for word in words for channel in word]
        streamed = np.pad(pixels, ((0, 0), (0, 0), (0, 0), (0, 1)))[..., lanes]
        return streamed.reshape(-1), (lanes, *values.shape[2:])
    return values.reshape(-1), (list(range(values.shape[-1])), 1, 1)


def _parameters(layer: LayerPlan, tensor: str, record: dict[str, Tensor]) -> Array:
    weight_part = tensor.replace("bias", "weight")
    weight = record[f"{layer.name}.{weight_part}"].numpy()
    bias_name = f"{layer.name}.{tensor.replace('weight', 'bias')}"
    bias = record[bias_name].numpy() if layer.bias else None
    packed = pack_parameters(layer, weight, bias)
    weights = layer.weight_words * layer.word_size
    if tensor.startswith("weight"):
        return packed[:weights].astype(np.int64)
    if tensor == "bias_gradient":
        return packed[weights:].astype(np.int64)
    # A probed bias word is as long as one of weights; the biases are where the update leaves them.
    assert bias is not None
    lanes, size = layer.o_lanes, layer.word_size
    first = size - max(lanes, layer.update_lanes)
    words = np.full((layer.o_blocks, size), _UNSEEN, dtype=np.int64)
    words[:, first : first + lanes] = pad_outputs(layer, bias)
    return words.reshape(-1)


# Lanes of a probed bias word that hold no bias.
_UNSEEN = np.iinfo(np.int64).min


def _difference(
    layer: str,
    tensor: str,
    k: int,
    batch: int,
    shape: _Map | None,
    values: Array,
    part: Array,
    fmt: str,
) -> Difference | None:
    common = min(len(values), len(part))
    wrong = np.flatnonzero((values[:common] != part[:common]) & (values[:common] != _UNSEEN))
    missing = len(values) - common
    if not len(wrong) and not missing:
        return None
    at = int(wrong[0]) if len(wrong) else common
    sample: int | None = None
    index: tuple[int, ...] = (at,)
    if shape is not None:
        lanes, height, width = shape
        count = len(lanes)
        within = at % (count * height * width)
        sample = k * batch + at // (count * height * width)
        index = (lanes[within % count], within // count // width, within // count % width)
    got = int(part[at]) if at < len(part) else None
    return Difference(
        layer, tensor, k, sample, index, int(values[at]), got, fmt, len(wrong) + missing
    )


def _format(plan: Plan, layer: LayerPlan | None, tensor: str) -> str:
    if layer is None:
        return str(plan.loss.error)
    if tensor == "input":
        return str(layer.i_feature)
    if tensor in ("o_feature", "i_error"):
        return str(getattr(layer, tensor))
    parameter = layer.bias if tensor.startswith("bias") else layer.weight
    assert parameter is not None
    if not tensor.endswith("_gradient"):
        return str(parameter.working)
    frac = layer.o_error.frac + (0 if tensor.startswith("bias") else layer.i_feature.frac)
    bias = tensor.startswith("bias")
    width = layer.bias_acc_width(plan.batch_max) if bias else layer.wg_acc_width(plan.batch_max)
    return str(Format(min(width, 64), frac))


def _compare_final(
    report: VerifyReport, layer: str, tensor: str, expected: Tensor, got: Tensor
) -> None:
    name = f"{layer}.{tensor}"
    report.values[name] = report.values.get(name, 0) + expected.numel()
    report.tensors_compared += 1
    wrong = (expected != got).nonzero()
    if report.difference is None and len(wrong):
        index = tuple(int(n) for n in wrong[0])
        report.difference = Difference(
            layer,
            tensor,
            report.batches,
            None,
            index,
            int(expected[index]),
            int(got[index]),
            "integer",
            len(wrong),
        )


def _name(difference: Difference) -> str:
    return f"{difference.layer}.{difference.tensor}" if difference.tensor != "input" else "input"
