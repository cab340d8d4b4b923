"""A checkpoint comes back exactly, is never half written, and does not load when it is not what it
says.
"""

import dataclasses
import json
import os
import re
import struct

import pytest
import torch

from gradweave.host import checkpoint as checkpoint_module
from gradweave.host.checkpoint import Checkpoint, load_checkpoint, save_checkpoint, write_atomically
from gradweave.host.quantize import parameter_shapes
from gradweave.model.errors import CheckpointError


@pytest.fixture
def state(hand_plan):
    generator = torch.Generator().manual_seed(8)

    def draw():
        return {
            name: torch.randint(-(2**31), 2**31, shape, generator=generator)
            for name, shape in parameter_shapes(hand_plan).items()
        }

    random = {"torch": torch.get_rng_state(), "loader": generator.get_state()}
    history = [{"epoch": 1, "loss": 0.1 + 0.2, "saturated": 0}]
    return Checkpoint(draw(), draw(), 1, {"lr": 0.1, "nesterov": False}, history, random)


def assert_same(left, right):
    for group in ("masters", "momenta", "random"):
        first, second = getattr(left, group), getattr(right, group)
        assert first.keys() == second.keys()
        for name, tensor in first.items():
            assert tensor.dtype == second[name].dtype
            assert torch.equal(tensor, second[name])
    for name in ("epoch", "hyperparameters", "history"):
        assert getattr(left, name) == getattr(right, name)


def test_a_checkpoint_comes_back_exactly(hand_plan, state, tmp_path):
    path = tmp_path / "runs" / "last.safetensors"
    save_checkpoint(path, hand_plan, state)
    assert_same(load_checkpoint(path, hand_plan), state)
    assert os.listdir(path.parent) == ["last.safetensors"]


def test_a_checkpoint_needs_no_gradweave_to_be_read(hand_plan, state, tmp_path):
    from safetensors.torch import load_file

    save_checkpoint(tmp_path / "a", hand_plan, state)
    found = load_file(tmp_path / "a")
    assert torch.equal(found["masters/conv.weight"].long(), state.masters["conv.weight"])


def test_a_failing_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a"
    write_atomically(path, b"old")

    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a"]


def test_a_full_disk_is_reported(hand_plan, state, tmp_path, monkeypatch):
    def fail(_path, _data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint_module, "write_atomically", fail)
    message = (
        f"{tmp_path}/a cannot be written: No space left on device; "
        "the checkpoint before it is intact"
    )
    with pytest.raises(CheckpointError, match=f"^{re.escape(message)}$"):
        save_checkpoint(tmp_path / "a", hand_plan, state)


def test_a_missing_file_is_refused(hand_plan, tmp_path):
    message = f"{tmp_path}/a is no file: give the checkpoint that Trainer.fit or Trainer.save wrote"
    with pytest.raises(CheckpointError, match=f"^{re.escape(message)}$"):
        load_checkpoint(tmp_path / "a", hand_plan)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 0.9, 0.9999])
def test_a_file_cut_short_is_refused(hand_plan, state, tmp_path, share):
    path = tmp_path / "a"
    save_checkpoint(path, hand_plan, state)
    raw = path.read_bytes()
    path.write_bytes(raw[: int(len(raw) * share)])
    message = f"^{re.escape(str(path))} is cut short or no safetensors file \\(.*\\): use an older"
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(path, hand_plan)


def header_of(raw):
    size = struct.unpack("<Q", raw[:8])[0]
    return json.loads(raw[8 : 8 + size]), raw[8 + size :]


def with_header(header, body):
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def one_bit(raw):
    return raw[:-5] + bytes([raw[-5] ^ 1]) + raw[-4:]


def another_epoch(raw):
    header, body = header_of(raw)
    header["__metadata__"]["epoch"] = "7"
    return with_header(header, body)


def swapped_names(raw):
    header, body = header_of(raw)
    pair = ("masters/conv.bias", "momenta/conv.bias")
    header[pair[0]], header[pair[1]] = header[pair[1]], header[pair[0]]
    return with_header(header, body)


def no_hash(raw):
    header, body = header_of(raw)
    del header["__metadata__"]["sha256"]
    return with_header(header, body)


@pytest.mark.parametrize("edit", [one_bit, another_epoch, swapped_names, no_hash])
def test_an_edited_file_is_refused(hand_plan, state, tmp_path, edit):
    path = tmp_path / "a"
    save_checkpoint(path, hand_plan, state)
    path.write_bytes(edit(path.read_bytes()))
    message = f"{path} was edited or damaged, as its sha256 does not fit: use an older checkpoint"
    with pytest.raises(CheckpointError, match=f"^{re.escape(message)}$"):
        load_checkpoint(path, hand_plan)


def test_another_format_is_refused(hand_plan, state, tmp_path):
    path = tmp_path / "a"
    save_checkpoint(path, hand_plan, state)
    header, body = header_of(path.read_bytes())
    del header["__metadata__"]
    path.write_bytes(with_header(header, body))
    message = f"{path} must be a gradweave checkpoint of format 2, not None"
    with pytest.raises(CheckpointError, match=f"^{re.escape(message)}$"):
        load_checkpoint(path, hand_plan)


def test_another_design_is_refused(hand_plan, state, tmp_path):
    other = dataclasses.replace(hand_plan, name="other", seed=3)
    save_checkpoint(tmp_path / "a", other, state)
    message = (
        f"{tmp_path}/a was made by design {other.identity} (other), not {hand_plan.identity} "
        "(hand): compile the model as for that run"
    )
    with pytest.raises(CheckpointError, match=f"^{re.escape(message)}$"):
        load_checkpoint(tmp_path / "a", hand_plan)


def test_weights_of_another_folding_are_refused(hand_plan, state, tmp_path):
    conv, *rest = hand_plan.layers
    folded = dataclasses.replace(hand_plan, layers=(dataclasses.replace(conv, a=4), *rest))
    assert parameter_shapes(folded) == parameter_shapes(hand_plan)
    save_checkpoint(tmp_path / "a", folded, state)
    message = f"a was made by design {folded.identity} (hand), not {hand_plan.identity} (hand)"
    with pytest.raises(CheckpointError, match=re.escape(message)):
        load_checkpoint(tmp_path / "a", hand_plan)
