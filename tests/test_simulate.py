"""The simulated board: harness, probes, stalls, states and waveforms, on a board without layers."""

import os
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from gradweave.model.errors import DeviceError, InputError, ToolError
from gradweave.rtl.probes import Probe
from gradweave.sim import simulate as module
from gradweave.sim.build import build
from gradweave.sim.lanes import unpack_lanes
from gradweave.sim.simulate import Simulation, generate, idle_limit, simulate

sys.path.insert(0, str(Path(__file__).parent / "benches"))
from loop_board import loop_verilog

pytestmark = pytest.mark.timeout(600)
TABLE = [Probe("conv.o_feature", 5, 13), Probe("loss.error", 1, 32)]


@pytest.fixture(scope="module")
def library():
    return build(loop_verilog(), probes=2)


@pytest.fixture
def board(library):
    with Simulation(library, probes=TABLE, idle_cycles=1000) as simulation:
        yield simulation


def burst(count, seed=1):
    drawn = np.random.default_rng(seed)
    words = drawn.integers(0, 1 << 30, count).astype(np.uint32)
    return words, drawn.random(count) < 0.3


def test_registers_are_written_and_read(board):
    assert board.read(12) == 0x47574156
    board.write(4, 0xFFFF_FFFF)
    board.write(0, 7)
    assert (board.read(0), board.read(4)) == (7, 0xFFFF_FFFF)


def test_exchange_returns_words_and_lasts_in_order_at_a_word_per_cycle(board):
    words, lasts = burst(5000)
    board.write(0, 3)
    before = board.cycles
    assert (board.exchange(words, lasts, 5000) == words + 3).all()
    assert (board.received_lasts == lasts).all()
    assert board.cycles - before == 5001
    assert board.read(8) == 5000


def test_words_beyond_those_expected_stay_in_the_board(board):
    words, lasts = burst(20)
    empty = np.zeros(0, np.uint32), np.zeros(0, bool)
    assert (board.exchange(words[:12], lasts[:12], 4) == words[:4]).all()
    assert (board.exchange(*empty, 8) == words[4:12]).all()
    assert len(board.exchange(*empty, 0)) == 0


@pytest.mark.parametrize("stalls", [0.3, 0.8])
def test_stalls_change_cycles_but_no_word(library, stalls):
    words, lasts = burst(3000)
    took = []
    for seed in (1, 1, 2):
        with Simulation(library, probes=TABLE, stalls=stalls, seed=seed) as board:
            board.write(0, 9)
            before = board.cycles
            assert (board.exchange(words, lasts, 3000) == words + 9).all()
            assert (board.received_lasts == lasts).all()
            assert board.read(8) == 3000
            took.append(board.cycles - before)
    assert took[0] == took[1] != took[2]
    # The slower side is the bound: 3000 of its free cycles.
    assert 0.95 < took[0] / (3000 / (1 - stalls)) < 1.25


@pytest.mark.parametrize("stalls", [0.0, 0.5])
def test_ready_and_valid_that_depend_on_inputs_within_the_cycle_move_each_word_once(stalls):
    library = build(loop_verilog(depth=0), probes=2)
    words, lasts = burst(500)
    with Simulation(library, probes=TABLE, stalls=stalls, seed=5) as board:
        assert (board.exchange(words, lasts, 500) == words).all()
        assert board.read(8) == 500


@pytest.mark.parametrize("stalls", [0.0, 0.5])
def test_probes_record_every_transfer_sign_extended(library, stalls):
    words, lasts = burst(100)
    with Simulation(library, probes=TABLE, stalls=stalls) as board:
        board.exchange(words[:10], lasts[:10], 10)
        board.probe(True)
        board.exchange(words, lasts, 100)
        board.probe(False)
        board.exchange(words[:10], lasts[:10], 10)
        found = board.probes()
        assert list(found) == ["conv.o_feature", "loss.error"]
        wide = -(words.astype(np.int64)[:, None] + np.arange(5))
        assert (found["conv.o_feature"] == ((wide + 4096) % 8192) - 4096).all()
        assert found["loss.error"].dtype == np.int64
        assert (found["loss.error"][:, 0] == words.astype(np.int32)).all()
        assert [len(rows) for rows in board.probes().values()] == [0, 0]


