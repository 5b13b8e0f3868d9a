"""A federation of clients."""

from collections.abc import Iterable, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import torch

from quped.algorithms import AnyAlgorithm
from quped.client import Client, ModelSource
from quped.errors import check, check_whole
from quped.progress import progress_observer
from quped.records import Checkpoints
from quped.result import FitResult
from quped.simulation.engines import EngineChoice
from quped.simulation.fit import fit
from quped.simulation.loop import Observer
from quped.simulation.options import TrainingOptions, documented, training_options
from quped.simulation.setup import Setup
from quped.simulation.validation import validate_clients
from quped.tuning import Tuning, tune


class Federation:
    """Clients, an algorithm, and the network of the global model.

    Everything that can be checked before training is checked when the federation is made.

    Arguments:
        clients: The devices, each a `Client`.
        algorithm: How they learn, such as `QuPeD()` or `FedAvg()`.
        global_model: The network that the clients share, as a module or a function that makes one.
            By default it is the clients' own network, which must then be the same for all.
        seed: Every random choice follows from it.
    """

    def __init__(
        self,
        clients: Iterable[Client],
        algorithm: AnyAlgorithm,
        global_model: ModelSource | None = None,
        seed: int = 0,
    ) -> None:
        check_is_algorithm(algorithm)
        check_whole("seed", seed, 0)
        check(isinstance(clients, Iterable), "clients", "a list of Client(...)", clients)
        clients = list(clients)
        self.algorithm = algorithm
        self.seed = int(seed)
        self._given, self._global_model = clients, global_model
        self._clients, self._global_network = validate_clients(clients, algorithm, global_model, self.seed)
        self._names = [client.name for client in clients]

    @documented
    def setup(self, options: TrainingOptions | None = None, **training: Any) -> Setup:
        """Check training options; return what follows from them: the schedule, and the clients as engines run them."""
        chosen = training_options(options, training)
        return Setup.of(self.algorithm, self._clients, self._global_network, chosen, self.seed, self._names)

    @documented
    def fit(
        self,
        options: TrainingOptions | None = None,
        *,
        engine: str | None = None,
        workers: int | None = None,
        device: torch.device | str | None = None,
        address: str | None = None,
        checkpoints: Checkpoints | Path | str | None = None,
        checkpoint_every: int = 25,
        callbacks: Sequence[Observer] = (),
        progress: bool = True,
        **training: Any,
    ) -> FitResult:
        """Train, and return the result.

        Arguments:
            options: The training options as one object; options given by name, as in `fit(epochs=5)`, replace its own.
            engine: Where clients are computed: "inline" in this process, "processes" in worker processes, "ray" on one
                or several machines, or "vmapped", clients with the same network and bits at once. The first three
                give the same result, bit for bit; the last the same up to rounding. By default it follows from
                `workers` and `device`.
            workers: Worker processes; 0 runs in this process. By default all cores on Linux, else 0.
            device: Such as "cuda": where the engine "vmapped" computes. By default a GPU if there is one.
            address: Of the cluster for the engine "ray", such as "auto" on one of its machines.
                By default Ray is started on this machine.
            checkpoints: A folder. The run continues from its newest checkpoint, if there is one, and ends as if it had
                never been interrupted. SIGINT and SIGTERM write a checkpoint and end the run with an
                `InterruptedRunError`.
            checkpoint_every: Rounds between two checkpoints. There is always one after the last round.
            callbacks: Objects with a method `after_round(round)`, called after every round.
                If it returns True, the run ends with this round.
            progress: Show progress on standard error: a bar in a terminal, a few lines elsewhere. False shows nothing.
        """
        where = EngineChoice(engine, workers, device, address)
        setup = self.setup(options, **training)
        with progress_observer(progress, type(self.algorithm).__name__) as shown:
            return fit(
                setup,
                where=where,
                checkpoints=checkpoints,
                checkpoint_every=checkpoint_every,
                callbacks=[*callbacks, *shown],
            )

    @documented
    def tune(
        self,
        options: TrainingOptions | None = None,
        *,
        trials: int = 16,
        seeds: int = 1,
        folder: Path | str | None = None,
        workers: int | None = None,
        progress: bool = True,
        **training: Any,
    ) -> Tuning:
        """Choose the learning rate, the strength of quantization and the warm-up on validation samples.

        Settings compete by successive halving: all of them with short runs, the better half with runs twice as long,
        and the last two with the epochs that were asked for. The first one is that of this federation. Test samples
        are not used: see `Client.on_validation`.

        Arguments:
            options: The training options as one object, as for `fit`.
            trials: Settings that are tried, at least 2. With 16 it takes as long as about 8 runs.
            seeds: With how many seeds, from that of this federation on, the last two are trained. The better mean is
                chosen: with more seeds, chance decides less.
            folder: Where trials are recorded. Those in it are not repeated: an interrupted choice continues there.
            workers: Worker processes, as for `fit`.
            progress: Show progress on standard error.
        """
        check_whole("number of seeds", seeds, 1)

        def validated(seed: int) -> Setup:
            clients = [client.on_validation(seed) for client in self._given]
            return Federation(clients, self.algorithm, self._global_model, seed).setup(options, **training)

        setup, *others = map(validated, range(self.seed, self.seed + seeds))
        return tune(setup, trials=trials, others=others, folder=folder, workers=workers, progress=progress)

    def summary(self) -> dict[str, dict[str, int]]:
        """Return, for each client, the parameters that are quantized, with their bits."""
        bits = {client.name: dict(client.spec.bits) for client in self._clients}
        return {name: bits[name] for name in self._names}


def check_is_algorithm(value: object) -> None:
    """Raise unless a value is an algorithm."""
    known = not isinstance(value, type) and hasattr(value, "server_update") and is_dataclass(value)
    check(known, "algorithm", "a dataclass instance such as QuPeD()", value)
