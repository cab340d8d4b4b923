"""Where a pass stands in a training: what random bits and version rules are keyed by.

Leaf of the standard library. Test: ``tests/test_network.py``.
"""

from dataclasses import dataclass

__all__ = ["Step"]


@dataclass(frozen=True)
class Step:
    """One pass over consecutive samples.

    ``training`` is False in inference; ``first_sample`` is the number of the first sample and
    ``batch`` that of the mini-batch, both counted from the training's first.
    """

    training: bool
    first_sample: int = 0
    batch: int = 0
