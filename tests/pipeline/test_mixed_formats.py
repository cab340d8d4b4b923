"""Formats of 2 to 32 bits, each tensor of a layer its own: RTL against golden, bit for bit."""

import random
from dataclasses import replace

import pytest

from gradweave.host.design import Design
from gradweave.host.verify import verify
from gradweave.model.errors import FormatError
from gradweave.model.formats import Format
from gradweave.model.hyper import Hyper
from gradweave.model.pipeline.conv import Conv
from gradweave.model.plan import Buffers, ParameterPlan
from gradweave.tests.layer_bench import train_layer
from gradweave.tests.pairwise import covering, pairs
from gradweave.tests.plans import chain, conv, linear, relu
from gradweave.tests.small_board import data, masters

WIDTHS = (2, 3, 5, 8, 16, 24, 32)
TENSORS = ("i_feature", "o_feature", "o_error", "i_error", "working", "master", "gradient")


def sums_fit(case):
    """Sums of a few dozen products in 64 bits."""
    feature, error, working = (case[name] for name in ("i_feature", "o_error", "working"))
    return max(feature + error, feature + working, error + working) <= 56


def formats(case, rng):
    """Each width with a fraction about its middle."""
    return {name: Format(case[name], case[name] // 2 + rng.randrange(-2, 3)) for name in TENSORS}


def layer_of(case, seed=1):
    chosen = formats(case, random.Random(f"{seed} {sorted(case.items())}"))
    plan = chain((2, 3, 3), conv("c", 2, kernel=3, padding=1, a=2, b=2))
    parts = {name: chosen.pop(name) for name in ("working", "master", "gradient")}
    weight = ParameterPlan(**parts)
    most = weight.working.frac + chosen["i_feature"].frac
    frac = min(weight.working.frac, most)
    bias = replace(weight, working=Format(weight.working.width, frac))
    layer = plan.layer("c")
    buffers = Buffers(5, 5, 9, 16, 0)
    return replace(
        layer,
        weight=weight,
        bias=bias,
        backward=True,
        update_lanes=2,
        buffers=buffers,
        **chosen,
    )


def train(case, seed):
    layer = layer_of(case, seed)
    hyper = Hyper(batch=2, lr_mantissa=40000, lr_shift=18, momentum=30000)
    got, expected = train_layer(layer, batches=2, hyper=hyper, stall=0.2, seed=seed)
    assert got.o == expected.o
    assert got.i_error == expected.i_error
    assert got.masters == expected.masters
    assert got.momenta == expected.momenta
    assert got.saturated == expected.saturated


BLOCKS = [[{name: width} for width in WIDTHS] for name in TENSORS]
CASES = [case for case in covering(BLOCKS, seed=1, cost=lambda case: 1.0) if sums_fit(case)]


def name_of(case):
    return "-".join(str(case[name]) for name in TENSORS)


@pytest.mark.parametrize("case", CASES[:14], ids=name_of)
def test_mixed_widths_give_the_golden_bits(case):
    train(case, 1)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES[14:], ids=name_of)
def test_every_pair_of_widths_gives_the_golden_bits(case):
    train(case, 2)


def test_the_cases_have_every_pair_whose_sums_fit():
    met = set().union(*(pairs(case) for case in CASES))
    rng = random.Random(3)
    drawn = [{name: rng.choice(WIDTHS) for name in TENSORS} for _ in range(2000)]
    wanted = set().union(*(pairs(case) for case in drawn if sums_fit(case)))
    assert len(wanted - met) < len(wanted) / 10


def test_sums_that_no_accumulator_holds_are_refused_by_name():
    wide = dict.fromkeys(TENSORS, 32)
    with pytest.raises(FormatError, match="c: forward sums must fit an accumulator of 64 bits"):
        Conv(layer_of(wide), 4)


@pytest.mark.timeout(600)
def test_a_board_of_unlike_formats_trains_to_the_golden_bits():
    wide = ParameterPlan(Format(24, 20), Format(32, 28), Format(32, 20))
    narrow = ParameterPlan(Format(3, 2), Format(20, 14), Format(12, 6))
    plan = chain(
        (2, 5, 5),
        conv("c1", 4, kernel=3, a=2, weight=wide, bias=wide, feature=Format(28, 20)),
        relu("r"),
        conv("c2", 3, kernel=2, a=3, b=2, weight=narrow, bias=narrow, feature=Format(5, 2),
             error=Format(6, 5)),
        linear("l", 3, a=3, weight=wide, bias=narrow_of(wide), error=Format(24, 20)),
        probes=True,
        sized=True,
    )  # fmt: skip
    x, y = data(plan, 4)
    hyper = Hyper.of(plan, batch=4, lr=0.1, momentum=0.5)
    report = verify(Design(plan, masters_of(plan)), x, y, hyper, stalls=0.3, seed=1)
    report.raise_for_difference()
    assert report.bit_exact


def narrow_of(wide):
    """A bias of eight bits; masters and gradients as wide as the weights'."""
    return replace(wide, working=Format(8, 6))


def masters_of(plan):
    """Masters that fit 20 bits."""
    return {name: values >> 9 for name, values in masters(plan).items()}
