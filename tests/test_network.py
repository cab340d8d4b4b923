"""The golden model equals the slow definition bit for bit, float autograd within quantisation, and
the version table.
"""

import re

import pytest
import torch

from gradweave.bench.golden import float_model, random_batch, random_masters
from gradweave.model.errors import FormatError, InputError
from gradweave.model.fixed import dequantize
from gradweave.model.formats import Format, Rounding
from gradweave.model.hyper import Hyper
from gradweave.model.network import Network
from gradweave.model.plan import ParameterPlan
from gradweave.tests.golden.trainer import SlowNetwork
from gradweave.tests.plans import PARAMETER, chain, conv, linear, maxpool, relu

NARROW = ParameterPlan(Format(8, 5), Format(16, 10), Format(8, 6))


def small(loss="cross_entropy", rounding=Rounding.HALF_EVEN, parameter=PARAMETER, delays=(0, 0)):
    """Conv, ReLU, overlapping pool, strided conv, linear: every layer kind on 6x5 maps."""
    late = {"delay": delays[0], "back_delay": delays[1]}
    return chain(
        (2, 6, 5),
        conv("conv1", 3, kernel=3, padding=1, weight=parameter, bias=parameter, **late),
        relu("relu1"),
        maxpool("pool", 3, stride=2, padding=1),
        conv("conv2", 2, kernel=2, stride=2, padding=1, weight=parameter, bias=None, **late),
        linear("fc", 3, weight=parameter, bias=parameter, **late),
        loss=loss,
        rounding=rounding,
        batch_max=4,
    )


def train(network, plan, batches, hyper):
    """Return the logits, records and targets of some mini-batches of random data."""
    results = []
    for seed in range(batches):
        record = {}
        x, target = random_batch(plan, hyper.batch, seed)
        logits = network.train_batch(x, target, hyper, record)
        results.append((logits, record, target))
    return results


@pytest.mark.parametrize("delays", [(0, 0), (2, 1)], ids=["flush", "delayed"])
@pytest.mark.parametrize(
    ("loss", "rounding", "parameter", "options"),
    [
        ("cross_entropy", Rounding.HALF_EVEN, PARAMETER, {"lr": 0.5}),
        ("cross_entropy", Rounding.FLOOR, PARAMETER, {"lr": 0.5, "momentum": 0.9}),
        ("mse", Rounding.HALF_UP, PARAMETER, {"lr": 0.1, "momentum": 0.5, "nesterov": True}),
        ("mse", Rounding.HALF_EVEN, NARROW, {"lr": 1.0, "momentum": 0.9, "weight_decay": 0.01}),
    ],
)
def test_every_tensor_of_every_step_equals_the_slow_definition(
    delays, loss, rounding, parameter, options
):
    plan = small(loss, rounding, parameter, delays)
    hyper = Hyper.of(plan, batch=3, **options)
    masters = random_masters(plan, 1)
    network, slow = Network(plan), SlowNetwork(plan, masters)
    network.load(masters)
    for logits, record, target in train(network, plan, 4, hyper):
        expected = slow.train_batch(record["input"], target, hyper)
        assert sorted(record) == sorted(expected)
        for name, values in record.items():
            assert values.dtype == torch.int64
            assert torch.equal(values, expected[name]), name
        assert torch.equal(logits, record["fc.o_feature"].flatten(1))
    for name, values in network.masters.items():
        assert torch.equal(values, slow.masters[name]), name
        assert torch.equal(network.momenta[name], slow.momenta[name]), name
    assert network.saturated == slow.saturated
    assert any(network.saturated.values()) == (parameter is NARROW)


