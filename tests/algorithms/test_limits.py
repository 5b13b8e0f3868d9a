"""Where hyperparameters reach a limit, an algorithm becomes a simpler one."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from helpers.small_federation import Net, clients, fit, samples, values
from torch import nn

from quped import (
    Client,
    Ditto,
    FedAvg,
    FedAvgFT,
    Federation,
    FedRep,
    FitResult,
    Local,
    PFedMe,
    Quantization,
    QuPeD,
    QuPeL,
    _tree,
)
from quped._rng import torch_seeded
from quped.algorithms import AnyAlgorithm
from quped.data import as_samples
from quped.data.batches import draw


def full_precision(algorithm: AnyAlgorithm) -> list[Client]:
    """Return the clients of the contracts at 32 bits."""
    return [replace(client, bits=32) for client in clients(algorithm)]


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_quped_without_distillation_and_quantization_is_local_training(momentum: float) -> None:
    """lambda_p = 0 at 32 bits: the same weights, bit for bit."""
    members = full_precision(QuPeD())
    alone, together = (fit(a, members, momentum=momentum) for a in (Local(), QuPeD(lambda_p=0.0)))
    for name, model in alone.models.items():
        for key, value in model.state.params.items():
            assert torch.equal(value, together.models[name].state.params[key]), (name, key)


def test_quped_without_distillation_is_local_quantized_training() -> None:
    """lambda_p = 0: Algorithm 2 is Algorithm 1 at each client."""
    alone, together = fit(Local()), fit(QuPeD(lambda_p=0.0))
    for name, model in alone.models.items():
        for key, value in model.state.params.items():
            torch.testing.assert_close(value, together.models[name].state.params[key], rtol=0, atol=0)


def test_quped_together_to_the_end_is_fedavg() -> None:
    """One network for all, 32 bits, no epoch of one's own: the same global model, bit for bit."""
    members = [replace(client, bits=32, model=Net) for client in clients(QuPeD())]
    common, found = (
        Federation(members, a, seed=3)
        .fit(epochs=3, local_steps=2, batch_size=8, workers=0)
        .global_module()
        .state_dict()
        for a in (FedAvg(), QuPeD(warmup_epochs=3.0))
    )
    for key, value in common.items():
        assert torch.equal(value, found[key]), key


def assert_same_models(a: FitResult, b: FitResult) -> None:
    """Assert that every client deploys the same bits."""
    for name, model in a.models.items():
        for path, value in _tree.items(model):
            assert torch.equal(value, dict(_tree.items(b.models[name]))[path]), (name, path)


def test_fedavgft_with_a_warmup_to_the_end_is_fedavg() -> None:
    """At 32 bits: the same models, bit for bit. The run says that nobody was alone."""
    members = full_precision(FedAvg())
    options: dict[str, Any] = {"epochs": 3, "finetune_epochs": 0, "momentum": 0.9}
    with pytest.warns(UserWarning, match="no round alone .* lower its warmup_epochs, 3, to 2"):
        found = fit(FedAvgFT(warmup_epochs=3.0), members, **options)
    assert_same_models(fit(FedAvg(), members, **options), found)


def test_fedavgft_leaves_w_as_fedavg_left_it() -> None:
    """Rounds alone, with three clients whose mean is rounded, change no bit of w."""
    members = clients(FedAvgFT())
    found = fit(FedAvgFT(warmup_epochs=2.0), members, epochs=5).global_model
    w = fit(FedAvg(), full_precision(FedAvg()), epochs=2, finetune_epochs=0).global_model
    assert found is not None
    assert w is not None
    for path, value in _tree.items(w):
        assert torch.equal(value, dict(_tree.items(found))[path]), path


def test_fedavgft_without_a_warmup_is_local_training() -> None:
    """With the centers that it begins with: k-means, and the means of each sign at 1 bit."""
    members = [
        replace(member, init_centers="kmeans" if member.bits == 2 else "range") for member in clients(FedAvgFT())
    ]
    assert [member.bits for member in members] == [2, 1, 32]
    assert_same_models(fit(Local(), members), fit(FedAvgFT(warmup_epochs=0.0), members))


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_ditto_without_a_pull_is_local_training(momentum: float) -> None:
    """lam = 0: x_i never hears of w."""
    members = clients(Ditto())
    assert_same_models(fit(Local(), members, momentum=momentum), fit(Ditto(lam=0.0), members, momentum=momentum))


