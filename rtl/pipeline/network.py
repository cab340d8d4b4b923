"""Network: all layers of a plan and its loss, joined stream to stream along the plan's edges.

Golden: ``model/network.py``. Test: ``tests/test_board.py``, ``tests/test_graph_board.py``.
"""

from amaranth.hdl import Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from ...model.formats import Rounding
from ...model.kinds import TABLES
from ...model.padding import padded
from ...model.plan import INPUT, LOSS, Edge, LayerPlan, Plan
from ...model.registers import saturating_tensors
from ..parts import lanes
from ..parts.fifo import Fifo
from ..parts.gear import Gear
from ..parts.pixel_gear import PixelGear
from ..probes import probe_table
from .activation import Clip, LeakyRelu
from .add import Add
from .affine import Affine
from .avgpool import AvgPool
from .binary_cross_entropy import BinaryCrossEntropy
from .concat import Concat
from .conv import Conv
from .cross_entropy import CrossEntropy
from .dropout import Dropout
from .fork import Fork
from .huber import Huber
from .linear import Linear
from .maxpool import MaxPool
from .mse import Mse
from .relu import Relu
from .scale import Scale
from .softmax import Softmax
from .table import Table
from .update_rule import HYPER

__all__ = ["Network"]

TRAINED = {"conv2d": Conv, "linear": Linear, "scale": Scale}
BLOCKS = {
    "relu": Relu,
    "clip": Clip,
    "leaky_relu": LeakyRelu,
    **dict.fromkeys(TABLES, Table),
    "softmax": Softmax,
    "dropout": Dropout,
    "affine": Affine,
    "maxpool2d": MaxPool,
    "avgpool2d": AvgPool,
    "add": Add,
    "concat": Concat,
    "fork": Fork,
}
LOSSES = {
    "cross_entropy": CrossEntropy,
    "mse": Mse,
    "huber": Huber,
    "binary_cross_entropy": BinaryCrossEntropy,
}


def _block(layer: LayerPlan, plan: Plan):
    if layer.trainable:
        return TRAINED[layer.kind](
            layer, batch_max=plan.batch_max, rounding=plan.rounding, seed=plan.seed
        )
    return BLOCKS[layer.kind](layer, plan.rounding.settled)


