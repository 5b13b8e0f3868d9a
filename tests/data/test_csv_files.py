"""CSV files by client: what becomes of rows, and what is said of bad ones."""

from pathlib import Path

import numpy as np
import pytest
import torch

from quped.data.by_client import ByClient, content_digest
from quped.data.csv_files import Columns, load_csv
from quped.errors import DataError

BY_USER = Columns(by="user")
ROWS = "user,x,label,y\n" + "".join(f"{'ab'[i % 2]},{i},{i % 3 + 9},{10 * i}\n" for i in range(20))


def write(folder: Path, text: str, name: str = "samples.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_rows_become_samples_of_their_clients(tmp_path: Path) -> None:
    """Inputs standardized by all training rows, classes in the order of their numbers, a fifth for testing."""
    file = write(tmp_path, ROWS)
    loaded = load_csv([file], BY_USER, file)
    assert list(loaded.clients) == ["a", "b"]
    assert loaded.class_names == ("9", "10", "11")
    assert (loaded.input_shape, loaded.classes) == ((2,), 3)
    assert loaded.preparation["columns"] == ["x", "y"]
    mean, std = (np.array(loaded.preparation[key]) for key in ("mean", "std"))
    seen: dict[str, list[tuple[float, int]]] = {"train": [], "test": []}
    for offset, shares in enumerate(loaded.clients.values()):
        assert shares.test is not None
        assert (len(shares.train), len(shares.test), shares.validation) == (8, 2, None)
        for part, samples in (("train", shares.train), ("test", shares.test)):
            batch = samples.batch(torch.arange(len(samples)))
            values = batch.inputs[0].numpy() * std + mean
            np.testing.assert_allclose(values[:, 1], 10 * values[:, 0], rtol=1e-5, atol=1e-4)
            numbers = np.rint(values[:, 0]).astype(int)
            assert set(numbers % 2) == {offset}
            assert (numbers % 3).tolist() == batch.labels.tolist()
            seen[part] += list(zip(values[:, 0].round().tolist(), batch.labels.tolist(), strict=True))
    assert sorted(value for value, _ in seen["train"] + seen["test"]) == list(range(20))
    trained = np.array([value for value, _ in seen["train"]])
    assert mean[0] == pytest.approx(trained.mean())
    assert std[0] == pytest.approx(trained.std())


def test_a_column_says_what_is_for_testing(tmp_path: Path) -> None:
    parts = ["train"] * 3 + ["test"] + ["validation"]
    text = "who,split,kind,v\n" + "".join(f"a,{part},{'pq'[i % 2]},{i}\n" for i, part in enumerate(parts))
    file = write(tmp_path, text + "b,train,p,7\n")
    loaded = load_csv([file], Columns("kind", "who", "split"), file)
    assert [None if part is None else len(part) for part in loaded.clients["a"]] == [3, 1, 1]
    assert [None if part is None else len(part) for part in loaded.clients["b"]] == [1, None, None]
    assert loaded.preparation["mean"] == pytest.approx([(0 + 1 + 2 + 7) / 4])


def test_a_file_can_be_a_client(tmp_path: Path) -> None:
    files = [write(tmp_path, f"v,label\n1,0\n2,1\n3,{i}\n", f"{name}.csv") for i, name in enumerate(("ann", "bob"))]
    assert list(load_csv(files, Columns(), tmp_path).clients) == ["ann", "bob"]


def test_the_test_rows_stay_the_same(tmp_path: Path) -> None:
    """Whatever the order of clients in the file, and whoever else is in it."""
    file = write(tmp_path, ROWS)
    alone = write(tmp_path, "\n".join(line for line in ROWS.splitlines() if not line.startswith("b")), "alone.csv")
    whole, part = (load_csv([path], BY_USER, path) for path in (file, alone))

    def tested(loaded: ByClient) -> list[int]:
        samples, (mean, std) = loaded.clients["a"].test, (loaded.preparation[key][0] for key in ("mean", "std"))
        assert samples is not None
        values = samples.batch(torch.arange(len(samples))).inputs[0][:, 0]
        return [round(float(value) * std + mean) for value in values]

    assert tested(whole) == tested(part)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"samples\.csv is empty: its first line must name the columns"),
        ("user,x,label\n", r"samples\.csv has a header but no rows"),
        ("user,x,label\na,1,0\na,2\n", r"samples\.csv, line 3 has 2 cells, but the header has 3"),
        ("user,x,label\na,1,0\n\na,one,1\n", r"samples\.csv, line 4, column 'x' has 'one' where a number belongs"),
        ("user,x,label\na,1,0\na,,1\n", r"line 3, column 'x' is empty"),
        ("user,x,label\na,nan,0\n", r"line 2, column 'x' has 'nan'"),
        ("user,x,label\na,1,\n", r"line 2, column 'label': the class is empty"),
        ("user,x,label\n../a,1,0\n", r"line 2: '\.\./a' cannot be the name of a client"),
        ("usr,x,label\na,1,0\n", r"has no column 'user'. Did you mean 'usr'"),
        ("user;x;label\na;1;0\n", r"has no column 'label'.*separated by commas"),
        ("user,x,x,label\na,1,2,0\n", r"two columns 'x'"),
        ("user,label\na,1\n", r"no column of inputs beside user, label"),
        ("user,x,label\na,1,0\na,2,0\n", r"has one class, '0'"),
        ("user,x,label\na,1,0\nb,2,1\n", r"client 'a' has one sample"),
        ('user,x,label\na,"1,0\n', r"samples\.csv, line 2: unexpected end of data"),
    ],
)
def test_bad_files_are_told_with_their_line(text: str, message: str, tmp_path: Path) -> None:
    file = write(tmp_path, text)
    with pytest.raises(DataError, match=message):
        load_csv([file], BY_USER, file)


def test_bad_parts_and_encodings_are_told(tmp_path: Path) -> None:
    file = write(tmp_path, "user,x,label,split\na,1,0,training\n")
    with pytest.raises(DataError, match=r"line 2, column 'split': 'training' must be one of train, test, validation"):
        load_csv([file], Columns(by="user", split="split"), file)
    file.write_text("user,x,label,split\na,1,0,test\na,1,1,test\n")
    with pytest.raises(DataError, match="client 'a' has no training samples"):
        load_csv([file], Columns(by="user", split="split"), file)
    file.write_bytes(b"user,x,label\n\xff,1,0\n")
    with pytest.raises(DataError, match=r"samples\.csv is no text in UTF-8"):
        load_csv([file], BY_USER, file)
    with pytest.raises(DataError, match=r"none\.csv cannot be read: No such file"):
        load_csv([tmp_path / "none.csv"], BY_USER, file)
    with pytest.raises(DataError, match="name the column of the client"):
        load_csv([file], Columns(), file)


def test_a_digest_sees_every_value(tmp_path: Path) -> None:
    files = [write(tmp_path, text, f"{i}.csv") for i, text in enumerate((ROWS, ROWS, ROWS.replace("a,18,", "a,18.5,")))]
    digests = [content_digest(load_csv([file], BY_USER, file).clients["b"].train) for file in files]
    assert digests[0] == digests[1] != digests[2]
