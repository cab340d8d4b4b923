"""An exported program is read as the model that it came from: same layers, names and values."""

import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim, export

import gradweave as gw
from gradweave.model.aten import CALLS
from gradweave.model.calls import called
from gradweave.model.errors import UnsupportedError
from gradweave.model.exported import as_module
from gradweave.model.trace import trace

GENERATOR = torch.Generator().manual_seed(5)
IMAGE = torch.randn(3, 2, 8, 8, generator=GENERATOR)
BATCHES = {"static": None, "dynamic": ({0: Dim("samples")},)}


class Block(nn.Module):
    """A residual block in the style of torchvision, nested so that paths have dots."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding="same", bias=False)
        self.bn = nn.BatchNorm2d(4)
        self.drop = nn.Dropout(0.25)

    def forward(self, x):
        return F.relu(self.drop(self.bn(self.conv(x))) + x, inplace=True)


class Net(nn.Module):
    """Modules and functions, one pool called twice, a branch, and two outputs."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(2, 4, (3, 5), stride=(1, 2), padding=(1, 2), dilation=1)
        self.blocks = nn.Sequential(Block(), nn.ReLU6(), Block())
        self.deep = nn.Conv2d(4, 8, 3, padding=2, dilation=2, groups=4)
        self.pool = nn.MaxPool2d(2)
        self.act = nn.Hardtanh(-2, 2, inplace=True)
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(16, 5, bias=False), nn.BatchNorm1d(5))
        self.side = nn.Linear(4, 3)

    def forward(self, x):
        x = self.blocks(F.relu(self.stem(x)))
        y = self.pool(self.deep(x))
        y = self.act(self.pool(y))
        z = x.mean((2, 3))
        return self.head(y), self.side(z)


def with_statistics(model: nn.Module) -> nn.Module:
    """Give every BatchNorm statistics and factors as training leaves them."""
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, (nn.BatchNorm2d, nn.BatchNorm1d)):
                for tensor in (module.weight, module.running_var):
                    tensor.uniform_(0.5, 2, generator=GENERATOR)
                for tensor in (module.bias, module.running_mean):
                    tensor.uniform_(-1, 1, generator=GENERATOR)
    return model


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("training", [True, False])
def test_a_program_has_the_graph_of_its_model(batch, training):
    model = with_statistics(Net()).train(training)
    program = export(model, (IMAGE,), dynamic_shapes=BATCHES[batch])
    module = as_module(program)
    assert trace(module, IMAGE, "mse") == trace(model, IMAGE, "mse")
    x = torch.randn(7, 2, 8, 8, generator=GENERATOR)
    for got, expected in zip(module.eval()(x), model.eval()(x), strict=True):
        assert torch.equal(got, expected)


def test_state_comes_from_the_program_and_loads_back():
    model = with_statistics(Net())
    module = as_module(export(model, (IMAGE,)))
    assert type(module).__name__ == "Net"
    assert {name: id(p) for name, p in module.named_parameters()} == {
        name: id(p) for name, p in model.named_parameters()
    }
    state = module.state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in model.state_dict().items())
    Net().load_state_dict(state)


