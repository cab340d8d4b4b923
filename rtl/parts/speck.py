"""Speck: the cipher behind all random bits, a block a cycle, under constant keys.

Golden: ``model/random.py``. Test: ``tests/parts/test_speck.py``.
"""

from amaranth.hdl import Module, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from .relay import Line

__all__ = ["WORDS", "Speck"]

WORDS = data.StructLayout({"high": 32, "low": 32})


class Speck(wiring.Component):
    """Encrypts the blocks of every lane with SPECK64.

    Latency is a cycle a round, one transfer per cycle; all rounds stall with the output once a
    block waits there. Reset drops every block on its way.

    Parameters
    ----------
    keys : the round keys, 32 bits each; ``round_keys`` gives those of a random stream
    lanes : int, blocks per transfer

    Members
    -------
    i, o : streams of ``lanes`` plain blocks and of their cipher blocks
    """

    def __init__(self, keys: tuple[int, ...], *, lanes: int = 1) -> None:
        self.keys = keys
        self.lanes = lanes
        blocks = data.ArrayLayout(WORDS, lanes)
        super().__init__({"i": In(stream.Signature(blocks)), "o": Out(stream.Signature(blocks))})

    @property
    def latency(self) -> int:
        """Cycles from a transfer in to the same transfer out, without stalls."""
        return len(self.keys)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        line = Line(m, "round")
        valid = line.after(self.i.valid, "valid", cycles=self.latency, resets=True)
        m.d.comb += [
            line.advance.eq(~valid | self.o.ready),
            self.i.ready.eq(line.advance),
            self.o.valid.eq(valid),
        ]
        for n in range(self.lanes):
            high, low = self.i.payload[n].high, self.i.payload[n].low
            for k, key in enumerate(self.keys):
                high, low = _round(high, low, key)
                high = line.after(high, f"high_{n}_{k}")
                low = line.after(low, f"low_{n}_{k}")
            m.d.comb += [self.o.payload[n].high.eq(high), self.o.payload[n].low.eq(low)]
        return m


def _round(high: Value, low: Value, key: int) -> tuple[Value, Value]:
    high = (high.rotate_right(8) + low)[:32] ^ key
    return high, low.rotate_left(3) ^ high
