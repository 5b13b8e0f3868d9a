"""A client that returns nonsense is named, in the round in which it did, whatever the engine."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch
from helpers.small_federation import Rounds, assert_same, clients, fit
from torch import Tensor, nn

from quped import Client, FedAvg, Federation, Local, QupedError
from quped.algorithms import ClientSpec, Empty, Global
from quped.algorithms._algorithm1 import Learner
from quped.algorithms.fedavg import Work
from quped.data import as_samples
from quped.simulation.client_round import bound_update
from quped.typing import Batch, Clock, ModelState

LAST = 8
"""The last round of the small federation."""


@dataclass(frozen=True)
class Liar(FedAvg):
    """FedAvg with clients that spoil their payload in a round."""

    spoil: Callable[[Tensor], Tensor] = field(default=lambda w: w)
    when: int = LAST

    def finish(self, spec: ClientSpec, work: Work, batch: Batch, clock: Clock) -> tuple[Empty, Global]:
        personal, payload = super().finish(spec, work, batch, clock)
        if clock.round != self.when:
            return personal, payload
        params = {**payload.w.params, "last.weight": self.spoil(payload.w.params["last.weight"])}
        return personal, Global(ModelState(params, payload.w.buffers))


LIES: dict[str, Callable[[Tensor], Tensor]] = {
    "nan": lambda w: w * torch.nan,
    "infinity": lambda w: w / 0,
    "huge": lambda w: torch.full_like(w, 3e38),
    "scalar": lambda w: w.mean(),
    "row": lambda w: w[:1],
    "float64": lambda w: w.double(),
    "int64": lambda w: w.long(),
    "sparse": lambda w: w.to_sparse(),
    "nowhere": lambda w: w.to("meta"),
}


@pytest.mark.parametrize("lie", sorted(LIES))
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("when", [2, LAST])
def test_a_payload_that_nobody_can_use_names_its_client_and_round(lie: str, workers: int, when: int) -> None:
    liar = Liar(LIES[lie], when)
    with pytest.raises(QupedError, match=rf"payload of client 'c\d' in round {when + 1} .*last.weight"):
        fit(liar, clients(FedAvg()), workers=workers)


def test_a_lie_of_the_first_client_in_the_first_round_does_not_become_the_rule() -> None:
    @dataclass(frozen=True)
    class First(Liar):
        """Only the client whose inputs are all 7 lies."""

        def finish(self, spec: ClientSpec, work: Work, batch: Batch, clock: Clock) -> tuple[Empty, Global]:
            if (batch.inputs[0] == 7).all():
                return super().finish(spec, work, batch, clock)
            return FedAvg().finish(spec, work, batch, clock)

    first, *others = clients(FedAvg())
    samples = as_samples(first.train, "data")
    whole = samples.batch(torch.arange(len(samples)))
    culprit = replace(first, train=(torch.full_like(whole.inputs[0], 7.0), whole.labels))
    with pytest.raises(QupedError, match=rf"payload of client '{first.name}' in round 1 .*last.weight"):
        fit(First(LIES["row"], when=0), [culprit, *others])


def test_missing_and_further_tensors_are_named() -> None:
    @dataclass(frozen=True)
    class Forgetful(FedAvg):
        def finish(self, spec: ClientSpec, work: Work, batch: Batch, clock: Clock) -> tuple[Empty, Global]:
            personal, payload = super().finish(spec, work, batch, clock)
            params = {k: v for k, v in payload.w.params.items() if clock.round < 3 or k != "last.bias"}
            return personal, Global(ModelState(params, payload.w.buffers))

    with pytest.raises(QupedError, match=r"client 'c0' in round 4 .* other tensors .*last.bias"):
        fit(Forgetful(), clients(FedAvg()))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_payload_that_holds_itself_is_refused(workers: int) -> None:
    @dataclass(frozen=True)
    class Endless(FedAvg):
        def finish(self, spec: ClientSpec, work: Work, batch: Batch, clock: Clock) -> tuple[Empty, Global]:
            personal, payload = super().finish(spec, work, batch, clock)
            params: dict[str, Any] = dict(payload.w.params)
            if clock.round == 2:
                params["again"] = params
            return personal, Global(ModelState(params, payload.w.buffers))

    with pytest.raises(QupedError, match=r"payload of client 'c\d' in round 3 .*nested too deeply"):
        fit(Endless(), clients(FedAvg()), workers=workers)


@pytest.mark.parametrize("since", [0, 1])
def test_the_order_of_tensors_does_not_matter(since: int) -> None:
    """Two layers have one shape: in another order, each would get the numbers of the other."""

    @dataclass(frozen=True)
    class Backwards(FedAvg):
        def finish(self, spec: ClientSpec, work: Work, batch: Batch, clock: Clock) -> tuple[Empty, Global]:
            personal, payload = super().finish(spec, work, batch, clock)
            names = list(payload.w.params)[:: 1 if clock.round < since else -1]
            return personal, Global(ModelState({k: payload.w.params[k] for k in names}, payload.w.buffers))

    def network() -> nn.Sequential:
        torch.manual_seed(0)
        return nn.Sequential(*(nn.Linear(4, 4, bias=False) for _ in range(2)))

    samples = torch.randn(20, 4), torch.arange(20) % 4
    members = [Client(str(i), train=samples, test=None, model=network()) for i in range(2)]

    def learned(algorithm: FedAvg, workers: int) -> dict[str, Tensor]:
        options: dict[str, Any] = {"epochs": 3, "local_steps": 1, "batch_size": 10, "workers": workers}
        result = Federation(members, algorithm, network()).fit(**options, progress=False)
        return result.models["0"].state.params

    expected = learned(FedAvg(), 0)
    for workers in (0, 2):
        found = learned(Backwards(), workers)
        assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_personal_states_are_checked_too() -> None:
    """Training that diverges within a round: the loss of its first step was fine."""
    with pytest.raises(QupedError, match=r"of client 'c\d' in round \d+ .*learning rate"):
        fit(Local(), lr=1e12)


@pytest.mark.parametrize("options", [{"workers": 0}, {"workers": 2}, {"device": "cpu"}], ids=str)
def test_a_bad_client_can_be_skipped(options: dict[str, Any]) -> None:
    """Its round is as if it had not been sampled: nobody gets its numbers, and its own state stays."""

    @dataclass(frozen=True)
    class OneLiar(Local):
        """Local training in which the largest client spoils its own state in round 3."""

        def finish(self, spec: ClientSpec, work: Learner, batch: Batch, clock: Clock) -> tuple[Learner, Empty]:
            spoilt = clock.round == 2 and len(spec.initial.params["first.weight"]) == 12
            factor = torch.nan if spoilt else 1.0
            params = {k: v * factor for k, v in work.x.params.items()}
            return work._replace(x=work.x._replace(params=params)), Empty()

    with pytest.warns(UserWarning, match="client 'c1' in round 3 .* skipped in this round"):
        result = fit(OneLiar(), clients(Local(), 4)[:3], bad_updates="skip", **options)
    assert all(bool(v.isfinite().all()) for model in result.models.values() for v in model.state.params.values())


def test_a_round_of_bad_clients_only_ends_the_run() -> None:
    with pytest.warns(UserWarning, match="skipped"), pytest.raises(QupedError, match="No client of round 3"):
        fit(Liar(LIES["nan"], 2), clients(FedAvg()), bad_updates="skip")


@dataclass(frozen=True)
class Told(FedAvg):
    """FedAvg that tells what its clients send in the first round."""

    sent: list[dict[str, Tensor]] = field(default_factory=list, compare=False)

    def finish(self, spec: ClientSpec, work: Work, batch: Batch, clock: Clock) -> tuple[Empty, Global]:
        personal, payload = super().finish(spec, work, batch, clock)
        if clock.round == 0:
            self.sent.append(payload.w.params | payload.w.buffers)
        return personal, payload


def test_updates_are_shortened_to_a_norm() -> None:
    """The first round in NumPy: clients that moved far are pulled to the bound, the others stay as they are."""
    told, rounds = Told(), Rounds()
    fit(told, clients(FedAvg()))
    first, begun, *others = told.sent  # the second one tells the form of a payload, after no step
    sent = [first, *others]
    lengths = [norm(one, begun) for one in sent]
    bound = float(np.mean(lengths))
    assert min(lengths) < bound < max(lengths)
    fit(FedAvg(), clients(FedAvg()), max_update_norm=bound, callbacks=[rounds])
    w = rounds.rounds[0].shared.w
    for name in sent[0]:
        before = begun[name].double().numpy()
        moves = [one[name].double().numpy() - before for one in sent]
        shortened = [move * min(1.0, bound / length) for move, length in zip(moves, lengths, strict=True)]
        after = (w.params | w.buffers)[name].numpy()
        np.testing.assert_allclose(after, before + np.mean(shortened, 0), rtol=1e-5, atol=1e-7)


def norm(sent: dict[str, Tensor], begun: dict[str, Tensor]) -> float:
    """Return the Euclidean norm of an update."""
    return float(np.linalg.norm(np.concatenate([(sent[k] - begun[k]).double().numpy().ravel() for k in sent])))


def test_a_bound_is_the_same_in_every_engine() -> None:
    """Bit for bit in processes; the stacked engine rounds otherwise."""
    alone, workers, stacked = (
        fit(FedAvg(), clients(FedAvg()), max_update_norm=0.05, **options)
        for options in ({"workers": 0}, {"workers": 2}, {"device": "cpu"})
    )
    assert_same(alone, workers)
    for model, other in zip(alone.models.values(), stacked.models.values(), strict=True):
        for name, value in model.state.params.items():
            torch.testing.assert_close(other.state.params[name], value)


def test_a_bound_on_something_else_than_the_shared_state_is_refused() -> None:
    with pytest.raises(QupedError, match="max_update_norm bounds what moves the shared state"):
        bound_update({"gradient": torch.ones(3)}, Global(ModelState({"w": torch.ones(3)}, {})), 1.0)
