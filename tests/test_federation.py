"""The public API: what it promises, and what it says to bad input."""

import copy
import json
import math
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.small_federation import CLASSES, Net, Rounds, assert_same, samples, values, wide_net
from torch import nn

from quped import Client, FedAvg, Federation, Local, PFedMe, QuPeD, QupedError
from quped._rng import torch_seeded
from quped.client import ModelSource
from quped.data import TensorSamples
from quped.typing import Batch

DEFAULT = object()


def client(
    name: str = "phone",
    *,
    train: object = None,
    test: object = DEFAULT,
    model: ModelSource = Net,
    bits: object = 32,
    **options: object,
) -> Client:
    """Return a client that is fine but for what is given."""
    fields = {
        "name": name,
        "train": samples(0, 20) if train is None else train,
        "test": samples(1, 12) if test is DEFAULT else test,
        "model": model,
        "bits": bits,
        **options,
    }
    make: Callable[..., Client] = Client
    return make(**fields)


def test_the_readme_example_in_small() -> None:
    """Different networks and bit-widths in one federation; accuracy and a module for each."""
    clients = [
        client("phone", bits=1),
        client("tablet", bits=2, model=wide_net),
        client("laptop", train=samples(2, 30)),
    ]
    seen = Rounds()
    fit = Federation(clients, QuPeD(lambda_p=0.25), global_model=Net, seed=0).fit(
        epochs=40, local_steps=5, batch_size=10, lr=0.1, callbacks=[seen]
    )
    assert list(fit.accuracy) == ["phone", "tablet", "laptop"]
    assert min(fit.accuracy.values()) > 0.7
    assert len(values(fit.module("phone").get_parameter("middle.weight"))) <= 2
    assert len(values(fit.module("tablet").get_parameter("middle.weight"))) <= 4
    assert fit.rounds == len(seen.rounds) == seen.rounds[-1].rounds
    assert [r.clock.round for r in seen.rounds] == list(range(fit.rounds))
    assert seen.rounds[-1].clock.phase == "finetune"
    assert seen.rounds[-1].evaluation == fit.curve[-1]


def test_sizes_are_counted_exactly() -> None:
    """One bit for each of the 64 weights between, 2 centers, everything else in float32, buffers included."""
    fit = Federation([client(bits=1)], Local()).fit(epochs=1)
    (report,) = fit.clients
    others = 6 * 8 + 8 + 8 + 8 + 8 * 3 + 3  # first, norm, middle's bias, last
    buffers = 8 + 8 + 1
    assert report.parameters == others + 64
    assert report.bytes_float32 == 4 * (others + 64 + buffers)
    assert report.bytes_packed == 4 * (others + buffers) + 64 // 8 + 2 * 4


def test_per_channel_centers_are_one_row_per_channel() -> None:
    """Each output channel has its own values, and pays for them."""
    fit = Federation([client(bits=1, per_channel=True)], Local()).fit(epochs=3)
    weights = fit.models["phone"].state.params["middle.weight"]
    assert max(len(values(row)) for row in weights) <= 2
    assert len(values(weights)) > 2
    shared = Federation([client(bits=1)], Local()).fit(epochs=1)
    assert fit.clients[0].bytes_packed - shared.clients[0].bytes_packed == 4 * (8 - 1) * 2


def test_named_parameters_are_quantized() -> None:
    """`quantize` replaces the default choice."""
    fit = Federation([client(bits=2, quantize=["last.weight"], init_centers="kmeans")], Local()).fit(epochs=3)
    params = fit.models["phone"].state.params
    assert len(values(params["last.weight"])) <= 4
    assert len(values(params["middle.weight"])) > 4


def test_a_module_can_be_given_and_stays_untouched() -> None:
    """An instance is the start of training (warm start) and is not changed."""
    module = Net()
    before = {k: v.clone() for k, v in module.state_dict().items()}
    fit = Federation([client(model=module)], Local()).fit(epochs=1, lr=1e-6)
    for key, value in module.state_dict().items():
        assert torch.equal(value, before[key])
    torch.testing.assert_close(
        fit.models["phone"].state.params["first.weight"], before["first.weight"], atol=1e-4, rtol=0
    )


