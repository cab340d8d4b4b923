"""A trainable layer of the golden model: its parameters, their versions, and its three passes.

RTL: ``rtl/pipeline/conv.py``. Test: ``tests/test_network.py``.
"""

import torch
from torch import Tensor

from .fixed import requantize
from .formats import Format, Rounding
from .hyper import Hyper
from .noise import sample_noise, update_noise
from .pipeline.conv import Conv
from .pipeline.linear import Linear
from .pipeline.scale import Scale
from .pipeline.update import state_dtype, to_working, update
from .plan import LayerPlan, ParameterPlan
from .step import Step
from .versions import VersionStore

__all__ = ["Trained", "Weights", "on_finest_grid"]

Weights = dict[str, Tensor]  # working values of ``weight`` and ``bias``

ENGINES: dict[str, type[Conv] | type[Linear]] = {"conv2d": Conv, "linear": Linear, "scale": Scale}


class Trained:
    """A layer with its masters and momenta, and its working weights as both copies in hardware hold
    them.

    Parameters
    ----------
    plan : LayerPlan of a trainable kind
    batch_max : int, the largest number of samples of a mini-batch
    rounding : Rounding
    seed : int, of the noise of stochastic rounding

    Attributes
    ----------
    masters, momenta : dict of Tensor by ``weight`` and ``bias``, in torch's own shapes
    forward_versions, backward_versions : VersionStore, what FP and EB read

    Raises
    ------
    FormatError
        Formats whose sums need more than 64 bits.
    """

    def __init__(self, plan: LayerPlan, batch_max: int, rounding: Rounding, seed: int = 0) -> None:
        assert plan.weight is not None
        self.plan = plan
        self.rounding = rounding
        self.seed = seed
        self.parameters: dict[str, ParameterPlan] = {"weight": plan.weight}
        if plan.bias is not None:
            self.parameters["bias"] = plan.bias
        self.engine = ENGINES[plan.kind](plan, batch_max)
        self.forward_versions: VersionStore[Weights] = VersionStore(plan.delay)
        self.backward_versions: VersionStore[Weights] = VersionStore(plan.back_delay)
        self.masters = {
            part: torch.zeros(_shape(plan, part), dtype=state_dtype(formats))
            for part, formats in self.parameters.items()
        }
        self.momenta = {part: values.clone() for part, values in self.masters.items()}

    def start(self) -> None:
        """Make the requantised masters version 0."""
        weights = self.working()
        self.forward_versions.start(weights)
        self.backward_versions.start(weights)

    def working(self) -> Weights:
        """Return the requantised masters."""
        return {
            part: to_working(formats, self.rounding, self.masters[part])[0]
            for part, formats in self.parameters.items()
        }

    def forward(self, features: Tensor, weights: Weights, step: Step) -> tuple[Tensor, int]:
        """Return the result [B, C, H, W] in ``o_feature``, float64, and how many values were
        clipped.
        """
        layer, bias = self.plan, None
        frac = self.parameters["weight"].working.frac + layer.i_feature.frac
        if layer.bias is not None:
            bias = weights["bias"].to(torch.int64) << (frac - layer.bias.working.frac)
        sums = self.engine.forward(features, self._on_grid(weights), bias)
        return self._requantize(sums, frac, "o_feature", step)

    def backward(self, errors: Tensor, batch: int, step: Step) -> tuple[Tensor, int]:
        """Return the error of the input in ``i_error``, float64, and how many values were clipped;
        ``batch`` is the mini-batch's number since ``start``.
        """
        weights = self.backward_versions.read(batch)
        sums = self.engine.backward(errors, self._on_grid(weights))
        frac = self.parameters["weight"].working.frac + self.plan.o_error.frac
        return self._requantize(sums, frac, "i_error", step)

    def update(
        self, errors: Tensor, hyper: Hyper, step: Step
    ) -> tuple[Weights, Weights, dict[str, int]]:
        """Apply one mini-batch's gradients, and add the version that results.

        Returns
        -------
        The exact gradient sums, the new working weights, and how many parameters had a clipped
        intermediate, each by ``weight`` and ``bias``.
        """
        layer = self.plan
        gradients: Weights = {}
        weights: Weights = {}
        clipped: dict[str, int] = {}
        for part, formats in self.parameters.items():
            if part == "weight":
                sums = self.engine.weight_gradient(errors)
                frac = layer.o_error.frac + layer.i_feature.frac
            else:
                sums, frac = self.engine.bias_gradient(errors), layer.o_error.frac
            master, momentum = self.masters[part], self.momenta[part]
            noise = update_noise(self.seed, layer, part, step) if self._by_chance else None
            new = update(formats, hyper, self.rounding, master, momentum, sums, frac, noise)
            self.masters[part], self.momenta[part] = new.master, new.momentum
            gradients[part], weights[part], clipped[part] = sums, new.working, new.clipped
        self.forward_versions.add(weights)
        self.backward_versions.add(weights)
        return gradients, weights, clipped

    def _on_grid(self, weights: Weights) -> Tensor:
        return on_finest_grid(self.parameters["weight"], weights["weight"])

    @property
    def _by_chance(self) -> bool:
        return self.rounding is Rounding.STOCHASTIC

    def _requantize(self, sums: Tensor, frac: int, tensor: str, step: Step) -> tuple[Tensor, int]:
        layer, noise = self.plan, None
        fmt: Format = getattr(layer, tensor)
        if self._by_chance:
            shape = layer.o_shape if tensor == "o_feature" else layer.i_shape
            noise = sample_noise(self.seed, f"{layer.name}.{tensor}", shape, step, len(sums))
        values, clipped = requantize(sums, frac, fmt, self.rounding, noise)
        return values.to(torch.float64), clipped


def on_finest_grid(formats: ParameterPlan, weight: Tensor) -> Tensor:
    """Return working weights [Co, ...] as integers of ``working``, in which all sums are, whatever
    fraction a channel's own have.
    """
    if not formats.spread:
        return weight
    steps = torch.tensor([2.0**bits for bits in formats.coarser], dtype=torch.float64)
    return weight * steps.to(weight.dtype).view(-1, *[1] * (weight.ndim - 1))


def _shape(layer: LayerPlan, part: str) -> tuple[int, ...]:
    outputs, inputs = layer.o_shape[0], layer.group_shape[1]
    if part == "bias" or layer.kind == "scale":
        return (outputs,)
    if layer.kind == "linear":
        return (outputs, inputs * layer.i_shape[1] * layer.i_shape[2])
    return (outputs, inputs, *layer.kernel)
