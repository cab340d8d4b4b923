"""Losses are read from torch's names and modules, or refused by name; their options become integers
that a plan keeps.
"""

import re

import pytest
import torch
from torch import nn

from gradweave.model.calibrate import calibrate
from gradweave.model.errors import FormatError, GradweaveWarning, InputError, UnsupportedError
from gradweave.model.formats import Format
from gradweave.model.hyper import Hyper
from gradweave.model.loss_options import LossOptions, fixed_weights, loss_plan
from gradweave.model.losses import check_loss, read_loss, summed_loss
from gradweave.model.plan import LossPlan, Plan
from gradweave.model.trace import trace
from gradweave.tests.plans import chain, linear

FEATURE, ERROR = Format(16, 9), Format(16, 14)


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        ("cross_entropy", ("cross_entropy", LossOptions())),
        ("mse", ("mse", LossOptions())),
        ("huber", ("huber", LossOptions(delta=1.0))),
        ("bce_with_logits", ("binary_cross_entropy", LossOptions())),
        (nn.CrossEntropyLoss(), ("cross_entropy", LossOptions(ignore_index=-100))),
        (
            nn.CrossEntropyLoss(torch.tensor([1.0, 0.5]), ignore_index=1, reduction="sum"),
            ("cross_entropy", LossOptions((1.0, 0.5), 1, reduction="sum")),
        ),
        (nn.MSELoss(reduction="sum"), ("mse", LossOptions(reduction="sum"))),
        (nn.HuberLoss(delta=0.25), ("huber", LossOptions(delta=0.25))),
        (nn.SmoothL1Loss(beta=2), ("huber", LossOptions(delta=2.0, smooth_l1=True))),
        (nn.BCEWithLogitsLoss(), ("binary_cross_entropy", LossOptions())),
    ],
)
def test_names_and_modules_are_read(loss, expected):
    assert read_loss(loss) == expected


def entropy(*weights, **options):
    return nn.CrossEntropyLoss(torch.tensor(weights), **options)


class Mine(nn.MSELoss):
    """A subclass may compute anything."""


