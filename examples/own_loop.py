"""One network in your own training loop, quantized by `quped.optim`: no federation.

    python examples/own_loop.py

The loop stays yours: data, augmentation, schedule and optimizer. `CenterQuant` wraps the optimizer.
"""

import tempfile
from functools import partial
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn

import quped
from quped import LinearSchedule
from quped.optim import CenterQuant, quantizable

EPOCHS, FINETUNE = 20, 6

torch.manual_seed(0)
pixels, labels = (torch.tensor(part) for part in load_digits(return_X_y=True))
images = pixels.float() / 16
train, test = torch.randperm(len(images)).split(1400)

model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))
weights = quantizable(model, [name for name, _ in model.named_parameters() if "weight" in name])
adam = torch.optim.AdamW(model.parameters(), lr=2e-3)
optimizer = CenterQuant(adam, weights, bits=2, lam=LinearSchedule(5e-3))


def accuracy() -> float:
    """Return the accuracy on the test images."""
    model.eval()
    with torch.no_grad():
        right = model(images[test]).argmax(1) == labels[test]
    return float(right.float().mean())


def loss(batch: torch.Tensor) -> torch.Tensor:
    """Return the loss, without its gradient."""
    return nn.functional.cross_entropy(model(images[batch]), labels[batch])


for epoch in range(EPOCHS):
    model.train()
    optimizer.epoch = epoch  # lambda(t) grows with it
    if epoch == EPOCHS - FINETUNE:
        optimizer.harden(model)  # every weight takes the value of its center
    for batch in train[torch.randperm(len(train))].split(64):
        optimizer.step(partial(loss, batch))  # in place of backward() and step(): it needs the loss at two points
    if epoch % 5 == 4:
        print(f"epoch {epoch + 1}: {accuracy():.1%} on test images")

file = Path(tempfile.mkdtemp()) / "digits.quped"
quped.save(model, file, codebooks=optimizer.codebooks())
numbers = sum(value.numel() for value in model.state_dict().values())
print(f"{file}: {file.stat().st_size} bytes instead of {4 * numbers}")