def test_numpy_arrays_and_own_samples_are_data() -> None:
    """Inputs may be arrays, in float64 too, or anything with labels and batch()."""
    inputs, labels = samples(0, 20)
    arrays = (inputs.numpy().astype(np.float64), labels.numpy().astype(np.int32))
    own = TensorSamples(inputs, labels)
    a = Federation([client(train=arrays)], Local()).fit(epochs=2)
    b = Federation([client(train=own)], Local()).fit(epochs=2)
    assert torch.equal(a.models["phone"].state.params["first.weight"], b.models["phone"].state.params["first.weight"])


def test_pytorch_data_sets_are_data(tmp_path: Path) -> None:
    """They give what the tensors that they are made of do; what is random in them follows from the seed."""
    inputs, labels = samples(0, 20)
    items = [(x.double().numpy(), int(y)) for x, y in zip(inputs, labels, strict=True)]
    pair = Federation([client(train=(inputs, labels))], QuPeD()).fit(epochs=2, workers=0)
    for data in (torch.utils.data.TensorDataset(inputs, labels), ListDataset(items)):
        assert_same(Federation([client(train=data)], QuPeD()).fit(epochs=2, workers=0), pair)

    noisy = Federation([client(train=Noisy(items))], QuPeD())
    first = noisy.fit(epochs=2, workers=0)
    for workers in (0, 1):  # the second one finds a checkpoint
        assert_same(noisy.fit(epochs=2, workers=workers, checkpoints=tmp_path), first)
    assert_same(noisy.fit(epochs=2, workers=1), first)
    both = Federation([client(name, train=Noisy(items)) for name in "ab"], QuPeD())
    under_vmap, inline = both.fit(epochs=2, device="cpu"), both.fit(epochs=2, workers=0)
    assert under_vmap.curve[-1].loss == pytest.approx(inline.curve[-1].loss)
    with pytest.raises(AssertionError):
        assert_same(first, pair)

    class Halved(torch.utils.data.TensorDataset):
        """Tensors with a transform."""

        def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
            """Return a sample."""
            return self.tensors[0][index] / 2, self.tensors[1][index]

    halves = Federation([client(train=(inputs / 2, labels))], QuPeD()).fit(epochs=2, workers=0)
    assert_same(Federation([client(train=Halved(inputs, labels))], QuPeD()).fit(epochs=2, workers=0), halves)


def test_arrays_may_be_backwards_or_read_only() -> None:
    """As a view and a mapped file are: they are copied."""
    inputs, labels = (part.numpy() for part in samples(0, 20))
    backwards = inputs[::-1].copy()[::-1]
    backwards.flags.writeable = False
    (member,) = Federation([client(train=(backwards, labels))], QuPeD()).setup().clients
    assert torch.equal(member.train.batch(torch.arange(20)).inputs[0], torch.from_numpy(inputs))


def test_a_fit_tells_what_was_asked_for() -> None:
    """What was quantized, hyperparameters, and options with the values that followed from the data; all as JSON."""
    fit = Federation([client(bits=1), client("b")], QuPeD(lambda_p=np.float64(0.5))).fit(
        epochs=6, lr=0.2, momentum=0.9, local_steps=1, workers=0
    )
    assert {report.name: report.bits for report in fit.clients} == {"phone": {"middle.weight": 1}, "b": {}}
    told = json.loads(json.dumps(fit.to_dict()))
    assert told["hyperparameters"]["lambda_p"] == 0.5
    assert told["hyperparameters"]["quantization"]["sharpness"] == "inf"
    assert told["training"].items() >= {"lr": 0.2, "momentum": 0.9, "steps_per_epoch": 1, "finetune_epochs": 1}.items()
    assert told["training"]["batch_size"] == 25
    assert told["clients"][0]["bits"] == {"middle.weight": 1}


