"""Raw files of every data set, as published, and damaged or wrong files."""

import numpy as np
import pytest
import torch
from helpers import raw_files

from quped.data.datasets import ag_news, audiomnist, cifar10, femnist, hapt, idx, mnist
from quped.errors import DataError

SMALL = 6
"""Images in a batch of CIFAR-10, here."""


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cifar10, "BATCH", SMALL)


def test_idx_by_hand() -> None:
    """The bytes of a matrix of 2 x 3, and of a list of two big-endian integers."""
    content = bytes([0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3, 1, 2, 3, 4, 5, 255])
    assert idx.parse(content, "x", (None, 3)).tolist() == [[1, 2, 3], [4, 5, 255]]
    content = bytes([0, 0, 12, 1, 0, 0, 0, 2, 0, 0, 1, 0, 255, 255, 255, 255])
    assert idx.parse(content, "x", (2,)).tolist() == [256, -1]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "x is not an idx file"),
        (b"<html>not found</html>", "x is not an idx file"),
        (bytes([0, 0, 8, 2, 0, 0]), "x is truncated"),
        (bytes([0, 0, 8, 1, 0, 0, 0, 3, 1, 2, 3]), "x holds an array of"),
        (bytes([0, 0, 8, 2, 0, 0, 0, 1, 0, 0, 0, 3, 1, 2]), "x has 14 bytes, which does not fit"),
    ],
)
def test_wrong_idx(content: bytes, message: str) -> None:
    """Each defect has its own message."""
    with pytest.raises(DataError, match=message):
        idx.parse(content, "x", (None, 3))


def test_mnist() -> None:
    """Images get a channel; labels are int64."""
    files = raw_files.mnist_files(train=30, test=20)
    tensors = mnist.decode(files)
    assert tensors["train_images"].shape == (30, 1, 28, 28)
    assert tensors["train_images"].numpy().tobytes() == files[mnist.TRAIN_IMAGES][16:]
    assert tensors["test_labels"].tolist() == [i % 10 for i in range(20)]
    assert tensors["test_labels"].dtype == torch.int64


def test_mnist_labels_must_fit() -> None:
    """As many labels as images, of ten classes."""
    files = raw_files.mnist_files()
    with pytest.raises(DataError, match="train-labels-idx1-ubyte holds an array"):
        mnist.decode(files | {mnist.TRAIN_LABELS: raw_files.idx(np.zeros(7, np.uint8))})
    with pytest.raises(DataError, match="train-labels-idx1-ubyte does not hold labels of ten classes"):
        mnist.decode(files | {mnist.TRAIN_LABELS: raw_files.idx(np.full(30, 10, np.uint8))})


@pytest.mark.usefixtures("_small")
def test_cifar10_layouts_hold_the_same() -> None:
    """PNG pictures and the binary files give the same tensors, and these are the images that went in."""
    images, labels = raw_files.cifar_arrays(SMALL)
    binary = cifar10.decode_binary(raw_files.cifar_binary(SMALL))
    pictures = cifar10.decode_png(raw_files.cifar_png(SMALL))
    assert binary.keys() == pictures.keys()
    assert all(torch.equal(binary[name], pictures[name]) for name in binary)
    assert np.array_equal(binary["train_images"].numpy(), images[:5].reshape(-1, 3, 32, 32))
    assert np.array_equal(binary["test_labels"].numpy(), labels[5])
    assert all(tensor.is_contiguous() for tensor in pictures.values())


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("data_batch_2.png", raw_files.png(np.zeros((SMALL, 1024), np.uint8)), "is a picture of L"),
        (
            "data_batch_2.png",
            raw_files.png(np.zeros((SMALL, 1023, 3), np.uint8)),
            r"RGB \(1023, 6\), not .*\(1024, 6\)",
        ),
        ("data_batch_2.png", raw_files.cifar_png(SMALL)["data_batch_2.png"][:-4000], "not a whole PNG picture"),
        ("data_batch_2.png", b"<html></html>", "not a whole PNG picture"),
        (cifar10.TEST_JSON, b"[1, 2]", "not a list of 6 labels"),
        (cifar10.TEST_JSON, b"[1, 2, 3, 4, 5, 10]", "labels from 0 to 9"),
        (cifar10.TEST_JSON, b"labels", "is not JSON"),
    ],
)
def test_wrong_cifar10_pictures(name: str, content: bytes, message: str) -> None:
    """Each defect names its file."""
    with pytest.raises(DataError, match=f"{name} .*{message}"):
        cifar10.decode_png(raw_files.cifar_png(SMALL) | {name: content})


