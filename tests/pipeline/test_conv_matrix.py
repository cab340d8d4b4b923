"""Convolutions of every kind, pair by pair of choices: RTL against golden, bit for bit.

The golden model is tested against torch in ``tests/pipeline/test_golden_conv.py``.
"""

import random
from dataclasses import replace
from itertools import product

import pytest
import torch

from gradweave.model.formats import Rounding
from gradweave.model.plan import Buffers, LayerPlan
from gradweave.tests.layer_bench import HYPER, train_layer
from gradweave.tests.pairwise import covering, pairs
from gradweave.tests.plans import chain, conv

KERNELS = (1, 2, 3, 5)
STRIDES = (1, 2, 3, "above")  # above: one more than the kernel
PADDINGS = ("none", "symmetric", "asymmetric")
DILATIONS = (1, 2)
MAPS = ("point", "tall", "tight")  # one pixel; one column; as small as the kernel's reach
CHANNELS = (1, 3, 5, 16, 17)
GROUPS = ("one", "two", "four", "each")
MULTIPLIERS = (1, 2, 3, 5)  # outputs of a group
BIASES = ("none", "zero", "negative")
FOLDINGS = ("single", "outputs", "inputs", "word", "groups", "padded")  # padded: none divides
UPDATE_LANES = 2  # at most: a lane of the update is slow to simulate
WORD_SIZE = 16


def reach(kernel, dilation):
    """Rows that a kernel spans."""
    return dilation * (kernel - 1) + 1


def shapes():
    for kernel, dilation, padding, size in product(KERNELS, DILATIONS, PADDINGS, MAPS):
        if padding != "none" or size != "point" or kernel == 1:
            yield {"kernel": kernel, "dilation": dilation, "padding": padding, "map": size}


