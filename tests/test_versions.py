"""The version table, and that a store keeps what is still to be read and nothing else."""

import re

import pytest

from gradweave.model.errors import PlanError
from gradweave.model.versions import VersionStore, version


def test_the_table_starts_at_version_0_and_lags_by_the_delay():
    assert [version(k, 0) for k in range(4)] == [0, 1, 2, 3]
    assert [version(k, 2) for k in range(6)] == [0, 0, 0, 1, 2, 3]


@pytest.mark.parametrize("delay", [0, 1, 3])
def test_each_mini_batch_reads_its_version(delay):
    store = VersionStore(delay)
    store.start("v0")
    for batch in range(8):
        assert store.read(batch) == f"v{max(0, batch - delay)}"
        assert store.add(f"v{batch + 1}") == batch + 1


def test_a_version_that_no_later_mini_batch_reads_is_gone():
    store = VersionStore(1)
    store.start(0)
    store.add(1)
    assert store.read(1) == 0
    store.add(2)
    message = "version 0 must be one of [1, 2] for mini-batch 1"
    with pytest.raises(PlanError, match=f"^{re.escape(message)}$"):
        store.read(1)


def test_a_version_that_is_not_there_yet_is_refused():
    store = VersionStore(0)
    store.start(0)
    message = "version 1 must be one of [0] for mini-batch 1"
    with pytest.raises(PlanError, match=f"^{re.escape(message)}$"):
        store.read(1)


def test_starting_again_forgets_the_old_segment():
    store = VersionStore(0)
    store.start("old")
    store.add("older")
    store.start("new")
    assert store.read(0) == "new"


def test_misuse_is_refused():
    with pytest.raises(PlanError, match=r"^delay must be 0 or more mini-batches, not -1$"):
        VersionStore(-1)
    with pytest.raises(PlanError, match=r"^version 0 must be started before the next one is added"):
        VersionStore(0).add(1)