@pytest.mark.parametrize("loss", ["cross_entropy", "mse"])
def test_gradients_and_logits_follow_float_autograd(loss):
    plan = small(loss)
    network = Network(plan)
    network.load(random_masters(plan, 2))
    x, target = random_batch(plan, 4, 5)
    record = {}
    working = {name: network._trained[name].working() for name in ("conv1", "conv2", "fc")}
    hyper = Hyper.of(plan, batch=4, lr=0.1)
    logits = network.train_batch(x, target, hyper, record)

    model = float_model(plan).double()
    trained = [m for m in model if hasattr(m, "weight")]
    for module, name in zip(trained, working, strict=True):
        for part, values in working[name].items():
            getattr(module, part).data.copy_(dequantize(values, PARAMETER.working))
    real = model(dequantize(x, plan.layers[0].i_feature))
    # Each feature errs by half a step of 2**-10 and passes on at most the next layers' gains.
    feature_tolerance = 8 * 2.0**-10
    logit_error = dequantize(logits, plan.loss.feature) - real.detach()
    assert logit_error.abs().max() < feature_tolerance
    if loss == "mse":
        loss_value = ((real - dequantize(target, plan.loss.feature)) ** 2).sum() / 2
    else:
        loss_value = torch.nn.functional.cross_entropy(real, target, reduction="sum")
    loss_value.backward()
    for module, name in zip(trained, working, strict=True):
        layer = plan.layer(name)
        frac = layer.o_error.frac + layer.i_feature.frac
        got = record[f"{name}.weight_gradient"].double() * 2.0**-frac
        expected = module.weight.grad.view_as(got)
        # Errors err by 2**-14 and features by 2**-11 each, summed over 4 samples of 30 positions at
        # most.
        assert (got - expected).norm() < 0.02 * expected.norm() + 1e-3, name


