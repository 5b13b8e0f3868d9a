"""The engine whose clients are nodes of Flower."""

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid

from quped import _tree
from quped._evaluate import Score
from quped.algorithms import Deployed
from quped.errors import BadUpdateError, RunError, number
from quped.flower.members import Member, Members
from quped.flower.options import FlowerOptions, to_json
from quped.flower.wire import Reply, Request, flatten, read_payload, request_content, unpack
from quped.simulation import Setup
from quped.simulation.client_round import find_flaw
from quped.simulation.engines.base import average
from quped.typing import Clock

log = logging.getLogger("quped")

POLL = 0.2
"""Seconds between two looks for answers."""
LOOK = 2.0
"""Seconds between two looks for nodes."""
REMIND = 30.0
"""Seconds after which a person is told who has not answered."""
FEWEST = 3
"""Updates of which a median says something."""

ROUNDING = 1e-3
"""By how much an update that was shortened to a bound may exceed it: its numbers are rounded."""

Answer = TypeVar("Answer")


@dataclass
class Question:
    """Where one client stands while a question is open."""

    due: float = 0.0
    """When it is to be asked, or looked for, again."""
    failures: int = 0
    message: str | None = None
    """The message under way."""
    reason: str = "its node is not there"
    """Why there is no answer."""
    refused: bool = False
    absences: int = 0
    """How often its node was not there, since it was last."""


