"""`quped flower` as a user types it, and the page that explains it."""

import re
import shlex
import stat
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest
from cryptography import x509
from helpers.flower_servers import free_port
from helpers.program import fails, quped

from quped.errors import InvalidValueError
from quped.flower.app import PROJECT, Project
from quped.flower.keys import hosts_of, make_keys
from quped.flower.new import commands, new_app
from quped.flower.options import FlowerOptions

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "federate.md"


def test_the_page_shows_the_commands_that_are_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = quped("flower", "new", "my-federation", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    printed = [line for lines in commands(Path("my-federation")).values() for line in lines]
    assert set(printed) <= set(done.stdout.splitlines())
    shown = [line for block in blocks() if not block.startswith("$ ") for line in block.split("\n")]
    assert [line for line in printed if line not in shown] == []
    assert {line for line in shown if line} - set(printed) == {
        "pip install 'quped[flower]'",
        "quped flower new my-federation",
    }


def blocks() -> list[str]:
    """Return the blocks of code of the page."""
    return re.findall(r"^```\n(.*?)^```$", PAGE.read_text(), re.M | re.S)


def test_the_page_shows_what_a_check_prints(tmp_path: Path) -> None:
    new_app(tmp_path / "my-federation")
    make_keys(tmp_path / "my-federation", ["phone"])
    (block,) = (block for block in blocks() if block.startswith("$ quped flower check "))
    for port in ("8000", "9101"):  # which may be in use here
        block = block.replace(port, str(free_port()))
    first, *printed = block.splitlines()
    done = quped(*shlex.split(first.removeprefix("$ quped")), cwd=tmp_path)
    assert (done.stdout + done.stderr).splitlines() == printed


def test_the_page_lists_the_options() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `(.*?)` \| (.*) \|$", PAGE.read_text(), re.M)
    assert rows == [
        (one.name, str(one.default) if not isinstance(one.default, str) else f'"{one.default}"', one.metadata["help"])
        for one in fields(FlowerOptions)
    ]


@pytest.mark.parametrize(
    "content",
    [b"\xff", b"a = " + b"9" * 5000, b"a = " + b"[" * 50_000, b"tool = 1", b"[tool]\nflwr.app = 1\nquped.nodes.a = {}"],
)
def test_a_damaged_project_is_told_in_a_sentence(content: bytes, tmp_path: Path) -> None:
    (tmp_path / PROJECT).write_bytes(content)
    with pytest.raises(InvalidValueError, match=rf"{PROJECT} (cannot be read|is not of a federation): "):
        Project.read(tmp_path)


def test_an_app_is_never_overwritten(tmp_path: Path) -> None:
    new_app(tmp_path / "app")
    fails(quped("flower", "new", "app", cwd=tmp_path), "exists already")
    fails(quped("flower", "new", "1app", cwd=tmp_path), "cannot name an app")
    assert set(tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text())["tool"]["quped"]["nodes"]) == {
        "phone",
        "tablet",
        "laptop",
    }


def test_keys_are_private_and_never_overwritten(tmp_path: Path) -> None:
    new_app(tmp_path / "app")
    done = quped("flower", "keys", "app", "phone", "--host", "example.org", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    keys = tmp_path / "app" / "keys"
    before = {path: path.read_bytes() for path in keys.iterdir()}
    assert {path.name for path in before} == {"ca.key", "ca.pem", "server.key", "server.pem", "phone.key", "phone.pub"}
    for path in keys.glob("*.key"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert hosts_of(keys / "server.pem") == ["localhost", "127.0.0.1", "::1", "example.org"]
    done = quped("flower", "keys", "app", "phone", "tablet", "--host", "example.org", cwd=tmp_path)
    assert "tablet.key" in done.stdout
    assert {path: path.read_bytes() for path in before} == before
    fails(quped("flower", "keys", "app", "phone", "--host", "other.org", cwd=tmp_path), "is not for other.org")
    fails(quped("flower", "keys", "app", "../phone", cwd=tmp_path), "one that can name a file")
    fails(quped("flower", "keys", "nowhere", "phone", cwd=tmp_path), "There is no folder")
    certificate = x509.load_pem_x509_certificate((keys / "server.pem").read_bytes())
    assert "CA=False" in str(certificate.extensions) or "ca=False" in str(list(certificate.extensions))
    assert make_keys(tmp_path / "app", ["phone"]) == []


def test_a_simulation_of_the_new_app(tmp_path: Path) -> None:
    new_app(tmp_path / "app")
    done = quped(
        "flower", "simulate", "app", *("--set", "epochs=1", "--set", "local_steps=5", "--out", "models"), cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert {path.name for path in (tmp_path / "models").iterdir()} == {"phone.quped", "tablet.quped", "laptop.quped"}
    fails(quped("flower", "simulate", "app", "--set", "epoch=1", cwd=tmp_path), "no option 'epoch'", "'epochs'")
    fails(quped("flower", "simulate", "app", "--set", "module=nothing", cwd=tmp_path), "no module 'nothing'")
    fails(quped("flower", "simulate", "nowhere", cwd=tmp_path), "holds no app")


def test_a_folder_without_state_is_named(tmp_path: Path) -> None:
    fails(quped("flower", "deploy", "nowhere", cwd=tmp_path), "holds no state of a node")
