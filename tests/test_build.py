"""Builds and their cache: made once, whole or not at all, pruned; Verilog rewritten alike."""

import multiprocessing
import os
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from gradweave.model.errors import ToolError
from gradweave.sim import build as module
from gradweave.sim.build import build
from gradweave.sim.cache import cache_root, cached, key_of
from gradweave.sim.verilog import WRAPPER, compress_initial_blocks, register_inputs

sys.path.insert(0, str(Path(__file__).parent / "benches"))
from loop_board import loop_verilog

pytestmark = pytest.mark.timeout(600)


def write(text):
    return lambda folder: (folder / "out").write_text(text)


def age(entry, seconds):
    then = time.time() - seconds
    os.utime(entry, (then, then))


def test_an_entry_is_made_once(tmp_path):
    first = cached("kind", "key", write("one"), root=tmp_path)
    second = cached("kind", "key", write("two"), root=tmp_path)
    assert first == second
    assert (first / "out").read_text() == "one"
    assert (cached("other", "key", write("two"), root=tmp_path) / "out").read_text() == "two"


def test_a_failing_make_leaves_nothing_and_the_next_succeeds(tmp_path):
    def fail(folder):
        write("half")(folder)
        raise ToolError("no compiler")

    with pytest.raises(ToolError, match="no compiler"):
        cached("kind", "key", fail, root=tmp_path)
    assert list((tmp_path / "kind").iterdir()) == []
    assert (cached("kind", "key", write("whole"), root=tmp_path) / "out").read_text() == "whole"


def _make_slowly(root, made):
    def make(folder):
        made.append(1)
        time.sleep(0.3)
        write("one")(folder)

    cached("kind", "key", make, root=root)


