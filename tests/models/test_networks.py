"""Networks: shapes, what is quantized, and modules as pure functions."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from quped.errors import NetworkError, QupedError
from quped.models import CNN, FunctionalNetwork, ResNet, TextClassifier, cnn1, cnn1d, cnn2, mlp, quantizable, resnet
from quped.models.resnet import Block
from quped.models.select import check_quantizable, last_layer
from quped.typing import ModelState

SHAPES = [(3, 32, 32), (1, 28, 28), (1, 8, 8)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("make", [cnn1, cnn2])
def test_cnns_take_the_papers_images(make: Callable[..., CNN], shape: tuple[int, int, int]) -> None:
    """Both run on CIFAR, MNIST and digits images, and quantize all weights but the first and the last."""
    network = make(shape, 10)
    assert network(torch.zeros(2, *shape)).shape == (2, 10)
    weights = [name for name, p in network.named_parameters() if p.dim() > 1]
    assert quantizable(network) == tuple(weights[1:-1])


def test_cnn1d_fits_a_watch() -> None:
    """Windows of HAPT: the weights between the first and the last at 2 bits, all else in float32."""
    network = cnn1d((6, 1, 128), 12)
    quantized = quantizable(network)
    sizes = {name: p.numel() for name, p in network.named_parameters()}
    assert sum(sizes[name] for name in quantized) == 16 * 32 * 5 + 32 * 32 * 5 + 32 * 16 * 32
    packed = sum(n / 4 if name in quantized else 4 * n for name, n in sizes.items())
    assert 9_500 < packed < 10_500
    assert network(torch.randn(2, 6, 1, 128)).shape == (2, 12)


@pytest.mark.parametrize(("shape", "words"), [((1, 28, 28), "takes signals"), ((6, 1, 7), "too short")])
def test_cnn1d_refuses_what_is_no_signal(shape: tuple[int, ...], words: str) -> None:
    with pytest.raises(NetworkError, match=words):
        cnn1d(shape, 12)


def test_cnn1_on_cifar_is_lenet() -> None:
    """conv 6 and 16, fully connected 400-120-84-10: 62,006 parameters."""
    shapes = [tuple(p.shape) for p in cnn1((3, 32, 32), 10).parameters() if p.dim() > 1]
    assert shapes == [(6, 3, 5, 5), (16, 6, 5, 5), (120, 400), (84, 120), (10, 84)]
    assert sum(p.numel() for p in cnn1((3, 32, 32), 10).parameters()) == 62_006


def test_cnn2_adds_a_convolution_with_32_filters() -> None:
    """The third convolution has 32 filters of 5x5 on 16 channels."""
    shapes = [tuple(p.shape) for p in cnn2((3, 32, 32), 10).parameters() if p.dim() == 4]
    assert shapes == [(6, 3, 5, 5), (16, 6, 5, 5), (32, 16, 5, 5)]


def test_widths_are_configurable() -> None:
    """`width` scales every layer."""
    shapes = [tuple(p.shape) for p in cnn1((1, 28, 28), 10, width=2.0).parameters() if p.dim() > 1]
    assert shapes == [(12, 1, 5, 5), (32, 12, 5, 5), (240, 512), (168, 240), (10, 168)]


def test_too_small_images_are_refused() -> None:
    """An image that pooling would shrink to nothing gets a clear error."""
    with pytest.raises(NetworkError, match="too small"):
        cnn1((1, 3, 3), 10)


def test_mlp_quantizes_what_is_between() -> None:
    """With two hidden layers, the matrix between them."""
    network = mlp((1, 8, 8), 10, hidden=(32, 16))
    assert network(torch.zeros(3, 1, 8, 8)).shape == (3, 10)
    assert quantizable(network) == ("layers.2.weight",)


def test_a_tied_weight_is_where_it_is_used_last() -> None:
    """An embedding that is the output layer, too, is both ends: all between is quantized."""
    layers = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    layers[3].weight = layers[0].weight
    assert quantizable(layers) == ("1.weight", "2.weight")


def test_what_weights_are_computed_of_is_not_quantized() -> None:
    """Its centers would not be those of the weights: a user who wants this names it."""
    layers = nn.Sequential(*(nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)) for _ in range(3)))
    assert quantizable(layers) == ()


class Encoder(nn.Module):
    """With positions that are a parameter, and a norm over two dimensions."""

    def __init__(self) -> None:
        """Register its parts, not in the order of their use."""
        super().__init__()
        self.positions = nn.Parameter(torch.randn(3, 4))
        self.first = nn.Embedding(9, 4)
        self.more = nn.Embedding(9, 4, padding_idx=0)
        self.attention = nn.MultiheadAttention(4, 2)
        self.norm = nn.LayerNorm([3, 4])
        self.last = nn.Linear(4, 2)


def test_only_weights_of_layers_are_quantized_by_default() -> None:
    """No positions, norms or rows for padding; the last cannot be chosen either."""
    assert quantizable(Encoder()) == ("attention.in_proj_weight", "attention.out_proj.weight")
    with pytest.raises(NetworkError, match=r"'more\.weight' of Encoder has a row for padding"):
        check_quantizable(Encoder(), ["more.weight"])
    assert check_quantizable(Encoder(), ["positions", "positions"]) == ("positions",)


def test_tensors_are_in_the_usual_order_of_memory() -> None:
    """Whatever the module has: states are kept in files, which know no other."""
    module = nn.Conv2d(2, 3, 3)
    module.weight.data = module.weight.data.contiguous(memory_format=torch.channels_last)
    assert not module.weight.is_contiguous()
    assert FunctionalNetwork(module).initial.params["weight"].is_contiguous()


@pytest.mark.parametrize(("depth", "parameters"), [(8, 75_290), (20, 269_722), (32, 464_154)])
def test_resnets(depth: int, parameters: int) -> None:
    """Depths of the CIFAR family, with the known numbers of parameters (0.27 M and 0.46 M for 20 and 32)."""
    network = resnet((3, 32, 32), 10, depth)
    assert sum(p.numel() for p in network.parameters()) == parameters
    assert network(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
    names = quantizable(network)
    assert "conv1.weight" not in names
    assert "linear.weight" not in names
    assert len(names) == depth - 2
    assert all("bn" not in name for name in names)


def test_a_residual_block_adds_its_input() -> None:
    """Where its own part is 0: every second pixel, with channels of zeros before and behind, after ReLU."""
    block = Block(4, 8, stride=2)
    nn.init.zeros_(block.bn2.weight)
    images = torch.randn(2, 4, 6, 6)
    expected = torch.zeros(2, 8, 3, 3)
    expected[:, 2:6] = images[:, :, ::2, ::2].clamp_min(0)
    torch.testing.assert_close(block(images), expected)


def test_initial_weights_are_spread_as_told() -> None:
    """ResNets: variance 2 / fan-in (He et al., 2015); the embedding: evenly in [-0.5, 0.5]."""
    torch.manual_seed(0)
    network = ResNet(2, classes=200)
    for weight in (network.get_parameter("layer3.1.conv1.weight").detach(), network.linear.weight.detach()):
        assert float(weight.var() * weight[0].numel()) == pytest.approx(2, rel=0.05)
    embedding = TextClassifier(vocabulary=1000, classes=4).embedding.weight.detach()
    assert float(embedding.abs().max()) == pytest.approx(0.5, abs=1e-3)
    assert float(embedding.var()) == pytest.approx(1 / 12, rel=0.02)


def test_the_third_convolution_of_cnn2_is_rectified() -> None:
    """As every layer but the last."""
    features = cnn2((1, 28, 28), 10).features(torch.randn(5, 1, 28, 28))
    assert float(features.detach().min()) == 0


def test_resnet_parameter_names_are_those_of_cifar_checkpoints() -> None:
    """conv1, bn1, layer1.0.conv1 ..., linear."""
    keys = set(ResNet(3).state_dict())
    expected = {"conv1.weight", "bn1.running_mean", "layer1.0.conv1.weight", "layer3.2.bn2.bias", "linear.bias"}
    assert expected <= keys
    assert not any("shortcut" in key or "downsample" in key for key in keys)


def test_resnet_refuses_other_depths() -> None:
    """Depths are 6n + 2."""
    with pytest.raises(QupedError, match="6n \\+ 2"):
        resnet((3, 32, 32), 10, 18)


def test_text_classifier_takes_tokens_and_offsets() -> None:
    """The mean embedding of each text, and the embedding is what is quantized."""
    network = TextClassifier(vocabulary=20, classes=4, dim=8)
    tokens, offsets = torch.tensor([1, 2, 3, 3, 7]), torch.tensor([0, 2])
    logits = network(tokens, offsets)
    assert logits.shape == (2, 4)
    bag = network.embedding.weight[tokens[:2]].mean(0)
    torch.testing.assert_close(logits[0], network.linear(bag))
    assert quantizable(network) == ("embedding.weight",)


class WithState(nn.Module):
    """BatchNorm, a frozen layer, dropout and a tied weight in one module."""

    def __init__(self) -> None:
        """Build the layers."""
        super().__init__()
        self.frozen = nn.Linear(4, 4)
        self.frozen.requires_grad_(False)
        self.norm = nn.BatchNorm1d(4)
        self.a = nn.Linear(4, 4)
        self.b = nn.Linear(4, 4)
        self.b.weight = self.a.weight
        self.drop = nn.Dropout(0.5)
        self.last = nn.Linear(4, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        logits: torch.Tensor = self.last(self.drop(self.b(self.a(self.norm(self.frozen(inputs))))))
        return logits


def test_a_functional_network_computes_what_the_module_does() -> None:
    """In both modes, BatchNorm statistics included, and without touching module or arguments."""
    module = WithState()
    network = FunctionalNetwork(module)
    model, inputs = network.initial, torch.randn(6, 4)
    before = {k: v.clone() for k, v in {**model.params, **model.buffers}.items()}

    module.eval()
    logits, buffers = network(model.params, model.buffers, (inputs,), train=False)
    torch.testing.assert_close(logits, module(inputs))
    assert buffers is model.buffers

    module.train()
    torch.manual_seed(0)
    expected = module(inputs)
    torch.manual_seed(0)
    logits, buffers = network(model.params, model.buffers, (inputs,), train=True)
    torch.testing.assert_close(logits, expected)
    torch.testing.assert_close(buffers["norm.running_mean"], module.norm.running_mean)
    assert int(buffers["norm.num_batches_tracked"]) == 1
    for key, value in {**model.params, **model.buffers}.items():
        assert torch.equal(value, before[key]), key


class Counting(nn.Module):
    """Counts its calls in buffers: in place, and, in training, by assignment."""

    calls: torch.Tensor
    steps: torch.Tensor

    def __init__(self) -> None:
        """Build the layers."""
        super().__init__()
        self.last = nn.Linear(4, 3)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        self.calls.add_(1)
        if self.training:
            self.steps = self.steps + inputs.mean() * 0 + 1
        logits: torch.Tensor = self.last(inputs)
        return logits


def test_buffers_of_any_kind_are_carried_on_in_training_alone() -> None:
    """Whether written in place or assigned; an evaluation changes none, nor the caller's."""
    network = FunctionalNetwork(Counting())
    buffers = network.initial.buffers
    for _ in range(3):
        _, buffers = network(network.initial.params, buffers, (torch.ones(2, 4),), train=True)
        _, same = network(network.initial.params, buffers, (torch.ones(2, 4),), train=False)
        assert same is buffers
    assert {name: float(value) for name, value in buffers.items()} == {"calls": 3, "steps": 3}
    assert all(float(value) == 0 for value in network.initial.buffers.values())


