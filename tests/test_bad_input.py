"""Whatever a user hands over by mistake is refused with a clear error, and nothing is lost."""

import re

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import gradweave as gw

X = torch.rand(12, 1, 8, 8, generator=torch.Generator().manual_seed(1))
Y = torch.arange(12) % 4


def small_model(seed=0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(1, 2, 4, stride=4), nn.ReLU(), nn.Flatten(), nn.Linear(8, 4))


@pytest.fixture(scope="module")
def design():
    return gw.compile(small_model(), X, targets=Y, batch=4)


def broken(tensor, value):
    changed = tensor.clone()
    changed.view(-1)[70 % changed.numel()] = value
    return changed


NAN, INF = float("nan"), float("inf")

LOADERS = {
    "nan": (
        [(X[:4], Y[:4]), (broken(X[:4], NAN), Y[:4])],
        "x of mini-batch 1 must be finite, not nan at [1, 0, 0, 6]; "
        "1 of 256 values are NaN or infinite",
    ),
    "infinite": (
        [(broken(X[:4], -INF), Y[:4])],
        "x of mini-batch 0 must be finite, not -inf at [1, 0, 0, 6]; "
        "1 of 256 values are NaN or infinite",
    ),
    "shape": (
        [(X[:4, :, :7], Y[:4])],
        "x of mini-batch 0 must have shape [N, 1, 8, 8], not [4, 1, 7, 8]",
    ),
    "one_sample": (
        [(X[0], Y[:1])],
        "x of mini-batch 0 must have shape [N, 1, 8, 8], not [1, 8, 8]",
    ),
    "bytes": (
        [((X[:4] * 255).to(torch.uint8), Y[:4])],
        "x of mini-batch 0 must be float32 or float64, not uint8",
    ),
    "half": (
        [(X[:4].half(), Y[:4])],
        "x of mini-batch 0 must be float32 or float64, not float16",
    ),
    "complex": (
        [(X[:4].to(torch.complex64), Y[:4])],
        "x of mini-batch 0 must be float32 or float64, not complex64",
    ),
    "list": (
        [(X[:4].tolist(), Y[:4])],
        "x of mini-batch 0 must be a torch tensor, not list",
    ),
    "label": (
        [(X[:4], Y[:4] + 1)],
        "y of mini-batch 0 must be labels from 0 to 3, not 4 at index 3",
    ),
    "negative_label": (
        [(X[:4], Y[:4] - 1)],
        "y of mini-batch 0 must be labels from 0 to 3, not -1 at index 0",
    ),
    "float_label": (
        [(X[:4], Y[:4].float())],
        "y of mini-batch 0 must be integer labels for cross-entropy, not float32",
    ),
    "one_hot": (
        [(X[:4], torch.eye(4).long())],
        "y of mini-batch 0 must have shape [4], not [4, 4]",
    ),
    "too_few_labels": (
        [(X[:4], Y[:3])],
        "y of mini-batch 0 must have shape [4], not [3]",
    ),
    "not_a_pair": (
        [X[:4]],
        "mini-batch 0 must be a pair (x, y), not Tensor",
    ),
    "no_samples": ([(X[:0], Y[:0])], "mini-batch 0 must have samples, not 0"),
    "empty": ([], "loader must give at least one mini-batch, and is empty"),
    "partial": (
        DataLoader(TensorDataset(X[:11], Y[:11]), batch_size=4),
        "mini-batch 2 must have 4 samples like the first, not 3: give the DataLoader "
        "drop_last=True",
    ),
    "large": (
        [(X[:5], Y[:5])],
        "mini-batches must have at most 4 samples, not 5: compile with batch_max=5",
    ),
}


@pytest.mark.parametrize("case", LOADERS)
def test_bad_mini_batches_are_refused_and_change_no_weight(design, case):
    loader, message = LOADERS[case]
    trainer = gw.Trainer(design.golden(), lr=0.1, momentum=0.9)
    trainer.fit([(X[:4], Y[:4])], 1)
    before = trainer.device.read_parameters()
    with pytest.raises(gw.InputError, match=f"^{re.escape(message)}$"):
        trainer.fit(loader, 1)
    for left, right in zip(before, trainer.device.read_parameters(), strict=True):
        assert all(torch.equal(left[name], right[name]) for name in left)
    assert trainer.epoch == 1
    trainer.fit([(X[:4], Y[:4])], 1)


