"""Dropout in hardware is its golden model: the same masks at any stall, lanes and start."""

import random
from dataclasses import replace

import pytest
from amaranth.hdl import Elaboratable, Module, Signal
from amaranth.lib import stream

from gradweave.model.formats import Format, Rounding
from gradweave.model.pipeline.dropout import Dropout as Golden
from gradweave.model.random import ROUNDS, random_word
from gradweave.model.step import Step
from gradweave.rtl.pipeline.dropout import Dropout
from gradweave.tests.relay_bench import (
    ROUNDINGS,
    check_relay_layer,
    check_timing,
    grid,
    relay_layer,
    to_words,
)
from gradweave.tests.streams import random_lanes, run_streams

HALF = 1 << 15


def dropout(drop=HALF, **rest):
    return relay_layer("dropout", **{"drop": drop, "number": 1, "seed": 77, **rest})


class Started(Elaboratable):
    """A dropout whose random stream is started again at some sample, after some cycles; features
    wait for it.
    """

    def __init__(self, dut, after):
        self.dut = dut
        self.after = after
        self.i = stream.Signature(dut.i.payload.shape()).create()
        self.o, self.first_sample = dut.o, dut.first_sample
        self.o_error, self.i_error, self.training = dut.o_error, dut.i_error, dut.training

    def elaborate(self, platform):
        m = Module()
        m.submodules.dut = self.dut
        passed = Signal(range(self.after + 2))
        m.d.comb += self.dut.clear.eq(passed == self.after)
        m.d.comb += self.dut.i.payload.eq(self.i.payload)
        with m.If(passed <= self.after):
            m.d.sync += passed.eq(passed + 1)
        with m.Else():
            m.d.comb += [self.dut.i.valid.eq(self.i.valid), self.i.ready.eq(self.dut.i.ready)]
        return m


@pytest.mark.parametrize("stall", [0.0, 0.5])
@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("drop", [1, 20000, HALF, 65535])
def test_it_is_its_golden_model(drop, rounding, stall):
    layer = dropout(drop, index_words=7)
    check_relay_layer(Dropout, Golden, layer, rounding, stall=stall, seed=drop)


@pytest.mark.parametrize(("lanes", "index_words"), [(1, 64), (2, 1), (4, 2), (4, 3)])
def test_lanes_and_depths_change_no_bit(lanes, index_words):
    layer = dropout(lanes=lanes, index_words=index_words)
    check_relay_layer(Dropout, Golden, layer, Rounding.HALF_EVEN, stall=0.4, seed=2)


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 1, 1), (1, 1, 5), (2, 3, 3)])
def test_every_map_is_counted_to_its_end(shape):
    layer = dropout(shape=shape, lanes=1, number=2**32 - 1, seed=2**64 - 1)
    check_relay_layer(Dropout, Golden, layer, Rounding.FLOOR, samples=12, seed=3)


@pytest.mark.parametrize("widths", [(2, 2), (32, 32), (4, 24)])
def test_any_format_is_right(widths):
    feature, error = Format(widths[0], 1), Format(widths[1], 30)
    layer = dropout(50000, feature=feature, error=error)
    check_relay_layer(Dropout, Golden, layer, Rounding.HALF_EVEN, stall=0.3)


@pytest.mark.parametrize("beyond", [0, 1])
def test_a_value_whose_bits_equal_the_share_is_kept(beyond):
    bits = random_word(77, 1, 0, 0) & 0xFFFF
    layer = dropout(bits + beyond)
    check_relay_layer(Dropout, Golden, layer, Rounding.FLOOR, seed=4)


def test_interval_and_latency_are_as_stated():
    check_timing(Dropout, dropout())


def test_the_first_mask_is_there_as_many_cycles_late_as_stated():
    words = [[1, 1]] * 12
    run = run_streams(
        Dropout(dropout(backward=False), Rounding.FLOOR),
        {"i": words},
        {"o": 12},
        set_up={"training": 1},
    )
    # The first cycle that counts is the one in which the inputs are set.
    assert run.times["i"][0] in (ROUNDS + 1, ROUNDS + 2)
    assert run.times["i"] == [run.times["i"][0] + n for n in range(12)]


@pytest.mark.parametrize("stall", [0.0, 0.5])
def test_without_training_everything_passes_at_once(stall):
    layer = dropout(index_words=2)
    run = check_relay_layer(Dropout, Golden, layer, Rounding.HALF_EVEN, training=False, stall=stall)
    if not stall:
        assert run.times["i"][0] <= 1


def test_a_first_layer_has_no_error_streams():
    check_relay_layer(Dropout, Golden, dropout(backward=False), Rounding.HALF_UP, stall=0.5)


@pytest.mark.parametrize("reset_at", [11, 50])
def test_reset_in_mid_stream_drops_words_and_masks_and_starts_the_random_stream_again(reset_at):
    layer = dropout(index_words=7)
    check_relay_layer(Dropout, Golden, layer, Rounding.HALF_EVEN, stall=0.5, reset_at=reset_at)


@pytest.mark.parametrize("after", [0, 10, 40])
@pytest.mark.parametrize("first", [5, 2**32 - 2])
def test_clear_starts_the_random_stream_at_the_sample_that_is_told(first, after):
    """Before it, the cipher has drawn and kept masks of the stream from sample 0 on."""
    layer, samples = dropout(), 4
    count = samples * layer.fp_interval
    rng = random.Random(1)
    features = random_lanes(rng, layer.i_feature.width, layer.lanes, count)
    errors = random_lanes(rng, layer.o_error.width, layer.lanes, count)
    dut = Started(Dropout(layer, Rounding.FLOOR), after)
    run = run_streams(
        dut,
        {"i": features, "o_error": errors},
        {"o": count, "i_error": count},
        set_up={"training": 1, "first_sample": first},
        stall={"i": 0.0, "o": 0.2, "o_error": 0.0, "i_error": 0.2},
        seed=4,
    )
    model = Golden(layer, Rounding.FLOOR)
    results, _ = model.forward(grid(layer, features), Step(True, first))
    errors_below, _ = model.backward(grid(layer, errors))
    assert run["o"] == to_words(layer, results)
    assert run["i_error"] == to_words(layer, errors_below)


def test_features_wait_while_all_masks_are_waiting():
    layer = dropout()
    layer = replace(layer, buffers=replace(layer.buffers, index_words=4))
    with pytest.raises(AssertionError, match=r"^deadline .*'i': 4, 'o': 4"):
        run_streams(
            Dropout(layer, Rounding.HALF_EVEN),
            {"i": [[1, 2]] * 5},
            {"o": 5},
            set_up={"training": 1},
            deadline_cycles=90,
        )
