"""Kinds of faults that users of peer tools reported in public: each works, or is refused by name.

``NETWORKS`` are compiled as a user would and their logits compared with float torch, in the golden
model, to whose bits the tests of blocks and boards hold the hardware. ``COVERED`` names, for every
kind of fault, the tests elsewhere that hold it off; that they exist is tested, too. Thresholds
narrower than what they are compared with, and binary activations with zero padding, cannot occur:
there are no thresholds and no binary networks.
"""

import ast
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import nn

import gradweave as gw
from gradweave.host.quantize import float_logits
from gradweave.model.errors import UnsupportedError

HERE = Path(__file__).parent
# Of the largest logit: tens of roundings of 16-bit features and weights.
TOLERANCE = 0.01


def flat(*layers, inputs, outputs=3):
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(inputs, outputs))


def norm(channels, gammas):
    module = nn.BatchNorm2d(channels)
    with torch.no_grad():
        module.running_mean.uniform_(-1, 1)
        module.running_var.uniform_(0.5, 2)
        module.weight.copy_(torch.tensor(gammas))
        module.bias.uniform_(-1, 1)
    return module


# A network and the shape of its samples.
NETWORKS = {
    "stride above the kernel": (
        lambda: flat(nn.Conv2d(2, 4, 2, stride=3), inputs=36),
        (2, 8, 8),
    ),
    "grouped convolution": (
        lambda: flat(nn.Conv2d(4, 6, 3, padding=1, groups=2), inputs=96),
        (4, 4, 4),
    ),
    "channel multiplier": (
        lambda: flat(nn.Conv2d(3, 9, 3, groups=3), inputs=81),
        (3, 5, 5),
    ),
    "dilation": (lambda: flat(nn.Conv2d(2, 3, 3, dilation=2), inputs=48), (2, 8, 8)),
    "ceil_mode": (
        lambda: flat(nn.Conv2d(1, 2, 1), nn.MaxPool2d(2, ceil_mode=True), inputs=18),
        (1, 5, 5),
    ),
    "flatten behind pooling": (
        lambda: flat(nn.Conv2d(1, 5, 3), nn.MaxPool2d(2), inputs=30),
        (1, 6, 8),
    ),
    "17 channels": (
        lambda: flat(nn.Conv2d(1, 17, 3), nn.ReLU(), nn.Conv2d(17, 16, 1), inputs=64),
        (1, 4, 4),
    ),
    "large biases": (lambda: with_bias(flat(nn.Conv2d(1, 3, 3), inputs=12)), (1, 4, 4)),
    "no biases": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 3, 3, bias=False), nn.Flatten(), nn.Linear(12, 3, bias=False)
        ),
        (1, 4, 4),
    ),
    "average of large values": (
        lambda: flat(with_bias(nn.Conv2d(1, 2, 1)), nn.AvgPool2d(8), inputs=2),
        (1, 8, 8),
    ),
    "negative and zero gamma": (
        lambda: flat(nn.Conv2d(1, 3, 3), norm(3, [-1.5, 0.0, 0.5]), nn.ReLU(), inputs=12),
        (1, 4, 4),
    ),
    "leaky slope": (lambda: flat(nn.Conv2d(1, 3, 3), nn.LeakyReLU(0.3), inputs=12), (1, 4, 4)),
    "bounds of Hardtanh": (
        lambda: flat(nn.Conv2d(1, 3, 3), nn.Hardtanh(-0.25, 0.5), inputs=12),
        (1, 4, 4),
    ),
}


def with_bias(module):
    """Biases of 5 to 8."""
    with torch.no_grad():
        for name, values in module.named_parameters():
            if name.endswith("bias"):
                values.uniform_(5, 8)
    return module


@pytest.mark.parametrize("name", NETWORKS)
def test_logits_are_those_of_float_torch(name):
    make, shape = NETWORKS[name]
    torch.manual_seed(11)
    model = make().eval()
    x = torch.randn(32, *shape)
    design = gw.compile(model, x, batch=8, versions="flush")
    golden = design.golden()
    logits = float_logits(design.plan, golden.infer(design.quantize_input(x).long()))
    with torch.no_grad():
        expected = model(x)
    assert logits.shape == expected.shape
    assert (logits - expected).abs().max() <= TOLERANCE * expected.abs().max()


def test_small_weights_that_all_become_zero_are_reported():
    torch.manual_seed(11)
    model = flat(nn.Conv2d(1, 3, 3), inputs=12)
    with torch.no_grad():
        model[0].weight.mul_(2.0**-12)
    narrow = {"0.weight": gw.Format(8, 6)}
    with pytest.warns(
        gw.GradweaveWarning, match=r"^0\.weight becomes zero everywhere in format s8"
    ):
        gw.compile(model, torch.randn(32, 1, 4, 4), formats=narrow)


def test_a_transposed_convolution_is_refused_by_path_and_type():
    model = nn.Sequential(nn.Conv2d(1, 2, 3), flat(nn.ConvTranspose2d(2, 2, 3), inputs=72))
    with pytest.raises(UnsupportedError) as refusal:
        gw.compile(model, torch.randn(8, 1, 6, 6))
    assert "1.0" in str(refusal.value)
    assert "ConvTranspose2d" in str(refusal.value)