def test_the_global_model_comes_back_and_others_can_start_from_it() -> None:
    """With FedAvg it is what every client deploys; a client that joins later begins with it as w."""
    fit = Federation([client()], FedAvg()).fit(epochs=2, workers=0)
    state = fit.global_module().state_dict()
    assert all(torch.equal(value, state[key]) for key, value in fit.module("phone").state_dict().items())
    joined = Federation([client("late")], QuPeD(), global_model=fit.global_module()).fit(epochs=1, lr=1e-9, workers=0)
    assert torch.allclose(joined.global_module().state_dict()["last.weight"], state["last.weight"], atol=1e-6)
    with pytest.raises(QupedError, match="method local leaves no global model"):
        Federation([client()], Local()).fit(epochs=1, workers=0).global_module()


def test_how_good_the_global_model_is_on_the_clients_own_samples() -> None:
    """By hand, as the mean over clients of different sizes; under FedAvg it is what the clients have."""
    tests = {"phone": samples(1, 30), "tablet": samples(2, 50)}
    members = [client(name, test=test) for name, test in tests.items()]
    fit = Federation(members, QuPeD(), seed=3).fit(epochs=2, workers=0)
    w = fit.global_module()
    by_hand = [float((w(inputs).argmax(1) == labels).float().mean()) for inputs, labels in tests.values()]
    assert fit.global_accuracy == pytest.approx(sum(by_hand) / 2)
    assert fit.to_dict()["global_accuracy"] == fit.global_accuracy
    shared = Federation(members, FedAvg(), seed=3).fit(epochs=2, workers=0)
    assert shared.global_accuracy == pytest.approx(sum(shared.accuracy.values()) / 2)
    assert Federation(members, Local(), seed=3).fit(epochs=1, workers=0).global_accuracy is None


def test_the_models_of_a_fit_are_its_own() -> None:
    """Under FedAvg all clients have one model, but not one tensor: who changes his changes no other."""
    federation = Federation([client(), client("b")], FedAvg())
    fit = federation.fit(epochs=1, workers=0)
    fit.models["phone"].state.params["last.weight"].zero_()
    assert bool(fit.models["b"].state.params["last.weight"].any())
    assert bool(fit.global_module().get_parameter("last.weight").any())


@pytest.mark.parametrize("quantize", [None, ["0.weight", "1.weight"]])
def test_gradients_may_be_sparse(quantize: list[str] | None) -> None:
    """Those of an embedding for a large vocabulary: they serve as if they were not."""

    def network(sparse: bool) -> Callable[[], nn.Module]:
        return lambda: nn.Sequential(
            nn.EmbeddingBag(20, 8, sparse=sparse), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, CLASSES)
        )

    data = (torch.arange(60).reshape(20, 3) % 20, samples(0, 20)[1])
    fits = [
        Federation([client(train=data, test=data, model=network(sparse), bits=2, quantize=quantize)], QuPeD()).fit(
            epochs=3, workers=0
        )
        for sparse in (False, True)
    ]
    assert_same(*fits)


def test_pfedmes_global_model_has_statistics() -> None:
    """BatchNorm's, of w and not of theta, which stays at home: without them w would be of no use to one that joins."""
    x, y = samples(0, 60)
    x = 10 + x
    fit = Federation([client(train=(x, y))], PFedMe(eta=0.0)).fit(
        epochs=60, batch_size=60, local_steps=1, lr=0.1, workers=0
    )
    w = fit.global_module()
    expected = (x @ w.get_parameter("first.weight").detach().T).mean(0)
    assert torch.allclose(w.get_buffer("norm.running_mean"), expected, rtol=0.01, atol=0.01)
    assert float(expected.abs().max()) > 1


def test_the_same_seed_gives_the_same_bits_and_another_does_not() -> None:
    """Randomness is an argument: neither torch's nor NumPy's global state has a part in it."""

    def weights(seed: int) -> torch.Tensor:
        torch.rand(seed + 1)
        fit = Federation([client(bits=2)], QuPeD(), seed=seed).fit(epochs=2)
        return fit.models["phone"].state.params["first.weight"]

    torch.manual_seed(1)
    first = weights(0)
    torch.manual_seed(2)
    state = torch.get_rng_state()
    again = weights(0)
    assert torch.equal(first, again)
    assert not torch.equal(first, weights(1))
    torch.set_rng_state(state)