def foldings():
    for inputs, groups, outputs, folding in product(CHANNELS, GROUPS, MULTIPLIERS, FOLDINGS):
        count = group_count(inputs, groups)
        if count is None or ((folding == "groups") and count == 1):
            continue
        if folding == "padded" and (outputs < 3 or inputs // count < 3):
            continue
        case = {"channels": inputs, "groups": groups, "multiplier": outputs, "folding": folding}
        a, b, lanes = words(case)
        if a * b * lanes <= WORD_SIZE:
            yield case


def group_count(channels, groups):
    count = {"one": 1, "two": 2, "four": 4, "each": channels}[groups]
    return count if channels % count == 0 and (count > 1 or groups == "one") else None


def words(case):
    """(a, b, group_lanes); at most a whole group of up to 8 inputs."""
    groups = group_count(case["channels"], case["groups"])
    outputs, inputs = case["multiplier"], case["channels"] // groups
    half = groups // 2 if groups % 2 == 0 and groups > 2 else groups
    return {
        "single": (1, 1, 1),
        "outputs": (outputs, 1, 1),
        "inputs": (1, inputs, 1),
        "word": (outputs, inputs if inputs < 16 else 8, 1),
        "groups": (outputs, inputs, half),
        "padded": (2 if outputs % 2 else outputs, 2 if inputs % 2 else 3, 1),
    }[case["folding"]]


def ends(case):
    """(leading, trailing) padding of rows and of columns."""
    span = reach(case["kernel"], case["dilation"])
    half = max(1, span // 2)
    return {
        "none": ((0, 0), (0, 0)),
        "symmetric": ((half, half), (half, half)),
        "asymmetric": ((0, max(1, span - 1)), (max(1, span - 1), 0)),
    }[case["padding"]]


def layer_of(case) -> LayerPlan:
    span = reach(case["kernel"], case["dilation"])
    size = {"point": (1, 1), "tall": (span + 3, 1), "tight": (span, span)}[case["map"]]
    kernel = (case["kernel"], 1 if case["map"] == "tall" else case["kernel"])
    stride = case["kernel"] + 1 if case["stride"] == "above" else case["stride"]
    outputs = [
        (n + sum(pad) - reach(k, case["dilation"])) // stride + 1
        for n, k, pad in zip(size, kernel, ends(case), strict=True)
    ]
    groups = group_count(case["channels"], case["groups"])
    a, b, group_lanes = words(case)
    base = chain((1, 1, 1), conv("conv", 1, kernel=1)).layers[0]
    layer = replace(
        base,
        i_shape=(case["channels"], *size),
        o_shape=(case["multiplier"] * groups, *outputs),
        kernel=kernel,
        stride=(stride, stride),
        padding=tuple(pad[0] for pad in ends(case)),
        dilation=(case["dilation"], case["dilation"]),
        groups=groups,
        a=a,
        b=b,
        group_lanes=group_lanes,
        bias=None if case["bias"] == "none" else base.bias,
        weight=replace(base.weight, coarser=coarser(case, case["multiplier"] * groups)),
        backward=True,
        buffers=Buffers(size[0] + 2, outputs[0] + 2, 3 * size[0], 16, 0),
    )
    lanes = max(n for n in range(1, UPDATE_LANES + 1) if layer.fits_update(n))
    return replace(layer, update_lanes=lanes)


def coarser(case, outputs):
    """Fractions that are shorter by up to five bits, the same for no two neighbours."""
    return () if case["ranges"] == "tensor" else tuple(3 * n % 7 % 6 for n in range(outputs))


def cost(case) -> float:
    """Roughly, of simulating it: cycles, which grow with the kernel and the map, times width."""
    positions = {"point": 1, "tall": case["kernel"], "tight": case["kernel"] ** 2}[case["map"]]
    taps = case["kernel"] ** (1 if case["map"] == "tall" else 2)
    a, b, lanes = words(case)
    cycles = taps * (4 + positions) * case["channels"] * case["multiplier"] // (a * b * lanes)
    return 400 + (100 + cycles) * (4 + a * b * lanes) / 10


def name_of(case):
    return "-".join(str(getattr(value, "value", value)) for _, value in sorted(case.items()))


def train(case, seed):
    layer = layer_of(case)
    outputs = layer.o_shape[0]
    generator = torch.Generator().manual_seed(seed)
    bias = torch.zeros(outputs, dtype=torch.int64)
    if case["bias"] == "negative":
        bias = torch.randint(-(1 << 26), 0, (outputs,), generator=generator)
    hyper = replace(HYPER, batch=1)
    got, expected = train_layer(
        layer,
        batches=2,
        hyper=hyper,
        rounding=case["rounding"],
        stall=case["stall"],
        seed=seed,
        bias=bias,
    )
    assert got.o == expected.o
    assert got.i_error == expected.i_error
    assert got.masters == expected.masters
    assert got.momenta == expected.momenta
    assert got.saturated == expected.saturated
    for engine, interval in (("fp", layer.fp_interval), ("eb", layer.eb_interval)):
        assert got.counts[engine]["busy"] <= 2 * interval


BLOCKS = (
    list(shapes()),
    list(foldings()),
    [{"stride": stride} for stride in STRIDES],
    [{"bias": bias} for bias in BIASES],
    [{"rounding": rounding} for rounding in Rounding],
    [{"ranges": ranges} for ranges in ("tensor", "channel")],
    [{"stall": stall} for stall in (0.0, 0.3)],
)
CASES = covering(BLOCKS, seed=1, cost=cost)


def drawn(count: int, seed: int):
    rng = random.Random(seed)
    for _ in range(count):
        yield {name: value for block in BLOCKS for name, value in rng.choice(block).items()}


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_every_pair_of_choices_gives_the_golden_bits(case):
    train(case, 1)


@pytest.mark.slow
@pytest.mark.parametrize("case", list(drawn(200, 2)), ids=name_of)
def test_drawn_choices_give_the_golden_bits(case):
    train(case, 2)


def test_the_cases_have_every_pair_that_drawn_cases_have():
    met = set().union(*(pairs(case) for case in CASES))
    assert all(pairs(case) <= met for case in drawn(2000, 3))
