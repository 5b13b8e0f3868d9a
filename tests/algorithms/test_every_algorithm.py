"""What every algorithm must keep, whatever it computes."""

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from helpers.small_federation import algorithms, fit, samples

from quped import FedAvg, QuPeD
from quped import algorithms as package
from quped.algorithms import ALGORITHMS, AnyAlgorithm, ClientSpec, Empty, Global, Local, Quantization, QuPeL
from quped.algorithms.fedavg import Work
from quped.quant import hard
from quped.testing import CONTRACTS, check_algorithm, small_batches, small_spec
from quped.typing import Batch, Clock, Metrics, Params, Phase

every_algorithm = pytest.mark.parametrize("name", sorted(algorithms()))
every_phase = pytest.mark.parametrize("phase", list(Phase))


def test_the_suite_sees_every_algorithm() -> None:
    folder = Path(package.__file__).parent
    files = {path.stem for path in folder.glob("[!_]*.py")} - {"base", "quantization"}
    assert ALGORITHMS.keys() == files


SLOW_CONTRACTS = ("engines_agree", "resumed_run_is_the_same", "order_of_clients_changes_nothing")


@every_algorithm
@pytest.mark.parametrize(
    "contract",
    [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW_CONTRACTS else []) for name in sorted(CONTRACTS)],
)
def test_every_algorithm_keeps_every_contract(name: str, contract: str) -> None:
    CONTRACTS[contract](algorithms()[name]())


@dataclass(frozen=True)
class InPlace(FedAvg):
    """FedAvg that spoils the state that it was given."""

    def start(self, spec: ClientSpec, shared: Global, personal: object, clock: Clock) -> Work:
        shared.w.params["last.weight"].mul_(1.5)
        return super().start(spec, shared, Empty(), clock)


@dataclass(frozen=True)
class Asleep(FedAvg):
    """FedAvg that never takes a step."""

    def step(self, spec: ClientSpec, work: Work, batches: tuple[Batch, ...], clock: Clock) -> tuple[Work, Metrics]:
        return work, {"loss": torch.tensor(0.0)}


@pytest.mark.parametrize(
    ("broken", "rule"),
    [(InPlace(), "changes none of its inputs"), (Asleep(), "changes the deployed model")],
)
def test_a_broken_algorithm_is_named_with_its_contract(broken: AnyAlgorithm, rule: str) -> None:
    with pytest.raises(AssertionError, match=f"{type(broken).__name__} breaks the contract .*{rule}"):
        check_algorithm(broken)


@every_algorithm
def test_deployed_models_run_as_modules(name: str) -> None:
    """The module computes what the tensors say, in evaluation mode."""
    result = fit(algorithms()[name]())
    for report in result.clients:
        module = result.module(report.name)
        assert not module.training
        inputs, labels = samples(100 + int(report.name[1:]), 12)
        accuracy = float((module(inputs).argmax(1) == labels).float().mean())
        assert accuracy == pytest.approx(result.accuracy[report.name])


@every_algorithm
def test_batchnorm_statistics_are_learned(name: str) -> None:
    """Buffers are state: they move, and stay finite."""
    for model in fit(algorithms()[name]()).models.values():
        assert bool((model.state.buffers["norm.running_mean"] != 0).any())
        assert all(bool(b.isfinite().all()) for b in model.state.buffers.values())


def after_one_batch(params: Params, batch: Batch) -> torch.Tensor:
    """BatchNorm's running mean after one pass with its momentum of 0.1, from 0: a tenth of the layer's mean output."""
    return 0.1 * (batch.inputs[0] @ params["first.weight"].T).mean(0)


@pytest.mark.parametrize("kind", [Local, QuPeL, QuPeD])
@pytest.mark.parametrize("update_centers", [True, False])
@every_phase
def test_deployed_statistics_belong_to_the_quantized_network(
    kind: type[Local] | type[QuPeL] | type[QuPeD], update_centers: bool, phase: Phase
) -> None:
    """x and Q_c(x) have statistics of their own; here the first layer is quantized, so that they differ."""
    algorithm: AnyAlgorithm = kind(quantization=Quantization(update_centers=update_centers))
    t = replace(small_spec(algorithm, momentum=0.0), bits={"first.weight": 2})
    now, (batch,) = Clock(4, 2, phase, 2.0, 0.1, 0.1, 0.0), small_batches(algorithm)[0]
    shared = algorithm.init_shared(t)
    start = algorithm.init_personal(t, shared)
    start = start._replace(q_buffers=start.q_buffers | {"norm.running_mean": torch.ones(8)})
    work, _ = algorithm.step(t, algorithm.start(t, shared, start, now), (batch,), now)
    personal, payload = algorithm.finish(t, work, batch, now)
    # In training the pass at Q_c(x) comes after the step of x, and before that of c.
    x = personal.x.params if phase is Phase.TRAIN else t.initial.params
    quantized = {"first.weight": hard(x["first.weight"], start.c["first.weight"])}
    expected = 0.9 + after_one_batch(quantized, batch)
    deployed = algorithm.deploy(t, shared, personal)
    torch.testing.assert_close(deployed.state.buffers["norm.running_mean"], expected, rtol=1e-4, atol=1e-6)
    if phase is Phase.TRAIN:
        exact = after_one_batch(t.initial.params, batch)
        torch.testing.assert_close(personal.x.buffers["norm.running_mean"], exact, rtol=1e-4, atol=1e-6)
        assert not torch.allclose(exact, expected, atol=1e-3)
    if isinstance(algorithm, QuPeD):
        w = after_one_batch(t.global_initial.params, batch)
        torch.testing.assert_close(payload.w.buffers["norm.running_mean"], w, rtol=1e-4, atol=1e-6)
