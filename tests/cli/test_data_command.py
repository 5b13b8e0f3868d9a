"""`quped data`."""

from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest
from helpers import raw_files
from helpers.offline import go_offline, serve, use_cache
from PIL import Image
from typer.testing import CliRunner, Result

from quped.cli.data import app
from quped.data.datasets import DATASETS, REMOTE, femnist, mnist
from quped.data.download.remote import Layout
from quped.data.download.sources import Url
from quped.errors import DataError, InvalidValueError

NEWS = b"".join(b'"%d","title","some words"\n' % (i % 4 + 1) for i in range(40))


def run(*arguments: str, width: int = 80) -> Result:
    """Run the command on a terminal of this width."""
    return CliRunner().invoke(app, arguments, env={"COLUMNS": str(width)})


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of stored data sets."""
    go_offline(monkeypatch)
    return use_cache(tmp_path, monkeypatch)


@pytest.fixture
def news(tmp_path: Path) -> Path:
    """Return a folder with AG News."""
    return raw_files.place(tmp_path / "raw", {"train_40.csv": NEWS, "test.csv": NEWS})


def listed(name: str, width: int = 80) -> list[str]:
    """Return the lines of `quped data list` that begin with a data set's name."""
    return [line for line in run("list", width=width).output.splitlines() if line.startswith(f"{name} ")]


@pytest.mark.parametrize("width", [60, 80, 120])
def test_every_data_set_is_listed(cache: Path, width: int) -> None:
    """With its source and licence; only the data set that comes with scikit-learn is stored."""
    output = run("list", width=width).output
    assert max(map(len, output.splitlines())) <= max(width, len(f"Stored in {cache}"))
    assert f"Stored in {cache}" in output
    for name in DATASETS:
        sizes, source = listed(name, width)
        assert sizes.split()[-1] == ("yes" if name == "digits" else "no")
        assert source.split()[1] not in ("yes", "no")
    assert ("50,000 + 10,000" in output) == (width >= 80)
    assert "raw.githubusercontent.com (MIT)" in output


def test_fetch_then_list(news: Path) -> None:
    """A stored data set is listed with its real size and source."""
    result = run("fetch", "ag-news", "digits", "--from", str(news))
    assert result.exit_code == 0
    assert "ag_news: stored in" in result.output
    assert "digits: comes with scikit-learn" in result.output
    sizes, source = listed("ag_news", width=300)
    assert "40 + 40" in sizes
    assert "yes" in sizes
    assert f"folder {news}" in source
    dataset = DATASETS["ag_news"]()
    assert dataset.input_shape == (4,)  # title, some, words, and the unknown word
    assert len(dataset.train) == 40


def test_progress_of_a_download_is_not_printed_to_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bar belongs to a terminal; a log gets the messages alone."""
    files = raw_files.mnist_files()
    with serve() as server:
        server.files |= files
        route = tuple(Url(f"{server.address}/{name}", sha256(content).hexdigest()) for name, content in files.items())
        layout = Layout(mnist.FILES, mnist.decode, (route,))
        monkeypatch.setitem(REMOTE, "mnist", replace(mnist.MNIST, layouts=(layout,)))
        lines = run("fetch", "mnist").stdout.splitlines()
    assert len(lines) == 2
    assert "trying 127.0.0.1" in lines[0]
    assert "stored in" in lines[1]


def test_folder_from_the_environment(news: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """QUPED_DATA stands for --from."""
    monkeypatch.setenv("QUPED_DATA", str(news))
    assert "from folder" in run("fetch", "ag_news").output


def test_damaged_file_is_listed_as_such(cache: Path) -> None:
    """With the remedy."""
    cache.mkdir()
    REMOTE["mnist"].file.write_bytes(b"half")
    assert "damaged" in listed("mnist")[0]
    assert "run `quped data fetch mnist`" in run("list").output


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


@pytest.mark.parametrize(("partition", "clients"), [("classes=4", 50), ("dirichlet=1", 3)])
def test_show(tmp_path: Path, partition: str, clients: int) -> None:
    """A picture that is not empty, wider for more clients."""
    file = tmp_path / "picture.png"
    result = run("show", "digits", "--partition", partition, "--clients", str(clients), "--out", str(file))
    assert result.exit_code == 0
    assert str(file) in result.output
    with Image.open(file) as picture:
        assert picture.format == "PNG"
        assert picture.width > 800
        assert len(picture.convert("RGB").getcolors(picture.width * picture.height) or []) > 50


def test_show_by_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool by writer, written to the file that the partition names."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(femnist, "WRITERS", 4)
    monkeypatch.setattr(femnist, "FEWEST", 10)
    layout = replace(femnist.FEMNIST.layouts[0], checksum=None, routes=())
    monkeypatch.setitem(REMOTE, "femnist", replace(femnist.FEMNIST, layouts=(layout,)))
    writers = [i // 20 for i in range(80)]
    files = raw_files.mnist_files(train=80) | {femnist.QMNIST_LABELS: raw_files.qmnist(writers)}
    raw_files.place(tmp_path / "raw", files)
    assert run("fetch", "femnist", "--from", str(tmp_path / "raw")).exit_code == 0
    assert run("show", "femnist", "--partition", "writers=2", "--clients", "2").exit_code == 0
    assert (tmp_path / "femnist-writers-2.png").is_file()


def test_show_where_it_cannot_be_written(tmp_path: Path) -> None:
    """The error names the file and the remedy."""
    (tmp_path / "file").write_text("")
    result = run("show", "digits", "--out", str(tmp_path / "file" / "picture.png"))
    assert isinstance(result.exception, DataError)
    assert "name another file with --out" in str(result.exception)
