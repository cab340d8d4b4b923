"""Who may begin what, against the version table, while everything takes random times.

``Table`` is written from docs/architecture.md: it counts mini-batches, remembers which version
every bank holds, and checks the block's outputs in every cycle.
"""

import random
from dataclasses import dataclass, replace

import pytest
from amaranth.sim import Simulator

from gradweave.model.versions import version
from gradweave.rtl.pipeline.versions import SETTLE_CYCLES, Versions
from gradweave.tests.plans import chain, conv

BATCH_MAX = 4
DEADLINE = 4000
SWEEP_CYCLES = 5


def layer_of(delay, back_delay, backward=True):
    spec = conv("c", 4, kernel=(1, 3), a=2, b=1, delay=delay, back_delay=back_delay)
    return replace(chain((2, 1, 4), spec).layers[0], backward=backward)


@dataclass
class Engine:
    """An engine that takes a random time per sample once it may go."""

    name: str
    batch: int
    finished: int = 0  # samples
    left: int = 0  # cycles of the present sample

    @property
    def mini_batch(self):
        return self.finished // self.batch


class Table:
    """The truth about versions, and the engines that obey the block."""

    def __init__(self, layer, batch, batches, seed, patience=8):
        self.layer, self.batch, self.batches = layer, batch, batches
        self.rng, self.patience = random.Random(seed), patience
        names = ("fp", "eb", "wg") if layer.backward else ("fp", "wg")
        self.engines = {name: Engine(name, batch) for name in names}
        self.version, self.sweep_left, self.now = 0, 0, 0
        self.ends = {name: [] for name in names}
        self.fp_banks = {0: 0}
        self.eb_banks = {0: 0}
        self.sum_banks = {}

    def expected_go(self):
        """What the block must say in this cycle, neither early nor late."""
        layer, count = self.layer, {name: e.mini_batch for name, e in self.engines.items()}
        go = {"fp": count["fp"] - layer.delay <= self.version}
        go["wg"] = count["wg"] - self.version < layer.gradient_banks
        behind = ["wg"]
        if layer.backward:
            go["eb"] = count["eb"] - layer.back_delay <= self.version
            behind.append("eb")
        settled = [sum(self.now - end > SETTLE_CYCLES for end in self.ends[n]) for n in behind]
        go["sweep"] = min(settled) > self.version
        return go

    def begin(self, name, go):
        """Whether an idle engine begins its next sample: its version is there, and its data."""
        engine = self.engines[name]
        if engine.left or engine.finished == self.batch * self.batches or not go:
            return
        if name != "fp" and engine.finished >= self.engines["fp"].finished:
            return
        if self.rng.random() * self.patience < 4:
            engine.left = self.rng.randint(1, self.patience)

    def read(self, name, base):
        """A running engine finds the version of its mini-batch in the bank at ``base``."""
        banks, lag = (
            (self.fp_banks, self.layer.delay)
            if name == "fp"
            else (self.eb_banks, self.layer.back_delay)
        )
        bank, rest = divmod(base, self.layer.weight_words)
        assert rest == 0
        assert banks.get(bank) == version(self.engines[name].mini_batch, lag)

    def overwrite(self, banks, base, stride):
        bank, rest = divmod(base, stride)
        assert rest == 0
        banks[bank] = None  # neither the old version nor the new one yet
        return bank

    @property
    def done(self):
        return self.version == self.batches


async def run_segment(ctx, dut, table):
    """One cycle after another until all updates are done."""
    layer = table.layer
    filling = {}
    while not table.done:
        go = {name: ctx.get(getattr(dut, f"{name}_go")) for name in (*table.engines, "sweep")}
        assert go == {name: int(value) for name, value in table.expected_go().items()}
        assert ctx.get(dut.version) == table.version

        if table.sweep_left == 0 and go["sweep"]:
            table.sweep_left = SWEEP_CYCLES
            assert ctx.get(dut.sweep_bank) == table.version % layer.gradient_banks
            fp_base, eb_base = ctx.get(dut.fp_write_base), ctx.get(dut.eb_write_base)
            bias_base = ctx.get(dut.bias_write_base)
            filling = {"fp": table.overwrite(table.fp_banks, fp_base, layer.weight_words)}
            assert bias_base == filling["fp"] * layer.o_blocks
            if layer.backward:
                filling["eb"] = table.overwrite(table.eb_banks, eb_base, layer.weight_words)
        for name, engine in table.engines.items():
            table.begin(name, go[name])
            if not engine.left:
                continue
            if name == "wg":
                bank = ctx.get(dut.wg_bank)
                assert bank == engine.mini_batch % layer.gradient_banks
                assert not (table.sweep_left and bank == ctx.get(dut.sweep_bank))
            else:
                table.read(name, ctx.get(getattr(dut, f"{name}_base")))
            if name == "fp":
                blocks = ctx.get(dut.fp_base) // layer.weight_words * layer.o_blocks
                assert ctx.get(dut.fp_bias_base) == blocks

        ends = {name: engine.left == 1 for name, engine in table.engines.items()}
        for name, end in ends.items():
            ctx.set(getattr(dut, f"{name}_done"), end)
        ctx.set(dut.sweep_done, table.sweep_left == 1)
        await ctx.tick()

        for name, engine in table.engines.items():
            engine.left = max(0, engine.left - 1)
            engine.finished += ends[name]
            if ends[name] and engine.finished % table.batch == 0:
                table.ends[name].append(table.now)
        if table.sweep_left == 1:
            table.version += 1
            table.fp_banks[filling["fp"]] = table.version
            if layer.backward:
                table.eb_banks[filling["eb"]] = table.version
        table.sweep_left = max(0, table.sweep_left - 1)
        table.now += 1
        counts = {name: engine.finished for name, engine in table.engines.items()}
        assert table.now < DEADLINE, f"deadlock at {counts}, version {table.version}"
    for port in (*(f"{name}_done" for name in table.engines), "sweep_done"):
        ctx.set(getattr(dut, port), 0)


