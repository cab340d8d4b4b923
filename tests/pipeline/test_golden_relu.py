"""ReLU keeps positive features, and lets errors pass only where its result is above zero."""

import pytest
import torch

from gradweave.model.formats import Rounding
from gradweave.model.pipeline.relu import Relu
from gradweave.model.step import Step
from gradweave.tests.plans import chain
from gradweave.tests.plans import relu as spec

LAYER = chain((3, 4, 5), spec("relu")).layers[0]


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64])
def test_the_gradient_at_exactly_zero_is_zero(dtype):
    relu = Relu(LAYER, Rounding.HALF_EVEN)
    results, clipped = relu.forward(torch.tensor([-3, -1, 0, 1, 5], dtype=dtype), Step(True))
    assert (results.tolist(), clipped) == ([0, 0, 0, 1, 5], 0)
    errors = torch.tensor([10, 20, 30, -40, 50], dtype=dtype)
    below, clipped = relu.backward(errors)
    assert (below.tolist(), clipped) == ([0, 0, 0, -40, 50], 0)
    assert errors.tolist() == [10, 20, 30, -40, 50]


def test_it_agrees_with_torchs_autograd():
    generator = torch.Generator().manual_seed(1)
    x = torch.randint(-3, 4, (2, 3, 4, 5), generator=generator).double().requires_grad_()
    e = torch.randint(-9, 10, x.shape, generator=generator).double()
    y = torch.relu(x)
    y.backward(e)
    relu = Relu(LAYER, Rounding.HALF_EVEN)
    assert torch.equal(relu.forward(x.detach(), Step(True))[0], y.detach())
    assert torch.equal(relu.backward(e)[0], x.grad)


def test_an_inference_in_between_keeps_what_the_backward_pass_needs():
    relu = Relu(LAYER, Rounding.HALF_EVEN)
    relu.forward(torch.tensor([1, -1, 1]), Step(True))
    relu.forward(torch.tensor([-1, 1, 1]), Step(False))
    assert relu.backward(torch.tensor([5, 6, 7]))[0].tolist() == [5, 0, 7]
