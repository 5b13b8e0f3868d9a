"""Compiled steps compute what plain ones do, with any clock; what cannot be compiled runs as it is, and says so."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.small_federation import Rounds, algorithms, assert_same, clients, fit, samples
from torch import Tensor, nn

from quped import Client, FedAvg, Federation, FitResult, Local, QuPeD, QupedError, QuPeDPlus, _tree
from quped._transform import Decisions, TracedNumber
from quped.algorithms import AnyAlgorithm, Quantization
from quped.models import cnn1
from quped.quant import LinearSchedule, prox
from quped.simulation import compiled
from quped.simulation.compiled import CompiledSteps, compare, flatten, numbers_of, rebuild, trace
from quped.testing import small_batches, small_spec
from quped.typing import Batch, Clock, Phase

CLOCK = Clock(round=4, epoch=2, phase=Phase.TRAIN, t=2.0, lr=0.1, initial_lr=0.1, progress=0.75)
LATER = CLOCK._replace(round=5, t=2.5, lr=0.03, progress=0.8)


def problem(algorithm: AnyAlgorithm, clock: Clock) -> tuple[Any, Any, Any]:
    """Return the arguments of a step: a client with BatchNorm and momentum, quantized where the algorithm allows it."""
    spec, batches = small_spec(algorithm), small_batches(algorithm)[0]
    shared = algorithm.init_shared(spec)
    work = algorithm.start(spec, shared, algorithm.init_personal(spec, shared), clock)
    return spec, work, batches


def close(outputs: list[Tensor], work: Any, metrics: dict[str, Tensor]) -> None:
    """Assert that a graph gave what a step gave, up to rounding."""
    wanted = [*flatten(work)[0], metrics["loss"]]
    for got, expected in zip(outputs, wanted, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-6)


DECIDES = {"fedrep"}
"""Counts its steps in a tensor, and decides by it."""


@pytest.mark.parametrize("name", sorted(algorithms().keys() - DECIDES))
@pytest.mark.parametrize("phase", list(Phase))
def test_the_graph_of_every_algorithm_is_its_step(name: str, phase: Phase) -> None:
    """The learning rate and lambda(t) are inputs of the graph: it serves another round, too."""
    algorithm, now, later = algorithms()[name](), CLOCK._replace(phase=phase), LATER._replace(phase=phase)
    spec, work, batches = problem(algorithm, now)
    decisions = Decisions(now)
    graph, arguments = trace(algorithm, spec, work, batches, decisions)
    close(graph(*arguments), *algorithm.step(spec, work, batches, now))
    assert decisions.hold(later)
    work, _ = algorithm.step(spec, work, batches, now)
    again = [numbers_of(later), *flatten((work, small_batches(algorithm)[1]))[0]]
    close(graph(*again), *algorithm.step(spec, work, small_batches(algorithm)[1], later))


@pytest.mark.parametrize("sharpness", [8.0, float("inf")])
def test_the_graphs_of_other_quantizers_are_their_steps(sharpness: float) -> None:
    algorithm = Local(quantization=Quantization(sharpness=sharpness, center_lr_ratio=0.1))
    spec, work, batches = problem(algorithm, CLOCK)
    graph, arguments = trace(algorithm, spec, work, batches, Decisions(CLOCK))
    close(graph(numbers_of(LATER), *arguments[1:]), *algorithm.step(spec, work, batches, LATER))


@pytest.mark.parametrize(
    ("algorithm", "other"),
    [
        (QuPeD(), CLOCK._replace(phase=Phase.FINETUNE)),
        (QuPeD(warmup_epochs=2.2), LATER),
        (QuPeDPlus(together=0.7, common=0.78), LATER),
    ],
)
def test_another_stage_needs_another_graph(algorithm: AnyAlgorithm, other: Clock) -> None:
    spec, work, batches = problem(algorithm, CLOCK)
    decisions = Decisions(CLOCK)
    trace(algorithm, spec, work, batches, decisions)
    assert decisions.hold(CLOCK)
    assert not decisions.hold(other)


def test_a_tree_is_rebuilt_from_its_leaves() -> None:
    _, work, batches = problem(QuPeD(), CLOCK)
    leaves, form = flatten((work, batches))
    again = rebuild((work, batches), iter(leaves))
    assert flatten(again)[1] == form
    for (path, leaf), (same, other) in zip(_tree.items(work), _tree.items(_tree.arranged(again[0], work)), strict=True):
        assert path == same
        assert torch.equal(leaf, other)


def test_no_number_of_the_clock_is_taken_for_a_constant() -> None:
    """What cannot be part of a graph is an error, and the step runs as it is."""

    class Careless(FedAvg):
        def step(self, spec: Any, work: Any, batches: Any, clock: Clock) -> Any:
            return super().step(spec, work, batches, clock._replace(lr=float(clock.lr)))

    spec, work, batches = problem(FedAvg(), CLOCK)
    with pytest.raises(TypeError, match="float"):
        trace(Careless(), spec, work, batches, Decisions(CLOCK))


class Cutting(FedAvg):
    """FedAvg that sets weights smaller than the learning rate to 0."""

    def step(self, spec: Any, work: Any, batches: Any, clock: Clock) -> Any:
        moved, metrics = super().step(spec, work, batches, clock)
        params = {k: torch.where(v.abs() < clock.lr, 0, v) for k, v in moved.w.params.items()}
        return moved._replace(w=moved.w._replace(params=params)), metrics


def test_a_comparison_with_a_tensor_is_part_of_the_graph() -> None:
    spec, work, batches = problem(Cutting(), CLOCK)
    decisions = Decisions(CLOCK)
    graph, arguments = trace(Cutting(), spec, work, batches, decisions)
    assert decisions.hold(LATER)
    close(graph(numbers_of(LATER), *arguments[1:]), *Cutting().step(spec, work, batches, LATER))


class Dropping(nn.Module):
    """Convolution, BatchNorm and dropout, with a frozen layer; for inputs of 6 numbers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.frozen = nn.Linear(6, 16).requires_grad_(False)
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.drop = nn.Dropout(0.25)
        self.last = nn.Linear(16, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        images = self.norm(self.conv(self.frozen(inputs).reshape(-1, 1, 4, 4))).relu()
        logits: Tensor = self.last(self.drop(nn.functional.max_pool2d(images, 2).flatten(1)))
        return logits


def train(algorithm: AnyAlgorithm, network: type[nn.Module], **options: Any) -> FitResult:
    """Train two clients for three rounds."""
    bits = 2 if algorithm.quantizes else 32
    members = [
        Client(f"c{i}", train=samples(i, 12), test=samples(50 + i, 12), model=network, bits=bits) for i in (0, 1)
    ]
    given: dict[str, Any] = {"epochs": 3, "finetune_epochs": 0, "local_steps": 2, "batch_size": 6, "workers": 0}
    return Federation(members, algorithm, network).fit(**given | options, progress=False)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a cache that the tests of this file share."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def own_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile for these tests alone."""
    monkeypatch.setenv("QUPED_CACHE", str(cache))


@pytest.mark.slow
def test_compiled_runs_agree_with_plain_ones_and_in_all_engines(cache: Path, tmp_path: Path) -> None:
    """Up to rounding with plain steps; bit for bit with each other, interrupted ones and those from the cache, too."""
    plain, short = (train(QuPeD(), Dropping, epochs=1, compile=wanted) for wanted in (False, True))
    for name, model in plain.models.items():
        compiled_model = dict(_tree.items(short.models[name].state))
        for path, leaf in _tree.items(model.state):
            torch.testing.assert_close(compiled_model[path], leaf, rtol=1e-4, atol=1e-6, msg=path)
    inline = train(QuPeD(), Dropping, compile=True)
    test_the_name_of_a_library_stays()
    libraries = sorted((cache / "steps").glob("*.pt2"))
    assert libraries
    assert_same(train(QuPeD(), Dropping, compile=True, workers=2), inline)
    assert sorted((cache / "steps").glob("*.pt2")) == libraries
    assert inline.to_dict()["training"]["compile"] is True
    assert "compile" not in plain.to_dict()["training"]

    def stop(_: object) -> None:
        raise KeyboardInterrupt

    folder = tmp_path / "checkpoints"
    with pytest.raises(KeyboardInterrupt):
        train(QuPeD(), Dropping, compile=True, checkpoints=folder, checkpoint_every=1, callbacks=[Rounds(stop)])
    assert_same(train(QuPeD(), Dropping, compile=True, checkpoints=folder), inline)
    assert sorted((cache / "steps").glob("*.pt2")) == libraries
    damaged = libraries[0]
    damaged.write_bytes(damaged.read_bytes()[:-100])
    assert_same(train(QuPeD(), Dropping, compile=True), inline)
    assert damaged.stat().st_size > 100


class Choosing(nn.Module):
    """A network that decides by the values of its inputs."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.two = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.one(inputs)
        logits: Tensor = self.two(hidden.relu() if inputs.mean() > 0 else hidden.tanh())
        return logits


def test_a_network_that_decides_by_values_runs_as_it_is() -> None:
    with pytest.warns(UserWarning, match="The step of FedAvg with Choosing is not compiled: .* It runs as usual"):
        result = train(FedAvg(), Choosing, compile=True)
    assert_same(result, train(FedAvg(), Choosing))


class Perceptron(nn.Sequential):
    """A small perceptron."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


@pytest.mark.parametrize("flaw", ["far", "nan", "form"])
def test_a_wrong_library_is_not_used(monkeypatch: pytest.MonkeyPatch, flaw: str) -> None:
    """A compiler may be wrong: its first step is compared."""

    def load(graph: Any, arguments: list[Tensor], check: Any) -> Any:
        def run(inputs: list[Tensor]) -> list[Tensor]:
            outputs: list[Tensor] = graph(*inputs)
            wrong = {"far": outputs[0] + 0.1, "nan": outputs[0] * float("nan"), "form": outputs[0][:1]}[flaw]
            return [wrong, *outputs[1:]]

        check(run)
        return run

    monkeypatch.setattr(compiled, "load", load)
    with pytest.warns(UserWarning, match=r"is not compiled: Compiled, (a tensor ends .* away|it gives tensors)"):
        result = train(FedAvg(), Perceptron, compile=True)
    assert_same(result, train(FedAvg(), Perceptron))


def by_graph(graph: Any, arguments: list[Tensor], check: Any) -> Any:
    """Stand for `load`: compute a graph as PyTorch does."""

    def run(inputs: list[Tensor]) -> list[Tensor]:
        outputs: list[Tensor] = graph(*inputs)
        return outputs

    check(run)
    return run


def test_the_comparison_sees_what_lambda_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the beginning of a run lambda(t) is 0: a graph is tried with a later clock."""
    monkeypatch.setattr(compiled, "load", by_graph)
    pulled = QuPeD(quantization=Quantization(lam={2: LinearSchedule(0.05)}))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(pulled, Dropping, compile=True, steps_per_epoch=2)

    def outward(x: Tensor, bound: Any) -> Tensor:
        if not isinstance(bound, TracedNumber):
            return nn.functional.softshrink(x, bound)
        return x + x.clamp(-bound.tensor, bound.tensor).to(x.dtype)

    monkeypatch.setattr(prox, "shrunk", outward)
    with pytest.warns(UserWarning, match=r"is not compiled: Compiled, a tensor ends .* away"):
        train(pulled, Dropping, compile=True, steps_per_epoch=2)


class Scaled(nn.Module):
    """A perceptron that learns the scale of its logits, a tensor without dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.perceptron = Perceptron()
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.perceptron(inputs) * self.scale
        return logits


def test_a_tensor_without_dimensions_keeps_its_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "load", by_graph)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result, plain = (train(FedAvg(), Scaled, compile=wanted) for wanted in (True, False))
    for path, leaf in _tree.items(plain.models["c0"].state):
        torch.testing.assert_close(dict(_tree.items(result.models["c0"].state))[path], leaf, rtol=1e-4, atol=1e-6)