def test_concurrent_callers_make_an_entry_once(tmp_path):
    context = multiprocessing.get_context("fork")
    with context.Manager() as manager:
        made = manager.list()
        workers = [context.Process(target=_make_slowly, args=(tmp_path, made)) for _ in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert [worker.exitcode for worker in workers] == [0] * 4
        assert len(made) == 1


def test_a_killed_maker_holds_no_lock_and_its_folder_goes_after_a_day(tmp_path):
    def die(folder):
        write("half")(folder)
        os._exit(9)

    worker = multiprocessing.get_context("fork").Process(
        target=cached, args=("kind", "key", die), kwargs={"root": tmp_path}
    )
    worker.start()
    worker.join()
    (abandoned,) = (tmp_path / "kind").iterdir()
    cached("kind", "key", write("whole"), root=tmp_path)
    assert abandoned.exists()
    age(abandoned, 90_000)
    cached("kind", "next", write("whole"), root=tmp_path)
    assert not abandoned.exists()


def test_the_longest_unused_entries_are_dropped_but_no_recent_one(tmp_path):
    entries = {}
    for n, key in enumerate("abcd"):
        entries[key] = cached("kind", key, write("x" * 1000), root=tmp_path)
        age(entries[key], 8000 - n)
    cached("kind", "a", write(""), root=tmp_path)  # used again
    cached("kind", "e", write("x" * 1000), root=tmp_path, limit_bytes=3500)
    left = {path.name for path in (tmp_path / "kind").iterdir()}
    assert left == {"a", "d", "e"}
    cached("kind", "f", write("x" * 1000), root=tmp_path, limit_bytes=0)
    assert {path.name for path in (tmp_path / "kind").iterdir()} == {"a", "e", "f"}


def test_the_cache_is_where_the_environment_says(tmp_path, monkeypatch):
    monkeypatch.setenv("GRADWEAVE_CACHE", str(tmp_path / "mine"))
    assert cache_root() == tmp_path / "mine"
    monkeypatch.delenv("GRADWEAVE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_root() == tmp_path / "gradweave"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_root() == Path.home() / ".cache" / "gradweave"


def test_keys_differ_wherever_a_part_does():
    keys = [key_of("ab", "c"), key_of("a", "bc"), key_of("abc"), key_of("ab", "c", "")]
    assert len(set(keys)) == 4
    assert key_of("ab", b"c") == keys[0]


def test_a_build_is_taken_from_the_cache_unless_something_changes(tmp_path, monkeypatch):
    verilog = loop_verilog()
    built = build(verilog, probes=2)
    monkeypatch.setattr(module, "run", None)
    assert build(verilog, probes=2) == built

    def ran(command, **options):
        raise ToolError("a tool was run")

    monkeypatch.setattr(module, "run", ran)
    for changes in ({"trace": "vcd"}, {"threads": 2}, {"probes": 1}):
        with pytest.raises(ToolError, match="a tool was run"):
            build(verilog, cache=tmp_path, **{"probes": 2, **changes})


def test_verilog_that_does_not_parse_shows_the_tools_own_words(tmp_path):
    with pytest.raises(ToolError) as caught:
        build("module board(input clk, input rst); oops endmodule", cache=tmp_path)
    assert str(caught.value).startswith("Verilating board failed with exit status 1:\n%Error: ")
    assert "syntax error" in str(caught.value)


def test_a_missing_top_is_named():
    with pytest.raises(ToolError, match="verilog must have a module 'board', but has none"):
        register_inputs("module boards(input clk); endmodule", "board")


def test_the_wrapper_passes_every_port_and_registers_the_reset_alone():
    verilog = (
        "module board(clk, rst, a, b);\n  input clk;\n  wire clk;\n  input rst;\n"
        "  input [7:0] a;\n  output [8:0] b;\n  reg [8:0] b;\n  // input [3:0] no\nendmodule\n"
    )
    wrapped = register_inputs(verilog, "board").split(f"module {WRAPPER}(")[1]
    assert "  input wire [7:0] a,\n  output wire [8:0] b\n);" in wrapped
    assert ".clk(clk),\n    .rst(held),\n    .a(a),\n    .b(b)\n" in wrapped
    assert "always @(posedge clk) held <= rst;" in wrapped
    assert "no" not in wrapped.replace("module", "")


def memory(values, name="mem"):
    words = "".join(f"    {name}[{n}] = 8'h{value:02x};\n" for n, value in enumerate(values))
    return f"  reg [7:0] {name} [{len(values) - 1}:0];\n  initial begin\n{words}  end\n"


def test_long_runs_of_equal_words_become_loops_and_nothing_else_changes():
    values = [7, *[0] * 20, 1, 2, *[3] * 8, *[4] * 7]
    verilog = memory(values)
    compressed = compress_initial_blocks(verilog)
    assert compressed.count("for (") == 2
    assert "for (n = 1; n < 21; n = n + 1)\n        mem [n] = 8'h00;" in compressed
    assert "for (n = 23; n < 31; n = n + 1)\n        mem [n] = 8'h03;" in compressed
    for n in (0, 21, 22, *range(31, 38)):
        assert f"    mem[{n}] = 8'h{values[n]:02x};\n" in compressed
    assert compress_initial_blocks(compressed) == compressed
    assert compress_initial_blocks(memory([0] * 7)) == memory([0] * 7)
    assert "for (n = 0; n < 16; n = n + 1)" in compress_initial_blocks(loop_verilog())


def test_two_memories_do_not_run_together():
    verilog = memory([0] * 10) + memory([0] * 10, name="other")
    compressed = compress_initial_blocks(verilog)
    assert "for (n = 0; n < 10; n = n + 1)\n        mem [n]" in compressed
    assert "for (n = 0; n < 10; n = n + 1)\n        other [n]" in compressed


def test_the_yardstick_streams_the_same_board(tmp_path):
    sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))
    from bare import run_bare_verilog

    words = np.arange(20_000, dtype=np.uint32)
    done = run_bare_verilog(loop_verilog(), {0: 5}, words, words % 7 == 6, 20_000, probes=2)
    assert done.cycles == 20_001
    assert done.cycles_per_second > 0
    cut = run_bare_verilog(loop_verilog(), {}, words, words % 7 == 6, 20_000, probes=2, cycles=1000)
    assert cut.cycles == 1000
