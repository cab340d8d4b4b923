"""What an engine did with a cycle, as the counters of ``model/registers.py`` name it.

Test: ``tests/test_registers.py`` (names), ``tests/pipeline/test_conv.py`` (meaning).
"""

from amaranth.hdl import Module, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from ...model.registers import ENGINE_COUNTERS

__all__ = ["ENGINE_EVENTS", "EventCounters"]

ENGINE_EVENTS = data.StructLayout(dict.fromkeys(ENGINE_COUNTERS, 1))


class EventCounters(wiring.Component):
    """Counts each event's cycles in 32 bits, wrapping; ``clear`` sets all to zero.

    Members
    -------
    events : In(ENGINE_EVENTS); clear : In(1); counts : Out, one 32-bit field per event, one cycle
        late
    """

    def __init__(self):
        super().__init__(
            {
                "events": In(ENGINE_EVENTS),
                "clear": In(1),
                "counts": Out(data.StructLayout(dict.fromkeys(ENGINE_COUNTERS, 32))),
            }
        )

    def elaborate(self, platform):
        m = Module()
        for name in ENGINE_COUNTERS:
            count = Signal(32, name=name)
            with m.If(self.clear):
                m.d.sync += count.eq(0)
            with m.Elif(self.events[name]):
                m.d.sync += count.eq(count + 1)
            m.d.comb += self.counts[name].eq(count)
        return m