def test_clients_with_many_sizes_of_batches_run_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "load", by_graph)
    monkeypatch.setattr(compiled, "MOST_FORMS", 2)
    sizes = {f"c{i}": samples(i, 6 + 3 * i) for i in range(3)}
    members = [Client(name, train=data, test=None, model=Perceptron) for name, data in sizes.items()]
    with pytest.warns(UserWarning, match="Its batches have more than 2 sizes"):
        Federation(members, FedAvg()).fit(epochs=1, batch_size=20, workers=0, compile=True, progress=False)


def test_a_state_of_something_else_is_an_error() -> None:
    with pytest.raises(QupedError, match="With compile=True, states hold tensors alone, not int"):
        flatten((torch.ones(1), 3))


def test_the_name_of_a_library_stays() -> None:
    """Compiling adds options to those that Inductor was given, not to ours."""
    assert "aot_inductor.package" not in compiled.OPTIONS


def test_a_step_that_differs_by_rounding_passes() -> None:
    before, after = torch.ones(100), torch.ones(100) * 0.9
    compare([before], [after, torch.tensor(1.0)], [after + 1e-6, torch.tensor(1.0)])
    with pytest.raises(ArithmeticError, match=r"a tensor ends .* away"):
        compare([torch.tensor(1)], [torch.tensor(2), torch.tensor(1.0)], [torch.tensor(3), torch.tensor(1.0)])


