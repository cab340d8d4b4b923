"""Noise for every parameter in the order of the update's sweeps, ready before a sweep begins.

Golden: ``model/noise.py``. Test: ``tests/pipeline/test_update_noise.py``.
"""

import math

from amaranth.hdl import Module, Mux, ResetInserter, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from ...model.plan import LayerPlan
from ...model.random import NOISE_BITS, UPDATE_FIELDS, round_keys, tensor_number
from ..parts.fifo import Fifo
from ..parts.noise import WAITING
from ..parts.speck import Speck

__all__ = ["UpdateNoise"]


class UpdateNoise(wiring.Component):
    """The random words of one update after the other, ``update_lanes`` parameters a transfer.

    One transfer per cycle; ``clear`` starts with the mini-batch that begins with sample
    ``first_sample``. The first transfer is there 30 cycles later, and from then on there is always
    one.

    Members
    -------
    clear : In(1); first_sample : In(32); batch : In(32), samples of a mini-batch
    o : Out(stream of ``update_lanes`` words of four fields)
    """

    def __init__(self, layer: LayerPlan, seed: int) -> None:
        self.layer = layer.hardware
        self.keys = round_keys(seed, tensor_number(f"{layer.name}.update"))
        word = data.StructLayout(dict.fromkeys(UPDATE_FIELDS, NOISE_BITS))
        super().__init__(
            {
                "clear": In(1),
                "first_sample": In(32),
                "batch": In(32),
                "o": Out(stream.Signature(data.ArrayLayout(word, layer.update_lanes))),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        lanes = self.layer.update_lanes
        cipher = Speck(self.keys, lanes=lanes)
        waiting = Fifo(self.o.payload.shape(), WAITING)
        m.submodules.cipher = ResetInserter(self.clear)(cipher)
        m.submodules.waiting = ResetInserter(self.clear)(waiting)
        m.d.comb += [
            waiting.i.valid.eq(cipher.o.valid),
            cipher.o.ready.eq(waiting.i.ready),
        ]
        elements, sample = self._elements(m, cipher.i.ready)
        m.d.comb += cipher.i.valid.eq(1)
        for n, element in enumerate(elements):
            word = cipher.o.payload[n]
            m.d.comb += [
                cipher.i.payload[n].high.eq(element),
                cipher.i.payload[n].low.eq(sample),
                waiting.i.payload[n].as_value().eq(word.low | word.high << 32),
            ]
        wiring.connect(m, waiting.o, wiring.flipped(self.o))
        return m

    def _elements(self, m, advance):
        """Each lane's element, and the number of the mini-batch's first sample, chunk by chunk as
        ``Update`` sweeps: words, in them parts; then each block's biases.
        """
        layer = self.layer
        lanes, width = layer.update_lanes, layer.o_lanes
        inputs = math.prod(layer.kernel) * layer.group_shape[1]  # elements of an output
        inner = layer.fp_inner  # words of a tap
        words = math.prod(layer.kernel) * inner  # of a block of outputs
        # Channels from a word to the next of a tap, and from the last one to the next tap.
        rest = layer.group_shape[1] - (inner - 1) * layer.b
        # Outputs from a block to the next of a group, and from the last one to the next group.
        outer = layer.eb_inner
        last_width = layer.group_shape[0] * layer.group_lanes - (outer - 1) * width
        parts = layer.word_size // lanes
        bias_parts = -(-width // lanes) if layer.bias else 0
        count = layer.o_shape[0] * inputs

        # Place of a weight of a word, beside the word's first.
        places = [n // layer.b * inputs + n % layer.b for n in range(layer.word_size)]
        part = Signal(range(max(2, parts, bias_parts)))
        word, block = Signal(range(max(2, words))), Signal(range(max(2, layer.o_blocks)))
        tap_word, group_block = Signal(range(max(2, inner))), Signal(range(max(2, outer)))
        forward, onward = Signal(32), Signal(range(width + 1))
        in_bias = Signal()
        # Element of the first weight of a word, and of the first bias of a block.
        first, outputs = Signal(32), Signal(32)
        sample = Signal(32)
        last_part, last_word, last_block, end = Signal(), Signal(), Signal(), Signal()
        m.d.comb += [
            last_part.eq(part == Mux(in_bias, max(1, bias_parts) - 1, parts - 1)),
            last_word.eq(word == words - 1),
            last_block.eq(block == layer.o_blocks - 1),
            end.eq(last_part & last_block & (in_bias if layer.bias else last_word)),
            forward.eq(Mux(tap_word == inner - 1, rest, layer.b)),
            onward.eq(Mux(group_block == outer - 1, last_width, width)),
        ]
        with m.If(advance):
            m.d.sync += part.eq(Mux(last_part, 0, part + 1))
            with m.If(last_part & (in_bias | last_word)):
                m.d.sync += [
                    block.eq(block + 1),
                    group_block.eq(Mux(group_block == outer - 1, 0, group_block + 1)),
                ]
            with m.If(last_part & in_bias):
                m.d.sync += outputs.eq(outputs + onward)
            with m.If(last_part & ~in_bias):
                m.d.sync += [
                    word.eq(word + 1),
                    tap_word.eq(Mux(tap_word == inner - 1, 0, tap_word + 1)),
                    first.eq(first + forward),
                ]
                with m.If(last_word):
                    # The block's first output has been counted through; the others lie behind it.
                    m.d.sync += [
                        word.eq(0),
                        first.eq(first + forward + (onward - 1) * inputs),
                    ]
                    if layer.bias:
                        with m.If(last_block):
                            m.d.sync += [in_bias.eq(1), block.eq(0), outputs.eq(count)]
            with m.If(end):
                m.d.sync += [
                    in_bias.eq(0),
                    word.eq(0),
                    block.eq(0),
                    group_block.eq(0),
                    first.eq(0),
                    sample.eq(sample + self.batch),
                ]
        with m.If(self.clear):
            m.d.sync += [
                part.eq(0),
                in_bias.eq(0),
                word.eq(0),
                tap_word.eq(0),
                block.eq(0),
                group_block.eq(0),
                first.eq(0),
                sample.eq(self.first_sample),
            ]
        elements = []
        for n in range(lanes):
            place = Signal(range(max(places) + 1), name=f"place_{n}")
            with m.Switch(part):
                for p in range(parts):
                    with m.Case(p):
                        m.d.comb += place.eq(places[p * lanes + n])
            element = Signal(32, name=f"element_{n}")
            m.d.comb += element.eq(Mux(in_bias, outputs + part * lanes + n, first + place))
            elements.append(element)
        return elements, sample
