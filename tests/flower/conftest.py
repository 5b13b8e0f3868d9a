"""These tests need Flower, which has an environment of its own: `make test-flower`."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("flwr") else ["*"]