KNOWN = (
    "CrossEntropyLoss, MSELoss, HuberLoss, SmoothL1Loss and BCEWithLogitsLoss are those there are"
)
LIMITS = "must be finite, at least 0 and below 32768"
REFUSED = {
    "smoothing": (
        nn.CrossEntropyLoss(label_smoothing=0.1),
        UnsupportedError,
        "CrossEntropyLoss(label_smoothing=0.1) is not supported: use 0",
    ),
    "negative": (entropy(1.0, -2.0), InputError, f"weight[1] {LIMITS}, not -2"),
    "nan": (entropy(float("nan"), 1.0), InputError, f"weight[0] {LIMITS}, not nan"),
    "infinite": (entropy(1.0, float("inf")), InputError, f"weight[1] {LIMITS}, not inf"),
    "zero": (entropy(0.0, 0.0), InputError, "weight must be above 0 for some class"),
    "reduction": (
        nn.MSELoss(reduction="none"),
        UnsupportedError,
        "MSELoss(reduction='none') is not supported: use 'mean' or 'sum'",
    ),
    "beta": (
        nn.SmoothL1Loss(beta=0.0),
        InputError,
        "SmoothL1Loss: beta must be finite and above 0, not 0",
    ),
    "pos_weight": (
        nn.BCEWithLogitsLoss(pos_weight=torch.ones(2)),
        UnsupportedError,
        "BCEWithLogitsLoss(pos_weight=...) is not supported: leave it None",
    ),
    "weight": (
        nn.BCEWithLogitsLoss(weight=torch.ones(2)),
        UnsupportedError,
        "BCEWithLogitsLoss(weight=...) is not supported: leave it None",
    ),
    "bce": (
        nn.BCELoss(),
        UnsupportedError,
        "BCELoss is not supported as a loss: use BCEWithLogitsLoss and let the model return "
        "logits, without sigmoid",
    ),
    "nll": (
        nn.NLLLoss(),
        UnsupportedError,
        "NLLLoss is not supported as a loss: use CrossEntropyLoss and let the model return "
        "logits, without log-softmax",
    ),
    "l1": (
        nn.L1Loss(),
        UnsupportedError,
        "L1Loss is not supported as a loss: use HuberLoss with a small delta",
    ),
    "other": (nn.KLDivLoss(), UnsupportedError, f"KLDivLoss is not supported as a loss: {KNOWN}"),
    "subclass": (Mine(), UnsupportedError, f"Mine is not supported as a loss: {KNOWN}"),
    "class": (
        nn.MSELoss,
        InputError,
        "loss must be one of ['cross_entropy', 'mse', 'huber', 'bce_with_logits'] or a torch loss "
        "module, not <class 'torch.nn.modules.loss.MSELoss'>",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_the_hardware_does_not_have_is_refused_by_name(case):
    loss, error, message = REFUSED[case]
    if error is InputError and "weight" in message:
        message = f"CrossEntropyLoss: {message}"
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        read_loss(loss)


@pytest.mark.parametrize("delta", [-1.0, 0.0, float("nan")])
def test_a_delta_that_is_not_above_0_is_refused(delta):
    loss = nn.HuberLoss()
    loss.delta = delta
    message = f"HuberLoss: delta must be finite and above 0, not {delta:g}"
    with pytest.raises(InputError, match=f"^{message}$"):
        read_loss(loss)


def test_weights_that_do_not_fit_the_outputs_are_refused():
    message = "CrossEntropyLoss: weight must have one value an output, 3, not 2"
    with pytest.raises(InputError, match=f"^{message}$"):
        trace(nn.Sequential(nn.Linear(4, 3)), torch.zeros(2, 4), entropy(1.0, 2.0))


def test_a_mean_of_weighted_errors_is_warned_of():
    with pytest.warns(GradweaveWarning, match=r"reduction='mean'\) divides by the number of"):
        check_loss("cross_entropy", LossOptions((1.0, 2.0)), 2)


def test_a_weight_that_becomes_zero_is_warned_of():
    message = (
        "CrossEntropyLoss: weight[1] = 1e-06 becomes zero beside the largest, 1: class weights "
        "have 16 bits"
    )
    with pytest.warns(GradweaveWarning, match=f"^{re.escape(message)}$"):
        check_loss("cross_entropy", LossOptions((1.0, 1e-6), reduction="sum"), 2)


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ((), ((), 0)),
        ((1.0, 1.0), ((1, 1), 0)),
        ((1.0, 0.5), ((2, 1), 1)),
        ((1024.0, 2048.0), ((1024, 2048), 0)),
        ((0.1, 0.0), ((52429, 0), 19)),  # 0.1 * 2**19 = 52428.8
        ((1.99999999, 1.0), ((2, 1), 0)),  # 65536 * 2**-15 would need a bit more
        ((32767.0, 0.5), ((65534, 1), 1)),
    ],
)
def test_weights_are_rounded_once_to_16_bits(weights, expected):
    assert fixed_weights(weights) == expected


def test_a_loss_plan_worked_by_hand():
    options = LossOptions((1.0, 2.5), ignore_index=-1, reduction="sum")
    plan = loss_plan("cross_entropy", 2, FEATURE, ERROR, options)
    assert (plan.class_weights, plan.weight_frac) == ((2, 5), 1)
    assert plan.label_weights == (2, 5, 0)
    assert plan.target_range == (0, 2)
    # 2.5 is at most 2**2: two more bits; a division has 17 bits, by two a cycle.
    assert (plan.probability_frac, plan.division_cycles) == (16, 9)
    huber = loss_plan("huber", 2, FEATURE, ERROR, LossOptions(delta=0.3))
    assert huber.delta == 154  # 0.3 * 2**9 = 153.6
    binary = loss_plan("binary_cross_entropy", 2, FEATURE, ERROR, LossOptions())
    assert binary.target_range == (0, 512)


def test_a_plan_comes_back_from_json_with_its_loss():
    loss = loss_plan("cross_entropy", 3, FEATURE, ERROR, LossOptions((1.0, 2.5, 0.0), -1))
    plan = Plan("loss", (), loss, batch_max=1)
    assert Plan.from_json(plan.to_json()) == plan


@pytest.mark.parametrize(
    ("kind", "feature", "error", "message"),
    [
        (
            "huber",
            Format(16, 1),
            ERROR,
            "delta must be at least a step of the logits' format s16.1, 0.5, not 0.1: give the "
            "logits more fraction bits in formats",
        ),
        (
            "binary_cross_entropy",
            Format(16, 15),
            ERROR,
            "logits must have 0 to 14 fraction bits under bce_with_logits, as targets of 0 and 1 "
            "travel in their format, not s16.15",
        ),
        (
            "cross_entropy",
            FEATURE,
            Format(16, -1),
            "the logits' error must have at least 0 fraction bits under cross_entropy, not s16.-1",
        ),
    ],
)
def test_formats_that_do_not_fit_are_refused(kind, feature, error, message):
    with pytest.raises(FormatError, match=f"^{re.escape(message)}$"):
        loss_plan(kind, 3, feature, error, LossOptions(delta=0.1))


