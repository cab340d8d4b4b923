"""Fraction bits come from the float model on sample data; bad choices are reported by name."""

import re
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from gradweave.model.calibrate import calibrate
from gradweave.model.errors import FormatError, GradweaveWarning, InputError
from gradweave.model.float_forward import float_tensors
from gradweave.model.formats import Format
from gradweave.model.plan import ParameterPlan
from gradweave.model.trace import trace


def small_net() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(2, 3, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
        nn.Conv2d(3, 4, 2, bias=False),
        nn.Flatten(),
        nn.ReLU(),
        nn.Linear(4, 3),
    )


X = torch.randn(12, 2, 8, 8, generator=torch.Generator().manual_seed(2))
Y = torch.randint(3, (12,), generator=torch.Generator().manual_seed(3))


def chosen(model=None, x=X, y=Y, loss="cross_entropy", **options):
    model = model or small_net()
    return calibrate(trace(model, x, loss), model.state_dict(), x, y, **options)


def trained(formats):
    return [layer for layer in formats.layers.values() if layer.weight is not None]


def vector_net(weight, bias=None) -> nn.Sequential:
    layer = nn.Linear(len(weight[0]), len(weight), bias=bias is not None)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(weight))
        if bias is not None:
            layer.bias.copy_(torch.tensor(bias))
    return nn.Sequential(layer)


def test_a_vector_worked_by_hand():
    model = vector_net([[0.5, 0.25], [-1.5, 0.0]], [0.0, 0.0])
    formats = chosen(model, torch.tensor([[3.0, -1.0]]), torch.tensor([0]), batch=1)
    layer = formats.layers["0"]
    assert formats.input == layer.i_feature == Format(16, 9)  # 3 * 16 < 2**6
    assert formats.loss_feature == layer.o_feature == Format(16, 8)  # |-4.5| * 16 < 2**7
    assert formats.loss_error == layer.o_error == Format(16, 14)
    # 1.5 * 4 < 2**3; the gradient 3 * 0.0032 * 1024 < 2**4.
    assert layer.weight == ParameterPlan(Format(16, 12), Format(32, 28), Format(32, 27))
    # Like the output, 4.5 * 4 < 2**5; the gradient 0.0032 * 1024 < 2**2.
    assert layer.bias == ParameterPlan(Format(16, 10), Format(32, 26), Format(32, 29))


@pytest.mark.parametrize("loss", ["cross_entropy", "mse"])
def test_tensors_are_those_of_autograd_with_a_summed_loss(loss):
    model = small_net().double()
    graph = trace(model, X, loss)
    targets = Y if loss == "cross_entropy" else torch.randn(12, 3, dtype=torch.float64)
    state = model.state_dict()
    batches = list(float_tensors(graph, state, X.double(), targets, 8))
    assert [len(tensors["input"]) for tensors in batches] == [8, 4]
    kept = []
    x = X[:8].double()
    for layer in model:
        x = layer(x)
        x.retain_grad()
        kept.append(x)
    if loss == "cross_entropy":
        F.cross_entropy(x, targets[:8], reduction="sum").backward()
    else:
        (0.5 * (x - targets[:8]) ** 2).sum().backward()
    for name, parameter in model.named_parameters():
        assert torch.allclose(
            batches[0][f"{name}.gradient"].reshape(parameter.shape), parameter.grad
        )
    for name, first, last in (("0", 0, 2), ("3", 3, 5), ("6", 6, 6)):
        assert torch.allclose(batches[0][f"{name}.feature"].flatten(), kept[first].flatten())
        for n in range(first, last + 1):
            if n != 4:  # Flatten is no layer
                assert torch.allclose(batches[0][f"{n}.error"], kept[n].grad.flatten())


def test_formats_join_along_the_chain():
    formats = chosen()
    first, second, third = (formats.layers[name] for name in ("0", "3", "6"))
    assert first.i_feature == formats.input
    assert second.i_feature == first.o_feature
    assert third.i_feature == second.o_feature
    assert first.o_error == second.i_error
    assert second.o_error == third.i_error
    assert third.o_error == formats.loss_error == Format(16, 14)
    assert second.bias is None


