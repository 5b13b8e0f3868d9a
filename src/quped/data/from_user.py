"""Data from a user, in any of several forms, checked and made into `Samples`."""

import math
from collections.abc import Sequence, Sized
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, default_collate

from quped._rng import torch_seeded
from quped.data.samples import Samples, Subset, TensorSamples, root_of
from quped.errors import DataError
from quped.typing import Batch

INTEGERS = {torch.uint8, torch.uint16, torch.uint32, torch.int8, torch.int16, torch.int32, torch.int64}

Array = Tensor | NDArray[Any]

Data = Samples | tuple[Array | tuple[Array, ...], Array] | list[tuple[Any, ...]] | torch.utils.data.Dataset[Any]
"""The data of a client: `(inputs, labels)`, `((input, ...), labels)` for networks with several inputs, a list of
samples, a PyTorch data set, or an object with the methods of `Samples`."""


@dataclass(frozen=True)
class TorchSamples:
    """Samples of a PyTorch data set, which is asked for them one by one."""

    dataset: torch.utils.data.Dataset[Any] = field(repr=False)
    labels: Tensor = field(repr=False)

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.labels)

    def batch(self, indices: Tensor, rng: np.random.Generator | None = None) -> Batch:
        """Return samples by their index. Random transforms of the data set follow PyTorch's generator."""
        inputs, labels = inputs_and_label(default_collate([self.dataset[i] for i in indices.tolist()]))
        return Batch(tuple(default_float(part) for part in inputs), labels.long())


def as_samples(data: Data, what: str, tried: set[int] | None = None) -> Samples:
    """Return the data of a user as `Samples`, checked; `what` names it, as in "training data of client 'phone'".

    Of thousands of subsets of one whole, `tried` remembers the whole, by its id: one batch is enough for all of them.
    """
    if isinstance(data, DataLoader):
        raise DataError(f"The {what} are a DataLoader, but training draws its own batches: pass loader.dataset.")
    if type(data) is TensorSamples:  # a subclass may return something else
        data = (data.inputs, data.labels)
    elif type(data) is TensorDataset and len(data.tensors) > 1:
        data = (data.tensors[:-1], data.tensors[-1])
    elif isinstance(data, list) and data and all(is_sample(item) for item in data):
        data = stacked(data, what)
    if isinstance(data, tuple | list):
        samples: Samples = from_pair(data, what)
    elif type(data) is Subset or all(hasattr(data, name) for name in ("labels", "batch", "__len__")):
        samples = cast(Samples, data)
    elif isinstance(data, torch.utils.data.Dataset):
        samples = from_torch(data, what)
    else:
        raise DataError(
            f"The {what} must be a pair (inputs, labels), a PyTorch data set, or have labels, batch() and a length, "
            f"got {data!r:.80}."
        )
    check_labels(samples, what)
    root = root_of(samples)
    if type(samples) is not TensorSamples and (tried is None or id(root) not in tried):
        check_batch(root, what)
        if tried is not None and root is not samples:
            tried.add(id(root))
    return samples


def check_labels(samples: Samples, what: str) -> None:
    """Raise unless there are labels, and these are class numbers."""
    try:
        labels: object = samples.labels
    except IndexError as error:
        raise DataError(f"The indices of the {what} go beyond the samples that they choose from: {error}.") from error
    integers = isinstance(labels, Tensor) and labels.dtype == torch.int64 and labels.dim() == 1
    if not isinstance(labels, Tensor) or not integers or len(labels) != len(samples):
        raise DataError(f"The labels of the {what} must be a tensor of int64, one for each of its samples.")
    if len(labels) == 0:
        raise DataError(f"The {what} are empty: a client needs at least one sample.")
    if (lowest := int(labels.min())) < 0:
        raise DataError(f"The labels of the {what} must be 0 or more, got {lowest}.")


def check_batch(samples: Samples, what: str) -> None:
    """Draw a batch, as training does, and check its form."""
    indices = torch.tensor([0, len(samples) - 1])
    try:
        with torch_seeded(0, "check"):  # so that a random data set leaves the user's generator alone
            batch: object = samples.batch(indices, np.random.default_rng(0))
    except Exception as error:  # a user's code may raise anything
        raise DataError(f"No batch can be drawn from the {what}: {type(error).__name__}: {error}") from error
    inputs: object = batch.inputs if isinstance(batch, Batch) else None
    tensors = isinstance(inputs, tuple) and all(isinstance(part, Tensor) for part in inputs)
    if not isinstance(batch, Batch) or not tensors or len(batch.inputs) == 0:
        raise DataError(f"A batch of the {what} must be a Batch((input, ...), labels) of tensors, got {batch!r:.80}.")
    expected = samples.labels[indices]
    if not isinstance(batch.labels, Tensor) or not torch.equal(batch.labels, expected):
        raise DataError(
            f"A batch of the {what} has the labels {batch.labels!r:.80} where `labels` has {expected}: "
            "they must be the same, in the same order."
        )


def is_sample(item: object) -> bool:
    """Return whether an item of a list is one sample, `(input, ..., label)` or `((input, ...), label)`."""
    if not isinstance(item, tuple) or len(item) < 2:
        return False
    first = item[0][0] if isinstance(item[0], tuple) and item[0] else item[0]
    return isinstance(first, Tensor | np.ndarray)


