"""Calibration: chooses every tensor's fraction bits from sample data, with float autograd.

Tensors are named ``input``, ``<layer>.feature`` (its output), ``<layer>.error`` (the error of its
output), ``<layer>.weight`` and ``<layer>.bias`` (each with ``.master`` and ``.gradient``). Errors
are those of the loss summed, not averaged, over samples, as the hardware's.

Test: ``tests/test_calibrate.py``.
"""

import math
import warnings
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase

import torch
import torch.nn.functional as F
from torch import Tensor

from .errors import FormatError, GradweaveWarning, InputError
from .formats import Format, fit_format
from .graph import Formats, Graph, LayerFormats
from .losses import check_unit_interval, label_range, summed_loss, wrong_labels
from .plan import ParameterPlan

__all__ = ["calibrate", "float_tensors"]

HEADROOM_BITS = 4  # of 16-bit features and errors: an untrained network grows as it learns
LOGIT_BITS = 6  # integer bits that 16-bit logits have at least under cross-entropy: they grow most
WEIGHT_HEADROOM_BITS = 2
WEIGHT_RANGE_BITS = 2  # integer bits up to which a weight's range grows beyond that
SIGNIFICANT_BITS = 10  # as long as its largest value keeps this many
GRADIENT_HEADROOM_BITS = 10  # sums vary from mini-batch to mini-batch, and momentum adds up
SATURATED_SHARE = 0.01
SAMPLES_MAX = 1024
WIDTHS = {"feature": 16, "error": 16, "weight": 16, "bias": 16, "master": 32, "gradient": 32}
TRAVEL_BITS = 16  # features and targets travel in 16 bits, parameters in 32
PARAMETER_BITS = 32
ENTROPIES = ("cross_entropy", "binary_cross_entropy")


def calibrate(
    graph: Graph,
    parameters: Mapping[str, Tensor],
    example: Tensor,
    targets: Tensor | None = None,
    *,
    batch: int = 32,
    formats: Mapping[str, Format | int] | None = None,
    seed: int = 0,
) -> Formats:
    """Choose the formats of all tensors from at most 1024 samples of ``example``.

    Sample data show a network as it is now, mostly untrained, so formats leave room to grow.
    Features and errors get 4 bits above the largest magnitude seen (fewer below 16 bits, at least
    1), and logits under both cross-entropies at least 6 integer bits. Weights get 2 bits, and more
    up to a range of +-4 while their largest value keeps 10 bits; a bias gets at least as wide a
    range as if it were its layer's output. Gradients get 10 bits above the largest sum over a
    mini-batch.
    The error of the logits under both cross-entropies is exact: 1 integer bit, or what the largest
    class weight needs; under Huber's loss it gets no more than delta needs.

    Parameters
    ----------
    parameters : torch's ``state_dict()``, floating
    example : floating [N, C, H, W] or [N, features]
    targets : labels int [N] or values [N, outputs]; random ones from ``seed`` when None
    batch : samples per mini-batch that gradients are summed over; scaled up when ``example`` has
        fewer
    formats : choices by hand: a name, a pattern such as ``conv*.weight``, or a kind (``feature``,
        ``error``, ``weight``, ``bias``, ``master``, ``gradient``) to a ``Format``, or to a width in
        bits whose fraction is still calibrated

    Raises
    ------
    InputError
        For NaN or infinite values, and a name in ``formats`` that fits no tensor.
    FormatError
        For a format by hand that the hardware cannot carry.

    Warns
    -----
    GradweaveWarning
        When a choice turns a whole tensor to zero or saturates more than 1 % of it.
    """
    state = {name: tensor.detach().double() for name, tensor in parameters.items()}
    for name, tensor in state.items():
        _check_finite(name, tensor)
    _check_finite("example_input", example)
    x = example[:SAMPLES_MAX].detach().double().reshape(-1, *graph.input_shape)
    t = _targets(graph, len(x), targets, seed)
    if not bool(x.any()):
        _warn(
            "example_input is zero everywhere: pass a batch of real samples, as formats are "
            "chosen from it"
        )
    largest: dict[str, float] = {}
    for tensors in float_tensors(graph, state, x, t, batch):
        for name, tensor in tensors.items():
            largest[name] = max(largest.get(name, 0.0), float(tensor.abs().max()))
    chosen = _Chooser(graph, largest, dict(formats or {}), max(1.0, batch / len(x))).formats()
    _report(graph, chosen, float_tensors(graph, state, x, t, batch))
    return chosen


