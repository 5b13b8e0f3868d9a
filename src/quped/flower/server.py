"""The server: it keeps the shared state and a record of the run, and asks the nodes for their rounds."""

import logging
import secrets
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from flwr.serverapp import Grid

from quped._evaluate import Evaluation, over_clients
from quped.algorithms import AnyAlgorithm
from quped.client import Client
from quped.errors import QupedError, RunError
from quped.experiments.run import Recorder, point_of
from quped.export import PackedModel, to_bytes
from quped.federation import Federation
from quped.flower.app import App, Project
from quped.flower.engine import Courier, GridEngine
from quped.flower.members import Member, Members, StandIn, warn_of_differences
from quped.flower.options import parse, resolve, seconds_left, to_json
from quped.progress import status
from quped.records import RunRecord, exclusive, holds_run, plain, versions, write_json
from quped.result import FORMAT
from quped.simulation import Round, Setup, TrainingOptions
from quped.simulation.checkpoint import Checkpointer, identity, load, recorded_curve
from quped.simulation.files import file_info
from quped.simulation.fit import History
from quped.simulation.loop import Observer, simulate
from quped.simulation.options import training_options
from quped.typing import ModelState

log = logging.getLogger("quped")

NODES = "nodes.json"
"""In the record: what every node said of itself."""
GLOBAL = "global"
"""The name of the global model's file in the record."""


def serve(grid: Grid, run_config: Mapping[str, Any]) -> None:
    """Run a federation, from its record if there is one, to its end."""
    with told_by_lines():
        try:
            Server(grid, run_config).run()
        except QupedError as error:
            log.error("error: %s", error)
            raise


@contextmanager
def told_by_lines() -> Iterator[None]:
    """Print what happens, and warnings, as lines: Flower brings them to whoever follows the run."""
    handler = logging.StreamHandler(sys.stdout)
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = lambda message, *_, **__: log.warning("note: %s", message)
        try:
            yield
        finally:
            log.removeHandler(handler)


@dataclass(frozen=True)
class Begun:
    """What a run follows from, as its record has it."""

    run: str
    """Its number."""
    training: TrainingOptions
    """From which every node gets the same schedule."""
    inputs: Sequence[Sequence[Any]]
    """The form of the clients' inputs."""
    names: Sequence[str]
    """Of the clients that it began with."""
    late: dict[str, int] = field(default_factory=dict)
    """The clients that joined it later, each with its first round."""

    def names_in(self, round_: int) -> list[str]:
        """Return the clients that a round can choose from."""
        return sorted({*self.names, *(name for name, first in self.late.items() if first <= round_)})


