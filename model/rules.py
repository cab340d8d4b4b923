"""Which calls the hardware has: judges one layer of a traced model by its type and arguments.

Used by ``model/trace.py``. Test: ``tests/test_trace.py``.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn

from .errors import UnsupportedError
from .graph import Node

__all__ = ["FLATTEN", "KERNEL_MAX", "Judge", "show"]

KERNEL_MAX = 11
FLATTEN = "flatten"
SUPPORTED = "supported are Conv2d, Linear, ReLU, MaxPool2d, Flatten and Identity"

HINTS = {
    "BatchNorm2d": "normalisation is not trained in hardware; remove it and let the layer "
    "before have a bias",
    "ConvTranspose2d": "transposed convolutions are not built",
    "Dropout": "it would change training; replace it by Identity",
    "Softmax": "the cross-entropy loss applies softmax itself; remove it and return the logits",
    "LogSoftmax": "the cross-entropy loss applies softmax itself; remove it and return the logits",
}

_RELUS = {torch.relu, torch.relu_, F.relu, F.relu_}
_POOLS = {F.max_pool2d, torch.max_pool2d}
_SOFTMAXES = {"softmax", "log_softmax"}

Maker = Callable[[str, tuple[int, ...]], Node]


def show(shape: tuple[int, ...]) -> str:
    """Such as ``3x8x8``."""
    return "x".join(str(size) for size in shape)


def _pair(value: Any) -> tuple[int, int]:
    """torch's int, one-element or two-element argument as (height, width)."""
    values = (value,) if isinstance(value, int) else tuple(value)
    return (int(values[0]), int(values[-1]))


class Judge:
    """Judges one call whose input has ``ndim`` dimensions, and ``shape`` (channels, height, width)
    before flattening.

    ``title`` starts every message: the module's path, type and input shape.
    """

    def __init__(self, title: str, ndim: int, shape: tuple[int, ...]) -> None:
        self.title = title
        self.ndim = ndim
        self.shape = (shape[0], shape[1], shape[2])

    def judge(self, node: fx.Node, module: nn.Module | None) -> tuple[str, Maker | None]:
        """Return the call's kind and a function of (name, output shape) that makes its node, None
        where it is dropped.

        Raises
        ------
        UnsupportedError
            When the call or one of its arguments is not built.
        """
        if module is not None:
            return self._module(module)
        name = str(getattr(node.target, "__name__", node.target))
        if node.target in _RELUS or (node.op == "call_method" and node.target in ("relu", "relu_")):
            return "relu", self._same("relu")
        if node.target in _POOLS:
            return "maxpool2d", self._pool(**_bind_pool(*node.args[1:], **node.kwargs))
        if name in ("flatten", "view", "reshape"):
            return FLATTEN, None
        if name in _SOFTMAXES:
            raise self._refusal(HINTS["Softmax"])
        raise self._refusal(
            f"{SUPPORTED}, and the functions relu, max_pool2d, flatten, view and reshape"
        )

    def _refusal(self, rule: str) -> UnsupportedError:
        return UnsupportedError(f"{self.title} is not supported: {rule}")

    def _module(self, module: nn.Module) -> tuple[str, Maker | None]:
        if module._forward_hooks or module._forward_pre_hooks:
            raise self._refusal("its forward hooks would be lost; remove them")
        kind = type(module)
        if kind is nn.Conv2d:
            return "conv2d", self._conv(module)  # type: ignore[arg-type]
        if kind is nn.Linear:
            return "linear", self._linear(module)  # type: ignore[arg-type]
        if kind is nn.ReLU:
            return "relu", self._same("relu")
        if kind is nn.MaxPool2d:
            names = ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")
            return "maxpool2d", self._pool(**{name: getattr(module, name) for name in names})
        if kind is nn.Flatten:
            return FLATTEN, None
        if kind is nn.Identity:
            return "identity", None
        raise self._refusal(HINTS.get(kind.__name__, SUPPORTED))

    def _same(self, kind: str) -> Maker:
        return lambda name, _: Node(name, kind, self.shape, self.shape)

    def _check_map(self) -> None:
        if self.ndim != 4:
            raise self._refusal("its input must be a map [N, channels, height, width]")

    def _conv(self, layer: nn.Conv2d) -> Maker:
        self._check_map()
        kernel, stride = _pair(layer.kernel_size), _pair(layer.stride)
        if layer.groups != 1:
            raise self._refusal(f"groups must be 1, not {layer.groups}")
        if _pair(layer.dilation) != (1, 1):
            raise self._refusal(f"dilation must be 1, not {_pair(layer.dilation)}")
        if layer.padding_mode != "zeros":
            raise self._refusal(f"padding_mode must be 'zeros', not {layer.padding_mode!r}")
        if max(kernel) > KERNEL_MAX:
            raise self._refusal(f"kernel_size must be 1 to {KERNEL_MAX}, not {kernel}")
        if layer.padding == "same":
            if kernel[0] % 2 == 0 or kernel[1] % 2 == 0:
                raise self._refusal(
                    f"padding='same' must be symmetric, so kernel_size must be odd, not {kernel}"
                )
            padding = ((kernel[0] - 1) // 2, (kernel[1] - 1) // 2)
        else:
            padding = (0, 0) if layer.padding == "valid" else _pair(layer.padding)
        bias = layer.bias is not None
        return lambda name, o: Node(
            name, "conv2d", self.shape, (o[0], o[1], o[2]), kernel, stride, padding, bias
        )

    def _linear(self, layer: nn.Linear) -> Maker:
        if self.ndim != 2:
            raise self._refusal("its input must be [N, features]; put Flatten before it")
        bias = layer.bias is not None
        kernel = self.shape[1:]
        return lambda name, o: Node(
            name, "linear", self.shape, (o[0], 1, 1), kernel, (1, 1), (0, 0), bias
        )

    def _pool(
        self,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Maker:
        self._check_map()
        if _pair(dilation) != (1, 1):
            raise self._refusal(f"dilation must be 1, not {_pair(dilation)}")
        if ceil_mode:
            raise self._refusal("ceil_mode must be False")
        if return_indices:
            raise self._refusal("return_indices must be False")
        kernel = _pair(kernel_size)
        strides = kernel if stride is None or stride == [] else _pair(stride)
        return lambda name, o: Node(
            name, "maxpool2d", self.shape, (o[0], o[1], o[2]), kernel, strides, _pair(padding)
        )


def _bind_pool(*args: Any, **kwargs: Any) -> dict[str, Any]:
    """Arguments of ``max_pool2d`` behind its input, by name."""
    names = ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")
    named = dict(zip(names, args, strict=False))
    return {**named, **{key: value for key, value in kwargs.items() if key != "input"}}
