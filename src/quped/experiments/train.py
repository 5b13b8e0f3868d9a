"""Trains one network on one data set with a quantizing optimizer: the paper's centralized experiment."""

import math
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.nn import functional

from quped._evaluate import accuracy
from quped._rng import generator, torch_seeded
from quped.data import Dataset, Samples, subset
from quped.data.datasets import DATASETS
from quped.data.partition import Indices, hold_out
from quped.errors import InvalidValueError, NetworkError, RunError, check, check_whole, did_you_mean, number
from quped.export import SUFFIX, PackedModel, load, to_bytes
from quped.models import NETWORKS, build
from quped.optim import (
    BinaryRelax,
    CenterQuant,
    KMeans,
    ProxQuant,
    QuantizedOptimizer,
    StraightCenters,
    StraightThrough,
    geometric,
    quantizable,
)
from quped.optim.base import CENTER_GRAD_CLIP
from quped.optim.selection import levels_of
from quped.quant import LinearSchedule
from quped.quant.histogram import histogram
from quped.records import RunRecord, versions
from quped.records.nested import put_tensors, take_tensors
from quped.typing import Batch, ModelState

METHODS = {
    "centers": "Algorithm 1: weights and centers learn together",
    "centers-ste": "the same, with the mean of the gradients at the weights and at the quantized weights",
    "centers-authors": "Algorithm 1 from centers -1 to 1, at 1 bit assigned by sign, as in the authors' code",
    "proxquant": "ProxQuant: fixed centers -1 and 1, 1 bit",
    "binaryrelax": "BinaryRelax: weights between float and projection",
    "straight-through": "straight-through estimator: BinaryConnect with a scale",
    "straight-centers": "straight-through estimator with learned centers",
    "kmeans": "no quantization while training, k-means after it",
    "float": "full precision, for comparison",
}

VALIDATION_FRACTION = 0.1


