"""ReLU keeps positive features, and lets errors pass only where its result is above zero."""

import pytest
import torch

from gradweave.model.pipeline import relu


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64])
def test_the_gradient_at_exactly_zero_is_zero(dtype):
    results = relu.forward(torch.tensor([-3, -1, 0, 1, 5], dtype=dtype))
    assert results.tolist() == [0, 0, 0, 1, 5]
    errors = torch.tensor([10, 20, 30, -40, 50], dtype=dtype)
    assert relu.backward(errors, results).tolist() == [0, 0, 0, -40, 50]
    assert errors.tolist() == [10, 20, 30, -40, 50]


def test_it_agrees_with_torchs_autograd():
    generator = torch.Generator().manual_seed(1)
    x = torch.randint(-3, 4, (2, 3, 4, 5), generator=generator).double().requires_grad_()
    e = torch.randint(-9, 10, x.shape, generator=generator).double()
    y = torch.relu(x)
    y.backward(e)
    assert torch.equal(relu.forward(x.detach()), y.detach())
    assert torch.equal(relu.backward(e, y.detach()), x.grad)
