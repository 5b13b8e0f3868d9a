"""Trains one network on one data set with a quantizing optimizer: the paper's centralized experiment."""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
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
from quped.data import Dataset, Samples, Subset
from quped.data.datasets import DATASETS
from quped.data.partition import Indices
from quped.errors import InvalidValueError, NetworkError, check, did_you_mean
from quped.models import NETWORKS, build
from quped.optim.base import CENTER_GRAD_CLIP, QuantizedOptimizer
from quped.optim.binary_relax import BinaryRelax, geometric
from quped.optim.center_quant import CenterQuant
from quped.optim.kmeans import KMeans
from quped.optim.prox_quant import ProxQuant
from quped.optim.selection import quantizable
from quped.optim.straight_through import StraightThrough
from quped.quant import MAX_BITS, LinearSchedule
from quped.records import RunRecord, versions
from quped.typing import Batch, ModelState

METHODS = {
    "centers": "Algorithm 1: weights and centers learn together",
    "centers-ste": "the same, and weights learn from the quantized network, too (not in the paper)",
    "proxquant": "ProxQuant: fixed centers -1 and 1, 1 bit",
    "binaryrelax": "BinaryRelax: weights between float and projection",
    "straight-through": "straight-through estimator: BinaryConnect with a scale",
    "kmeans": "no quantization while training, k-means after it",
    "float": "full precision, for comparison",
}


@dataclass(frozen=True)
class Recipe:
    """How a network is trained. Learning rates and lambda are the paper's, which leaves open epochs and batch size."""

    model: str = "resnet20"
    data: str = "cifar10"
    method: str = "centers"
    bits: int = 1
    epochs: int = 250
    """0 evaluates the network as it is."""
    finetune_epochs: int = 50
    """The last epochs, after the weights were put on their centers."""
    batch_size: int = 128
    lr: float = 0.01
    """Of Adam, without weight decay."""
    lam: float = 1e-4
    """lambda(t) = lam * t, t in epochs from 1 on."""
    center_grad_clip: float = CENTER_GRAD_CLIP
    """How large an entry of the gradient by a center may be."""
    eta2: float = 1e-4
    """The learning rate of the centers; a tenth of it from epoch 80 on, a hundredth from 140 on."""
    schedule_epochs: int | None = None
    """Epochs of the schedules of lambda and eta_2; by default `epochs`. A shortened run passes through all of them."""
    seed: int = 0
    warm_start: str | None = None
    """A safetensors file with the network's weights to begin with."""
    validation: bool = False
    """Evaluate on a tenth of the training samples, which are then not trained on, instead of the test samples."""

    def __post_init__(self) -> None:
        """Check the values."""
        for what, name, known in (
            ("network", self.model, NETWORKS),
            ("data set", self.data, DATASETS),
            ("method", self.method, METHODS),
        ):
            if name not in known:
                raise InvalidValueError(f"There is no {what} '{name}'. {did_you_mean(name, known)}")
        check(not self.quantizes or 1 <= self.bits <= MAX_BITS, "bits", "1 to 8", self.bits)
        check(self.epochs >= 0, "epochs", "at least 0", self.epochs)
        check(self.batch_size >= 1, "batch_size", "at least 1", self.batch_size)
        check(0 <= self.finetune_epochs <= self.epochs, "finetune_epochs", "0 to epochs", self.finetune_epochs)
        check(0 < self.lr < math.inf, "lr", "above 0 and finite", self.lr)

    @property
    def quantizes(self) -> bool:
        """Whether the network is quantized in the end."""
        return self.method != "float"

    def optimizer(self, model: nn.Module) -> QuantizedOptimizer:
        """Return the method's optimizer."""
        adam, which, lam = (
            torch.optim.Adam(model.parameters(), lr=self.lr),
            quantizable(model),
            LinearSchedule(self.lam),
        )
        match self.method:
            case "centers" | "centers-ste":
                through = self.method == "centers-ste"
                return CenterQuant(
                    adam,
                    which,
                    bits=self.bits,
                    lam=lam,
                    eta2=self.eta2,
                    center_grad_clip=self.center_grad_clip,
                    straight_through=through,
                )
            case "proxquant":
                return ProxQuant(adam, which, bits=self.bits, lam=lam)
            case "binaryrelax":
                # As in the authors' published code: the second phase is the last quarter of the training epochs.
                hard_from = 0.75 * (self.epochs - self.finetune_epochs) * self._stretch + 1
                return BinaryRelax(adam, which, bits=self.bits, lam=geometric(1.0, 1.04, hard_from))
            case "straight-through":
                return StraightThrough(adam, which, bits=self.bits)
        # In full precision it is never hardened, and its bits do not matter.
        return KMeans(adam, which, bits=self.bits if self.quantizes else 1)

    @property
    def _stretch(self) -> float:
        """Epochs of the schedules that pass in one epoch."""
        return 1.0 if self.schedule_epochs is None else self.schedule_epochs / self.epochs

    def t_at(self, epoch: float) -> int:
        """Return t, the epoch of the full schedule from 1 on; of a shortened run several pass in one of its epochs."""
        return math.floor(epoch * self._stretch) + 1

    def eta2_at(self, t: float) -> float:
        """Return the learning rate of the centers at epoch t of the full schedule."""
        return self.eta2 * (1.0 if t < 80 else 0.1 if t < 140 else 0.01)