# One forward for every operator, and what the layers behind it are called.
OPERATORS = {
    "relu": lambda x: torch.relu(x),
    "relu_": lambda x: F.relu(x, inplace=True),
    "hardtanh": lambda x: F.hardtanh(x, -0.5, 0.75),
    "hardtanh_": lambda x: F.hardtanh_(x),
    "clamp": lambda x: x.clamp(max=0.5),
    "clamp_": lambda x: x.clamp_(-0.25, 0.5),
    "leaky_relu": lambda x: F.leaky_relu(x, 0.125),
    "leaky_relu_": lambda x: F.leaky_relu(x, 0.125, inplace=True),
    "sigmoid": lambda x: torch.sigmoid(x),
    "sigmoid_": lambda x: x.sigmoid_(),
    "tanh": lambda x: x.tanh(),
    "tanh_": lambda x: x.tanh_(),
    "gelu": lambda x: F.gelu(x),
    "silu": lambda x: F.silu(x),
    "silu_": lambda x: F.silu(x, inplace=True),
    "softmax": lambda x: x.softmax(1),
    "max_pool2d": lambda x: F.max_pool2d(x, 3, stride=2, padding=1),
    "max_pool2d_with_indices": lambda x: F.max_pool2d(x, 2, return_indices=True)[0],
    "adaptive_max_pool2d": lambda x: F.adaptive_max_pool2d(x, (4, 2)),
    "avg_pool2d": lambda x: F.avg_pool2d(x, 3, 2, 1, True, False),
    "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x, 3),
    "mean": lambda x: x.mean((2, 3)),
    "add": lambda x: torch.relu(x) + torch.tanh(x),
    "add_": lambda x: torch.relu(x).add_(torch.tanh(x)),
    "cat": lambda x: torch.cat([torch.relu(x), torch.tanh(x)], 1),
    "pad": lambda x: F.conv2d(F.pad(x, (1, 0, 2, 0)), torch.ones(3, 2, 1, 1)),
    "clone": lambda x: torch.relu(x).clone(),
    "contiguous": lambda x: torch.relu(x).contiguous(),
    "sym_size": lambda x: x.view(x.size(0), -1),
    "view": lambda x: x.view(-1, 128),
    "reshape": lambda x: x.reshape(-1, 128),
    "flatten": lambda x: x.flatten(1),
    "unflatten": lambda x: x.flatten(1).unflatten(1, (2, 8, 8)),
    "squeeze": lambda x: F.adaptive_avg_pool2d(x, 1).squeeze(3).squeeze(2),
    "unsqueeze": lambda x: x.mean((2, 3)).unsqueeze(2).unsqueeze(3),
    "dropout": lambda x: F.dropout(x, 0.25, False),
    "dropout_": lambda x: F.dropout(x, 0.25, False, inplace=True),
}


class Operator(nn.Module):
    """One operator between a convolution and a linear layer."""

    def __init__(self, function):
        super().__init__()
        self.conv = nn.Conv2d(2, 2, 1)
        self.function = function
        self.fc = nn.Linear(function(torch.randn(3, 2, 8, 8)).flatten(1).shape[1], 2)

    def forward(self, x):
        return self.fc(torch.flatten(self.function(self.conv(x)), 1))


def test_every_operator_is_in_the_next_test():
    assert set(OPERATORS) == set(CALLS)


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("name", [n for n in OPERATORS if n not in ("pad", "dropout", "dropout_")])
def test_every_operator_becomes_the_layer_that_its_function_is(name, batch):
    model = Operator(OPERATORS[name])
    program = export(model, (IMAGE,), dynamic_shapes=BATCHES[batch])
    names = {called(node.target) for node in program.graph.nodes}
    assert name in names or name in ("sym_size", "reshape", "contiguous")
    module = as_module(program)
    if name == "max_pool2d_with_indices":  # torch.fx sees no pool in it
        model.function = lambda x: F.max_pool2d(x, 2)
    got, expected = trace(module, IMAGE).nodes, trace(model, IMAGE).nodes
    anonymous = [[(n.kind, n.i_shape, n.o_shape, n.kernel) for n in x] for x in (got, expected)]
    assert anonymous[0] == anonymous[1]
    x = torch.randn(5, 2, 8, 8, generator=GENERATOR)
    assert torch.equal(module(x), model(x))


def test_zeros_around_a_map_become_a_convolutions_padding():
    model = nn.Sequential(nn.ZeroPad2d((1, 0, 2, 1)), nn.Conv2d(2, 3, 2), nn.Flatten())
    model.append(nn.Linear(240, 2))
    module = as_module(export(model, (IMAGE,)))
    assert trace(module, IMAGE) == trace(model, IMAGE)


