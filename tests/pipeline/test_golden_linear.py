"""The golden linear layer's sums equal their definition in Python integers, in both dtypes."""

import pytest
import torch

from gradweave.model.formats import Format
from gradweave.model.pipeline.linear import Linear
from gradweave.model.plan import ParameterPlan
from gradweave.tests.golden import reference
from gradweave.tests.golden.reference import numbers
from gradweave.tests.plans import PARAMETER, chain, linear

WIDE = ParameterPlan(Format(32, 20), Format(32, 28), Format(32, 20))


@pytest.mark.parametrize("weight", [PARAMETER, WIDE], ids=["float64", "int64"])
@pytest.mark.parametrize("shape", [(3, 2, 4), (5, 1, 1)])
@pytest.mark.parametrize("bias", [PARAMETER, None], ids=["bias", "no_bias"])
def test_all_sums_equal_their_definition_in_torchs_flatten_order(weight, shape, bias):
    plan = chain(
        shape,
        linear("l", 4, weight=weight, bias=bias),
        input_feature=Format(24, 10),
        loss_error=Format(24, 18),
    )
    layer = plan.layers[0]
    golden = Linear(layer, 3)
    generator = torch.Generator().manual_seed(1)

    def integers(fmt, *size):
        return torch.randint(fmt.min, fmt.max + 1, size, generator=generator)

    x, e = integers(layer.i_feature, 3, *shape), integers(layer.o_error, 3, 4, 1, 1)
    w = integers(weight.working, 4, *shape)
    b = None if bias is None else integers(bias.working, 4)
    shift = weight.working.frac + layer.i_feature.frac - PARAMETER.working.frac
    flat = w.flatten(1).double()

    got = golden.forward(x.double(), flat, None if b is None else b << shift)
    expected = reference.forward_sums(
        layer, numbers(x), numbers(w), None if b is None else numbers(b), 3
    )
    assert numbers(got) == expected
    below = golden.backward(e.double(), flat)
    assert numbers(below) == reference.backward_sums(layer, numbers(e), numbers(w), 3)
    gradient = golden.weight_gradient(e.double()).unflatten(1, shape)
    assert numbers(gradient) == reference.weight_sums(layer, numbers(e), numbers(x), 3)
    assert numbers(golden.bias_gradient(e.double())) == reference.bias_sums(layer, numbers(e))


def test_two_outputs_worked_by_hand():
    golden = Linear(chain((2, 1, 2), linear("l", 2)).layers[0], 1)
    x = torch.tensor([[[[1, 2]], [[3, 4]]]]).double()
    w = torch.tensor([[1, 0, 0, -1], [2, 2, 2, 2]]).double()
    assert golden.forward(x, w, torch.tensor([10, 0])).flatten().tolist() == [7, 20]
    e = torch.tensor([[[[1]], [[-2]]]]).double()
    assert golden.backward(e, w)[0].tolist() == [[[-3, -4]], [[-4, -5]]]
    assert golden.weight_gradient(e).tolist() == [[1, 2, 3, 4], [-2, -4, -6, -8]]
    assert golden.bias_gradient(e).tolist() == [1, -2]
