"""What the tests of forks and joins share: a layer's plan, and maps as words of its lanes."""

import torch

from gradweave.model.formats import Format
from gradweave.model.plan import Buffers, LayerPlan

__all__ = ["ERROR", "FEATURE", "layer", "random_maps", "to_words"]

FEATURE, ERROR = Format(8, 4), Format(6, 5)


def layer(kind, shape, *, depths, lanes=1, **options) -> LayerPlan:
    """A fork or a join with FIFOs of ``depths`` words; formats are 8.4 and 6.5 bits."""
    plain = {"i_feature": FEATURE, "o_feature": FEATURE, "i_error": ERROR, "o_error": ERROR}
    return LayerPlan(
        **{"name": kind, "kind": kind, "i_shape": shape, "o_shape": shape, "backward": True}
        | plain
        | {"lanes": lanes, "buffers": Buffers(join_words=depths)}
        | options
    )


def random_maps(generator: torch.Generator, fmt: Format, *shape: int) -> torch.Tensor:
    """Integers from the whole range of ``fmt`` [samples, channels, height, width], float64."""
    return torch.randint(fmt.min, fmt.max + 1, shape, generator=generator).double()


def to_words(maps: torch.Tensor, lanes: int) -> list[list[int]]:
    """Maps [B, C, H, W] in raster order, channels innermost."""
    return maps.permute(0, 2, 3, 1).reshape(-1, lanes).long().tolist()
