"""Every test of data sets has a cache of its own, and no network unless it is marked `download`."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.offline import Server, go_offline, serve, use_cache


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of stored data sets."""
    if not request.node.get_closest_marker("download"):
        go_offline(monkeypatch)
    return use_cache(tmp_path, monkeypatch)


@pytest.fixture
def server() -> Iterator[Server]:
    """Return a web server."""
    with serve() as running:
        yield running