def float_tensors(
    graph: Graph, state: Mapping[str, Tensor], x: Tensor, targets: Tensor, batch: int
) -> Iterator[dict[str, Tensor]]:
    """Yield every tensor of one float64 training step per mini-batch, by name; ``.gradient`` is the
    sum over samples.
    """
    for start in range(0, len(x), batch):
        leaves = {name: tensor.clone().requires_grad_() for name, tensor in state.items()}
        value = x[start : start + batch]
        tensors, passing = {"input": value}, dict[str, list[Tensor]]()
        owner = ""
        for node in graph.nodes:
            if node.trainable:
                weight = leaves[f"{node.name}.weight"].reshape(
                    node.o_shape[0], node.i_shape[0], *node.kernel
                )
                value = F.conv2d(
                    value, weight, leaves.get(f"{node.name}.bias"), node.stride, node.padding
                )
                owner = node.name
                tensors[f"{owner}.feature"] = value.detach()
            elif node.kind == "relu":
                value = F.relu(value)
            else:
                value = F.max_pool2d(value, node.kernel, node.stride, node.padding)
            if owner:
                value.retain_grad()
                passing.setdefault(owner, []).append(value)
        logits, t = value.flatten(1), targets[start : start + batch]
        summed_loss(graph.loss, graph.loss_options, logits, t).backward()
        for name, values in passing.items():
            tensors[f"{name}.error"] = torch.cat([_grad(v).flatten() for v in values])
        for name, leaf in leaves.items():
            tensors[name] = leaf.detach()
            tensors[f"{name}.gradient"] = _grad(leaf)
        yield tensors


def _check_finite(name: str, tensor: Tensor) -> None:
    """Raise InputError with the first index that is NaN or infinite."""
    if bool(torch.isfinite(tensor).all()):
        return
    index = torch.nonzero(~torch.isfinite(tensor))[0]
    value = tensor[tuple(index)].item()
    raise InputError(f"{name} must be finite, not {value} at {index.tolist()}")


def _grad(tensor: Tensor) -> Tensor:
    return torch.zeros_like(tensor) if tensor.grad is None else tensor.grad


