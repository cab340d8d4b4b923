# amaranth: UnusedElaboratable=no
# ruff: noqa: ERA001
"""Emitted Verilog: repeatable, free of torch, and small where memories start at zero."""

import hashlib
import os
import re
import subprocess
import sys

import pytest
from amaranth.back import verilog as backend
from amaranth.hdl import Module
from amaranth.lib import memory, wiring
from amaranth.lib.wiring import In, Out

from gradweave.rtl.generate import TOP, fold_repeats, verilog
from gradweave.rtl.memories import RAM_VERILOG, RamPlatform
from gradweave.tests.plans import chain, conv, linear, relu

INITIAL = re.compile(r"^    \\?(\w+) *\[\d+\] = (\d+'h\w+);$", re.M)


@pytest.fixture(scope="module")
def plan():
    """A small chain with every kind of memory: windows, weights, sums, queues and tables."""
    layers = (conv("c", 2, kernel=2, a=2), relu("r", lanes=2), linear("l", 2))
    return chain((1, 3, 3), *layers, sized=True)


@pytest.fixture(scope="module")
def text(plan):
    return verilog(plan)


def test_the_top_has_plain_ports(text):
    assert TOP == "board"
    ports = re.search(r"^module board\((.*?)\);", text, re.M | re.S)[1]
    names = {name.strip() for name in ports.split(",")}
    assert {"clk", "rst", "s_axil_awaddr", "s_axis_tdata", "m_axis_tlast"} <= names
    assert all(name.isidentifier() for name in names)


def test_the_memory_module_is_defined_once_and_used(text):
    assert len(re.findall(r"^module gradweave_ram\b", text, re.M)) == 1
    assert text.endswith(RAM_VERILOG)
    assert len(re.findall(r"^ +gradweave_ram #\($", text, re.M)) >= 10


def test_only_tables_have_a_line_per_word(text):
    lines = INITIAL.findall(text.removesuffix(RAM_VERILOG))
    assert {name for name, _ in lines} == {"row_table", "col_table", "table"}
    exponentials = [int(word.removeprefix("17'h"), 16) for name, word in lines if name == "table"]
    assert exponentials == [round(2.0 ** (16 - n / 1024)) for n in range(1024)]


def test_one_plan_gives_one_text_in_any_process_and_loads_no_torch(plan, text):
    script = (
        "import hashlib, sys\n"
        "from gradweave.model.plan import Plan\n"
        "from gradweave.rtl.generate import verilog\n"
        "text = verilog(Plan.from_json(sys.stdin.read()))\n"
        "print(hashlib.sha256(text.encode()).hexdigest(), 'torch' in sys.modules)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", script],
        input=plan.to_json(),
        env={**os.environ, "PYTHONHASHSEED": "17"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.split() == [hashlib.sha256(text.encode()).hexdigest(), "False"]


class Store(wiring.Component):
    """One memory and its ports, to be emitted alone."""

    def __init__(self, *, depth, init=(), domain="sync", transparent=False, granularity=None):
        self.depth, self.words, self.domain = depth, list(init), domain
        self.transparent, self.granularity = transparent, granularity
        bits = max(1, (depth - 1).bit_length())
        super().__init__(
            {
                "write": In(8 // (granularity or 8)),
                "address": In(bits),
                "i": In(8),
                "o": Out(8),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.words = store = memory.Memory(shape=8, depth=self.depth, init=self.words)
        write = store.write_port(granularity=self.granularity)
        read = store.read_port(
            domain=self.domain, transparent_for=(write,) if self.transparent else ()
        )
        m.d.comb += [
            write.en.eq(self.write),
            write.addr.eq(self.address),
            write.data.eq(self.i),
            read.addr.eq(self.address),
            self.o.eq(read.data),
        ]
        return m


def emitted(**parameters):
    return backend.convert(Store(**parameters), platform=RamPlatform())


@pytest.mark.parametrize("depth", [2, 3, 8, 4096])
@pytest.mark.parametrize("init", [[], [0, 0]])
def test_a_plain_memory_becomes_the_module_with_its_size(depth, init):
    text = emitted(depth=depth, init=init)
    sizes = dict(re.findall(r"\.(\w+)\(32'd(\d+)\)", text))
    bits = (depth - 1).bit_length()
    assert {name: int(size) for name, size in sizes.items()} == {
        "WIDTH": 8,
        "DEPTH": depth,
        "ADDRESS": bits,
        "TRANSPARENT": 0,
    }
    assert not INITIAL.search(text)


def test_a_transparent_port_says_so():
    assert ".TRANSPARENT(32'd1)" in emitted(depth=4, transparent=True)


@pytest.mark.parametrize(
    "parameters",
    [
        {"depth": 1},
        {"depth": 4, "domain": "comb"},
        {"depth": 4, "init": [0, 5]},
        {"depth": 4, "granularity": 4},
    ],
    ids=["one word", "comb read", "a table", "partial writes"],
)
def test_any_other_memory_falls_back_to_amaranths(parameters):
    text = emitted(**parameters)
    assert "gradweave_ram" not in text
    assert re.search(r"^ +reg \[7:0\] words", text, re.M)


def test_repeated_bits_are_folded_into_a_replication():
    assert fold_repeats("{ a[3], a[3], a[3], b[1], b[0] }") == "{ {3{a[3]}}, b[1], b[0] }"
    assert fold_repeats("{ \\x.y [7], \\x.y [7] }") == "{ {2{\\x.y [7]}} }"
    assert fold_repeats("{ a[1], a[11], ba[1], a[1] }") == "{ a[1], a[11], ba[1], a[1] }"


def test_folding_keeps_every_other_character(text):
    unfolded = re.sub(
        r"\{(\d+)\{((?:\\\S+ |\w+)\[\d+\])\}\}",
        lambda run: ", ".join([run[2]] * int(run[1])),
        text,
    )
    assert fold_repeats(unfolded) == text
