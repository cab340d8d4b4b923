"""Choosing formats: the largest magnitudes of a graph's tensors, and choices by hand, become
formats.

Used by ``model/calibrate.py``, which says how much room each gets. Test:
``tests/test_calibrate.py``.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from .errors import FormatError, InputError
from .format_classes import FormatClass, error_classes, feature_classes
from .formats import Format, fit_format
from .graph import Formats, Graph, LayerFormats, Node
from .plan import INPUT, ParameterPlan

__all__ = ["Chooser"]

HEADROOM_BITS = 4  # of 16-bit features and errors: an untrained network grows as it learns
LOGIT_BITS = 6  # integer bits that 16-bit logits have at least under cross-entropy: they grow most
WEIGHT_HEADROOM_BITS = 2
WEIGHT_RANGE_BITS = 2  # integer bits up to which a weight's range grows beyond that
MASTER_ROOM_BITS = 8  # by which a channel's weights may be finer than the tensor's
SIGNIFICANT_BITS = 10  # as long as its largest value keeps this many
GRADIENT_HEADROOM_BITS = 10  # sums vary from mini-batch to mini-batch, and momentum adds up
WIDTHS = {"feature": 16, "error": 16, "weight": 16, "bias": 16, "master": 32, "gradient": 32}
TRAVEL_BITS = 16  # features and targets travel in 16 bits, parameters in 32
PARAMETER_BITS = 32
ENTROPIES = ("cross_entropy", "binary_cross_entropy")


class Chooser:
    """Joins the largest magnitudes and the choices by hand into formats.

    ``largest`` is by the names of ``model/float_forward.py``; ``scale`` multiplies gradients.
    ``channels`` has the largest weight of each output channel of tensors whose channels get
    fractions of their own. ``tensors`` are the chosen formats by the names of the tensors that
    share each.
    """

    def __init__(
        self,
        graph: Graph,
        largest: Mapping[str, float],
        by_hand: Mapping[str, Format | int],
        scale: float,
        channels: Mapping[str, Sequence[float]] | None = None,
    ) -> None:
        self.channels = channels or {}
        self.graph = graph
        self.largest = largest
        self.by_hand = by_hand
        self.scale = scale
        self.matched: set[str] = set()
        self.names: list[str] = []
        self.tensors: dict[tuple[str, ...], Format] = {}

    def formats(self) -> Formats:
        """Return every tensor's format; raises InputError and FormatError."""
        last = self.graph.nodes[-1].name
        features = self._features(feature_classes(self.graph), last)
        errors = self._errors(error_classes(self.graph), last)
        layers = {
            node.name: self._layer(node, features, errors) for node in reversed(self.graph.nodes)
        }
        for key in self.by_hand:
            if key not in self.matched:
                raise InputError(
                    f"formats has {key!r}, which names no tensor: use a kind of {list(WIDTHS)} "
                    f"or {self.names}"
                )
        ordered = {node.name: layers[node.name] for node in self.graph.nodes}
        return Formats(features[INPUT], ordered, features[last], errors[last])

    def _features(self, classes: Mapping[str, FormatClass], last: str) -> dict[str, Format]:
        """Return the format of each layer's output, and of ``input``."""
        chosen = {c: self._feature(c, c is classes[last]) for c in dict.fromkeys(classes.values())}
        for name in (INPUT, last):
            self._travels(classes[name].name, chosen[classes[name]], TRAVEL_BITS)
        self.tensors |= {c.members: choice for c, choice in chosen.items()}
        return {name: chosen[c] for name, c in classes.items()}

    def _errors(self, classes: Mapping[str, FormatClass], last: str) -> dict[str, Format]:
        """Return the format of the error of each layer's output, of those that have one."""
        chosen = {c: self._error(c, c is classes[last]) for c in dict.fromkeys(classes.values())}
        self.tensors |= {c.members: choice for c, choice in chosen.items()}
        return {name: chosen[c] for name, c in classes.items()}

    def _layer(
        self, node: Node, features: Mapping[str, Format], errors: dict[str, Format]
    ) -> LayerFormats:
        """Return a layer's formats; ``errors`` gets those that are never used, below it."""
        sources = self.graph.sources[node.name]
        i_feature, o_error = features[sources[0]], errors[node.name]
        i_error = next((errors[s] for s in sources if s in self.graph.error_takers), o_error)
        for source in sources:
            errors.setdefault(source, i_error)
        weight = self._weight(f"{node.name}.weight") if node.trainable else None
        exact = 0 if weight is None else weight.working.frac + i_feature.frac
        bias = self._bias(node.name, exact) if node.bias else None
        return LayerFormats(i_feature, features[node.name], i_error, o_error, weight, bias)

    def _choice(self, names: Sequence[str], kind: str, shown: str | None = None) -> Format | int:
        """The choice by hand for tensors of one format, the most specific first, else the default
        width. Messages call them ``shown``.
        """
        shown = shown or names[0]
        self.names.append(shown)
        exact = [name for name in names if name in self.by_hand]
        fitting = [key for key in self.by_hand if key == kind or _matches(key, names)]
        self.matched.update(fitting)
        fitting.sort(key=lambda key: (key in exact, key != kind))
        choice = self.by_hand[fitting[-1]] if fitting else WIDTHS[kind]
        if not isinstance(choice, (Format, int)) or isinstance(choice, bool):
            raise InputError(
                f"formats[{fitting[-1]!r}] must be a Format or a width in bits, not {choice!r}"
            )
        for name in exact:
            if self.by_hand[name] != choice:
                raise InputError(
                    f"formats has {name!r} = {self.by_hand[name]} and {fitting[-1]!r} = {choice}, "
                    "which share one format: give it once"
                )
        if isinstance(choice, Format) and not choice.signed:
            raise FormatError(f"{shown} must have a signed format, not {choice}")
        return choice

    def _travels(self, name: str, choice: Format, bits: int) -> None:
        if choice.width > bits:
            raise FormatError(
                f"{name} must have at most {bits} bits, as it travels in {bits}, not {choice}"
            )

    def _largest(self, tied: FormatClass) -> float:
        return max(self.largest[name] for name in tied.members) or 1.0

    def _feature(self, tied: FormatClass, logits: bool) -> Format:
        choice = self._choice(tied.members, "feature", tied.name)
        if isinstance(choice, Format):
            return choice
        if tied.bounded:
            return fit_format(1.0, choice)
        fitted = fit_format(self._largest(tied), choice, _headroom_bits(choice))
        if not logits or self.graph.loss not in ENTROPIES:
            return fitted
        return Format(choice, min(fitted.frac, choice - 1 - min(LOGIT_BITS, choice // 2 - 2)))

    def _error(self, tied: FormatClass, last: bool) -> Format:
        choice = self._choice(tied.members, "error", tied.name)
        exact = last and self.graph.loss in ENTROPIES
        if isinstance(choice, Format):
            if exact:
                self._reaches(tied.name, choice)
            return choice
        fitted = fit_format(self._largest(tied), choice, _headroom_bits(choice))
        if not last:
            return fitted
        return Format(choice, choice - 1 - self._error_bits(tied, choice - 1 - fitted.frac))

    def _error_bits(self, tied: FormatClass, fitted: int) -> int:
        """Integer bits of the logits' error: what its bound needs, or ``fitted``; at least 1.

        Where the logits are tied to other tensors, whose errors may be larger, both are kept.
        """
        bound = self.graph.loss_options.largest_error(self.graph.loss)
        if bound is None:
            return max(1, fitted)
        needed = max(1, math.frexp(bound)[1])
        if self.graph.loss not in ENTROPIES:
            return min(max(1, fitted), needed)
        return needed if self._largest(tied) <= bound else max(needed, fitted)

    def _reaches(self, name: str, choice: Format) -> None:
        bound = self.graph.loss_options.largest_error(self.graph.loss)
        bits = max(1, math.frexp(bound or 1.0)[1])
        if choice.frac > choice.width - 1 - bits:
            raise FormatError(
                f"{name} must have at least {bits} integer bit{'s' * (bits > 1)}, as the logits' "
                f"error reaches {bound:g}, not {choice}"
            )

    def _weight(self, name: str) -> ParameterPlan:
        choice = self._choice([name], "weight")
        if isinstance(choice, Format):
            return self._parameter(name, choice)
        integer_bits = _weight_bits(self.largest[name], choice)
        # A channel without weights may still grow as large as the others.
        each = [_weight_bits(x or self.largest[name], choice) for x in self.channels.get(name, ())]
        plan = self._parameter(name, Format(choice, choice - 1 - integer_bits))
        finest = max(min(each, default=integer_bits), integer_bits - MASTER_ROOM_BITS)
        if finest == integer_bits:
            return plan
        working = Format(choice, choice - 1 - finest)
        coarser = tuple(max(bits, finest) - finest for bits in each)
        return dataclasses.replace(plan, working=working, coarser=coarser)

    def _bias(self, layer: str, exact: int) -> ParameterPlan:
        name = f"{layer}.bias"
        choice = self._choice([name], "bias")
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
        master = self._choice([f"{name}.master"], "master")
        if isinstance(master, int):
            master = Format(master, working.frac + master - working.width)
        gradient = self._choice([f"{name}.gradient"], "gradient")
        if isinstance(gradient, int):
            largest = self.largest[f"{name}.gradient"] * self.scale or 1.0
            gradient = fit_format(largest, gradient, GRADIENT_HEADROOM_BITS)
        self.tensors[(name,)] = working
        self._travels(f"{name}.master", master, PARAMETER_BITS)
        self._travels(f"{name}.gradient", gradient, PARAMETER_BITS)
        return ParameterPlan(working, master, gradient)


def _weight_bits(largest: float, width: int) -> int:
    """Integer bits of weights whose largest magnitude is given."""
    exponent = math.frexp(largest or 1.0)[1]
    roomy = min(WEIGHT_RANGE_BITS, exponent + width - 1 - SIGNIFICANT_BITS)
    return max(exponent + WEIGHT_HEADROOM_BITS, roomy)


def _matches(key: str, names: Sequence[str]) -> bool:
    return any(fnmatchcase(name, key) for name in names)


def _headroom_bits(width: int) -> int:
    """Bits above the largest magnitude seen that a feature or error of ``width`` bits can spare."""
    return max(1, min(HEADROOM_BITS, width // 2 - 4))
