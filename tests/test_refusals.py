"""Every call that the hardware does not have is refused by path, type, shape and rule."""

import math
import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from gradweave.model.errors import InputError, UnsupportedError
from gradweave.model.rules import HINTS, SUPPORTED
from gradweave.model.trace import trace
from gradweave.tests.rule_net import IMAGE, nodes_of

REFUSED = {
    "padding_mode": (
        lambda: nn.Conv2d(4, 4, 3, padding_mode="circular"),
        "Conv2d",
        "padding_mode must be 'zeros', not 'circular'",
    ),
    "kernel": (
        lambda: nn.Conv2d(4, 4, (1, 12), padding=6),
        "Conv2d",
        "kernel_size must be 1 to 11, not (1, 12)",
    ),
    "divisor": (
        lambda: nn.AvgPool2d(2, divisor_override=3),
        "AvgPool2d",
        "divisor_override must be None, not 3: the divisor is the number of entries of a window",
    ),
    "indices": (
        lambda: nn.Sequential(nn.MaxPool2d(3, return_indices=True), First()),
        "MaxPool2d",
        "return_indices must be False",
    ),
    "adaptive_maximum": (
        lambda: nn.AdaptiveMaxPool2d((2, 2)),
        "AdaptiveMaxPool2d",
        "output_size must divide the map of 9x8, not be 2x2",
    ),
    "steep": (lambda: nn.LeakyReLU(1.5), "LeakyReLU", "negative_slope must be 0 to 1, not 1.5"),
    "rising": (lambda: nn.LeakyReLU(-0.5), "LeakyReLU", "negative_slope must be 0 to 1, not -0.5"),
    "gelu": (
        lambda: nn.GELU(approximate="tanh"),
        "GELU",
        "approximate must be 'none', not 'tanh'",
    ),
    "dropout_of_all": (
        lambda: nn.Dropout(1.0),
        "Dropout",
        "p must be 0, or 2**-17 to below 1 - 2**-17, not 1.0",
    ),
    "no_statistics": (
        lambda: nn.BatchNorm2d(4, track_running_stats=False),
        "BatchNorm2d",
        "it must have running statistics (track_running_stats=True), as the hardware normalises "
        "by them",
    ),
    "pad_value": (
        lambda: nn.Sequential(nn.ConstantPad2d(1, 0.5), nn.Conv2d(4, 2, 3)),
        "ConstantPad2d",
        "it must pad with zeros, not mode 'constant' and value 0.5",
    ),
    "crop": (
        lambda: nn.Sequential(nn.ZeroPad2d(-1), nn.Conv2d(4, 2, 3)),
        "ZeroPad2d",
        "it must add zeros around height and width, not pad by (-1, -1, -1, -1)",
    ),
    "dropout2d": (lambda: nn.Dropout2d(), "Dropout2d", HINTS["Dropout2d"]),
    "layer_norm": (lambda: nn.LayerNorm([4, 9, 8]), "LayerNorm", HINTS["LayerNorm"]),
    "group_norm": (lambda: nn.GroupNorm(2, 4), "GroupNorm", HINTS["GroupNorm"]),
    "instance_norm": (lambda: nn.InstanceNorm2d(4), "InstanceNorm2d", HINTS["InstanceNorm2d"]),
    "log_softmax": (lambda: nn.LogSoftmax(1), "LogSoftmax", HINTS["LogSoftmax"]),
    "softmax_of_rows": (
        lambda: nn.Softmax(-1),
        "Softmax",
        "dim must be 1, the channels, not -1",
    ),
    "transposed": (
        lambda: nn.ConvTranspose2d(4, 2, 3),
        "ConvTranspose2d",
        "transposed convolutions are not built",
    ),
    "upsample": (
        lambda: nn.Upsample(scale_factor=2),
        "Upsample",
        "maps are not enlarged in hardware",
    ),
    "prelu": (lambda: nn.PReLU(), "PReLU", SUPPORTED),
    "lp": (lambda: nn.LPPool2d(2, 3), "LPPool2d", SUPPORTED),
    "shuffle": (lambda: nn.PixelShuffle(2), "PixelShuffle", SUPPORTED),
}


class First(nn.Module):
    def forward(self, x):
        return x[0]


@pytest.mark.parametrize("case", REFUSED)
def test_a_module_that_is_not_built_is_refused_by_its_rule(case):
    make, kind, rule = REFUSED[case]
    module = make()
    path = "call.0" if isinstance(module, nn.Sequential) else "call"
    message = f"{path} ({kind}, input 4x9x8) is not supported: {rule}"
    with pytest.raises(UnsupportedError, match=f"^{re.escape(message)}$"):
        nodes_of(module)


