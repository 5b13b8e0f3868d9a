"""These tests need Flower, which has an environment of its own: `make test-flower`."""

from importlib.util import find_spec

import pytest

collect_ignore_glob = [] if find_spec("flwr") else ["*"]

LONG = ("test_kills", "test_servers")
"""Files whose tests wait for servers: they begin first, and the others run meanwhile."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = {stem: number for number, stem in enumerate(LONG)}
    items.sort(key=lambda item: order.get(item.path.stem, len(LONG)))
