"""Every call that the hardware has becomes the right layers."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from gradweave.model.errors import UnsupportedError
from gradweave.model.graph import Node
from gradweave.model.trace import trace
from gradweave.tests.rule_net import IMAGE, MAP, Net, nodes_of


def built(kind, o_shape=MAP, name="call", i_shape=MAP, **fields):
    return Node(**{"name": name, "kind": kind, "i_shape": i_shape, "o_shape": o_shape, **fields})


def conv(*args, o_shape, **fields):
    options = fields.pop("options", {})
    return nn.Conv2d(4, *args, **options), built("conv2d", o_shape, bias=True, **fields)


CONVS = {
    "grouped": conv(6, 3, options={"groups": 2}, o_shape=(6, 7, 6), kernel=(3, 3), groups=2),
    "depthwise_with_multiplier": conv(
        8, 3, options={"groups": 4}, o_shape=(8, 7, 6), kernel=(3, 3), groups=4
    ),
    "dilated": conv(
        2, (3, 2), options={"dilation": (2, 3)}, o_shape=(2, 5, 5), kernel=(3, 2), dilation=(2, 3)
    ),
    "stride_above_kernel": conv(
        2, 2, options={"stride": 5}, o_shape=(2, 2, 2), kernel=(2, 2), stride=(5, 5)
    ),
    "rectangular": conv(
        2,
        (1, 5),
        options={"stride": (2, 1), "padding": (0, 3)},
        o_shape=(2, 5, 10),
        kernel=(1, 5),
        stride=(2, 1),
        padding=(0, 3),
    ),
    "same_odd": conv(
        2, 3, options={"padding": "same"}, o_shape=(2, 9, 8), kernel=(3, 3), padding=(1, 1)
    ),
    "same_even_begins_with_less": conv(
        2, 4, options={"padding": "same"}, o_shape=(2, 9, 8), kernel=(4, 4), padding=(1, 1)
    ),
    "same_even_dilated": conv(
        2,
        (2, 4),
        options={"padding": "same", "dilation": (3, 1)},
        o_shape=(2, 9, 8),
        kernel=(2, 4),
        padding=(1, 1),
        dilation=(3, 1),
    ),
    "valid": conv(2, 3, options={"padding": "valid"}, o_shape=(2, 7, 6), kernel=(3, 3)),
    "largest": conv(2, (9, 8), o_shape=(2, 1, 1), kernel=(9, 8)),
}


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize("case", CONVS)
def test_convolutions_keep_their_arguments(case):
    layer, expected = CONVS[case]
    assert nodes_of(layer, first=False) == (expected,)


def pool(o_shape, kernel, stride, padding=(0, 0), kind="maxpool2d", **fields):
    return built(kind, o_shape, kernel=kernel, stride=stride, padding=padding, **fields)


def mean_of(o_shape, kernel, stride, padding=(0, 0), **fields):
    return pool(o_shape, kernel, stride, padding, kind="avgpool2d", **fields)


POOLS = {
    "overlapping": (nn.MaxPool2d(3, 2, 1), pool((4, 5, 4), (3, 3), (2, 2), (1, 1))),
    "dilated": (
        nn.MaxPool2d(2, 1, dilation=(3, 2)),
        pool((4, 6, 6), (2, 2), (1, 1), dilation=(3, 2)),
    ),
    "ceil": (nn.MaxPool2d(2, ceil_mode=True), pool((4, 5, 4), (2, 2), (2, 2))),
    "ceil_padded": (
        nn.MaxPool2d((3, 2), 3, (1, 0), ceil_mode=True),
        pool((4, 4, 3), (3, 2), (3, 3), (1, 0)),
    ),
    "average": (nn.AvgPool2d(2), mean_of((4, 4, 4), (2, 2), (2, 2))),
    "average_padded": (
        nn.AvgPool2d(3, 2, 1),
        mean_of((4, 5, 4), (3, 3), (2, 2), (1, 1)),
    ),
    "average_without_padding_counted": (
        nn.AvgPool2d(3, 2, 1, ceil_mode=True, count_include_pad=False),
        mean_of((4, 5, 5), (3, 3), (2, 2), (1, 1), count_padding=False),
    ),
    "adaptive": (nn.AdaptiveAvgPool2d((4, 3)), built("avgpool2d", (4, 4, 3), adaptive=True)),
    "adaptive_int": (nn.AdaptiveAvgPool2d(1), built("avgpool2d", (4, 1, 1), adaptive=True)),
    "adaptive_none": (
        nn.AdaptiveAvgPool2d((None, 2)),
        built("avgpool2d", (4, 9, 2), adaptive=True),
    ),
    "adaptive_maximum": (nn.AdaptiveMaxPool2d((3, 1)), pool((4, 3, 1), (3, 8), (3, 8))),
}


@pytest.mark.parametrize("case", POOLS)
def test_pools_keep_their_arguments(case):
    layer, expected = POOLS[case]
    assert nodes_of(layer) == (expected,)


RELAYS = {
    "relu": (nn.ReLU(), {"kind": "relu"}),
    "relu6": (nn.ReLU6(inplace=True), {"kind": "clip", "lower": 0.0, "upper": 6.0}),
    "hardtanh": (nn.Hardtanh(-0.5, 2), {"kind": "clip", "lower": -0.5, "upper": 2.0}),
    "leaky": (nn.LeakyReLU(0.2), {"kind": "leaky_relu", "slope": 0.2}),
    "leaky_default": (nn.LeakyReLU(), {"kind": "leaky_relu", "slope": 0.01}),
    "sigmoid": (nn.Sigmoid(), {"kind": "sigmoid"}),
    "tanh": (nn.Tanh(), {"kind": "tanh"}),
    "gelu": (nn.GELU(), {"kind": "gelu"}),
    "silu": (nn.SiLU(), {"kind": "silu"}),
    "softmax": (nn.Softmax(1), {"kind": "softmax"}),
    "softmax_from_behind": (nn.Softmax(-3), {"kind": "softmax"}),
    "softmax2d": (nn.Softmax2d(), {"kind": "softmax"}),
    "dropout": (nn.Dropout(0.25), {"kind": "dropout", "drop": 0.25}),
}


@pytest.mark.parametrize("case", RELAYS)
def test_activations_keep_their_arguments(case):
    layer, fields = RELAYS[case]
    assert nodes_of(layer) == (built(**fields),)


FUNCTIONS = {
    "max_pool2d": (
        lambda x: F.max_pool2d(x, 3, stride=2, padding=1, ceil_mode=True),
        nn.MaxPool2d(3, 2, 1, ceil_mode=True),
    ),
    "avg_pool2d": (
        lambda x: F.avg_pool2d(x, 3, 2, 1, False, False),
        nn.AvgPool2d(3, 2, 1, count_include_pad=False),
    ),
    "avg_pool2d_of_the_map": (lambda x: F.avg_pool2d(x, x.size()[2:]), nn.AvgPool2d((9, 8))),
    "adaptive_avg_pool2d": (
        lambda x: F.adaptive_avg_pool2d(x, (4, None)),
        nn.AdaptiveAvgPool2d((4, None)),
    ),
    "adaptive_max_pool2d": (lambda x: F.adaptive_max_pool2d(x, 1), nn.AdaptiveMaxPool2d(1)),
    "mean": (lambda x: x.mean((2, 3)), nn.AdaptiveAvgPool2d(1)),
    "mean_dim": (lambda x: x.mean(dim=[-1, -2], keepdim=True), nn.AdaptiveAvgPool2d(1)),
    "torch_mean": (lambda x: torch.mean(x, (2, 3)), nn.AdaptiveAvgPool2d(1)),
    "relu": (torch.relu, nn.ReLU()),
    "relu_method": (lambda x: x.relu_(), nn.ReLU()),
    "relu6": (F.relu6, nn.ReLU6()),
    "hardtanh": (lambda x: F.hardtanh(x, -2.0, 3.0), nn.Hardtanh(-2.0, 3.0)),
    "clamp": (lambda x: x.clamp(-2.0, 3.0), nn.Hardtanh(-2.0, 3.0)),
    "torch_clamp": (lambda x: torch.clamp(x, min=-2.0, max=3.0), nn.Hardtanh(-2.0, 3.0)),
    "leaky_relu": (lambda x: F.leaky_relu(x, 0.3), nn.LeakyReLU(0.3)),
    "sigmoid": (torch.sigmoid, nn.Sigmoid()),
    "sigmoid_method": (lambda x: x.sigmoid(), nn.Sigmoid()),
    "tanh": (torch.tanh, nn.Tanh()),
    "tanh_method": (lambda x: x.tanh(), nn.Tanh()),
    "gelu": (F.gelu, nn.GELU()),
    "silu": (F.silu, nn.SiLU()),
    "softmax": (lambda x: F.softmax(x, dim=1), nn.Softmax(1)),
    "torch_softmax": (lambda x: torch.softmax(x, 1), nn.Softmax(1)),
    "softmax_method": (lambda x: x.softmax(dim=1), nn.Softmax(1)),
}


@pytest.mark.parametrize("case", FUNCTIONS)
def test_a_function_is_the_layer_of_its_module(case):
    function, module = FUNCTIONS[case]
    (got,), (expected,) = nodes_of(function), nodes_of(module)
    fields = {key: value for key, value in vars(expected).items() if key != "name"}
    assert {key: value for key, value in vars(got).items() if key != "name"} == fields


def test_a_clamp_may_have_one_end():
    (node,) = nodes_of(lambda x: x.clamp(min=0))
    assert (node.kind, node.lower, node.upper) == ("clip", 0.0, math.inf)


DROPPED = {
    "identity": nn.Identity(),
    "dropout_of_nothing": nn.Dropout(0.0),
    "contiguous": lambda x: x.contiguous(),
    "flatten_and_back": lambda x: x.flatten(1).view(-1, 4, 9, 8),
    "unflatten": nn.Sequential(nn.Flatten(), nn.Unflatten(1, (4, 9, 8))),
    "sum_of_one": lambda x: sum([x]),
    "cat_of_one": lambda x: torch.cat([x], 1),
    "shape_arithmetic": lambda x: x.view(x.shape[0], x.shape[1] * x.shape[2] * x.shape[-1] // 1),
}


@pytest.mark.parametrize("case", DROPPED)
def test_what_changes_nothing_is_dropped(case):
    assert nodes_of(DROPPED[case]) == ()


@pytest.mark.parametrize(
    "squeeze",
    [
        lambda x: x.squeeze(),
        lambda x: x.squeeze(-1).squeeze(-1),
        lambda x: torch.squeeze(x, 3).squeeze(2),
        lambda x: x.flatten(2).squeeze(2),
    ],
)
def test_squeezing_a_map_of_one_pixel_flattens_it(squeeze):
    (node,) = nodes_of(lambda x: squeeze(F.adaptive_avg_pool2d(x, 1)))
    assert node.o_shape == (4, 1, 1)


class Pad(nn.Module):
    def __init__(self, pad):
        super().__init__()
        self.pad = pad

    def forward(self, x):
        return self.pad(x)


PADS = {
    "module": nn.ZeroPad2d((1, 2, 0, 3)),
    "constant": nn.ConstantPad2d((1, 2, 0, 3), 0.0),
    "function": lambda x: F.pad(x, (1, 2, 0, 3)),
    "twice": lambda x: F.pad(F.pad(x, (1, 2)), (0, 0, 0, 3), "constant", 0),
}


@pytest.mark.parametrize("case", PADS)
def test_zeros_become_the_padding_of_the_convolution_behind(case):
    (node,) = nodes_of(nn.Sequential(Pad(PADS[case]), nn.Conv2d(4, 2, 3, 2, 1)), first=False)
    assert (node.i_shape, node.o_shape) == (MAP, (2, 6, 6))
    assert (node.padding, node.stride) == ((1, 2), (2, 2))


def test_batch_norm_is_frozen_statistics_and_a_trained_scale():
    layer = nn.BatchNorm2d(4, eps=0.5)
    with torch.no_grad():
        layer.running_mean.copy_(torch.tensor([0.0, 1.0, -2.0, 4.0]))
        layer.running_var.copy_(torch.tensor([0.5, 3.5, 15.5, 63.5]))
        layer.weight.copy_(torch.tensor([1.0, 0.0, -1.0, -0.5]))
    statistics, scale = nodes_of(layer)
    factors, offsets = (1.0, 0.5, 0.25, 0.125), (0.0, -0.5, 0.5, -0.5)
    assert statistics == built("affine", name="call.statistics", factors=factors, offsets=offsets)
    assert scale == built("scale", groups=4, bias=True)
    assert scale.weight_shape == (4, 1, 1, 1)


def test_batch_norm_without_parameters_is_its_statistics():
    (node,) = nodes_of(nn.BatchNorm2d(4, affine=False))
    assert (node.name, node.kind) == ("call.statistics", "affine")


def test_batch_norm_of_vectors_is_that_of_maps_of_one_pixel():
    model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 2))
    nodes = trace(model, torch.randn(3, 6)).nodes
    assert [node.kind for node in nodes] == ["linear", "affine", "scale", "relu", "linear"]
    assert nodes[2].o_shape == (5, 1, 1)


def test_tracing_changes_neither_statistics_nor_random_numbers():
    model = Net(nn.Sequential(nn.BatchNorm2d(4), nn.Dropout(0.5)))
    state = {name: value.clone() for name, value in model.state_dict().items()}
    random = torch.get_rng_state()
    trace(model, IMAGE)
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())
    assert model.training
    assert model.call[0].training


class Dropping(nn.Module):
    """A model whose function drops in evaluation mode too, or as it should."""

    def __init__(self, always):
        super().__init__()
        self.fc = nn.Linear(4, 3)
        self.always = always

    def forward(self, x):
        return self.fc(F.dropout(x, 0.25, self.training or self.always))


def test_a_function_drops_in_training_only():
    nodes = trace(Dropping(always=False), torch.ones(1, 4)).nodes
    assert nodes[0] == Node("dropout", "dropout", (4, 1, 1), (4, 1, 1), drop=0.25)
    with pytest.raises(UnsupportedError, match=r"or drop values without training=self\.training$"):
        trace(Dropping(always=True), torch.ones(1, 4))


def test_dropouts_are_numbered():
    drops = nn.Sequential(nn.Dropout(0.5), nn.Identity(), nn.Dropout(0.0), nn.Dropout(0.5))
    assert [node.number for node in nodes_of(drops)] == [0, 1]
