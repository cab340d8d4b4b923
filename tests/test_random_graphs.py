"""Random graphs: any mix of layers, forks and joins is exact and never stuck.

Graphs are drawn as plans, of what the hardware has, so none of them may be refused; what has no
hardware is refused by name in front of that (``tests/test_refusals.py``).

What covers what, all of it with ``-m slow`` and a few in every run:

- 200 graphs in the golden model against the slow definition (``tests/golden/trainer.py``, and
  leaky ReLU and adaptive average pooling below), every tensor of two mini-batches. No tables, no
  softmax and no dropout, which have tests of their own.
- 200 graphs of all kinds stepped word by word without arithmetic (``tests/flow.py``), with the
  computed depths, which keep the planned interval, and with the least, which never deadlock.
- 15 graphs of all kinds but dropout as boards in Verilator, with pauses, half of them in the
  least depths: every tensor of two mini-batches is the golden model's, and the board does not hang.
"""

import dataclasses
import random
from fractions import Fraction

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gradweave.bench.golden import random_batch, random_masters
from gradweave.host.design import Design
from gradweave.host.verify import verify
from gradweave.model.hyper import Hyper
from gradweave.model.network import Network
from gradweave.model.schedule import check_buffers, size_buffers, steady_interval
from gradweave.tests.flow import Flow
from gradweave.tests.golden.reference import clip, round_fraction, rq
from gradweave.tests.golden.trainer import SlowNetwork
from gradweave.tests.graphs import with_least_buffers
from gradweave.tests.random_graphs import random_graph

EXACT = ("conv", "conv", "relu", "leaky", "max", "avg")
BUILT = ("conv", "conv", "relu", "leaky", "table", "softmax", "max", "avg")
BATCH, SLOPE_FRAC = 2, 16
SEEDS = st.integers(0, 10**9)


def drawn(examples):
    """Settings of so many graphs, the same in every run."""
    slow = [HealthCheck.too_slow, HealthCheck.data_too_large]
    return settings(
        derandomize=True, deadline=None, max_examples=examples, suppress_health_check=slow
    )


class SlowGraph(SlowNetwork):
    """The slow definition with leaky ReLU and adaptive average pooling, in exact fractions."""

    def _forward(self, layer, given, samples):
        features = given[0]
        if layer.kind == "leaky_relu":
            return self._lean(layer, features, features, layer.i_feature), features
        if layer.kind != "avgpool2d":
            return super()._forward(layer, given, samples)
        means = {}
        for (n, c, y, x), places in self._windows(layer, samples).items():
            mean = Fraction(sum(features[n, c, *place] for place in places), len(places))
            means[n, c, y, x] = round_fraction(mean, self.plan.rounding)
        return means, None

    def _backward(self, layer, errors, result, extra, samples):
        if layer.kind == "leaky_relu":
            return self._lean(layer, errors, extra, layer.o_error)
        if layer.kind != "avgpool2d":
            return super()._backward(layer, errors, result, extra, samples)
        _, height, width = layer.i_shape
        shares = {
            (n, c, y, x): Fraction(0)
            for n, c in {index[:2] for index in errors}
            for y in range(height)
            for x in range(width)
        }
        for (n, c, *at), places in self._windows(layer, samples).items():
            for place in places:
                shares[n, c, *place] += Fraction(errors[n, c, *at], len(places))
        gain = Fraction(2) ** (layer.i_error.frac - layer.o_error.frac)
        below = {}
        for index, share in shares.items():
            value = round_fraction(share * gain, self.plan.rounding)
            below[index], clipped = clip(value, layer.i_error)
            self.saturated[f"{layer.name}.i_error"] += clipped
        return below

    def _lean(self, layer, values, features, fmt):
        def lean(value):
            return rq(value * layer.slope, fmt.frac + SLOPE_FRAC, fmt, self.plan.rounding)[0]

        return {n: v if features[n] > 0 else lean(v) for n, v in values.items()}

    @staticmethod
    def _windows(layer, samples):
        (_, height, width), (channels, rows, cols) = layer.i_shape, layer.o_shape
        return {
            (n, c, y, x): [
                (row, col)
                for row in range(y * height // rows, -(-(y + 1) * height // rows))
                for col in range(x * width // cols, -(-(x + 1) * width // cols))
            ]
            for n in range(samples)
            for c in range(channels)
            for y in range(rows)
            for x in range(cols)
        }


def late(plan, draw):
    """The plan with random delays of its versions."""
    layers = []
    for x in plan.layers:
        delay = draw.choice([0, 0, 1, 2])
        back = draw.randint(0, delay)
        layers.append(dataclasses.replace(x, delay=delay, back_delay=back) if x.trainable else x)
    return dataclasses.replace(plan, layers=tuple(layers))


def check_golden(seed):
    draw = random.Random(seed)
    plan = late(random_graph(draw, steps=5, size=5, kinds=EXACT), draw)
    start = random_masters(plan, seed)
    network, slow = Network(plan), SlowGraph(plan, start)
    network.load(start)
    hyper = Hyper.of(plan, batch=BATCH, lr=0.25, momentum=0.5)
    for step in range(2):
        x, target = random_batch(plan, BATCH, seed + step)
        record = {}
        network.train_batch(x, target, hyper, record)
        expected = slow.train_batch(x, target, hyper)
        assert sorted(record) == sorted(expected)
        for tensor, values in record.items():
            assert torch.equal(values, expected[tensor]), (seed, step, tensor)
    assert all(torch.equal(values, slow.masters[n]) for n, values in network.masters.items())
    assert network.saturated == slow.saturated


@drawn(5)
@given(SEEDS)
def test_the_golden_model_of_any_graph_is_the_slow_definition(seed):
    check_golden(seed)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@drawn(200)
@given(SEEDS)
def test_the_golden_model_of_200_graphs_is_the_slow_definition(seed):
    check_golden(seed)


def check_flow(seed):
    plan = random_graph(random.Random(seed), steps=6, size=5)
    sized, least = size_buffers(plan), with_least_buffers(plan)
    check_buffers(least)
    ends = Flow(sized).run(8)
    assert ends is not None, seed
    assert ends[-1] - ends[-4] <= 3 * steady_interval(plan), seed
    assert Flow(least, BATCH).run(4), seed


@drawn(5)
@given(SEEDS)
def test_no_graph_deadlocks_and_computed_depths_keep_the_interval(seed):
    check_flow(seed)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@drawn(200)
@given(SEEDS)
def test_none_of_200_graphs_deadlocks_and_computed_depths_keep_the_interval(seed):
    check_flow(seed)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(15))
def test_a_board_of_any_graph_is_exact(seed):
    draw = random.Random(seed)
    plan = random_graph(draw, steps=4, size=4, kinds=BUILT)
    plan = with_least_buffers(plan) if seed % 2 else size_buffers(late(plan, draw))
    start = random_masters(plan, seed)
    batches = [random_batch(plan, BATCH, seed + n) for n in range(2)]
    x, target = (torch.cat(parts) for parts in zip(*batches, strict=True))
    hyper = Hyper.of(plan, batch=BATCH, lr=0.25, momentum=0.5)
    report = verify(Design(plan, start), x, target, hyper, stalls=0.2, seed=seed)
    report.raise_for_difference()
    assert report.bit_exact
