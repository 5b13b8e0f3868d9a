"""A small app to begin with, and the commands that start it."""

import re
import shlex
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from quped.errors import InvalidValueError, RunError
from quped.flower.app import PROJECT, Project
from quped.flower.keys import CA, HOSTS, KEYS, SERVER, SERVER_KEY

NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9-]{0,38}")
"""What Flower takes as the name of an app."""
HOME = ".flwr"
"""The folder of an app in which Flower keeps its configuration."""
PORT = 8000
FIRST_NODE_PORT = 9101
"""Each node listens on a port of its own machine; several nodes on one machine need several ports."""
QUIET = "FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1"


def new_app(folder: Path) -> list[Path]:
    """Write a small app; return its files."""
    if not NAME.fullmatch(folder.name):
        raise InvalidValueError(
            f"'{folder.name}' cannot name an app: Flower wants a letter, then letters, digits and hyphens, at most 39."
        )
    if folder.exists():
        raise RunError(f"{folder} exists already: choose another name.")
    template = resources.files("quped.flower") / "templates"
    connection = f'[superlink.{connection_name(folder)}]\naddress = "{HOSTS[1]}:{PORT}"\n'
    connection += f'root-certificates = "{folder.resolve() / KEYS / CA}"\n'
    files = {
        PROJECT: (template / PROJECT).read_text().replace("NAME", folder.name).replace("PUBLISHER", "me"),
        "federation.py": (template / "federation.py").read_text(),
        ".gitignore": f"{KEYS}/\n{HOME}/\nruns/\nstate/\nlink.db\n",
        f"{HOME}/config.toml": connection,
    }
    try:
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(content)
    except OSError as error:
        raise RunError(f"{folder} cannot be written: {error.strerror}.") from error
    return [folder / name for name in files]


def connection_name(folder: Path) -> str:
    """Return how Flower's commands call the server: not as the folder, which they would take for an old app."""
    return f"{folder.name}-server"


def commands(folder: Path) -> dict[str, list[str]]:
    """Return the commands that run an app on one machine, by what they are for, ready to paste."""
    app, nodes = shlex.quote(str(folder)), Project.read(folder).nodes
    name, keys = connection_name(folder), f"{app}/{KEYS}"
    here = f"export FLWR_HOME={app}/{HOME} {QUIET}"
    return {
        "Make certificates and keys": [f"quped flower keys {app} {' '.join(nodes)}"],
        "Try the federation without servers": [f"quped flower simulate {app}"],
        "First shell, the server": [
            here,
            f"flower-superlink --database {app}/link.db --enable-supernode-auth"
            f" --ssl-ca-certfile {keys}/{CA} --ssl-certfile {keys}/{SERVER} --ssl-keyfile {keys}/{SERVER_KEY}"
            " --disable-runtime-dependency-installation",
        ],
        "Second shell, register the nodes, once": [
            here,
            *(f"flwr supernode register {keys}/{node}.pub {name} --name {node}" for node in nodes),
        ],
        "Second shell, one node each": [
            f"flower-supernode --superlink {HOSTS[1]}:{PORT} --port {FIRST_NODE_PORT + i}"
            f" --root-certificates {keys}/{CA} --auth-supernode-private-key {keys}/{node}.key"
            f" --node-config {shlex.quote(node_config(config))} &"
            for i, (node, config) in enumerate(nodes.items())
        ],
        "Third shell, the run": [here, f"flwr run {app} {name} --stream"],
        "At a node, its model as a file": [f"quped flower deploy {config['state']}" for config in nodes.values()][:1],
    }


def node_config(config: Mapping[str, Any]) -> str:
    """Return the configuration of a node as `--node-config` takes it."""

    def value(one: Any) -> str:
        return str(one).lower() if isinstance(one, bool) else f'"{one}"' if isinstance(one, str) else repr(one)

    return " ".join(f"{key}={value(one)}" for key, one in config.items())
