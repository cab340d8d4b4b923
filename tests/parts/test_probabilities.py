# amaranth: UnusedElaboratable=no
# ruff: noqa: ERA001
"""Probabilities of any number of lanes and words are the golden softmax, a tag with each word."""

import random

import pytest
import torch
from amaranth.hdl import unsigned

from gradweave.model.formats import Format, Rounding
from gradweave.model.pipeline.softmax import probabilities
from gradweave.rtl.parts.probabilities import Probabilities
from gradweave.tests.streams import run_streams

FEATURE = Format(10, 5)


@pytest.mark.parametrize("stall", [0.0, 0.5])
@pytest.mark.parametrize(("lanes", "words"), [(1, 1), (1, 2), (1, 7), (2, 1), (3, 2), (4, 3)])
@pytest.mark.parametrize("frac", [0, 1, 8, 15])
def test_quotients_are_the_golden_softmax(frac, lanes, words, stall):
    rng = random.Random(lanes * 100 + words)
    pixels = 6
    values = [rng.randrange(-512, 512) >> n % 5 for n in range(pixels * words * lanes)]
    groups = [values[n : n + lanes] for n in range(0, len(values), lanes)]
    dut = Probabilities(
        lanes=lanes,
        words=words,
        feature=FEATURE,
        frac=frac,
        rounding=Rounding.HALF_EVEN,
        tag=unsigned(7),
    )
    count = pixels * words
    run = run_streams(
        dut,
        {"i": [{"values": group, "tag": n} for n, group in enumerate(groups)]},
        {"o": count},
        stall=stall,
        seed=frac,
    )
    wanted = probabilities(
        torch.tensor(values).view(pixels, words * lanes), FEATURE, frac, Rounding.HALF_EVEN
    )
    assert [list(word["quotients"]) for word in run["o"]] == wanted.view(-1, lanes).tolist()
    assert [word["tag"] for word in run["o"]] == list(range(count))
    if not stall:
        each = (frac + 2) // 2
        first = run.times["i"][0] + dut.latency
        gap = max(each, 1)
        assert run.times["o"] == [first + gap * n for n in range(count)]
