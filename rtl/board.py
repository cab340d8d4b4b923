"""Board: one design with its register block and packet streams, ready for a shell or a simulator.

Golden: ``model/network.py`` through ``model/registers.py``. Test: ``tests/test_board.py``.
"""

from amaranth.hdl import (
    ClockDomain,
    ClockSignal,
    DomainRenamer,
    Module,
    ResetSignal,
    Signal,
)
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out, connect

from ..model.plan import Plan
from ..model.registers import HYPER_REGISTERS, MAGIC, Command, ErrorBit, register_map
from .packet_reader import PacketReader
from .packet_writer import PacketWriter
from .parts.axi_lite import ADDRESS_WIDTH, AxiLite
from .pipeline.network import Network
from .probes import probe_table

__all__ = ["Board"]

_AXIL = {
    "awaddr": In(ADDRESS_WIDTH),
    "awvalid": In(1),
    "awready": Out(1),
    "wdata": In(32),
    "wstrb": In(4),
    "wvalid": In(1),
    "wready": Out(1),
    "bresp": Out(2),
    "bvalid": Out(1),
    "bready": In(1),
    "araddr": In(ADDRESS_WIDTH),
    "arvalid": In(1),
    "arready": Out(1),
    "rdata": Out(32),
    "rresp": Out(2),
    "rvalid": Out(1),
    "rready": In(1),
}


