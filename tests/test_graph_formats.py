"""Tensors that pass a layer unchanged, or meet in one, share one format on any graph."""

import re
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from gradweave.model.calibrate import calibrate
from gradweave.model.errors import FormatError, GradweaveWarning, InputError
from gradweave.model.format_classes import error_classes, feature_classes
from gradweave.model.formats import Format
from gradweave.model.trace import trace
from gradweave.tests.graph_nets import NETWORKS, seeded

X = torch.randn(8, 2, 4, 4, generator=torch.Generator().manual_seed(1))


class Skip(nn.Module):
    """conv1 -> fork -> conv2 -> add -> relu, the fork's other output to the addition."""

    def __init__(self, gain=1.0):
        super().__init__()
        self.conv1 = nn.Conv2d(2, 3, 3, padding=1)
        self.conv2 = nn.Conv2d(3, 3, 3, padding=1)
        self.fc = nn.Linear(48, 3)
        with torch.no_grad():
            self.conv2.weight.mul_(gain)

    def forward(self, x):
        x = self.conv1(x)
        return self.fc(F.relu(self.conv2(x) + x).flatten(1))


def chosen(model=None, x=X, loss="cross_entropy", **options):
    if model is None:
        torch.manual_seed(3)
        model = Skip()
    return calibrate(trace(model, x, loss), model.state_dict(), x, **options)


def classes_of(model, x=X):
    graph = trace(model, x)
    names = [{c.name: c.members for c in f(graph).values()} for f in CLASSES]
    return names[0], names[1]


CLASSES = (feature_classes, error_classes)


def test_an_addition_ties_its_sources_and_its_errors():
    features, errors = classes_of(Skip())
    assert features == {
        "input": ("input",),
        "conv1.feature": ("conv1.feature", "conv1.fork.feature", "conv2.feature"),
        "add.feature": ("add.feature", "relu.feature"),
        "fc.feature": ("fc.feature",),
    }
    assert errors == {
        "conv1.error": ("conv1.error",),
        # What relu passes down is what both sources of the addition take.
        "conv2.error": ("conv1.fork.error", "conv2.error", "add.error", "relu.error"),
        "fc.error": ("fc.error",),
    }


def test_a_concatenation_ties_its_sources_and_its_result():
    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Conv2d(2, 1, 1), nn.Conv2d(2, 3, 1)
            self.fc = nn.Linear(64, 3)

        def forward(self, x):
            return self.fc(torch.cat([torch.sigmoid(self.a(x)), self.b(x)], 1).flatten(1))

    features, errors = classes_of(Branches())
    assert features["b.feature"] == ("sigmoid.feature", "b.feature", "cat.feature")
    assert features["input"] == ("input", "input.fork.feature")
    assert errors["b.error"] == ("sigmoid.error", "b.error", "cat.error")
    assert errors["a.error"] == ("a.error",)


def test_a_class_holds_the_largest_of_its_tensors():
    small, large = chosen(), chosen(Skip(gain=1000.0))
    for formats in (small, large):
        layers = formats.layers
        assert layers["conv1"].o_feature == layers["conv2"].o_feature == layers["add"].i_feature
        assert layers["conv1.fork"].o_error == layers["add"].o_error == layers["conv2"].o_error
    # 1000 is 10 bits: both sources of the addition lose them, the smaller one too.
    lost = small.layers["conv1"].o_feature.frac - large.layers["conv1"].o_feature.frac
    assert 7 <= lost <= 11


