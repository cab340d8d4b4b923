"""AXI4-Lite transfers become register accesses: each once, in order, whatever stalls."""

import random

import pytest
from amaranth.hdl import Array, Module, ResetInserter, Signal
from amaranth.sim import Simulator

from gradweave.rtl.parts.axi_lite import AxiLite

REGISTERS = 4
DEADLINE = 2000


class Bench:
    """An ``AxiLite`` in front of four registers, and a log of every access."""

    def __init__(self):
        self.dut = dut = AxiLite()
        self.reset = Signal()
        self.m = m = Module()
        m.submodules.dut = ResetInserter(self.reset)(dut)
        self.held = [Signal(32, name=f"register_{n}", init=100 + n) for n in range(REGISTERS)]
        file = Array(self.held)
        with m.If(dut.write):
            m.d.sync += file[dut.address[2:4]].eq(dut.write_data)
        # Only the cycle after a read strobe carries its data.
        answer = Signal(32)
        m.d.sync += answer.eq(0xDEAD)
        with m.If(dut.read):
            m.d.sync += answer.eq(file[dut.address[2:4]])
        m.d.comb += dut.read_data.eq(answer)
        self.writes, self.reads = [], []

    def run(self, *benches):
        async def watch(ctx):
            dut, model = self.dut, [100 + n for n in range(REGISTERS)]
            while True:
                sampled = ctx.tick().sample(dut.write, dut.read, dut.address, dut.write_data)
                _, _, write, read, address, value = await sampled
                assert not (write and read)
                if read:
                    self.reads.append((address, model[address >> 2]))
                if write:
                    self.writes.append((address, value))
                    model[address >> 2] = value

        simulator = Simulator(self.m)
        simulator.add_clock(1e-8)
        simulator.add_testbench(watch, background=True)
        for bench in benches:
            simulator.add_testbench(bench)
        simulator.run()

    async def send(self, ctx, channel, wait=0, **payload):
        """Offer one transfer on ``aw``, ``w`` or ``ar`` after ``wait`` cycles until it is taken."""
        await self.wait(ctx, wait)
        for name, value in payload.items():
            ctx.set(getattr(self.dut, name), value)
        ctx.set(getattr(self.dut, f"{channel}valid"), 1)
        for _ in range(DEADLINE):
            _, _, ready = await ctx.tick().sample(getattr(self.dut, f"{channel}ready"))
            if ready:
                ctx.set(getattr(self.dut, f"{channel}valid"), 0)
                return
        raise AssertionError(f"{channel} is never ready")

    async def take(self, ctx, channel, wait=0):
        """Refuse ``b`` or ``r`` for ``wait`` cycles of its being valid, then take it."""
        dut = self.dut
        data = dut.rdata if channel == "r" else dut.bresp
        response = getattr(dut, f"{channel}resp")
        seen = []
        for _ in range(DEADLINE):
            ctx.set(getattr(dut, f"{channel}ready"), len(seen) >= wait)
            valid = getattr(dut, f"{channel}valid")
            _, _, valid, value, code = await ctx.tick().sample(valid, data, response)
            assert valid or not seen, f"{channel} was withdrawn"
            if valid:
                assert code == 0
                seen.append(value)
            if len(seen) > wait:
                ctx.set(getattr(dut, f"{channel}ready"), 0)
                assert seen == [seen[0]] * len(seen), f"{channel} changed while it waited"
                return seen[0]
        raise AssertionError(f"{channel} is never valid")

    @staticmethod
    async def wait(ctx, cycles):
        for _ in range(cycles):
            await ctx.tick()


@pytest.mark.parametrize(("aw_wait", "w_wait"), [(0, 0), (0, 5), (5, 0), (0, 1), (1, 0)])
@pytest.mark.parametrize("b_wait", [0, 3])
def test_address_and_data_may_come_in_either_order(aw_wait, w_wait, b_wait):
    bench = Bench()

    async def address(ctx):
        await bench.send(ctx, "aw", aw_wait, awaddr=8)

    async def word(ctx):
        await bench.send(ctx, "w", w_wait, wdata=0xCAFE1234, wstrb=0xF)

    async def answer(ctx):
        await bench.take(ctx, "b", b_wait)
        await bench.wait(ctx, 4)
        assert not ctx.get(bench.dut.bvalid)
        assert [ctx.get(register) for register in bench.held] == [100, 101, 0xCAFE1234, 103]

    bench.run(address, word, answer)
    assert bench.writes == [(8, 0xCAFE1234)]
    assert bench.reads == []


