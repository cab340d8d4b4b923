"""Rules for layers with several inputs: addition, and concatenation of channels.

Used by ``model/rules.py``. Test: ``tests/test_rules.py``.
"""

from .calls import Call, show
from .graph import Node

__all__ = ["add", "concatenate"]


def add(call: Call) -> tuple[Node, ...]:
    """Two outputs of layers, of one shape."""
    given = call.arguments(other=None, alpha=1)
    if len(call.values) == 1:
        other = given["other"]
        if isinstance(other, (int, float)) and other == 0:  # what Python's sum() starts with
            return ()
        raise call.refusal("both its inputs must be outputs of layers, not a constant or parameter")
    if given["alpha"] != 1:
        raise call.refusal(f"alpha must be 1, not {given['alpha']}")
    first, second = call.values
    if first.sizes != second.sizes:
        raise call.refusal(
            f"its inputs must have one shape, not {show(first.sizes)} and {show(second.sizes)}: "
            "broadcasting is not built"
        )
    if first.shape != second.shape:
        raise call.refusal(
            "its inputs must be flattened from maps of one shape, not "
            f"{show(first.shape)} and {show(second.shape)}"
        )
    return (call.node("add"),)


def concatenate(call: Call) -> tuple[Node, ...]:
    """Channels of maps of one height and width, in order."""
    given = call.arguments(dim=0)
    sizes = {len(value.sizes) for value in call.values}
    if sizes not in ({1}, {3}):
        raise call.refusal("its inputs must all be maps, or all be [N, features]")
    if given["dim"] not in (1, -sizes.pop()):
        raise call.refusal(f"dim must be 1, the channels, not {given['dim']}")
    maps = sorted({value.shape[1:] for value in call.values})
    if len(maps) > 1:
        raise call.refusal(
            "its inputs must have one height and width, also before they were flattened, not "
            + " and ".join(show(size) for size in maps)
        )
    if len(call.values) == 1:
        return ()
    parts = tuple(value.shape[0] for value in call.values)
    shape = (sum(parts), *maps[0])
    return (call.node("concat", i_shape=shape, o_shape=shape, parts=parts),)
