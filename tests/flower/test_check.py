"""`quped flower check`: what would make Flower's commands fail is named before they are run."""

import re
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from helpers.flower_servers import HOST, free_port
from helpers.program import Done, fails, quped

from quped.flower.keys import CA, KEYS, SERVER, SERVER_KEY, make_keys


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    make_keys(tmp_path, ["phone"])
    return tmp_path / KEYS


@contextmanager
def server(keys: Path | None, ahead: float = 0.0, host: str = HOST) -> Iterator[int]:
    """Yield the port of a server whose clock is ahead by some seconds; without keys, one without TLS."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(404)
            self.end_headers()

        def date_time_string(self, timestamp: float | None = None) -> str:
            return formatdate(time.time() + ahead, usegmt=True)

        def log_request(self, code: object = None, size: object = None) -> None:
            pass

    class Quiet(HTTPServer):
        def handle_error(self, request: object, client_address: object) -> None:
            pass  # a client that does not trust the certificate leaves

    with Quiet((host, 0), Handler) as listening:
        if keys is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(keys / SERVER, keys / SERVER_KEY)
            listening.socket = context.wrap_socket(listening.socket, server_side=True)
        thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield listening.server_port
        finally:
            listening.shutdown()
            thread.join()


def node(keys: Path, port: int, *more: str | Path, host: str = HOST) -> Done:
    return quped(
        *("flower", "check", "flower-supernode", "--superlink", f"{host}:{port}", "--port", str(free_port())),
        *("--root-certificates", keys / CA, "--auth-supernode-private-key", keys / "phone.key"),
        *("--node-config", 'part=0 name="phone"', *more),
        cwd=keys.parent,
    )


def link(keys: Path, *more: str | Path) -> Done:
    return quped(
        *("flower", "check", "flower-superlink", "--port", str(free_port()), "--enable-supernode-auth"),
        *("--ssl-ca-certfile", keys / CA, "--ssl-certfile", keys / SERVER, "--ssl-keyfile", keys / SERVER_KEY, *more),
        cwd=keys.parent,
    )


def test_a_node_that_can_start(keys: Path) -> None:
    with server(keys) as port:
        done = node(keys, port)
    assert done.returncode == 0, done.stderr
    assert "can be read by its owner only" in done.stdout
    assert "is free." in done.stdout
    assert f"The SuperLink at {HOST}:{port} answers. The clocks agree." in done.stdout


def test_a_server_that_can_start(keys: Path) -> None:
    done = link(keys)
    assert done.returncode == 0, done.stderr
    assert "is for localhost, 127.0.0.1, ::1: nodes reach the server by these" in done.stdout
    assert "is free." in done.stdout


def test_a_port_in_use_is_named(keys: Path) -> None:
    with socket.create_server((HOST, 0)) as other, server(keys) as port:
        taken = str(other.getsockname()[1])
        words = (f"Port {taken} of {HOST} is in use by another program", "choose another --port")
        fails(node(keys, port, "--port", taken), *words)
        fails(link(keys, "--port", taken), *words)
        fails(node(keys, port, "--port", "http"), "'http' is no port")


def test_a_superlink_that_is_not_there_is_named(keys: Path) -> None:
    port = free_port()
    fails(node(keys, port), f"No SuperLink answers at {HOST}:{port}: Connection refused", "Start flower-superlink")
    fails(node(keys, port, host="nowhere.invalid"), "The host 'nowhere.invalid' is unknown", "correct --superlink")


def test_a_wrong_certificate_is_named(keys: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    make_keys(tmp_path / "other", ["phone"])
    other = tmp_path / "other" / KEYS
    signed = (f"was not signed by {other / CA}", f"use the {CA} of this server")
    with server(keys) as port:
        fails(node(keys, port, "--root-certificates", other / CA), f"The certificate of {HOST}:{port}", *signed)
        fails(node(keys, port, "--root-certificates", keys / "phone.pub"), "phone.pub holds no certificate")
        fails(node(keys, port, "--root-certificates", "none.pem"), "none.pem cannot be read: No such file")
    with server(keys, host="127.0.0.2") as port:
        fails(node(keys, port, host="127.0.0.2"), "is not for '127.0.0.2'", "--host 127.0.0.2")
    fails(link(keys, "--ssl-ca-certfile", other / CA), f"The certificate {keys / SERVER}", *signed)
    fails(link(keys, "--ssl-keyfile", other / SERVER_KEY), "are not a certificate and its key")


def test_a_certificate_that_is_not_valid_yet_is_named(keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was made on a machine whose clock is two days ahead."""
    monkeypatch.setattr("quped.flower.keys.SKEW", timedelta(days=-1))
    (keys.parent / "new").mkdir()
    make_keys(keys.parent / "new", ["phone"])
    fails(link(keys.parent / "new" / KEYS), "is not valid now (certificate is not yet valid)", "set the clock")


def test_tls_on_one_side_only_is_named(keys: Path) -> None:
    with server(None) as port:
        fails(node(keys, port), "does not answer as a SuperLink with TLS", "--insecure")
        done = node(keys, port, "--insecure")
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("ahead", "words"), [(-60, "[56]. s ahead of"), (400, "(39.|400) s behind")])
def test_clocks_that_differ_are_named(keys: Path, ahead: float, words: str) -> None:
    with server(keys, ahead) as port:
        done = node(keys, port)
    fails(done, "set both clocks")
    assert re.search(f"The clock of this machine is about {words} the server's", done.stderr), done.stderr


@pytest.mark.parametrize("ahead", [-4.5, 100, 250])
def test_clocks_that_differ_a_little_are_accepted(keys: Path, ahead: float) -> None:
    with server(keys, ahead) as port:
        done = node(keys, port)
    assert "s, which Flower accepts" in done.stdout, done.stderr


def test_keys_that_others_can_read_are_named(keys: Path) -> None:
    port = free_port()
    (keys / "phone.key").chmod(0o640)
    (keys / SERVER_KEY).chmod(0o644)
    done = node(keys, port)
    fails(done, "phone.key is a private key, and others can use it (mode 640): `chmod 600", "No SuperLink answers")
    fails(link(keys), "server.key is a private key", "mode 644")
    fails(node(keys, port, "--auth-supernode-private-key", keys / CA), "is a private key")
    (keys / CA).chmod(0o600)
    fails(node(keys, port, "--auth-supernode-private-key", keys / CA), "ca.pem holds no private key of a node")


def test_other_commands_cannot_be_checked(tmp_path: Path) -> None:
    fails(quped("flower", "check", "flwr", "run", cwd=tmp_path), "'flwr' cannot be checked", "flower-supernode")
    fails(quped("flower", "check", "flower-supernode", "--port", cwd=tmp_path), "cannot be read: argument --port")