def test_texts_and_our_own_networks_stay_plain(recwarn: pytest.WarningsRecorder) -> None:
    """Batches of words have a new form each, and CNN1 has kernels of its own: there is nothing to say."""
    eight = torch.randn(8, 1, 8, 8), torch.arange(8) % 3
    images = Client("a", train=eight, test=None, model=lambda: cnn1((1, 8, 8), 3))
    setup = Federation([images], FedAvg()).setup(epochs=1, compile=True)
    spec, shared = setup.clients[0].spec, setup.templates.shared
    work = setup.algorithm.start(spec, shared, setup.algorithm.init_personal(spec, shared), CLOCK)
    assert setup.compiled.program(spec, work, (setup.clients[0].train.batch(torch.arange(4)),), CLOCK).run is None
    spec, work, (batch,) = problem(FedAvg(), CLOCK)
    words = Batch((torch.arange(20), torch.arange(len(batch.labels))), batch.labels)
    assert CompiledSteps(FedAvg()).program(spec, work, (words,), CLOCK).run is None
    assert not recwarn.list


def test_clients_that_are_computed_at_once_take_no_compiled_steps() -> None:
    with pytest.raises(QupedError, match=r"The engine 'vmapped' .* takes no compiled steps: leave out compile"):
        fit(FedAvg(), clients(FedAvg()), compile=True, device="cpu")