class Server:
    """One run of a federation."""

    def __init__(self, grid: Grid, run_config: Mapping[str, Any]) -> None:
        """Load the app, and check its options."""
        self.options, self._asked = parse(run_config)
        app = App.load(self.options.module)
        self._algorithm: AnyAlgorithm = app.algorithm()
        self._global_model = app.global_model
        self._names = sorted(Project.read(app.folder).nodes)
        members = Members(grid, self._names, newcomers=self.options.newcomers)
        self._courier = Courier(grid, members, self.options, self._check_fit)

    def run(self) -> None:
        """Run all rounds, and write the result."""
        folder = Path(self.options.record).expanduser()
        with exclusive(folder):
            begun = self._read(folder)
            names = self._names if begun is None else sorted({*begun.names, *begun.late})
            self._courier.members.expect(names)
            needed = min(self.options.quorum or len(names), len(names))
            self._courier.join(names, needed)
            if begun is None:
                begun = self._begin(folder, self._courier.members.known)
            record = RunRecord(folder)
            self._note_members(folder)
            self._courier.on_admitted = lambda: self._note_members(folder)
            self._train(record, begun)

    def _check_fit(self, member: Member) -> None:
        """Raise if the global model cannot run on a client's inputs."""
        self._federation([member.name], member.inputs)

    def _federation(self, names: Sequence[str], inputs: Sequence[Sequence[Any]]) -> Federation:
        """Return a federation in which the clients have stand-ins for their data, and the global network."""
        clients = [Client(name, StandIn(inputs), None, self._global_model) for name in names]
        return Federation(clients, self._algorithm, self._global_model, self.options.seed)

    def _read(self, folder: Path) -> Begun | None:
        """Return the run that a folder holds, if it can be continued."""
        if not holds_run(folder):
            return None
        record = RunRecord(folder)
        if record.finished() is not None:
            raise RunError(f"{folder} holds a run that is finished: name another folder with the option `record`.")
        config = record.read_config()
        if not config.keys() >= {"run", "asked", "seed", "nodes", "training", "inputs"}:
            raise RunError(f"{folder} holds another kind of run: name another folder with the option `record`.")
        former = config["nodes"]
        # Names may be added: their nodes join late.
        nodes = former if set(former) <= set(self._names) else self._names
        mine = {"asked": plain(to_json(self._asked)), "seed": self.options.seed, "nodes": nodes}
        for what, value in mine.items():
            if config[what] != value:
                raise RunError(
                    f"{folder} holds a run with other {what}, {config[what]!r:.200} instead of {value!r:.200}: name "
                    "another folder with the option `record`, or continue with the former ones."
                )
        log.info("Continuing the run in %s after round %d.", folder, record.checkpoints.rounds())
        training = training_options(None, config["training"])
        return Begun(config["run"], training, config["inputs"], former, config.get("late", {}))

    def _begin(self, folder: Path, members: Mapping[str, Member]) -> Begun:
        """Fix what the run follows from, and begin its record."""
        sizes = [member.samples for member in members.values()]
        quantizes = any(member.bits for member in members.values())
        training = resolve(self._asked, sizes, len(self._names), quantizes=quantizes)
        first = members[min(members)]
        record = RunRecord.create(folder)
        begun = Begun(secrets.token_hex(8), training, first.inputs, self._names)
        record.config(
            {
                "format": FORMAT,
                "run": begun.run,
                "algorithm": {"name": self._algorithm.name, **asdict(self._algorithm)},
                "seed": self.options.seed,
                "nodes": self._names,
                "asked": to_json(self._asked),
                "training": to_json(training),
                "inputs": first.inputs,
            }
        )
        return begun

    def _note_members(self, folder: Path) -> None:
        """Write what the nodes said of themselves, and warn if they differ."""
        members = self._courier.members.known
        write_json(folder / NODES, {name: asdict(member) for name, member in members.items()})
        warn_of_differences(members)

    def _setup(self, begun: Begun, names: Sequence[str]) -> Setup:
        """Return the setup of rounds with these clients."""
        training = begun.training
        if self._asked.clients_per_round is None:
            training = replace(training, clients_per_round=len(names))
        return self._federation(names, begun.inputs).setup(training)

    def _admit_late(self, record: RunRecord, begun: Begun, round_: int) -> None:
        """Let clients that are new take part from a round on. Their record comes first: a run continues with them."""
        new = sorted(self._courier.members.known.keys() - {*begun.names, *begun.late})
        if new:
            begun.late.update(dict.fromkeys(new, round_))
            record.config({**record.read_config(), "late": begun.late})
            log.info("%s joins the run in round %d.", ", ".join(f"'{name}'" for name in new), round_ + 1)

    def _train(self, record: RunRecord, begun: Begun) -> None:
        setup = self._setup(begun, begun.names)
        engine = GridEngine(setup, self._courier, self.options, begun.run)
        record.rewind([point_of(evaluation) for evaluation in recorded_curve(record.checkpoints)])
        ours = identity(setup)
        resumed = load(record.checkpoints, setup, engine, ours)
        shared, first, curve, began = setup.algorithm.init_shared(setup.clients[0].spec), 0, [], time.monotonic()
        if resumed is not None:
            shared, first, curve = resumed.shared, resumed.first, resumed.curve
            began -= resumed.seconds

        def timer() -> float:
            return round(time.monotonic() - began, 3)

        history = History(curve)
        observers: list[Observer] = [
            history,
            Recorder(record),
            RoundLines(engine),
            Checkpointer(record.checkpoints, setup, engine, history.curve, 1, lambda: None, ours),
            Newcomers(begun, self._courier.members),
        ]
        while first < setup.schedule.rounds:  # until somebody joins, or to the end
            self._admit_late(record, begun, first)
            engine.setup = self._setup(begun, begun.names_in(first))
            last = simulate(engine.setup, engine, observers, timer, shared, first)
            assert last is not None, "there was a round to run"
            shared, first = last.shared, last.clock.round + 1
        setup = self._setup(begun, begun.names_in(first))
        self._finish(record, setup, engine, history.curve, shared, timer())

    def _finish(
        self,
        record: RunRecord,
        setup: Setup,
        engine: GridEngine,
        curve: Sequence[Evaluation],
        shared: Any,
        seconds: float,
    ) -> None:
        """Write the global model, if there is one, and the result."""
        w = getattr(shared, "w", None)
        if isinstance(w, ModelState):  # some methods average parameters alone
            client, network = setup.clients[0], setup.global_network
            info = file_info(GLOBAL, setup.algorithm.name, network, client.train, setup.seed)
            record.model(GLOBAL, to_bytes(PackedModel.of(network.module(w), {}, **info)))
        took_part = {client.name for client in setup.clients}
        members = {name: one for name, one in self._courier.members.known.items() if name in took_part}
        record.result(result_of(setup, engine, curve[-1], members, seconds))
        log.info("The run is finished: %s", record.path)