class Network(wiring.Component):
    """Samples in at ``i``, logits out at ``o``; errors, gradients and updates stay inside.

    Interval: ``Plan.interval`` in steady state with delayed versions.

    Members
    -------
    i : In(stream of ``packet_lanes`` values); target : In(stream); o : Out(stream of one logit)
    batch, hyper, training, reload : In; busy : Out(1), a reload or a sweep runs
    first_sample : In(32), the number in the whole training of the sample behind a reload
    layer : In, whose parameters ``host, start, dumping, select, load, dump`` mean
    counts : Out, per trainable layer and engine; saturated, versions : Out, by layer
    sample_done, bad_label : Out(1), pulses
    probe_<n>_valid, probe_<n>_data : Out, only with ``plan.probes``
    """

    def __init__(self, plan: Plan):
        self.plan = plan
        self.blocks = [_block(layer, plan) for layer in plan.layers]
        self._by_name = dict(zip((layer.name for layer in plan.layers), self.blocks, strict=True))
        self.loss = LOSSES[plan.loss.kind](plan.loss, plan.rounding.settled)
        trainable = [(n, layer) for n, layer in enumerate(plan.layers) if layer.trainable]
        saturated = {
            f"layer_{n}": data.StructLayout(dict.fromkeys(saturating_tensors(layer), 32))
            for n, layer in enumerate(plan.layers)
            if saturating_tensors(layer)
        }
        members = {
            "i": In(stream.Signature(lanes(plan.layers[0].i_feature.width, plan.packet_lanes))),
            "target": In(stream.Signature(self.loss.target.payload.shape())),
            "o": Out(stream.Signature(lanes(plan.loss.feature.width, 1))),
            "batch": In(range(plan.batch_max + 1)),
            "hyper": In(HYPER),
            "training": In(1),
            "reload": In(1),
            "first_sample": In(32),
            "busy": Out(1),
            "layer": In(range(max(2, len(trainable)))),
            "host": In(1),
            "start": In(1),
            "dumping": In(1),
            "select": In(1),
            "load": In(stream.Signature(32)),
            "dump": Out(stream.Signature(32)),
            "counts": Out(
                data.StructLayout(
                    {f"layer_{n}": self.blocks[n].counts.shape() for n, _ in trainable}
                )
            ),
            "saturated": Out(data.StructLayout({**saturated, "loss": 32})),
            "versions": Out(data.StructLayout({f"layer_{n}": 32 for n, _ in trainable})),
            "sample_done": Out(1),
            "bad_label": Out(1),
        }
        for n, probe in enumerate(probe_table(plan)):
            members[f"probe_{n}_valid"] = Out(1)
            members[f"probe_{n}_data"] = Out(lanes(probe.width, probe.lanes))
        super().__init__(members)

    def elaborate(self, platform):
        m = Module()
        loss = self.loss
        self._seen = {}
        for n, block in enumerate(self.blocks):
            m.submodules[f"layer_{n}"] = block
        m.submodules.loss = loss
        self._streams(m)

        m.submodules.targets = targets = Fifo(self.target.payload.shape(), self._target_depth)
        connect(m, flipped(self.target), targets.i)
        connect(m, targets.o, loss.target)
        connect(m, loss.o_logits, flipped(self.o))
        m.d.comb += [
            loss.training.eq(self.training),
            loss.clear.eq(self.reload),
            self.saturated.loss.eq(loss.clipped),
            self.sample_done.eq(loss.sample_done),
            self.bad_label.eq(loss.bad_label),
        ]
        self._control(m)
        self._probes(m)
        return m

    @property
    def _target_depth(self) -> int:
        per_sample = 1 if self.plan.loss.labels else self.plan.loss.outputs
        return self.plan.loss.target_samples * per_sample

    def _streams(self, m):
        """Join features along the edges, and errors against them."""
        for n, edge in enumerate(self.plan.edges):
            gear = self._gear(edge, self._format(edge.sink, "i_feature"))
            m.submodules[f"i_gear_{n}"] = gear
            connect(m, self._feature(edge), gear.i)
            connect(m, gear.o, self._i(edge))
        for n, edge in enumerate(self.plan.error_edges):
            gear = self._gear(edge, self._format(edge.source, "o_error"), back=True)
            m.submodules[f"error_gear_{n}"] = gear
            connect(m, self._error(edge), gear.i)
            connect(m, gear.o, self._o_error(edge))
        self._watch("input", self.blocks[0].i)
        self._watch("loss.error", self.loss.o_error)
        for layer, block in zip(self.plan.layers, self.blocks, strict=True):
            if layer.pattern != "fork":
                self._watch(f"{layer.name}.o_feature", block.o)
            if layer.backward:
                error = block.o_error if layer.pattern == "join" else block.i_error
                self._watch(f"{layer.name}.i_error", error)

    def _gear(self, edge: Edge, fmt, back=False):
        """The gear of an edge, from its source's words to its sink's or back."""
        above, below = (1, 1), (self.plan.packet_lanes, 1)
        channels, flat = self.plan.layers[0].i_shape[0], edge.source == INPUT
        if edge.sink != LOSS:
            above = self.plan.layer(edge.sink).i_layout
        if not flat:
            source = self.plan.layer(edge.source)
            channels, below = source.o_shape[0], source.o_layout
        ends = (above, below) if back else (below, above)
        # Words of a packet do not end with pixels, unless the first layer's have pad lanes.
        if padded(channels, above) or (not flat and padded(channels, below)):
            return PixelGear(fmt.width, channels, *ends)
        return Gear(fmt.width, ends[0][0], ends[1][0])

    def _format(self, name, tensor):
        return self.plan.loss.feature if name == LOSS else getattr(self.plan.layer(name), tensor)

    def _feature(self, edge: Edge):
        """The stream of features that an edge takes from its source."""
        if edge.source == INPUT:
            return flipped(self.i)
        port = self._by_name[edge.source].o
        return port[edge.source_port] if self._is(edge.source, "fork") else port

    def _i(self, edge: Edge):
        """Where an edge's features enter its sink."""
        if edge.sink == LOSS:
            return self.loss.i
        port = self._by_name[edge.sink].i
        return port[edge.sink_port] if self._is(edge.sink, "join") else port

    def _error(self, edge: Edge):
        """The stream of errors that an edge takes from its sink."""
        if edge.sink == LOSS:
            return self.loss.o_error
        port = self._by_name[edge.sink].i_error
        if not self._is(edge.sink, "join"):
            return port
        return port[sum(self.plan.layer(edge.sink).source_errors[: edge.sink_port])]

    def _o_error(self, edge: Edge):
        """Where an edge's errors enter its source."""
        port = self._by_name[edge.source].o_error
        return port[edge.source_port] if self._is(edge.source, "fork") else port

    def _is(self, name, pattern):
        return self.plan.layer(name).pattern == pattern

    def _control(self, m):
        """Give every block its registers, and collect what it reports."""
        door = 0
        busy = []
        for n, (layer, block) in enumerate(zip(self.plan.layers, self.blocks, strict=True)):
            m.d.comb += block.training.eq(self.training)
            if saturating_tensors(layer):
                m.d.comb += self.saturated[f"layer_{n}"].eq(block.saturated)
            if not layer.trainable:
                m.d.comb += block.clear.eq(self.reload)
                if layer.kind == "dropout":
                    m.d.comb += block.first_sample.eq(self.first_sample)
                continue
            if self.plan.rounding is Rounding.STOCHASTIC:
                m.d.comb += block.first_sample.eq(self.first_sample)
            chosen = Signal(name=f"chosen_{n}")
            busy.append(block.busy)
            m.d.comb += [
                chosen.eq(self.layer == door),
                block.batch.eq(self.batch),
                block.hyper.eq(self.hyper),
                block.reload.eq(self.reload),
                block.host.eq(self.host & chosen),
                block.start.eq(self.start & chosen),
                block.dumping.eq(self.dumping & chosen),
                block.select.eq(self.select),
                block.load.valid.eq(self.load.valid & chosen),
                block.load.payload.eq(self.load.payload),
                block.dump.ready.eq(self.dump.ready & chosen),
                self.counts[f"layer_{n}"].eq(block.counts),
                self.versions[f"layer_{n}"].eq(block.version),
            ]
            with m.If(chosen):
                m.d.comb += [
                    self.load.ready.eq(block.load.ready),
                    self.dump.valid.eq(block.dump.valid),
                    self.dump.payload.eq(block.dump.payload),
                ]
            door += 1
            self._seen[f"{layer.name}.weight"] = block.weight_valid, block.working
            self._seen[f"{layer.name}.bias"] = block.bias_valid, block.working
            self._seen[f"{layer.name}.weight_gradient"] = block.weight_sum_valid, block.sums
            self._seen[f"{layer.name}.bias_gradient"] = block.bias_sum_valid, block.sums
        m.d.comb += self.busy.eq(sum(busy) != 0)

    def _watch(self, name, port):
        self._seen[name] = port.valid & port.ready, port.payload

    def _probes(self, m):
        for n, probe in enumerate(probe_table(self.plan)):
            valid, payload = self._seen[probe.name]
            m.d.comb += getattr(self, f"probe_{n}_valid").eq(valid)
            target = getattr(self, f"probe_{n}_data")
            m.d.comb += target.as_value().eq(payload.as_value())
