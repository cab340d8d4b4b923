"""Memories of emitted Verilog: one parametrised module instead of one init line per word.

Amaranth writes the initial value of every bit, which costs minutes and megabytes on large designs.
In emitted Verilog, memories that start at zero and have one write and one synchronous read port
become instances of ``rtl/ram.v``; others (tables) stay as they are. In Amaranth's simulator nothing
changes. Test: ``tests/test_generate.py``.
"""

from pathlib import Path

from amaranth.hdl import ClockSignal, Const, Instance, Module, Value
from amaranth.lib import memory

__all__ = ["RAM_VERILOG", "RamPlatform"]

RAM_VERILOG = Path(__file__).with_name("ram.v").read_text()


class RamPlatform:
    """A platform for ``amaranth.back.verilog.convert`` that only says how memories are made."""

    def get_memory(self, store: memory.Memory):
        """Return the elaboratable that stands for ``store``."""
        if not _is_plain(store):
            return store.elaborate(None)
        m = Module()
        write, read = store.write_ports[0], store.read_ports[0]
        m.submodules.ram = Instance(
            "gradweave_ram",
            p_WIDTH=Const(len(Value.cast(write.data)), 32),
            p_DEPTH=Const(store.depth, 32),
            p_ADDRESS=Const(len(write.addr), 32),
            p_TRANSPARENT=Const(int(write in read.transparent_for), 32),
            i_clk=ClockSignal("sync"),
            i_write_enable=write.en,
            i_write_address=write.addr,
            i_write_data=write.data,
            i_read_enable=read.en,
            i_read_address=read.addr,
            o_read_data=read.data,
        )
        return m


def _is_plain(store: memory.Memory) -> bool:
    ports = store.write_ports, store.read_ports
    if [len(side) for side in ports] != [1, 1] or store.depth < 2:
        return False
    write, read = ports[0][0], ports[1][0]
    zero = all(word is None or word == 0 for word in store.init)
    return zero and len(write.en) == 1 and read.domain == write.domain == "sync"