X = torch.randn(12, 4, generator=torch.Generator().manual_seed(2))


def chosen(loss, targets, **options):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 3))
    return calibrate(trace(model, X, loss), model.state_dict(), X, targets, **options)


LABELS = torch.arange(12) % 3


@pytest.mark.parametrize(
    ("loss", "targets", "frac"),
    [
        ("cross_entropy", LABELS, 14),
        (entropy(0.5, 0.5, 0.5, reduction="sum"), LABELS, 14),
        (entropy(1.0, 2.0, 0.5, reduction="sum"), LABELS, 13),
        (entropy(1.0, 9.0, 0.5, reduction="sum"), LABELS, 11),
        ("bce_with_logits", torch.rand(12, 3), 14),
        (nn.HuberLoss(delta=3.0), 100 * torch.ones(12, 3), 13),
    ],
)
def test_the_logits_error_gets_the_integer_bits_of_its_bound(loss, targets, frac):
    formats = chosen(loss, targets)
    assert formats.loss_error == Format(16, frac)
    if not isinstance(loss, nn.HuberLoss):
        assert formats.loss_feature.frac <= 9


def test_random_targets_calibrate_every_loss():
    for loss in ("cross_entropy", "mse", "huber", "bce_with_logits"):
        chosen(loss, None)


def test_targets_that_fit_no_loss_are_refused():
    cases = [
        (
            "bce_with_logits",
            torch.full((12, 3), 1.5),
            "targets must be values from 0 to 1, not 1.5",
        ),
        (
            entropy(1.0, 1.0, 1.0, reduction="sum"),
            LABELS + 1,
            "targets must be labels from 0 to 2 ",
        ),
        ("cross_entropy", LABELS - 1, "targets must be labels from 0 to 2, not -1"),
    ]
    for loss, targets, message in cases:
        with pytest.raises(InputError, match=f"^{message}"):
            chosen(loss, targets)
    ignored = nn.CrossEntropyLoss(ignore_index=-1)
    assert chosen(ignored, LABELS - 1).loss_error == ERROR
    with pytest.raises(InputError, match=r" or ignore_index = -1, not 7$"):
        chosen(ignored, torch.full((12,), 7))


def test_an_error_format_by_hand_must_reach_the_largest_weight():
    message = (
        "0.error must have at least 2 integer bits, as the logits' error reaches 2, not s16.14"
    )
    with pytest.raises(FormatError, match=f"^{re.escape(message)}$"):
        chosen(entropy(1.0, 2.0, 1.0, reduction="sum"), LABELS, formats={"error": ERROR})


def test_summed_losses_give_the_errors_of_the_golden_models():
    z = torch.tensor([[2.0, -3.0]], dtype=torch.float64, requires_grad=True)
    t = torch.tensor([[0.5, 0.0]], dtype=torch.float64)
    expected = {
        "mse": [1.5, -3.0],
        "huber": [1.0, -1.0],
        "binary_cross_entropy": [0.88080 - 0.5, 0.04743],
    }
    for kind, errors in expected.items():
        (grad,) = torch.autograd.grad(summed_loss(kind, LossOptions(), z, t), z)
        assert grad.flatten().tolist() == pytest.approx(errors, abs=1e-5)


@pytest.mark.parametrize(
    ("kind", "options", "divisor"),
    [
        ("cross_entropy", {}, 4),
        ("cross_entropy", {"reduction": "sum"}, 1),
        ("mse", {}, 4 * 3 / 2),
        ("mse", {"reduction": "sum"}, 0.5),
        ("huber", {"delta": 256}, 4 * 3),
        ("huber", {"delta": 256, "reduction": "sum"}, 1),
        ("huber", {"delta": 256, "smooth_l1": True}, 4 * 3 * 0.5),
        ("binary_cross_entropy", {}, 4 * 3),
    ],
)
def test_the_divisor_is_that_of_torchs_reduction(kind, options, divisor):
    plan = chain((4, 1, 1), linear("l", 3))
    loss = LossPlan(kind, 3, FEATURE, ERROR, **options)
    plan = Plan("loss", plan.layers, loss, batch_max=8)
    assert Hyper.of(plan, batch=4, lr=0.1).divisor == divisor
