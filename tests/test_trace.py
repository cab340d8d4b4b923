"""A traced model is what torch computes; all else is refused by path, type and rule."""

import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from gradweave.model.errors import GradweaveWarning, InputError, UnsupportedError
from gradweave.model.graph import Node
from gradweave.model.rules import SUPPORTED
from gradweave.model.trace import trace

IMAGE = torch.zeros(1, 2, 8, 8)


class LeNet(nn.Module):
    """The tutorial's way of writing a network: functions, and one pool called twice."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5, padding=2)
        self.conv2 = nn.Conv2d(6, 16, (5, 3), stride=(1, 2), bias=False)
        self.pool = nn.MaxPool2d(2)
        self.fc = nn.Linear(16 * 5 * 3, 10)

    def forward(self, x):
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(torch.relu(self.conv2(x)))
        return self.fc(self.flat(x))

    def flat(self, x):
        return torch.flatten(x, 1)


def head(*layers: nn.Module) -> nn.Sequential:
    """Layers in front of a linear end that fits whatever comes out."""
    with torch.no_grad():
        features = nn.Sequential(*layers)(IMAGE).flatten(1).shape[1]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(features, 4))


def test_the_chain_has_names_shapes_and_arguments():
    graph = trace(LeNet(), torch.zeros(3, 1, 28, 28))
    assert graph.input_shape == (1, 28, 28)
    assert graph.outputs == 10
    assert graph.loss == "cross_entropy"
    conv2 = Node("conv2", "conv2d", (6, 14, 14), (16, 10, 6), (5, 3), (1, 2), (0, 0), False)
    assert graph.nodes == (
        Node("conv1", "conv2d", (1, 28, 28), (6, 28, 28), (5, 5), (1, 1), (2, 2), True),
        Node("relu", "relu", (6, 28, 28), (6, 28, 28)),
        Node("pool", "maxpool2d", (6, 28, 28), (6, 14, 14), (2, 2), (2, 2), (0, 0)),
        conv2,
        Node("relu_1", "relu", (16, 10, 6), (16, 10, 6)),
        Node("pool_1", "maxpool2d", (16, 10, 6), (16, 5, 3), (2, 2), (2, 2), (0, 0)),
        Node("fc", "linear", (16, 5, 3), (10, 1, 1), (5, 3), (1, 1), (0, 0), True),
    )
    assert graph.trainable == (graph.nodes[0], conv2, graph.nodes[6])


@pytest.mark.parametrize(
    "flat",
    [
        lambda x: x.flatten(1),
        lambda x: x.flatten(start_dim=1),
        lambda x: x.view(x.size(0), -1),
        lambda x: x.view(-1, 240),
        lambda x: x.view(x.size()[0], 240),
        lambda x: x.reshape(x.shape[0], -1),
        lambda x: torch.flatten(x, start_dim=1),
        lambda x: torch.reshape(x, (x.size(0), -1)),
    ],
)
def test_every_way_to_flatten_is_the_same(flat):
    model = LeNet()
    expected = trace(model, torch.zeros(1, 1, 28, 28))
    model.flat = flat
    assert trace(model, torch.zeros(1, 1, 28, 28)) == expected


@pytest.mark.parametrize(
    "pool",
    [
        lambda x: F.max_pool2d(x, 3, 2, 1),
        lambda x: F.max_pool2d(x, kernel_size=(3, 3), stride=2, padding=(1, 1)),
        lambda x: torch.max_pool2d(x, 3, stride=2, padding=1),
        nn.MaxPool2d(3, 2, 1),
    ],
)
def test_pools_may_overlap_and_be_padded(pool):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(32, 4)
            self.pool = pool

        def forward(self, x):
            return self.fc(self.pool(x).flatten(1))

    node = trace(Net(), IMAGE).nodes[0]
    assert (node.kernel, node.stride, node.padding) == ((3, 3), (2, 2), (1, 1))
    assert node.o_shape == (2, 4, 4)


def test_same_padding_becomes_numbers():
    nodes = trace(head(nn.Conv2d(2, 3, (5, 1), padding="same")), IMAGE).nodes
    assert nodes[0].padding == (2, 0)
    assert trace(head(nn.Conv2d(2, 3, 3, padding="valid")), IMAGE).nodes[0].padding == (0, 0)


def test_stride_may_exceed_the_kernel():
    node = trace(head(nn.Conv2d(2, 3, 1, stride=3)), IMAGE).nodes[0]
    assert (node.kernel, node.stride, node.o_shape) == ((1, 1), (3, 3), (3, 3, 3))


def test_identity_vanishes_and_relu_may_be_in_place():
    model = head(nn.Conv2d(2, 3, 3), nn.Identity(), nn.ReLU(inplace=True))
    assert [node.name for node in trace(model, IMAGE).nodes] == ["0", "2", "4"]


def test_vectors_are_maps_of_one_pixel():
    graph = trace(
        nn.Sequential(nn.Linear(7, 5), nn.ReLU(), nn.Linear(5, 1)), torch.zeros(2, 7), "mse"
    )
    assert graph.input_shape == (7, 1, 1)
    assert [node.o_shape for node in graph.nodes] == [(5, 1, 1), (5, 1, 1), (1, 1, 1)]
    assert graph.nodes[0].kernel == (1, 1)


def test_a_convolution_may_end_in_one_pixel():
    graph = trace(nn.Sequential(nn.Conv2d(2, 4, 8)), IMAGE)
    assert graph.outputs == 4


def test_tracing_leaves_the_model_as_it_is():
    model = head(nn.Conv2d(2, 3, 3), nn.ReLU(inplace=True))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert model.training
    trace(model, IMAGE)
    assert model.training
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


REFUSED = {
    "return_indices": (
        lambda: nn.Sequential(nn.Conv2d(2, 4, 1), nn.MaxPool2d(8, return_indices=True)),
        "1 (MaxPool2d, input 4x8x8) is not supported: return_indices must be False",
    ),
    "padding_mode": (
        lambda: head(nn.Conv2d(2, 4, 3, padding=1, padding_mode="reflect")),
        "0 (Conv2d, input 2x8x8) is not supported: padding_mode must be 'zeros', not 'reflect'",
    ),
    "kernel": (
        lambda: head(nn.Conv2d(2, 4, 12, padding=6)),
        "0 (Conv2d, input 2x8x8) is not supported: kernel_size must be 1 to 11, not (12, 12)",
    ),
    "transposed": (
        lambda: head(nn.ConvTranspose2d(2, 4, 3)),
        "0 (ConvTranspose2d, input 2x8x8) is not supported: transposed convolutions are not built",
    ),
    "log_softmax": (
        lambda: nn.Sequential(*head(nn.Conv2d(2, 4, 3)), nn.LogSoftmax(dim=1)),
        "3 (LogSoftmax, input 4) is not supported: the cross-entropy loss applies log-softmax "
        "itself; remove it and return the logits",
    ),
    "softmax_of_one": (
        lambda: head(nn.Conv2d(2, 1, 3), nn.Softmax(dim=1)),
        "1 (Softmax, input 1x6x6) is not supported: it must have at least 2 channels; over one it "
        "is 1 everywhere",
    ),
    "linear_on_a_map": (
        lambda: nn.Sequential(nn.Conv2d(2, 4, 8), nn.Linear(1, 3)),
        "1 (Linear, input 4x1x1) is not supported: its input must be [N, features]; "
        "put Flatten before it",
    ),
    "map_at_the_end": (
        lambda: nn.Sequential(nn.Conv2d(2, 4, 3)),
        "0 (Conv2d) ends the model with a map of 4x6x6: the output must be a vector of logits; "
        "end with a Linear layer, or a layer whose map is 1x1",
    ),
    "flattened_map_at_the_end": (
        lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.Flatten()),
        "1 (Flatten) ends the model with a map of 4x6x6: the output must be a vector of logits; "
        "end with a Linear layer, or a layer whose map is 1x1",
    ),
    "flattened_too_far": (
        lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.Flatten(2), nn.Flatten(), nn.Linear(144, 3)),
        "1 (Flatten, input 4x6x6) is not supported: it must flatten each sample to [N, 144], "
        "not to [2, 4, 36]",
    ),
    "nothing_to_train": (
        lambda: nn.Sequential(nn.ReLU(), nn.MaxPool2d(8)),
        "model (Sequential) has no trainable layer: it must use at least one Conv2d or Linear",
    ),
    "nothing_at_all": (
        lambda: nn.Sequential(nn.MaxPool2d(8)),
        "model (Sequential) has no trainable layer: it must use at least one Conv2d or Linear",
    ),
    "half": (
        lambda: head(nn.Conv2d(2, 4, 3)).half(),
        "0.weight must be float32 or float64, not float16: call model.float() first",
    ),
    "frozen": (
        lambda: head(nn.Conv2d(2, 4, 3)).requires_grad_(False),
        "0.weight is frozen (requires_grad=False): the hardware trains every layer",
    ),
    "one_output": (
        lambda: nn.Sequential(nn.Conv2d(2, 1, 8)),
        "cross_entropy needs at least 2 outputs, not 1: use loss='bce_with_logits' or 'mse'",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_built_is_refused_by_name(case):
    make, message = REFUSED[case]
    with pytest.raises(UnsupportedError, match=f"^{re.escape(message)}$"):
        trace(make(), IMAGE)


class Branches(nn.Module):
    """Modules for the connections that no chain has; ``way`` picks the forward pass."""

    def __init__(self, way):
        super().__init__()
        self.conv = nn.Conv2d(2, 2, 3, padding=1)
        self.fc = nn.Linear(128, 4)
        self.way = way

    def forward(self, x):
        return self.way(self, x)


CONNECTIONS = {
    "reuse": (
        lambda m, x: m.fc(m.conv(m.conv(x)).flatten(1)),
        "conv (Conv2d, input 2x8x8) is called twice: each layer must own its parameters",
    ),
    "function": (
        lambda m, x: m.fc(torch.exp(m.conv(x)).flatten(1)),
        f"exp (exp, input 2x8x8) is not supported: {SUPPORTED}",
    ),
    "functional_log_softmax": (
        lambda m, x: F.log_softmax(m.fc(m.conv(x).flatten(1)), dim=1),
        "log_softmax (log_softmax, input 4) is not supported: the cross-entropy loss applies "
        "log-softmax "
        "itself; remove it and return the logits",
    ),
    "control_flow": (
        lambda m, x: m.fc((x if x.sum() > 0 else m.conv(x)).flatten(1)),
        "model (Branches) cannot be traced: symbolically traced variables cannot be used as inputs "
        "to control flow; forward must call layers in a fixed order, without branching on tensor "
        "values or shapes",
    ),
    "unused": (
        lambda m, x: m.fc(x.flatten(1)),
        "conv.weight is never used by forward: remove it from the model",
    ),
    "two_outputs": (
        lambda m, x: (m.fc(m.conv(x).flatten(1)), 1),
        "model (Branches).forward must return the output of a layer, or several outputs as a "
        "tuple, not (fc, 1)",
    ),
    "no_output": (
        lambda m, x: (),
        "model (Branches).forward must return the output of a layer, or several outputs as a "
        "tuple, not ()",
    ),
    "named_outputs": (
        lambda m, x: {"class": m.fc(m.conv(x).flatten(1))},
        "model (Branches).forward must return the output of a layer, or several outputs as a "
        "tuple, not {'class': fc}",
    ),
    "softmax_of_two": (
        lambda m, x: (m.fc(torch.relu(m.conv(x)).flatten(1)), x.mean((2, 3))),
        "model (Branches).forward returns 2 outputs, and cross_entropy is one softmax over one of "
        "them: use loss='mse', 'huber' or 'bce_with_logits', or return one",
    ),
    "map_beside_a_vector": (
        lambda m, x: (m.fc(x.flatten(1)), m.conv(x)),
        "conv (Conv2d) ends the model with a map of 2x8x8: the output must be a vector of logits; "
        "end with a Linear layer, or a layer whose map is 1x1",
    ),
}


@pytest.mark.parametrize("case", CONNECTIONS)
def test_connections_that_are_not_built_are_refused(case):
    way, message = CONNECTIONS[case]
    with pytest.raises(UnsupportedError, match=f"^{re.escape(message)}$"):
        trace(Branches(way), IMAGE)


def test_several_outputs_become_one_vector_in_their_order():
    def both(m, x):
        y = m.conv(x)
        logits = m.fc(y.flatten(1))
        return logits, y.mean((2, 3)), logits

    graph = trace(Branches(both), IMAGE, "mse")
    assert graph.outputs == 10
    end = graph.nodes[-1]
    assert (end.name, end.kind, end.parts) == ("outputs", "concat", (4, 2, 4))
    assert graph.sources["outputs"] == ("fc.fork", "mean", "fc.fork")


def test_softmax_before_cross_entropy_is_traced_with_a_warning():
    model = nn.Sequential(*head(nn.Conv2d(2, 4, 3)), nn.Softmax(dim=1))
    message = (
        "3 ends the model with softmax, and cross_entropy applies softmax itself: return the "
        "logits, unless two are meant"
    )
    with pytest.warns(GradweaveWarning, match=f"^{re.escape(message)}$"):
        graph = trace(model, IMAGE)
    assert [node.kind for node in graph.nodes] == ["conv2d", "linear", "softmax"]
    assert trace(model, IMAGE, "mse").nodes == graph.nodes


def test_a_failing_trace_names_the_innermost_module():
    inner = Branches(lambda m, x: m.fc(x.flatten(1)) if x.max() > 0 else x)
    model = nn.Sequential(nn.ReLU(), inner)
    with pytest.raises(UnsupportedError, match=r"^1 \(Branches\) cannot be traced: "):
        trace(model, IMAGE)


def test_shared_parameters_are_refused():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    message = "1.weight is shared with 0.weight: each layer must own its parameters"
    with pytest.raises(UnsupportedError, match=f"^{message}$"):
        trace(model, torch.zeros(1, 4))


def test_a_hook_is_refused():
    model = head(nn.Conv2d(2, 4, 3))
    model[0].register_forward_hook(lambda module, inputs, output: output)
    message = (
        "0 (Conv2d, input 2x8x8) is not supported: its forward hooks would be lost; remove them"
    )
    with pytest.raises(UnsupportedError, match=f"^{re.escape(message)}$"):
        trace(model, IMAGE)


BAD_CALLS = {
    "shape": (
        (torch.zeros(3, 8, 8),),
        "example_input must have shape [N, channels, height, width] or [N, features], "
        "not [3, 8, 8]",
    ),
    "integers": (
        (torch.zeros(1, 2, 8, 8, dtype=torch.uint8),),
        "example_input must be float32 or float64, not uint8",
    ),
    "list": (([[1.0]],), "example_input must be a torch tensor, not list"),
    "loss": (
        (IMAGE, "hinge"),
        "loss must be one of ['cross_entropy', 'mse', 'huber', 'bce_with_logits'] or a torch loss "
        "module, not 'hinge'",
    ),
    "channels": (
        (torch.zeros(1, 3, 8, 8),),
        "0 (Conv2d, input 3x8x8) fails on example_input: Given groups=1, weight of size "
        "[4, 2, 3, 3], expected input[2, 3, 8, 8] to have 2 channels, but got 3 channels instead",
    ),
}


@pytest.mark.parametrize("case", BAD_CALLS)
def test_inputs_that_cannot_be_traced_are_refused(case):
    arguments, message = BAD_CALLS[case]
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        trace(head(nn.Conv2d(2, 4, 3)), *arguments)


def test_weights_that_are_no_numbers_are_left_to_calibration():
    model = head(nn.Conv2d(2, 4, 3))
    with torch.no_grad():
        model[0].bias[1] = float("nan")
    assert len(trace(model, IMAGE).nodes) == 2


def test_a_function_is_no_model():
    with pytest.raises(InputError, match=r"^model must be a torch\.nn\.Module, not function$"):
        trace(lambda x: x, IMAGE)