def _option(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True)
class Recipe:
    """How a network is trained. By default a small network for handwritten digits, in well under a minute.

    The paper's ResNets on CIFAR-10 have epochs=250, finetune_epochs=50, lr=0.01 and lam=1e-4.
    """

    model: str = _option("cnn1", f"One of {', '.join(NETWORKS)}.")
    data: str = _option("digits", "A data set: see `quped data list`.")
    method: str = _option("centers", "; ".join(f"*{name}*: {text}" for name, text in METHODS.items()) + ".")
    bits: int = _option(2, "Bits per quantized weight, 1 to 8.")
    levels: int | None = _option(None, "Values of a quantized weight, in place of bits: 3 are ternary weights.")
    epochs: int = _option(60, "Passes through the training samples. 0 evaluates the network as it is.")
    finetune_epochs: int = _option(12, "Of these, the last ones, after the weights were put on their centers.")
    batch_size: int = _option(128, "Samples in a step.")
    lr: float = _option(3e-3, "Learning rate of Adam.")
    anneal: bool = _option(False, "Let the learning rate fall to 0 over the epochs, by half a cosine.")
    bfloat16: bool = _option(False, "Compute the loss and its gradients in bfloat16 where that is precise enough.")
    lam: float = _option(3e-3, "centers*, proxquant: lambda(t) is this times t, in epochs from 1.")
    center_grad_clip: float = _option(CENTER_GRAD_CLIP, "How large an entry of the gradient by a center may be.")
    eta2: float = _option(
        1e-4, "centers*: learning rate of the centers; a tenth from epoch 80 on, a hundredth from 140 on."
    )
    center_lr_ratio: float = _option(
        1.0, "straight-centers: learning rate of the centers of n weights, in learning rates divided by the root of n."
    )
    schedule_epochs: int | None = _option(
        None,
        "Epochs of the schedules of lambda and eta2; by default `epochs`. A shortened run passes through the whole "
        "schedule of the longer one that it stands for.",
    )
    seed: int = _option(0, "Random seed.")
    warm_start: str | None = _option(None, "Weights to begin with: a safetensors file.")
    validation: bool = _option(False, "Evaluate on a tenth of the training samples, which are then not trained on.")

    def __post_init__(self) -> None:
        for what, name, known in (
            ("network", self.model, NETWORKS),
            ("data set", self.data, DATASETS),
            ("method", self.method, METHODS),
        ):
            if name not in known:
                raise InvalidValueError(f"There is no {what} '{name}'. {did_you_mean(name, known)}")
        if self.quantizes:
            levels_of(self.bits if self.levels is None else None, self.levels)
        one_bit = self.method == "proxquant"
        check(self.levels is None or not one_bit, "levels", "left out with proxquant, which has 1 bit", self.levels)
        check_whole("epochs", self.epochs, 0)
        check_whole("finetune_epochs", self.finetune_epochs, 0, self.epochs)
        check_whole("batch_size", self.batch_size, 1)
        if self.schedule_epochs is not None:
            check_whole("schedule_epochs", self.schedule_epochs, 1)
        check(0 < number(self.lr) < math.inf, "lr", "above 0 and finite", self.lr)

    @property
    def quantizes(self) -> bool:
        """Whether the network is quantized in the end."""
        return self.method != "float"

    @property
    def m(self) -> int:
        """The number of values of a quantized weight."""
        return 2 if not self.quantizes else self.levels or 2**self.bits

    @property
    def _pace(self) -> float:
        """Epochs of the schedules that pass in one epoch of the run."""
        return 1.0 if self.schedule_epochs is None or not self.epochs else self.schedule_epochs / self.epochs

    def t_at(self, epoch: float) -> int:
        """Return t, the epoch of the schedules from 1, at this time of the run, in epochs from 0."""
        return math.floor(epoch * self._pace) + 1

    def eta2_at(self, t: float) -> float:
        """Return the learning rate of the centers at epoch t of the schedules."""
        return self.eta2 * (1.0 if t < 80 else 0.1 if t < 140 else 0.01)

    def lr_at(self, epoch: float) -> float:
        """Return the learning rate at this time of the run, in epochs from 0."""
        return self.lr * (1 + math.cos(math.pi * epoch / self.epochs)) / 2 if self.anneal else self.lr

    def optimizer(self, model: nn.Module) -> QuantizedOptimizer:
        """Return the method's optimizer."""
        adam, which = torch.optim.Adam(model.parameters(), lr=self.lr), quantizable(model)
        lam, m = LinearSchedule(self.lam), self.m
        match self.method:
            case "centers" | "centers-ste" | "centers-authors":
                authors = self.method == "centers-authors"
                return CenterQuant(
                    adam,
                    which,
                    levels=m,
                    lam=lam,
                    eta2=self.eta2,
                    center_grad_clip=self.center_grad_clip,
                    average_gradients=self.method == "centers-ste",
                    assignment="sign" if authors else "nearest",
                    init_centers="unit" if authors else "range",
                )
            case "proxquant":
                return ProxQuant(adam, which, bits=self.bits, lam=lam)
            case "binaryrelax":
                # As in the authors' published code: the second phase is the last quarter of the training epochs.
                hard_from = 0.75 * (self.epochs - self.finetune_epochs) * self._pace + 1
                return BinaryRelax(adam, which, levels=m, lam=geometric(1.0, 1.04, hard_from))
            case "straight-through":
                return StraightThrough(adam, which, levels=m)
            case "straight-centers":
                return StraightCenters(adam, which, levels=m, center_lr_ratio=self.center_lr_ratio)
        # In full precision it is never hardened, and its levels do not matter.
        return KMeans(adam, which, levels=m)


class Epoch(NamedTuple):
    """A point of the learning curve."""

    epoch: int
    """From 0."""
    phase: str
    """"train" or "finetune"."""
    loss: float
    """Mean over the epoch's batches, of the first evaluation in each step."""
    accuracy: float
    """Of the quantized network."""
    accuracy_float: float
    """Of x, the full-precision weights; the same after hardening."""
    seconds: float
    """Since the run began."""
    weights: dict[str, Any]
    """Of the largest quantized tensor: its name, a histogram of its weights, and its centers."""


Progress = Callable[[Epoch | float], None]
"""Takes the share of the present epoch that is done, and every finished epoch."""


