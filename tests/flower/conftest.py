"""These tests need Flower, which has an environment of its own: `make test-flower`."""

from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from helpers.flower_servers import Servers

collect_ignore_glob = [] if find_spec("flwr") else ["*"]

LONG = ("test_kills_of_servers", "test_kills_of_nodes", "test_servers")
"""Files whose tests wait for servers: they begin first, and the others run meanwhile."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = {stem: number for number, stem in enumerate(LONG)}
    items.sort(key=lambda item: order.get(item.path.stem, len(LONG)))


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[Servers]":
    """A SuperLink and three nodes, for all tests of a file."""
    from helpers.flower_federation import running

    with running(tmp_path_factory.mktemp("federation")) as started:
        yield started
