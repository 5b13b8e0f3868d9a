"""Real training, for a few seconds: handwritten digits with 1 and 2 bits."""

import pytest
import torch
from helpers.optim_nets import distinct, train
from torch import nn

from quped import LinearSchedule
from quped.data.datasets.digits import digits
from quped.optim import CenterQuant, quantizable, recalibrate
from quped.simulation.client_round import one_thread

EPOCHS, FINETUNE = 5, 2


def network() -> nn.Sequential:
    """Return three hidden layers of 64, of which the last two are quantized."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers: list[nn.Module] = [nn.Flatten()]
        for _ in range(3):
            layers += [nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(64, 10))


def accuracy(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    """Return the share of right answers."""
    model.eval()
    with torch.no_grad():
        right = (model(images).argmax(1) == labels).float().mean()
    model.train()
    return float(right)


@pytest.mark.parametrize(("bits", "least"), [(1, 0.95), (2, 0.97)])
@one_thread()
def test_few_bits_suffice_for_digits(bits: int, least: float) -> None:
    """Quantized in the middle, hardened, recalibrated and fine-tuned, the network knows the digits of the test set."""
    data = digits()
    ((images,), labels), ((test_images,), test_labels) = (
        half.batch(torch.arange(len(half))) for half in (data.train, data.test)
    )
    model = network()
    base = torch.optim.Adam(model.parameters(), lr=3e-3)
    opt = CenterQuant(base, quantizable(model), bits=bits, lam=LinearSchedule(0.01))
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(base, EPOCHS + FINETUNE)
    generator = torch.Generator().manual_seed(0)
    for epoch in range(EPOCHS + FINETUNE):
        opt.epoch = epoch + 1
        if epoch == EPOCHS:
            with opt.quantized():
                middle = accuracy(model, test_images, test_labels)
            opt.harden(model)
            recalibrate(model, [images])
        order = torch.randperm(len(labels), generator=generator)
        parts = [order[first : first + 64] for first in range(0, len(labels), 64)]
        train(opt, model, [(images[part], labels[part]) for part in parts])
        scheduler.step()
    assert all(distinct(x) <= 2**bits for x in opt.x.values())
    assert middle > least - 0.05
    assert accuracy(model, test_images, test_labels) > least