def test_training_leaves_torchs_generator_alone() -> None:
    """A user's own random numbers do not depend on whether a federation ran in between."""
    torch.manual_seed(7)
    state = torch.get_rng_state()
    items = [(torch.zeros(6), int(label)) for label in samples(0, 20)[1]]
    Federation([client(train=Noisy(items))], Local()).fit(epochs=1, workers=0)
    assert torch.equal(torch.get_rng_state(), state)


def test_dropout_is_reproducible() -> None:
    """Dropout draws from (seed, client, round)."""

    def dropping() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, CLASSES))

    members = [client(name, model=dropping) for name in ("phone", "tablet")]  # with the same data

    def learned(workers: int) -> list[torch.Tensor]:
        found = Federation(members, Local()).fit(epochs=2, batch_size=20, workers=workers)
        return [found.models[name].state.params["0.weight"] for name in ("phone", "tablet")]

    first = learned(0)
    assert all(torch.equal(a, b) for workers in (0, 2) for a, b in zip(first, learned(workers), strict=True))
    phone, tablet = first
    assert not torch.allclose(phone, tablet, atol=1e-3)


@pytest.mark.parametrize("bits", [0, 9, 31, -1, "two", 2.0, True, None])
def test_bits_outside_the_range(bits: object) -> None:
    """The error names the client and the rule."""
    with pytest.raises(QupedError, match=r"The 'bits' of client 'phone' must be one of 1\.\.8 or 32, got"):
        Federation([client(bits=bits)], QuPeD())


def constant_net() -> nn.Module:
    """A network with a layer of zeros between its first and its last."""
    net = Net()
    nn.init.zeros_(net.middle.weight)
    return net


class Odd:
    """Samples whose labels are an array."""

    labels = np.zeros(3)

    def __len__(self) -> int:
        """Return the number of samples."""
        return 3

    def batch(self, indices: torch.Tensor, rng: object = None) -> None:
        """Return nothing, since nobody asks."""


class OwnSamples:
    """Samples that give what they are told to as a batch."""

    labels = torch.tensor([0, 1])

    def __init__(self, returns: Callable[[torch.Tensor, torch.Tensor], object]) -> None:
        """Give batches made of inputs and labels."""
        self._returns = returns

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.labels)

    def batch(self, indices: torch.Tensor, rng: np.random.Generator | None = None) -> object:
        """Return something."""
        return self._returns(torch.zeros(len(indices), 6), self.labels[indices])


class ListDataset(torch.utils.data.Dataset[object]):
    """A PyTorch data set: items, as they are."""

    def __init__(self, items: Sequence[Any]) -> None:
        """Hold the items."""
        self.items = items

    def __len__(self) -> int:
        """Return the number of items."""
        return len(self.items)

    def __getitem__(self, index: int) -> object:
        """Return an item."""
        return self.items[index]


class Noisy(ListDataset):
    """Samples with noise, as from an augmenting transform."""

    def __getitem__(self, index: int) -> object:
        """Return an item with noise."""
        inputs, label = self.items[index]
        return torch.as_tensor(inputs) + torch.randn(6), label


NAN = samples(0, 20)[0].index_fill(0, torch.tensor([3]), math.nan)

