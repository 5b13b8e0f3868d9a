"""A cache of its own for every test, and no network but this machine's."""

import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """Return the folder of stored data sets."""
    return tmp_path / "cache"


@pytest.fixture(autouse=True)
def _alone(request: pytest.FixtureRequest, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep tests off the user's cache, and, unless they are marked for it, off the network."""
    monkeypatch.setenv("QUPED_CACHE", str(cache))
    if request.node.get_closest_marker("download"):
        return
    monkeypatch.delenv("QUPED_DATA", raising=False)
    monkeypatch.setenv("PATH", "")  # no npm
    look_up = socket.getaddrinfo

    def only_this_machine(host: str, *rest: Any, **options: Any) -> Any:
        if host != "127.0.0.1":
            raise socket.gaierror(f"{host} is not this machine")
        return look_up(host, *rest, **options)

    monkeypatch.setattr(socket, "getaddrinfo", only_this_machine)


@dataclass
class Server:
    """A web server on this machine: what it has, and what it was asked for."""

    address: str
    files: dict[str, bytes] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    breaks_off: bool = False
    """Promise the whole file and send half of it."""
    seconds: float = 0
    """How long to wait before each answer."""


@pytest.fixture
def server() -> Iterator[Server]:
    """Serve files from memory."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.removeprefix("/")
            state.asked.append(name)
            time.sleep(state.seconds)
            content = state.files.get(name)
            if content is None:
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content[: len(content) // 2] if state.breaks_off else content)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        state = Server(f"http://127.0.0.1:{http.server_port}")
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield state
        http.shutdown()
        thread.join()