def test_dropout_of_a_function_follows_the_mode_once_it_was_exported_in_training():
    class Both(Operator):
        def __init__(self):
            super().__init__(lambda x: F.dropout(x, 0.25, self.training))
            self.dropout = nn.Dropout(0.5)

        def forward(self, x):
            return self.dropout(super().forward(x))

    model = Both()
    graph = trace(as_module(export(model, (IMAGE,))), IMAGE)
    drops = {node.name: node.drop for node in graph.nodes if node.kind == "dropout"}
    assert list(drops.values()) == [0.25, 0.5]
    assert list(drops)[1] == "dropout"
    module = as_module(export(model.eval(), (IMAGE,)))
    with pytest.raises(UnsupportedError, match="its training is False, so it would never drop"):
        trace(module, IMAGE)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.w = nn.Parameter(torch.ones(1, 4))

    def twice(self, x):
        return self.fc(F.relu(self.fc(x)))

    def bare(self, x):
        return F.linear(self.fc(x), self.w)

    def unused(self, x):
        return self.fc(x)

    def constant(self, x):
        return self.fc(x) + self.w

    def two(self, x):
        return self.fc(x).split(2, 1)[1]

    def named(self, x):
        return {"logits": self.fc(x)}

    def norm(self, x):
        return F.layer_norm(self.fc(x), [4])

    def without_gradient(self, x):
        with torch.no_grad():
            return self.fc(x)


REFUSED = {
    "twice": "fc (Linear, input 4) is called twice: each layer must own its parameters",
    "bare": "linear (linear, input 4) is not supported: its parameters have no module; use "
    "nn.Linear",
    "unused": "w is never used by forward: remove it from the model",
    "constant": "add (add, input 4) is not supported: both its inputs must be outputs of layers",
    "two": "split (split, input 4) is not supported: supported are Conv2d, Linear",
    "named": "model (Refused).forward must return a tensor, or several as a tuple, not a dict",
    "norm": "layer_norm (layer_norm, input 4) is not supported: only BatchNorm with frozen",
    "without_gradient": "wrap_with_set_grad_enabled",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_layer_is_is_refused_by_its_name(name):
    class Refused(Tied):
        forward = getattr(Tied, name)

    program = export(Refused(), (torch.zeros(2, 4),))
    with pytest.raises(UnsupportedError, match=re.escape(REFUSED[name])):
        trace(as_module(program), torch.zeros(2, 4))


def test_a_module_of_torchs_own_is_refused_by_path_and_type():
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(144, 2))
    with pytest.raises(UnsupportedError, match=re.escape("1 (GroupNorm, input 4x6x6) is not")):
        trace(as_module(export(model, (IMAGE,))), IMAGE)


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # torch's own
def test_a_decomposed_program_says_how_to_export():
    program = export(Net(), (IMAGE,)).run_decompositions()
    rule = "model (Net) was decomposed, stem into convolution: give the program as torch.export"
    with pytest.raises(UnsupportedError, match=re.escape(rule)):
        as_module(program)


def test_indices_that_are_read_are_refused():
    model = Operator(lambda x: F.adaptive_max_pool2d(x, 2, return_indices=True)[1] * 1.0)
    with pytest.raises(UnsupportedError, match="return_indices must be False"):
        trace(as_module(export(model, (IMAGE,))), IMAGE)


def test_a_program_compiles_to_the_design_of_its_model():
    model = with_statistics(Net())
    program = export(model, (IMAGE,))
    target = torch.zeros(3, 8)
    designs = [gw.compile(m, IMAGE, loss="mse", targets=target, batch=2) for m in (model, program)]
    assert designs[0].plan.identity == designs[1].plan.identity
    for name, tensor in designs[0].masters.items():
        assert torch.equal(designs[1].masters[name], tensor)
    model.load_state_dict(designs[1].state_dict())
