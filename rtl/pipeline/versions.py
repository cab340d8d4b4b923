"""Versions: which weights an engine may use, and when an update may replace them.

Golden: ``model/versions.py``. Test: ``tests/pipeline/test_versions.py``.
"""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from ...model.plan import LayerPlan
from ..parts.delay import delay

__all__ = ["Versions"]

# A gradient sum is in memory this many cycles after the beat that completes it.
SETTLE_CYCLES = 8


class Versions(wiring.Component):
    """Counts mini-batches and versions of one layer and says which engine may begin its next
    sample.

    FP may begin mini-batch k once version k - delay exists, EB once version k - back_delay exists,
    WG once a gradient bank is free; the sweep that makes version v + 1 may begin once WG and EB
    have finished mini-batch v. Inference leaves all counts alone. ``clear`` starts a segment:
    mini-batch 0, version 0 in bank 0.

    Parameters
    ----------
    layer : LayerPlan
    batch_max : int, samples

    Members
    -------
    batch : In, samples per mini-batch; training, clear : In(1)
    fp_done, eb_done, wg_done : In(1), an engine issues the last beat of a sample
    sweep_done : In(1), a new version is complete
    fp_go, eb_go, wg_go, sweep_go : Out(1)
    fp_base, eb_base : Out, first word of the bank to read; fp_bias_base : Out
    wg_bank, sweep_bank : Out, gradient banks
    fp_write_base, eb_write_base, bias_write_base : Out, first word of the bank that the next
        version goes to
    drained : Out(1), every sample that FP has begun is part of a finished version
    version : Out(32), versions finished
    """

    def __init__(self, layer: LayerPlan, batch_max: int):
        self.layer = layer
        self.batch_max = batch_max
        words, blocks = layer.weight_words, layer.o_blocks
        fp, eb = range(max(2, layer.fp_banks * words)), range(max(2, layer.eb_banks * words))
        bias = range(max(2, layer.fp_banks * blocks))
        bank = range(max(2, layer.gradient_banks))
        super().__init__(
            {
                "batch": In(range(batch_max + 1)),
                "training": In(1),
                "clear": In(1),
                "fp_done": In(1),
                "eb_done": In(1),
                "wg_done": In(1),
                "sweep_done": In(1),
                "fp_go": Out(1),
                "eb_go": Out(1),
                "wg_go": Out(1),
                "sweep_go": Out(1),
                "fp_base": Out(fp),
                "fp_bias_base": Out(bias),
                "eb_base": Out(eb),
                "wg_bank": Out(bank),
                "sweep_bank": Out(bank),
                "fp_write_base": Out(fp),
                "bias_write_base": Out(bias),
                "eb_write_base": Out(eb),
                "drained": Out(1),
                "version": Out(32),
            }
        )

    def elaborate(self, platform):
        m = Module()
        layer = self.layer
        self._state = []
        words, blocks = layer.weight_words, layer.o_blocks
        swept = self.sweep_done
        with m.If(swept):
            m.d.sync += self.version.eq(self.version + 1)

        fp_end, fp_sample = self._batch_end(m, self.fp_done, "fp")
        wg_end, _ = self._batch_end(m, self.wg_done, "wg")
        fp_credit = self._credit(m, self.fp_go, fp_end, swept, layer.fp_banks, "fp")
        m.d.comb += self.drained.eq((fp_sample == 0) & (fp_credit == layer.fp_banks))
        self._credit(m, self.wg_go, wg_end, swept, layer.gradient_banks, "wg")
        fp_step = self._reading(m, fp_end, layer.delay, "fp")
        self._ring(
            m, fp_step, [(self.fp_base, words), (self.fp_bias_base, blocks)], layer.fp_banks, 0
        )
        self._ring(
            m,
            swept,
            [(self.fp_write_base, words), (self.bias_write_base, blocks)],
            layer.fp_banks,
            1,
        )
        self._ring(m, wg_end, [(self.wg_bank, 1)], layer.gradient_banks, 0)
        self._ring(m, swept, [(self.sweep_bank, 1)], layer.gradient_banks, 0)

        finished = [self._finished(m, wg_end, layer.gradient_banks, "wg")]
        if layer.backward:
            eb_end, _ = self._batch_end(m, self.eb_done, "eb")
            self._credit(m, self.eb_go, eb_end, swept, layer.eb_banks, "eb")
            eb_step = self._reading(m, eb_end, layer.back_delay, "eb")
            self._ring(m, eb_step, [(self.eb_base, words)], layer.eb_banks, 0)
            self._ring(m, swept, [(self.eb_write_base, words)], layer.eb_banks, 1)
            finished.append(self._finished(m, eb_end, layer.eb_banks, "eb"))
        m.d.comb += self.sweep_go.eq(
            finished[0] if len(finished) == 1 else finished[0] & finished[1]
        )

        with m.If(self.clear):
            m.d.sync += [signal.eq(signal.init) for signal in self._state] + [self.version.eq(0)]
        return m

    def _new(self, shape, name, init=0):
        signal = Signal(shape, name=name, init=init)
        self._state.append(signal)
        return signal

    def _batch_end(self, m, done, name):
        """High with the ``done`` of a mini-batch's last sample; and the sample's number in it."""
        sample = self._new(range(self.batch_max), f"{name}_sample")
        end = Signal(name=f"{name}_batch_end")
        last = sample + 1 >= self.batch
        m.d.comb += end.eq(done & self.training & last)
        with m.If(done & self.training):
            m.d.sync += sample.eq(Mux(last, 0, sample + 1))
        return end, sample

    def _credit(self, m, go, end, swept, ahead, name):
        """An engine may be ``ahead`` mini-batches of the finished versions, the present one
        included.
        """
        credit = self._new(range(ahead + 1), f"{name}_credit", init=ahead)
        m.d.comb += go.eq(credit != 0)
        with m.If(end != swept):
            m.d.sync += credit.eq(Mux(end, credit - 1, credit + 1))
        return credit

    def _finished(self, m, end, ahead, name):
        """High while a finished mini-batch waits for its sweep."""
        settled = delay(m, end, SETTLE_CYCLES, f"{name}_settled", resets=True)
        waiting = self._new(range(ahead + 2), f"{name}_waiting")
        with m.If(settled != self.sweep_done):
            m.d.sync += waiting.eq(Mux(settled, waiting + 1, waiting - 1))
        return waiting != 0

    def _reading(self, m, end, lag, name):
        """High when the next mini-batch reads a newer version than the present one: not for the
        first ``lag``.
        """
        if not lag:
            return end
        age = self._new(range(lag + 1), f"{name}_age")
        with m.If(end & (age != lag)):
            m.d.sync += age.eq(age + 1)
        return end & (age == lag)

    def _ring(self, m, step, pointers, banks, first):
        """Pointers that move on by their stride with ``step``, around ``banks``."""
        for pointer, stride in pointers:
            pointer_init = (first % banks) * stride
            last = (banks - 1) * stride
            with m.If(step):
                m.d.sync += pointer.eq(Mux(pointer == last, 0, pointer + stride))
            with m.If(self.clear):
                m.d.sync += pointer.eq(pointer_init)
