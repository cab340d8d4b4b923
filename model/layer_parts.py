"""Parts of a layer's plan: the formats of a trained tensor, and the depths of its buffers.

Leaf of the standard library. Part of ``model/layer_plan.py``. Test: ``tests/test_plan.py``.
"""

from dataclasses import dataclass

from .formats import Format

__all__ = ["Buffers", "ParameterPlan"]


@dataclass(frozen=True)
class ParameterPlan:
    """Formats of one trained tensor.

    ``working`` is what FP and EB multiply by; ``master`` is what the update unit keeps;
    ``gradient`` is what the gradient sum is requantised to, and also the format of momentum and of
    the step. With ``coarser`` the working weights of output channel o have ``coarser[o]`` fraction
    bits less than ``working``, and so a wider range; empty: none has.
    """

    working: Format
    master: Format
    gradient: Format
    coarser: tuple[int, ...] = ()

    @property
    def spread(self) -> int:
        """By how many bits the fractions of channels differ."""
        return max(self.coarser, default=0)

    @property
    def width(self) -> int:
        """Bits of a working weight on the finest channel's grid."""
        return self.working.width + self.spread


@dataclass(frozen=True)
class Buffers:
    """Computed depths. Rows are rows of a map, words are stream transfers (of ``lanes`` values)."""

    fp_rows: int = 0  # rows in front of FP
    eb_rows: int = 0  # error rows in front of EB
    wg_rows: int = 0  # feature rows that wait for WG
    error_words: int = 0  # errors that wait for WG
    index_words: int = 0  # masks, indices or features that wait for their errors
    # Of a join, features per source that wait for the others; of a fork, errors per consumer.
    join_words: tuple[int, ...] = ()
