"""A board without layers: its stream answers every word plus a register, through a FIFO."""

from amaranth.back import verilog
from amaranth.hdl import Cat, Const, Module, Signal
from amaranth.lib import fifo, wiring
from amaranth.lib.wiring import In, Out

LANES, WIDTH = 5, 13


class LoopBoard(wiring.Component):
    """Registers 0 (adds to every word), 4 (scratch), 8 (words so far, read-only), 12 (0x47574156).

    ``probe_0`` shows five 13-bit lanes per word taken, lane n being ``-(word + n)``; ``probe_1``
    the word. A word of 0xDEAD0000 stops the board for good.
    """

    s_axil_awaddr: In(16)
    s_axil_awvalid: In(1)
    s_axil_awready: Out(1)
    s_axil_wdata: In(32)
    s_axil_wstrb: In(4)
    s_axil_wvalid: In(1)
    s_axil_wready: Out(1)
    s_axil_bresp: Out(2)
    s_axil_bvalid: Out(1)
    s_axil_bready: In(1)
    s_axil_araddr: In(16)
    s_axil_arvalid: In(1)
    s_axil_arready: Out(1)
    s_axil_rdata: Out(32)
    s_axil_rresp: Out(2)
    s_axil_rvalid: Out(1)
    s_axil_rready: In(1)
    s_axis_tdata: In(32)
    s_axis_tvalid: In(1)
    s_axis_tready: Out(1)
    s_axis_tlast: In(1)
    m_axis_tdata: Out(32)
    m_axis_tvalid: Out(1)
    m_axis_tready: In(1)
    m_axis_tlast: Out(1)
    probe_0_valid: Out(1)
    probe_0_data: Out(LANES * WIDTH)
    probe_1_valid: Out(1)
    probe_1_data: Out(32)

    def __init__(self, *, depth: int = 16):
        self.depth = depth  # zero: the streams are joined without a register
        super().__init__()

    def elaborate(self, platform):
        m = Module()
        addend, scratch, words, stuck = Signal(32), Signal(32), Signal(32), Signal()
        result = Signal(32)
        taken = self.s_axis_tvalid & self.s_axis_tready
        m.d.comb += result.eq(self.s_axis_tdata + addend)
        if self.depth:
            m.submodules.fifo = queue = fifo.SyncFIFO(width=33, depth=self.depth)
            m.d.comb += [
                queue.w_data.eq(Cat(result, self.s_axis_tlast)),
                queue.w_en.eq(taken),
                self.s_axis_tready.eq(queue.w_rdy & ~stuck),
                Cat(self.m_axis_tdata, self.m_axis_tlast).eq(queue.r_data),
                self.m_axis_tvalid.eq(queue.r_rdy),
                queue.r_en.eq(self.m_axis_tready & queue.r_rdy),
            ]
        else:
            m.d.comb += [
                self.s_axis_tready.eq(self.m_axis_tready & self.s_axis_tvalid),
                self.m_axis_tvalid.eq(self.s_axis_tvalid),
                Cat(self.m_axis_tdata, self.m_axis_tlast).eq(Cat(result, self.s_axis_tlast)),
            ]
        with m.If(taken):
            m.d.sync += words.eq(words + 1)
            m.d.sync += stuck.eq(stuck | (self.s_axis_tdata == 0xDEAD0000))
        lanes = [-(self.s_axis_tdata + n) for n in range(LANES)]
        m.d.comb += [
            self.probe_0_valid.eq(taken),
            self.probe_0_data.eq(Cat(lane[:WIDTH] for lane in lanes)),
            self.probe_1_valid.eq(taken),
            self.probe_1_data.eq(self.s_axis_tdata),
        ]
        writes = self.s_axil_awvalid & self.s_axil_wvalid & ~self.s_axil_bvalid
        m.d.comb += [self.s_axil_awready.eq(writes), self.s_axil_wready.eq(writes)]
        with m.If(self.s_axil_bready):
            m.d.sync += self.s_axil_bvalid.eq(0)
        with m.If(writes):
            m.d.sync += self.s_axil_bvalid.eq(1)
            with m.Switch(self.s_axil_awaddr):
                with m.Case(0):
                    m.d.sync += addend.eq(self.s_axil_wdata)
                with m.Case(4):
                    m.d.sync += scratch.eq(self.s_axil_wdata)
        m.d.comb += self.s_axil_arready.eq(~self.s_axil_rvalid)
        with m.If(self.s_axil_rready):
            m.d.sync += self.s_axil_rvalid.eq(0)
        with m.If(self.s_axil_arvalid & self.s_axil_arready):
            m.d.sync += self.s_axil_rvalid.eq(1)
            registers = [addend, scratch, words, Const(0x47574156)]
            for n, register in enumerate(registers):
                with m.If(self.s_axil_araddr == 4 * n):
                    m.d.sync += self.s_axil_rdata.eq(register)
        return m


def loop_verilog(*, depth: int = 16) -> str:
    return verilog.convert(LoopBoard(depth=depth), name="board", strip_internal_attrs=True)