def result_of(
    setup: Setup, engine: GridEngine, last: Evaluation, members: Mapping[str, Member], seconds: float
) -> dict[str, Any]:
    """Return what came out, with the keys of other results; of personal models only what their nodes said."""
    clients = [
        {
            "name": name,
            "network": member.network,
            "bits": dict(member.bits),
            "samples": member.samples,
            "accuracy": last.accuracy.get(name),
            "parameters": member.parameters,
            **engine.sizes.get(name, {}),
        }
        for name, member in sorted(members.items())
    ]
    described = setup.describe()
    described["training"]["batch_size"] = setup.options.batch_size  # not that of the stand-ins
    return {
        "format": FORMAT,
        "algorithm": setup.algorithm.name,
        "seed": setup.seed,
        "accuracy": over_clients(last.accuracy),
        "accuracy_own_classes": over_clients(last.accuracy_own_classes),
        "clients": clients,
        "epochs": setup.schedule.epochs,
        "rounds": setup.schedule.rounds,
        **described,
        "seconds": round(seconds, 3),
        "versions": versions(),
        "run": engine.run,
    }


class Newcomers:
    """Interrupts the rounds when a client is there that was not when they began."""

    def __init__(self, begun: Begun, members: Members) -> None:
        """Look for members that a run does not have yet."""
        self._begun, self._members = begun, members

    def after_round(self, round_: Round) -> bool:
        """Say whether the next round can choose from more clients."""
        here, next_ = (self._begun.names_in(number) for number in (round_.clock.round, round_.clock.round + 1))
        return here != next_ or bool(self._members.known.keys() - {*self._begun.names, *self._begun.late})


class RoundLines:
    """Prints a line after every round: who answered, how well it goes, and how long it will take."""

    def __init__(self, engine: GridEngine) -> None:
        """Tell of an engine's rounds."""
        self._engine, self._accuracy = engine, ""
        self._began: float | None = None
        self._first = 0

    def after_round(self, round_: Round) -> None:
        """Print the line of a round."""
        loss, self._accuracy = status(round_, self._accuracy)
        number = round_.clock.round
        answered = ", ".join(f"{name} {told}" for name, told in self._engine.answered.items())
        left = ""
        if self._began is None:
            self._began, self._first = round_.seconds, number
        elif not round_.is_last:
            pace = (round_.seconds - self._began) / (number - self._first)
            left = f", {seconds_left(pace * (round_.rounds - number - 1))} left"
        place = f"Round {number + 1}/{round_.rounds}"
        log.info("%s: %s%s (%s), %.0f s%s", place, loss, self._accuracy, answered, round_.seconds, left)