def test_frozen_parameters_stay_with_the_structure() -> None:
    """They are in neither part of the model, but counted; tied weights appear once."""
    network = FunctionalNetwork(WithState())
    assert "frozen.weight" not in {**network.initial.params, **network.initial.buffers}
    assert sum(value.numel() for value in network.frozen.values()) == 4 * 4 + 4
    assert "b.weight" not in network.initial.params
    assert quantizable(WithState()) == ("a.weight",)  # between the frozen first and the last
    with pytest.raises(NetworkError, match=r"'frozen\.weight' of WithState is frozen"):
        check_quantizable(WithState(), ["frozen.weight"])


def test_module_gives_back_an_ordinary_module() -> None:
    """With the tensors asked for, in evaluation mode, on the CPU, its own memory."""
    original = WithState()
    network = FunctionalNetwork(original)
    params = {k: torch.full_like(v, 0.5) for k, v in network.initial.params.items()}
    module = network.module(ModelState(params, network.initial.buffers))
    assert isinstance(module, WithState)
    assert not module.training
    assert bool((module.a.weight == 0.5).all())
    assert module.b.weight is module.a.weight
    assert torch.equal(module.frozen.weight, original.frozen.weight)
    assert module.frozen.weight is not original.frozen.weight
    module.a.weight.data.zero_()
    assert bool((params["a.weight"] == 0.5).all())


