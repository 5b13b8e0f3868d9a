"""A node: it answers the server's questions with the client that the app gives it."""

import json
import logging
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Context, Message, MessageType, RecordDict

from quped import _tree
from quped._evaluate import Score
from quped.algorithms import AnyAlgorithm, Deployed
from quped.errors import QupedError, RunError, check
from quped.export import PackedModel, to_bytes
from quped.flower.app import App, NodeConfig
from quped.flower.options import FlowerOptions, parse
from quped.flower.store import FIRST, Held, Store
from quped.flower.wire import Reply, Request, flatten, form_of, pack, read_request, unflatten
from quped.models import FunctionalNetwork
from quped.records import versions
from quped.simulation import Setup, SimClient
from quped.simulation.client_round import deployed_model, evaluate_model, initial_personal, one_thread, run_client
from quped.simulation.files import packed_model
from quped.simulation.options import training_options
from quped.simulation.validation import validate_clients

log = logging.getLogger("quped")

NOTHING = np.zeros(0, np.uint8)
"""The tensors of an answer that has none."""


def reply_to(message: Message, context: Context) -> RecordDict:
    """Return the content of the answer to a message. What a person can put right is said here, and to the server."""
    began = time.monotonic()
    try:
        node = Node.start(context.run_config, context.node_config)
        request = read_request(message.content)
        with one_thread():
            values, flat = node.actions[message.metadata.message_type](request)
    except QupedError as error:
        log.error("error: %s", error)
        return pack({"problem": str(error)}, NOTHING)
    seconds = {"loading": round(node.loaded - began, 4), "seconds": round(time.monotonic() - node.loaded, 4)}
    return pack(values | seconds, flat)


