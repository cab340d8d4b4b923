"""Boards with forks and joins train to the golden model's bits, in every tensor, at any stalls."""

import pytest
import torch

from gradweave.host.board_device import BoardDevice
from gradweave.host.design import Design
from gradweave.host.golden_device import GoldenDevice
from gradweave.host.verify import verify
from gradweave.sim.simulate import simulate
from gradweave.tests.graphs import GRAPHS, make
from gradweave.tests.small_board import BATCH, assert_same_state, data, hyper, masters

pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize("delays", [(0, 0), (2, 1)], ids=["flush", "delayed"])
@pytest.mark.parametrize("name", GRAPHS)
def test_every_tensor_of_a_graph_is_the_golden_models(name, delays):
    plan = make(name, *delays)
    design = Design(plan, masters(plan))
    x, y = data(plan, 4)
    for stalls, seed in ((0.0, 1), (0.4, 2)):
        report = verify(design, x, y, hyper(plan), stalls=stalls, seed=seed)
        report.raise_for_difference()
        assert report.bit_exact
