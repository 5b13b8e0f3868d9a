"""A stored data set is whole, or it is refused."""

import resource
import time
from contextlib import suppress
from pathlib import Path

import pytest
import safetensors.torch
import torch

from quped._cache import cache_folder
from quped._digest import tensor_digest
from quped.data.download import store
from quped.errors import DataError

TENSORS = {"pixels": torch.arange(6000, dtype=torch.uint8).reshape(20, 300), "labels": torch.arange(20)}


@pytest.fixture
def file(cache: Path) -> Path:
    """Return a stored data set."""
    cache.mkdir()
    file = store.stored_file("letters")
    store.write(file, TENSORS, "a test", cache)
    return file


def test_round_trip(file: Path, cache: Path) -> None:
    """Reading returns the written tensors, from one file."""
    stored = store.read(file)
    assert all(torch.equal(stored.tensors[name], tensor) for name, tensor in TENSORS.items())
    assert stored.source == "a test"
    assert stored.checksum == tensor_digest(TENSORS)
    assert list(cache.iterdir()) == [file] == [cache / "letters.safetensors"]


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs the memory map of a process")
def test_tensors_are_mapped_not_copied(file: Path) -> None:
    """The file is in the process's memory map."""
    stored = store.read(file)
    assert str(file) in Path("/proc/self/maps").read_text()
    assert stored.tensors["pixels"].dtype == torch.uint8


def test_checksum_sees_names_types_shapes_and_bytes() -> None:
    """Any difference counts; the order of the dictionary does not."""
    reference = tensor_digest(TENSORS)
    assert tensor_digest(dict(reversed(TENSORS.items()))) == reference
    variants = [
        {**TENSORS, "labels": TENSORS["labels"].int()},
        {**TENSORS, "labels": TENSORS["labels"].reshape(4, 5)},
        {**TENSORS, "labels": TENSORS["labels"] + 1},
        {"pixels": TENSORS["pixels"], "label": TENSORS["labels"]},
    ]
    assert len({tensor_digest(v) for v in variants} | {reference}) == 5


def test_missing_file_names_the_remedy(cache: Path) -> None:
    """The error says how to get the data set."""
    with pytest.raises(DataError, match=r"'letters' is not in .*cache: get it with `quped data fetch letters`"):
        store.read(store.stored_file("letters"))


def test_truncated_file_is_refused(file: Path) -> None:
    """Also where only the last byte is missing."""
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"letters\.safetensors cannot be read .*fetch letters"):
        store.read(file)


def test_changed_bytes_are_noticed(file: Path) -> None:
    """Wherever they are: nothing is returned but what was stored."""
    original = file.read_bytes()
    header = 8 + int.from_bytes(original[:8], "little")
    for position in (*range(0, header, 3), *range(header, len(original), 17)):
        content = bytearray(original)
        content[position] ^= 1 << position % 8
        file.write_bytes(content)
        store.VERIFIED.clear()  # changes within one tick of the clock have the same time
        if position >= header:
            with pytest.raises(DataError, match=r"letters\.safetensors .*fetch letters"):
                store.read(file)
            continue
        with suppress(DataError):
            tensors = store.read(file).tensors
            assert tensors.keys() == TENSORS.keys()
            assert all(torch.equal(tensors[name], tensor) for name, tensor in TENSORS.items())


def test_a_file_that_changes_after_it_was_read_is_read_again(file: Path) -> None:
    """Each state of the file is verified once."""
    store.read(file)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "tensor_digest", None)
        store.read(file)
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    time.sleep(0.01)
    file.write_bytes(content)
    with pytest.raises(DataError, match=r"is damaged.*fetch letters"):
        store.read(file)


@pytest.mark.parametrize("metadata", [None, {}, {"format": "1"}, {"checksum": "0"}, {"format": "1", "checksum": "0"}])
def test_files_without_their_metadata_are_refused(metadata: dict[str, str] | None, file: Path) -> None:
    """Such as one that another program wrote."""
    file.write_bytes(safetensors.torch.save(TENSORS, metadata))
    with pytest.raises(DataError, match=r"letters\.safetensors .*fetch letters"):
        store.read(file)


def test_an_empty_file_is_refused(file: Path) -> None:
    """As a power failure may leave it."""
    file.write_bytes(b"")
    with pytest.raises(DataError, match=r"letters\.safetensors cannot be read .*fetch letters"):
        store.read(file)


def test_file_of_another_format_is_refused(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A later version may store other things."""
    monkeypatch.setattr(store, "FORMAT", "2")
    with pytest.raises(DataError, match="another version"):
        store.read(file)


def test_failed_write_leaves_the_old_file(file: Path, cache: Path) -> None:
    """A disk that takes 1,000 bytes and no more: the stored file stays as it was."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    (cache / "scratch").mkdir()
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            store.write(file, {"pixels": TENSORS["pixels"] + 1}, "a test", cache / "scratch")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert store.read(file).checksum == tensor_digest(TENSORS)


def test_default_folder_is_the_users_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without QUPED_CACHE."""
    monkeypatch.delenv("QUPED_CACHE")
    assert cache_folder().name == "quped"
