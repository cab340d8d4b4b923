"""The golden model of a whole design: what every tensor of every training step must be, bit for
bit.

It obeys docs/architecture.md and the plan: formats, rounding, and which weight version each pass
reads. Between layers it carries features and errors as float64 tensors of integers, which are exact
and fast; its interface is int64.

Test: ``tests/test_network.py``; its cost: ``tests/test_golden_speed.py``.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from .checks import check_integers, check_samples, check_target
from .errors import InputError, UnsupportedError
from .fixed import requantize
from .formats import Rounding
from .hyper import Hyper
from .pipeline import binary_cross_entropy, cross_entropy, huber, maxpool, mse, relu
from .pipeline.conv import Conv
from .pipeline.linear import Linear
from .pipeline.update import state_dtype, update
from .plan import LayerPlan, ParameterPlan, Plan
from .registers import saturating_tensors
from .versions import VersionStore

__all__ = ["Network"]

LOSSES = {
    "cross_entropy": cross_entropy,
    "mse": mse,
    "huber": huber,
    "binary_cross_entropy": binary_cross_entropy,
}

Record = dict[str, Tensor]
Weights = dict[str, Tensor]


@dataclass
class _Trained:
    """A trainable layer with its working weights as its two copies in hardware hold them."""

    plan: LayerPlan
    engine: Conv | Linear
    parameters: dict[str, ParameterPlan]
    forward: VersionStore[Weights] = field(init=False)
    backward: VersionStore[Weights] = field(init=False)

    def __post_init__(self) -> None:
        self.forward = VersionStore(self.plan.delay)
        self.backward = VersionStore(self.plan.back_delay)


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
    UnsupportedError
        Stochastic rounding, which this family of hardware does not have.
    FormatError
        Formats whose sums need more than 64 bits.
    """

    def __init__(self, plan: Plan) -> None:
        if plan.rounding is Rounding.STOCHASTIC:
            raise UnsupportedError(
                "rounding must be half_even, half_up or floor for the pipeline family, "
                "not stochastic"
            )
        self.plan = plan
        self._trained: dict[str, _Trained] = {}
        self._masters: dict[str, Tensor] = {}
        self._momenta: dict[str, Tensor] = {}
        for layer in plan.trainable:
            assert layer.weight is not None
            engine = Conv if layer.kind == "conv2d" else Linear
            parameters = {"weight": layer.weight} | ({"bias": layer.bias} if layer.bias else {})
            trained = _Trained(layer, engine(layer, plan.batch_max), parameters)
            self._trained[layer.name] = trained
            for part, formats in parameters.items():
                zeros = torch.zeros(_shape(layer, part), dtype=state_dtype(formats))
                self._masters[f"{layer.name}.{part}"] = zeros
                self._momenta[f"{layer.name}.{part}"] = zeros
        self.saturated: dict[str, int] = {}
        self.start_segment()

    @property
    def masters(self) -> dict[str, Tensor]:
        """The master weights by ``layer.weight`` and ``layer.bias``: int64 copies in torch's own
        shapes.
        """
        return {name: _export(values) for name, values in self._masters.items()}

    @property
    def momenta(self) -> dict[str, Tensor]:
        """The momentum buffers, as ``masters``."""
        return {name: _export(values) for name, values in self._momenta.items()}

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
        self._masters, self._momenta = new_masters, new_momenta
        self.start_segment()

    def start_segment(self) -> None:
        """Make the requantised master weights version 0 and mini-batch 0 the next; clear
        ``saturated``, keep momenta.
        """
        for name, trained in self._trained.items():
            weights = self._working(name)
            trained.forward.start(weights)
            trained.backward.start(weights)
        self._batch = 0
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
            ``<layer>.o_feature``,
            ``<layer>.i_error``, ``loss.error``, ``<layer>.weight_gradient`` (exact sums),
            ``<layer>.weight`` (working) ...

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
            kept = self._forward(
                x, [t.forward.read(self._batch) for t in self._trained.values()], record
            )
            logits = kept[-1].flatten(1)
            errors = self._loss(logits, target, record)
            self._backward(errors, kept, hyper, record)
        self._batch += 1
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
        weights = [self._working(name) for name in self._trained]
        size = self.plan.batch_max
        with torch.no_grad():
            parts = [self._forward(part, weights, None)[-1].flatten(1) for part in x.split(size)]
        return _export(torch.cat(parts))

    def _forward(self, x: Tensor, weights: list[Weights], record: Record | None) -> list[Tensor]:
        """Return what the backward pass needs: each layer's feature (a pool's indices, under its
        position in ``_places``).
        """
        features = x.to(torch.float64)
        _note(record, "input", features)
        remaining = iter(weights)
        kept = []
        self._places: dict[str, Tensor] = {}
        for layer in self.plan.layers:
            if layer.trainable:
                features = self._forward_sums(layer, features, next(remaining))
            elif layer.kind == "relu":
                features = relu.forward(features)
            else:
                features, self._places[layer.name] = maxpool.forward(
                    features, layer.kernel, layer.stride, layer.padding
                )
            _note(record, f"{layer.name}.o_feature", features)
            kept.append(features)
        return kept

    def _forward_sums(self, layer: LayerPlan, features: Tensor, weights: Weights) -> Tensor:
        assert layer.weight is not None
        frac = layer.weight.working.frac + layer.i_feature.frac
        bias = None
        if layer.bias is not None:
            bias = weights["bias"].to(torch.int64) << (frac - layer.bias.working.frac)
        sums = self._trained[layer.name].engine.forward(features, weights["weight"], bias)
        return self._requantize(sums, frac, layer, "o_feature")

    def _loss(self, logits: Tensor, target: Tensor, record: Record | None) -> Tensor:
        loss = self.plan.loss
        errors, clipped = LOSSES[loss.kind].error(logits, target, loss, self.plan.rounding)
        self.saturated["loss.error"] += clipped
        _note(record, "loss.error", errors)
        return errors.to(torch.float64).unflatten(1, self.plan.layers[-1].o_shape)

    def _backward(
        self, errors: Tensor, kept: list[Tensor], hyper: Hyper, record: Record | None
    ) -> None:
        for layer, features in zip(reversed(self.plan.layers), reversed(kept), strict=True):
            below = errors
            if layer.trainable:
                if layer.backward:
                    below = self._backward_sums(layer, errors)
                self._update(layer, errors, hyper, record)
            elif layer.backward and layer.kind == "relu":
                below = relu.backward(errors, features)
            elif layer.backward:
                places = self._places[layer.name]
                below, clipped = maxpool.backward(errors, places, layer.i_shape[1:], layer.i_error)
                self.saturated[f"{layer.name}.i_error"] += clipped
            if layer.backward:
                _note(record, f"{layer.name}.i_error", below)
            errors = below

    def _backward_sums(self, layer: LayerPlan, errors: Tensor) -> Tensor:
        assert layer.weight is not None
        trained = self._trained[layer.name]
        sums = trained.engine.backward(errors, trained.backward.read(self._batch)["weight"])
        return self._requantize(
            sums, layer.weight.working.frac + layer.o_error.frac, layer, "i_error"
        )

    def _update(
        self, layer: LayerPlan, errors: Tensor, hyper: Hyper, record: Record | None
    ) -> None:
        trained = self._trained[layer.name]
        weights: Weights = {}
        for part, formats in trained.parameters.items():
            name = f"{layer.name}.{part}"
            if part == "weight":
                sums = trained.engine.weight_gradient(errors)
                frac = layer.o_error.frac + layer.i_feature.frac
            else:
                sums, frac = trained.engine.bias_gradient(errors), layer.o_error.frac
            master, momentum = self._masters[name], self._momenta[name]
            new = update(formats, hyper, self.plan.rounding, master, momentum, sums, frac)
            self._masters[name], self._momenta[name] = new.master, new.momentum
            weights[part] = new.working
            self.saturated[name] += new.clipped
            _note(record, f"{name}_gradient", sums)
            _note(record, name, new.working)
        trained.forward.add(weights)
        trained.backward.add(weights)

    def _requantize(self, sums: Tensor, frac: int, layer: LayerPlan, tensor: str) -> Tensor:
        fmt = layer.o_feature if tensor == "o_feature" else layer.i_error
        values, clipped = requantize(sums, frac, fmt, self.plan.rounding)
        self.saturated[f"{layer.name}.{tensor}"] += clipped
        return values.to(torch.float64)

    def _working(self, layer: str) -> Weights:
        weights = {}
        for part, formats in self._trained[layer].parameters.items():
            master = self._masters[f"{layer}.{part}"]
            weights[part], _ = requantize(
                master, formats.master.frac, formats.working, self.plan.rounding
            )
        return weights

    def _checked(self, what: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        if tensors.keys() != self._masters.keys():
            raise InputError(f"{what} must be named {sorted(self._masters)}, not {sorted(tensors)}")
        checked = {}
        for name, current in self._masters.items():
            layer, part = name.rsplit(".", 1)
            formats = self._trained[layer].parameters[part]
            fmt = formats.master if what == "masters" else formats.gradient
            check_integers(f"{what}[{name}]", tensors[name], fmt.min, fmt.max)
            if tensors[name].shape != current.shape:
                raise InputError(
                    f"{what}[{name}] must have shape {list(current.shape)}, "
                    f"not {list(tensors[name].shape)}"
                )
            checked[name] = tensors[name].to(current.dtype)
        return checked


def _shape(layer: LayerPlan, part: str) -> tuple[int, ...]:
    outputs, inputs = layer.o_shape[0], layer.group_shape[1]
    if part == "bias" or layer.kind == "scale":
        return (outputs,)
    if layer.kind == "linear":
        return (outputs, inputs * layer.i_shape[1] * layer.i_shape[2])
    return (outputs, inputs, *layer.kernel)


def _export(values: Tensor) -> Tensor:
    return values.to(torch.int64, copy=True, memory_format=torch.contiguous_format)


def _note(record: Record | None, name: str, values: Tensor) -> None:
    if record is not None:
        record[name] = _export(values)