BAD_CLIENTS: list[tuple[dict[str, object], str]] = [
    ({"train": (torch.zeros(0, 6), torch.zeros(0, dtype=torch.long))}, "training data of client 'phone' are empty"),
    ({"test": (torch.zeros(0, 6), torch.zeros(0, dtype=torch.long))}, "test data of client 'phone' are empty"),
    ({"train": (NAN, samples(0, 20)[1])}, "training data of client 'phone' hold NaN"),
    ({"train": (samples(0, 20)[0], samples(0, 19)[1])}, "have 20 inputs but 19 labels"),
    ({"train": (samples(0, 20)[0], samples(0, 20)[1].float())}, r"got float32 of shape \(20,\): convert them to"),
    ({"train": (samples(0, 20)[0], samples(0, 20)[1][:, None])}, r"got int64 of shape \(20, 1\): take .* y\[:, 0\]"),
    ({"train": (samples(0, 20)[0], torch.eye(20))}, r"shape \(20, 20\): of one-hot labels, take y.argmax\(1\)"),
    (
        {"test": ListDataset([(torch.zeros(6), 0), (torch.full((6,), math.nan), 1)])},
        "Sample 1 of the test .* holds NaN",
    ),
    ({"train": (samples(0, 20)[0], samples(0, 20)[1] - 1)}, "must be 0 or more, got -1"),
    ({"train": samples(0, 20)[:1]}, r"must be a pair \(inputs, labels\)"),
    ({"train": 3}, r"must be a pair \(inputs, labels\), a PyTorch data set, or have labels, batch\(\) and a .* got 3"),
    ({"train": (samples(0, 20)[0].byte(), samples(0, 20)[1])}, r"\(Convert bytes, .* to float32 first: x / 255.\)"),
    (
        {"train": (samples(0, 20)[0], samples(0, 20)[1] + 1)},
        "needs at least 4 outputs, since classes are numbered from 0",
    ),
    ({"train": OwnSamples(returns=lambda x, y: (x, y))}, r"must be a Batch\(\(input, ...\), labels\) of tensors, got"),
    ({"train": OwnSamples(returns=lambda x, y: Batch((), y))}, r"must be a Batch\(\(input, ...\), labels\) of tensors"),
    (
        {"train": OwnSamples(returns=lambda x, y: Batch((x,), 1 - y))},
        "batch of the training data of client 'phone' has",
    ),
    ({"train": OwnSamples(returns=lambda x, y: 1 / 0)}, "No batch can be drawn from the training .* ZeroDivisionError"),
    ({"train": ListDataset([])}, "training data of client 'phone' are empty"),
    ({"train": ListDataset([{"x": 1}])}, r"and items \(input, ..., label\) .* item 0 is a dict"),
    ({"train": ListDataset([(torch.zeros(6), 0.5)])}, "must be class numbers"),
    ({"train": ListDataset([("six", 0)])}, r"and items \(input, ..., label\) of tensors or numbers: TypeError"),
    ({"train": TensorSamples(samples(0, 20)[0], samples(0, 5)[1])}, "have 20 inputs but 5 labels"),
    ({"train": (torch.tensor(3.0), torch.tensor([0]))}, "must have a row for each sample"),
    ({"train": Odd()}, "labels of the training data of client 'phone' must be a tensor of int64"),
    ({"model": None}, "must be an nn.Module or a function that makes one, got None"),
    ({"model": lambda: nn.Linear(-1, 3)}, "model of client 'phone' cannot be made: RuntimeError"),
    ({"model": lambda: Net().double()}, r"\(Its weights are float64: convert it to float32.\)"),
    ({"per_channel": "no"}, "'per_channel' of client 'phone' must be True or False, got 'no'"),
    ({"quantize": 5}, "'quantize' of client 'phone' must be a list of names of parameters, got 5"),
    ({"bits": 1, "quantize": [1]}, r"parameters to quantize must be a list of names, got \(1,\)"),
    ({"name": ["a"]}, "name of a client must be a non-empty string"),
    ({"train": (np.array([object()]), samples(0, 1)[1])}, "must be tensors or arrays of numbers"),
    ({"train": TensorSamples(NAN, samples(0, 20)[1])}, "training data of client 'phone' hold NaN"),
    ({"test": (torch.zeros(12, 5), samples(1, 12)[1])}, "network of client 'phone', on its test data, cannot run"),
    ({"bits": 1, "quantize": "middle.weight"}, "must be a list of names of parameters, got 'middle.weight'"),
    ({"bits": 1, "init_centers": "mean"}, "init_centers must be 'range', 'kmeans' or 'unit', got 'mean'"),
    ({"bits": 1, "model": constant_net}, "network of client 'phone' cannot be quantized: 'middle.weight': .* all 0"),
    ({"test": (samples(0, 20)[0], samples(0, 20)[1] + 5)}, "has 3 outputs but its labels go up to 7"),
    ({"train": (torch.zeros(20, 5), samples(0, 20)[1])}, "network of client 'phone' cannot run on its data"),
    ({"model": lambda: nn.Linear(6, 3), "bits": 1}, r"no layer between .*name parameters with quantize"),
    ({"bits": 1, "quantize": ["midle.weight"]}, "Did you mean 'middle.weight'"),
    ({"model": lambda: "network"}, "must be an nn.Module or a function that makes one"),
    ({"model": lambda: nn.Flatten(0)}, "no trainable parameters"),
    ({"model": lambda: nn.Sequential(nn.Linear(6, 3), nn.Flatten(0))}, "must give one row of class scores"),
    ({"name": ""}, "name of a client must be a non-empty string"),
]