CALLS = {
    "mean_of_rows": (
        lambda x: x.mean(2),
        "mean (mean, input 4x9x8)",
        "dim must be (2, 3), height and width, not 2",
    ),
    "mean_of_all": (
        lambda x: x.mean((1, 2, 3), keepdim=True),
        "mean (mean, input 4x9x8)",
        "dim must be (2, 3), height and width, not (1, 2, 3)",
    ),
    "upside_down": (
        lambda x: x.clamp(3, 2),
        "clamp (clamp, input 4x9x8)",
        "min must be below max = 2, not 3",
    ),
    "clamp_by_a_map": (
        lambda x: torch.clamp(x, max=x.sigmoid()),
        "clamp (clamp, input 4x9x8)",
        "it must take the output of one layer, not of 2",
    ),
    "softmax_as_double": (
        lambda x: x.softmax(1, torch.float64),
        "softmax (softmax, input 4x9x8)",
        "dtype must be None, not torch.float64",
    ),
    "softmax_of_a_map": (
        lambda x: x.flatten(1).softmax(1),
        "softmax (softmax, input 288)",
        "its vector must not be flattened from a map: softmax goes over channels alone",
    ),
    "never_dropping": (
        lambda x: F.dropout(x, 0.5, training=False),
        "dropout (dropout, input 4x9x8)",
        "its training is False, so it would never drop: call model.train() first, or remove it",
    ),
    "constant": (
        lambda x: x + 1,
        "add (add, input 4x9x8)",
        "both its inputs must be outputs of layers, not a constant or parameter",
    ),
    "product": (lambda x: x * 2, "mul (mul, input 4x9x8)", SUPPORTED),
    "slice": (lambda x: x[:, :2], "getitem (getitem, input 4x9x8)", SUPPORTED),
    "permute": (lambda x: x.permute(0, 2, 3, 1), "permute (permute, input 4x9x8)", SUPPORTED),
    "detach": (lambda x: x.detach(), "detach (detach, input 4x9x8)", SUPPORTED),
    "padded_relu": (
        lambda x: F.relu(F.pad(x, (1, 1))),
        "relu (relu, input 4x9x10)",
        "the zeros around its input must go to a Conv2d alone",
    ),
    "reflected": (
        lambda x: F.pad(x, (1, 1, 0, 0), "reflect"),
        "pad (pad, input 4x9x8)",
        "it must pad with zeros, not mode 'reflect' and value None",
    ),
    "padded_channels": (
        lambda x: F.pad(x, (0, 0, 0, 0, 1, 1)),
        "pad (pad, input 4x9x8)",
        "it must add zeros around height and width, not pad by (0, 0, 0, 0, 1, 1)",
    ),
    "weights_without_a_module": (
        lambda x: F.conv2d(x, torch.ones(2, 4, 1, 1)),
        "conv2d (conv2d, input 4x9x8)",
        HINTS["conv2d"],
    ),
    "broadcast": (
        lambda x: x + x.mean((2, 3), keepdim=True),
        "add (add, input 4x9x8)",
        "its inputs must have one shape, not 4x9x8 and 4x1x1: broadcasting is not built",
    ),
    "scaled_addition": (
        lambda x: torch.add(x, x, alpha=2),
        "add (add, input 4x9x8)",
        "alpha must be 1, not 2",
    ),
    "cat_of_rows": (
        lambda x: torch.cat([x, x], 2),
        "cat (cat, input 4x9x8)",
        "dim must be 1, the channels, not 2",
    ),
    "cat_of_flattened": (
        lambda x: torch.cat([x.flatten(1), F.max_pool2d(x, 2).flatten(1)], 1),
        "cat (cat, input 288)",
        "its inputs must have one height and width, also before they were flattened, not 4x4 and "
        "9x8",
    ),
    "unflattened_channels": (
        lambda x: F.adaptive_avg_pool2d(x, 1).flatten(1).view(-1, 1, 2, 2),
        "view (view, input 4)",
        "it must flatten each sample to [N, 4], not to [2, 1, 2, 2]",
    ),
    "batch_is_flattened": (
        lambda x: x.reshape(1, -1),
        "reshape (reshape, input 4x9x8)",
        "it must flatten each sample to [N, 288], not to [1, 576]",
    ),
}


@pytest.mark.parametrize("case", CALLS)
def test_a_function_that_is_not_built_is_refused_by_its_rule(case):
    function, title, rule = CALLS[case]
    with pytest.raises(
        UnsupportedError, match=f"^{re.escape(f'{title} is not supported: {rule}')}$"
    ):
        nodes_of(function)


def test_batch_norm_of_a_flattened_map_is_refused():
    model = nn.Sequential(nn.Conv2d(4, 2, 3), nn.Flatten(), nn.BatchNorm1d(84), nn.Linear(84, 3))
    message = (
        "2 (BatchNorm1d, input 84) is not supported: its input must be [N, channels], of maps "
        "of 1x1"
    )
    with pytest.raises(UnsupportedError, match=f"^{re.escape(message)}$"):
        trace(model, IMAGE)


def test_statistics_that_are_no_numbers_are_refused():
    layer = nn.BatchNorm2d(4)
    layer.running_var[2] = math.nan
    with pytest.raises(InputError, match=r"^call\.running_var must be finite, not nan at \[2\]$"):
        nodes_of(layer)


def test_a_function_inside_a_module_is_named_by_that_modules_path():
    class Inner(nn.Module):
        def forward(self, x):
            return torch.exp(x)

    message = f"call.0.exp (exp, input 4x9x8) is not supported: {SUPPORTED}"
    with pytest.raises(UnsupportedError, match=f"^{re.escape(message)}$"):
        nodes_of(nn.Sequential(Inner()))