COVERED = {
    "stride larger than the kernel": (
        "pipeline/test_conv_matrix.py::test_every_pair_of_choices_gives_the_golden_bits",
        "pipeline/test_golden_conv.py::test_groups_dilation_and_free_ends_are_those_of_torch",
    ),
    "grouped convolution lowered as a dense one": (
        "pipeline/test_golden_conv.py::test_a_grouped_layer_equals_its_definition",
        "pipeline/test_conv_matrix.py::test_every_pair_of_choices_gives_the_golden_bits",
    ),
    "channel multiplier above 1": (
        "pipeline/test_golden_conv.py::test_a_channel_multiplier_worked_by_hand",
    ),
    "group counts other than 1 and C": (
        "pipeline/test_conv_matrix.py::test_every_pair_of_choices_gives_the_golden_bits",
    ),
    "dilation above 1": (
        "pipeline/test_golden_conv.py::test_groups_dilation_and_free_ends_are_those_of_torch",
    ),
    "ceil_mode": (
        "pipeline/test_golden_maxpool.py::test_values_and_errors_equal_float_torch",
        "pipeline/test_maxpool.py::test_both_directions_are_right_in_the_least_buffers",
    ),
    "transposed convolution": (
        "test_public_faults.py::test_a_transposed_convolution_is_refused_by_path_and_type",
    ),
    "flatten order": (
        "pipeline/test_golden_linear.py::"
        "test_all_sums_equal_their_definition_in_torchs_flatten_order",
        "test_trace.py::test_every_way_to_flatten_is_the_same",
        "test_rules.py::test_squeezing_a_map_of_one_pixel_flattens_it",
    ),
    "channels that no block width divides": (
        "test_compile.py::test_any_number_of_channels_gets_blocks_that_divide_it",
    ),
    "bias dropped or in the wrong format": (
        "test_compile.py::test_a_bias_counts_in_full_and_its_absence_is_no_bias",
        "pipeline/test_conv.py::test_first_layers_and_layers_without_bias_give_the_golden_bits",
    ),
    "average summed in the input format": (
        "pipeline/test_avgpool.py::"
        "test_the_mean_of_the_greatest_and_of_the_least_features_is_exact",
    ),
    "accumulator narrowed": (
        "pipeline/test_golden_conv.py::test_accumulators_are_as_wide_as_a_groups_terms_need",
        "pipeline/test_golden_conv.py::test_all_sums_equal_their_definition_at_full_range",
        "test_formats.py::test_an_accumulator_holds_both_extreme_sums_and_is_not_a_bit_too_wide",
    ),
    "wrapping instead of saturating": (
        "test_fixed.py::test_899_saturates_in_a_format_that_ends_at_8",
        "parts/test_requantize.py::test_a_value_past_the_end_saturates_and_does_not_wrap",
    ),
    "lanes added in too narrow a word": (
        "parts/test_adder_tree.py::test_sums_are_exact_after_the_stated_latency",
        "parts/test_sum_bank.py::test_the_widest_sums_are_exact",
    ),
    "negative gamma": (
        "pipeline/test_golden_affine.py::test_it_is_a_batch_norm_in_inference",
        "test_graphs.py::test_the_graph_computes_the_model",
    ),
    "small weights become zero": (
        "test_calibrate.py::test_tiny_weights_are_not_lost",
        "test_calibrate.py::test_a_format_that_zeroes_a_tensor_is_reported",
    ),
    "rounding defined differently on two sides": (
        "test_fixed.py::test_known_values_round_as_worked_by_hand",
        "parts/test_requantize.py::test_halves_round_as_each_mode_says",
    ),
    "activation arguments ignored": (
        "test_rules.py::test_activations_keep_their_arguments",
        "pipeline/test_golden_activation.py::test_a_leaky_relu_is_torchs_within_half_a_unit",
    ),
    "one folding right, another wrong": (
        "pipeline/test_conv.py::test_every_folding_gives_the_golden_bits",
        "pipeline/test_scale.py::test_every_folding_gives_the_golden_bits",
    ),
    "skip connection hangs": (
        "test_graph_schedule.py::"
        "test_the_computed_depth_keeps_the_interval_and_a_smaller_one_stalls",
        "test_graph_board.py::test_a_skip_trains_at_the_least_depth_and_deadlocks_below_it",
        "test_random_graphs.py::test_no_graph_deadlocks_and_computed_depths_keep_the_interval",
    ),
    "memory starts undefined": (
        "test_board.py::test_memories_start_at_zero_as_in_the_golden_model",
    ),
    "weights of another folding accepted": (
        "test_checkpoint.py::test_weights_of_another_folding_are_refused",
        "test_device.py::test_another_design_is_refused_before_any_transfer",
    ),
    "unmapped layer names nothing": (
        "test_refusals.py::test_a_module_that_is_not_built_is_refused_by_its_rule",
        "test_refusals.py::test_a_function_that_is_not_built_is_refused_by_its_rule",
    ),
    "unsupported number type": (
        "test_bad_input.py::test_models_that_cannot_be_trained_are_refused",
        "test_bad_input.py::test_bad_mini_batches_are_refused_and_change_no_weight",
    ),
}


@cache
def names_of(file):
    tree = ast.parse((HERE / file).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("fault", COVERED)
def test_the_tests_that_hold_a_fault_off_exist(fault):
    for test in COVERED[fault]:
        file, name = test.split("::")
        assert name in names_of(file), test
