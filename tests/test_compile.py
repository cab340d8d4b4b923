"""A torch model becomes a design that holds its weights, and the package offers all of it by
name.
"""

import re
import subprocess
import sys

import pytest
import torch
from torch import nn

import gradweave as gw
from gradweave.model.plan import Plan


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.MaxPool2d(4), nn.Flatten(), nn.Linear(8, 3)
    )


X = torch.randn(16, 1, 8, 8, generator=torch.Generator().manual_seed(4))
Y = torch.arange(16) % 3


@pytest.fixture(scope="module")
def design(model):
    return gw.compile(model, X, targets=Y, batch=4, batch_max=8, name="small")


def test_the_plan_is_that_of_the_model(design):
    plan = design.plan
    assert [layer.kind for layer in plan.layers] == ["conv2d", "relu", "maxpool2d", "linear"]
    assert [layer.backward for layer in plan.layers] == [False, True, True, True]
    assert (plan.name, plan.board, plan.batch_max) == ("small", "sim", 8)
    assert plan.loss.kind == "cross_entropy"
    assert plan.loss.outputs == 3
    assert Plan.from_json(plan.to_json()) == plan
    conv, relu, pool, linear = plan.layers
    assert conv.o_feature == relu.o_feature == pool.o_feature == linear.i_feature
    assert linear.i_error == pool.o_error == pool.i_error == relu.i_error == conv.o_error
    assert linear.o_error == plan.loss.error


def test_the_same_call_makes_the_same_design(design, model):
    again = gw.compile(model, X, targets=Y, batch=4, batch_max=8, name="small")
    assert again.plan.identity == design.plan.identity


def test_the_masters_are_the_models_weights(design, model):
    for name, tensor in model.state_dict().items():
        assert design.masters[name].dtype == torch.int64
        difference = (design.state_dict()[name] - tensor).abs().max()
        assert difference <= 2.0**-24 * tensor.abs().max()
    assert design.model is model


def test_a_golden_device_computes_the_model(design, model):
    device = design.golden()
    logits = gw.Trainer(device, lr=0.1).predict(X)
    # Features have at least 9 fraction bits, and 8 products of up to 1 meet.
    assert (logits - model(X)).abs().max() < 16 * 2.0**-9
    assert torch.equal(
        device.infer(design.quantize_input(X)), device.infer(design.quantize_input(X))
    )


def test_options_reach_the_plan(model):
    design = gw.compile(
        model,
        X,
        loss="mse",
        batch=4,
        formats={"weight": 12, "0.feature": gw.Format(14, 9)},
        versions={"0": 2, "4": 1},
        back_versions={"0": 0, "4": 1},
        rounding="floor",
        seed=5,
        probes=True,
    )
    plan = design.plan
    assert [layer.delay for layer in plan.trainable] == [2, 1]
    assert [layer.back_delay for layer in plan.trainable] == [0, 1]
    assert (plan.rounding, plan.seed, plan.probes) == (gw.Rounding.FLOOR, 5, True)
    assert plan.name == "sequential"
    assert plan.layer("0").o_feature == gw.Format(14, 9)
    assert plan.layer("4").weight.working.width == 12
    assert plan.loss.kind == "mse"


def test_the_first_trainable_layer_passes_no_error_down():
    model = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(1, 2, 4), nn.Flatten())
    plan = gw.compile(model, X, batch=2).plan
    assert [layer.backward for layer in plan.layers] == [False, False]


def test_a_bias_counts_in_full_and_its_absence_is_no_bias():
    torch.manual_seed(2)
    model = nn.Sequential(nn.Conv2d(1, 2, 8, bias=False), nn.Flatten(), nn.Linear(2, 3))
    design = gw.compile(model, X, batch=4)
    assert list(design.masters) == ["0.weight", "2.weight", "2.bias"]
    assert design.plan.layer("0").bias is None
    device = design.golden()
    samples = design.quantize_input(X)
    before = device.infer(samples)
    bias = design.plan.layer("2").bias
    device.poke("2.bias", device.peek("2.bias") + (1 << bias.master.frac))
    # A bias that is larger by 1.0 makes every logit larger by 1.0, but for one rounding.
    difference = device.infer(samples) - before - (1 << design.plan.loss.feature.frac)
    assert difference.abs().max() <= 1


