"""The cocotb runner, and the board's bench on a board that answers every word plus a register."""

import sys
from pathlib import Path

import numpy as np
import pytest

from gradweave.model.errors import ToolError, VerifyError
from gradweave.sim.cocotb_run import run_bench

HERE = Path(__file__).parent / "benches"
sys.path.insert(0, str(HERE))
from loop_board import loop_verilog  # noqa: E402

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def verilog():
    return loop_verilog()


@pytest.fixture
def packed(tmp_path):
    """A file of 60 words in frames of 7, to be answered plus 5; changes can be given by name."""

    def pack(**changes):
        words = (np.arange(60, dtype=np.uint32) * 0x1234567) & 0xFFFF_FFFF
        lasts = np.arange(60) % 7 == 6
        lasts[-1] = True
        content = {
            "writes": np.array([[0, 5]], np.uint32),
            "reads": np.array([[0, 5], [8, 60], [12, 0x47574156]], np.uint32),
            "ready": np.array([[4, 1, 0]], np.uint32),
            "words": words,
            "lasts": lasts,
            "answers": words + np.uint32(5),
            "answer_lasts": lasts,
        }
        path = tmp_path / "words.npz"
        np.savez(path, **{**content, **changes})
        return str(path)

    return pack


@pytest.mark.parametrize("pause", [0, 0.5])
def test_board_bench_passes_a_board_that_answers_right(verilog, packed, pause):
    parameters = {"GRADWEAVE_WORDS": packed(), "GRADWEAVE_PAUSE": pause}
    result = run_bench(verilog, "board", "board", parameters=parameters, seed=3)
    assert result.passed == ("board_answers_every_word_in_order",)


def test_board_bench_names_the_first_wrong_answer_and_the_seed(verilog, packed):
    answers = ((np.arange(60, dtype=np.uint32) * 0x1234567) & 0xFFFF_FFFF) + np.uint32(5)
    answers[9] ^= 1
    parameters = {"GRADWEAVE_WORDS": packed(answers=answers)}
    with pytest.raises(VerifyError) as caught:
        run_bench(verilog, "board", "board", parameters=parameters, seed=4)
    assert "answer 9 must be 0x0a3d70a5, not 0x0a3d70a4" in str(caught.value)
    assert "with seed 4 fails" in str(caught.value)


def test_board_bench_fails_on_a_wrong_last_and_a_wrong_register(verilog, packed):
    lasts = np.zeros(60, bool)
    lasts[-1] = True
    for changes, said in (
        ({"answer_lasts": lasts}, "answer 6 must have last = False"),
        ({"reads": np.array([[8, 61]], np.uint32)}, "0x0008 must be 0x0000003d, not 0x0000003c"),
    ):
        parameters = {"GRADWEAVE_WORDS": packed(**changes)}
        with pytest.raises(VerifyError) as caught:
            run_bench(verilog, "board", "board", parameters=parameters)
        assert said in str(caught.value)


def test_board_bench_fails_at_its_deadline(verilog, packed):
    stopped = np.array([1, 0xDEAD0000, *range(58)], np.uint32)
    parameters = {
        "GRADWEAVE_WORDS": packed(words=stopped, answers=stopped + np.uint32(5)),
        "GRADWEAVE_CYCLES": 2000,
    }
    with pytest.raises(VerifyError) as caught:
        run_bench(verilog, "board", "board", parameters=parameters)
    assert "board must give 60 words within 2000 cycles, but gave 0" in str(caught.value)


def test_bench_without_a_test_and_bench_that_does_not_import_are_tool_errors(verilog, tmp_path):
    (tmp_path / "nothing_here.py").write_text("")
    (tmp_path / "broken_here.py").write_text("import a_module_that_does_not_exist")
    for module in ("nothing_here", "broken_here"):
        with pytest.raises(ToolError, match=f"bench {module} must"):
            run_bench(verilog, "board", module, folder=tmp_path)


def test_verilog_that_does_not_parse_is_a_tool_error(tmp_path):
    with pytest.raises(ToolError, match="building the bench of board failed") as caught:
        run_bench("module board(input clk); oops endmodule", "board", "board", cache=tmp_path)
    assert "syntax error" in str(caught.value)


def test_plain_bench_streams_every_word_and_measures_its_speed(verilog, tmp_path):
    words = np.arange(500, dtype=np.uint32)
    packed, result = tmp_path / "words.npz", tmp_path / "seconds"
    np.savez(packed, writes=np.array([[0, 5]]), words=words, lasts=words % 7 == 6)
    parameters = {
        "GRADWEAVE_WORDS": packed,
        "GRADWEAVE_CYCLES": 400,
        "GRADWEAVE_RESULT": result,
    }
    result_of = run_bench(verilog, "board", "drive", parameters=parameters)
    assert result_of.passed == ("drive_streams",)
    assert float(result.read_text()) > 0
    words[0] = 0xDEAD0000
    np.savez(packed, writes=np.zeros((0, 2)), words=words, lasts=words % 7 == 6)
    run_bench(verilog, "board", "drive", parameters={**parameters, "GRADWEAVE_CYCLES": 2})
