"""The cipher in hardware is the one of the paper and of the golden model, a block a cycle."""

import random

import pytest

from gradweave.model.random import MASK, ROUNDS, encrypt, expand, random_word, round_keys
from gradweave.rtl.parts.speck import Speck
from gradweave.tests.streams import run_streams

PAPER = expand((0x1B1A1918, 0x13121110, 0x0B0A0908, 0x03020100))


def block(high, low):
    return {"high": high, "low": low}


def words_of(run):
    return [[(lane["high"], lane["low"]) for lane in word] for word in run["o"]]


def test_the_published_vector_is_reproduced():
    run = run_streams(Speck(PAPER), {"i": [[block(0x3B726574, 0x7475432D)]]}, {"o": 1})
    assert words_of(run) == [[(0x8C6FA548, 0x454E028B)]]


@pytest.mark.parametrize(("lanes", "stall"), [(1, 0.0), (2, 0.5), (3, 0.2)])
def test_every_lane_encrypts_its_own_block(lanes, stall):
    rng = random.Random(lanes)
    blocks = [[(rng.getrandbits(32), rng.getrandbits(32)) for _ in range(lanes)] for _ in range(40)]
    blocks[3] = [(MASK, MASK)] * lanes
    inputs = [[block(*pair) for pair in word] for word in blocks]
    run = run_streams(Speck(PAPER, lanes=lanes), {"i": inputs}, {"o": 40}, stall=stall, seed=1)
    assert words_of(run) == [[encrypt(PAPER, *pair) for pair in word] for word in blocks]


def test_a_random_word_is_the_block_of_element_and_step():
    run = run_streams(Speck(round_keys(2**40 + 3, 7)), {"i": [[block(5, 9)]]}, {"o": 1})
    ((high, low),) = words_of(run)[0]
    assert high << 32 | low == random_word(2**40 + 3, 7, 5, 9)


def test_a_block_enters_in_every_cycle_and_leaves_a_cycle_a_round_later():
    dut = Speck(PAPER)
    run = run_streams(dut, {"i": [[block(n, 0)] for n in range(50)]}, {"o": 50})
    first = run.times["i"][0]
    assert dut.latency == ROUNDS
    assert run.times["i"] == [first + n for n in range(50)]
    assert run.times["o"] == [first + n + ROUNDS for n in range(50)]


def test_reset_drops_blocks_on_their_way():
    inputs = [[block(n, n)] for n in range(20)]
    run = run_streams(Speck(PAPER), {"i": inputs}, {"o": 20}, reset_at=15)
    assert words_of(run) == [[encrypt(PAPER, n, n)] for n in range(20)]