@pytest.mark.parametrize("gap", [0, 2])
def test_writes_behind_a_refused_answer_wait(gap):
    bench = Bench()

    async def addresses(ctx):
        for n in range(3):
            await bench.send(ctx, "aw", gap, awaddr=4 * n)

    async def words(ctx):
        for n in range(3):
            await bench.send(ctx, "w", wdata=n, wstrb=0xF)

    async def answers(ctx):
        for n in range(3):
            await bench.wait(ctx, 12)
            assert len(bench.writes) == n + 1
            await bench.take(ctx, "b")

    bench.run(addresses, words, answers)
    assert bench.writes == [(0, 0), (4, 1), (8, 2)]


@pytest.mark.parametrize("wait", [0, 1, 6])
def test_a_read_keeps_the_value_of_its_strobe(wait):
    """The register changes while the answer waits; the answer does not."""
    bench = Bench()

    async def read(ctx):
        await bench.send(ctx, "ar", araddr=4)
        assert await bench.take(ctx, "r", wait) == 101
        await bench.wait(ctx, 6)
        await bench.send(ctx, "ar", araddr=4)
        assert await bench.take(ctx, "r") == 7

    async def write(ctx):
        await bench.wait(ctx, 1)
        ctx.set(bench.dut.awaddr, 4)
        ctx.set(bench.dut.awvalid, 1)
        await bench.send(ctx, "w", wdata=7, wstrb=0xF)
        ctx.set(bench.dut.awvalid, 0)
        await bench.take(ctx, "b")

    bench.run(read, write)
    assert bench.reads == [(4, 101), (4, 7)]


def test_a_read_behind_a_refused_answer_waits():
    bench = Bench()

    async def ask(ctx):
        for n in range(3):
            await bench.send(ctx, "ar", araddr=4 * n)

    async def answers(ctx):
        for n in range(3):
            await bench.wait(ctx, 8)
            assert len(bench.reads) == n + 1
            assert await bench.take(ctx, "r") == 100 + n

    bench.run(ask, answers)


def test_a_write_and_a_read_at_once_are_both_done_the_write_first():
    bench = Bench()

    async def write_address(ctx):
        await bench.send(ctx, "aw", awaddr=12)

    async def write_data(ctx):
        await bench.send(ctx, "w", wdata=55, wstrb=0xF)
        await bench.take(ctx, "b")

    async def read(ctx):
        await bench.send(ctx, "ar", araddr=12)
        assert await bench.take(ctx, "r") == 55

    bench.run(write_address, write_data, read)
    assert bench.writes == [(12, 55)]
    assert bench.reads == [(12, 55)]


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("longest_wait", [0, 3])
def test_any_mix_of_reads_and_writes_is_done_once_each_in_order(longest_wait, seed):
    bench, count = Bench(), 60
    rng = random.Random(seed)
    written = [(4 * rng.randrange(REGISTERS), rng.getrandbits(32)) for _ in range(count)]
    asked = [4 * rng.randrange(REGISTERS) for _ in range(count)]
    got = []

    def wait():
        return rng.randint(0, longest_wait)

    async def addresses(ctx):
        for address, _ in written:
            await bench.send(ctx, "aw", wait(), awaddr=address)

    async def words(ctx):
        for _, value in written:
            await bench.send(ctx, "w", wait(), wdata=value, wstrb=rng.getrandbits(4))

    async def acknowledge(ctx):
        for _ in written:
            await bench.take(ctx, "b", wait())

    async def ask(ctx):
        for address in asked:
            await bench.send(ctx, "ar", wait(), araddr=address)

    async def answers(ctx):
        for _ in asked:
            got.append(await bench.take(ctx, "r", wait()))

    bench.run(addresses, words, acknowledge, ask, answers)
    assert bench.writes == written
    assert [address for address, _ in bench.reads] == asked
    assert got == [value for _, value in bench.reads]


def test_reset_drops_the_answers_that_wait():
    bench = Bench()

    async def script(ctx):
        dut = bench.dut
        ctx.set(dut.awvalid, 1)
        await bench.send(ctx, "w", wdata=1, wstrb=0xF)
        ctx.set(dut.awvalid, 0)
        await bench.send(ctx, "ar", araddr=0)
        await ctx.tick().repeat(2)
        assert (ctx.get(dut.bvalid), ctx.get(dut.rvalid)) == (1, 1)
        ctx.set(bench.reset, 1)
        await ctx.tick()
        ctx.set(bench.reset, 0)
        assert (ctx.get(dut.bvalid), ctx.get(dut.rvalid)) == (0, 0)
        await bench.send(ctx, "ar", araddr=4)
        assert await bench.take(ctx, "r") == 101

    bench.run(script)
