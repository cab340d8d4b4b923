# amaranth: UnusedElaboratable=no
# ruff: noqa: ERA001
"""The divider gives the nearest quotient, ties to the even one, for every part of a whole."""

import random
from fractions import Fraction

import pytest

from gradweave.rtl.parts.divider import Divider
from gradweave.tests.streams import run_streams


def divide(pairs, width, frac, **options):
    words = [{"part": part, "whole": whole, "tag": n % 4} for n, (part, whole) in enumerate(pairs)]
    dut = Divider(width=width, part_width=width, frac=frac, tag=2)
    run = run_streams(dut, {"i": words}, {"o": len(words)}, **options)
    assert [word["tag"] for word in run["o"]] == [word["tag"] for word in words]
    return [word["quotient"] for word in run["o"]], run, dut


def test_quotients_worked_by_hand():
    # In quarters: 1/3 = 1.33, 1/8 = 0.5 to the even 0, 3/8 = 1.5 to the even 2, 7/7 = 4.
    found, _, _ = divide([(1, 3), (1, 8), (3, 8), (7, 7), (0, 5)], 4, 2)
    assert found == [1, 0, 2, 4, 0]


@pytest.mark.parametrize("frac", [0, 1, 2, 5])
def test_every_pair_of_small_numbers_is_right(frac):
    pairs = [(part, whole) for whole in range(1, 16) for part in range(whole + 1)]
    expected = [round(Fraction(part << frac, whole)) for part, whole in pairs]
    assert divide(pairs, 4, frac)[0] == expected


@pytest.mark.parametrize("stall", [0.0, 0.5])
@pytest.mark.parametrize(("width", "frac"), [(20, 15), (17, 14)])
def test_wide_pairs_are_right(width, frac, stall):
    rng = random.Random(width)
    wholes = [rng.randint(1, (1 << width) - 1) for _ in range(50)]
    pairs = [(rng.randint(0, whole), whole) for whole in wholes]
    expected = [round(Fraction(part << frac, whole)) for part, whole in pairs]
    assert divide(pairs, width, frac, stall=stall)[0] == expected


@pytest.mark.parametrize("frac", [0, 1, 7, 14])
def test_interval_and_latency_are_as_stated(frac):
    _, run, dut = divide([(1, 3)] * 8, 4, frac)
    assert dut.interval == -(-(frac + 1) // 2)
    first = run.times["i"][0]
    assert run.times["i"] == [first + n * dut.interval for n in range(8)]
    assert run.times["o"] == [cycle + dut.latency for cycle in run.times["i"]]


def test_reset_in_mid_division_starts_again():
    pairs = [(n, 13) for n in range(13)]
    expected = [round(Fraction(n << 6, 13)) for n in range(13)]
    assert divide(pairs, 4, 6, stall=0.3, reset_at=11)[0] == expected