@pytest.mark.parametrize("whole", [FedRep(head=(), head_steps=0), FedRep(head=()), FedRep(head=(), jointly=True)])
def test_fedrep_with_an_empty_head_is_fedavg(whole: FedRep) -> None:
    """All is body, in each of its forms."""
    members = clients(FedAvg())
    assert_same_models(fit(FedAvg(), members, momentum=0.9), fit(whole, members, momentum=0.9))


def test_options_at_their_defaults_change_nothing() -> None:
    """Label smoothing of 0, and a temperature of 1, whoever it softens."""
    assert_same_models(fit(Local()), fit(Local(label_smoothing=0.0)))
    assert_same_models(fit(QuPeD()), fit(QuPeD(softened="teacher")))


def test_qupel_without_coupling_is_local_training() -> None:
    """lambda_p = 0: no pull to w."""
    members = clients(QuPeL())
    alone, together = fit(Local(), members), fit(QuPeL(lambda_p=0.0), members)
    for name, model in alone.models.items():
        for key, value in model.state.params.items():
            assert torch.equal(value, together.models[name].state.params[key]), (name, key)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_fedavg_with_one_client_is_plain_sgd(momentum: float) -> None:
    """One client, one round: the module trained by torch.optim.SGD on the same batches, BatchNorm included."""
    data = samples(0, 20)
    federation = Federation([Client("only", train=data, test=data, model=Net)], FedAvg(), seed=5)
    result = federation.fit(epochs=1, local_steps=3, batch_size=8, lr=0.2, weight_decay=0.01, momentum=momentum)
    assert result.rounds == 1
    with torch_seeded(5, "init"):
        module = Net()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.2, weight_decay=0.01, momentum=momentum)
    mine = as_samples(data, "d")
    for (batch,) in draw(mine, seed=5, client="only", round_=0, first=0, steps=3, batch_size=8, batches_per_step=1):
        optimizer.zero_grad()
        torch.autograd.backward(nn.functional.cross_entropy(module(*batch.inputs), batch.labels))
        optimizer.step()
    for key, value in module.state_dict().items():
        if value.is_floating_point():
            learned = {**result.models["only"].state.params, **result.models["only"].state.buffers}[key]
            torch.testing.assert_close(learned, value, rtol=1e-5, atol=1e-7)


def test_fedavg_averages_what_its_clients_learn() -> None:
    """One round of three clients: the mean of what each would have learned alone, statistics of BatchNorm included."""
    members = [Client(f"c{i}", train=samples(i, 20), test=samples(9, 12), model=Net) for i in range(3)]

    def learned(*chosen: Client) -> dict[str, torch.Tensor]:
        federation = Federation(list(chosen), FedAvg(), seed=5)
        found = federation.fit(epochs=1, local_steps=3, steps_per_epoch=3, batch_size=8, workers=0)
        assert found.rounds == 1
        model = found.models[chosen[0].name]
        return {k: v for k, v in {**model.state.params, **model.state.buffers}.items() if v.is_floating_point()}

    alone, together = [learned(member) for member in members], learned(*members)
    for key, value in together.items():
        expected = np.mean([each[key].numpy() for each in alone], axis=0)
        np.testing.assert_allclose(value.numpy(), expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("algorithm", [QuPeD, QuPeL, Local])
def test_without_center_updates_the_centers_stay(algorithm: type[QuPeD] | type[QuPeL] | type[Local]) -> None:
    """Deployed values are those of the initial centers, through training and fine-tuning."""
    frozen = algorithm(quantization=Quantization(update_centers=False))
    result = fit(frozen)
    with torch_seeded(3, "init"):
        start = Net().middle.weight.detach()
    levels = np.linspace(float(start.min()), float(start.max()), 4)
    learned = values(result.models["c0"].state.params["middle.weight"])
    assert all(np.isclose(levels, value, rtol=1e-6).any() for value in learned)
    moving = values(fit(algorithm()).models["c0"].state.params["middle.weight"])
    assert not all(np.isclose(levels, value, rtol=1e-6).any() for value in moving)


def test_pfedme_without_pull_does_not_move_toward_w() -> None:
    """lam = 0: each theta is the same whoever else takes part."""
    members = clients(PFedMe())
    together = fit(PFedMe(lam=0.0), members)
    for member in members:
        alone = fit(PFedMe(lam=0.0), [member])
        for key, value in alone.models[member.name].state.params.items():
            assert torch.equal(value, together.models[member.name].state.params[key]), (member.name, key)
    pulled = fit(PFedMe(lam=0.5), members)
    assert not torch.equal(
        pulled.models["c0"].state.params["first.weight"], together.models["c0"].state.params["first.weight"]
    )