def test_evaluation_and_prediction_check_their_data_too(design):
    trainer = gw.Trainer(design.golden(), lr=0.1)
    with pytest.raises(gw.InputError, match=r"^loader must give at least one mini-batch"):
        trainer.evaluate([])
    with pytest.raises(gw.InputError, match=r"^x must be finite, not nan at \[1, 0, 0, 6\]"):
        trainer.predict(broken(X, NAN))
    # Nothing is wrong with a last mini-batch that is not full.
    assert trainer.evaluate(DataLoader(TensorDataset(X, Y), batch_size=5))["samples"] == 12


def test_values_are_checked_under_mean_squared_error():
    design = gw.compile(small_model(), X, loss="mse", batch=4)
    trainer = gw.Trainer(design.golden(), lr=0.1)
    values = torch.zeros(4, 4)
    with pytest.raises(gw.InputError, match=r"^y of mini-batch 0 must be finite, not inf at"):
        trainer.fit([(X[:4], broken(values, INF))], 1)
    message = "y of mini-batch 0 must be float32 or float64 for mse, not int64"
    with pytest.raises(gw.InputError, match=f"^{message}$"):
        trainer.fit([(X[:4], values.long())], 1)
    message = re.escape("y of mini-batch 0 must have shape [4, 4], not [4, 3]")
    with pytest.raises(gw.InputError, match=f"^{message}$"):
        trainer.fit([(X[:4], values[:, :3])], 1)


RATES = {
    "negative": ({"lr": -0.1}, "lr must be finite and above 0, not -0.1"),
    "zero": ({"lr": 0.0}, "lr must be finite and above 0, not 0.0"),
    "nan": ({"lr": NAN}, "lr must be finite and above 0, not nan"),
    "momentum": ({"lr": 0.1, "momentum": 1.0}, "momentum must be at least 0 and below 1, not 1.0"),
    "decay": (
        {"lr": 0.1, "weight_decay": -1.0},
        "weight_decay must be finite and at least 0, not -1.0",
    ),
    "nesterov": (
        {"lr": 0.1, "nesterov": True},
        "momentum must be above 0 for Nesterov's step, not 0",
    ),
}


@pytest.mark.parametrize("case", RATES)
def test_hyperparameters_out_of_range_are_refused(design, case):
    options, message = RATES[case]
    with pytest.raises(gw.InputError, match=f"^{re.escape(message)}$"):
        gw.Trainer(design.golden(), **options)


def test_no_epochs_are_refused(design):
    with pytest.raises(gw.InputError, match=r"^epochs must be at least 1, not 0$"):
        gw.Trainer(design.golden(), lr=0.1).fit([(X[:4], Y[:4])], 0)


def damaged_model():
    model = small_model()
    with torch.no_grad():
        model[3].weight[2, 5] = NAN
    return model


MODELS = {
    "nan_weight": (damaged_model, gw.InputError, "3.weight must be finite, not nan at [2, 5]"),
    "half_weights": (
        lambda: small_model().half(),
        gw.UnsupportedError,
        "0.weight must be float32 or float64, not float16: call model.float() first",
    ),
    "nothing_to_train": (
        lambda: nn.Sequential(nn.MaxPool2d(8), nn.Flatten()),
        gw.UnsupportedError,
        "model (Sequential) has no trainable layer: it must use at least one Conv2d or Linear",
    ),
    "unsupported": (
        lambda: nn.Sequential(nn.Conv2d(1, 4, 8), nn.GroupNorm(2, 4)),
        gw.UnsupportedError,
        "1 (GroupNorm, input 4x1x1) is not supported: only BatchNorm with frozen statistics "
        "normalises in hardware; use BatchNorm2d",
    ),
}


@pytest.mark.parametrize("case", MODELS)
def test_models_that_cannot_be_trained_are_refused(case):
    make, kind, message = MODELS[case]
    with pytest.raises(kind, match=f"^{re.escape(message)}$"):
        gw.compile(make(), X)


def test_nan_in_the_example_is_refused():
    message = re.escape("example_input must be finite, not nan at [1, 0, 0, 6]")
    with pytest.raises(gw.InputError, match=f"^{message}$"):
        gw.compile(small_model(), broken(X, NAN))


def test_a_checkpoint_of_another_design_is_refused(design, tmp_path):
    gw.Trainer(design.golden(), lr=0.1).save(tmp_path / "a")
    other = gw.compile(small_model(), X, targets=Y, batch=4, rounding="floor")
    trainer = gw.Trainer(other.golden(), lr=0.1)
    message = f"^{re.escape(str(tmp_path))}/a was made by design {design.plan.identity} "
    with pytest.raises(gw.CheckpointError, match=message):
        trainer.load(tmp_path / "a")
    with pytest.raises(gw.CheckpointError, match=message):
        trainer.fit([(X[:4], Y[:4])], 2, checkpoint=tmp_path / "a", resume=True)
    assert trainer.epoch == 0