class Epoch(NamedTuple):
    """Told after every epoch; a point of the curve."""

    epoch: int
    phase: str
    loss: float
    """Mean over the epoch's batches, of the first evaluation in each step."""
    accuracy: float
    """Of the quantized network."""
    accuracy_float: float
    """Of x, the full-precision weights; the same after hardening."""
    seconds: float
    weights: dict[str, Any]
    """Of the largest quantized tensor: its name, how its weights are spread, and its centers."""


BINS = 121
"""Of the picture of the weights."""

Tell = Callable[[Epoch | float], None]
"""Takes the share of the present epoch that is done, and every finished epoch."""


def train(recipe: Recipe, record: RunRecord, tell: Tell = lambda _: None) -> dict[str, Any]:
    """Train, from the last checkpoint on if there is one, and record it; return what `result.json` says.

    The caller sees to it that no other process uses the record.
    """
    begun = record.checkpoints.rounds() > 0
    model, optimizer, samples, held = prepare(replace(recipe, warm_start=None) if begun else recipe)
    points = resume(record, model, optimizer)
    began = time.monotonic() - (points[-1].seconds if points else 0.0)
    for epoch in range(len(points), recipe.epochs):
        loss = one_epoch(recipe, epoch, model, optimizer, samples, tell)
        quantized = floating = evaluate(model, held)
        if recipe.quantizes and not optimizer.hard:
            with optimizer.quantized():
                quantized = evaluate(model, held)
        phase = "finetune" if optimizer.hard else "train"
        seconds = round(time.monotonic() - began, 3)
        reach = points[0].weights["reach"] if points else None
        points.append(Epoch(epoch, phase, loss, quantized, floating, seconds, spread(optimizer, reach)))
        record.point({"round": epoch, **points[-1]._asdict()})
        save(record, epoch, model, optimizer, points)
        tell(points[-1])
    if recipe.quantizes and not optimizer.hard:
        optimizer.harden(model)
    if not points:
        reached = evaluate(model, held)
        points = [Epoch(0, "train", math.nan, reached, reached, time.monotonic() - began, spread(optimizer))]
    record.model("model", model.state_dict())
    result = {
        "recipe": asdict(recipe),
        "accuracy": points[-1].accuracy,
        "curve": [point._asdict() for point in points],
        "seconds": points[-1].seconds,
        "images_per_second": round(recipe.epochs * len(samples) / points[-1].seconds, 1),
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


def one_epoch(
    recipe: Recipe, epoch: int, model: nn.Module, optimizer: QuantizedOptimizer, samples: Samples, tell: Tell
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
            optimizer.t = recipe.t_at(epoch + i / len(parts))
            for group in optimizer.groups:
                group["eta2"] = recipe.eta2_at(optimizer.t)
            losses.append(optimizer.step(partial(loss_of, model, batch)))
            tell((i + 1) / len(parts))
    return float(torch.stack(losses).mean())


def loss_of(model: nn.Module, batch: Batch, _: bool) -> Tensor:
    """Return the cross-entropy of whatever weights the network holds."""
    return functional.cross_entropy(model(*batch.inputs), batch.labels)


def spread(optimizer: QuantizedOptimizer, reach: float | None = None) -> dict[str, Any]:
    """Count the weights of the largest quantized tensor in BINS bins from -reach to reach, and tell its centers."""
    name, x = max(optimizer.x.items(), key=lambda item: item[1].numel())
    weights, centers = x.detach(), optimizer.codebooks()[name]
    reach = 1.25 * float(max(weights.abs().max(), centers.abs().max())) if reach is None else reach
    counts = torch.histc(weights.float(), BINS, -reach, reach).int().tolist()
    return {"name": name, "reach": reach, "counts": counts, "centers": centers[0].tolist()}


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


def halves(data: Dataset, recipe: Recipe) -> tuple[Samples, Samples]:
    """Return the samples to train on and those to evaluate on."""
    if not recipe.validation:
        if data.writers is not None:
            raise InvalidValueError(
                f"The data set {data.name} is one pool, without test samples of its own: pass --validation "
                "(validation=True), and a tenth is not trained on."
            )
        return data.train, data.test
    order = generator(recipe.seed, "validation").permutation(len(data.train))
    cut = len(order) // 10
    held, rest = (torch.from_numpy(np.sort(part)) for part in (order[:cut], order[cut:]))
    return Subset(data.train, rest), Subset(data.train, held)


def evaluate(model: nn.Module, samples: Samples) -> float:
    """Return the accuracy of a network as it is."""
    training = model.training
    model.eval()
    try:
        return accuracy(lambda _, buffers, inputs, train: (model(*map(channels_last, inputs)), buffers), EMPTY, samples)
    finally:
        model.train(training)


EMPTY = ModelState({}, {})


def load_weights(model: nn.Module, file: Path) -> None:
    """Load a safetensors file into a network that has just these tensors."""
    try:
        tensors = safetensors.torch.load_file(file)
        model.load_state_dict(tensors)
    except (OSError, SafetensorError) as error:
        raise InvalidValueError(
            f"The weights {file} cannot be read: {error}. They must be a safetensors file."
        ) from error
    except RuntimeError as error:
        raise InvalidValueError(f"The weights {file} are those of another network: {error}") from error


def save(record: RunRecord, epoch: int, model: nn.Module, optimizer: QuantizedOptimizer, points: list[Epoch]) -> None:
    """Write a checkpoint."""
    tensors: dict[str, Tensor] = {}
    info = packed({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tensors)
    curve = [point._asdict() for point in points]
    # Own memory for each: a model's tensors may share some.
    tensors = {key: value.clone(memory_format=torch.contiguous_format) for key, value in tensors.items()}
    record.checkpoints.save(epoch, tensors, {"round": epoch, "state": info, "curve": curve})


def resume(record: RunRecord, model: nn.Module, optimizer: QuantizedOptimizer) -> list[Epoch]:
    """Go on from the newest checkpoint, if there is one; return the epochs that are done."""
    found = record.checkpoints.latest()
    record.rewind(record.checkpoints.rounds())
    if found is None:
        return []
    tensors, about = found
    state = unpacked(about["state"], tensors)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return [Epoch(**point) for point in about["curve"]]


def packed(state: Any, tensors: dict[str, Tensor]) -> Any:
    """Move the tensors of nested data to `tensors`, and leave their numbers, as JSON can hold them."""
    if isinstance(state, Tensor):
        tensors[str(len(tensors))] = state
        return {"tensor": str(len(tensors) - 1)}
    if isinstance(state, Mapping):
        return {key: packed(value, tensors) for key, value in state.items()}
    if isinstance(state, list):
        return [packed(value, tensors) for value in state]
    return state


def unpacked(state: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Put the tensors back: the inverse of `packed`."""
    if isinstance(state, Mapping):
        if state.keys() == {"tensor"}:
            return tensors[state["tensor"]]
        return {key: unpacked(value, tensors) for key, value in state.items()}
    if isinstance(state, list):
        return [unpacked(value, tensors) for value in state]
    return state
