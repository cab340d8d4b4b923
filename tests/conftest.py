"""What every test shares: drawn cases that repeat, and a small plan that was written by hand."""

import os
import signal

# Before torch is loaded: its threads spin, and the tests run on all cores already.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from hypothesis import settings

from gradweave.model.formats import Format
from gradweave.model.plan import Buffers, LayerPlan, LossPlan, ParameterPlan, Plan

# A shell that starts the tests in the background has them ignore Ctrl-C, which some tests send.
signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("repeatable", derandomize=True, deadline=None, print_blob=True)
settings.load_profile("repeatable")

FEATURE = Format(16, 12)
ERROR = Format(16, 13)
PARAMETER = ParameterPlan(Format(16, 14), Format(32, 28), Format(24, 16))


@pytest.fixture
def hand_plan() -> Plan:
    """Conv 1-4 (3x3, padding 1) on 8x8, ReLU, pool 2, linear 64-10, cross-entropy."""
    around = {"i_feature": FEATURE, "o_feature": FEATURE, "i_error": ERROR, "o_error": ERROR}
    trained = {**around, "weight": PARAMETER, "bias": PARAMETER}
    conv = LayerPlan(
        name="conv",
        kind="conv2d",
        i_shape=(1, 8, 8),
        o_shape=(4, 8, 8),
        backward=False,
        kernel=(3, 3),
        padding=(1, 1),
        a=2,
        b=1,
        delay=1,
        buffers=Buffers(fp_rows=4, wg_rows=8, error_words=16),
        **trained,
    )
    relu = LayerPlan("relu", "relu", (4, 8, 8), (4, 8, 8), backward=True, lanes=2, **around)
    pool = LayerPlan(
        name="pool",
        kind="maxpool2d",
        i_shape=(4, 8, 8),
        o_shape=(4, 4, 4),
        backward=True,
        kernel=(2, 2),
        stride=(2, 2),
        lanes=2,
        **around,
    )
    linear = LayerPlan(
        name="linear",
        kind="linear",
        i_shape=(4, 4, 4),
        o_shape=(10, 1, 1),
        backward=True,
        kernel=(4, 4),
        a=5,
        b=2,
        **trained,
    )
    loss = LossPlan("cross_entropy", 10, FEATURE, ERROR)
    return Plan("hand", (conv, relu, pool, linear), loss, batch_max=16)
