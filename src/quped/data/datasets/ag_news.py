"""AG News (Zhang, Zhao, LeCun 2015): titles and first sentences of news in four classes."""

import csv
import io
from pathlib import Path

import torch

from quped.data.datasets import text
from quped.data.datasets.text import TextSamples
from quped.data.download import store
from quped.data.download.remote import DatasetInfo, Layout, RemoteDataset
from quped.data.download.sources import Files, Url
from quped.data.download.store import Tensors
from quped.data.samples import Dataset
from quped.errors import DataError

TRAIN, TEST = "train*.csv", "test.csv"
"""Any number of training rows will do, so that the file may be called train_10k.csv."""

WORDS, MINIMUM = 20_000, 2
"""The vocabulary: the most frequent words of the training rows of all clients, each seen twice or more."""

TOPICS = "world", "sports", "business", "science"


def rows(content: bytes, name: str) -> tuple[list[list[str]], list[int]]:
    """Read rows of class (1 to 4), title and description; return the words of each, and the classes from 0."""
    texts, labels = [], []
    try:
        lines = csv.reader(io.StringIO(content.decode(), newline=""), strict=True)
        for number, row in enumerate(lines, 1):
            if len(row) != 3 or row[0] not in ("1", "2", "3", "4"):
                raise DataError(f'{name}, row {number}, is not "class from 1 to 4","title","description"')
            labels.append(int(row[0]) - 1)
            texts.append(text.words(f"{row[1]} {row[2]}"))
    except (csv.Error, UnicodeDecodeError) as error:
        raise DataError(f"{name} is not a CSV file in UTF-8 ({error})") from error
    if not texts:
        raise DataError(f"{name} is empty")
    return texts, labels


def decode(files: Files) -> Tensors:
    """Read the two files and number the words."""
    (train, train_labels), (test, test_labels) = rows(files[TRAIN], TRAIN), rows(files[TEST], TEST)
    vocabulary = text.vocabulary(train, WORDS, MINIMUM)
    numbers = {word: number for number, word in enumerate(vocabulary, text.UNKNOWN + 1)}
    train_tokens, train_offsets = text.encoded(train, numbers)
    test_tokens, test_offsets = text.encoded(test, numbers)
    return {
        "train_tokens": train_tokens,
        "train_offsets": train_offsets,
        "train_labels": torch.tensor(train_labels),
        "test_tokens": test_tokens,
        "test_offsets": test_offsets,
        "test_labels": torch.tensor(test_labels),
        "vocabulary_size": torch.tensor([len(vocabulary) + 1]),
    }


def build(file: Path) -> Dataset:
    """Make the data set from its stored file; its input shape is the size of the vocabulary, with the unknown word."""
    size = int(store.read(file).tensors["vocabulary_size"])
    train, test = (TextSamples(file, half) for half in ("train", "test"))
    return Dataset("ag_news", train, test, classes=4, input_shape=(size,), class_names=TOPICS)


ADDRESS = "https://raw.githubusercontent.com/mhjabreel/CharCnn_Keras/master/data/ag_news_csv"
URLS = (
    Url(
        f"{ADDRESS}/train.csv",
        "76a0a2d2f92b286371fe4d4044640910a04a803fdd2538e0f3f29a5c6f6b672e",
        (TRAIN,),
    ),
    Url(f"{ADDRESS}/test.csv", "521465c2428ed7f02f8d6db6ffdd4b5447c1c701962353eb2c40d548c3c85699"),
)

AG_NEWS = RemoteDataset(
    "ag_news",
    DatasetInfo("news, 4 classes", "120,000 + 7,600", 24.0, "non-commercial"),
    (Layout((TRAIN, TEST), decode, (URLS,)),),
    build,
)
