"""Average-pooling rounds each exact quotient once: float torch's means, and its gradients, within
half a unit.
"""

from fractions import Fraction
from itertools import product

import pytest
import torch
from torch.nn import functional as F

from gradweave.model.errors import PlanError, UnsupportedError
from gradweave.model.formats import Format, Rounding
from gradweave.model.pipeline.avgpool import AvgPool, rounded_quotient
from gradweave.model.pooling import average_divisor, average_widths
from gradweave.model.step import Step
from gradweave.tests.golden.reference import clip, round_fraction
from gradweave.tests.pools import MODES, adaptive, windows

TRAINING = Step(training=True)
# Float64 of torch's own division: far below the halves of small integers over small divisors.
ROUNDING_ERROR = 1e-9


def shares(layer, pool):
    """Torch's share of every entry in every output, as fractions [H*W][Ho*Wo]: its means of maps of
    a single one.
    """
    _, height, width = layer.i_shape
    ones = torch.eye(height * width).double().reshape(-1, 1, height, width)
    return [
        [Fraction(x).limit_denominator(1000) for x in row] for row in pool(ones).flatten(1).tolist()
    ]


def draw(layer, samples=2, seed=3):
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randint(-128, 128, (samples, *layer.i_shape), generator=generator).double(),
        torch.randint(-32, 32, (samples, *layer.o_shape), generator=generator).double(),
    )


def _maps(sources, results):
    """Pairs of a map of one and the same channel of the other, both flat."""
    flat = [x.flatten(2).flatten(0, 1).tolist() for x in (sources, results)]
    return zip(*flat, strict=True)


def check(layer, pool, rounding):
    """Hold both passes against the fractions that torch's shares give."""
    golden = AvgPool(layer, rounding)
    features, errors = draw(layer)
    table = shares(layer, pool)
    scale = Fraction(2) ** (layer.i_error.frac - layer.o_error.frac)

    values, none = golden.forward(features, TRAINING)
    assert none == 0
    furthest = 1 if rounding is Rounding.FLOOR else 0.5
    assert (values - pool(features)).abs().max() <= furthest + ROUNDING_ERROR
    for maps, results in _maps(features, values):
        for n, result in enumerate(results):
            mean = sum(int(x) * row[n] for x, row in zip(maps, table, strict=True) if row[n])
            assert result == round_fraction(Fraction(mean), rounding)

    below, clipped = golden.backward(errors)
    clips = 0
    for maps, results in _maps(errors, below):
        for row, result in zip(table, results, strict=True):
            total = sum(int(e) * share for e, share in zip(maps, row, strict=True) if share)
            value, hit = clip(round_fraction(total * scale, rounding), layer.i_error)
            assert result == value
            clips += hit
    assert clipped == clips
    return clips


@pytest.mark.parametrize("size", [(4, 7), (5, 2), (1, 1)])
@pytest.mark.parametrize("ceil_mode", [False, True])
@pytest.mark.parametrize("count_padding", [False, True])
def test_windows_are_those_of_torch_in_exact_fractions(size, ceil_mode, count_padding):
    cases = 0
    for n, (kernel, stride, padding) in enumerate(product((1, 2, 3), (1, 2, 3, 4), (0, 1))):
        if padding > kernel // 2 or kernel > min(size) + 2 * padding:
            continue
        where = [(value, value) for value in (kernel, stride, padding)]
        layer = windows(
            "avgpool2d",
            (1, *size),
            *where,
            ceil_mode=ceil_mode,
            count_padding=count_padding,
            i_error=Format(7, 4 + n % 3),
        )

        def pool(maps, where=where):
            return F.avg_pool2d(maps, *where, ceil_mode=ceil_mode, count_include_pad=count_padding)

        check(layer, pool, MODES[n % 3])
        cases += 1
    assert cases >= 8


@pytest.mark.parametrize(
    ("size", "outputs"),
    [((7, 7), (3, 3)), ((6, 4), (3, 2)), ((5, 9), (1, 1)), ((3, 2), (5, 3)), ((10, 1), (4, 1))],
)
@pytest.mark.parametrize("rounding", MODES)
def test_adaptive_windows_are_those_of_torch_in_exact_fractions(size, outputs, rounding):
    layer = adaptive((2, *size), outputs, i_error=Format(8, 6))
    check(layer, lambda maps: F.adaptive_avg_pool2d(maps, outputs), rounding)


@pytest.mark.parametrize("outputs", [(3, 3), (4, 5)])
def test_errors_are_the_gradients_of_float_torch(outputs):
    layer = adaptive((2, 7, 7), outputs, i_error=Format(12, 5))
    features, errors = draw(layer)
    features.requires_grad_()
    F.adaptive_avg_pool2d(features, outputs).backward(errors)
    below, clipped = AvgPool(layer, Rounding.HALF_EVEN).backward(errors)
    assert clipped == 0
    assert (below - features.grad).abs().max() <= 0.5 + ROUNDING_ERROR