class Board(wiring.Component):
    """The whole accelerator behind AXI4-Lite registers and two AXI4-Streams.

    Plain ports: ``s_axil_*`` (registers, ``model/registers.py``), ``s_axis_*`` in and ``m_axis_*``
    out (packets), and with ``plan.probes`` a valid and a data port per probe (``rtl/probes.py``).
    The reset command empties every stream and clears the layers' counters; parameters stay in their
    memories.
    """

    def __init__(self, plan: Plan):
        self.plan = plan
        self.network = Network(plan)
        members = {f"s_axil_{name}": member for name, member in _AXIL.items()}
        for prefix, into in (("s", In), ("m", Out)):
            back = Out if into is In else In
            members[f"{prefix}_axis_tdata"] = into(32)
            members[f"{prefix}_axis_tlast"] = into(1)
            members[f"{prefix}_axis_tvalid"] = into(1)
            members[f"{prefix}_axis_tready"] = back(1)
        for n, probe in enumerate(probe_table(plan)):
            members[f"probe_{n}_valid"] = Out(1)
            members[f"probe_{n}_data"] = Out(probe.width * probe.lanes)
        super().__init__(members)

    def elaborate(self, platform):
        m = Module()
        restart = Signal()
        # One reset for everything that the reset command empties: a second one would cost every
        # register a second condition.
        m.domains.core = ClockDomain(local=True)
        m.d.comb += [
            ClockSignal("core").eq(ClockSignal("sync")),
            ResetSignal("core").eq(ResetSignal("sync") | restart),
        ]
        core = DomainRenamer("core")
        network, reader, writer = self.network, PacketReader(self.plan), PacketWriter(self.plan)
        m.submodules.network = core(network)
        m.submodules.reader = core(reader)
        m.submodules.writer = core(writer)
        connect(m, reader.o, network.i)
        connect(m, reader.target, network.target)
        connect(m, reader.load, network.load)
        connect(m, network.dump, writer.dump)
        connect(m, network.o, writer.i)
        m.d.comb += [
            reader.i.valid.eq(self.s_axis_tvalid),
            reader.i.payload.data.eq(self.s_axis_tdata),
            reader.i.payload.last.eq(self.s_axis_tlast),
            self.s_axis_tready.eq(reader.i.ready),
            self.m_axis_tvalid.eq(writer.o.valid),
            self.m_axis_tdata.eq(writer.o.payload.data),
            self.m_axis_tlast.eq(writer.o.payload.last),
            writer.o.ready.eq(self.m_axis_tready),
            network.layer.eq(reader.layer),
            network.host.eq(reader.host),
            network.start.eq(reader.start),
            network.dumping.eq(reader.dumping),
            network.select.eq(reader.select),
            writer.dumping.eq(reader.dumping),
            writer.select.eq(reader.select),
            writer.layer.eq(reader.layer),
            writer.dump_words.eq(reader.dump_words),
            reader.dump_done.eq(writer.dump_done),
            reader.training.eq(network.training),
            writer.training.eq(network.training),
        ]
        for n, _ in enumerate(probe_table(self.plan)):
            for side in ("valid", "data"):
                name = f"probe_{n}_{side}"
                source = getattr(network, name)
                m.d.comb += getattr(self, name).eq(source if side == "valid" else source.as_value())
        values, strobes = self._segment(m, reader, restart)
        self._registers(m, values, strobes)
        return m

    def _segment(self, m, reader, restart):
        """Mode, counters and error bits; returns the register values, and the strobes of writable
        registers.
        """
        network = self.network
        command, begin = Signal(2), Signal()
        strobe, written = Signal(), Signal(32)
        in_flight = Signal(32)
        cycles, cycles_high = Signal(64), Signal(32)
        samples, first_cycle, last_cycle = Signal(32), Signal(32), Signal(32)
        errors = Signal(len(ErrorBit))
        raised = Signal(len(ErrorBit))
        idle = Signal()
        m.d.comb += [
            idle.eq((in_flight == 0) & ~network.busy),
            begin.eq(strobe & ((written == Command.TRAIN) | (written == Command.INFER)) & idle),
            restart.eq(strobe & (written == Command.RESET)),
            network.training.eq(command == Command.TRAIN),
            network.reload.eq(begin),
            raised[ErrorBit.PACKET_KIND].eq(reader.bad_kind),
            raised[ErrorBit.PACKET_LENGTH].eq(reader.bad_length),
            raised[ErrorBit.LABEL].eq(network.bad_label),
            raised[ErrorBit.LAYER].eq(reader.bad_layer),
            raised[ErrorBit.BUSY].eq(strobe & (written != Command.RESET) & ~idle),
        ]
        m.d.sync += [
            errors.eq(errors | raised),
            cycles.eq(cycles + 1),
            in_flight.eq(in_flight + reader.sample - network.sample_done),
        ]
        with m.If(network.sample_done):
            m.d.sync += [samples.eq(samples + 1), last_cycle.eq(cycles)]
            with m.If(samples == 0):
                m.d.sync += first_cycle.eq(cycles)
        with m.If(begin):
            m.d.sync += [command.eq(written), errors.eq(0), cycles.eq(0), samples.eq(0)]
            m.d.sync += [first_cycle.eq(0), last_cycle.eq(0)]
        with m.If(restart):
            m.d.sync += [in_flight.eq(0), errors.eq(0)]
        values = {
            "magic": MAGIC,
            "command": command,
            "status": network.busy | strobe,
            "errors": errors,
            "samples": samples,
            "cycles": cycles[:32],
            "cycles_high": cycles_high,
            "first_cycle": first_cycle,
            "last_cycle": last_cycle,
            "loss.error.saturated": network.saturated.loss,
        }
        return values, {"command": (strobe, written), "cycles": (cycles_high, cycles[32:])}

    def _registers(self, m, values, strobes):
        """Serve the register map of the plan."""
        m.submodules.axil = axil = AxiLite()
        for name, member in _AXIL.items():
            ours, theirs = getattr(self, f"s_axil_{name}"), getattr(axil, name)
            m.d.comb += theirs.eq(ours) if member.flow is In else ours.eq(theirs)

        identity = int(self.plan.identity, 16)
        values |= {f"identity_{n}": identity >> (32 * n) & 0xFFFFFFFF for n in range(4)}
        network = self.network
        hyper = {
            name: Signal(network.hyper.shape()[name].shape, name=name)
            for name in HYPER_REGISTERS[1:]
        }
        batch = Signal(range(self.plan.batch_max + 1), init=1)
        m.d.comb += [network.hyper[name].eq(signal) for name, signal in hyper.items()]
        m.d.comb += network.batch.eq(batch)
        first_sample = Signal(32)
        m.d.comb += network.first_sample.eq(first_sample)
        writable = {"batch": batch, **hyper, "first_sample": first_sample}
        values |= writable
        for n, layer in enumerate(self.plan.layers):
            key = f"layer_{n}"
            if layer.trainable:
                values[f"{layer.name}.version"] = network.versions[key]
                for engine in layer.engines:
                    for event in network.counts[key][engine].shape():
                        values[f"{layer.name}.{engine}.{event[0]}"] = network.counts[key][engine][
                            event[0]
                        ]
            if key in dict(network.saturated.shape()):
                for tensor, _ in network.saturated[key].shape():
                    values[f"{layer.name}.{tensor}.saturated"] = network.saturated[key][tensor]

        strobe, written = strobes["command"]
        cycles_high, cycles_upper = strobes["cycles"]
        # A command acts a cycle after its write, so that no path runs from the bus to every layer.
        m.d.sync += [written.eq(axil.write_data), strobe.eq(0)]
        with m.Switch(axil.address):
            for register in register_map(self.plan):
                with m.Case(register.address):
                    with m.If(axil.read):
                        m.d.sync += axil.read_data.eq(values[register.name])
                    if register.name == "command":
                        m.d.sync += strobe.eq(axil.write)
                    elif register.access == "rw":
                        with m.If(axil.write):
                            m.d.sync += writable[register.name].eq(axil.write_data)
                    elif register.name == "cycles":
                        with m.If(axil.read):
                            m.d.sync += cycles_high.eq(cycles_upper)
            with m.Default():
                m.d.sync += axil.read_data.eq(0)
