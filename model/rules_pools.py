"""Rules for pooling: maxima and means over windows.

Used by ``model/rules.py``. Test: ``tests/test_rules.py``.
"""

from .calls import Call, pair
from .graph import Node

__all__ = ["adaptive_average", "adaptive_maximum", "average_pool", "max_pool", "mean"]


def max_pool(call: Call) -> tuple[Node, ...]:
    """Maxima over any window; the first of equals takes the error."""
    call.check_map()
    given = call.arguments(
        kernel_size=1, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False
    )
    if given["return_indices"]:
        raise call.refusal("return_indices must be False")
    made = call.node(
        "maxpool2d",
        kernel=pair(given["kernel_size"]),
        stride=pair(given["stride"] or given["kernel_size"]),
        padding=pair(given["padding"]),
        dilation=pair(given["dilation"]),
    )
    return (made,)


def average_pool(call: Call) -> tuple[Node, ...]:
    """Means over windows, with or without the padding in the divisor."""
    call.check_map()
    given = call.arguments(
        kernel_size=1,
        stride=None,
        padding=0,
        ceil_mode=False,
        count_include_pad=True,
        divisor_override=None,
    )
    if given["divisor_override"] is not None:
        raise call.refusal(
            f"divisor_override must be None, not {given['divisor_override']}: the divisor is the "
            "number of entries of a window"
        )
    made = call.node(
        "avgpool2d",
        kernel=pair(given["kernel_size"]),
        stride=pair(given["stride"] or given["kernel_size"]),
        padding=pair(given["padding"]),
        count_padding=bool(given["count_include_pad"]),
    )
    return (made,)


def adaptive_average(call: Call) -> tuple[Node, ...]:
    """Means over windows that cover the map."""
    call.check_map()
    return (call.node("avgpool2d", adaptive=True, o_shape=_adaptive_shape(call)),)


def adaptive_maximum(call: Call) -> tuple[Node, ...]:
    """Adaptive maxima whose windows are those of a plain pool."""
    call.check_map()
    if call.arguments(output_size=1, return_indices=False)["return_indices"]:
        raise call.refusal("return_indices must be False")
    channels, height, width = call.value.shape
    _, rows, cols = _adaptive_shape(call)
    if height % rows or width % cols:
        raise call.refusal(
            f"output_size must divide the map of {height}x{width}, not be {rows}x{cols}"
        )
    kernel = (height // rows, width // cols)
    return (call.node("maxpool2d", kernel=kernel, stride=kernel, o_shape=(channels, rows, cols)),)


def mean(call: Call) -> tuple[Node, ...]:
    """The mean over height and width, which is an adaptive pool of one window."""
    call.check_map()
    given = call.arguments(dim=None, keepdim=False, dtype=None)
    dims = given["dim"]
    found = sorted(n % 4 for n in dims) if isinstance(dims, (tuple, list)) else dims
    if found != [2, 3]:
        raise call.refusal(f"dim must be (2, 3), height and width, not {dims}")
    if given["dtype"] is not None:
        raise call.refusal(f"dtype must be None, not {given['dtype']}")
    return (call.node("avgpool2d", adaptive=True, o_shape=(call.value.shape[0], 1, 1)),)


def _adaptive_shape(call: Call) -> tuple[int, int, int]:
    size = call.arguments(output_size=1, return_indices=False)["output_size"]
    wanted = (size, size) if size is None or isinstance(size, int) else tuple(size)
    channels, height, width = call.value.shape
    rows, cols = wanted[0], wanted[-1]
    return (channels, height if rows is None else rows, width if cols is None else cols)
