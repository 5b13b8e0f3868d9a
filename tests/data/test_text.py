"""Text: words, vocabulary, batches."""

import pickle
from pathlib import Path

import pytest
import torch

from quped.data import Subset
from quped.data.datasets import text
from quped.data.datasets.text import TextSamples
from quped.data.download import store
from quped.models.text import TextClassifier


@pytest.mark.parametrize(
    ("sentence", "words"),
    [
        ('He said: "It\'s OVER!"', ["he", "said", "it", "'", "s", "over", "!"]),
        ("Oil, gas (and coal); why?", ["oil", ",", "gas", "(", "and", "coal", ")", "why", "?"]),
        ("one<br />two  three.", ["one", "two", "three", "."]),
        ("", []),
    ],
)
def test_words(sentence: str, words: list[str]) -> None:
    """Lower case; punctuation apart; quotation marks, colons and semicolons dropped."""
    assert text.words(sentence) == words


def test_vocabulary_is_the_most_frequent_words() -> None:
    """Most frequent first, then by the alphabet; rare words are left out."""
    texts = [["b", "a", "b"], ["c", "a", "b"], ["d", "c"]]
    assert text.vocabulary(texts, 10, 2) == ["b", "a", "c"]
    assert text.vocabulary(texts, 2, 1) == ["b", "a"]


def test_encoded() -> None:
    """Texts one after the other; words that are not known are 0."""
    tokens, offsets = text.encoded([["a", "x"], [], ["b"]], {"a": 1, "b": 2})
    assert tokens.tolist() == [1, 0, 2]
    assert offsets.tolist() == [0, 2, 2, 3]


@pytest.fixture
def samples(cache: Path) -> TextSamples:
    """Store four texts, one of them empty."""
    cache.mkdir()
    tensors = {
        "train_tokens": torch.tensor([1, 2, 3, 4, 5, 6], dtype=torch.int32),
        "train_offsets": torch.tensor([0, 2, 2, 3, 6]),
        "train_labels": torch.tensor([0, 1, 2, 3]),
    }
    store.write(cache / "texts.safetensors", tensors, "", cache)
    return TextSamples(cache / "texts.safetensors", "train")


def test_batch(samples: TextSamples) -> None:
    """Tokens of the texts in the order of the indices, and where each begins."""
    batch = samples.batch(torch.tensor([3, 1, 0]))
    tokens, offsets = batch.inputs
    assert tokens.tolist() == [4, 5, 6, 1, 2]
    assert offsets.tolist() == [0, 3, 3]
    assert batch.labels.tolist() == [3, 1, 0]


def test_subset_and_network(samples: TextSamples) -> None:
    """A batch of a subset goes through the network as each text does alone."""
    subset = pickle.loads(pickle.dumps(Subset(samples, torch.tensor([3, 2, 0]))))
    network = TextClassifier(7, 4)
    together = network(*subset.batch(torch.arange(3)).inputs)
    alone = torch.cat([network(*subset.batch(torch.tensor([i])).inputs) for i in range(3)])
    torch.testing.assert_close(together, alone)
