"""Noise of updates comes in the order of the sweeps, for every folding the same to a parameter."""

import pytest
from amaranth.sim import Simulator

from gradweave.host.packets import pack_parameters
from gradweave.model.noise import parameter_elements
from gradweave.model.random import random_word, tensor_number
from gradweave.rtl.pipeline.update_noise import UpdateNoise
from gradweave.tests.plans import chain, conv, linear, scale

SEED, FIRST, BATCH = 11, 2**32 - 5, 4

LAYERS = {
    "dense": ((4, 5, 5), conv("x", 6, kernel=(2, 3), a=3, b=2, update_lanes=3)),
    "word": ((4, 5, 5), conv("x", 2, kernel=1, a=2, b=4, update_lanes=8)),
    "within": ((6, 5, 5), conv("x", 2, kernel=3, a=1, b=6, update_lanes=1)),
    "across": ((3, 4, 4), conv("x", 4, kernel=2, a=2, b=3, update_lanes=2)),
    "groups": ((4, 4, 4), conv("x", 8, kernel=2, groups=2, a=2, b=2, update_lanes=2)),
    "side by side": (
        (4, 4, 4),
        conv("x", 4, kernel=2, groups=4, a=1, b=1, group_lanes=2, update_lanes=2),
    ),
    "unfolded": (
        (3, 5, 5),
        conv("x", 4, kernel=(2, 3), a=2, b=9, update_lanes=2, unfold=True),
    ),
    "no bias": ((3, 4, 4), conv("x", 4, kernel=2, a=2, b=3, bias=None, update_lanes=2)),
    "linear": ((2, 2, 3), linear("x", 6, a=3, b=2, update_lanes=3)),
    "scale": ((6, 2, 2), scale("x", group_lanes=3, update_lanes=3)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_words_come_in_the_order_of_the_parameters(name):
    shape, spec = LAYERS[name]
    plan = chain(shape, spec, linear("end", 2))
    layer = plan.layer("x")
    if name == "unfolded":
        assert layer.unfold
    weights = parameter_elements(layer, "weight").numpy()
    # Places of a block that are no bias hold 0, which is the element of a weight.
    biases = parameter_elements(layer, "bias").numpy() if layer.bias else None
    order = pack_parameters(layer, weights, biases).tolist()
    count = weights.size
    assert len(order) == layer.sweep_chunks * layer.update_lanes
    key = tensor_number("x.update")
    expected = []
    for batch in range(3):
        step = (FIRST + batch * BATCH) % 2**32
        for n, element in enumerate(order):
            padding = n >= count and element == 0
            expected.append(None if padding else random_word(SEED, key, element, step))
    got = []
    dut = UpdateNoise(layer, SEED)

    async def bench(ctx):
        ctx.set(dut.batch, BATCH)
        ctx.set(dut.first_sample, FIRST)
        for _ in range(40):  # what was drawn before does not count
            await ctx.tick()
        ctx.set(dut.clear, 1)
        await ctx.tick()
        ctx.set(dut.clear, 0)
        ctx.set(dut.o.ready, 1)
        while len(got) < len(expected):
            if ctx.get(dut.o.valid):
                word = ctx.get(dut.o.payload.as_value())
                got.extend(word >> 64 * n & (1 << 64) - 1 for n in range(layer.update_lanes))
            else:
                assert not got, "a word was late"
            await ctx.tick()

    simulator = Simulator(dut)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()
    for n, (word, found) in enumerate(zip(expected, got, strict=True)):
        assert word is None or word == found, n
