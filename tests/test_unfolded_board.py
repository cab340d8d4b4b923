"""Boards whose first convolution unfolds: bits, and intervals as planned, whatever sets them."""

import dataclasses

import pytest
import torch

from gradweave.host.board_device import BoardDevice
from gradweave.host.golden_device import GoldenDevice
from gradweave.model.schedule import size_buffers, steady_interval
from gradweave.sim.simulate import simulate
from gradweave.tests.plans import chain, conv, linear, maxpool, relu
from gradweave.tests.small_board import assert_same_state, data, hyper, masters


def board(shape, first, *, pooled=True, outputs=3, loss="cross_entropy"):
    """``first`` has the convolution's keywords; versions are delayed by 2 mini-batches of 4."""
    folded = {"delay": 2, "back_delay": 2}
    lanes = first["a"]
    pool = [maxpool("pool", 2, lanes=lanes)] if pooled else []
    plan = chain(
        shape,
        conv("conv", 4, unfold=True, **first, **folded),
        relu("relu", lanes=lanes),
        *pool,
        linear("linear", outputs, a=outputs, b=4, **folded),
        loss=loss,
    )
    return size_buffers(plan)


BOARDS = {
    "the convolution": board((1, 8, 8), {"kernel": 3, "padding": 1, "a": 2, "b": 3}),
    "the loss": board((3, 6, 6), {"kernel": 3, "padding": 1, "a": 4, "b": 9}),
    "words of the unfold": board(
        (2, 9, 9), {"kernel": (1, 3), "stride": (3, 1), "padding": (0, 1), "a": 4, "b": 1}
    ),
    "columns of the unfold": board(
        (2, 9, 12), {"kernel": (1, 2), "stride": (3, 3), "a": 4, "b": 4}, pooled=False
    ),
}


@pytest.mark.parametrize("name", BOARDS)
def test_bits_and_intervals_are_those_of_golden_model_and_plan(name):
    plan = BOARDS[name]
    x, y = data(plan, 12)
    with simulate(plan) as simulation:
        device, golden = BoardDevice(plan, simulation), GoldenDevice(plan)
        for side in (device, golden):
            side.write_parameters(masters(plan))
        assert torch.equal(device.train(x, y, hyper(plan)), golden.train(x, y, hyper(plan)))
        assert_same_state(device, golden)
        counters = device.counters()
        assert torch.equal(device.infer(x[:3]), golden.infer(x[:3]))
    span = counters["last_cycle"] - counters["first_cycle"]
    print(name, span / (counters["samples"] - 1), steady_interval(plan), plan.interval, plan.packet_interval, plan.loss_interval, [dataclasses.astuple(x.buffers) for x in plan.layers])
