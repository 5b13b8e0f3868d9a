"""A cluster of three machines, all of them here, loses one in the middle of a round. Run by `make test-ray`."""

import os
import signal
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.small_federation import assert_same, clients, fit, samples
from torch import Tensor

from quped import QuPeD, QupedError
from quped.data import TensorSamples
from quped.typing import Batch

ray = pytest.importorskip("ray", reason="needs the extra [ray]: make test-ray")


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Start three nodes with a core each; return the address of the cluster."""
    from ray.cluster_utils import Cluster

    from quped.simulation.engines.ray import LOCAL

    for name, value in LOCAL.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("ray._private.ray_constants.ENABLE_RAY_CLUSTER", False)  # the loopback address for all
    # A lost node is noticed within seconds instead of half a minute.
    quick = {"health_check_period_ms": 1000, "health_check_timeout_ms": 4000, "health_check_failure_threshold": 3}
    with tempfile.TemporaryDirectory(prefix="quped-", ignore_cleanup_errors=True) as folder:
        monkeypatch.setenv("RAY_TMPDIR", folder)
        options: dict[str, Any] = {"num_cpus": 1, "node_ip_address": "127.0.0.1", "include_dashboard": False}
        options["object_store_memory"] = 100_000_000
        cluster = Cluster(initialize_head=True, head_node_args={**options, "_system_config": quick})
        try:
            for _ in range(2):
                cluster.add_node(**options)
            cluster.wait_for_nodes(120)
            yield cluster.address
        finally:
            ray.shutdown()
            cluster.shutdown()


@dataclass(frozen=True)
class Explosive:
    """Samples that take down the machine which draws them, once: its raylet, and with it all of its actors."""

    whole: TensorSamples
    deaths: Path

    @property
    def labels(self) -> Tensor:
        """The labels."""
        return self.whole.labels

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.whole)

    def batch(self, indices: Tensor, rng: np.random.Generator | None = None) -> Batch:
        """Return samples; in training, on a node that is not the first, end the node before."""
        raylet = os.getppid()
        words = Path(f"/proc/{raylet}/cmdline").read_bytes().split(b"\0")
        if rng is not None and words[0].endswith(b"raylet") and b"--head" not in words and not self.deaths.exists():
            self.deaths.write_text(str(raylet))
            os.kill(raylet, signal.SIGKILL)
            time.sleep(60)  # the actor ends with its node, and not with a result
        return self.whole.batch(indices, rng)


def test_a_dead_machines_rounds_are_done_again(address: str, tmp_path: Path) -> None:
    """The run goes on with two machines, and ends with the undisturbed numbers."""
    members = clients(QuPeD(), 5)
    calm = fit(QuPeD(), members)
    deaths = tmp_path / "deaths"
    members = [
        replace(member, train=Explosive(TensorSamples(*samples(i, 20 + i)), deaths)) for i, member in enumerate(members)
    ]
    with pytest.warns(UserWarning, match=r"The actor of client 'c\d', in round \d, died"):
        shaken = fit(QuPeD(), members, engine="ray", workers=3, address=address)
    assert deaths.exists()
    assert_same(shaken, calm)


def test_an_address_without_a_cluster_is_named() -> None:
    with pytest.raises(QupedError, match=r"There is no Ray cluster at '127.0.0.1:9'"):
        fit(QuPeD(), engine="ray", workers=1, address="127.0.0.1:9")
