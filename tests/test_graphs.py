"""A traced graph computes what torch computes, forward and backward, on any acyclic network."""

import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from gradweave.model.errors import UnsupportedError
from gradweave.model.float_forward import float_features, float_tensors, parameter_names
from gradweave.model.graph import Node
from gradweave.model.trace import trace
from gradweave.tests.graph_nets import NETWORKS, Inception, Residual, seeded

IMAGE = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))


class Net(nn.Module):
    """Two convolutions of one shape and a linear layer, joined by ``way``."""

    def __init__(self, way):
        super().__init__()
        self.a = nn.Conv2d(3, 3, 3, padding=1)
        self.b = nn.Conv2d(3, 3, 1)
        self.relu = nn.ReLU(inplace=True)
        self.fc = nn.LazyLinear(4)
        self.way = way
        self(IMAGE)

    def forward(self, x):
        return self.fc(self.way(self, x).flatten(1))


def traced(way):
    torch.manual_seed(2)
    return trace(Net(way), IMAGE)


def names(graph):
    return [node.name for node in graph.nodes]


@pytest.mark.parametrize("name", NETWORKS)
def test_the_graph_computes_the_model(name):
    model, x = seeded(name)
    loss = "mse" if name == "autoencoder" else "cross_entropy"
    graph = trace(model, x, loss)
    model = model.double().eval()
    got = float_features(graph, model.state_dict(), x.double().reshape(-1, *graph.input_shape))
    expected = model(x.double())
    assert torch.allclose(got[graph.nodes[-1].name].flatten(1), expected, 1e-12, 1e-12)


@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_of_the_graph_are_those_of_autograd(name):
    model, x = seeded(name)
    graph = trace(model, x, "mse")
    model = model.double().eval()
    targets = torch.randn(6, graph.outputs, dtype=torch.float64)
    x = x.double().reshape(-1, *graph.input_shape)
    (tensors,) = float_tensors(graph, model.state_dict(), x, targets, 6)
    (0.5 * (model(x.reshape(6, *NETWORKS[name][1])) - targets) ** 2).sum().backward()
    parameters = dict(model.named_parameters())
    assert sorted(parameter_names(graph)) == sorted(parameters)
    for key, parameter in parameters.items():
        assert torch.allclose(tensors[f"{key}.gradient"], parameter.grad, 1e-9, 1e-12), key


@pytest.mark.parametrize("name", NETWORKS)
def test_every_feature_has_as_many_readers_as_outputs(name):
    model, x = seeded(name)
    graph = trace(model, x, "mse")
    reads = [source for sources in graph.sources.values() for source in sources]
    seen = {"input"}
    for node in graph.nodes:
        assert seen.issuperset(graph.sources[node.name])
        seen.add(node.name)
    assert len(seen) == len(graph.nodes) + 1
    assert reads.count("input") == 1
    assert all(reads.count(node.name) == node.fan for node in graph.nodes[:-1])
    assert graph.nodes[-1].name not in reads


def test_a_shortcut_from_the_sample_is_a_fork_of_the_input():
    graph = trace(Residual(), IMAGE)
    shape = (3, 8, 8)
    assert graph.nodes == (
        Node("input.fork", "fork", shape, shape, fan=2),
        Node("conv", "conv2d", shape, shape, (3, 3), (1, 1), (1, 1), True),
        Node("add", "add", shape, shape, sources=("conv", "input.fork")),
        Node("relu", "relu", shape, shape),
        Node("fc", "linear", shape, (5, 1, 1), (8, 8), bias=True),
    )
    assert graph.sources["conv"] == ("input.fork",)
    assert graph.error_takers == {"conv", "add", "relu", "fc"}


def test_branches_end_in_a_concatenation_and_dead_ones_vanish():
    graph = trace(Inception(), IMAGE)
    nodes = {node.name: node for node in graph.nodes}
    assert "mean" not in nodes
    assert nodes["input.fork"].fan == 4
    assert nodes["cat"].parts == (2, 4, 2, 2)
    assert nodes["cat"].sources == ("one", "three.2", "five.2", "pool.1")
    assert nodes["cat"].i_shape == nodes["cat"].o_shape == (10, 8, 8)
    assert nodes["five.0"].sources == ("input.fork",)
    assert nodes["act"].sources == ()


ADDITIONS = {
    "operator": lambda x, y: x + y,
    "function": torch.add,
    "method": lambda x, y: x.add(y),
    "in_place": lambda x, y: x.add_(y),
    "alpha_of_one": lambda x, y: torch.add(x, y, alpha=1),
    "sum": lambda x, y: sum([x, y]),
}


@pytest.mark.parametrize("case", ADDITIONS)
def test_every_way_to_add_is_the_same(case):
    graph = traced(lambda m, x: ADDITIONS[case](m.a(x), m.b(x)))
    (join,) = (node for node in graph.nodes if node.kind == "add")
    assert join.sources == ("a", "b")


def twice(m, x):
    y = m.b(m.a(x))
    return y + y