@pytest.mark.parametrize("channels", [1, 7, 16, 17])
def test_any_number_of_channels_gets_blocks_that_divide_it(channels):
    torch.manual_seed(2)
    model = nn.Sequential(
        nn.Conv2d(1, channels, 3), nn.ReLU(), nn.MaxPool2d(6), nn.Flatten(), nn.Linear(channels, 3)
    )
    design = gw.compile(model, X, targets=Y, batch=4)
    conv, relu, _, linear = design.plan.layers
    assert (channels % conv.a, channels % relu.lanes, channels % linear.b) == (0, 0, 0)
    logits = design.golden().infer(design.quantize_input(X)).double() * 2.0**-linear.o_feature.frac
    # Features and logits have at least 9 fraction bits here; 2 of rounding for each channel.
    assert (logits - model(X)).abs().max() < 2 * (channels + 2) * 2.0**-9


def test_a_saved_design_comes_back(design, tmp_path):
    design.save(tmp_path / "design")
    found = gw.Design.load(tmp_path / "design")
    assert found.plan == design.plan
    assert found.model is None
    assert found.masters.keys() == design.masters.keys()
    assert all(torch.equal(found.masters[name], t) for name, t in design.masters.items())
    samples = design.quantize_input(X)
    assert torch.equal(found.golden().infer(samples), design.golden().infer(samples))


def test_a_folder_without_a_design_is_refused(tmp_path):
    message = f"{tmp_path}/plan.json is no file: give a folder that Design.save wrote"
    with pytest.raises(gw.CheckpointError, match=f"^{re.escape(message)}$"):
        gw.Design.load(tmp_path)


def test_a_damaged_plan_is_refused(design, tmp_path):
    design.save(tmp_path)
    path = tmp_path / "plan.json"
    path.write_text(path.read_text()[:-20])
    with pytest.raises(gw.PlanError, match=f"^{re.escape(str(path))}: plan must be JSON"):
        gw.Design.load(tmp_path)


def test_an_edited_plan_does_not_take_the_weights(design, tmp_path):
    design.save(tmp_path)
    path = tmp_path / "plan.json"
    path.write_text(path.read_text().replace('"batch_max": 8', '"batch_max": 9'))
    with pytest.raises(gw.CheckpointError, match=r"weights\.safetensors was made by design "):
        gw.Design.load(tmp_path)


def test_the_report_names_every_engine(design):
    text = design.report()
    assert all(part in text for part in ("0.fp", "0.wg", "4.fp", "4.eb", "4.wg")), text


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        (
            {"rounding": "nearest"},
            gw.InputError,
            "rounding must be one of ['half_even', 'half_up', 'floor', 'stochastic'], "
            "not 'nearest'",
        ),
        ({"batch": 0}, gw.InputError, "batch must be 1 to batch_max = 0 samples, not 0"),
        (
            {"batch": 8, "batch_max": 4},
            gw.InputError,
            "batch must be 1 to batch_max = 4 samples, not 8",
        ),
        (
            {"loss": "l1"},
            gw.InputError,
            "loss must be one of ['cross_entropy', 'mse', 'huber', 'bce_with_logits'] or a torch "
            "loss module, not 'l1'",
        ),
    ],
)
def test_options_that_cannot_be_are_refused(model, options, kind, message):
    with pytest.raises(kind, match=f"^{re.escape(message)}$"):
        gw.compile(model, X, **options)


def test_the_package_has_no_name_that_does_not_exist():
    assert set(dir(gw)) >= set(gw.__all__)
    assert all(getattr(gw, name) is not None for name in gw.__all__)
    with pytest.raises(AttributeError, match=r"^module 'gradweave' has no attribute 'train'$"):
        _ = gw.train


def test_importing_the_package_loads_no_torch():
    script = "import sys, gradweave; print({'torch', 'amaranth', 'numpy'} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "set()"