def test_bias_never_has_more_fraction_bits_than_its_sum():
    model = vector_net([[1000.0], [2000.0]], [0.0, 0.0])
    formats = chosen(model, torch.full((4, 1), 1e-6), torch.zeros(4).long())
    layer = formats.layers["0"]
    assert layer.bias.working.frac <= layer.weight.working.frac + layer.i_feature.frac


def test_masters_keep_the_integer_bits_of_the_working_weights():
    for layer in trained(chosen(formats={"3.weight": Format(8, 5)})):
        working, master = layer.weight.working, layer.weight.master
        assert master.width - master.frac == working.width - working.frac
        assert master.width == 32


def test_logits_keep_at_least_6_integer_bits_under_cross_entropy():
    small = vector_net([[0.01, 0.0], [0.0, 0.01]])
    assert chosen(small, torch.ones(4, 2), None).loss_feature == Format(16, 9)
    assert chosen(small, torch.ones(4, 2), None, loss="mse").loss_feature == Format(16, 17)


def test_narrow_formats_leave_less_room_to_grow():
    model, x = vector_net([[1.0], [1.0]]), torch.ones(4, 1)
    fracs = [chosen(model, x, None, formats={"input": w}).input.frac for w in (16, 12, 8, 6)]
    assert fracs == [16 - 2 - 4, 12 - 2 - 2, 8 - 2 - 1, 6 - 2 - 1]


def test_what_a_dropout_keeps_finds_room_in_both_directions():
    """Kept values and errors grow by 4."""
    layers = vector_net([[0.5, 0.25], [-1.5, 0.0]]), vector_net([[1.0, 2.0], [3.0, -1.0]])
    x, y = torch.tensor([[3.0, -1.0]]), torch.tensor([0])
    bare = chosen(nn.Sequential(*layers), x, y).layers
    dropped = chosen(nn.Sequential(layers[0], nn.Dropout(0.75), layers[1]), x, y).layers
    assert dropped["0.0"].o_feature.frac == bare["0.0"].o_feature.frac - 2
    assert dropped["0.0"].o_error.frac == bare["0.0"].o_error.frac - 2


def test_small_weights_keep_room_to_grow_up_to_four():
    layer = chosen(vector_net([[0.05, 0.01], [0.02, 0.0]]), torch.ones(4, 2), None).layers["0"]
    assert layer.weight.working == Format(16, 14)
    layer = chosen(
        vector_net([[0.05, 0.01], [0.02, 0.0]]), torch.ones(4, 2), None, formats={"weight": 8}
    )
    assert layer.layers["0"].weight.working == Format(8, 9)