@dataclass
class Node:
    """A client, with the folder of its states."""

    app: App
    config: NodeConfig
    options: FlowerOptions
    state: Path
    loaded: float = field(default_factory=time.monotonic)
    """When the app, the data and the network were there, and a round could begin."""

    @classmethod
    def start(cls, run_config: NodeConfig, node_config: NodeConfig, app: Path | None = None) -> "Node":
        """Return a node with these configurations, and the app that it is told to run."""
        options, _ = parse(run_config)
        state = node_config.get("state")
        check(isinstance(state, str) and state != "", "'state' in --node-config", "the path of a folder", state)
        return cls(App.load(options.module, app), node_config, options, Path(str(state)).expanduser())

    @property
    def actions(self) -> dict[str, Callable[[Request], Reply]]:
        """What is done for each type of message."""
        return {MessageType.QUERY: self.introduce, MessageType.TRAIN: self.train, MessageType.EVALUATE: self.evaluate}

    def introduce(self, request: Request) -> Reply:
        """Say who this is, and what a schedule follows from."""
        (client,), _ = self._validate(request.seed)
        inputs = client.train.batch(torch.zeros(2, dtype=torch.long)).inputs
        shapes = [[str(part.dtype).removeprefix("torch."), *part.shape] for part in inputs]
        params = (*client.network.initial.params.values(), *client.network.frozen.values())
        values = {
            "client": client.name,
            "samples": len(client.train),
            "network": client.network.name,
            "bits": json.dumps(dict(client.spec.bits)),
            "parameters": sum(value.numel() for value in params),
            "inputs": json.dumps(shapes),
            "machine": json.dumps({**versions(), "cpu": processor()}),
        }
        return Reply(values, NOTHING)

    def train(self, request: Request) -> Reply:
        """Run a round, keep what came out, and answer. If the round was asked for before, answer the same."""
        setup, store = self._open(request)
        client, templates = setup.clients[0], setup.templates
        with store.locked(self.options.round_seconds):
            self._claim(store, client, request)
            again = store.held(request.round)
            if again is not None and again.request == request.digest:
                return Reply(again.values, flatten(again.tree("payload", templates.payload[client.spec.group])))
            shared = unflatten(request.shared, templates.shared, "shared state from the server")
            before = store.before(request.round)
            if before is None:
                personal = initial_personal(setup, client, shared)
            else:
                personal = before.tree("personal", templates.personal[client.spec.group])
            clock = setup.schedule.clock(request.round)
            personal, payload, loss = run_client(setup, client, shared, personal, clock)
            values = {"client": client.name, "run": request.run, "round": request.round, "loss": loss}
            values |= {"form": form_of(payload), **self._scores(setup, client, shared, personal, request.round)}
            tensors = dict(_tree.items(personal, "personal")) | dict(_tree.items(payload, "payload"))
            tensors |= dict(_tree.items(shared, "shared"))
            base = FIRST if before is None else before.round
            store.save(Held(request.round, base, request.digest, values, tensors))
        return Reply(values, flatten(payload))

    def evaluate(self, request: Request) -> Reply:
        """Evaluate the client's model with the shared state of now, and keep that: a file may be made from it."""
        setup, store = self._open(request)
        client, templates = setup.clients[0], setup.templates
        shared = unflatten(request.shared, templates.shared, "shared state from the server")
        values: dict[str, Any] = {"client": client.name, "run": request.run, "round": request.round}
        with store.locked(self.options.round_seconds):
            if not store.rounds():
                model = deployed_model(setup, client, shared, initial_personal(setup, client, shared))
                return Reply(values | score_values(score_of(setup, client, model)), NOTHING)
            held = store.latest()
            tensors = {path: leaf for path, leaf in held.tensors.items() if not path.startswith("shared")}
            held = held._replace(tensors=tensors | dict(_tree.items(shared, "shared")))
            store.save(held)
        model = deployed(setup, client, held)
        values |= score_values(score_of(setup, client, model))
        if request.round == setup.schedule.rounds - 1:
            values |= sizes(packed_model(setup, client, model, values.get("accuracy")))
        return Reply(values, NOTHING)

    def setup(self, seed: int, options: Mapping[str, Any]) -> Setup:
        """Return what the client's rounds follow from."""
        # One client is here, however many are sampled.
        chosen = training_options(None, {**options, "clients_per_round": None})
        clients, shared = self._validate(seed)
        return Setup.of(self._algorithm, clients, shared, chosen, seed)

    @cached_property
    def _algorithm(self) -> AnyAlgorithm:
        return self.app.algorithm()

    def _validate(self, seed: int) -> tuple[list[SimClient], FunctionalNetwork]:
        client, shared = self.app.client(self.config), self.app.global_model
        return validate_clients([client], self._algorithm, shared, seed, server_networks=False)

    def _open(self, request: Request) -> tuple[Setup, Store]:
        setup = self.setup(request.seed, request.options)
        if not 0 <= request.round < setup.schedule.rounds:
            raise RunError(f"The server asks for round {request.round + 1} of {setup.schedule.rounds}.")
        self.loaded = time.monotonic()
        return setup, Store(self.state, check_run(request.run))

    def _claim(self, store: Store, client: SimClient, request: Request) -> None:
        about: dict[str, Any] = {"client": client.name, "app": str(self.app.folder), "module": self.options.module}
        about |= {"node": dict(self.config), "seed": request.seed, "options": request.options}
        store.claim(about)

    def _scores(self, setup: Setup, client: SimClient, shared: Any, personal: Any, round_: int) -> dict[str, Any]:
        """Return the score of a round that is to be evaluated, if the server's update cannot change the model."""
        if not setup.schedule.evaluates(round_):
            return {}
        model = deployed_model(setup, client, shared, personal)
        other = deployed_model(setup, client, _tree.map_leaves(changed, shared), personal)
        if not same(model, other):
            return {}
        values = {"final": True, **score_values(score_of(setup, client, model))}
        if round_ == setup.schedule.rounds - 1:
            values |= sizes(packed_model(setup, client, model, values.get("accuracy")))
        return values


def changed(leaf: torch.Tensor) -> torch.Tensor:
    """Return another tensor of this form."""
    return ~leaf if leaf.dtype == torch.bool else leaf + 1


def same(a: object, b: object) -> bool:
    """Say whether two trees hold the same numbers."""
    pairs = zip(_tree.items(a), _tree.items(b), strict=True)
    return all(torch.equal(left, right) for (_, left), (_, right) in pairs)


def deployed(setup: Setup, client: SimClient, held: Held) -> Deployed:
    """Return the model of a client from what its node keeps."""
    templates = setup.templates
    personal = held.tree("personal", templates.personal[client.spec.group])
    return deployed_model(setup, client, held.tree("shared", templates.shared), personal)


def score_of(setup: Setup, client: SimClient, model: Deployed) -> Score | None:
    """Return how well a model does on the client's test samples; None without any."""
    if client.test is None:
        return None
    return evaluate_model(setup, client, client.spec.network, model.state, client.test)


def score_values(score: Score | None) -> dict[str, float]:
    """Return a score as values of a reply."""
    return {} if score is None else {"accuracy": score.accuracy, "own_classes": score.own_classes}


def sizes(model: PackedModel) -> dict[str, int]:
    """Return the sizes of a model, which the server's result names."""
    return {"bytes_file": len(to_bytes(model)), "bytes_packed": model.floor, "bytes_float32": model.float_bytes}


def check_run(run: str) -> str:
    """Return the number of a run, if it can name a folder."""
    check(run.isalnum() and run.isascii(), "number of the run", "letters and digits", run)
    return run


def processor() -> str:
    """Return the kind of CPU: others may round differently."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
