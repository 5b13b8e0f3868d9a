"""Certificates and keys of a federation: what TLS and Flower's authentication of nodes need."""

import ipaddress
import os
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from quped.errors import RunError, check

KEYS = "keys"
"""The folder of an app with certificates and keys. Flower does not send it to anybody."""
CA, CA_KEY, SERVER, SERVER_KEY = "ca.pem", "ca.key", "server.pem", "server.key"
HOSTS = ("localhost", "127.0.0.1", "::1")
"""Where the server can always be reached on its own machine."""
DAYS = 3650
SKEW = timedelta(days=1)
"""Certificates are valid from yesterday on: the clock of a node may be slow."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def make_keys(app: Path, nodes: Sequence[str], hosts: Sequence[str] = ()) -> list[Path]:
    """Make what is missing: a certificate authority, the server's certificate, a key pair per node; return the files.

    Nothing that exists is changed.
    """
    for node in nodes:
        reserved = {"ca", "server"}
        check(bool(NAME.fullmatch(node)) and node not in reserved, "name of a node", "one that can name a file", node)
    folder = app / KEYS
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        made = make_certificates(folder, (*HOSTS, *hosts), asked=hosts)
        for node in nodes:
            made += make_pair(folder, node)
    except OSError as error:
        raise RunError(f"{error.filename or folder} cannot be written: {error.strerror}.") from error
    return made


def make_certificates(folder: Path, hosts: Sequence[str], asked: Sequence[str]) -> list[Path]:
    """Make the authority and the server's certificate, unless they are there."""
    if (folder / SERVER).exists():
        if missing := [host for host in asked if host not in hosts_of(folder / SERVER)]:
            raise RunError(
                f"The server's certificate {folder / SERVER} is not for {', '.join(missing)}: move {SERVER} and "
                f"{SERVER_KEY} away and make them again with every --host."
            )
        return []
    made = []
    if not (folder / CA_KEY).exists():
        key = ec.generate_private_key(ec.SECP384R1())
        write_private(folder / CA_KEY, pem(key))
        write_new(folder / CA, certificate(key, key, "quped federation", None).public_bytes(PEM))
        made += [folder / CA_KEY, folder / CA]
    authority = serialization.load_pem_private_key((folder / CA_KEY).read_bytes(), None)
    if not isinstance(authority, ec.EllipticCurvePrivateKey):
        raise RunError(f"{folder / CA_KEY} is no key of ours: move it away.")
    key = ec.generate_private_key(ec.SECP384R1())
    write_private(folder / SERVER_KEY, pem(key))
    write_new(folder / SERVER, certificate(key, authority, "quped server", hosts).public_bytes(PEM))
    return [*made, folder / SERVER_KEY, folder / SERVER]


def make_pair(folder: Path, node: str) -> list[Path]:
    """Make the key pair of a node, in OpenSSH's format, unless it is there."""
    private, public = folder / f"{node}.key", folder / f"{node}.pub"
    if private.exists() or public.exists():
        return []
    key = ec.generate_private_key(ec.SECP384R1())
    openssh = serialization.PrivateFormat.OpenSSH
    write_private(private, key.private_bytes(PEM, openssh, serialization.NoEncryption()))
    words = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    write_new(public, words + f" {node}\n".encode())
    return [private, public]


PEM = serialization.Encoding.PEM


def pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return a private key as PEM."""
    return key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


def certificate(
    key: ec.EllipticCurvePrivateKey, issuer: ec.EllipticCurvePrivateKey, name: str, hosts: Sequence[str] | None
) -> x509.Certificate:
    """Return the certificate of a server with these hosts; without hosts, that of an authority."""
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "quped federation")]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(now + timedelta(days=DAYS))
        .add_extension(x509.BasicConstraints(ca=hosts is None, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer.public_key()), critical=False)
    )
    if hosts is None:
        builder = builder.add_extension(key_usage(signs_certificates=True), critical=True)
    else:
        builder = builder.add_extension(key_usage(signs_certificates=False), critical=True)
        builder = builder.add_extension(x509.SubjectAlternativeName([host_name(h) for h in hosts]), critical=False)
    return builder.sign(issuer, hashes.SHA384())


def key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    """Return what a key may be used for."""
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def host_name(host: str) -> x509.GeneralName:
    """Return a host, by its address or its name, as certificates have it."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        return x509.DNSName(host)
    except ValueError as error:
        raise RunError(f"'{host}' is neither the address nor the name of a host: {error}.") from error


def hosts_of(path: Path) -> list[str]:
    """Return the hosts that a certificate is for."""
    try:
        found = x509.load_pem_x509_certificate(path.read_bytes())
    except ValueError as error:
        raise RunError(f"{path} is no certificate ({error}): move it away.") from error
    kinds = [extension.value for extension in found.extensions]
    return [str(name.value) for kind in kinds if isinstance(kind, x509.SubjectAlternativeName) for name in kind]


def write_private(path: Path, content: bytes) -> None:
    """Write a new file that only its owner can read."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


def write_new(path: Path, content: bytes) -> None:
    """Write a file that must not exist."""
    with path.open("xb") as file:
        file.write(content)