@pytest.mark.parametrize(("wrong", "message"), BAD_CLIENTS)
def test_bad_clients(wrong: dict[str, object], message: str) -> None:
    """Each mistake in a client gets one clear sentence before anything is trained."""
    make: Callable[..., Client] = client
    with pytest.raises(QupedError, match=message):
        Federation([make(**wrong)], QuPeD())


def test_bad_federations() -> None:
    """Clients and algorithm must fit together."""
    with pytest.raises(QupedError, match="number of clients must be at least 1"):
        Federation([], QuPeD())
    with pytest.raises(QupedError, match="names of the clients must be distinct, got 'phone'"):
        Federation([client(), client()], QuPeD())
    with pytest.raises(QupedError, match="different networks: pass global_model"):
        Federation([client(), client("b", model=wide_net)], QuPeD())
    with pytest.raises(QupedError, match=r"FedAvg cannot train .* full-precision models only .set bits=32 for 'phone'"):
        Federation([client(bits=2)], FedAvg())
    with pytest.raises(QupedError, match=r"PFedMe cannot train .* one network at every client .'phone'"):
        Federation([client(model=wide_net)], PFedMe(), global_model=Net)
    with pytest.raises(QupedError, match="has 3 outputs but the global model has 4"):
        Federation([client()], QuPeD(), global_model=lambda: nn.Linear(6, 4))
    anything: Callable[..., Federation] = Federation
    assert len(Federation((client(name) for name in "ab"), QuPeD()).setup().clients) == 2
    for odd in (client(), [{"name": "phone"}], {"phone": client()}):
        with pytest.raises(QupedError, match=r"clients must be a list of Client\(...\)"):
            anything(odd, QuPeD())
    for wrong in (QuPeD, "quped"):
        with pytest.raises(QupedError, match=r"algorithm must be a dataclass instance such as QuPeD\(\)"):
            anything([client()], wrong)
    with pytest.raises(QupedError, match="seed must be a whole number"):
        Federation([client()], QuPeD(), seed=-1)


def frozen(value: float) -> nn.Module:
    """Return a network with a first layer that stays as it is."""
    net = Net()
    nn.init.constant_(net.first.weight, value)
    net.first.requires_grad_(False)
    return net


@pytest.mark.parametrize(
    ("model", "what"),
    [
        (frozen(0.5), "frozen parameters"),
        (nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3, affine=False)), "buffers"),
        (nn.Sequential(nn.Linear(6, 3), nn.Tanh()), "layers"),
    ],
)
def test_one_network_for_all_means_all_of_it(model: nn.Module, what: str) -> None:
    """Also what is not trained: otherwise one network is trained and another one deployed."""
    shared = frozen(0.25) if what == "frozen parameters" else nn.Sequential(nn.Linear(6, 3), nn.ReLU())
    with pytest.raises(QupedError, match=f"FedAvg cannot train .*'phone' differ from the global network in {what}"):
        Federation([client(model=model)], FedAvg(), global_model=shared)
    Federation([client(model=model)], QuPeD(), global_model=shared)
    Federation([client(model=shared), client("b", model=copy.deepcopy(shared))], FedAvg())


