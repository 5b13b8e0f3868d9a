"""Text: words, their numbers, and batches of texts."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from quped.data.download import store
from quped.typing import Batch

UNKNOWN = 0
"""The token of all words that are not in the vocabulary."""

SEPARATED = str.maketrans({mark: f" {mark} " for mark in "'.,()!?"} | {'"': None, ";": " ", ":": " "})


def words(text: str) -> list[str]:
    """Split text as torchtext's `basic_english` does: lower case, punctuation marks are words of their own."""
    return text.lower().replace("<br />", " ").translate(SEPARATED).split()


def vocabulary(texts: Iterable[Sequence[str]], size: int, minimum: int) -> list[str]:
    """Return the most frequent words, at most `size` and each seen `minimum` times; ties in alphabetical order."""
    counts = Counter(word for text in texts for word in text)
    ranked = sorted((word for word in counts if counts[word] >= minimum), key=lambda word: (-counts[word], word))
    return ranked[:size]


def encoded(texts: Sequence[Sequence[str]], numbers: Mapping[str, int]) -> tuple[Tensor, Tensor]:
    """Return all tokens in one tensor, and the offsets at which each text begins and the last one ends."""
    tokens = [numbers.get(word, UNKNOWN) for text in texts for word in text]
    offsets = np.cumsum([0, *(len(text) for text in texts)])
    return torch.tensor(tokens, dtype=torch.int32), torch.from_numpy(offsets)


class TextSamples:
    """One half of a stored data set of texts, mapped into memory.

    A batch has two inputs: the tokens of its texts, one after the other, and the offset at which each text begins.
    Between processes it travels as a reference to its file.
    """

    def __init__(self, file: Path, half: str) -> None:
        """Map `half` ("train" or "test") of the data set stored in `file`."""
        tensors, checksum, _ = store.read(file)
        self.labels = tensors[f"{half}_labels"]
        self._tokens, self._offsets = tensors[f"{half}_tokens"], tensors[f"{half}_offsets"]
        self._reference = partial(TextSamples, file, half), file, checksum

    def __reduce__(self) -> tuple[object, ...]:
        """Travel without the tokens."""
        return store.reopened, self._reference

    def __len__(self) -> int:
        """Return the number of texts."""
        return len(self.labels)

    def batch(self, indices: Tensor, rng: np.random.Generator | None = None) -> Batch:
        """Return the texts at `indices`. Nothing is random: text is not augmented."""
        starts = self._offsets[indices]
        lengths = self._offsets[indices + 1] - starts
        ends = lengths.cumsum(0)
        offsets = ends - lengths
        # Where in the file each token of the batch is: its place in the batch, moved by its text's distance.
        places = torch.arange(int(lengths.sum())) + (starts - offsets).repeat_interleave(lengths)
        return Batch((self._tokens[places].long(), offsets), self.labels[indices])
