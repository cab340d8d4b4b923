"""Layers of a plan carry what graph and formats say, with constants as integers."""

import math

import pytest
import torch
from torch import nn

from gradweave.host.layers import layer_plans
from gradweave.host.quantize import parameter_shapes
from gradweave.model.calibrate import calibrate
from gradweave.model.errors import PlanError
from gradweave.model.formats import Format
from gradweave.model.graph import Formats, Graph, LayerFormats, Node
from gradweave.model.kinds import KINDS
from gradweave.model.plan import LossPlan, ParameterPlan, Plan
from gradweave.model.trace import trace
from gradweave.tests.graph_nets import NETWORKS, seeded

FEATURE, ERROR = Format(16, 10), Format(16, 12)
PARAMETER = ParameterPlan(Format(16, 13), Format(32, 24), Format(32, 20))
SHAPE = (2, 3, 3)


def layer_of(kind, feature=FEATURE, **fields):
    """The plan of one layer between a convolution and the loss."""
    fields = {"i_shape": SHAPE, "o_shape": SHAPE, **fields}
    nodes = (Node("conv", "conv2d", SHAPE, SHAPE), Node(name="layer", kind=kind, **fields))
    own = LayerFormats(feature, feature, ERROR, ERROR, PARAMETER, None)
    formats = Formats(FEATURE, {"conv": own, "layer": own}, feature, ERROR)
    return layer_plans(Graph(SHAPE, nodes, "mse", 18), formats)[1]


def plan_of(name):
    model, x = seeded(name)
    graph = trace(model, x, "mse")
    formats = calibrate(graph, model.state_dict(), x)
    loss = LossPlan("mse", graph.outputs, formats.loss_feature, formats.loss_error)
    return model, Plan(name, layer_plans(graph, formats), loss, 8)


@pytest.mark.parametrize(
    ("lower", "upper", "bounds"),
    [
        (0.0, 6.0, (0, 6144)),
        (-0.7, 0.3, (-717, 307)),  # -716.8 and 307.2
        (-100.0, 50.0, (-32768, 32767)),
        (0.0, math.inf, (0, 32767)),
        (-math.inf, 0.0, (-32768, 0)),
    ],
)
def test_bounds_of_a_clip_are_integers_of_its_format(lower, upper, bounds):
    layer = layer_of("clip", lower=lower, upper=upper)
    assert (layer.lower, layer.upper) == bounds


@pytest.mark.parametrize(("slope", "integer"), [(0.0, 0), (0.01, 655), (1.0, 65536)])
def test_slopes_have_16_fraction_bits(slope, integer):
    assert layer_of("leaky_relu", slope=slope).slope == integer


def test_shares_of_dropped_values_have_16_fraction_bits():
    layer = layer_of("dropout", drop=0.3, number=4)
    assert (layer.drop, layer.number) == (19661, 4)


def test_the_largest_factor_fills_18_bits():
    layer = layer_of("affine", factors=(0.5, -0.1), offsets=(-1.25, 3.0))
    # 0.5 * 2**17 is 65536, and 2**18 would be 131072, one too many.
    assert layer.factor_frac == 17
    assert layer.factors == (65536, -13107)
    assert layer.offsets == (round(-1.25 * 2**27), 3 << 27)


@pytest.mark.parametrize("factor", [3e-9, 0.7, 1.0, 131070.6 / 2**10, 316.2, 131071.0])
def test_no_factor_exceeds_18_bits(factor):
    layer = layer_of("affine", factors=(factor, 0.0), offsets=(0.0, 0.0))
    assert layer.factors[0] <= 131071
    assert layer.factor_frac <= 40
    assert layer.factors[0] >= 65535 or layer.factor_frac == 40
    error = abs(layer.factors[0] * 2.0**-layer.factor_frac - factor)
    assert error <= 2.0 ** -(layer.factor_frac + 1)


def test_a_factor_beyond_18_bits_is_refused():
    message = r"^layer: factors must be at most 131071, not 200000\.0$"
    with pytest.raises(PlanError, match=message):
        layer_of("affine", factors=(2e5, 1.0), offsets=(0.0, 0.0))


@pytest.mark.parametrize("name", NETWORKS)
def test_formats_agree_along_every_edge(name):
    _, plan = plan_of(name)
    for edge in plan.edges:
        source = None if edge.source == "input" else plan.layer(edge.source)
        if edge.sink == "loss":
            assert (source.o_feature, source.o_error) == (plan.loss.feature, plan.loss.error)
            continue
        sink = plan.layer(edge.sink)
        if source is not None:
            assert source.o_feature == sink.i_feature, edge
            assert source.o_error == sink.i_error or not plan.passes_error(edge.source), edge
            assert source.o_shape[1:] == sink.i_shape[1:]
    for layer in plan.layers:
        kind = KINDS[layer.kind]
        assert layer.i_feature == layer.o_feature or not kind.keeps_feature
        assert layer.i_error == layer.o_error or not (kind.keeps_error and layer.backward)
    assert Plan.from_json(plan.to_json()) == plan


@pytest.mark.parametrize("name", NETWORKS)
def test_a_layer_passes_an_error_to_sources_that_take_one(name):
    _, plan = plan_of(name)
    for layer in plan.layers:
        sources = [edge.source for edge in plan.edges if edge.sink == layer.name]
        takes = tuple(plan.passes_error(source) for source in sources)
        assert layer.backward == any(takes)
        assert layer.errors in ((), takes)
        assert all(takes) or layer.errors or layer.pattern != "join"


def test_only_the_convolution_of_a_shortcut_from_the_sample_takes_an_error():
    _, plan = plan_of("residual")
    assert plan.layer("add").errors == (True, False)
    assert not plan.layer("input.fork").backward


@pytest.mark.parametrize("name", NETWORKS)
def test_parameters_have_torchs_shapes(name):
    model, plan = plan_of(name)
    expected = {key: tuple(value.shape) for key, value in model.named_parameters()}
    assert parameter_shapes(plan) == expected


def test_groups_divide_a_weights_inputs():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(4, 8, 2, groups=2), nn.Flatten())
    x = torch.randn(4, 4, 2, 2)
    graph = trace(model, x, "mse")
    formats = calibrate(graph, model.state_dict(), x)
    loss = LossPlan("mse", 8, formats.loss_feature, formats.loss_error)
    plan = Plan("grouped", layer_plans(graph, formats), loss, 8)
    assert parameter_shapes(plan) == {"0.weight": (8, 2, 2, 2), "0.bias": (8,)}
