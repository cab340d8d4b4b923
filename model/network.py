"""The golden model of a whole design: what every tensor of every training step must be, bit for
bit.

It obeys docs/architecture.md and the plan: the graph of layers, formats, rounding, and which weight
version each pass reads. Between layers it carries features and errors as float64 tensors of
integers, which are exact and fast; its interface is int64.

Test: ``tests/test_network.py``, ``tests/test_graph_network.py``; its cost:
``tests/test_golden_speed.py``.
"""

import torch
from torch import Tensor

from .blocks import Block, make_block
from .checks import check_integers, check_samples, check_target
from .errors import InputError
from .hyper import Hyper
from .pipeline import binary_cross_entropy, cross_entropy, huber, mse
from .plan import INPUT, LOSS, Edge, LayerPlan, Plan
from .registers import saturating_tensors
from .step import Step
from .trained import Trained, Weights

__all__ = ["Network"]

LOSSES = {
    "cross_entropy": cross_entropy,
    "mse": mse,
    "huber": huber,
    "binary_cross_entropy": binary_cross_entropy,
}

Record = dict[str, Tensor]


class Network:
    """Trains and infers as the hardware of ``plan`` does.

    Parameters
    ----------
    plan : Plan

    Attributes
    ----------
    saturated : dict of int, clipped values per tensor since ``start_segment``, by name:
        ``conv1.o_feature``,
        ``conv1.i_error``, ``conv1.weight`` (parameters of every update with a clipped
        intermediate), ``loss.error``

    Raises
    ------
    FormatError
        Formats whose sums need more than 64 bits.
    PlanError
        Layers that are not connected to a graph.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._trained: dict[str, Trained] = {}
        self._blocks: dict[str, Block] = {}
        for layer in plan.layers:
            if layer.trainable:
                trained = Trained(layer, plan.batch_max, plan.rounding, plan.seed)
                self._trained[layer.name] = trained
            else:
                self._blocks[layer.name] = make_block(layer, plan.rounding.settled)
        names = [*(layer.name for layer in plan.layers), LOSS]
        self._sources: dict[str, list[Edge]] = {
            name: [edge for edge in plan.edges if edge.sink == name] for name in names
        }
        self._error_edges = frozenset(plan.error_edges)
        self.saturated: dict[str, int] = {}
        self.start_segment()

    @property
    def masters(self) -> dict[str, Tensor]:
        """The master weights by ``layer.weight`` and ``layer.bias``: int64 copies in torch's own
        shapes.
        """
        return self._export_all("masters")

    @property
    def momenta(self) -> dict[str, Tensor]:
        """The momentum buffers, as ``masters``."""
        return self._export_all("momenta")

    def load(self, masters: dict[str, Tensor], momenta: dict[str, Tensor] | None = None) -> None:
        """Set the master weights, and the momenta (zero by default), and start a segment.

        Raises
        ------
        InputError
            A tensor that is missing, unknown, not int64, of another shape, or outside its format.
        """
        zeros = {
            name: torch.zeros_like(values, dtype=torch.int64) for name, values in masters.items()
        }
        new_masters = self._checked("masters", masters)
        new_momenta = self._checked("momenta", zeros if momenta is None else momenta)
        for name, trained in self._trained.items():
            for part in trained.parameters:
                trained.masters[part] = new_masters[f"{name}.{part}"]
                trained.momenta[part] = new_momenta[f"{name}.{part}"]
        self.start_segment()

    def start_segment(self, first_sample: int = 0, first_batch: int = 0) -> None:
        """Make the requantised master weights version 0; clear ``saturated``, keep momenta.

        The next mini-batch is the segment's number 0. ``first_sample`` and ``first_batch`` are the
        numbers in the whole training of its first sample and of itself, by which random streams go
        on.
        """
        for trained in self._trained.values():
            trained.start()
        self._batch = 0
        self._step = Step(True, first_sample, first_batch)
        counted = [
            f"{x.name}.{tensor}" for x in self.plan.layers for tensor in saturating_tensors(x)
        ]
        self.saturated = dict.fromkeys([*counted, "loss.error"], 0)

    def train_batch(
        self, x: Tensor, target: Tensor, hyper: Hyper, record: Record | None = None
    ) -> Tensor:
        """Train one mini-batch and return its logits [B, outputs], int64, in the loss's feature
        format.

        Parameters
        ----------
        x : int64 [B, C, H, W] in the first layer's feature format
        target : int64, class numbers [B] for cross-entropy, or [B, outputs] in the feature format
        hyper : Hyper with ``batch`` equal to B
        record : receives every tensor of the mini-batch by name, int64: ``input``,
            ``<layer>.o_feature`` (a fork's is its source's and left out),
            ``<layer>.i_error`` (of a join, the one that comes in), ``loss.error``,
            ``<layer>.weight_gradient`` (exact sums), ``<layer>.weight`` (working) ...

        Raises
        ------
        InputError
            Shapes, dtypes, labels or values that do not fit the plan, or another number of samples
            than ``hyper.batch``.
        """
        check_samples(self.plan, x)
        if x.shape[0] != hyper.batch or hyper.batch > self.plan.batch_max:
            raise InputError(
                f"x must hold batch = {hyper.batch} samples (at most {self.plan.batch_max}), "
                f"not {x.shape[0]}"
            )
        check_target(self.plan, target, x.shape[0])
        with torch.no_grad():
            weights = {
                name: trained.forward_versions.read(self._batch)
                for name, trained in self._trained.items()
            }
            logits = self._forward(x, self._step, weights, record)
            self._backward(self._loss(logits, target, record), hyper, record)
        self._batch += 1
        self._step = Step(True, self._step.first_sample + hyper.batch, self._step.batch + 1)
        return _export(logits)

    def infer(self, x: Tensor) -> Tensor:
        """Return the logits [N, outputs] of the newest master weights, int64; training state stays
        as it is.

        Clipped features add to ``saturated``.

        Raises
        ------
        InputError
            A wrong shape or dtype, or a value outside the input's format.
        """
        check_samples(self.plan, x)
        weights = {name: trained.working() for name, trained in self._trained.items()}
        parts = x.split(self.plan.batch_max)
        with torch.no_grad():
            logits = [self._forward(part, Step(False), weights, None) for part in parts]
        return _export(torch.cat(logits))

    def _forward(
        self, x: Tensor, step: Step, weights: dict[str, Weights], record: Record | None
    ) -> Tensor:
        """Return the logits [B, outputs]; blocks keep what their backward pass needs."""
        features = {INPUT: x.to(torch.float64)}
        _note(record, INPUT, features[INPUT])
        for layer in self.plan.layers:
            name = layer.name
            sources = [features[edge.source] for edge in self._sources[name]]
            if layer.trainable:
                result, clipped = self._trained[name].forward(sources[0], weights[name], step)
            else:
                result, clipped = self._blocks[name].forward(sources, step)
            self._count(f"{name}.o_feature", clipped)
            if layer.pattern != "fork":
                _note(record, f"{name}.o_feature", result)
            features[name] = result
        return features[self._sources[LOSS][0].source].flatten(1)

    def _loss(self, logits: Tensor, target: Tensor, record: Record | None) -> Tensor:
        loss = self.plan.loss
        errors, clipped = LOSSES[loss.kind].error(logits, target, loss, self.plan.rounding.settled)
        self._count("loss.error", clipped)
        _note(record, "loss.error", errors)
        return errors.to(torch.float64).unflatten(1, self.plan.layers[-1].o_shape)

    def _backward(self, errors: Tensor, hyper: Hyper, record: Record | None) -> None:
        """Pass the loss's ``errors`` down, and update every trainable layer on the way."""
        end = self._sources[LOSS][0]
        waiting = {(end.source, end.source_port): errors}
        for layer in reversed(self.plan.layers):
            if not self.plan.passes_error(layer.name):
                continue
            results = [waiting.pop((layer.name, port)) for port in range(layer.fan)]
            below, clipped = self._backward_layer(layer, results)
            if layer.backward:
                self._count(f"{layer.name}.i_error", clipped)
                # All sources of a join get parts of the error that came in.
                joined = layer.pattern == "join"
                _note(record, f"{layer.name}.i_error", results[0] if joined else below[0])
            if layer.trainable:
                self._update(layer.name, results[0], hyper, record)
            for edge, error in zip(self._sources[layer.name], below, strict=True):
                if edge in self._error_edges:
                    waiting[edge.source, edge.source_port] = error

    def _backward_layer(self, layer: LayerPlan, errors: list[Tensor]) -> tuple[list[Tensor], int]:
        """Return the error of each source; what no source takes is given as it came in."""
        if not layer.backward:
            return errors, 0
        if not layer.trainable:
            return self._blocks[layer.name].backward(errors)
        below, clipped = self._trained[layer.name].backward(errors[0], self._batch, self._step)
        return [below], clipped

    def _update(self, name: str, errors: Tensor, hyper: Hyper, record: Record | None) -> None:
        gradients, weights, clipped = self._trained[name].update(errors, hyper, self._step)
        for part, sums in gradients.items():
            self._count(f"{name}.{part}", clipped[part])
            _note(record, f"{name}.{part}_gradient", sums)
            _note(record, f"{name}.{part}", weights[part])

    def _count(self, name: str, clipped: int) -> None:
        if clipped:
            self.saturated[name] += clipped

    def _export_all(self, what: str) -> dict[str, Tensor]:
        return {
            f"{name}.{part}": _export(values)
            for name, trained in self._trained.items()
            for part, values in getattr(trained, what).items()
        }

    def _checked(self, what: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        names = [f"{n}.{part}" for n, trained in self._trained.items() for part in trained.masters]
        if tensors.keys() != set(names):
            raise InputError(f"{what} must be named {sorted(names)}, not {sorted(tensors)}")
        checked = {}
        for name in names:
            layer, part = name.rsplit(".", 1)
            formats = self._trained[layer].parameters[part]
            current = self._trained[layer].masters[part]
            fmt = formats.master if what == "masters" else formats.gradient
            check_integers(f"{what}[{name}]", tensors[name], fmt.min, fmt.max)
            if tensors[name].shape != current.shape:
                raise InputError(
                    f"{what}[{name}] must have shape {list(current.shape)}, "
                    f"not {list(tensors[name].shape)}"
                )
            checked[name] = tensors[name].to(current.dtype)
        return checked


def _export(values: Tensor) -> Tensor:
    return values.to(torch.int64, copy=True, memory_format=torch.contiguous_format)


def _note(record: Record | None, name: str, values: Tensor) -> None:
    if record is not None:
        record[name] = _export(values)
