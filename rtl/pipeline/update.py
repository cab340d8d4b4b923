"""Update: sweeps a layer's parameters once per mini-batch and hands out the new working weights.

Golden: ``model/pipeline/update.py``. Test: ``tests/pipeline/test_update.py``.
"""

from amaranth.hdl import Cat, EnableInserter, Module, Mux, Signal, signed
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from ...model.formats import Rounding
from ...model.plan import LayerPlan
from ...model.random import NOISE_BITS
from ..parts import lanes
from ..parts.align import look_up
from ..parts.delay import delay
from .parameter_store import ParameterStore
from .update_noise import UpdateNoise
from .update_rule import HYPER, UpdateRule

__all__ = ["Update"]

# From a chunk's address to its successors: memory, chunk register, then the rule.
READ_CYCLES = 2


class Update(wiring.Component):
    """Applies the gradient sums of a finished mini-batch: ``update_lanes`` parameters a cycle,
    weights first, then biases.

    A sweep takes ``sweep_cycles``. It reads each word of sums, clears it, and writes the new
    working weights a word at a time into the banks that ``Versions`` names. ``reload`` sweeps
    without a gradient: working weights from masters, all sums cleared.

    Members
    -------
    first_sample : In(32); batch : In, samples of a mini-batch; with stochastic rounding alone
    hyper : In(HYPER)
    go : In(1), a sweep may begin; reload : In(1), pulse; done : Out(1), pulse at the end of either;
        busy : Out(1)
    sums : the gradient engine's sweep side
    write_weights, write_bias : Out(1); write_word, write_block : Out; working : Out, a word; for a
        bias its top lanes
    weight_sum_valid, bias_sum_valid : Out(1), sums : Out, the chunk of gradient sums that enters
        the rule
    host, start, dumping, select, load, dump : the host's side of ``ParameterStore``
    clipped : Out, 32-bit counts of parameters clipped, for weight and bias; clear : In(1)
    """

    def __init__(
        self, layer: LayerPlan, sum_widths: tuple[int, int], rounding: Rounding, seed: int = 0
    ):
        self.layer = layer
        self.seed = seed
        self.by_chance = rounding is Rounding.STOCHASTIC
        self.weight_sum_width, self.bias_sum_width = sum_widths
        self.lanes = layer.update_lanes
        self.rules = [UpdateRule(layer, max(sum_widths), rounding) for _ in range(self.lanes)]
        self.word_chunks = layer.word_size // self.lanes
        self.block_chunks = max(1, layer.o_lanes // self.lanes) if layer.bias else 0
        self.parameters = ParameterStore(layer)
        word, block = range(max(2, layer.weight_words)), range(max(2, layer.o_blocks))
        super().__init__(
            {
                **({"first_sample": In(32), "batch": In(32)} if self.by_chance else {}),
                "hyper": In(HYPER),
                "go": In(1),
                "reload": In(1),
                "done": Out(1),
                "busy": Out(1),
                "sweep_word": Out(word),
                "sweep_block": Out(block),
                "sweep_clear_weight": Out(1),
                "sweep_clear_bias": Out(1),
                "sweep_all": Out(1),
                "weight_sums": In(lanes(self.weight_sum_width, layer.word_size)),
                "bias_sums": In(lanes(self.bias_sum_width, layer.o_lanes)),
                "write_weights": Out(1),
                "write_bias": Out(1),
                "write_word": Out(word),
                "write_block": Out(block),
                "working": Out(lanes(self.rules[0].working_width, layer.word_size)),
                "weight_sum_valid": Out(1),
                "bias_sum_valid": Out(1),
                "sums": Out(lanes(max(sum_widths), self.lanes)),
                "host": In(1),
                "start": In(1),
                "dumping": In(1),
                "select": In(1),
                "load": In(stream.Signature(32)),
                "dump": Out(stream.Signature(32)),
                "clipped_weight": Out(32),
                "clipped_bias": Out(32),
                "clear": In(1),
            }
        )

    @property
    def sweep_cycles(self) -> int:
        """Cycles from ``go`` to ``done``."""
        return self.layer.sweep_chunks + READ_CYCLES + UpdateRule.LATENCY + 2

    def elaborate(self, platform):
        m = Module()
        m.submodules.parameters = store = self.parameters
        connect(m, flipped(self.load), store.load)
        connect(m, store.dump, flipped(self.dump))
        m.d.comb += [
            store.host.eq(self.host),
            store.start.eq(self.start),
            store.dumping.eq(self.dumping),
            store.select.eq(self.select),
        ]
        flight = self._sequence(m)
        self._rule(m, flight)
        self._write_back(m, flight)
        return m

    def _sequence(self, m):
        """Step through all chunks; returns the marks of the chunk whose address is out."""
        running, reloading = Signal(), Signal()
        drawn = self._noise(m, running & ~reloading) if self.by_chance else 1
        in_bias = Signal()
        part = Signal(range(max(2, self.word_chunks, self.block_chunks)))
        chunk = Signal.like(self.parameters.address)
        last_part, last_word, last_block = Signal(), Signal(), Signal()
        m.d.comb += [
            last_part.eq(part == Mux(in_bias, max(1, self.block_chunks) - 1, self.word_chunks - 1)),
            last_word.eq(self.sweep_word == self.layer.weight_words - 1),
            last_block.eq(self.sweep_block == self.layer.o_blocks - 1),
            self.parameters.address.eq(chunk),
            self.sweep_clear_weight.eq(running & last_part & ~in_bias),
            self.sweep_clear_bias.eq(running & last_part & in_bias),
            self.sweep_all.eq(reloading),
        ]
        final = Signal()
        m.d.comb += final.eq(
            running & last_part & Mux(in_bias, last_block, last_word & (self.block_chunks == 0))
        )
        with m.If(running):
            m.d.sync += [chunk.eq(chunk + 1), part.eq(Mux(last_part, 0, part + 1))]
            with m.If(last_part):
                with m.If(in_bias):
                    m.d.sync += self.sweep_block.eq(self.sweep_block + 1)
                with m.Else():
                    m.d.sync += self.sweep_word.eq(self.sweep_word + 1)
                    m.d.sync += in_bias.eq(last_word)
            with m.If(final):
                m.d.sync += running.eq(0)
        with m.Elif(~self.busy & ((self.go & drawn) | self.reload)):
            m.d.sync += [running.eq(1), reloading.eq(self.reload), self.busy.eq(1)]
            m.d.sync += [
                chunk.eq(0),
                part.eq(0),
                in_bias.eq(0),
                self.sweep_word.eq(0),
                self.sweep_block.eq(0),
            ]
        with m.If(self.done):
            m.d.sync += self.busy.eq(0)
        m.d.comb += self.done.eq(
            delay(m, final, READ_CYCLES + UpdateRule.LATENCY + 2, "done", resets=True)
        )
        return {
            "valid": running,
            "is_bias": in_bias,
            "reload": reloading,
            "last_part": last_part & running,
            "part": part,
            "word": self.sweep_word,
            "block": self.sweep_block,
            "chunk": chunk,
        }

    def _noise(self, m, taken):
        """Draw noise for every chunk, as late as its values; whether there is some."""
        m.submodules.noise = noise = UpdateNoise(self.layer, self.seed)
        m.d.comb += [
            noise.clear.eq(self.reload),
            noise.first_sample.eq(self.first_sample),
            noise.batch.eq(self.batch),
            noise.o.ready.eq(taken),
        ]
        late = delay(m, noise.o.payload.as_value(), READ_CYCLES, "noise_late")
        for lane, rule in enumerate(self.rules):
            m.d.comb += rule.noise.eq(late.word_select(lane, 4 * NOISE_BITS))
        return noise.o.valid

    def _rule(self, m, flight):
        """Pick the chunk out of the words of sums, and run the rule on each lane."""
        part = delay(m, flight["part"], 1, "part_read")
        is_bias = delay(m, flight["is_bias"], 1, "is_bias_read")
        if self.layer.coarser_words:
            self._coarser(m, part)
        chunk = Signal(lanes(self.weight_sum_width, self.lanes))
        m.d.comb += chunk.as_value().eq(
            self.weight_sums.as_value().word_select(part, self.weight_sum_width * self.lanes)
        )
        bias_lanes = min(self.lanes, self.layer.o_lanes)
        bias_chunk = Signal(lanes(self.bias_sum_width, bias_lanes))
        m.d.comb += bias_chunk.as_value().eq(
            self.bias_sums.as_value().word_select(part, self.bias_sum_width * bias_lanes)
        )
        entering = delay(
            m, flight["valid"] & ~flight["reload"], READ_CYCLES, "entering", resets=True
        )
        entering_bias = delay(m, is_bias, 1, "entering_bias")
        m.d.comb += [
            self.weight_sum_valid.eq(entering & ~entering_bias),
            self.bias_sum_valid.eq(entering & entering_bias),
        ]
        for lane, rule in enumerate(self.rules):
            m.submodules[f"rule_{lane}"] = EnableInserter(self.busy)(rule)
            total = Signal(signed(rule.sum_width), name=f"sum_{lane}")
            weight = Signal(rule.weight.shape(), name=f"weight_{lane}")
            velocity = Signal(rule.velocity.shape(), name=f"velocity_{lane}")
            bias = bias_chunk[lane] if self.layer.bias and lane < bias_lanes else 0
            m.d.sync += [
                total.eq(Mux(is_bias, bias, chunk[lane])),
                weight.eq(self.parameters.weight[lane]),
                velocity.eq(self.parameters.velocity[lane]),
            ]
            m.d.comb += [
                rule.hyper.eq(self.hyper),
                rule.sum.eq(total),
                rule.weight.eq(weight),
                rule.velocity.eq(velocity),
                rule.is_bias.eq(entering_bias),
                self.sums[lane].eq(total),
                rule.reload.eq(flight["reload"]),
            ]

    def _coarser(self, m, part):
        """Each lane's channel's ``coarser``, with the chunk's values; ``part`` is a cycle late."""
        words, lanes = self.layer.coarser_words, self.lanes
        each = self.layer.weight_words // len(words)
        block, word = Signal(range(len(words))), Signal(range(max(2, each)))
        with m.If(~self.busy):
            m.d.sync += [block.eq(0), word.eq(0)]
        with m.Elif(self.sweep_clear_weight):
            m.d.sync += word.eq(word + 1)
            with m.If(word == each - 1):
                m.d.sync += [word.eq(0), block.eq(block + 1)]
        block = delay(m, block, 1, "block_read")
        for lane, rule in enumerate(self.rules):
            places = [(p * lanes + lane) // self.layer.b for p in range(self.word_chunks)]
            place = look_up(m, part, places, f"place_{lane}")
            table = [n for word in words for n in word]
            index = Signal(range(len(table)), name=f"channel_{lane}")
            m.d.comb += index.eq(block * self.layer.o_lanes + place)
            m.d.sync += rule.coarser.eq(look_up(m, index, table, f"coarser_{lane}"))

    def _write_back(self, m, flight):
        """Write masters and momenta chunk by chunk, working weights word by word."""
        late = {
            name: delay(
                m,
                mark,
                READ_CYCLES + UpdateRule.LATENCY,
                f"{name}_late",
                resets=name in ("valid", "last_part"),
            )
            for name, mark in flight.items()
        }
        store = self.parameters
        count = Signal(range(self.lanes + 1))
        m.d.comb += [
            store.write_enable.eq(late["valid"] & ~late["reload"]),
            store.write_address.eq(late["chunk"]),
            count.eq(sum(rule.clipped for rule in self.rules)),
        ]
        for lane, rule in enumerate(self.rules):
            m.d.comb += [
                store.write_weight[lane].eq(rule.next_weight),
                store.write_velocity[lane].eq(rule.next_velocity),
            ]
        counting = late["valid"] & ~late["reload"]
        for total, kind in (
            (self.clipped_weight, ~late["is_bias"]),
            (self.clipped_bias, late["is_bias"]),
        ):
            with m.If(self.clear):
                m.d.sync += total.eq(0)
            with m.Elif(counting & kind):
                m.d.sync += total.eq(total + count)

        # Chunks shift in from the top, so a whole word ends in order and a short one in the top
        # lanes.
        word = self.working.as_value()
        chunk = Cat(rule.working for rule in self.rules)
        with m.If(late["valid"]):
            m.d.sync += word.eq(Cat(word, chunk)[len(chunk) :])
        m.d.sync += [
            self.write_weights.eq(late["last_part"] & ~late["is_bias"]),
            self.write_bias.eq(late["last_part"] & late["is_bias"]),
            self.write_word.eq(late["word"]),
            self.write_block.eq(late["block"]),
        ]
