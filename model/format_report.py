"""The report of a calibration: warns of tensors that their format turns to zero or clips.

Used by ``model/calibrate.py``. Test: ``tests/test_calibrate.py``.
"""

import warnings
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from .errors import GradweaveWarning
from .formats import Format

__all__ = ["report", "warn"]

SATURATED_SHARE = 0.01


def report(chosen: Mapping[tuple[str, ...], Format], batches: Iterator[dict[str, Tensor]]) -> None:
    """Warn once of every format that turns a whole tensor to zero, or clips more than 1 % of one.

    ``chosen`` are formats by the names of the tensors that share each, ``batches`` those tensors;
    the first that suffers is named.
    """
    formats = {name: choice for names, choice in chosen.items() for name in names}
    # By tensor: values, those that are not zero, those that stay so when quantised, those clipped.
    counts = {name: [0, 0, 0, 0] for name in formats}
    for tensors in batches:
        for name, choice in formats.items():
            scaled = torch.round(tensors[name] * 2.0**choice.frac)
            clipped = (scaled < choice.min) | (scaled > choice.max)
            for n, mask in enumerate((torch.ones_like(scaled), tensors[name], scaled, clipped)):
                counts[name][n] += int(torch.count_nonzero(mask))
    for names, choice in chosen.items():
        lost = [name for name in names if counts[name][1] and not counts[name][2]]
        if lost:
            warn(
                f"{lost[0]} becomes zero everywhere in format {choice}: give it more fraction "
                "bits in formats"
            )
        shares = {name: counts[name][3] / counts[name][0] for name in names}
        clipped_names = [name for name in names if shares[name] > SATURATED_SHARE]
        if clipped_names:
            first = clipped_names[0]
            warn(
                f"{first} saturates at {100 * shares[first]:.1f} % of its values in format "
                f"{choice}: give it fewer fraction bits"
            )


def warn(text: str, stacklevel: int = 4) -> None:
    """Issue a GradweaveWarning; ``stacklevel`` counts from here to the caller of calibration."""
    warnings.warn(text, GradweaveWarning, stacklevel=stacklevel)