def train(recipe: Recipe, record: RunRecord, progress: Progress = lambda _: None) -> dict[str, Any]:
    """Train, from the last checkpoint on if there is one, and record it; return the content of `result.json`.

    The caller ensures that no other process uses the record.
    """
    begun = record.checkpoints.rounds() > 0
    model, optimizer, samples, held = prepare(replace(recipe, warm_start=None) if begun else recipe)
    curve = resume(recipe, record, model, optimizer)
    began = time.monotonic() - (curve[-1].seconds if curve else 0.0)
    for epoch in range(len(curve), recipe.epochs):
        loss = one_epoch(recipe, epoch, model, optimizer, samples, progress)
        quantized = floating = evaluate(model, held)
        if recipe.quantizes and not optimizer.hard:
            with optimizer.quantized():
                quantized = evaluate(model, held)
        phase = "finetune" if optimizer.hard else "train"
        seconds = round(time.monotonic() - began, 3)
        reach = curve[0].weights["reach"] if curve else None
        curve.append(Epoch(epoch, phase, loss, quantized, floating, seconds, weights_of(optimizer, reach)))
        record.point(point_of(curve[-1]))
        save(recipe, record, epoch, model, optimizer, curve)
        progress(curve[-1])
    if recipe.quantizes and not optimizer.hard:
        optimizer.harden(model)
    if not curve:
        reached = evaluate(model, held)
        curve = [Epoch(0, "train", math.nan, reached, reached, time.monotonic() - began, weights_of(optimizer))]
    codebooks = optimizer.codebooks() if recipe.quantizes else {}
    packed = PackedModel.of(model, codebooks, method=recipe.method, accuracy=round(curve[-1].accuracy, 6))
    file = to_bytes(packed)
    record.model("model", file)
    result = {
        "recipe": asdict(recipe),
        "accuracy": curve[-1].accuracy,
        "test_samples": len(held),
        "bytes_file": len(file),
        "bytes_packed": packed.floor,
        "bytes_float32": packed.float_bytes,
        "curve": [point._asdict() for point in curve],
        "seconds": curve[-1].seconds,
        "images_per_second": round(recipe.epochs * len(samples) / curve[-1].seconds, 1),
        "threads": torch.get_num_threads(),
        "versions": versions(),
    }
    record.result(result)
    return result


def prepare(recipe: Recipe) -> tuple[nn.Module, QuantizedOptimizer, Samples, Samples]:
    """Return the network, its optimizer, and the samples to train on and to evaluate on; all of it checked."""
    data = DATASETS[recipe.data]()
    samples, held = halves(data, recipe)
    try:
        with torch_seeded(recipe.seed, "network"):
            model = build(recipe.model, data.input_shape, data.classes)
        with torch.no_grad():
            model.eval()(*samples.batch(torch.zeros(1, dtype=torch.long)).inputs)
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        raise NetworkError(f"The network {recipe.model} does not fit the data set {recipe.data}: {error}") from error
    if recipe.warm_start is not None:
        load_weights(model, Path(recipe.warm_start))
    return model, recipe.optimizer(model), samples, held


def halves(data: Dataset, recipe: Recipe) -> tuple[Samples, Samples]:
    """Return the samples to train on and the samples to evaluate on."""
    if recipe.validation:
        share = hold_out(np.arange(len(data.train)), generator(recipe.seed, "validation"), VALIDATION_FRACTION)
        return subset(data.train, share.train), subset(data.train, share.test)
    if data.writers is not None:
        raise InvalidValueError(
            f"The data set {data.name} is one pool, without test samples of its own: pass --validation "
            "(validation=True), and a tenth is not trained on."
        )
    return data.train, data.test


