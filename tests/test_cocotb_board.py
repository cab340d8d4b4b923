"""A whole board through cocotbext-axi: parameters, three mini-batches and the parameters again."""

import os

import numpy as np
import pytest
import torch

from gradweave.host import packets
from gradweave.host.golden_device import GoldenDevice
from gradweave.model.errors import VerifyError
from gradweave.model.registers import (
    HYPER_REGISTERS,
    MAGIC,
    Command,
    Memory,
    PacketKind,
    header,
    register_map,
)
from gradweave.sim.cocotb_run import run_bench
from gradweave.sim.simulate import generate
from gradweave.tests.small_board import BATCH, data, hyper, masters, small_board

pytestmark = pytest.mark.timeout(600)
BATCHES = 3
MEMORIES = (Memory.MASTER, Memory.MOMENTUM)


@pytest.fixture(scope="module")
def plan():
    return small_board()


@pytest.fixture(scope="module")
def verilog(plan):
    return generate(plan)


def joined(parts):
    words, lasts = zip(*parts, strict=True)
    return np.concatenate(words), np.concatenate(lasts)


def memory_words(plan, device):
    """(layer's number, memory, parameters in the order of the sweep) of everything on a device."""
    found = []
    for number, layer in enumerate(plan.trainable):
        for memory, tensors in zip(MEMORIES, device.read_parameters(), strict=True):
            weight, bias = (tensors[f"{layer.name}.{part}"].numpy() for part in ("weight", "bias"))
            found.append((number, memory, packets.pack_parameters(layer, weight, bias)))
    return found


def reads(plan, device):
    """READ packets of every memory, and their answers."""
    rows = memory_words(plan, device)
    asked = [packets.pack_read(number, memory) for number, memory, _ in rows]
    # A READ packet is answered like the WRITE packet of its values, but for the kind.
    answers = [packets.pack_write(number, memory, values) for number, memory, values in rows]
    for (words, _), (number, memory, _) in zip(answers, rows, strict=True):
        words[0] = header(PacketKind.READ, memory, number)
    return joined(asked), joined(answers)


def answers_of(logits):
    """Answer packets of logits [N, 3], written word by word."""
    words, lasts = [], []
    for first, second, third in (logits & 0xFFFF).tolist():
        words += [header(PacketKind.TRAIN), second << 16 | first, third]
        lasts += [False, False, True]
    return np.array(words, np.uint32), np.array(lasts)


def step(packet, answers, *, writes=(), ready=(), reads=()):
    """One file of the bench, as arrays by name."""
    words, lasts = packet
    answer_words, answer_lasts = answers
    return {
        "writes": np.array(writes, np.uint32).reshape(-1, 2),
        "ready": np.array(ready, np.uint32).reshape(-1, 3),
        "words": words,
        "lasts": lasts,
        "answers": answer_words,
        "answer_lasts": answer_lasts,
        "reads": np.array(reads, np.uint32).reshape(-1, 2),
    }


@pytest.fixture(scope="module")
def steps(plan):
    """What goes in and what must come out: write and read, train, read again."""
    address = {register.name: register.address for register in register_map(plan)}
    golden = GoldenDevice(plan)
    golden.write_parameters(masters(plan))
    written = [packets.pack_write(*row) for row in memory_words(plan, golden)]
    asked, answers = reads(plan, golden)
    fill = step(joined([joined(written), asked]), answers, reads=[(address["magic"], MAGIC)])

    x, y = data(plan, BATCHES)
    x *= 12  # so large that features saturate
    rates = hyper(plan)
    logits = golden.train(x, y, rates)
    assert golden.counters()["conv.o_feature.saturated"] > 0
    samples = packets.pack_samples(plan, x.to(torch.int16).numpy(), y.numpy())
    settings = [(address[name], int(getattr(rates, name))) for name in HYPER_REGISTERS]
    train = step(
        samples,
        answers_of(logits),
        writes=[*settings, (address["command"], Command.TRAIN)],
        ready=[(address["status"], 1, 0)],
        reads=[(address["samples"], BATCHES * BATCH), (address["errors"], 0)],
    )
    versions = [(address[f"{layer.name}.version"], 0xFFFFFFFF, BATCHES) for layer in plan.trainable]
    counts = [(address[name], count) for name, count in golden.counters().items()]
    asked, answers = reads(plan, golden)
    return [fill, train, step(asked, answers, ready=versions, reads=counts)]


def run(verilog, steps, folder, seed, pause):
    paths = [folder / f"{number}.npz" for number in range(len(steps))]
    for path, content in zip(paths, steps, strict=True):
        np.savez(path, **content)
    parameters = {"GRADWEAVE_WORDS": os.pathsep.join(map(str, paths)), "GRADWEAVE_PAUSE": pause}
    return run_bench(verilog, "board", "board", parameters=parameters, seed=seed)


@pytest.mark.parametrize(("seed", "pause"), [(1, 0), (2, 0.5)])
def test_a_board_trains_over_axi_with_the_golden_models_bits(verilog, steps, tmp_path, seed, pause):
    result = run(verilog, steps, tmp_path, seed, pause)
    assert result.passed == ("board_answers_every_word_in_order",)


# Step, array, place in it, and what the bench then says.
FAULTS = {
    "logit": (1, "answers", 3 * 5 + 1, "must be 0x"),
    "weight": (2, "answers", 7, "must be 0x"),
    "saturation": (2, "reads", (0, 1), "register 0x"),
    "last": (1, "answer_lasts", 4, "must have last = True"),
}


@pytest.mark.parametrize("case", FAULTS)
def test_one_wrong_bit_is_seen_and_named(verilog, steps, tmp_path, case):
    number, name, place, said = FAULTS[case]
    changed = [dict(content) for content in steps]
    array = changed[number][name].copy()
    array[place] ^= 1
    changed[number][name] = array
    if name != "reads":
        before = sum(len(content["answers"]) for content in steps[:number])
        said = f"answer {before + place} {said}"
    with pytest.raises(VerifyError) as caught:
        run(verilog, changed, tmp_path, 3, 0.2)
    assert said in str(caught.value)
    assert "with seed 3 fails" in str(caught.value)
