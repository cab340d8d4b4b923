"""Few cases in which every pair of choices meets: most faults need no more than two.

``covering`` draws from lists of partial cases, one list for factors that constrain each other, so
that whatever is joined is a case that may be.
"""

import random
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any

__all__ = ["covering", "pairs"]

Case = dict[str, Any]
Pair = tuple[tuple[str, Any], ...]

DRAWS = 40  # candidates for each case


def pairs(case: Case) -> set[Pair]:
    """Every two choices of a case, by factor."""
    return set(combinations(sorted(case.items(), key=lambda item: item[0]), 2))


def covering(
    blocks: Sequence[Sequence[Case]], *, seed: int, cost: Callable[[Case], float]
) -> list[Case]:
    """Return cases in which every possible pair of choices meets, cheap ones first in doubt.

    Parameters
    ----------
    blocks : lists of partial cases; a case joins one of each
    cost : of a case; what a new pair is worth is divided by it
    """
    rng = random.Random(seed)
    missing = _possible(blocks)
    cases = []
    for pair in sorted(missing, key=str):
        if pair not in missing:
            continue
        wanted = dict(pair)
        fitting = [
            [part for part in block if all(part.get(k, v) == v for k, v in wanted.items())]
            for block in blocks
        ]
        drawn = [_join(rng.choice(block) for block in fitting) for _ in range(DRAWS)]
        best = max(drawn, key=lambda case: len(pairs(case) & missing) / cost(case))
        cases.append(best)
        missing -= pairs(best)
    return cases


def _join(parts: Any) -> Case:
    return {name: value for part in parts for name, value in part.items()}


def _possible(blocks: Sequence[Sequence[Case]]) -> set[Pair]:
    found = set().union(*(pairs(part) for block in blocks for part in block))
    for first, second in combinations(blocks, 2):
        choices = [{item for part in block for item in part.items()} for block in (first, second)]
        found |= set().union(*(pairs(dict((x, y))) for x in choices[0] for y in choices[1]))
    return found