def test_bad_networks_are_refused() -> None:
    """Lazy layers, nothing to train, an unknown name to quantize: each with its remedy."""
    with pytest.raises(NetworkError, match="run one forward pass"):
        FunctionalNetwork(nn.Sequential(nn.LazyLinear(3)))
    with pytest.raises(NetworkError, match="no trainable parameters"):
        FunctionalNetwork(nn.ReLU())
    with pytest.raises(NetworkError, match=r"no trainable parameter '0.wieght'.*Did you mean '0.weight'"):
        check_quantizable(nn.Sequential(nn.Linear(2, 2)), ["0.wieght"])
    empty = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    empty.register_parameter("none", nn.Parameter(torch.zeros(0)))
    with pytest.raises(NetworkError, match="parameter 'none' of Sequential is empty"):
        check_quantizable(empty, ["none"])
    uncopied = nn.Sequential(nn.Linear(2, 2))
    uncopied.__dict__["stream"] = (i for i in range(3))
    with pytest.raises(NetworkError, match=r"Sequential cannot be copied: .*deepcopy"):
        FunctionalNetwork(uncopied)
    declared = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2))
    declared.__dict__["quantized"] = False  # which may mean anything
    assert quantizable(declared) == ("1.weight",)
    declared.__dict__["quantized"] = "1.weight"
    with pytest.raises(NetworkError, match="attribute 'quantized' of Sequential must be a tuple"):
        quantizable(declared)


def test_the_last_layer_is_the_one_with_the_last_weight() -> None:
    """With its bias; of a tied weight the layer that uses it last; not what is frozen; through parametrizations."""
    assert last_layer(cnn1((3, 32, 32), 10)) == ("classifier.4.weight", "classifier.4.bias")
    assert last_layer(resnet((3, 32, 32), 10, 8)) == ("linear.weight", "linear.bias")
    assert last_layer(nn.Linear(4, 2)) == ("weight", "bias")
    layers = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4), nn.BatchNorm1d(4))
    assert last_layer(layers) == ("2.weight", "2.bias")
    layers[2].weight.requires_grad_(False)
    assert last_layer(layers) == ("2.bias",)
    layers[2].weight = layers[0].weight
    assert last_layer(layers) == ("0.weight", "2.bias")
    nn.utils.parametrizations.weight_norm(layers[2])
    assert last_layer(layers) == (
        "2.bias",
        "2.parametrizations.weight.original0",
        "2.parametrizations.weight.original1",
    )
    assert last_layer(nn.BatchNorm1d(4)) == ()
