"""ParameterStore: the master weights and momenta of a layer, with a door for the host.

Golden: the order of parameters in ``docs/architecture.md``.
Test: ``tests/pipeline/test_update.py``.
"""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import memory, stream, wiring
from amaranth.lib.wiring import In, Out

from ...model.plan import LayerPlan
from ..parts import lanes

__all__ = ["ParameterStore"]


class ParameterStore(wiring.Component):
    """Two memories of ``sweep_chunks`` chunks: master weights, momenta. The update reads and writes
    a chunk per cycle.

    While ``host`` is high the memories belong to the host: after ``start`` the words of ``load``
    fill the memory ``select`` from its beginning, and with ``dumping`` its words leave through
    ``dump``, ``update_lanes`` words a chunk.

    Members
    -------
    address : In; weight, velocity : Out, a chunk, one cycle later
    write_enable, write_address, write_weight, write_velocity : In
    host, start, dumping, select : In(1); load : In(stream of 32), dump : Out(stream of 32)
    """

    def __init__(self, layer: LayerPlan):
        self.layer = layer
        self.lanes = layer.update_lanes
        self.chunks = layer.sweep_chunks
        self.master = lanes(layer.weight.master.width, self.lanes)
        self.velocity_shape = lanes(layer.weight.gradient.width, self.lanes)
        address = range(max(2, self.chunks))
        super().__init__(
            {
                "address": In(address),
                "weight": Out(self.master),
                "velocity": Out(self.velocity_shape),
                "write_enable": In(1),
                "write_address": In(address),
                "write_weight": In(self.master),
                "write_velocity": In(self.velocity_shape),
                "host": In(1),
                "start": In(1),
                "dumping": In(1),
                "select": In(1),
                "load": In(stream.Signature(32)),
                "dump": Out(stream.Signature(32)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        chunk = Signal.like(self.address)
        word = Signal(range(max(2, self.lanes)))
        held = Signal(lanes(32, self.lanes))
        fetched, loaded = Signal(), Signal()
        transfer, last_word = Signal(), Signal()
        m.d.comb += [
            self.load.ready.eq(self.host & ~self.dumping),
            self.dump.valid.eq(self.dumping & fetched),
            self.dump.payload.eq(held[0]),
            transfer.eq((self.load.valid & self.load.ready) | (self.dump.valid & self.dump.ready)),
            last_word.eq(word == self.lanes - 1),
        ]

        for n, (shape, read_data, write_data) in enumerate(
            [
                (self.master, self.weight, self.write_weight),
                (self.velocity_shape, self.velocity, self.write_velocity),
            ]
        ):
            m.submodules[f"memory_{n}"] = store = memory.Memory(
                shape=shape, depth=max(2, self.chunks), init=[]
            )
            read, write = store.read_port(), store.write_port()
            m.d.comb += [
                read.addr.eq(Mux(self.host, chunk, self.address)),
                read_data.eq(read.data),
                write.en.eq(Mux(self.host, loaded & (self.select == n), self.write_enable)),
                write.addr.eq(Mux(self.host, chunk, self.write_address)),
            ]
            m.d.comb += [
                write.data[lane].eq(Mux(self.host, held[lane], write_data[lane]))
                for lane in range(self.lanes)
            ]

        # A chunk is complete in `held` one cycle after its last word; `loaded` then writes it and
        # moves on.
        m.d.sync += loaded.eq(transfer & last_word & ~self.dumping)
        with m.If(transfer):
            m.d.sync += word.eq(Mux(last_word, 0, word + 1))
            m.d.sync += held.as_value().eq(Cat(held.as_value()[32:], self.load.payload))
        with m.If(loaded | (transfer & last_word & self.dumping)):
            m.d.sync += chunk.eq(chunk + 1)

        # A fetch takes two cycles: address, data.
        settled = Signal()
        m.d.sync += settled.eq(self.dumping & ~fetched & ~settled)
        with m.If(settled):
            m.d.sync += fetched.eq(1)
            for lane in range(self.lanes):
                m.d.sync += held[lane].eq(Mux(self.select, self.velocity[lane], self.weight[lane]))
        with m.If(transfer & last_word & self.dumping):
            m.d.sync += fetched.eq(0)
        with m.If(self.start):
            m.d.sync += [chunk.eq(0), word.eq(0), fetched.eq(0)]
        return m
