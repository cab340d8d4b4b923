"""Verify: a right board is bit-exact in every tensor, and a wrong tensor is named."""

import pytest
import torch

from gradweave.host.verify import VerifyReport, compare_tensors
from gradweave.model.errors import VerifyError
from gradweave.model.hyper import Hyper
from gradweave.model.network import Network
from gradweave.model.plan import Plan
from gradweave.rtl.probes import probe_table
from gradweave.tests.graphs import make
from gradweave.tests.plans import chain, conv, linear, relu

BATCH = 2


@pytest.fixture(scope="module")
def plan() -> Plan:
    return chain(
        (2, 3, 3),
        conv("features.0", 4, kernel=3, padding=1, a=2, b=1, update_lanes=2),
        relu("features.1"),
        linear("head", 3, a=1, b=2, update_lanes=2),
        sized=True,
        probes=True,
    )


@pytest.fixture(scope="module")
def records(plan) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(5)
    network = Network(plan)
    network.load(
        {
            name: torch.randint(-(1 << 27), 1 << 27, values.shape, generator=generator)
            for name, values in network.masters.items()
        }
    )
    found = []
    for _ in range(3):
        x = torch.randint(-2000, 2000, (BATCH, 2, 3, 3), generator=generator)
        y = torch.randint(0, 3, (BATCH,), generator=generator)
        record: dict[str, torch.Tensor] = {}
        network.train_batch(x, y, Hyper.of(plan, batch=BATCH, lr=0.1), record)
        found.append(record)
    return found


def streamed(records) -> dict:
    """The maps of a board that does everything right, as probes would give them."""
    names = ["input", "features.0.o_feature", "features.1.i_error", "head.i_error"]
    return {
        name: torch.cat([r[name].permute(0, 2, 3, 1).reshape(-1, 1) for r in records]).numpy()
        for name in names
    }


def test_equal_streams_are_bit_exact(plan, records):
    report = compare_tensors(plan, BATCH, records, streamed(records))
    assert report.bit_exact
    assert report.tensors_compared == 4 * 3
    assert report.values["input"] == 3 * BATCH * 18


def test_a_wrong_value_is_named_with_layer_tensor_sample_index_values_and_format(plan, records):
    seen = streamed(records)
    # Mini-batch 1, its second sample (3 in all), pixel (2, 1), channel 3 of 4.
    place = 3 * 36 + (2 * 3 + 1) * 4 + 3
    right = int(seen["features.0.o_feature"][place, 0])
    seen["features.0.o_feature"][place, 0] += 7
    report = compare_tensors(plan, BATCH, records, seen)
    message = (
        "hardware and golden model differ in layer features.0, tensor o_feature, sample 3, first "
        f"index (3, 2, 1): expected {right}, got {right + 7}, format s16.10 (1 values differ)"
    )
    with pytest.raises(VerifyError) as raised:
        report.raise_for_difference()
    assert str(raised.value).startswith(message)
    assert not report.bit_exact


def test_a_cause_is_named_before_its_effects(plan, records):
    seen = streamed(records)
    seen["head.i_error"][0, 0] += 1
    seen["features.0.o_feature"][40, 0] += 1
    report = compare_tensors(plan, BATCH, records, seen)
    assert (report.difference.layer, report.difference.tensor) == ("features.0", "o_feature")


def test_missing_transfers_are_a_difference(plan, records):
    seen = streamed(records)
    seen["input"] = seen["input"][:-5]
    difference = compare_tensors(plan, BATCH, records, seen).difference
    assert difference.got is None
    assert difference.values == 5
    assert "got nothing" in str(difference)


def test_a_report_of_nothing_is_not_bit_exact():
    assert not VerifyReport(batches=1).bit_exact


def test_layers_of_a_graph_are_named_in_the_order_of_the_graph():
    plan = make("identity", probes=True)
    network = Network(plan)
    record: dict[str, torch.Tensor] = {}
    x, y = torch.ones(BATCH, 2, 4, 4).long(), torch.zeros(BATCH).long()
    network.train_batch(x, y, Hyper.of(plan, batch=BATCH, lr=0.1), record)
    names = ["skip.i_error", "conv1.i_error", "add.i_error", "add.o_feature", "conv2.o_feature"]
    seen = {n: record[n].permute(0, 2, 3, 1).reshape(-1, 1).numpy().copy() for n in names}
    expected = ["conv2.o_feature", "add.o_feature", "add.i_error", "conv1.i_error", "skip.i_error"]
    seen = {probe.name: seen[probe.name] for probe in probe_table(plan) if probe.name in seen}
    for name in reversed(expected):
        seen[name][9, 0] += 1
        difference = compare_tensors(plan, BATCH, [record], seen).difference
        assert f"{difference.layer}.{difference.tensor}" == name
        assert difference.index == (1, 0, 2)