def test_a_feature_that_is_added_to_itself_is_read_twice():
    graph = traced(twice)
    assert names(graph)[:5] == ["a", "b", "b.fork", "add", "fc"]
    assert graph.sources["add"] == ("b.fork", "b.fork")
    assert graph.nodes[2].fan == 2


def test_flattened_maps_join_by_channels():
    graph = traced(lambda m, x: torch.cat([m.a(x).flatten(1), m.b(x).flatten(1)], dim=-1))
    node = graph.nodes[-2]
    assert (node.kind, node.o_shape, node.parts) == ("concat", (6, 8, 8), (3, 3))
    assert graph.nodes[-1].kernel == (8, 8)


def test_vectors_join_as_maps_of_one_pixel():
    graph = traced(
        lambda m, x: torch.cat(
            [m.a(x).mean((2, 3)), F.adaptive_max_pool2d(m.b(x), 1).flatten(1)], 1
        )
    )
    assert graph.nodes[-2].o_shape == (6, 1, 1)


def test_a_module_without_parameters_may_be_called_often():
    graph = traced(lambda m, x: m.relu(m.b(m.relu(m.a(m.relu(x))))))
    assert names(graph) == ["relu", "a", "relu_1", "b", "relu_2", "fc"]


def test_names_of_calls_make_way_for_modules():
    class Clash(nn.Module):
        def __init__(self):
            super().__init__()
            self.relu = nn.ReLU()
            self.relu_1 = nn.Conv2d(3, 2, 8)

        def forward(self, x):
            return self.relu_1(self.relu(self.relu(x)))

    assert names(trace(Clash(), IMAGE)) == ["relu", "relu_1_", "relu_1"]


def fork_in_place(m, x):
    y = m.a(x)
    return m.relu(y) + y


def by_the_way(m, x):
    y = m.b(m.a(x))
    F.relu_(y)
    return y


def renamed(m, x):
    y = m.b(m.a(x))
    z = y
    y += x
    return y + z


def frozen(m, x):
    with torch.no_grad():
        return m.a(x)


REFUSED = {
    "changed_and_read": (
        fork_in_place,
        "relu (ReLU) changes its input in place, which add (add) reads afterwards: let it return "
        "a new tensor",
    ),
    "changed_by_the_way": (
        by_the_way,
        "relu_ (relu_) changes its input in place, which flatten (flatten) reads afterwards: let "
        "it return a new tensor",
    ),
    "changed_under_another_name": (
        renamed,
        "model (Net) does not compute in evaluation mode what its trace does: no layer may change "
        "a tensor in place that is read again, or drop values without training=self.training",
    ),
    "twice": (
        lambda m, x: m.a(m.a(x)) + m.b(x),
        "a (Conv2d, input 3x8x8) is called twice: each layer must own its parameters",
    ),
    "without_gradient": (
        lambda m, x: frozen(m, x) + m.b(x),
        "a is called under torch.no_grad(): the hardware trains every layer",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_graph_cannot_say_is_refused(case):
    way, message = REFUSED[case]
    with pytest.raises(UnsupportedError, match=f"^{re.escape(message)}$"):
        traced(way)


def test_vectors_of_other_maps_are_not_added():
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc1 = nn.Linear(192, 192)
            self.fc2 = nn.Linear(192, 3)

        def forward(self, x):
            x = x.flatten(1)
            return self.fc2(self.fc1(x) + x)

    message = (
        "add (add, input 192) is not supported: its inputs must be flattened from maps of one "
        "shape, not 192x1x1 and 3x8x8"
    )
    with pytest.raises(UnsupportedError, match=f"^{re.escape(message)}$"):
        trace(Mixed(), IMAGE)


def test_a_layer_cannot_have_the_samples_name():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.input = nn.Conv2d(3, 2, 8)

        def forward(self, x):
            return self.input(x)

    message = "input (Conv2d, input 3x8x8) must have another name: 'input' and 'loss' are taken"
    with pytest.raises(UnsupportedError, match=f"^{re.escape(message)}$"):
        trace(Named(), IMAGE)


CLASSES = (
    "returns 2 outputs, and cross_entropy is one softmax over one of them: use loss='mse', "
    "'huber' or 'bce_with_logits', or return one"
)
NAMED = "must return the output of a layer, or several outputs as a tuple, not {'a': a, 'b': b}"


@pytest.mark.parametrize(
    ("outputs", "message"),
    [(tuple, CLASSES), (list, CLASSES), (lambda y: dict(zip("ab", y, strict=True)), NAMED)],
)
def test_outputs_that_one_loss_cannot_take_are_refused(outputs, message):
    class Heads(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Conv2d(3, 2, 8), nn.Conv2d(3, 2, 8)

        def forward(self, x):
            return outputs([self.a(x), self.b(x)])

    with pytest.raises(UnsupportedError) as caught:
        trace(Heads(), IMAGE)
    assert str(caught.value) == f"model (Heads).forward {message}"