def one_epoch(
    recipe: Recipe, epoch: int, model: nn.Module, optimizer: QuantizedOptimizer, samples: Samples, progress: Progress
) -> float:
    """Pass once through the samples; return the mean loss."""
    if recipe.quantizes and not optimizer.hard and epoch >= recipe.epochs - recipe.finetune_epochs:
        optimizer.harden(model)
    order = generator(recipe.seed, "order", epoch).permutation(len(samples))
    parts = np.array_split(order, -(-len(order) // recipe.batch_size))
    losses = []
    model.train()
    with torch_seeded(recipe.seed, "steps", epoch):
        for i, batch in enumerate(ahead(recipe, epoch, samples, parts)):
            now = epoch + i / len(parts)
            optimizer.epoch = recipe.t_at(now)
            for trained in optimizer.param_groups:
                trained["lr"] = recipe.lr_at(now)
            for group in optimizer.groups:
                group["eta2"] = recipe.eta2_at(optimizer.epoch)
            losses.append(optimizer.step(partial(loss_of, model, batch, bfloat16=recipe.bfloat16)))
            progress((i + 1) / len(parts))
    return float(torch.stack(losses).mean())


def loss_of(model: nn.Module, batch: Batch, *, bfloat16: bool) -> Tensor:
    """Return the cross-entropy of the weights that the network holds."""
    with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
        logits = model(*batch.inputs)
    return functional.cross_entropy(logits.float(), batch.labels)


def ahead(recipe: Recipe, epoch: int, samples: Samples, parts: list[Indices]) -> Iterator[Batch]:
    """Yield batches; each is prepared in another thread while the one before it is used."""

    def prepare(i: int) -> Batch:
        batch = samples.batch(torch.from_numpy(parts[i]), generator(recipe.seed, "augment", epoch, i))
        # Convolutions are faster on CPUs with the channels last.
        return batch._replace(inputs=tuple(channels_last(tensor) for tensor in batch.inputs))

    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(prepare, 0)
        for i in range(1, len(parts) + 1):
            batch = coming.result()
            if i < len(parts):
                coming = pool.submit(prepare, i)
            yield batch


def channels_last(tensor: Tensor) -> Tensor:
    """Store images with their channels last; leave everything else."""
    return tensor.contiguous(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor


def evaluate(model: nn.Module, samples: Samples) -> float:
    """Return the accuracy of a network as it is."""
    training = model.training
    model.eval()
    try:
        return accuracy(lambda _, buffers, inputs, train: (model(*map(channels_last, inputs)), buffers), EMPTY, samples)
    finally:
        model.train(training)


EMPTY = ModelState({}, {})


def weights_of(optimizer: QuantizedOptimizer, reach: float | None = None) -> dict[str, Any]:
    """Return where the weights of the largest quantized tensor are, and its centers."""
    return histogram(optimizer.x, {name: book.centers for name, book in optimizer.codebooks().items()}, reach)


def load_weights(model: nn.Module, file: Path) -> None:
    """Load a packed or a safetensors file into a network that has just these tensors."""
    if file.suffix == SUFFIX:
        load(file, model)
        return
    try:
        tensors = safetensors.torch.load_file(file)
        model.load_state_dict(tensors)
    except (OSError, SafetensorError) as error:
        raise InvalidValueError(
            f"The weights {file} cannot be read: {error}. They must be a .quped or a safetensors file."
        ) from error
    except RuntimeError as error:
        raise InvalidValueError(f"The weights {file} belong to another network: {error}") from error


def save(
    recipe: Recipe,
    record: RunRecord,
    epoch: int,
    model: nn.Module,
    optimizer: QuantizedOptimizer,
    curve: list[Epoch],
) -> None:
    """Write a checkpoint."""
    state, tensors = take_tensors({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    points = [point._asdict() for point in curve]
    info = {"round": epoch, "recipe": identity(recipe), "state": state, "curve": points}
    record.checkpoints.save(epoch, tensors, info)


def resume(recipe: Recipe, record: RunRecord, model: nn.Module, optimizer: QuantizedOptimizer) -> list[Epoch]:
    """Continue from the newest checkpoint, if there is one; return the finished epochs."""
    latest = record.checkpoints.latest()
    if latest is None:
        record.rewind([])
        return []
    tensors, info = latest
    if info.get("recipe") != identity(recipe):
        raise RunError(
            f"The checkpoint in {record.checkpoints.folder} is of another run: remove its round-*.safetensors to begin "
            "again, or name another folder."
        )
    curve = [Epoch(**point) for point in info["curve"]]
    record.rewind([point_of(epoch) for epoch in curve])
    state = put_tensors(info["state"], tensors)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return curve


def identity(recipe: Recipe) -> dict[str, Any]:
    """Return the recipe as a checkpoint keeps it; a run that has begun does not need the weights that it began with."""
    return {key: value for key, value in asdict(recipe).items() if key != "warm_start"}


def point_of(epoch: Epoch) -> dict[str, Any]:
    """Return an epoch as a point of the curves."""
    return {"round": epoch.epoch, **epoch._asdict()}