def test_tiny_weights_are_not_lost():
    tiny = vector_net([[1e-6, 0.0], [0.0, -1e-6]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer = chosen(tiny, torch.ones(4, 2), None, loss="mse").layers["0"]
    assert 1e-6 / layer.weight.working.step > 2**9


def test_tensors_of_zeros_get_a_range_of_eight():
    formats = chosen(vector_net([[0.0], [0.0]], [0.0, 0.0]), torch.ones(4, 1), None)
    assert formats.layers["0"].weight.working == Format(16, 12)


def test_gradients_are_scaled_to_the_mini_batch():
    few = chosen(x=X[:2], y=Y[:2], batch=2).layers["6"].bias.gradient
    many = chosen(x=X[:2], y=Y[:2], batch=2048).layers["6"].bias.gradient
    assert few.frac - many.frac == 10


def test_targets_are_drawn_by_the_seed():
    assert chosen(y=None, seed=5) == chosen(y=None, seed=5)
    chosen(y=None, loss="mse")


def test_choices_by_hand_win_the_most_specific_first():
    formats = chosen(
        formats={
            "0.weight": Format(12, 9),
            "*.weight": 10,
            "feature": 14,
            "6.error": 12,
            "6.bias.master": Format(24, 20),
            "gradient": 28,
        }
    )
    widths = [layer.weight.working.width for layer in trained(formats)]
    assert widths == [12, 10, 10]
    assert formats.layers["0"].weight.working == Format(12, 9)
    assert {formats.input.width, *(x.o_feature.width for x in formats.layers.values())} == {14}
    assert formats.loss_error == Format(12, 10)
    assert formats.layers["6"].bias.master == Format(24, 20)
    assert formats.layers["3"].weight.gradient.width == 28


def test_a_format_that_zeroes_a_tensor_is_reported():
    message = (
        "3.weight becomes zero everywhere in format s8.-2: give it more fraction bits in formats"
    )
    with pytest.warns(GradweaveWarning, match=f"^{re.escape(message)}$"):
        chosen(formats={"3.weight": Format(8, -2)})


def test_a_format_that_saturates_is_reported():
    message = r"^0\.feature saturates at \d+\.\d % of its values in format s8\.8: give it fewer"
    with pytest.warns(GradweaveWarning, match=message):
        chosen(formats={"0.feature": Format(8, 8)})


def test_an_example_of_zeros_is_reported():
    message = "example_input is zero everywhere: pass a batch of real samples, as"
    with pytest.warns(GradweaveWarning, match=f"^{message}"):
        chosen(x=torch.zeros(4, 2, 8, 8), y=None)


def test_good_formats_are_silent():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        chosen()


def nan_at(tensor, index, value=float("nan")):
    damaged = tensor.clone()
    damaged[index] = value
    return damaged


REFUSED = {
    "nan_data": (
        lambda: chosen(x=nan_at(X, (1, 0, 2, 3))),
        InputError,
        "example_input must be finite, not nan at [1, 0, 2, 3]",
    ),
    "inf_weight": (
        lambda: calibrate(
            trace(small_net(), X),
            {**small_net().state_dict(), "6.bias": torch.tensor([0, float("-inf"), 0])},
            X,
        ),
        InputError,
        "6.bias must be finite, not -inf at [1]",
    ),
    "nan_target": (
        lambda: chosen(y=nan_at(torch.zeros(12, 3), (2, 1)), loss="mse"),
        InputError,
        "targets must be finite, not nan at [2, 1]",
    ),
    "label": (
        lambda: chosen(y=torch.full((12,), 3)),
        InputError,
        "targets must be labels from 0 to 2, not 3",
    ),
    "float_labels": (
        lambda: chosen(y=torch.zeros(12)),
        InputError,
        "targets must be integer labels [12], not torch.float32 [12]",
    ),
    "values": (
        lambda: chosen(y=torch.zeros(12, 2), loss="mse"),
        InputError,
        "targets must have shape [12, 3], not [12, 2]",
    ),
    "choice": (
        lambda: chosen(formats={"weight": "wide"}),
        InputError,
        "formats['weight'] must be a Format or a width in bits, not 'wide'",
    ),
    "unsigned": (
        lambda: chosen(formats={"3.weight": Format(8, 6, signed=False)}),
        FormatError,
        "3.weight must have a signed format, not u8.6",
    ),
    "wide_input": (
        lambda: chosen(formats={"input": 18}),
        FormatError,
        "input must have at most 16 bits, as it travels in 16, not s18.11",
    ),
    "wide_master": (
        lambda: chosen(formats={"3.weight.master": 40}),
        FormatError,
        "3.weight.master must have at most 32 bits, as it travels in 32, not s40.37",
    ),
    "loss_error": (
        lambda: chosen(formats={"6.error": Format(8, 7)}),
        FormatError,
        "6.error must have at least 1 integer bit, as the logits' error reaches 1, not s8.7",
    ),
    "bias": (
        lambda: chosen(formats={"0.bias": Format(16, 40)}),
        FormatError,
        "0.bias must have at most 22 fraction bits, those of its layer's sums, not s16.40",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_calibrated_is_refused(case):
    call, kind, message = REFUSED[case]
    with pytest.raises(kind, match=f"^{re.escape(message)}$"):
        call()


def test_an_unknown_name_is_refused():
    with pytest.raises(
        InputError, match=r"^formats has 'conv9\.weight', which names no tensor: use a"
    ):
        chosen(formats={"conv9.weight": 8})