class Courier:
    """Brings questions to nodes and answers back: asks again, waits, and introduces new nodes meanwhile."""

    def __init__(self, grid: Grid, members: Members, options: FlowerOptions, fits: Callable[[Member], None]) -> None:
        """Serve these members; `fits` raises for a client that cannot take part."""
        self._grid, self._options, self._fits = grid, options, fits
        self.members = members
        self.on_admitted: Callable[[], None] = lambda: None
        self._looked = -math.inf
        self._queries: dict[str, int] = {}
        self._failures: dict[int, int] = {}
        self._problems: dict[int, str] = {}
        """Why nodes that are there cannot take part yet."""
        self._not_before: dict[int, float] = {}

    def join(self, names: Sequence[str], needed: int) -> None:
        """Wait for all clients; after some time, begin as soon as those that are needed at least are there."""
        began, told = time.monotonic(), -math.inf
        patience = self._options.join_seconds
        limit = patience if needed == len(names) else max(patience, self._options.round_seconds)
        while missing := [name for name in names if name not in self.members.known]:
            waited = time.monotonic() - began
            if waited > patience and len(names) - len(missing) >= needed:
                log.warning("The run begins without %s, which may join later.", ", ".join(missing))
                return
            if waited > limit:
                raise RunError(
                    f"After {waited:.0f} s {', '.join(missing)} have not joined: {self._told(missing)}start their "
                    "nodes, raise `join_seconds`, or set `quorum` to begin with fewer."
                )
            if waited - told > REMIND:
                told = waited
                log.info("Waiting for %s.", ", ".join(missing))
            self.introduce()
            time.sleep(POLL)

    def introduce(self) -> None:
        """Ask new nodes who they are, and admit those that have answered."""
        now = time.monotonic()
        if now - self._looked > LOOK:
            self._looked = now
            asked = set(self._queries.values())
            for node in self.members.refresh():
                if node not in asked and self._not_before.get(node, 0.0) <= now:
                    empty = Request("", 0, self._options.seed, {}, np.zeros(0, np.uint8))
                    number = self._send(node, MessageType.QUERY, request_content(empty), "", LONGEST_QUERY)
                    if number is not None:
                        self._queries[number] = node
        for message in self._pull(self._queries):
            node = self._queries.pop(message.metadata.reply_to_message_id)
            reply, reason = read(message)
            if reply is not None and self.members.admit(node, reply, self._fits) is not None:
                log.info("'%s' is here, with %d samples.", reply.values["client"], reply.values["samples"])
                self.on_admitted()
            elif reason:
                self._put_off(node, reason)

    def _told(self, missing: Sequence[str]) -> str:
        """Return the problems of nodes that are there, which come first."""
        problems = ((name, self._problems.get(self.members.registered(name) or 0)) for name in missing)
        told = [f"'{name}': {problem.rstrip('.')}" for name, problem in problems if problem]
        return f"{'; '.join(told)}. Put that right, " if told else ""

    def _put_off(self, node: int, reason: str) -> None:
        count = self._failures[node] = self._failures.get(node, 0) + 1
        wait = self._options.retry_seconds * 2 ** min(count - 1, 5)
        self._not_before[node], self._problems[node] = time.monotonic() + wait, reason
        log.warning("Node %d cannot take part yet: %s", node, reason)

    def ask(
        self,
        kind: str,
        content: RecordDict,
        names: Sequence[str],
        accept: Callable[[str, Reply], Answer],
        group: str,
        needed: int,
    ) -> tuple[dict[str, Answer], dict[str, str]]:
        """Ask clients; return the answers that were accepted, and why the others have none.

        Those that fail are asked again. Those that are not there are waited for as long as they are needed.
        """
        answers: dict[str, Answer] = {}
        questions = {name: Question() for name in names}
        began = told = time.monotonic()
        end = began + self._options.round_seconds
        while (now := time.monotonic()) < end and self._hopes(answers, questions, needed):
            self.introduce()
            self._ask_those_due(kind, content, answers, questions, group, end)
            under_way = {q.message: name for name, q in questions.items() if q.message is not None}
            for message in self._pull(under_way):
                name = under_way[str(message.metadata.reply_to_message_id)]
                self._take(name, message, questions[name], answers, accept)
            if now - told > REMIND:
                told = now
                waiting = [name for name in names if name not in answers]
                log.info("%s: %s answered, waiting for %s.", group, listed(answers), listed(waiting))
            time.sleep(POLL)
        return answers, {name: questions[name].reason for name in names if name not in answers}

    def _hopes(self, answers: Mapping[str, Any], questions: Mapping[str, Question], needed: int) -> bool:
        """Say whether it is worth waiting: for those that may still answer, and those without whom it cannot go on."""
        waiting = [question for name, question in questions.items() if name not in answers]
        hopeful = [q for q in waiting if not q.refused and q.failures <= self._options.retries]
        if len(answers) < needed:
            return len(answers) + len(hopeful) >= needed
        return any(q.absences <= self._options.retries for q in hopeful)

    def _ask_those_due(
        self,
        kind: str,
        content: RecordDict,
        answers: Mapping[str, Any],
        questions: Mapping[str, Question],
        group: str,
        end: float,
    ) -> None:
        now = time.monotonic()
        for name, question in questions.items():
            if name in answers or question.refused or question.message is not None or question.due > now:
                continue
            node = self.members.node(name)
            if node is None:
                question.absences += 1
                self._put_back(question, "its node is not there")
                continue
            question.absences = 0
            question.message = self._send(node, kind, content, group, end - now)
            if question.message is None:
                question.failures += 1
                self._put_back(question, "its node cannot be reached")

    def _put_back(self, question: Question, reason: str) -> None:
        question.reason = reason
        question.due = time.monotonic() + self._options.retry_seconds

    def _take(
        self,
        name: str,
        message: Message,
        question: Question,
        answers: dict[str, Answer],
        accept: Callable[[str, Reply], Answer],
    ) -> None:
        """Take an answer, or note why it is none."""
        question.message = None
        reply, reason = read(message)
        if reply is None:
            log.warning("'%s' failed: %s", name, reason)
            question.failures += 1
            self._put_back(question, reason)
            return
        try:
            answers[name] = accept(name, reply)
        except BadUpdateError as error:
            log.warning("The answer of '%s' is refused: %s.", name, error)
            question.reason, question.refused = str(error), True

    def _send(self, node: int, kind: str, content: RecordDict, group: str, seconds: float) -> str | None:
        message = Message(content, node, kind, ttl=max(1.0, seconds), group_id=group)
        (number,) = self._grid.push_messages([message])
        return number or None

    def _pull(self, numbers: Mapping[str, object]) -> list[Message]:
        if not numbers:
            return []
        return [m for m in self._grid.pull_messages(list(numbers)) if m.metadata.reply_to_message_id in numbers]


LONGEST_QUERY = 600.0
"""Seconds that an introduction may take."""


