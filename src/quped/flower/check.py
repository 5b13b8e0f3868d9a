"""What a command of Flower needs, looked at before it is run: files, ports, the server and its clock."""

import argparse
import errno
import http.client
import socket
import ssl
import stat
import time
from collections.abc import Callable, Sequence
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import NoReturn

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_TOLERANCE

from quped.errors import InvalidValueError, RunError
from quped.flower.keys import CA, KEYS, SERVER, SERVER_KEY, hosts_of

LINK, NODE = "flower-superlink", "flower-supernode"
SECONDS = 10.0
"""How long the server may take to answer."""
OTHER_HOST = {62, 64}
OTHER_TIME = {9, 10}
"""What OpenSSL reports of certificates for other hosts or addresses; not valid yet, or not any more."""


def check_command(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Look at what a command of Flower needs; return what is in order, and what must be put right."""
    program, *arguments = words or [""]
    if program not in COMMANDS:
        raise InvalidValueError(f"'{program}' cannot be checked: give a command that begins with {LINK} or {NODE}.")
    options, looks = COMMANDS[program]
    parser = Parser(program, add_help=False, allow_abbrev=False)
    for name, default in options.items():
        parser.add_argument(f"--{name}", default=default)
    parser.add_argument("--insecure", action="store_true")
    given, _ = parser.parse_known_args(arguments)
    good, bad = list[str](), list[str]()
    for look in looks:
        try:
            good.append(look(given))
        except RunError as error:
            bad.append(str(error))
    return good, bad


class Parser(argparse.ArgumentParser):
    """Raises for a command that cannot be read, instead of ending the program."""

    def error(self, message: str) -> NoReturn:
        """Raise the error."""
        raise InvalidValueError(f"The command {self.prog} cannot be read: {message}.")


def look_at_port(given: argparse.Namespace) -> str:
    """Say whether the command can listen on its port."""
    host, port = given.host, port_of(given.port)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server does: a port that was just closed
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise RunError(
                    f"Port {port} of {host} is in use by another program: end it, or choose another --port."
                ) from error
            raise RunError(
                f"Port {port} of {host} cannot be used: {error.strerror}. Correct --host or --port."
            ) from error
    return f"Port {port} of {host} is free."


def look_at_node_key(given: argparse.Namespace) -> str:
    """Say whether the node's private key can be used, and by nobody else."""
    option = "auth-supernode-private-key"
    path = private_file(given.auth_supernode_private_key, option, "NODE.key")
    try:
        key = serialization.load_ssh_private_key(path.read_bytes(), None)
    except ValueError:
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise RunError(f"{path} holds no private key of a node: name the file NODE.key with --{option}.")
    return f"The key {path} can be read by its owner only."


def look_at_certificates(given: argparse.Namespace) -> str:
    """Say whether nodes will accept the server's certificate."""
    if given.insecure:
        return "Without TLS (--insecure) anybody can read and change what is sent."
    ca = existing_file(given.ssl_ca_certfile, "ssl-ca-certfile", CA)
    certificate = existing_file(given.ssl_certfile, "ssl-certfile", SERVER)
    key = private_file(given.ssl_keyfile, "ssl-keyfile", SERVER_KEY)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        server.load_cert_chain(certificate, key)
    except ssl.SSLError as error:
        raise RunError(
            f"{certificate} and {key} are not a certificate and its key ({error.reason}): use those that "
            "`quped flower keys` made together."
        ) from error
    hosts = hosts_of(certificate)
    try:
        shake_hands(server, trusting(ca), hosts[0] if hosts else "")
    except ssl.SSLCertVerificationError as error:
        raise RunError(distrust(error, f"The certificate {certificate}", ca, "")) from error
    return f"The certificate {certificate} is for {', '.join(hosts)}: nodes reach the server by these."


def look_at_server(given: argparse.Namespace) -> str:
    """Say whether the server can be reached and trusted, and has the same time."""
    host, _, port = given.superlink.rpartition(":")
    host = host.strip("[]")
    where = f"{host}:{port_of(port)}"
    if given.insecure:
        ca, connection = Path(), http.client.HTTPConnection(host, int(port), timeout=SECONDS)
    else:
        ca = existing_file(given.root_certificates, "root-certificates", CA)
        connection = http.client.HTTPSConnection(host, int(port), timeout=SECONDS, context=trusting(ca))
    try:
        before = time.time()
        connection.request("GET", "/")
        date = connection.getresponse().headers.get("Date", "")
        after = time.time()
    except ssl.SSLCertVerificationError as error:
        raise RunError(distrust(error, f"The certificate of {where}", ca, host)) from error
    except (ssl.SSLError, http.client.HTTPException) as error:
        raise RunError(
            f"{where} does not answer as a SuperLink {'without' if given.insecure else 'with'} TLS: another program "
            "has this port, or only one of server and node has --insecure."
        ) from error
    except socket.gaierror as error:
        raise RunError(f"The host '{host}' is unknown ({error.strerror}): correct --superlink.") from error
    except OSError as error:
        raise RunError(
            f"No SuperLink answers at {where}: {error.strerror or error}. Start flower-superlink, on another machine "
            "with --host 0.0.0.0, let its firewall pass the port, or correct --superlink."
        ) from error
    finally:
        connection.close()
    return f"The SuperLink at {where} answers. {compare_clocks(before, after, date)}"


def compare_clocks(before: float, after: float, date: str) -> str:
    """Say by how much this clock differs from the server's, which said the date between two times of this clock."""
    try:
        server = parsedate_to_datetime(date).timestamp()
    except ValueError:
        return "It does not tell the time."
    # The date has no fractions, and the server writes it anew every second; a busy one, later.
    least, most = before - (server + 2), after - server
    if least <= 0 <= most:
        return "The clocks agree."
    about = f"about {max(least, -most):.0f} s {'ahead of' if least > 0 else 'behind'} the server's"
    if least > SYSTEM_TIME_TOLERANCE or most < -TIMESTAMP_TOLERANCE:
        raise RunError(
            f"The clock of this machine is {about}, and Flower refuses nodes that are more than "
            f"{SYSTEM_TIME_TOLERANCE} s ahead or {TIMESTAMP_TOLERANCE} s behind: set both clocks, best by NTP."
        )
    return f"This clock is {about}, which Flower accepts."


def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext, host: str) -> None:
    """Let a client meet a server in memory. Raise if it does not trust the server's certificate."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (client.wrap_bio(down, up, server_hostname=host), server.wrap_bio(up, down, server_side=True))
    waiting = list(ends)
    while waiting:
        for end in list(waiting):
            try:
                end.do_handshake()
                waiting.remove(end)
            except ssl.SSLWantReadError:
                continue


def distrust(error: ssl.SSLCertVerificationError, what: str, ca: Path, host: str) -> str:
    """Return why a certificate is not trusted, and what to do."""
    if error.verify_code in OTHER_TIME:
        return f"{what} is not valid now ({error.verify_message}): set the clock, or make new ones."
    if error.verify_code in OTHER_HOST:
        return (
            f"{what} is not for '{host}': use a name that it is for, or move {SERVER} and {SERVER_KEY} away and make "
            f"them again with `quped flower keys ... --host {host}`."
        )
    return f"{what} was not signed by {ca} ({error.verify_message}): use the {CA} of this server's `{KEYS}`."


def trusting(ca: Path) -> ssl.SSLContext:
    """Return what a client needs to trust the certificates of an authority."""
    try:
        return ssl.create_default_context(cafile=ca)
    except ssl.SSLError as error:
        raise RunError(f"{ca} holds no certificate: use the {CA} of this server's `{KEYS}`.") from error


def existing_file(name: str | None, option: str, example: str) -> Path:
    """Return a file that an option names, if it is there."""
    if name is None:
        raise RunError(f"The command has no --{option}: name the file {example} with it.")
    path = Path(name).expanduser()
    try:
        path.open("rb").close()
    except OSError as error:
        raise RunError(
            f"{path} cannot be read: {error.strerror}. Name the file {example} with --{option}, or make it with "
            "`quped flower keys`."
        ) from error
    return path


def private_file(name: str | None, option: str, example: str) -> Path:
    """Return a file that an option names, if only its owner can read it."""
    path = existing_file(name, option, example)
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise RunError(f"{path} is a private key, and others can use it (mode {mode:o}): `chmod 600 {path}`.")
    return path


def port_of(word: str) -> int:
    """Return the number of a port."""
    if not word.isdigit() or not 0 < int(word) < 2**16:
        raise RunError(f"'{word}' is no port: give a number from 1 to {2**16 - 1}.")
    return int(word)


COMMANDS: dict[str, tuple[dict[str, str | None], list[Callable[[argparse.Namespace], str]]]] = {
    LINK: (
        {"host": "127.0.0.1", "port": "8000", "ssl-ca-certfile": None, "ssl-certfile": None, "ssl-keyfile": None},
        [look_at_certificates, look_at_port],
    ),
    NODE: (
        {
            "host": "127.0.0.1",
            "port": "9094",
            "superlink": "127.0.0.1:8000",
            "root-certificates": None,
            "auth-supernode-private-key": None,
        },
        [look_at_node_key, look_at_port, look_at_server],
    ),
}
"""The options of each command, with Flower's defaults, and what is looked at."""
