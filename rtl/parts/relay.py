"""What layers of one word out for each word in share: two pipelines, and a FIFO between them.

Golden: none (a layer's own). Test: ``tests/pipeline/test_activation.py``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from amaranth.hdl import C, Module, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from ...model.formats import Format, Rounding
from ...model.kinds import KINDS
from ...model.plan import LayerPlan
from ...model.registers import saturating_tensors
from ...model.relay import check_relay
from . import lanes
from .fifo import Fifo
from .requantize import Requantize

__all__ = ["Line", "Mapped", "Relay"]


class Line:
    """Registers of a pipeline that moves as a whole, in every cycle where ``advance`` is high."""

    def __init__(self, m: Module, name: str) -> None:
        self.m = m
        self.name = name
        self.advance = Signal(name=f"{name}_advance")

    def after(self, value: Value, name: str, *, cycles: int = 1, resets: bool = False) -> Signal:
        """Return ``value`` through ``cycles`` registers; control bits need those that reset."""
        for n in range(cycles):
            held = Signal(value.shape(), name=f"{self.name}_{name}_{n}", reset_less=not resets)
            with self.m.If(self.advance):
                self.m.d.sync += held.eq(value)
            value = held
        return value


@dataclass(frozen=True)
class Mapped:
    """What a word became after ``cycles`` cycles on its line: values of the result's format, or,
    where ``frac`` is their number of fraction bits, exact values to be rounded.
    """

    values: list[Any]
    cycles: int
    frac: int | None = None


class Relay(wiring.Component):
    """Base of layers that turn each word of features into one word, and so each word of errors.

    One word per cycle in both directions, ``latency`` cycles each; each stalls with its output.
    Where ``held`` is given, forward also stalls while ``buffers.index_words`` words wait for their
    errors, in training alone, and backward while none does. Reset drops everything on its way and
    zeroes the counters.

    A layer says what it does in ``map_feature``, ``hold`` and ``map_error``.

    Parameters
    ----------
    layer : LayerPlan whose pattern is ``relay``
    rounding : Rounding
    held : shape of what a word leaves behind for its error; None: nothing
    inputs : shapes of further inputs, by name

    Members
    -------
    i, o : streams of features, ``layer.lanes`` channels a word
    o_error, i_error : In, Out; streams of the errors of output and input, only where
        ``layer.backward``
    training : In(1), low: nothing is held, as no errors will come; changes only while drained
    clear : In(1), zeroes the counters
    saturated : Out, 32-bit clip counts by tensor, only where a tensor can saturate

    Raises
    ------
    PlanError
        What ``model/relay.py`` refuses.
    """

    def __init__(
        self,
        layer: LayerPlan,
        rounding: Rounding,
        *,
        held: Any = None,
        inputs: Mapping[str, Any] | None = None,
    ) -> None:
        check_relay(layer)
        self.layer = layer
        self.rounding = rounding
        self.held = held
        members = {
            "i": In(stream.Signature(lanes(layer.i_feature.width, layer.lanes))),
            "o": Out(stream.Signature(lanes(layer.o_feature.width, layer.lanes))),
            "training": In(1),
            "clear": In(1),
            **{name: In(shape) for name, shape in (inputs or {}).items()},
        }
        if layer.backward:
            members["o_error"] = In(stream.Signature(lanes(layer.o_error.width, layer.lanes)))
            members["i_error"] = Out(stream.Signature(lanes(layer.i_error.width, layer.lanes)))
        if tensors := saturating_tensors(layer):
            members["saturated"] = Out(data.StructLayout(dict.fromkeys(tensors, 32)))
        super().__init__(members)

    @property
    def interval(self) -> int:
        """Cycles per sample of either direction."""
        return self.layer.fp_interval

    @property
    def latency(self) -> int:
        """Cycles from a word in to the same word out, of either direction."""
        return KINDS[self.layer.kind].latency

    def supply(self, m: Module, taken: Signal) -> Value:
        """Say whether there is what a word of features needs beside itself, which is used up with
        ``taken``.
        """
        return C(1)

    def map_feature(self, m: Module, line: Line, values: list[Value], taken: Signal) -> Mapped:
        """Turn a word of features into results; ``taken`` says in which cycle it comes."""
        raise NotImplementedError

    def hold(self, m: Module, values: list[Value]) -> list[Any]:
        """Return, lane by lane, what a word of features leaves behind."""
        raise NotImplementedError

    def map_error(
        self, m: Module, line: Line, values: list[Value], taken: Signal, held: Any
    ) -> Mapped:
        """Turn a word of errors into results, with what its features left behind."""
        raise NotImplementedError

    def elaborate(self, platform: object) -> Module:
        m = Module()
        layer = self.layer
        room = present = 1
        waiting = None
        forward = Line(m, "forward")
        taken = Signal()
        supplied = self.supply(m, taken)
        features = self._values(self.i.payload)
        if layer.backward and self.held is not None:
            shape = data.ArrayLayout(self.held, layer.lanes)
            m.submodules.waiting = fifo = Fifo(shape, layer.buffers.index_words)
            room = fifo.i.ready | ~self.training
            wanted = self.i.valid & forward.advance & supplied
            m.d.comb += fifo.i.valid.eq(wanted & self.training)
            for n, value in enumerate(self.hold(m, features)):
                m.d.comb += fifo.i.payload[n].eq(value)
            present, waiting = fifo.o.valid, fifo.o.payload

        m.d.comb += [
            self.i.ready.eq(forward.advance & room & supplied),
            taken.eq(self.i.valid & self.i.ready),
        ]
        mapped = self.map_feature(m, forward, features, taken)
        self._finish(m, forward, taken, mapped, self.o, layer.o_feature, "o_feature")
        if not layer.backward:
            return m

        backward = Line(m, "backward")
        error_taken = Signal()
        m.d.comb += [
            self.o_error.ready.eq(backward.advance & present),
            error_taken.eq(self.o_error.valid & self.o_error.ready),
        ]
        if waiting is not None:
            m.d.comb += fifo.o.ready.eq(backward.advance & self.o_error.valid)
        errors = self._values(self.o_error.payload)
        mapped = self.map_error(m, backward, errors, error_taken, waiting)
        self._finish(m, backward, error_taken, mapped, self.i_error, layer.i_error, "i_error")
        return m

    def _values(self, payload: Any) -> list[Value]:
        return [payload[n] for n in range(self.layer.lanes)]

    def _finish(
        self,
        m: Module,
        line: Line,
        taken: Signal,
        mapped: Mapped,
        target: Any,
        fmt: Format,
        tensor: str,
    ) -> None:
        """Let ``line`` end at ``target``, after a rounding where there is one."""
        valid = line.after(taken, "valid", cycles=mapped.cycles, resets=True)
        source = target
        if mapped.frac is not None:
            requantize = Requantize(
                acc_width=max(len(value) for value in mapped.values),
                lanes=self.layer.lanes,
                shift=mapped.frac - fmt.frac,
                fmt=fmt,
                rounding=self.rounding,
            )
            m.submodules[f"requantize_{tensor}"] = requantize
            wiring.connect(m, requantize.o, wiring.flipped(target))
            m.d.comb += requantize.clear.eq(self.clear)
            if tensor in saturating_tensors(self.layer):
                m.d.comb += self.saturated[tensor].eq(requantize.clipped)
            source = requantize.i
        m.d.comb += [line.advance.eq(~valid | source.ready), source.valid.eq(valid)]
        for n, value in enumerate(mapped.values):
            m.d.comb += source.payload[n].eq(value)