def read(message: Message) -> tuple[Reply | None, str]:
    """Return the reply in a message; if there is none, the reason."""
    if message.has_error():
        return None, f"Flower reports error {message.error.code}: {message.error.reason or 'without a reason'}"
    try:
        reply = unpack(message.content)
    except (ValueError, TypeError, KeyError) as error:
        return None, f"it sent something else than an answer: {error}"
    if "problem" in reply.values:
        return None, str(reply.values["problem"])[:1000]
    return reply, ""


def listed(names: Sequence[str] | Mapping[str, Any]) -> str:
    """Return names as a person lists them."""
    return ", ".join(names) or "nobody"


class Update(NamedTuple):
    """A client's round, checked."""

    payload: Any
    values: dict[str, Any]
    norm: float
    """The length of the difference to the shared state."""

    @property
    def loss(self) -> float:
        """The mean loss of the round."""
        return float(self.values["loss"])

    @property
    def seconds(self) -> float:
        """How long its node says that the round took; NaN if it does not."""
        return number(self.values.get("seconds"))

    @property
    def told(self) -> str:
        """What a person is told of it."""
        return f"{self.loss:.3f} in {self.seconds:.2f} s"


@dataclass
class GridEngine:
    """Asks nodes for their clients' rounds. Personal states stay with them."""

    setup: Setup
    """Of the next round: it has more clients after one has joined late."""
    courier: Courier
    options: FlowerOptions
    run: str
    """The run's own number."""
    answered: dict[str, str] = field(default_factory=dict)
    """Who took part in the last round, with the loss and the seconds that it took."""
    sizes: dict[str, dict[str, int]] = field(default_factory=dict)
    """Bytes of each client's model, after the last round."""
    seconds: dict[int, float] = field(default_factory=dict)
    """How long each client of the last round took, if its node says so."""
    _scores: dict[str, Score | None] = field(default_factory=dict)
    """Of clients whose model is the same until they train again."""
    _clock: Clock | None = None

    def run_round(self, shared: Any, clock: Clock, chosen: Sequence[int]) -> tuple[Any, float]:
        """Ask the chosen clients for a round; return the mean of their payloads, in this order, and the mean loss."""
        self._clock = clock
        names = [self.setup.clients[i].name for i in chosen]
        needed = min(self.options.quorum or len(names), len(names))
        group = f"Round {clock.round + 1}"
        content = request_content(self._request(shared, clock))
        sent = dict(_tree.items(shared))

        def accept(name: str, reply: Reply) -> Update:
            return self._check(name, reply, sent, clock)

        updates, reasons = self.courier.ask(MessageType.TRAIN, content, names, accept, group, needed)
        reasons |= self._refuse_longest(updates)
        told = "; ".join(f"'{name}': {reason.rstrip('.')}" for name, reason in reasons.items())
        if len(updates) < needed:
            raise RunError(
                f"{group} has {len(updates)} of the {needed} updates that it needs. {told}. Put that right and run the "
                "app again: the run continues from its record. With a lower `quorum` it goes on without them."
            )
        if reasons:
            log.warning("%s goes on without %s", group, f"{told}.")
        for name in names:
            self._scores.pop(name, None)
        for name, update in updates.items():
            self._keep(name, update.values)
        taken = {i: updates[name].seconds for i, name in zip(chosen, names, strict=True) if name in updates}
        self.seconds = {i: seconds for i, seconds in taken.items() if 0 <= seconds < math.inf}
        self.answered = {name: updates[name].told for name in names if name in updates}
        return average(((updates[name].payload, updates[name].loss) for name in self.answered), clock)

    def evaluate(self, shared: Any) -> dict[int, Score]:
        """Return the scores that came with the round; ask those clients whose model the server has changed since."""
        clock = self._clock
        assert clock is not None, "a round comes first"
        there = [client.name for client in self.setup.clients if self.courier.members.node(client.name) is not None]
        if asked := [name for name in there if name not in self._scores]:
            content = request_content(self._request(shared, clock))

            def accept(name: str, reply: Reply) -> dict[str, Any]:
                check_sender(name, reply, self.run, clock.round)
                score_in(reply.values)
                return reply.values

            group = f"Evaluation {clock.round + 1}"
            answers, reasons = self.courier.ask(MessageType.EVALUATE, content, asked, accept, group, 0)
            for name, values in answers.items():
                self._keep(name, {**values, "final": False})
            for name, reason in reasons.items():
                log.warning("'%s' is not evaluated: %s.", name, reason.rstrip("."))
            scores = {name: score_in(values) for name, values in answers.items()}
        else:
            scores = {}
        scores |= self._scores
        numbered = ((i, scores.get(client.name)) for i, client in enumerate(self.setup.clients))
        return {i: score for i, score in numbered if score is not None}

    def deploy(self, shared: Any, client: int) -> Deployed:
        """Refuse: a client's model is at its node."""
        name = self.setup.clients[client].name
        raise RunError(f"The model of '{name}' is at its node: write it there with `quped flower deploy`.")

    def states(self) -> dict[int, Any]:
        """Return nothing: personal states stay with the nodes."""
        return {}

    def restore(self, states: Mapping[int, Any]) -> None:
        """Do nothing: the nodes have their states."""

    def close(self) -> None:
        """Do nothing: Flower closes its connections."""

    def _request(self, shared: Any, clock: Clock) -> Request:
        options = to_json(self.setup.options)
        return Request(self.run, clock.round, self.setup.seed, options, flatten(shared))

    def _keep(self, name: str, values: Mapping[str, Any]) -> None:
        if values.get("final") is True:
            self._scores[name] = score_in(values)
        found = {key: values[key] for key in BYTES if type(values.get(key)) is int}
        if len(found) == len(BYTES):
            self.sizes[name] = found

    def _check(self, name: str, reply: Reply, sent: Mapping[str, torch.Tensor], clock: Clock) -> Update:
        """Return a client's update; raise a BadUpdateError that says why it cannot be used."""
        check_sender(name, reply, self.run, clock.round)
        loss = reply.values.get("loss")
        if not isinstance(loss, float) or not math.isfinite(loss):
            raise BadUpdateError(f"its training loss is {loss!r:.80}: lower the learning rate lr")
        score_in(reply.values)
        (template,) = self.setup.templates.payload.values()  # stand-ins form one group
        leaves = read_payload(reply, template)
        if flaw := find_flaw(leaves, template):
            raise BadUpdateError(flaw)
        parts = [(leaf.double() - sent[path].double()).norm() for path, leaf in leaves.items() if path in sent]
        norm = float(torch.stack(parts).norm()) if parts else 0.0
        most = self.setup.options.max_update_norm
        if most is not None and norm > most * (1 + ROUNDING):
            raise BadUpdateError(f"its update has the length {norm:g}, above max_update_norm, {most:g}")
        return Update(_tree.unflatten(template, leaves, ""), reply.values, norm)

    def _refuse_longest(self, updates: dict[str, Update]) -> dict[str, str]:
        """Remove updates that are far longer than the others; return why."""
        middle = float(np.median([update.norm for update in updates.values()])) if updates else 0.0
        bound = self.options.max_ratio * middle
        if len(updates) < FEWEST or bound == 0:
            return {}
        reasons = {
            name: f"its update has the length {update.norm:g}, above {self.options.max_ratio:g} (max_ratio) times the "
            f"median of the round, {middle:g}"
            for name, update in updates.items()
            if update.norm > bound
        }
        for name, reason in reasons.items():
            log.warning("The answer of '%s' is refused: %s.", name, reason)
            del updates[name]
        return reasons


BYTES = ("bytes_file", "bytes_packed", "bytes_float32")


def check_sender(name: str, reply: Reply, run: str, round_: int) -> None:
    """Raise unless a reply is of the client that was asked, and for what it was asked."""
    for key, expected in (("client", name), ("run", run), ("round", round_)):
        if reply.values.get(key) != expected:
            raise BadUpdateError(f"its {key} is {reply.values.get(key)!r:.80}, not {expected!r}")


def score_in(values: Mapping[str, Any]) -> Score | None:
    """Return the score in a reply, if there is one."""
    if "accuracy" not in values:
        return None
    score = Score(number(values["accuracy"]), number(values.get("own_classes")))
    if not all(0 <= share <= 1 for share in score[:2]):
        raise BadUpdateError(f"its accuracy is {values['accuracy']!r:.80}")
    return score