def simulate(dut, bench):
    simulator = Simulator(dut)
    simulator.add_clock(1e-8)
    simulator.add_testbench(bench)
    simulator.run()


def segments(layer, batch, *tables):
    """Run the tables one after another as segments of one block."""
    dut = Versions(layer, BATCH_MAX)

    async def bench(ctx):
        ctx.set(dut.batch, batch)
        ctx.set(dut.training, 1)
        for table in tables:
            ctx.set(dut.clear, 1)
            await ctx.tick()
            ctx.set(dut.clear, 0)
            await run_segment(ctx, dut, table)
            await ctx.tick().repeat(SETTLE_CYCLES + 2)

    simulate(dut, bench)


@pytest.mark.parametrize("batch", [1, 2, 3])
@pytest.mark.parametrize("back_delay", [0, 1, 2, 3])
@pytest.mark.parametrize("delay", [0, 1, 2, 3])
def test_engines_go_exactly_when_their_version_is_there(delay, back_delay, batch):
    layer = layer_of(delay, back_delay)
    patience = 1 + 7 * ((delay + back_delay + batch) % 2)
    segments(layer, batch, Table(layer, batch, 8, seed=batch, patience=patience))


@pytest.mark.parametrize("delay", [0, 2])
def test_a_first_layer_waits_for_no_error(delay):
    layer = layer_of(delay, 0, backward=False)
    segments(layer, 2, Table(layer, 2, 8, seed=delay))


@pytest.mark.parametrize(("delay", "batches"), [(0, 5), (1, 4), (2, 7), (3, 3)])
def test_a_segment_starts_from_version_zero_again(delay, batches):
    layer = layer_of(delay, delay)
    tables = [Table(layer, 2, batches, seed=n) for n in range(2)]
    segments(layer, 2, *tables)


@pytest.mark.parametrize("delay", [0, 1, 3])
def test_the_first_mini_batches_read_version_zero_without_any_update(delay):
    layer = layer_of(delay, delay)
    dut = Versions(layer, BATCH_MAX)
    bases = []

    async def bench(ctx):
        ctx.set(dut.batch, 2)
        ctx.set(dut.training, 1)
        while ctx.get(dut.fp_go):
            bases.append(ctx.get(dut.fp_base))
            ctx.set(dut.fp_done, 1)
            await ctx.tick()
        ctx.set(dut.fp_done, 0)
        await ctx.tick().repeat(20)
        assert not ctx.get(dut.fp_go)

    simulate(dut, bench)
    assert bases == [0] * 2 * (delay + 1)


@pytest.mark.parametrize("batch", [1, 2])
def test_inference_leaves_every_count_alone(batch):
    layer = layer_of(1, 1)
    dut = Versions(layer, BATCH_MAX)

    async def bench(ctx):
        ctx.set(dut.batch, batch)
        for name in ("fp_done", "eb_done", "wg_done"):
            ctx.set(getattr(dut, name), 1)
        for _ in range(25):
            await ctx.tick()
            assert ctx.get(dut.fp_go) & ctx.get(dut.eb_go) & ctx.get(dut.wg_go)
            assert ctx.get(dut.fp_base) == ctx.get(dut.sweep_go) == ctx.get(dut.version) == 0

    simulate(dut, bench)


def test_the_largest_mini_batch_counts_all_its_samples():
    layer = layer_of(0, 0)
    segments(layer, BATCH_MAX, Table(layer, BATCH_MAX, 3, seed=0))