def inputs_and_label(item: Sequence[Any]) -> tuple[tuple[Any, ...], Any]:
    """Take apart a sample, or a batch, `(input, ..., label)` or `((input, ...), label)`."""
    *inputs, label = item
    if len(inputs) == 1 and isinstance(inputs[0], tuple | list):
        inputs = list(inputs[0])
    return tuple(inputs), label


def stacked(items: list[tuple[Any, ...]], what: str) -> tuple[tuple[Any, ...], Any]:
    """Stack a list of samples."""
    try:
        return inputs_and_label(default_collate(items))
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(
            f"The samples of the {what} cannot be stacked: {error}. Bring all inputs to one shape, for example with "
            "torch.nn.utils.rnn.pad_sequence."
        ) from error


def from_pair(data: Sequence[Any], what: str) -> TensorSamples:
    """Make samples of inputs and labels."""
    if len(data) != 2:
        raise DataError(
            f"The {what} must be a pair (inputs, labels), got {len(data)} things. Several inputs go into a tuple, "
            "((input, ...), labels); single samples are stacked, (torch.stack(inputs), torch.tensor(labels))."
        )
    several = isinstance(data[0], tuple) and all(isinstance(part, Tensor | np.ndarray) for part in data[0])
    stack = "stack a list of tensors with torch.stack"
    inputs = tuple(as_tensor(part, f"inputs of the {what}", stack) for part in (data[0] if several else data[:1]))
    inputs = tuple(default_float(part) for part in inputs)
    labels = class_numbers(as_tensor(data[1], f"labels of the {what}", "number the classes from 0"), what)
    for part in inputs:
        if part.dim() == 0:
            raise DataError(f"The inputs of the {what} must have a row for each sample, got a single number.")
        if len(part) != len(labels):
            raise DataError(f"The {what} have {len(part)} inputs but {len(labels)} labels.")
        if not all_finite(part):
            raise DataError(f"The inputs of the {what} hold NaN or infinity: clean them before training.")
    return TensorSamples(inputs, labels)


def all_finite(numbers: Tensor) -> bool:
    """Say whether no number is NaN or infinite. The sum says so in a third of the time, unless it overflows."""
    return (numbers.is_floating_point() and math.isfinite(numbers.sum())) or bool(numbers.isfinite().all())


def as_tensor(values: Any, what: str, remedy: str) -> Tensor:
    """Return a user's numbers as a tensor."""
    try:
        if isinstance(values, np.ndarray):  # a tensor cannot share memory that is read-only or read backwards
            values = np.require(values, requirements=("C", "W"))
        return torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"The {what} must be tensors or arrays of numbers ({error}): {remedy}.") from error


def from_torch(data: torch.utils.data.Dataset[Any], what: str) -> Samples:
    """Make samples of a PyTorch data set. It is read once, for its labels and to check its inputs."""
    if isinstance(data, IterableDataset):
        raise DataError(f"The {what} are an IterableDataset, without a length and an order: pass list(dataset).")
    labels = []
    try:
        with torch_seeded(0, "labels"):
            for i in range(len(cast(Sized, data))):
                item = data[i]
                if not isinstance(item, tuple | list):
                    raise TypeError(f"item {i} is a {type(item).__name__}")
                inputs, label = inputs_and_label(item)
                labels.append(label)
                if not all(bool(torch.as_tensor(part).isfinite().all()) for part in inputs):
                    raise DataError(f"Sample {i} of the {what} holds NaN or infinity: clean it before training.")
        numbers = default_collate(labels) if labels else torch.zeros(0, dtype=torch.long)
    except DataError:
        raise
    except Exception as error:  # a user's code may raise anything
        raise DataError(
            f"The {what} must have a length, and items (input, ..., label) of tensors or numbers: "
            f"{type(error).__name__}: {error}. Wrap it in a Dataset that returns such items."
        ) from error
    return TorchSamples(data, class_numbers(numbers, what))


def class_numbers(labels: object, what: str) -> Tensor:
    """Return labels as int64, after a check that they are class numbers."""
    if not isinstance(labels, Tensor):
        raise DataError(
            f"The labels of the {what} must be class numbers, got {labels!r:.80}: give one integer for each sample."
        )
    if labels.dim() == 1 and labels.dtype in INTEGERS:
        return labels.long()
    remedy = "convert them to integers"
    if labels.dim() == 2:
        remedy = "take their only column, y[:, 0]" if labels.shape[1] == 1 else "of one-hot labels, take y.argmax(1)"
    raise DataError(
        f"The labels of the {what} must be class numbers, one integer for each sample, got "
        f"{dtype_name(labels.dtype)} of shape {tuple(labels.shape)}: {remedy}."
    )


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a type of numbers."""
    return str(dtype).removeprefix("torch.")


def default_float(inputs: Tensor) -> Tensor:
    """Return floating-point numbers in the type of the networks' weights, and other numbers as they are."""
    return inputs.to(torch.get_default_dtype()) if inputs.is_floating_point() else inputs
