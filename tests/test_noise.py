"""Noise belongs to a named element at a step, whatever the shape of the work around it."""

import zlib

import pytest
import torch

from gradweave.model.noise import parameter_elements, sample_noise, update_noise
from gradweave.model.random import random_word, tensor_number
from gradweave.model.step import Step
from gradweave.tests.plans import chain, conv, linear, scale


def layers():
    plan = chain(
        (4, 5, 6),
        conv("c", 6, kernel=(2, 3), groups=2, padding=1),
        scale("s"),
        linear("l", 3),
    )
    return {layer.name: layer for layer in plan.layers}


def test_a_tensors_number_is_the_crc_of_its_name():
    assert tensor_number("conv1.o_feature") == zlib.crc32(b"conv1.o_feature")
    assert tensor_number("123456789") == 0xCBF43926


def test_a_samples_noise_is_that_of_its_number_and_its_place():
    step = Step(True, first_sample=2**32 - 1)
    got = sample_noise(9, "c.o_feature", (3, 4, 5), step, 2)
    assert got.shape == (2, 3, 4, 5)
    for n, c, y, x in ((0, 2, 3, 4), (1, 0, 1, 2), (1, 2, 0, 0)):
        element, sample = (y * 5 + x) * 3 + c, (2**32 - 1 + n) % 2**32
        word = random_word(9, tensor_number("c.o_feature"), element, sample)
        assert got[n, c, y, x] == word & 0xFFFF


def test_in_inference_nothing_is_left_to_chance():
    assert sample_noise(9, "c.o_feature", (3, 4, 5), Step(False), 2).tolist() == 1 << 15


@pytest.mark.parametrize("name", ["c", "s", "l"])
def test_every_parameter_has_an_element_of_its_own(name):
    layer = layers()[name]
    weights, biases = (parameter_elements(layer, part) for part in ("weight", "bias"))
    found = torch.cat([weights.flatten(), biases])
    assert found.sort().values.tolist() == list(range(len(found)))


def test_a_weights_element_counts_output_row_column_input():
    found = parameter_elements(layers()["c"], "weight")
    assert found.shape == (6, 2, 2, 3)
    for o, i, ky, kx in ((0, 0, 0, 0), (5, 1, 1, 2), (3, 1, 0, 2)):
        assert found[o, i, ky, kx] == ((o * 2 + ky) * 3 + kx) * 2 + i
    shape = layers()["l"].kernel
    flat = parameter_elements(layers()["l"], "weight").view(3, 6, *shape)
    assert flat[2, 4, 1, 3] == ((2 * shape[0] + 1) * shape[1] + 3) * 6 + 4


def test_an_update_takes_the_four_fields_of_a_word():
    layer = layers()["c"]
    found = update_noise(3, layer, "bias", Step(True, first_sample=96))
    element = int(parameter_elements(layer, "bias")[4])
    word = random_word(3, tensor_number("c.update"), element, 96)
    fields = [found[field][4].item() for field in ("gradient", "decay", "momentum", "delta")]
    assert fields == [word >> shift & 0xFFFF for shift in (0, 16, 32, 48)]
