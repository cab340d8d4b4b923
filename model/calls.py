"""One call of a traced model, as the rules see it: its title, its arguments and what flows in.

Used by ``model/rules.py`` and the files of rules that it lists. Test: ``tests/test_rules.py``,
``tests/test_refusals.py``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from .errors import UnsupportedError
from .graph import Node, Pair, Shape

__all__ = ["Call", "Padding", "Rule", "Value", "called", "pair", "show"]

Padding = tuple[int, int, int, int]


def show(shape: tuple[int, ...]) -> str:
    """Such as ``3x8x8``."""
    return "x".join(str(size) for size in shape)


def called(target: Any) -> str:
    """The name of a function, a method or an aten operator, the latter without its overload."""
    return str(getattr(target, "__name__", target)).split(".")[0]


def pair(value: Any) -> Pair:
    """torch's int, one-element or two-element argument as (height, width)."""
    values = (value,) if isinstance(value, int) else tuple(value)
    return (int(values[0]), int(values[-1]))


@dataclass(frozen=True)
class Value:
    """A feature in a traced model.

    ``name`` is the layer that makes it, or ``"input"``; ``shape`` is (channels, height, width) as
    it was before any flattening, ``sizes`` torch's shape of one sample; ``zeros`` (top, bottom,
    left, right) surround it without being in ``shape``, until a convolution takes them as its
    padding.
    """

    name: str
    shape: Shape
    sizes: tuple[int, ...]
    zeros: Padding = (0, 0, 0, 0)


@dataclass(frozen=True)
class Call:
    """One call: ``name`` is that of its layer, ``title`` starts every message.

    ``module`` is the module that is called, None for a function; ``args`` and ``kwargs`` stand
    behind the features that come in.
    """

    title: str
    name: str
    values: tuple[Value, ...]
    module: nn.Module | None = None
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def value(self) -> Value:
        return self.values[0]

    def refusal(self, rule: str) -> UnsupportedError:
        return UnsupportedError(f"{self.title} is not supported: {rule}")

    def arguments(self, **defaults: Any) -> dict[str, Any]:
        """Return the call's arguments in the order of ``defaults``, by name: a module's attributes
        or a function's arguments.
        """
        if self.module is not None:
            return {key: getattr(self.module, key, value) for key, value in defaults.items()}
        given = dict(zip(defaults, self.args, strict=False))
        known = {key: value for key, value in self.kwargs.items() if key in defaults}
        if len(self.args) > len(defaults) or len(known) < len(self.kwargs):
            extra = [*map(str, self.args[len(defaults) :]), *(set(self.kwargs) - set(known))]
            raise self.refusal(f"it must have no argument beyond {list(defaults)}, not {extra}")
        return {**defaults, **given, **known}

    def check_map(self) -> None:
        if len(self.value.sizes) != 3:
            raise self.refusal("its input must be a map [N, channels, height, width]")

    def node(self, kind: str, **fields: Any) -> Node:
        """Return a layer that keeps its input's shape, unless ``fields`` say otherwise."""
        shape = self.value.shape
        return Node(**{"name": self.name, "i_shape": shape, "o_shape": shape, **fields}, kind=kind)


# Judges a call: the layers that it becomes, one behind the other; none where it is dropped. Where
# the last one's output shape depends on more than the call tells, torch's result replaces it.
Rule = Callable[[Call], tuple[Node, ...]]
