"""SumBank: running sums in memory, one bank filling while another is read and cleared.

Test: ``tests/parts/test_sum_bank.py``.
"""

from amaranth.hdl import Cat, Module, Mux, Signal, signed
from amaranth.lib import memory, wiring
from amaranth.lib.wiring import In, Out

from . import lanes as _lanes

__all__ = ["SumBank"]


class SumBank(wiring.Component):
    """Adds a word of terms to the word of sums at an address, every cycle, also the same address
    back to back.

    ``enable``, ``bank`` and ``address`` come one cycle before their ``terms``. The sweep side names
    a bank, too: its sums come one cycle after ``sweep_address``, and ``sweep_clear`` zeroes the
    word at ``sweep_address`` once it is read, in every bank with ``sweep_all``. Both sides may use
    different banks at once; on one bank they must take turns, a sweep no sooner than two cycles
    after the last ``enable``. Sums start at zero; reset keeps the memories, so a sweep must clear
    them afterwards.

    Parameters
    ----------
    width, term_width : int, bits of a sum and of a term; lanes, depth, banks : int

    Members
    -------
    enable, bank, address : In; terms : In(lanes of term_width)
    sweep_bank, sweep_address, sweep_clear, sweep_all : In; sweep_sums : Out
    """

    def __init__(self, *, width: int, term_width: int, lanes: int, depth: int, banks: int):
        self.width = width
        self.term_width = term_width
        self.lanes = lanes
        self.depth = depth
        self.banks = banks
        super().__init__(
            {
                "enable": In(1),
                "bank": In(range(max(2, banks))),
                "address": In(range(max(2, depth))),
                "terms": In(_lanes(term_width, lanes)),
                "sweep_bank": In(range(max(2, banks))),
                "sweep_address": In(range(max(2, depth))),
                "sweep_clear": In(1),
                "sweep_all": In(1),
                "sweep_sums": Out(_lanes(width, lanes)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        adding, bank, address = Signal(), Signal.like(self.bank), Signal.like(self.address)
        m.d.sync += [adding.eq(self.enable), bank.eq(self.bank), address.eq(self.address)]
        sweep_bank, sweep_address = Signal.like(self.sweep_bank), Signal.like(self.sweep_address)
        sweep_clear, sweep_all = Signal(), Signal()
        m.d.sync += [
            sweep_bank.eq(self.sweep_bank),
            sweep_address.eq(self.sweep_address),
            sweep_clear.eq(self.sweep_clear),
            sweep_all.eq(self.sweep_all),
        ]

        # One adder array serves all banks: read, add, then write from a register. The word still in
        # that register is forwarded to an access one cycle later; the memories forward at two.
        late_bank, late_address = Signal.like(self.bank), Signal.like(self.address)
        late_adding, again = Signal(), Signal()
        m.d.sync += [late_adding.eq(adding), late_bank.eq(bank), late_address.eq(address)]
        m.d.comb += again.eq(late_adding & (late_bank == bank) & (late_address == address))

        reads, sums = [], []
        for lane in range(self.lanes):
            sums.append(Signal(signed(self.width), name=f"sum_{lane}", reset_less=True))
        for n in range(self.banks):
            m.submodules[f"bank_{n}"] = store = memory.Memory(
                shape=_lanes(self.width, self.lanes), depth=max(2, self.depth), init=[]
            )
            write = store.write_port()
            read = store.read_port(transparent_for=(write,))
            taken = Signal(name=f"taken_{n}")
            add = Signal(name=f"add_{n}")
            clear = Signal(name=f"clear_{n}")
            m.d.comb += [
                taken.eq(self.enable & (self.bank == n)),
                add.eq(late_adding & (late_bank == n)),
                clear.eq(sweep_clear & (sweep_all | (sweep_bank == n))),
                read.addr.eq(Mux(taken, self.address, self.sweep_address)),
                write.en.eq(add | clear),
                write.addr.eq(Mux(add, late_address, sweep_address)),
                write.data.as_value().eq(Mux(add, Cat(*sums), 0)),
            ]
            reads.append(read.data)
        held = Signal(_lanes(self.width, self.lanes))
        m.d.comb += held.eq(reads[0])
        for n in range(1, self.banks):
            with m.If(bank == n):
                m.d.comb += held.eq(reads[n])
        with m.If(adding):
            for lane, total in enumerate(sums):
                m.d.sync += total.eq(Mux(again, total, held[lane]) + self.terms[lane])
        m.d.comb += self.sweep_sums.eq(reads[0])
        for n in range(1, self.banks):
            with m.If(sweep_bank == n):
                m.d.comb += self.sweep_sums.eq(reads[n])
        return m