def _targets(graph: Graph, count: int, targets: Tensor | None, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    if graph.loss == "cross_entropy":
        if targets is None:
            return torch.randint(graph.outputs, (count,), generator=generator)
        if targets.is_floating_point() or targets.ndim != 1 or len(targets) < count:
            raise InputError(
                f"targets must be integer labels [{count}], not {targets.dtype} "
                f"{list(targets.shape)}"
            )
        labels = targets[:count].long()
        ignore = graph.loss_options.ignore_index
        wrong = labels[wrong_labels(labels, graph.outputs, ignore)]
        if len(wrong):
            raise InputError(
                f"targets must be {label_range(graph.outputs, ignore)}, not {int(wrong[0])}"
            )
        return labels
    if targets is None and graph.loss == "binary_cross_entropy":
        return torch.randint(2, (count, graph.outputs), generator=generator).double()
    if targets is None:
        return torch.randn(count, graph.outputs, generator=generator, dtype=torch.float64)
    if len(targets) < count or targets[0].numel() != graph.outputs:
        raise InputError(
            f"targets must have shape [{count}, {graph.outputs}], not {list(targets.shape)}"
        )
    _check_finite("targets", targets)
    values = targets[:count].double().reshape(count, graph.outputs)
    if graph.loss == "binary_cross_entropy":
        check_unit_interval("targets", values)
    return values


class _Chooser:
    """Joins the largest magnitudes and the choices by hand into formats."""

    def __init__(
        self,
        graph: Graph,
        largest: dict[str, float],
        by_hand: dict[str, Format | int],
        scale: float,
    ) -> None:
        self.graph = graph
        self.largest = largest
        self.by_hand = by_hand
        self.scale = scale
        self.matched: set[str] = set()
        self.names: list[str] = []

    def formats(self) -> Formats:
        graph, layers = self.graph, dict[str, LayerFormats]()
        first = feature = self._feature("input")
        last = graph.trainable[-1].name
        error = Format(2, 0)
        for node in graph.trainable:
            logits = node.name == last and graph.loss in ENTROPIES
            o_feature = self._feature(f"{node.name}.feature", logits)
            o_error = self._error(f"{node.name}.error", node.name == last)
            weight = self._weight(f"{node.name}.weight")
            exact = weight.working.frac + feature.frac
            bias = self._bias(node.name, exact) if node.bias else None
            i_error = error if layers else o_error
            layers[node.name] = LayerFormats(feature, o_feature, i_error, o_error, weight, bias)
            feature, error = o_feature, o_error
        for key in self.by_hand:
            if key not in self.matched:
                raise InputError(
                    f"formats has {key!r}, which names no tensor: use a kind of {list(WIDTHS)} "
                    f"or {self.names}"
                )
        for name, choice in (("input", first), (f"{last}.feature", feature)):
            self._travels(name, choice, TRAVEL_BITS)
        return Formats(first, layers, feature, error)

    def _choice(self, name: str, kind: str) -> Format | int:
        """The choice by hand for a tensor, the most specific first, else the default width."""
        self.names.append(name)
        fitting = [key for key in self.by_hand if key == kind or fnmatchcase(name, key)]
        self.matched.update(fitting)
        fitting.sort(key=lambda key: (key == name, key != kind))
        choice = self.by_hand[fitting[-1]] if fitting else WIDTHS[kind]
        if not isinstance(choice, (Format, int)) or isinstance(choice, bool):
            raise InputError(
                f"formats[{fitting[-1]!r}] must be a Format or a width in bits, not {choice!r}"
            )
        if isinstance(choice, Format) and not choice.signed:
            raise FormatError(f"{name} must have a signed format, not {choice}")
        return choice

    def _travels(self, name: str, choice: Format, bits: int) -> None:
        if choice.width > bits:
            raise FormatError(
                f"{name} must have at most {bits} bits, as it travels in {bits}, not {choice}"
            )

    def _feature(self, name: str, logits: bool = False) -> Format:
        choice = self._choice(name, "feature")
        if isinstance(choice, Format):
            return choice
        fitted = fit_format(self.largest[name] or 1.0, choice, _headroom_bits(choice))
        least = min(LOGIT_BITS, choice // 2 - 2)
        return Format(choice, min(fitted.frac, choice - 1 - least)) if logits else fitted

    def _error(self, name: str, last: bool) -> Format:
        choice = self._choice(name, "error")
        if isinstance(choice, Format):
            if last and self.graph.loss in ENTROPIES:
                self._reaches(name, choice)
            return choice
        fitted = fit_format(self.largest[name] or 1.0, choice, _headroom_bits(choice))
        if not last:
            return fitted
        return Format(choice, choice - 1 - self._error_bits(choice - 1 - fitted.frac))

    def _error_bits(self, fitted: int) -> int:
        """Integer bits of the logits' error: what its bound needs, or ``fitted``; at least 1."""
        bound = self.graph.loss_options.largest_error(self.graph.loss)
        needed = fitted if bound is None else math.frexp(bound)[1]
        return max(1, needed if self.graph.loss in ENTROPIES else min(fitted, needed))

    def _reaches(self, name: str, choice: Format) -> None:
        bits = self._error_bits(0)
        if choice.frac > choice.width - 1 - bits:
            bound = self.graph.loss_options.largest_error(self.graph.loss)
            raise FormatError(
                f"{name} must have at least {bits} integer bit{'s' * (bits > 1)}, as the logits' "
                f"error reaches {bound:g}, not {choice}"
            )

    def _weight(self, name: str) -> ParameterPlan:
        choice = self._choice(name, "weight")
        if isinstance(choice, Format):
            return self._parameter(name, choice)
        exponent = math.frexp(self.largest[name] or 1.0)[1]
        roomy = min(WEIGHT_RANGE_BITS, exponent + choice - 1 - SIGNIFICANT_BITS)
        integer_bits = max(exponent + WEIGHT_HEADROOM_BITS, roomy)
        return self._parameter(name, Format(choice, choice - 1 - integer_bits))

    def _bias(self, layer: str, exact: int) -> ParameterPlan:
        name = f"{layer}.bias"
        choice = self._choice(name, "bias")
        if isinstance(choice, Format):
            if choice.frac > exact:
                raise FormatError(
                    f"{name} must have at most {exact} fraction bits, those of its layer's sums, "
                    f"not {choice}"
                )
            return self._parameter(name, choice)
        largest = max(self.largest[name], self.largest[f"{layer}.feature"]) or 1.0
        fitted = fit_format(largest, choice, WEIGHT_HEADROOM_BITS)
        return self._parameter(name, Format(choice, min(fitted.frac, exact)))

    def _parameter(self, name: str, working: Format) -> ParameterPlan:
        master = self._choice(f"{name}.master", "master")
        if isinstance(master, int):
            master = Format(master, working.frac + master - working.width)
        gradient = self._choice(f"{name}.gradient", "gradient")
        if isinstance(gradient, int):
            largest = self.largest[f"{name}.gradient"] * self.scale or 1.0
            gradient = fit_format(largest, gradient, GRADIENT_HEADROOM_BITS)
        self._travels(f"{name}.master", master, PARAMETER_BITS)
        self._travels(f"{name}.gradient", gradient, PARAMETER_BITS)
        return ParameterPlan(working, master, gradient)


def _headroom_bits(width: int) -> int:
    """Bits above the largest magnitude seen that a feature or error of ``width`` bits can spare."""
    return max(1, min(HEADROOM_BITS, width // 2 - 4))


def _report(graph: Graph, formats: Formats, batches: Iterator[dict[str, Tensor]]) -> None:
    """Warn of tensors that their format turns to zero or clips."""
    chosen = {"input": formats.input}
    for name, layer in formats.layers.items():
        chosen |= {f"{name}.feature": layer.o_feature, f"{name}.error": layer.o_error}
        chosen[f"{name}.weight"] = layer.weight.working
        if layer.bias is not None:
            chosen[f"{name}.bias"] = layer.bias.working
    counts = {
        name: [0, 0, 0, 0] for name in chosen
    }  # values, not zero, not zero when quantised, clipped
    for tensors in batches:
        for name, choice in chosen.items():
            scaled = torch.round(tensors[name] * 2.0**choice.frac)
            clipped = (scaled < choice.min) | (scaled > choice.max)
            for n, mask in enumerate((torch.ones_like(scaled), tensors[name], scaled, clipped)):
                counts[name][n] += int(torch.count_nonzero(mask))
    for name, (total, nonzero, kept, clipped_count) in counts.items():
        if nonzero and not kept:
            _warn(
                f"{name} becomes zero everywhere in format {chosen[name]}: give it more fraction "
                "bits in formats"
            )
        if clipped_count > SATURATED_SHARE * total:
            share = 100 * clipped_count / total
            _warn(
                f"{name} saturates at {share:.1f} % of its values in format {chosen[name]}: give "
                "it fewer fraction bits"
            )


def _warn(text: str) -> None:
    warnings.warn(text, GradweaveWarning, stacklevel=4)