@pytest.mark.parametrize(
    "options",
    [
        {"lr": 0.05},
        {"lr": 0.05, "momentum": 0.9},
        {"lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    ],
)
def test_ten_steps_follow_torchs_sgd(options):
    plan = small("cross_entropy")
    hyper = Hyper.of(plan, batch=4, **options)
    network = Network(plan)
    network.load(random_masters(plan, 3))
    start = network.masters
    model = float_model(plan).double()
    trained = dict(
        zip(("conv1", "conv2", "fc"), [m for m in model if hasattr(m, "weight")], strict=True)
    )
    for name, values in start.items():
        layer, part = name.split(".")
        getattr(trained[layer], part).data.copy_(dequantize(values, PARAMETER.master))
    optimizer = torch.optim.SGD(
        model.parameters(),
        lr=hyper.lr,
        momentum=hyper.momentum_rate,
        nesterov=hyper.nesterov,
        weight_decay=hyper.weight_decay,
    )
    for seed in range(10):
        x, target = random_batch(plan, 4, seed)
        network.train_batch(x, target, hyper)
        optimizer.zero_grad()
        real = model(dequantize(x, plan.layers[0].i_feature))
        torch.nn.functional.cross_entropy(real, target).backward()
        optimizer.step()
    for name, values in network.masters.items():
        layer, part = name.split(".")
        want = getattr(trained[layer], part).detach()
        got = dequantize(values, PARAMETER.master)
        moved = (want - dequantize(start[name], PARAMETER.master)).norm()
        # The path over ten steps may part by the gradients' relative quantisation error of 2 %.
        assert (got - want).norm() < 0.03 * moved, name


def test_a_constant_gradient_moves_each_version_by_the_same_step():
    # One weight, x = 1, and an error that stays clipped at its format's end.
    error = Format(4, 0)
    parameter = ParameterPlan(Format(16, 4), Format(24, 8), Format(16, 4))
    spec = linear("l", 1, weight=parameter, bias=None, feature=Format(16, 0), delay=2, back_delay=1)
    plan = chain(
        (1, 1, 1), spec, loss="mse", loss_error=error, input_feature=Format(16, 0), batch_max=1
    )
    network = Network(plan)
    network.load({"l.weight": torch.tensor([[100 << 8]])})
    # An error of -8 at lr 1/8 makes the weight rise by one per mini-batch.
    hyper = Hyper(batch=1, lr_mantissa=1, lr_shift=3)
    target = torch.tensor([[1000]])
    seen = []
    for _ in range(6):
        record = {}
        seen.append(int(network.train_batch(torch.ones(1, 1, 1, 1).long(), target, hyper, record)))
        assert int(record["loss.error"]) == error.min
    assert seen == [100, 100, 100, 101, 102, 103]
    assert int(network.masters["l.weight"]) == 106 << 8
    assert network.saturated["loss.error"] == 6


def test_the_backward_pass_reads_its_own_delay():
    # Two scalar weights in a row, x = 1, error always -8: the error below is -8 times the second
    # weight's version.
    whole = Format(16, 0)
    parameter = ParameterPlan(Format(16, 4), Format(24, 8), Format(16, 4))
    options = {"weight": parameter, "bias": None, "feature": whole, "error": whole}
    plan = chain(
        (1, 1, 1),
        conv("first", 1, kernel=1, **options),
        linear("second", 1, back_delay=2, **options),
        loss="mse",
        loss_error=Format(4, 0),
        input_feature=whole,
        batch_max=1,
    )
    network = Network(plan)
    one = torch.tensor([[256]])
    network.load({"first.weight": one.view(1, 1, 1, 1), "second.weight": one})
    hyper = Hyper(batch=1, lr_mantissa=1, lr_shift=3)
    x, target = torch.ones(1, 1, 1, 1).long(), torch.tensor([[32000]])
    below, seconds = [], [1.0]
    for _ in range(5):
        record = {}
        network.train_batch(x, target, hyper, record)
        below.append(int(record["second.i_error"]))
        seconds.append(int(record["second.weight"]) / 16)
    assert below == [-8 * int(seconds[max(0, k - 2)]) for k in range(5)]
    # The first weight grows by that error over 8, so the second one grows faster and faster.
    assert seconds[:4] == [1, 2, 4, 7]


def test_a_segment_starts_from_the_masters_and_keeps_momenta():
    plan = small(delays=(1, 1))
    hyper = Hyper.of(plan, batch=2, lr=0.3, momentum=0.9)
    network = Network(plan)
    network.load(random_masters(plan, 5))
    train(network, plan, 3, hyper)
    masters, momenta = network.masters, network.momenta
    network.start_segment()
    other = Network(plan)
    other.load(masters, momenta)
    for (left, *_), (right, *_) in zip(
        train(network, plan, 3, hyper), train(other, plan, 3, hyper), strict=True
    ):
        assert torch.equal(left, right)
    assert all(torch.equal(network.masters[n], other.masters[n]) for n in masters)
    assert any(bool(values.any()) for values in momenta.values())


def test_inference_uses_the_newest_weights_and_changes_nothing():
    plan = small(delays=(2, 2))
    hyper = Hyper.of(plan, batch=4, lr=0.3)
    network, undisturbed = Network(plan), Network(plan)
    for n in (network, undisturbed):
        n.load(random_masters(plan, 6))
        train(n, plan, 2, hyper)
    x, _ = random_batch(plan, 9, 7)
    logits = network.infer(x)
    fresh = Network(plan)
    fresh.load(network.masters)
    x4, target = random_batch(plan, 4, 7)
    assert torch.equal(fresh.train_batch(x4, target, hyper), network.infer(x4))
    assert logits.shape == (9, 3)
    assert torch.equal(logits[2:3], network.infer(x[2:3]))
    for (left, *_), (right, *_) in zip(
        train(network, plan, 2, hyper), train(undisturbed, plan, 2, hyper), strict=True
    ):
        assert torch.equal(left, right)


def test_small_weights_that_vanish_and_clipped_updates_show_in_the_counters():
    plan = small(parameter=NARROW)
    network = Network(plan)
    masters = {name: torch.full_like(v, NARROW.master.max) for name, v in network.masters.items()}
    network.load(masters)
    x, target = random_batch(plan, 4, 1)
    network.train_batch(x, target, Hyper.of(plan, batch=4, lr=0.01))
    # Every working weight of +31.99 clips to the end of the 8-bit format, 3.97.
    assert network.saturated["conv1.weight"] == masters["conv1.weight"].numel()
    assert network.saturated["conv1.bias"] == 3
    network.start_segment()
    assert not any(network.saturated.values())
    assert list(network.saturated) == [
        "conv1.o_feature", "conv1.weight", "conv1.bias", "pool.i_error", "conv2.o_feature",
        "conv2.i_error", "conv2.weight", "fc.o_feature", "fc.i_error", "fc.weight", "fc.bias",
        "loss.error",
    ]  # fmt: skip


def inputs(plan):
    x, target = random_batch(plan, 2, 1)
    return {"x": x, "target": target, "hyper": Hyper.of(plan, batch=2, lr=0.1)}


@pytest.mark.parametrize(
    ("loss", "changes", "message"),
    [
        (
            "cross_entropy",
            {"x": torch.zeros(2, 6, 5).long()},
            "x must have shape [samples, 2, 6, 5], not [2, 6, 5]",
        ),
        (
            "cross_entropy",
            {"x": torch.zeros(0, 2, 6, 5).long()},
            "x must have shape [samples, 2, 6, 5], not [0, 2, 6, 5]",
        ),
        (
            "cross_entropy",
            {"x": torch.zeros(2, 2, 6, 5)},
            "x must be int64, not torch.float32; quantise it first",
        ),
        (
            "cross_entropy",
            {"x": torch.full((2, 2, 6, 5), 32768)},
            "x must lie in -32768 to 32767, not 32768 to 32768",
        ),
        (
            "cross_entropy",
            {"x": torch.zeros(3, 2, 6, 5).long()},
            "x must hold batch = 2 samples (at most 4), not 3",
        ),
        (
            "cross_entropy",
            {"target": torch.tensor([0, 3])},
            "target must lie in 0 to 2, not 0 to 3",
        ),
        (
            "cross_entropy",
            {"target": torch.tensor([0, -1])},
            "target must lie in 0 to 2, not -1 to 0",
        ),
        (
            "cross_entropy",
            {"target": torch.zeros(2, 3).long()},
            "target must have shape [2], not [2, 3]",
        ),
        (
            "mse",
            {"target": torch.zeros(2, 3)},
            "target must be int64, not torch.float32; quantise it first",
        ),
        ("mse", {"target": torch.zeros(2).long()}, "target must have shape [2, 3], not [2]"),
    ],
)
def test_data_that_does_not_fit_the_plan_is_refused(loss, changes, message):
    plan = small(loss)
    network = Network(plan)
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        network.train_batch(**{**inputs(plan), **changes})


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        (
            "fc.bias",
            torch.zeros(4).long(),
            "masters[fc.bias] must have shape [3], not [4]",
        ),
        (
            "fc.bias",
            torch.tensor([0, 0, 2**31]),
            f"masters[fc.bias] must lie in {-(2**31)} to {2**31 - 1}, not 0 to {2**31}",
        ),
        (
            "fc.bias",
            torch.zeros(3),
            "masters[fc.bias] must be int64, not torch.float32; quantise it first",
        ),
    ],
)
def test_weights_that_do_not_fit_are_refused_and_the_old_ones_stay(name, values, message):
    plan = small()
    network = Network(plan)
    masters = random_masters(plan, 8)
    network.load(masters)
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        network.load({**random_masters(plan, 9), name: values})
    assert all(torch.equal(network.masters[n], values) for n, values in masters.items())


