"""Conv: a convolution that trains, its three engines, weights, versions and update in one block.

Golden: ``model/pipeline/conv.py``. Test: ``tests/pipeline/test_conv.py``.
"""

import math

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from ...model.formats import Rounding
from ...model.padding import channel_words
from ...model.plan import LayerPlan
from ...model.random import NOISE_HALF, tensor_number
from ...model.registers import saturating_tensors
from ..parts import lanes
from ..parts.delay import delay
from ..parts.events import EventCounters
from ..parts.fork import Fork
from ..parts.noise import SampleNoise
from ..parts.unfold import Unfold
from .gradient_engine import GradientEngine
from .sum_engine import SumEngine
from .update import Update
from .update_rule import HYPER
from .versions import Versions
from .weight_address import ADDRESS_LATENCY, weight_address

__all__ = ["Conv"]


class Conv(wiring.Component):
    """A trainable layer: FP answers ``i`` with ``o``; EB answers ``o_error`` with ``i_error``; WG
    and the update learn from both.

    Interval: ``LayerPlan.fp_interval`` (FP and WG) and ``eb_interval`` cycles per sample, all at
    once on different samples. Any stream may stall at any time. Between samples, in inference
    (``training`` low), nothing is kept for WG. A pulse on ``reload`` starts a segment: version 0
    from the master weights; ``busy`` is high from the next cycle until it is in place.
    With ``LayerPlan.unfold`` the kernel's columns become channels first, for both engines
    (``rtl/parts/unfold.py``).

    Parameters
    ----------
    layer : LayerPlan; batch_max : int, samples; rounding : Rounding
    seed : int, of the noise of stochastic rounding

    Members
    -------
    i, o, o_error, i_error : streams; ``i_error`` only where ``layer.backward``
    first_sample : In(32), with stochastic rounding alone: number of the sample behind a reload
    batch : In; hyper : In(HYPER); training, reload : In(1); busy : Out(1); version : Out(32)
    host, start, dumping, select, load, dump : the host's door to the parameters, see
        ``ParameterStore``
    counts : Out, event counts by engine; saturated : Out, clip counts by tensor
    weight_valid, bias_valid : Out(1), working : Out, a word of new working weights or biases, for
        probes
    weight_sum_valid, bias_sum_valid : Out(1), sums : Out, a chunk of gradient sums, for probes
    """

    def __init__(self, layer: LayerPlan, *, batch_max: int, rounding: Rounding, seed: int = 0):
        self.layer = layer
        self.seed = seed
        self.by_chance = rounding is Rounding.STOCHASTIC
        self.hardware = layer.hardware
        self.batch_max = batch_max
        self.rounding = rounding
        self.counters = {engine: EventCounters() for engine in layer.engines}
        self.gradient = GradientEngine(self.hardware, batch_max)
        self.update = Update(
            self.hardware, (self.gradient.weight_width, self.gradient.bias_width), rounding, seed
        )
        members = {
            **({"first_sample": In(32)} if self.by_chance else {}),
            "i": In(stream.Signature(lanes(layer.i_feature.width, layer.i_lanes))),
            "o": Out(stream.Signature(lanes(layer.o_feature.width, layer.o_lanes))),
            "o_error": In(stream.Signature(lanes(layer.o_error.width, layer.o_lanes))),
            "batch": In(range(batch_max + 1)),
            "hyper": In(HYPER),
            "training": In(1),
            "reload": In(1),
            "busy": Out(1),
            "version": Out(32),
            "host": In(1),
            "start": In(1),
            "dumping": In(1),
            "select": In(1),
            "load": In(stream.Signature(32)),
            "dump": Out(stream.Signature(32)),
            "counts": Out(
                data.StructLayout({e: self.counters[e].counts.shape() for e in layer.engines})
            ),
            "saturated": Out(data.StructLayout(dict.fromkeys(saturating_tensors(layer), 32))),
            "weight_valid": Out(1),
            "bias_valid": Out(1),
            "working": Out(self.update.working.shape()),
            "weight_sum_valid": Out(1),
            "bias_sum_valid": Out(1),
            "sums": Out(self.update.sums.shape()),
        }
        if layer.backward:
            members["i_error"] = Out(stream.Signature(lanes(layer.i_error.width, layer.i_lanes)))
        super().__init__(members)

    def elaborate(self, platform):
        m = Module()
        layer = self.hardware
        m.submodules.gradient = gradient = self.gradient
        m.submodules.update = self.update
        m.submodules.versions = versions = Versions(layer, self.batch_max)
        m.submodules.fp = fp = self._forward()
        m.submodules.i_fork = i_fork = Fork(lanes(layer.i_feature.width, layer.i_lanes), 2)
        if self.layer.unfold:
            m.submodules.unfold = unfold = Unfold(
                layer.i_feature.width, self.layer.i_lanes, layer.b, self.layer.unfolding
            )
            connect(m, flipped(self.i), unfold.i)
            connect(m, unfold.o, i_fork.i)
        else:
            connect(m, flipped(self.i), i_fork.i)
        connect(m, i_fork.o[0], fp.i)
        connect(m, i_fork.o[1], gradient.i)
        connect(m, fp.o, flipped(self.o))
        m.d.comb += [
            i_fork.enable.eq(1 | self.training << 1),
            fp.go.eq(versions.fp_go),
            fp.weights.eq(
                self._weights(
                    m, "fp", fp.beat, versions.fp_base, versions.fp_write_base, layer.fp_banks
                )
            ),
            self.saturated.o_feature.eq(fp.clipped),
            versions.fp_done.eq(fp.sample_done),
        ]
        if layer.bias:
            m.d.comb += fp.bias.eq(self._biases(m, fp.beat, versions))
        if self.by_chance:
            self._noise(m, fp, "o_feature", layer.o_shape, layer.o_layout)
        engines = {"fp": fp, "wg": gradient}

        if layer.backward:
            m.submodules.eb = engines["eb"] = eb = self._backward()
            m.submodules.error_fork = error_fork = Fork(self.o_error.payload.shape(), 2)
            connect(m, flipped(self.o_error), error_fork.i)
            connect(m, error_fork.o[0], gradient.o_error)
            connect(m, error_fork.o[1], eb.i)
            connect(m, eb.o, flipped(self.i_error))
            base, write_base = versions.eb_base, versions.eb_write_base
            m.d.comb += [
                eb.go.eq(versions.eb_go),
                eb.weights.eq(self._weights(m, "eb", eb.beat, base, write_base, layer.eb_banks)),
                self.saturated.i_error.eq(eb.clipped),
                versions.eb_done.eq(eb.sample_done),
            ]
            if self.by_chance:
                self._noise(m, eb, "i_error", layer.i_shape, layer.i_layout)
        else:
            connect(m, flipped(self.o_error), gradient.o_error)

        self._control(m, versions)
        for name, engine in engines.items():
            m.submodules[f"{name}_counters"] = counters = self.counters[name]
            m.d.comb += [
                counters.events.eq(engine.events),
                counters.clear.eq(self.reload),
                self.counts[name].eq(counters.counts),
            ]
            if name != "wg":
                m.d.comb += engine.clear.eq(self.reload)
        return m

    def _noise(self, m, engine, tensor, shape, layout):
        """Noise for the results of an engine; in inference, where nothing is drawn, one half."""
        source = SampleNoise(
            seed=self.seed,
            tensor=tensor_number(f"{self.layer.name}.{tensor}"),
            pixels=math.prod(shape[1:]),
            words=channel_words(shape[0], layout),
        )
        m.submodules[f"noise_{tensor}"] = source
        m.d.comb += [
            source.enable.eq(self.training),
            source.clear.eq(self.reload),
            source.first_sample.eq(self.first_sample),
            source.o.ready.eq(engine.noise.ready),
            engine.noise.valid.eq(source.o.valid | ~self.training),
        ]
        m.d.comb += [
            engine.noise.payload[n].eq(Mux(self.training, source.o.payload[n], NOISE_HALF))
            for n in range(engine.o_lanes)
        ]

    def _control(self, m, versions):
        """Join versions, gradient sums and update."""
        gradient, update = self.gradient, self.update
        m.d.comb += [
            versions.batch.eq(self.batch),
            versions.training.eq(self.training),
            versions.clear.eq(self.reload),
            versions.wg_done.eq(gradient.sample_done),
            versions.sweep_done.eq(update.done & ~update.sweep_all),
            self.version.eq(versions.version),
            gradient.go.eq(versions.wg_go),
            gradient.bank.eq(versions.wg_bank),
            gradient.sweep_bank.eq(versions.sweep_bank),
            gradient.sweep_word.eq(update.sweep_word),
            gradient.sweep_block.eq(update.sweep_block),
            gradient.sweep_clear_weight.eq(update.sweep_clear_weight),
            gradient.sweep_clear_bias.eq(update.sweep_clear_bias),
            gradient.sweep_all.eq(update.sweep_all),
            update.weight_sums.eq(gradient.weight_sums),
            update.bias_sums.eq(gradient.bias_sums),
            update.hyper.eq(self.hyper),
            update.go.eq(versions.sweep_go),
            update.reload.eq(self.reload),
            *(
                [update.first_sample.eq(self.first_sample), update.batch.eq(self.batch)]
                if self.by_chance
                else []
            ),
            update.clear.eq(self.reload),
            update.host.eq(self.host),
            update.start.eq(self.start),
            update.dumping.eq(self.dumping),
            update.select.eq(self.select),
            self.busy.eq(update.busy | ~versions.drained),
            self.saturated.weight.eq(update.clipped_weight),
            self.weight_valid.eq(update.write_weights & ~update.sweep_all),
            self.bias_valid.eq(update.write_bias & ~update.sweep_all),
            self.working.eq(update.working),
            self.weight_sum_valid.eq(update.weight_sum_valid),
            self.bias_sum_valid.eq(update.bias_sum_valid),
            self.sums.eq(update.sums),
        ]
        if self.layer.bias:
            m.d.comb += self.saturated.bias.eq(update.clipped_bias)
        connect(m, flipped(self.load), update.load)
        connect(m, update.dump, flipped(self.dump))

    def _forward(self):
        layer = self.hardware
        rows, cols = layer.fp_walks
        weight = layer.weight.working
        acc_frac = weight.frac + layer.i_feature.frac
        bias = layer.bias.working if layer.bias else None
        return SumEngine(
            rows=rows,
            cols=cols,
            outer=layer.o_blocks,
            inner=layer.fp_inner,
            groups=layer.group_passes,
            i_lanes=layer.i_lanes,
            o_lanes=layer.o_lanes,
            group_lanes=layer.group_lanes,
            transposed=False,
            i_width=layer.i_feature.width,
            weight_width=weight.width,
            acc_width=layer.fp_acc_width,
            acc_frac=acc_frac,
            o_format=layer.o_feature,
            rounding=self.rounding,
            depth=layer.buffers.fp_rows,
            bias_width=bias.width if bias else 0,
            bias_shift=acc_frac - bias.frac if bias else 0,
            o_shifts=layer.coarser_words,
        )

    def _backward(self):
        layer = self.layer
        rows, cols = layer.eb_walks
        weight = layer.weight.working
        return SumEngine(
            rows=rows,
            cols=cols,
            outer=layer.i_blocks,
            inner=layer.eb_inner,
            groups=layer.group_passes,
            i_lanes=layer.o_lanes,
            o_lanes=layer.i_lanes,
            group_lanes=layer.group_lanes,
            transposed=True,
            i_width=layer.o_error.width,
            weight_width=weight.width,
            acc_width=layer.eb_acc_width,
            acc_frac=weight.frac + layer.o_error.frac,
            i_shifts=layer.coarser_words,
            o_format=layer.i_error,
            rounding=self.rounding,
            depth=layer.buffers.eb_rows,
        )

    def _weights(self, m, name, beat, base, write_base, banks):
        """A copy of the working weights, read for ``beat`` from the bank at ``base``."""
        layer = self.hardware
        shape = lanes(layer.weight.working.width, layer.word_size)
        m.submodules[f"{name}_weights"] = store = memory.Memory(
            shape=shape, depth=max(2, banks * layer.weight_words), init=[]
        )
        read, write = store.read_port(), store.write_port()
        address = weight_address(
            m, beat, layer, base=base, banks=banks, transposed=name == "eb", name=name
        )
        m.d.comb += [
            read.addr.eq(address),
            write.en.eq(self.update.write_weights),
            write.addr.eq(Mux(self.update.sweep_all, 0, write_base) + self.update.write_word),
        ]
        m.d.comb += [write.data[n].eq(self.update.working[n]) for n in range(layer.word_size)]
        return read.data

    def _biases(self, m, beat, versions):
        layer = self.layer
        shape = lanes(layer.bias.working.width, layer.o_lanes)
        m.submodules.biases = store = memory.Memory(
            shape=shape, depth=max(2, layer.fp_banks * layer.o_blocks), init=[]
        )
        read, write = store.read_port(), store.write_port()
        address = Signal.like(read.addr, name="bias_address")
        m.d.sync += address.eq(versions.fp_bias_base + beat.outer)
        m.d.comb += [
            read.addr.eq(delay(m, address, ADDRESS_LATENCY - 1, "bias_address")),
            write.en.eq(self.update.write_bias),
            write.addr.eq(
                Mux(self.update.sweep_all, 0, versions.bias_write_base) + self.update.write_block
            ),
        ]
        # A bias word is short: the update leaves it in the top lanes, or, with more update lanes
        # than biases, in the last chunk's first.
        first = layer.word_size - max(layer.o_lanes, layer.update_lanes)
        m.d.comb += [write.data[n].eq(self.update.working[first + n]) for n in range(layer.o_lanes)]
        return read.data
