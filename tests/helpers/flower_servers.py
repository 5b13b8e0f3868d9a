"""Real servers of Flower on this machine: a SuperLink, SuperNodes and runs, each a process that is ended by its id."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from quped.flower.keys import CA, KEYS, SERVER, SERVER_KEY, make_keys
from quped.flower.new import HOME, node_config

BIN = Path(sys.executable).parent
HOST = "127.0.0.1"
CONNECTION = "server"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def wait_for(condition: Callable[[], Any], seconds: float, what: str) -> Any:
    """Return what a condition returns as soon as that is true."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, f"not within {seconds:.0f} s: {what}"
        time.sleep(0.2)
    return found


def children(process: int) -> Iterator[tuple[int, str]]:
    """Yield all processes below one, with their commands."""
    below: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                below.setdefault(int((entry / "stat").read_text().rpartition(")")[2].split()[1]), []).append(
                    int(entry.name)
                )
            except (OSError, IndexError):  # it has ended
                continue
    waiting = [process]
    while waiting:
        for child in below.get(waiting.pop(), []):
            waiting.append(child)
            try:
                yield child, Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue


class Servers:
    """A federation of an app in a folder."""

    def __init__(self, folder: Path, nodes: Mapping[str, Mapping[str, Any]]) -> None:
        self.folder, self.nodes = folder, nodes
        self.port = free_port()
        self._node_ports = {name: free_port() for name in nodes}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._orphans: list[int] = []
        make_keys(folder, list(nodes))
        home = folder / HOME
        home.mkdir()
        words = f'[superlink.{CONNECTION}]\naddress = "{HOST}:{self.port}"\n'
        (home / "config.toml").write_text(f'{words}root-certificates = "{self.key(CA)}"\n')
        self._environment = {
            **os.environ,
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "FLWR_HOME": str(home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(str(Path(p).resolve()) for p in ("src", "tests")),
        }

    def key(self, name: str) -> Path:
        return self.folder / KEYS / name

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def start(self, name: str, *command: str | Path) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            arguments = [BIN / command[0], *command[1:]]
            self.processes[name] = subprocess.Popen(
                arguments, stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=self.folder, env=self._environment
            )
        return self.processes[name]

    def start_link(self) -> None:
        tls = ("--ssl-ca-certfile", self.key(CA), "--ssl-certfile", self.key(SERVER), "--ssl-keyfile")
        self.start(
            "link",
            "flower-superlink",
            *("--host", HOST, "--port", str(self.port), "--database", self.folder / "link.db"),
            *("--enable-supernode-auth", "--disable-runtime-dependency-installation", *tls, self.key(SERVER_KEY)),
        )

        def listens() -> bool:
            with socket.socket() as probe:
                return probe.connect_ex((HOST, self.port)) == 0

        wait_for(listens, 300, "the SuperLink listens")

    def register(self, *names: str) -> None:
        for name in names:
            public = str(self.key(f"{name}.pub"))
            command = [str(BIN / "flwr"), "supernode", "register", public, CONNECTION, "--name", name]
            subprocess.run(command, check=True, cwd=self.folder, env=self._environment, capture_output=True)

    def start_node(self, name: str, key: str | None = None, **changes: Any) -> None:
        config = node_config({**self.nodes.get(name, {}), "name": name, **changes})
        self.start(
            name,
            "flower-supernode",
            *("--superlink", f"{HOST}:{self.port}", "--port", str(self._node_ports.get(name) or free_port())),
            *("--root-certificates", self.key(CA), "--auth-supernode-private-key", self.key(key or f"{name}.key")),
            *("--node-config", config),
        )

    def restart_node(self, name: str, after: float = 0.0) -> None:
        """Start a node that was killed until the SuperLink takes it: that refuses it while it seems to be there.

        Wait some seconds first: every try takes seconds of all cores.
        """
        time.sleep(after)

        def is_taken() -> bool:
            before = len(self.log(name))
            self.start_node(name)
            process = self.processes[name]
            wait_for(
                lambda: process.poll() is not None or "SuperNode ID" in self.log(name)[before:], 300, f"{name} starts"
            )
            return process.poll() is None

        wait_for(is_taken, 600, f"{name} is back")

    def run(self, app: Path, **config: Any) -> subprocess.Popen[bytes]:
        """Start a run of an app, and follow what it prints."""
        changes = [("--run-config", node_config(config))] if config else []
        return self.start("run", "flwr", "run", app, CONNECTION, "--stream", *(w for pair in changes for w in pair))

    def find(self, name: str, command: str) -> int | None:
        """Return a process below one of ours, by its command."""
        found = (number for number, words in children(self.processes[name].pid) if command in words)
        return next(found, None)

    def crash(self, name: str, command: str = "") -> None:
        """kill -9 one of our processes; with a command, one that it has started."""
        if command:
            os.kill(wait_for(lambda: self.find(name, command), 300, f"{command} at {name}"), signal.SIGKILL)
            return
        process = self.processes.pop(name)
        self._orphans += [number for number, _ in children(process.pid)]
        process.kill()
        process.wait()

    def stop(self, name: str) -> None:
        """End a process of ours, and those that it has started."""
        process = self.processes.pop(name)
        below = [number for number, _ in children(process.pid)]
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._end(below)

    def _end(self, numbers: list[int]) -> None:
        for number in numbers:
            try:
                os.kill(number, signal.SIGKILL)
            except ProcessLookupError:
                continue

    def close(self) -> None:
        for name in [*self.processes][::-1]:
            self.stop(name)
        self._end(self._orphans)
