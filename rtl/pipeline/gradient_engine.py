"""GradientEngine: WG of a trainable layer, the exact gradient sums of a mini-batch.

Golden: ``model/pipeline/conv.py``. Test: ``tests/pipeline/test_conv.py``.
"""

from amaranth.hdl import Module, Signal, signed
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from ...model.plan import LayerPlan
from ..parts import lanes
from ..parts.delay import delay
from ..parts.events import ENGINE_EVENTS
from ..parts.fifo import Fifo
from ..parts.sum_bank import SumBank
from ..parts.walk import Walker
from ..parts.window import READ_LATENCY, Window
from .weight_address import weight_address

__all__ = ["GradientEngine"]


class GradientEngine(wiring.Component):
    """Adds errors times features to one sum per weight, and errors to one sum per bias.

    Walks the layer's outputs as FP does; each beat multiplies ``a`` errors by ``b`` features of
    each group at once and adds the products to ``word_size`` sums. Interval:
    ``LayerPlan.fp_interval`` cycles per sample. Sums live in ``gradient_banks`` banks: one takes
    the present mini-batch while the update reads, then clears, the other. A sample's features wait
    in a window from the moment that FP receives them.

    Parameters
    ----------
    layer : LayerPlan
    batch_max : int, samples; sizes the sums

    Members
    -------
    i : In(stream), the layer's input features; o_error : In(stream), errors of its output
    go : In(1), looked at on a sample's first beat; bank : In, where sums go; sample_done : Out(1)
    sweep_bank, sweep_word, sweep_block : In, what the update reads; weight_sums, bias_sums : Out,
        one cycle later
    sweep_clear_weight, sweep_clear_bias : In(1), zero that word, with sweep_all : In(1) in every
        bank
    events : Out
    """

    def __init__(self, layer: LayerPlan, batch_max: int):
        self.layer = layer
        self.batch_max = batch_max
        self.banks = layer.gradient_banks
        self.weight_width = layer.wg_acc_width(batch_max)
        self.bias_width = layer.bias_acc_width(batch_max)
        bank = range(max(2, self.banks))
        super().__init__(
            {
                "i": In(stream.Signature(lanes(layer.i_feature.width, layer.i_lanes))),
                "o_error": In(stream.Signature(lanes(layer.o_error.width, layer.o_lanes))),
                "go": In(1),
                "bank": In(bank),
                "sample_done": Out(1),
                "sweep_bank": In(bank),
                "sweep_word": In(range(max(2, layer.weight_words))),
                "sweep_block": In(range(max(2, layer.o_blocks))),
                "sweep_clear_weight": In(1),
                "sweep_clear_bias": In(1),
                "sweep_all": In(1),
                "weight_sums": Out(lanes(self.weight_width, layer.word_size)),
                "bias_sums": Out(lanes(self.bias_width, layer.o_lanes)),
                "events": Out(ENGINE_EVENTS),
            }
        )

    @property
    def interval(self) -> int:
        """Cycles per sample."""
        return self.layer.fp_interval

    def elaborate(self, platform):
        m = Module()
        layer = self.layer
        rows, cols = layer.fp_walks
        m.submodules.walker = walker = Walker(
            rows=rows,
            cols=cols,
            outer=layer.o_blocks,
            inner=layer.fp_inner,
            groups=layer.group_passes,
        )
        m.submodules.window = window = Window(
            lanes(layer.i_feature.width, layer.i_lanes),
            rows=rows.source_size,
            cols=cols.source_size,
            blocks=walker.source_blocks,
            depth=layer.buffers.wg_rows,
        )
        m.submodules.errors = errors = Fifo(
            lanes(layer.o_error.width, layer.o_lanes), layer.buffers.error_words
        )
        connect(m, flipped(self.i), window.i)
        connect(m, flipped(self.o_error), errors.i)

        beat = walker.o.payload
        issue, allowed = Signal(), Signal()
        m.d.comb += [
            allowed.eq(self.go | ~beat.sample_first),
            issue.eq(walker.o.valid & window.present & errors.o.valid & allowed),
            walker.o.ready.eq(issue),
            errors.o.ready.eq(issue & beat.last),
            window.need.eq(beat.need),
            window.row.eq(beat.row),
            window.col.eq(beat.col),
            window.block.eq(walker.source_block(beat)),
            window.free.eq(beat.free),
            window.free_enable.eq(issue & beat.row_last),
            window.sample_end.eq(beat.sample_last),
            self.sample_done.eq(issue & beat.sample_last),
            self.events.busy.eq(issue & ~beat.null),
            self.events.starved.eq(~(window.present & errors.o.valid)),
            self.events.waiting.eq(window.present & errors.o.valid & ~allowed),
        ]

        # Products are ready one cycle after their operands.
        address = weight_address(m, beat, layer)
        error = delay(m, errors.o.payload, READ_LATENCY, "error")
        weight_issue = delay(m, issue & ~beat.null, READ_LATENCY, "weight_issue", resets=True)
        products = []
        for o in range(layer.o_lanes):
            first = o // layer.a * layer.b
            for i in range(first, first + layer.b):
                product = Signal(
                    signed(layer.o_error.width + layer.i_feature.width),
                    name=f"product_{o}_{i}",
                    reset_less=True,
                )
                with m.If(weight_issue):
                    m.d.sync += product.eq(error[o] * window.data[i])
                products.append(product)

        bias_issue = delay(m, issue & beat.first, READ_LATENCY, "bias_issue", resets=True)
        bank = delay(m, self.bank, READ_LATENCY, "bank")
        block = delay(m, beat.outer, READ_LATENCY, "block")
        error_late = delay(m, error, 1, "error_late")
        m.submodules.weight_sums = weight_sums = SumBank(
            width=self.weight_width,
            term_width=len(products[0]),
            lanes=layer.word_size,
            depth=layer.weight_words,
            banks=self.banks,
        )
        m.d.comb += [
            weight_sums.enable.eq(weight_issue),
            weight_sums.bank.eq(bank),
            weight_sums.address.eq(delay(m, address, 1, "address_late")),
            weight_sums.sweep_bank.eq(self.sweep_bank),
            weight_sums.sweep_address.eq(self.sweep_word),
            weight_sums.sweep_clear.eq(self.sweep_clear_weight),
            weight_sums.sweep_all.eq(self.sweep_all),
            self.weight_sums.eq(weight_sums.sweep_sums),
        ]
        m.d.comb += [weight_sums.terms[n].eq(product) for n, product in enumerate(products)]
        if layer.bias:
            m.submodules.bias_sums = bias_sums = SumBank(
                width=self.bias_width,
                term_width=layer.o_error.width,
                lanes=layer.o_lanes,
                depth=layer.o_blocks,
                banks=self.banks,
            )
            m.d.comb += [
                bias_sums.enable.eq(bias_issue),
                bias_sums.bank.eq(bank),
                bias_sums.address.eq(block),
                bias_sums.sweep_bank.eq(self.sweep_bank),
                bias_sums.sweep_address.eq(self.sweep_block),
                bias_sums.sweep_clear.eq(self.sweep_clear_bias),
                bias_sums.sweep_all.eq(self.sweep_all),
                self.bias_sums.eq(bias_sums.sweep_sums),
            ]
            m.d.comb += [bias_sums.terms[n].eq(error_late[n]) for n in range(layer.o_lanes)]
        return m