@pytest.mark.parametrize(
    ("rounding", "expected"),
    [
        # 5/2 -5/2 7/2 -7/2 3/6 -3/6 5/3 -5/3
        (Rounding.HALF_EVEN, [2, -2, 4, -4, 0, 0, 2, -2]),
        (Rounding.HALF_UP, [3, -2, 4, -3, 1, 0, 2, -2]),
        (Rounding.FLOOR, [2, -3, 3, -4, 0, -1, 1, -2]),
    ],
)
def test_halves_round_as_each_mode_says(rounding, expected):
    numerators = torch.tensor([5, -5, 7, -7, 3, -3, 5, -5])
    divisors = torch.tensor([2, 2, 2, 2, 6, 6, 3, 3])
    assert rounded_quotient(numerators, divisors, rounding).tolist() == expected


def test_quotients_beyond_float64_are_exact():
    numerators = torch.tensor([(1 << 62) - 1, -(1 << 62) + 1, 3 * (1 << 60) + 1])
    divisors = torch.tensor([1 << 61, 1 << 61, 1 << 60])
    assert rounded_quotient(numerators, divisors, Rounding.HALF_EVEN).tolist() == [2, -2, 3]
    assert rounded_quotient(numerators, divisors, Rounding.FLOOR).tolist() == [1, -2, 3]


def test_a_window_beyond_the_padding_divides_by_what_lies_inside_it():
    # 6 columns and a padding of 1: windows [-1, 2), [2, 5) and [5, 8), of which [5, 7) counts.
    layer = windows("avgpool2d", (1, 1, 6), (1, 3), (1, 3), (0, 1), ceil_mode=True)
    values, _ = AvgPool(layer, Rounding.FLOOR).forward(
        torch.tensor([[[[9.0, 9, 9, 9, 9, 8]]]]).double(), TRAINING
    )
    assert values.flatten().tolist() == [6, 9, 4]  # 18/3, 27/3, 8/2
    assert average_divisor(layer) == 6


def test_wide_features_are_exact():
    layer = windows(
        "avgpool2d", (1, 1, 2), (1, 2), (1, 1), i_feature=Format(53, 0), o_feature=Format(53, 0)
    )
    x = torch.tensor([[[[2.0**52 - 1, 2.0**52 - 3]]]], dtype=torch.float64)
    values, _ = AvgPool(layer, Rounding.HALF_EVEN).forward(x, TRAINING)
    assert int(values) == (1 << 52) - 2
    x[0, 0, 0, 1] -= 1
    values, _ = AvgPool(layer, Rounding.HALF_EVEN).forward(x, TRAINING)
    assert int(values) == (1 << 52) - 2  # between ...-3 and ...-2


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64])
def test_results_have_the_dtype_of_what_came_in(dtype):
    layer = adaptive((1, 7, 7), (3, 3))
    features, errors = draw(layer)
    golden = AvgPool(layer, Rounding.HALF_EVEN)
    assert golden.forward(features.to(dtype), TRAINING)[0].dtype == dtype
    assert golden.backward(errors.to(dtype))[0].dtype == dtype


def test_divisors_and_widths_follow_from_the_windows():
    # Rows [0, 3), [2, 5), [5, 8), [7, 10), columns [0, 10): 30 features of 8 bits, and two errors
    # of 6.
    layer = adaptive((1, 10, 10), (4, 1))
    assert average_divisor(layer) == 30
    assert average_widths(layer) == (13, 7)
    # Columns [0, 2), [1, 4), [3, 5) by 2, 3, 2: 6 features, and (1/2 + 1/3) * 6 errors.
    layer = adaptive((1, 1, 5), (1, 3))
    assert average_divisor(layer) == 6
    assert average_widths(layer) == (11, 9)


def test_stochastic_rounding_is_refused():
    with pytest.raises(UnsupportedError) as caught:
        AvgPool(adaptive((1, 2, 2), (1, 1)), Rounding.STOCHASTIC)
    assert str(caught.value) == (
        "pool: rounding must be half_even, half_up or floor for an average, not stochastic"
    )


def test_numerators_beyond_an_integer_are_refused():
    with pytest.raises(PlanError) as caught:
        AvgPool(adaptive((1, 2, 2), (1, 1), i_error=Format(64, 62)), Rounding.FLOOR)
    assert str(caught.value) == (
        "pool: numerators and divisors must be at most 63 bits wide, not 67; take smaller windows "
        "or closer formats"
    )
