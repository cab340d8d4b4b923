"""The golden scale equals torch's product and sum by channel, and their gradients."""

import re
from dataclasses import replace

import pytest
import torch

from gradweave.model.errors import PlanError
from gradweave.model.pipeline.scale import Scale
from gradweave.tests.plans import chain, conv


def layer_of(channels=3, size=(4, 5), **changes):
    base = chain((channels, *size), conv("scale", channels, kernel=1, groups=channels)).layers[0]
    return replace(base, kind="scale", **changes)


@pytest.mark.parametrize("channels", [1, 3, 16])
def test_a_scale_and_its_gradients_are_those_of_torch(channels):
    generator = torch.Generator().manual_seed(1)
    shapes = ((3, channels, 4, 5), (channels,), (channels,))
    x, w, b = (
        torch.randint(-999, 1000, shape, generator=generator).double().requires_grad_()
        for shape in shapes
    )
    y = x * w[:, None, None] + b[:, None, None]
    e = torch.randint(-999, 1000, y.shape, generator=generator).double()
    y.backward(e)
    golden = Scale(layer_of(channels), 3)
    with torch.no_grad():
        assert torch.equal(golden.forward(x, w, b), y)
        assert torch.equal(golden.backward(e, w), x.grad)
        assert torch.equal(golden.weight_gradient(e), w.grad)
        assert torch.equal(golden.bias_gradient(e), b.grad)


def test_one_pixel_by_hand():
    golden = Scale(layer_of(2, (1, 1)), 1)
    x = torch.tensor([3.0, -4.0]).double().view(1, 2, 1, 1)
    w, b = torch.tensor([-2.0, 5.0]).double(), torch.tensor([100, -7])
    assert golden.forward(x, w, b).flatten().tolist() == [94, -27]
    e = torch.tensor([10.0, -1.0]).double().view(1, 2, 1, 1)
    assert golden.backward(e, w).flatten().tolist() == [-20, -5]
    assert golden.weight_gradient(e).tolist() == [30, 4]
    assert golden.bias_gradient(e).tolist() == [10, -1]


def test_a_layer_that_is_no_scale_is_refused():
    message = (
        "scale: a scale must have one tap for each of 3 channels, not kernel (1, 1) and 1 groups"
    )
    with pytest.raises(PlanError, match=f"^{re.escape(message)}$"):
        Scale(layer_of(groups=1), 1)