@pytest.mark.parametrize(("lanes", "width"), [(1, 64), (3, 1), (4, 16), (7, 61), (9, 24), (2, 33)])
def test_lanes_of_any_width_unpack(lanes, width):
    drawn = np.random.default_rng(width)
    values = drawn.integers(-(1 << width - 1), (1 << width - 1) - 1, (6, lanes), endpoint=True)
    size = -(-lanes * width // 32) * 4
    raw = np.zeros((6, size), np.uint8)
    for row, lane_values in zip(raw, values.tolist(), strict=True):
        whole = sum((v % (1 << width)) << (n * width) for n, v in enumerate(lane_values))
        row[:] = np.frombuffer(whole.to_bytes(size, "little"), np.uint8)
    assert (unpack_lanes(raw, lanes, width) == values).all()


def test_hand_worked_lanes_unpack():
    # 0b111_011_100: lanes of 3 bits, lowest first: 100 = -4, 011 = 3, 111 = -1.
    raw = np.array([[0b11011100, 0b1]], np.uint8)
    assert unpack_lanes(raw, 3, 3).tolist() == [[-4, 3, -1]]


def test_a_stuck_board_is_reported_with_words_cycle_and_next_step(board):
    words = np.array([1, 0xDEAD0000, 3, 4], np.uint32)
    with pytest.raises(DeviceError) as caught:
        board.exchange(words, words == 4, 4)
    cycle = board.cycles
    assert str(caught.value) == (
        f"board must move a word within 1000 cycles, but at cycle {cycle} it stands: 2 of 4 words "
        "went in and 2 of 4 came out; read its registers, or record a waveform with "
        'trace="stuck.vcd"'
    )
    board.reset()
    assert board.exchange(words[2:], words[2:] == 4, 2).tolist() == [3, 4]


def test_a_board_that_does_not_answer_a_register_access_is_reported():
    silent = loop_verilog().replace("assign s_axil_arready", "assign never = 0; //")
    board = Simulation(build(silent, probes=2), probes=TABLE)
    with pytest.raises(DeviceError, match="must answer a register read at 0x0010, but at"):
        board.read(16)
    board.close()


def test_step_passes_exactly_that_many_cycles(board):
    before = board.cycles
    board.step(123_457)
    assert board.cycles - before == 123_457


def test_a_saved_state_continues_as_the_original_did(library, tmp_path):
    words, lasts = burst(40)
    state = tmp_path / "state"
    with Simulation(library, probes=TABLE, stalls=0.4, seed=3) as board:
        board.write(0, 11)
        board.exchange(words[:16], lasts[:16], 3)
        board.save_state(state)
        cycles = board.cycles
        first = board.exchange(words[16:], lasts[16:], 37)
        took = board.cycles - cycles
        board.reset()
        board.write(0, 1)
        board.restore_state(state)
        assert board.cycles == cycles
        assert (board.exchange(words[16:], lasts[16:], 37) == first).all()
        assert board.cycles - cycles == took
    with Simulation(library, probes=TABLE) as other:
        other.restore_state(state)
        assert (other.exchange(words[16:], lasts[16:], 37) == words[3:] + 11).all()
        with pytest.raises(InputError, match="must be a file of save_state, not"):
            other.restore_state(tmp_path / "none")
        with pytest.raises(InputError, match="must be a file that can be written, not"):
            other.save_state(tmp_path / "none" / "state")


def test_progress_and_interrupts_come_between_slices(board):
    words, lasts = burst(200_000)
    seen = []
    board.exchange(words, lasts, 200_000, seen.append)
    assert seen == sorted(seen)
    assert len(seen) > 1
    assert seen[-1] == 200_000

    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    began = time.monotonic()
    board.idle_cycles = 1 << 60
    with pytest.raises(KeyboardInterrupt):
        board.exchange(words[:0], lasts[:0], 1)
    assert time.monotonic() - began < 5
    board.reset()
    assert (board.exchange(words[:9], lasts[:9], 9) == words[:9]).all()


def test_two_boards_of_one_library_are_independent(library):
    words, lasts = burst(50_000)
    answers = {}

    def run(addend):
        with Simulation(library, probes=TABLE) as board:
            board.write(0, addend)
            answers[addend] = board.exchange(words, lasts, len(words))

    threads = [threading.Thread(target=run, args=(addend,)) for addend in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all((answers[addend] == words + addend).all() for addend in (1, 2))


def test_a_waveform_is_written(tmp_path):
    library = build(loop_verilog(), probes=2, trace="vcd")
    path = tmp_path / "wave.vcd"
    with Simulation(library, probes=TABLE, trace=path) as board:
        board.exchange(*burst(20), 20)
        last = 2 * board.cycles - 1
    text = path.read_text()
    assert "s_axis_tdata" in text
    assert text.rstrip().splitlines()[-1] == "0!" or f"#{last}" in text
    with pytest.raises(ToolError, match="trace must be a path that can be written"):
        Simulation(library, probes=TABLE, trace=tmp_path / "none" / "wave.vcd")


def test_misuse_is_refused(library, hand_plan):
    board = Simulation(library, probes=TABLE)
    with pytest.raises(InputError, match=r"as long as each other, not \[2\] and \[3\]"):
        board.exchange(np.zeros(2, np.uint32), np.zeros(3, bool), 0)
    board.close()
    with pytest.raises(DeviceError, match="the simulated board is closed"):
        board.step(1)
    with pytest.raises(ToolError, match="library must have 0 probes, not 2"):
        Simulation(library)
    with pytest.raises(InputError, match=r"stalls must be a probability from 0 to 0.95, not 1"):
        simulate(hand_plan, stalls=1)
    with pytest.raises(InputError, match=r"trace must end with .vcd or .fst, not 'a.txt'"):
        simulate(hand_plan, trace="a.txt")


def test_generation_is_cached_by_plan_and_generator(hand_plan, tmp_path, monkeypatch):
    import gradweave.rtl.generate as generator

    calls = []
    monkeypatch.setattr(generator, "verilog", lambda plan: calls.append(plan) or "module")
    for _ in range(2):
        assert generate(hand_plan, cache=tmp_path) == "module"
    assert calls == [hand_plan]


def test_idle_limit_exceeds_a_sweep_and_a_pass(hand_plan):
    conv, _, _, linear = hand_plan.layers
    sweeps = conv.sweep_chunks * conv.update_lanes + linear.sweep_chunks * linear.update_lanes
    assert idle_limit(hand_plan) > module.IDLE_CYCLES + sweeps + sum(
        layer.fp_interval for layer in hand_plan.layers
    )