def test_the_order_of_clients_with_own_weights_changes_nothing() -> None:
    """The global model starts with the weights of the first by name."""
    members = [client(name, model=Net()) for name in ("b", "a")]
    fits = [Federation(order, QuPeD()).fit(epochs=1, workers=0) for order in (members, members[::-1])]
    assert_same(fits[0], fits[1])


def test_numbers_may_be_numpys() -> None:
    """As options of training, as the seed, and in hyperparameters."""
    kinds: list[tuple[Callable[[int], Any], Callable[[float], Any]]] = [(int, float), (np.int64, np.float32)]
    fits = [
        Federation([client()], QuPeD(lambda_p=number(0.5)), seed=whole(3)).fit(
            epochs=whole(2), batch_size=whole(8), lr=number(0.125), workers=0
        )
        for whole, number in kinds
    ]
    assert_same(fits[0], fits[1])
    told = [json.loads(json.dumps(fit.to_dict())) for fit in fits]
    assert all(told[0][key] == told[1][key] for key in ("seed", "epochs", "rounds", "hyperparameters", "training"))


def test_networks_that_are_random_in_evaluation_are_reproducible() -> None:
    """Dropout that nobody switched off: the same seed, the same accuracy."""

    def noisy() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 3), Noise())

    members = [client(name, model=noisy) for name in ("a", "b")]
    fits = [Federation(members, Local()).fit(epochs=2, workers=workers) for workers in (0, 0, 2)]
    assert fits[0].curve[-1].accuracy == fits[1].curve[-1].accuracy == fits[2].curve[-1].accuracy


class Noise(nn.Module):
    """Dropout in both modes."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return some of the inputs."""
        return nn.functional.dropout(inputs, 0.9)


BAD_FITS: list[tuple[dict[str, object], str]] = [
    ({"epochs": 0}, "epochs must be a whole number of at least 1, got 0"),
    ({"local_steps": 0}, "local_steps must be"),
    ({"batch_size": 0}, "batch_size must be"),
    ({"lr": "0.1"}, "lr must be above 0 and finite, got '0.1'"),
    ({"schedule_epochs": "2"}, "schedule_epochs must be a whole number"),
    ({"momentum": 1.0}, "momentum must be at least 0 and below 1"),
    ({"finetune_epochs": 2.5}, "finetune_epochs must be a whole number"),
    ({"finetune_epochs": 1, "local_steps": 1000}, "No round begins in the last 1 epochs.*fewer local_steps"),
    ({"lr": 0.0}, "lr must be above 0"),
    ({"lr_decay": 1.5}, "lr_decay must be"),
    ({"momentum": -0.1}, "momentum must be"),
    ({"weight_decay": -1.0}, "weight_decay must be"),
    ({"finetune_epochs": 31}, "finetune_epochs must be a whole number from 0 to 30, got 31"),
    ({"clients_per_round": 2}, "clients_per_round must be at most 1, the number of clients, got 2"),
    ({"clients_per_round": 0}, "clients_per_round must be"),
    ({"steps_per_epoch": 0}, "steps_per_epoch must be"),
    ({"steps_per_epoch": 4, "batch_size": 0}, "batch_size must be"),
    ({"evaluate_every": 0}, "evaluate_every must be"),
    ({"max_update_norm": 0.0}, "max_update_norm must be above 0 and finite, got 0.0"),
    ({"progress": 5}, "progress must be True or False, got 5"),
    ({"checkpoints": 5}, "checkpoints must be the path of a folder, got 5"),
    ({"epoch": 3}, r"no training option 'epoch'\. Did you mean 'epochs'\?"),
    ({"epochs": 10**400}, "epochs must be at most 1,000,000,000, got 1000"),
    ({"epochs": True}, "epochs must be a whole number of at least 1, got True"),
    ({"workers": "x"}, "number of workers must be a whole number of at least 0, got 'x'"),
    ({"checkpoint_every": "a"}, "checkpoint_every must be a whole number of at least 1, got 'a'"),
    ({"lr": 1e12}, "lower the learning rate"),
]


