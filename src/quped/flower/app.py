"""An app of a user: a folder with a pyproject.toml, and one module with three functions."""

import importlib
import inspect
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from quped.algorithms import AnyAlgorithm
from quped.client import Client, ModelSource
from quped.errors import InvalidValueError, QupedError, check
from quped.federation import check_is_algorithm

PROJECT = "pyproject.toml"

NodeConfig = Mapping[str, Any]
"""What a node is started with: `--node-config`."""

FUNCTIONS = {"algorithm": (), "global_model": (), "client": ("node",)}
"""The functions of an app's module, and their arguments."""


@dataclass(frozen=True)
class App:
    """The three functions of an app's module."""

    module: ModuleType

    @classmethod
    def load(cls, name: str, folder: Path | None = None) -> "App":
        """Import an app's module, from a folder or from where Flower has put it, and check its functions."""
        if folder is not None:
            sys.path.insert(0, str(folder.resolve()))
            sys.modules.pop(name, None)  # another app may have a module of this name
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:
                raise InvalidValueError(f"The app's module '{name}' needs a package: {error}.") from error
            place = "in the app's folder" if folder is None else f"in {folder}"
            raise InvalidValueError(
                f"There is no module '{name}' {place}: the option 'module' must name the file with the app's functions."
            ) from error
        except Exception as error:  # whatever a user's module does
            raise InvalidValueError(
                f"The app's module '{name}' cannot be imported: {type(error).__name__}: {error}."
            ) from error
        app = cls(module)
        for function in FUNCTIONS:
            app._function(function)
        return app

    @property
    def folder(self) -> Path:
        """The folder of the module."""
        return Path(str(self.module.__file__)).parent

    def algorithm(self) -> AnyAlgorithm:
        """Return the algorithm of the federation."""
        algorithm = self._call("algorithm")
        check_is_algorithm(algorithm)
        return cast(AnyAlgorithm, algorithm)

    @property
    def global_model(self) -> ModelSource:
        """The function that makes the network of the global model."""
        return cast(ModelSource, self._function("global_model"))

    def client(self, node: NodeConfig) -> Client:
        """Return the client at a node with this configuration."""
        name = node.get("name")
        check(isinstance(name, str) and name != "", "'name' in the configuration of the node", "a text", name)
        client = self._call("client", dict(node))
        if not isinstance(client, Client):
            raise InvalidValueError(f"client(node) of {self._where} must return a Client, got {client!r:.80}.")
        check(client.name == name, f"name of the client of {self._where}", f"the node's, {name!r}", client.name)
        return client

    @property
    def _where(self) -> str:
        return f"the app's module '{self.module.__name__}'"

    def _function(self, name: str) -> Any:
        arguments = FUNCTIONS[name]
        wanted = f"{name}({', '.join(arguments)})"
        function = getattr(self.module, name, None)
        if not callable(function):
            raise InvalidValueError(f"There is no function {wanted} in {self._where}: write it.")
        try:
            inspect.signature(function).bind(*arguments)
        except TypeError as error:
            raise InvalidValueError(f"The function {name} of {self._where} must be {wanted}: {error}.") from error
        return function

    def _call(self, name: str, *arguments: Any) -> Any:
        try:
            return self._function(name)(*arguments)
        except QupedError:
            raise
        except Exception as error:  # whatever a user's function does
            raise InvalidValueError(f"{name}() of {self._where} failed: {type(error).__name__}: {error}") from error


@dataclass(frozen=True)
class Project:
    """What the pyproject.toml of an app says."""

    folder: Path
    config: dict[str, Any]
    """`[tool.flwr.app.config]`: the options of the federation."""
    nodes: dict[str, dict[str, Any]]
    """`[tool.quped.nodes.NAME]`: the nodes that take part, each with the configuration that it is simulated with."""

    @classmethod
    def read(cls, folder: Path) -> "Project":
        """Read the pyproject.toml of an app."""
        path = folder / PROJECT
        try:
            tool = tomllib.loads(path.read_text(encoding="utf-8"))["tool"]
            nodes, config = tool["quped"]["nodes"], dict(tool["flwr"]["app"].get("config", {}))
        except FileNotFoundError:
            raise InvalidValueError(
                f"{folder} holds no app: there is no {PROJECT}. Make an app with `quped flower new`."
            ) from None
        except KeyError as error:
            raise InvalidValueError(f"{path} is not of a federation: it lacks {error}.") from error
        except (TypeError, AttributeError) as error:
            raise InvalidValueError(f"{path} is not of a federation: it has other tables than an app.") from error
        except (OSError, ValueError, RecursionError) as error:  # also of numbers with thousands of digits
            raise InvalidValueError(f"{path} cannot be read: {error}.") from error
        known = isinstance(nodes, dict) and nodes and all(isinstance(node, dict) for node in nodes.values())
        check(bool(known), f"tool.quped.nodes of {path}", "a table with one table for each node", nodes)
        return cls(folder, config, {name: {**node, "name": name} for name, node in nodes.items()})