def test_missing_weights_are_refused():
    network = Network(small())
    with pytest.raises(InputError, match=r"^masters must be named \['conv1.bias', .*, not \[\]$"):
        network.load({})


def test_what_the_family_cannot_do_is_refused():
    wide = ParameterPlan(Format(60, 20), Format(62, 20), Format(32, 20))
    with pytest.raises(FormatError, match=r"^conv1: forward sums must fit an accumulator of 64 "):
        Network(small(parameter=wide))


def test_formats_too_wide_for_float64_train_in_int64_to_the_same_bits():
    wide = ParameterPlan(Format(34, 30), Format(40, 32), Format(40, 24))
    plan = chain((2, 4, 4), conv("c", 2, kernel=3, weight=wide, bias=wide), relu("r"),
                 linear("l", 3, weight=wide, bias=wide), batch_max=2)  # fmt: skip
    hyper = Hyper.of(plan, batch=2, lr=0.2, momentum=0.9, weight_decay=0.01)
    masters = random_masters(plan, 1)
    network, slow = Network(plan), SlowNetwork(plan, masters)
    network.load(masters)
    for _, record, target in train(network, plan, 3, hyper):
        expected = slow.train_batch(record["input"], target, hyper)
        assert all(torch.equal(values, expected[name]) for name, values in record.items())
