"""A cache for one test, no network but this machine, and a web server on it."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest


def use_cache(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep the test off the user's cache."""
    cache = folder / "cache"
    monkeypatch.setenv("QUPED_CACHE", str(cache))
    return cache


def go_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the test off the network and off the user's raw files."""
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
    """A web server on this machine: its files, and the requests it received."""

    address: str
    files: dict[str, bytes] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    breaks_off: bool = False
    """Promise the whole file and send half of it."""
    seconds: float = 0
    """How long to wait before each answer."""


@contextmanager
def serve() -> Iterator[Server]:
    """Serve files from memory."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.removeprefix("/")
            server.requests.append(name)
            time.sleep(server.seconds)
            content = server.files.get(name)
            if content is None:
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content[: len(content) // 2] if server.breaks_off else content)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        server = Server(f"http://127.0.0.1:{http.server_port}")
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            http.shutdown()
            thread.join()