@pytest.mark.parametrize(("wrong", "message"), BAD_FITS)
def test_bad_arguments_of_fit(wrong: dict[str, object], message: str) -> None:
    """Each gets one clear sentence; a divergence names the client and the round."""
    fit: Callable[..., object] = Federation([client()], QuPeD()).fit
    with pytest.raises(QupedError, match=message):
        fit(**wrong)


def test_a_class_never_trained_on_is_allowed_and_said() -> None:
    """The warning names the client and the class."""
    inputs, labels = samples(0, 20)
    only = labels < 2
    with pytest.warns(UserWarning, match=r"without training samples: 'phone' \(2\)") as told:
        Federation([client(train=(inputs[only], labels[only]))], Local())
    assert told[0].filename == __file__  # the line that made the federation
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Federation([client()], Local())


def test_an_error_within_training_names_the_client() -> None:
    """A network that fails in its first training step, here BatchNorm with one sample, says whose it is."""
    with pytest.raises(
        QupedError, match="Client 'phone' failed in round 1: ValueError: Expected more than 1 value per channel"
    ):
        Federation([client()], Local()).fit(batch_size=1)


def test_unknown_client_of_a_fit() -> None:
    """Asking for a client that is not there lists those that are."""
    fit = Federation([client()], Local()).fit(epochs=1)
    with pytest.raises(QupedError, match=r"no client 'fone'. Did you mean 'phone'"):
        fit.module("fone")


def test_lists_and_numpy_integers_are_as_good() -> None:
    """[inputs, labels], and a bit-width out of an array."""
    fit = Federation([client(train=list(samples(0, 20)), bits=np.int64(2))], Local()).fit(epochs=1, workers=0)
    assert fit.clients[0].bits == {"middle.weight": 2}
    json.dumps(fit.to_dict())


def test_frozen_parameters_stay_and_count() -> None:
    """They are neither trained nor averaged, bit for bit, and are part of the size."""

    def half_frozen() -> nn.Module:
        net = Net()
        net.first.requires_grad_(False)
        return net

    clients = [client(f"c{i}", train=samples(i, 20), model=half_frozen) for i in range(3)]
    fit = Federation(clients, FedAvg()).fit(epochs=5, workers=0)
    with torch_seeded(0, "init"):
        expected = half_frozen().get_parameter("first.weight")
    for name in fit.models:
        assert torch.equal(fit.module(name).get_parameter("first.weight"), expected)
    assert fit.clients[0].parameters == sum(p.numel() for p in Net().parameters())


def test_functions_that_make_the_same_network_are_the_same_network() -> None:
    """Without a global model, what counts is what the functions make."""
    clients = [client(name, model=lambda: Net()) for name in ("a", "b")]
    assert len(Federation(clients, FedAvg()).fit(epochs=1, workers=0).accuracy) == 2


def test_fine_tuning_by_default_only_where_a_round_begins_in_it() -> None:
    """A sixth of the epochs; where rounds are long, the last one; none in a run of a single round."""
    federation = Federation([client(bits=2, train=samples(0, 250))], Local())
    assert federation.setup(epochs=30).schedule.finetune_epochs == 5
    assert federation.setup(epochs=30, local_steps=100).schedule.finetune_epochs == 10
    assert federation.setup(epochs=30, local_steps=1000).schedule.finetune_epochs == 0
    assert [federation.setup(epochs=epochs).schedule.finetune_epochs for epochs in (1, 2, 3)] == [0, 1, 1]
    assert Federation([client()], Local()).setup(epochs=30).schedule.finetune_epochs == 0


def test_variable_batch_sizes_give_every_client_the_same_epoch() -> None:
    """steps_per_epoch without batch_size: one pass over each client's own data per epoch, as the paper does it."""
    clients = [client("a", train=samples(0, 12)), client("b", train=samples(0, 30))]
    fit = Federation(clients, FedAvg(), Net).fit(epochs=2, steps_per_epoch=6, local_steps=3)
    assert fit.rounds == 4
    assert [e.epoch for e in fit.curve] == [0, 1]
