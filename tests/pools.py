"""Pools for tests: layers whose number of outputs is torch's, maps of awkward values, and hardware
against the golden model on the same streams.
"""

import random
from dataclasses import replace

import torch
from torch.nn import functional as F

from gradweave.model.formats import Format, Rounding
from gradweave.model.pipeline import avgpool as golden_avgpool
from gradweave.model.pipeline import maxpool as golden_maxpool
from gradweave.model.plan import Buffers, LayerPlan
from gradweave.model.schedule import minimum_buffers
from gradweave.model.step import Step
from gradweave.rtl.pipeline.avgpool import AvgPool
from gradweave.rtl.pipeline.maxpool import MaxPool
from gradweave.tests.streams import random_lanes, run_streams

__all__ = [
    "ERROR",
    "FEATURE",
    "MODES",
    "adaptive",
    "random_maps",
    "run_pool",
    "to_words",
    "windows",
]

FEATURE, ERROR = Format(8, 4), Format(6, 5)
MODES = [Rounding.HALF_EVEN, Rounding.HALF_UP, Rounding.FLOOR]
BLOCKS = {
    "maxpool2d": (golden_maxpool.MaxPool, MaxPool),
    "avgpool2d": (golden_avgpool.AvgPool, AvgPool),
}


def windows(kind, shape, kernel, stride, padding=(0, 0), *, ceil_mode=False, **rest):
    """A pool of one kernel; ``rest`` goes to ``LayerPlan``, ``rows`` to its buffers."""
    where = {"stride": stride, "padding": padding, "ceil_mode": ceil_mode}
    if kind == "maxpool2d":
        where["dilation"] = rest.get("dilation", (1, 1))
    pool = {"maxpool2d": F.max_pool2d, "avgpool2d": F.avg_pool2d}[kind]
    o_shape = tuple(pool(torch.zeros(1, *shape), kernel, **where).shape[1:])
    return _sized(
        kind=kind,
        i_shape=shape,
        o_shape=o_shape,
        kernel=kernel,
        stride=stride,
        padding=padding,
        **rest,
    )


def adaptive(shape, outputs, **rest):
    """An adaptive average pool to ``outputs`` rows and columns."""
    o_shape = (shape[0], *outputs)
    return _sized(kind="avgpool2d", i_shape=shape, o_shape=o_shape, adaptive=True, **rest)


def _sized(*, rows=0, **values):
    """``rows`` of buffer in front of each engine, or the least that cannot deadlock."""
    same = {"i_feature": FEATURE, "o_feature": FEATURE, "i_error": ERROR, "o_error": ERROR}
    plan = LayerPlan(**{"name": "pool", "backward": True, **same, **values})
    least = minimum_buffers(plan)
    if rows:
        least = Buffers(fp_rows=rows, eb_rows=rows, index_words=2 * least.index_words + 64)
    return replace(plan, buffers=least)


def to_words(maps, lanes):
    """[B, C, H, W] -> words in raster order, channels innermost."""
    return maps.permute(0, 2, 3, 1).reshape(-1, lanes).long().tolist()


def random_maps(rng, width, shape):
    """Values from the whole range in one sample, few values, hence ties, in the next."""
    count = torch.Size(shape).numel()
    values = torch.tensor(random_lanes(rng, width, 1, count)).reshape(shape)
    values[1::2] = values[1::2].clamp(-1, 1)
    return values.double()


def run_pool(plan, samples, seed=0, rounding=Rounding.HALF_EVEN, **options):
    """Run forward and backward against the golden model."""
    rng = random.Random(seed)
    features = random_maps(rng, plan.i_feature.width, (samples, *plan.i_shape))
    errors = random_maps(rng, plan.o_error.width, (samples, *plan.o_shape))
    software, hardware = BLOCKS[plan.kind]
    golden = software(plan, rounding)
    results, none = golden.forward(features, Step(training=True))
    below, clipped = golden.backward(errors)
    assert none == 0
    expected = {"o": to_words(results, plan.lanes), "i_error": to_words(below, plan.lanes)}
    run = run_streams(
        hardware(plan, rounding),
        {"i": to_words(features, plan.lanes), "o_error": to_words(errors, plan.lanes)},
        {name: len(words) for name, words in expected.items()},
        seed=seed,
        set_up={"training": 1},
        sample=["saturated"],
        **options,
    )
    assert run.words == expected
    assert run.sampled["saturated"] == {"i_error": clipped}
    return run
