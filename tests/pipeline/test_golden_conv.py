"""The golden convolution's sums equal their definition in Python integers, in both dtypes."""

import re
from dataclasses import replace

import pytest
import torch
from torch.nn.functional import conv2d, pad

from gradweave.model.errors import FormatError
from gradweave.model.formats import Format
from gradweave.model.pipeline.conv import Conv, sum_dtype
from gradweave.model.plan import LayerPlan, ParameterPlan
from gradweave.tests.golden import reference
from gradweave.tests.golden.reference import numbers
from gradweave.tests.plans import FEATURE, PARAMETER, chain, conv

WIDE = ParameterPlan(Format(32, 20), Format(32, 28), Format(32, 20))


def layer_of(shape, outputs, batch=3, feature=FEATURE, **options) -> LayerPlan:
    plan = chain(shape, conv("c", outputs, **options), batch_max=batch, input_feature=feature)
    return plan.layers[0]


def integers(shape, fmt, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(fmt.min, fmt.max + 1, shape, generator=generator)


@pytest.mark.parametrize(
    ("shape", "outputs", "options"),
    [
        ((1, 5, 5), 2, {"kernel": 3, "padding": 1}),
        ((3, 4, 6), 2, {"kernel": (1, 3), "padding": (0, 1)}),
        ((2, 7, 5), 3, {"kernel": (3, 2), "stride": (2, 1), "padding": (1, 0)}),
        ((2, 7, 7), 1, {"kernel": 2, "stride": 3}),
        ((2, 6, 6), 2, {"kernel": 1, "bias": None}),
        ((1, 5, 5), 2, {"kernel": 5, "padding": 2, "bias": None}),
        ((1, 4, 4), 2, {"kernel": 3, "padding": 3}),
        ((2, 3, 3), 4, {"kernel": 2, "groups": 2, "padding": 1}),
        ((3, 4, 3), 6, {"kernel": 3, "groups": 3, "stride": 2, "padding": 1}),
        ((4, 3, 3), 2, {"kernel": (2, 1), "groups": 2, "bias": None}),
    ],
)
@pytest.mark.parametrize("weight", [PARAMETER, WIDE], ids=["float64", "int64"])
def test_all_sums_equal_their_definition_at_full_range(shape, outputs, options, weight):
    layer = layer_of(shape, outputs, weight=weight, feature=Format(24, 10), **options)
    golden = Conv(layer, 3)
    x = integers((3, *shape), layer.i_feature, 1)
    e = integers((3, *layer.o_shape), layer.o_error, 2)
    w = integers((outputs, layer.group_shape[1], *layer.kernel), layer.weight.working, 3)
    bias = None if layer.bias is None else integers((outputs,), layer.bias.working, 4)
    shift = weight.working.frac + layer.i_feature.frac - PARAMETER.working.frac
    shifted = None if bias is None else bias << shift

    got = golden.forward(x.double(), w.double(), shifted)
    expected = reference.forward_sums(
        layer, numbers(x), numbers(w), None if bias is None else numbers(bias), 3
    )
    assert numbers(got) == expected
    below = golden.backward(e.double(), w.double())
    assert numbers(below) == reference.backward_sums(layer, numbers(e), numbers(w), 3)
    gradient = golden.weight_gradient(e.double())
    assert numbers(gradient) == reference.weight_sums(layer, numbers(e), numbers(x), 3)
    assert numbers(golden.bias_gradient(e.double())) == reference.bias_sums(layer, numbers(e))
    assert got.dtype == (torch.float64 if weight is PARAMETER else torch.int64)


# (input shape, outputs, kernel, stride, dilation, groups, padding of rows and of columns)
FREE = [
    ((2, 7, 6), 3, (3, 2), (1, 1), (2, 3), 1, (0, 0), (0, 0)),
    ((3, 6, 5), 3, (3, 3), (2, 1), (1, 1), 3, (0, 2), (1, 0)),
    ((3, 5, 5), 9, (3, 3), (1, 1), (1, 1), 3, (1, 1), (1, 1)),
    ((16, 1, 1), 32, (5, 5), (6, 3), (2, 2), 16, (4, 4), (8, 0)),
    ((4, 8, 7), 6, (2, 3), (3, 4), (3, 2), 2, (0, 3), (2, 1)),
    ((5, 9, 1), 5, (3, 1), (4, 4), (3, 1), 5, (0, 0), (0, 0)),
    ((6, 4, 4), 4, (1, 1), (2, 2), (1, 1), 2, (0, 1), (0, 0)),
]


@pytest.mark.parametrize("weight", [PARAMETER, WIDE], ids=["float64", "int64"])
@pytest.mark.parametrize(
    ("shape", "outputs", "kernel", "stride", "dilation", "groups", "rows", "cols"), FREE
)
def test_groups_dilation_and_free_ends_are_those_of_torch(
    shape, outputs, kernel, stride, dilation, groups, rows, cols, weight
):
    generator = torch.Generator().manual_seed(5)
    x, w, b = (
        torch.randint(-999, 1000, size, generator=generator).double().requires_grad_()
        for size in ((3, *shape), (outputs, shape[0] // groups, *kernel), (outputs,))
    )
    y = conv2d(pad(x, (*cols, *rows)), w, b, stride, 0, dilation, groups)
    e = torch.randint(-999, 1000, y.shape, generator=generator).double()
    y.backward(e)
    base = layer_of((1, 1, 1), 1, kernel=1, weight=weight, feature=Format(24, 10))
    layer = replace(
        base,
        i_shape=shape,
        o_shape=tuple(y.shape[1:]),
        kernel=kernel,
        stride=stride,
        padding=(rows[0], cols[0]),
        dilation=dilation,
        groups=groups,
    )
    golden = Conv(layer, 3)
    with torch.no_grad():
        assert torch.equal(golden.forward(x, w, b).double(), y)
        assert torch.equal(golden.backward(e, w).double(), x.grad)
        assert torch.equal(golden.weight_gradient(e).double(), w.grad)
        assert torch.equal(golden.bias_gradient(e).double(), b.grad)


@pytest.mark.parametrize("dilation", [(1, 1), (2, 3)])
def test_a_grouped_layer_equals_its_definition(dilation):
    """The definition in Python integers, which knows nothing of torch's groups."""
    base = layer_of((4, 5, 6), 6, kernel=(3, 2), padding=1)
    layer = replace(base, groups=2, dilation=dilation, padding=(0, 2), o_shape=(6, 2, 4))
    golden = Conv(layer, 2)
    x, e = integers((2, 4, 5, 6), FEATURE, 1), integers((2, 6, 2, 4), layer.o_error, 2)
    w = integers((6, 2, 3, 2), layer.weight.working, 3)
    got = golden.forward(x.double(), w.double(), None)
    expected = reference.forward_sums(layer, numbers(x), numbers(w), None, 2)
    assert numbers(got) == expected
    below = golden.backward(e.double(), w.double())
    assert numbers(below) == reference.backward_sums(layer, numbers(e), numbers(w), 2)
    gradient = golden.weight_gradient(e.double())
    assert numbers(gradient) == reference.weight_sums(layer, numbers(e), numbers(x), 2)


def test_accumulators_are_as_wide_as_a_groups_terms_need():
    dense = layer_of((8, 4, 4), 16, kernel=3, bias=None)
    grouped = replace(dense, groups=8)
    assert dense.fp_acc_width - grouped.fp_acc_width == 3  # 72 terms, 9 terms
    assert dense.eb_acc_width - grouped.eb_acc_width == 3  # 144 terms, 18 terms
    assert dense.wg_acc_width(4) == grouped.wg_acc_width(4)


def test_a_channel_multiplier_worked_by_hand():
    """Two channels of one pixel, two outputs each: 2*3, 5*3 and 7*-1, 11*-1."""
    layer = layer_of((2, 1, 1), 4, batch=1, kernel=1, groups=2)
    golden = Conv(layer, 1)
    x = torch.tensor([3.0, -1.0]).double().view(1, 2, 1, 1)
    w = torch.tensor([2.0, 5.0, 7.0, 11.0]).double().view(4, 1, 1, 1)
    assert golden.forward(x, w, None).flatten().tolist() == [6, 15, -7, -11]
    e = torch.tensor([1.0, 10.0, 100.0, 1000.0]).double().view(1, 4, 1, 1)
    assert golden.backward(e, w).flatten().tolist() == [52, 11700]
    assert golden.weight_gradient(e).flatten().tolist() == [3, 30, -100, -1000]


def test_a_wide_gradient_of_a_narrow_layer_is_summed_in_int64():
    layer = chain(
        (1, 3, 3),
        conv("c", 1, kernel=3, padding=1),
        batch_max=4,
        input_feature=Format(24, 10),
        loss_error=Format(32, 20),
    ).layers[0]
    golden = Conv(layer, 4)
    x = torch.full((4, 1, 3, 3), layer.i_feature.min)
    e = torch.full((4, 1, 3, 3), layer.o_error.min)
    e[0, 0, 0, 0] += 1
    golden.forward(x.double(), torch.zeros(1, 1, 3, 3), None)
    got = golden.weight_gradient(e.double())
    assert got.dtype == torch.int64
    assert numbers(got) == reference.weight_sums(layer, numbers(e), numbers(x), 4)


def test_a_batch_of_2048_full_scale_samples_is_summed_exactly():
    layer = layer_of((1, 4, 4), 1, batch=2048, kernel=3, padding=1)
    golden = Conv(layer, 2048)
    x = torch.full((2048, 1, 4, 4), layer.i_feature.min)
    x[-1, 0, 2, 2] += 1
    golden.forward(x.double(), torch.zeros(1, 1, 3, 3).double(), None)
    e = torch.full((2048, 1, 4, 4), layer.o_error.min)
    got = golden.weight_gradient(e.double())
    assert int(got[0, 0, 1, 1]) == 2048 * 16 * 2**30 - 2**15


def test_one_window_worked_by_hand():
    layer = layer_of((1, 2, 2), 1, batch=1, kernel=2)
    golden = Conv(layer, 1)
    x = torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]]).double()
    w = torch.tensor([[[[1.0, -1.0], [2.0, 5.0]]]]).double()
    assert golden.forward(x, w, torch.tensor([100])).item() == 1 - 2 + 6 + 20 + 100
    e = torch.full((1, 1, 1, 1), 3.0).double()
    assert golden.backward(e, w)[0, 0].tolist() == [[3, -3], [6, 15]]
    assert golden.weight_gradient(e)[0, 0].tolist() == [[3, 6], [9, 12]]
    assert golden.bias_gradient(e).tolist() == [3]


def test_sums_that_no_64_bits_hold_are_refused_by_layer():
    huge = ParameterPlan(Format(40, 20), Format(40, 28), Format(32, 20))
    layer = layer_of((4, 4, 4), 1, kernel=3, weight=huge, bias=None)
    wide = chain(
        (4, 4, 4),
        conv("c", 1, kernel=3, weight=huge, bias=None),
        input_feature=Format(30, 10),
    ).layers[0]
    Conv(layer, 1)
    message = (
        f"c: forward sums must fit an accumulator of 64 bits, not {wide.fp_acc_width}; "
        "use narrower formats"
    )
    with pytest.raises(FormatError, match=f"^{re.escape(message)}$"):
        Conv(wide, 1)


@pytest.mark.parametrize(
    ("width", "dtype"), [(53, torch.float64), (54, torch.float64), (55, torch.int64)]
)
def test_float64_is_taken_as_long_as_it_is_exact(width, dtype):
    assert sum_dtype(width, "sum") == dtype