@pytest.mark.usefixtures("_small")
def test_wrong_cifar10_binary() -> None:
    """A batch too short, and a label too high."""
    files = raw_files.cifar_binary(SMALL)
    with pytest.raises(DataError, match=r"test_batch.bin has 7 bytes, not 18438"):
        cifar10.decode_binary(files | {"test_batch.bin": b"1234567"})
    with pytest.raises(DataError, match="labels above 9"):
        cifar10.decode_binary(files | {"test_batch.bin": b"\x0a" + files["test_batch.bin"][1:]})


NEWS = b'"3","Oil, ""black gold"", up","Prices rose (again)."\n"4","Two\nlines","oil"\n"1","","oil up"\n'


def test_ag_news() -> None:
    """Quotes within quotes, commas and line breaks; the vocabulary comes from the training rows alone."""
    tensors = ag_news.decode({ag_news.TRAIN: NEWS, ag_news.TEST: b'"2","Oil","prices (up) never\\seen"\n'})
    assert tensors["train_labels"].tolist() == [2, 3, 0]
    assert tensors["train_offsets"].tolist() == [0, 12, 15, 17]
    # Seen twice or more: oil (3 times), the comma and up (2 times). All else is unknown.
    assert int(tensors["vocabulary_size"]) == 4
    assert tensors["train_tokens"].tolist() == [1, 2, 0, 0, 2, 3, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 3]
    assert tensors["test_tokens"].tolist() == [1, 0, 0, 3, 0, 0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b'"5","title","text"\n', "row 1, is not"),
        (b'"1","title","text"\n"2","title"\n', "row 2, is not"),
        (b"<html>\n<p>Not found</p>\n", "row 1, is not"),
        (b'"1","title","never closed', "is not a CSV file in UTF-8"),
        (b'"1","title","\xff\xfe"\n', "is not a CSV file in UTF-8"),
    ],
)
def test_wrong_ag_news(content: bytes, message: str) -> None:
    """Each defect names the file and, if there is one, the row."""
    with pytest.raises(DataError, match=message):
        ag_news.decode({ag_news.TRAIN: content, ag_news.TEST: NEWS})


@pytest.fixture
def _few_writers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(femnist, "WRITERS", 3)
    monkeypatch.setattr(femnist, "FEWEST", 4)
    monkeypatch.setattr(femnist, "MOST", 6)


SIZES = [3, 4, 5, 6, 7]
"""Digits of five writers, of whom the middle three are chosen."""


@pytest.mark.usefixtures("_few_writers")
def test_femnist_from_mnist_and_qmnist() -> None:
    """Only digits of writers who wrote neither too few nor too many are kept, each with its writer."""
    writers = [700 + w for w, size in enumerate(SIZES) for _ in range(size)]
    files = raw_files.mnist_files(train=25) | {femnist.QMNIST_LABELS: raw_files.qmnist(writers)}
    tensors = femnist.decode(files)
    assert tensors["writers"].tolist() == writers[3:18]
    assert tensors["train_labels"].tolist() == [i % 10 for i in range(3, 18)]
    assert torch.equal(tensors["train_images"], mnist.decode(files)["train_images"][3:18])


@pytest.mark.usefixtures("_few_writers")
def test_femnist_labels_of_other_images() -> None:
    """QMNIST's classes must be MNIST's; and there must be enough writers."""
    files = raw_files.mnist_files(train=25)
    with pytest.raises(DataError, match="has other classes than train-labels"):
        femnist.decode(files | {femnist.QMNIST_LABELS: raw_files.idx(np.ones((25, 8), np.int32))})
    with pytest.raises(DataError, match="0 writers have 4 to 6 digits, and 3 are needed"):
        femnist.decode(files | {femnist.QMNIST_LABELS: raw_files.qmnist([1] * 25)})


