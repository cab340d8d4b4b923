"""AxiLite: a register block on AXI4-Lite.

Golden: ``model/registers.py``. Test: ``tests/test_board.py``.
"""

from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

__all__ = ["ADDRESS_WIDTH", "AxiLite"]

ADDRESS_WIDTH = 16


class AxiLite(wiring.Component):
    """Turns AXI4-Lite transfers into one-cycle register accesses, one at a time.

    A write strobes ``write`` with ``address`` and ``write_data`` once address and data are both
    there; byte strobes are ignored: registers are written whole. A read strobes ``read`` with
    ``address``; ``read_data`` is taken one cycle later. Answers are always OKAY; unknown addresses
    read as zero.
    """

    awaddr: In(ADDRESS_WIDTH)
    awvalid: In(1)
    awready: Out(1)
    wdata: In(32)
    wstrb: In(4)
    wvalid: In(1)
    wready: Out(1)
    bresp: Out(2)
    bvalid: Out(1)
    bready: In(1)
    araddr: In(ADDRESS_WIDTH)
    arvalid: In(1)
    arready: Out(1)
    rdata: Out(32)
    rresp: Out(2)
    rvalid: Out(1)
    rready: In(1)
    address: Out(ADDRESS_WIDTH)
    write: Out(1)
    write_data: Out(32)
    read: Out(1)
    read_data: In(32)

    def elaborate(self, platform):
        m = Module()
        fetching = Signal()
        writing = self.awvalid & self.wvalid & ~self.bvalid
        reading = self.arvalid & ~writing & ~fetching & ~self.rvalid
        m.d.comb += [
            self.write.eq(writing),
            self.awready.eq(writing),
            self.wready.eq(writing),
            self.write_data.eq(self.wdata),
            self.read.eq(reading),
            self.arready.eq(reading),
            self.address.eq(self.araddr),
        ]
        with m.If(writing):
            m.d.comb += self.address.eq(self.awaddr)
            m.d.sync += self.bvalid.eq(1)
        with m.Elif(self.bready):
            m.d.sync += self.bvalid.eq(0)
        m.d.sync += fetching.eq(reading)
        with m.If(fetching):
            m.d.sync += [self.rvalid.eq(1), self.rdata.eq(self.read_data)]
        with m.Elif(self.rready):
            m.d.sync += self.rvalid.eq(0)
        return m
