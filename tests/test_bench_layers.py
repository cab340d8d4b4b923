"""The bench of intervals and latencies: it covers every kind, and sees what a plan gets wrong."""

from dataclasses import replace
from pathlib import Path

import pytest

from gradweave.bench import layers as bench
from gradweave.bench.blocks import run_block
from gradweave.model.kinds import KINDS
from gradweave.rtl.pipeline.network import BLOCKS, TRAINED

ROOT = Path(__file__).parents[1]


def test_every_kind_with_a_block_is_measured():
    measured = {name.split(":")[0] for name in bench.CASES}
    assert measured == set(BLOCKS) | set(TRAINED)
    assert measured == set(KINDS)
    assert all(layer.kind == name.split(":")[0] for name, layer in bench.CASES.items())


@pytest.mark.parametrize("name", ["conv2d: one tap", "leaky_relu", "concat", "fork"])
def test_intervals_are_as_planned_and_no_result_is_late(name):
    layer = bench.CASES[name]
    figures = bench.measure_layer(layer)
    assert set(figures) == {"forward", "backward", *(["gradient"] if layer.trainable else [])}
    for way in figures.values():
        assert way["interval"] == way["interval_planned"]
    for way in (figures["forward"], figures["backward"]):
        late = way["latency"] - way["latency_planned"]
        # An engine's latency is a bound: the plan's 16 cycles are 6 or 7 more than its own.
        assert late in ((-6, -7) if layer.windowed else (0,))


def test_an_interval_that_hardware_does_not_keep_is_seen(monkeypatch):
    """Blocks of one lane beside a plan of two."""
    slow = replace(bench.CASES["relu"], lanes=1)
    monkeypatch.setattr(
        bench, "run_block", lambda _: run_block(replace(slow, buffers=bench.deep(slow)))
    )
    figures = bench.measure_layer(bench.CASES["relu"])
    assert figures["forward"]["interval"] == 2 * figures["forward"]["interval_planned"]
    assert bench.worst([figures]) == 2


def test_too_little_room_is_seen_as_an_interval():
    """A window of one row, in place of enough, takes nothing while the engine reads it."""
    layer = bench.CASES["conv2d: one tap"]
    shallow = replace(layer, buffers=replace(layer.buffers, fp_rows=1))
    figures = bench.measure_layer(shallow)
    assert figures["forward"]["interval"] > bench.LIMIT * figures["forward"]["interval_planned"]


def test_a_block_that_hangs_is_named(monkeypatch):
    monkeypatch.setattr("gradweave.bench.blocks.DEADLINE_CYCLES", 20)
    with pytest.raises(RuntimeError, match=r"^relu must be through by cycle 20, not have moved"):
        run_block(bench.CASES["relu"])


def test_the_target_of_make_runs_the_bench():
    assert "bench layers\n" in (ROOT / "Makefile").read_text()
