"""The noise of stochastic rounding: one number an element, by names and places alone.

A result of a layer with weights is rounded with the lowest ``NOISE_BITS`` bits of
``random_word(seed, tensor_number("conv1.o_feature"), element, sample)``, where the element is
``(y*W + x)*C + c`` and the sample's number in the whole training is taken modulo 2**32. In
inference the noise is one half: nothing is left to chance there.

A parameter's update takes the four fields of ``NOISE_BITS`` bits of one word, under the tensor
``conv1.update``; the step is the number of the mini-batch's first sample. Element of
``weight[o, i, ky, kx]`` is ``((o*Kh + ky)*Kw + kx)*Ci + i`` (Ci within a group), and biases come
behind the weights.

RTL: ``rtl/parts/noise.py``, ``rtl/pipeline/update_noise.py``. Test: ``tests/test_noise.py``.
"""

import torch
from torch import Tensor

from .fixed import random_words
from .plan import LayerPlan
from .random import MASK, NOISE_BITS, NOISE_HALF, UPDATE_FIELDS, tensor_number
from .step import Step

__all__ = ["parameter_elements", "sample_noise", "update_noise"]

_FIELD = (1 << NOISE_BITS) - 1


def sample_noise(
    seed: int, name: str, shape: tuple[int, int, int], step: Step, count: int
) -> Tensor:
    """Return noise for ``count`` samples of the tensor ``name``: int64 [count, C, H, W], or, in
    inference, what broadcasts to it.
    """
    if not step.training:
        return torch.tensor(NOISE_HALF)
    channels, height, width = shape
    places = torch.arange(channels * height * width).view(height, width, channels)
    samples = (torch.arange(count) + step.first_sample % (MASK + 1)) & MASK
    elements = places.permute(2, 0, 1)
    _, low = random_words(seed, tensor_number(name), elements, samples.view(-1, 1, 1, 1))
    return low & _FIELD


def parameter_elements(layer: LayerPlan, part: str) -> Tensor:
    """Return the element of every ``weight`` or ``bias`` in torch's own shape, int64."""
    outputs, inputs = layer.o_shape[0], layer.group_shape[1]
    rows, columns = layer.kernel
    count = outputs * rows * columns * inputs
    if part == "bias":
        return torch.arange(outputs) + count
    places = torch.arange(count).view(outputs, rows, columns, inputs).permute(0, 3, 1, 2)
    if layer.kind == "scale":
        return places.reshape(outputs)
    return places.reshape(outputs, -1) if layer.kind == "linear" else places


def update_noise(seed: int, layer: LayerPlan, part: str, step: Step) -> dict[str, Tensor]:
    """Return the noise of each of ``UPDATE_FIELDS`` for ``weight`` or ``bias``, in torch's own
    shape, int64.
    """
    number = tensor_number(f"{layer.name}.update")
    elements = parameter_elements(layer, part)
    high, low = random_words(seed, number, elements, step.first_sample & MASK)
    fields = (low & _FIELD, low >> NOISE_BITS, high & _FIELD, high >> NOISE_BITS)
    return dict(zip(UPDATE_FIELDS, fields, strict=True))