def test_hapt_by_hand() -> None:
    """Windows lie within a stretch, half a window apart; a person's first experiment is for training."""
    tensors = hapt.decode("x", {"x": raw_files.zipped(raw_files.hapt_files())})
    # Rows 3 to 258 are 256: windows begin at the rows 3, 67 and 131, and the next has 142 rows, room for one.
    assert tensors["train_labels"].tolist() == [4, 4, 4, 0, 1, 1]
    assert tensors["train_people"].tolist() == [7, 7, 7, 7, 8, 8]
    assert (tensors["test_labels"].tolist(), tensors["test_people"].tolist()) == ([11, 1], [7, 8])
    second = tensors["train_signals"][1]
    assert second.shape == (6, 1, 128)
    assert second[:, 0, 0].tolist() == [1, 66, -66, 1, -1, 66 / 8]  # row 67 is number 66 from 0
    assert second[1, 0].tolist() == list(range(66, 66 + 128))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels.txt": b""}, "labels.txt is empty"),
        ({"labels.txt": b"1 7 5 1 128 9\n"}, "labels.txt does not hold 5 numbers"),
        ({"labels.txt": b"1 7 13 1 128\n"}, "stretch of experiment 1"),
        ({"labels.txt": b"1 7 5 300 401\n"}, "stretch of experiment 1"),
        ({"labels.txt": b"9 7 5 1 128\n"}, "no acc_exp09_user07.txt"),
        ({"labels.txt": b"1 7 5 1 128\n"}, "no windows for the test data"),
        ({"gyro_exp02_user07.txt": b"1 2 3\n1 2\n"}, "gyro_exp02_user07.txt does not hold 3 numbers"),
        ({"gyro_exp02_user07.txt": b"1 2 nan\n"}, "gyro_exp02_user07.txt does not hold 3 numbers"),
    ],
)
def test_wrong_hapt(changes: dict[str, bytes], message: str) -> None:
    """Each defect names its file."""
    with pytest.raises(DataError, match=message):
        hapt.decode("x", {"x": raw_files.zipped(raw_files.hapt_files() | changes)})


def test_wrong_hapt_archives(monkeypatch: pytest.MonkeyPatch) -> None:
    """No archive, another archive, and one that would fill the memory."""
    whole = raw_files.zipped(raw_files.hapt_files())
    for content in (b"<html></html>", whole[: len(whole) // 2]):
        with pytest.raises(DataError, match="x is not a whole zip archive"):
            hapt.decode("x", {"x": content})
    with pytest.raises(DataError, match=r"no RawData/labels\.txt"):
        hapt.decode("x", {"x": raw_files.zipped(raw_files.hapt_files(), folder="Train")})
    monkeypatch.setattr(hapt, "LARGEST", 10)
    with pytest.raises(DataError, match="more than"):
        hapt.decode("x", {"x": whole})


def test_audiomnist_by_hand() -> None:
    """The eleventh take of each digit is for testing."""
    tensors = audiomnist.decode({audiomnist.FILE: raw_files.audiomnist_file()})
    assert tensors["train_images"].shape == (40, 1, 32, 32)
    assert tensors["test_images"][:, 0, 0, 0].tolist() == [10, 21, 32, 43]
    assert tensors["test_labels"].tolist() == [0, 1, 0, 1]
    assert tensors["test_people"].tolist() == [1, 1, 2, 2]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"<html></html>", "is not an archive"),
        (raw_files.audiomnist_file(labels=np.array([{}] * 44)), "is not an archive"),  # it would be unpickled
        (raw_files.audiomnist_file(takes=np.zeros(7, np.uint8)), "each with a label"),
        (raw_files.audiomnist_file(images=np.zeros((44, 28, 28), np.uint8)), "pictures of 32 x 32"),
        (raw_files.audiomnist_file(labels=np.full(44, 10, np.uint8)), "labels of ten classes"),
    ],
)
def test_wrong_audiomnist(content: bytes, message: str) -> None:
    """Nothing is unpickled, and each defect is named."""
    with pytest.raises(DataError, match=f"{audiomnist.FILE} .*{message}"):
        audiomnist.decode({audiomnist.FILE: content})
