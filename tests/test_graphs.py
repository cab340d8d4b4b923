"""Boards with forks and joins train to the golden model's bits, in every tensor, at any stalls."""

import re
from dataclasses import replace

import pytest
import torch

from gradweave.host.board_device import BoardDevice
from gradweave.host.design import Design
from gradweave.host.golden_device import GoldenDevice
from gradweave.host.verify import verify
from gradweave.model.errors import DeviceError
from gradweave.model.plan import Plan
from gradweave.sim.simulate import simulate
from gradweave.tests.graphs import GRAPHS, make
from gradweave.tests.small_board import BATCH, assert_same_state, data, hyper, masters

pytestmark = pytest.mark.timeout(900)

FLUSH, DELAYED = (0, 0), (2, 1)
# The boards that the quick tests build; the others are slow.
QUICK = {("double", DELAYED)}
CASES = [
    pytest.param(name, late, id=f"{name}-{'delayed' if late[0] else 'flush'}")
    if (name, late) in QUICK
    else pytest.param(
        name, late, id=f"{name}-{'delayed' if late[0] else 'flush'}", marks=pytest.mark.slow
    )
    for name in GRAPHS
    for late in (FLUSH, DELAYED)
]


@pytest.mark.parametrize(("name", "late"), CASES)
def test_every_tensor_of_a_graph_is_the_golden_models(name, late):
    plan = make(name, *late)
    x, y = data(plan, 4)
    report = verify(Design(plan, masters(plan)), x, y, hyper(plan), stalls=0.3, seed=1)
    report.raise_for_difference()
    assert report.bit_exact
    # Joins have what they add and what they copy; a fork only the sum of its errors.
    for layer in plan.layers:
        assert (f"{layer.name}.o_feature" in report.values) == (layer.kind != "fork")
        assert (f"{layer.name}.i_error" in report.values) == layer.backward
