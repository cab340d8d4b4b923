"""UpdateRule: one lane of stochastic gradient descent with momentum, Nesterov's step and weight
decay.

Golden: ``model/pipeline/update.py``. Test: ``tests/pipeline/test_update.py``.
"""

from amaranth.hdl import Module, Mux, Signal, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from ...model.errors import PlanError
from ...model.formats import Rounding
from ...model.plan import LayerPlan
from ...model.random import NOISE_BITS, UPDATE_FIELDS
from ..parts.delay import delay
from ..parts.requantize import requantize, requantize_dynamic, saturate

__all__ = ["HYPER", "UpdateRule"]

HYPER = data.StructLayout(
    {
        "lr_mantissa": 16,
        "lr_shift": 6,
        "momentum": 16,
        "nesterov": 1,
        "decay_mantissa": 16,
        "decay_shift": 6,
    }
)
NOISE = data.StructLayout(dict.fromkeys(UPDATE_FIELDS, NOISE_BITS))
MAX_SHIFT = 63


class UpdateRule(wiring.Component):
    """Maps (gradient sum, master weight, momentum) to their successors, as ``docs/architecture.md``
    defines the update.

    A parameter per cycle, latency ``LATENCY`` cycles, never stalls. No path holds more than one
    multiplier or one shifter.

    Parameters
    ----------
    layer : LayerPlan, its formats; weight and bias must agree in the widths of master and gradient
    sum_width : int, bits
    rounding : Rounding

    Members
    -------
    noise : In(4 fields), as in ``model/noise.py``; with stochastic rounding alone
    coarser : In, by how many bits the working weight's fraction is shorter than ``working``'s; with
        channels of different fractions alone
    hyper : In(HYPER), constant while parameters are in flight
    sum, is_bias, reload, weight, velocity : In; ``reload`` passes the weight on unchanged
    next_weight, next_velocity, working, clipped : Out, ``LATENCY`` cycles later
    """

    LATENCY = 11

    def __init__(self, layer: LayerPlan, sum_width: int, rounding: Rounding):
        self.layer = layer
        self.sum_width = sum_width
        self.rounding = rounding
        weight, bias = layer.weight, layer.bias or layer.weight
        widths = [(p.master.width, p.gradient.width) for p in (weight, bias)]
        if widths[0] != widths[1]:
            raise PlanError(
                f"{layer.name}: weight and bias must have equal widths of (master, gradient), "
                f"not {widths[0]} and {widths[1]}"
            )
        self.kinds = (weight, bias)
        self.master, self.gradient = weight.master, weight.gradient
        self.working_width = max(p.working.width for p in self.kinds)
        self.by_chance = rounding is Rounding.STOCHASTIC
        super().__init__(
            {
                **({"noise": In(NOISE)} if self.by_chance else {}),
                **({"coarser": In(range(weight.spread + 1))} if weight.spread else {}),
                "hyper": In(HYPER),
                "sum": In(signed(sum_width)),
                "is_bias": In(1),
                "reload": In(1),
                "weight": In(signed(self.master.width)),
                "velocity": In(signed(self.gradient.width)),
                "next_weight": Out(signed(self.master.width)),
                "next_velocity": Out(signed(self.gradient.width)),
                "working": Out(signed(self.working_width)),
                "clipped": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        hyper, gradient, master = self.hyper, self.gradient, self.master
        self._clips = {}

        # Each stage ends in a register; the number is the stage after which the value is there.
        sum_fracs = [self.layer.o_error.frac + self.layer.i_feature.frac, self.layer.o_error.frac]
        shifts = [
            frac - kind.gradient.frac for frac, kind in zip(sum_fracs, self.kinds, strict=True)
        ]
        g = self._by_kind(
            m,
            self.sum,
            shifts,
            [kind.gradient for kind in self.kinds],
            self.is_bias,
            "g",
            1,
            self.rounding,
            self._noise(m, "gradient", 0),
        )
        carry_product = self._product(m, hyper.momentum, self.velocity, "carry_product")
        decay_product = self._product(m, hyper.decay_mantissa, self.weight, "decay_product")
        carry = self._stage(
            m,
            requantize(
                m,
                carry_product,
                16,
                gradient,
                self.rounding,
                name="carry_rq",
                noise=self._noise(m, "momentum", 1),
            ),
            "carry",
            2,
        )
        is_bias = delay(m, self.is_bias, 1, "decay_kind")
        offsets = [kind.master.frac - kind.gradient.frac for kind in self.kinds]
        decay = self._run_time(
            m,
            decay_product,
            hyper.decay_shift,
            offsets,
            is_bias,
            gradient,
            "decay",
            2,
            self._noise(m, "decay", 1),
        )
        g = delay(m, g, 1, "g_late")
        d = self._stage(m, saturate(m, g + decay, gradient, name="d_sat"), "d", 3)
        carry = delay(m, carry, 1, "carry_late")
        velocity = self._stage(
            m, saturate(m, carry + d, gradient, name="velocity_sat"), "velocity_next", 4
        )
        d = delay(m, d, 3, "d_late")
        ahead_product = self._product(m, hyper.momentum, velocity, "ahead_product")
        ahead = self._stage(
            m,
            requantize(
                m,
                ahead_product,
                16,
                gradient,
                self.rounding,
                name="ahead_rq",
                noise=self._noise(m, "momentum", 5),
            ),
            "ahead",
            6,
        )
        nesterov, nesterov_clipped = saturate(m, d + ahead, gradient, name="nesterov_sat")
        plain = delay(m, velocity, 2, "plain")
        chosen = Mux(hyper.nesterov, nesterov, plain), nesterov_clipped & hyper.nesterov
        step = self._stage(m, chosen, "step", 7, shape=signed(gradient.width))
        delta_product = self._product(m, hyper.lr_mantissa, step, "delta_product")
        is_bias = delay(m, is_bias, 7, "delta_kind")
        offsets = [-offset for offset in offsets]
        delta = self._run_time(
            m,
            delta_product,
            hyper.lr_shift,
            offsets,
            is_bias,
            master,
            "delta",
            9,
            self._noise(m, "delta", 8),
        )
        weight = delay(m, self.weight, 9, "weight_late")
        reload = delay(m, self.reload, 9, "reload_late")
        moved, moved_clipped = saturate(m, weight - delta, master, name="weight_sat")
        chosen = Mux(reload, weight, moved), moved_clipped
        weight = self._stage(m, chosen, "weight_next", 10, shape=signed(master.width))
        is_bias = delay(m, is_bias, 2, "working_kind")
        shifts = [kind.master.frac - kind.working.frac for kind in self.kinds]
        if self.kinds[0].spread:
            working = self._by_channel(m, weight, shifts, is_bias)
        else:
            working = self._by_kind(
                m,
                weight,
                shifts,
                [kind.working for kind in self.kinds],
                is_bias,
                "working",
                11,
                self.rounding.settled,
            )

        clips = [
            delay(m, clip, self.LATENCY - stage, f"{name}_clip")
            for name, (clip, stage) in self._clips.items()
        ]
        clipped = clips[0]
        for clip in clips[1:]:
            clipped = clipped | clip
        m.d.comb += [
            self.next_weight.eq(delay(m, weight, 1, "next_weight")),
            self.next_velocity.eq(delay(m, velocity, 7, "next_velocity")),
            self.working.eq(working),
            self.clipped.eq(clipped),
        ]
        return m

    def _noise(self, m, field, cycles):
        """A field of the parameter's noise, ``cycles`` late; None where nothing is by chance."""
        if not self.by_chance:
            return None
        return delay(m, self.noise[field], cycles, f"{field}_noise_{cycles}")

    def _stage(self, m, value_clipped, name, stage, shape=None):
        """Register a (value, clipped) pair; remember the clip bit."""
        value, clipped = value_clipped
        held = Signal(shape or value.shape(), name=name, reset_less=True)
        clip = Signal(name=f"{name}_clipped", reset_less=True)
        m.d.sync += [held.eq(value), clip.eq(clipped)]
        self._clips[name] = clip, stage
        return held

    def _product(self, m, factor, value, name):
        product = Signal(signed(len(factor) + len(value) + 1), name=name, reset_less=True)
        m.d.sync += product.eq(factor * value)
        return product

    def _by_kind(self, m, value, shifts, formats, is_bias, name, stage, rounding, noise=None):
        """Requantise with the weight's or the bias's constants."""
        shape = signed(max(fmt.width for fmt in formats))
        pairs = [
            requantize(m, value, shift, fmt, rounding, name=f"{name}_{n}", noise=noise)
            for n, (shift, fmt) in enumerate(zip(shifts, formats, strict=True))
        ]
        if shifts[0] == shifts[1] and formats[0] == formats[1]:
            return self._stage(m, pairs[0], name, stage, shape=shape)
        (weight, weight_clipped), (bias, bias_clipped) = pairs
        chosen = Mux(is_bias, bias, weight), Mux(is_bias, bias_clipped, weight_clipped)
        return self._stage(m, chosen, name, stage, shape=shape)

    def _by_channel(self, m, weight, shifts, is_bias):
        """Requantise to working weights with the channel's own fraction."""
        settled = self.rounding.settled
        formats = [kind.working for kind in self.kinds]
        coarser = delay(m, self.coarser, 10, "coarser_late")
        value = Signal(signed(self.working_width), name="working_chosen")
        clipped = Signal(name="working_chosen_clipped")
        pair = requantize(m, weight, shifts[1], formats[1], settled, name="working_bias")
        m.d.comb += [value.eq(pair[0]), clipped.eq(pair[1])]
        with m.If(~is_bias), m.Switch(coarser):
            for bits in sorted(set(self.kinds[0].coarser)):
                name = f"working_{bits}"
                pair = requantize(m, weight, shifts[0] + bits, formats[0], settled, name=name)
                with m.Case(bits):
                    m.d.comb += [value.eq(pair[0]), clipped.eq(pair[1])]
        return self._stage(m, (value, clipped), "working", 11)

    def _run_time(self, m, value, shift, offsets, is_bias, fmt, name, stage, noise):
        """Requantise by the run-time ``shift`` plus the kind's constant; the host keeps the total
        within 0..63.
        """
        total = Signal(range(MAX_SHIFT + 1), name=f"{name}_total")
        m.d.comb += total.eq(shift + Mux(is_bias, offsets[1], offsets[0]))
        pair = requantize_dynamic(
            m, value, total, fmt, self.rounding, MAX_SHIFT, name=f"{name}_rq", noise=noise
        )
        return self._stage(m, pair, name, stage)