def test_the_error_of_a_fork_is_chosen_from_the_sum_of_its_readers():
    class Doubled(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(2, 3, 1)
            self.fc = nn.Linear(48, 3)

        def forward(self, x):
            x = self.conv(x)
            return self.fc((x + x).flatten(1))

    torch.manual_seed(3)
    layers = chosen(Doubled()).layers
    assert layers["conv"].o_error == layers["conv.fork"].i_error
    # Twice the same error: one bit more.
    assert layers["conv.fork"].i_error.frac == layers["conv.fork"].o_error.frac - 1


def test_any_member_of_a_class_may_be_chosen_by_hand():
    for name in ("conv1.feature", "conv2.feature", "conv1.fork.feature"):
        layers = chosen(formats={name: Format(14, 9)}).layers
        assert layers["conv1"].o_feature == layers["add"].i_feature == Format(14, 9)
    for name in ("relu.error", "conv1.fork.error"):
        layers = chosen(formats={name: 12}).layers
        assert layers["relu"].o_error == layers["conv1.fork"].o_error
        assert layers["add"].o_error.width == 12
    assert chosen(formats={"add.feature": 13}).layers["relu"].o_feature.width == 13


def test_an_exact_name_beats_a_pattern_on_another_member():
    layers = chosen(formats={"conv2.feature": 13, "conv1*.feature": 12, "feature": 11}).layers
    assert layers["conv1"].o_feature.width == 13
    assert layers["add"].o_feature.width == 11


def test_two_choices_for_one_class_are_refused():
    message = (
        "formats has 'conv2.feature' = 13 and 'conv1.fork.feature' = 12, which share one format: "
        "give it once"
    )
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        chosen(formats={"conv2.feature": 13, "conv1.fork.feature": 12})
    chosen(formats={"conv2.feature": 13, "conv1.fork.feature": 13})


def test_an_error_that_does_not_exist_cannot_be_chosen():
    class Pooled(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(8, 3)

        def forward(self, x):
            return self.fc(F.max_pool2d(x, 2).flatten(1))

    with pytest.raises(InputError, match=r"^formats has 'max_pool2d\.error', which names no tens"):
        chosen(Pooled(), formats={"max_pool2d.error": 12})


def test_the_sample_travels_in_16_bits_whatever_shares_its_format():
    class Shortcut(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(2, 2, 1)
            self.fc = nn.Linear(32, 3)

        def forward(self, x):
            return self.fc((self.conv(x) + x).flatten(1))

    with pytest.raises(FormatError, match=r"^input must have at most 16 bits, as it travels in 16"):
        chosen(Shortcut(), formats={"conv.feature": 18})


def test_what_cannot_exceed_one_needs_no_room_to_grow():
    torch.manual_seed(1)
    model = nn.Sequential(nn.Conv2d(2, 3, 1), nn.Tanh(), nn.MaxPool2d(2), nn.Conv2d(3, 3, 2))
    layers = chosen(model).layers
    assert layers["1"].o_feature == layers["2"].o_feature == Format(16, 14)


@pytest.mark.parametrize("name", NETWORKS)
def test_good_formats_are_silent(name):
    model, x = seeded(name, samples=32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        formats = chosen(model, x, "mse")
    assert list(formats.layers) == [node.name for node in trace(model, x, "mse").nodes]


@pytest.mark.parametrize(
    ("name", "choice", "message"),
    [
        ("add.feature", Format(8, 9), r"^add\.feature saturates at \d+\.\d % of its values in for"),
        ("add.error", Format(8, -9), r"^conv1\.fork\.error becomes zero everywhere in format s8"),
    ],
)
def test_every_class_is_reported(name, choice, message):
    with pytest.warns(GradweaveWarning, match=message):
        chosen(formats={name: choice})


def test_a_small_source_that_its_class_turns_to_zero_is_reported():
    torch.manual_seed(3)
    model = Skip(gain=1e7)
    with torch.no_grad():
        model.conv1.weight.mul_(1e-3)
        model.conv1.bias.zero_()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        chosen(model)
    assert str(caught[0].message).startswith("conv1.feature becomes zero everywhere in format s16.")


def test_calibration_leaves_a_model_with_statistics_as_it_is():
    model, x = seeded("mobilenet")
    state = {name: value.clone() for name, value in model.state_dict().items()}
    chosen(model, x, "mse")
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())
    assert model.training
