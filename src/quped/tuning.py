"""Hyperparameters chosen by successive halving on validation samples.

Jamieson and Talwalkar, Non-stochastic Best Arm Identification and Hyperparameter Optimization, 2016.
"""

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

from quped._rng import generator
from quped.algorithms import AnyAlgorithm, Quantization
from quped.errors import BadUpdateError, RunError, check_whole
from quped.progress import progress_observer
from quped.quant import LinearSchedule
from quped.records import Checkpoints, exclusive, plain, read_json, refuse_link, write_json
from quped.simulation import Setup, TrainingOptions
from quped.simulation.checkpoint import identity
from quped.simulation.engines import EngineChoice
from quped.simulation.fit import fit
from quped.simulation.schedule import Schedule
from quped.typing import Phase

LR_FACTOR = 5.0
"""Learning rates are drawn from those given, divided and multiplied by this."""

PULLS = (0.01, 1.0)
"""How far weights are pulled to their centers before fine-tuning, in all: the sum of lambda(t) eta_1(t) / 2."""

WARMUPS = (0.0, 0.25, 0.5, 0.75)
"""Shares of the epochs before fine-tuning that a warm-up may take."""

LEAST_EPOCHS = 3
"""Of a trial, if the run has as many: lambda(t) is 0 in the first one, and the last one is fine-tuning."""

TUNING, TRIALS, CHECKPOINTS = "tuning.json", "trials", "checkpoints"
"""What a folder of trials holds."""


class Setting(NamedTuple):
    """Hyperparameters that are chosen, for a run of full length."""

    lr: float
    rates: Mapping[int, float] = {}
    """The rate of lambda(t) by bit-width; empty if no client is quantized."""
    warmup_epochs: float | None = None
    """None for a method without warm-up."""


@dataclass(frozen=True)
class Trial:
    """A run with a setting, perhaps shortened."""

    number: int
    """Of the setting: 0 is the one that was given."""
    epochs: int
    seed: int
    setting: Setting
    accuracy: float | None
    """On validation samples after the last round, mean over clients; None if training failed."""
    seconds: float
    error: str | None = None
    """Why training failed."""


@dataclass(frozen=True)
class Tuning:
    """What came out of `Federation.tune`."""

    algorithm: AnyAlgorithm
    """With the chosen hyperparameters."""
    options: TrainingOptions
    """With the chosen learning rate."""
    best: Trial
    """The last one of the chosen setting, with the first seed."""
    trials: Sequence[Trial]
    """All of them, in the order in which they were run."""

    @property
    def accuracy(self) -> float:
        """Of the chosen setting on validation samples, mean over seeds."""
        last = [trial for trial in self.trials if (trial.number, trial.epochs) == (self.best.number, self.best.epochs)]
        return mean_accuracy(last)


def tune(
    base: Setup,
    *,
    trials: int = 16,
    others: Sequence[Setup] = (),
    folder: Path | str | None = None,
    about: Mapping[str, Any] | None = None,
    workers: int | None = None,
    checkpoint_every: int = 25,
    progress: bool = True,
) -> Tuning:
    """Choose hyperparameters for a setup whose test samples are validation samples. `Federation.tune` explains more.

    `others` are the same with other seeds, for the last two settings.
    `about` is what else must be equal for trials in the folder to be continued.
    """
    check_whole("number of trials", trials, 2, 4096)
    check_whole("checkpoint_every", checkpoint_every, 1)
    with ExitStack() as stack:
        records = None
        if folder is not None:
            stack.enter_context(exclusive(Path(folder)))
            runs = [identity(setup) for setup in (base, *others)]
            records = Records(Path(folder), {"trials": trials, "runs": runs, **(about or {})})
        where = EngineChoice(workers=workers)
        run = partial(run_trial, records, progress, where=where, checkpoint_every=checkpoint_every)
        done: list[Trial] = []
        left = dict(enumerate(draw_settings(base, trials)))
        ladder = rungs(trials, base.schedule.epochs)
        for i, (size, epochs) in enumerate(ladder):
            setups = [base, *others] if i == len(ladder) - 1 else [base]
            some = list(left.items())[:size]
            rung = [run(setup, number, setting, epochs) for number, setting in some for setup in setups]
            done += rung
            ranked = ranking(rung)
            if not ranked:
                raise RunError(f"No setting could be trained. The first one failed: {rung[0].error}")
            left = {trial.number: trial.setting for trial in ranked}
    algorithm, options = with_setting(base, ranked[0].setting, base.options)
    return Tuning(algorithm, options, ranked[0], done)


def ranking(rung: Sequence[Trial]) -> list[Trial]:
    """Return the first trial of each setting, the best setting first; without those that failed with some seed."""
    settings: dict[int, list[Trial]] = {}
    for trial in rung:
        settings.setdefault(trial.number, []).append(trial)
    fine = [trials for trials in settings.values() if all(trial.accuracy is not None for trial in trials)]
    return [trials[0] for trials in sorted(fine, key=lambda trials: (-mean_accuracy(trials), trials[0].number))]


def mean_accuracy(trials: Sequence[Trial]) -> float:
    """Return the accuracy of trials with one setting, mean over seeds; NaN if training failed with one."""
    by_seed = {trial.seed: math.nan if trial.accuracy is None else trial.accuracy for trial in trials}
    return sum(by_seed.values()) / len(by_seed)


def rungs(trials: int, epochs: int) -> list[tuple[int, int]]:
    """Return how many settings are tried with how many epochs: the better half goes on, twice as long, down to two."""
    sizes = [trials]
    while sizes[-1] > 2:
        sizes.append(math.ceil(sizes[-1] / 2))
    least, last = min(LEAST_EPOCHS, epochs), len(sizes) - 1
    return [(size, max(least, round(epochs / 2 ** (last - i)))) for i, size in enumerate(sizes)]


def given_setting(base: Setup) -> Setting:
    """Return the setting of a setup."""
    rates = {bits: schedule.rate for bits, schedule in schedules(base).items()}
    return Setting(base.options.lr, rates, getattr(base.algorithm, "warmup_epochs", None))


def schedules(base: Setup) -> dict[int, LinearSchedule]:
    """Return lambda(t) by bit-width, as far as it can be chosen: if a client is quantized."""
    quantization = getattr(base.algorithm, "quantization", None)
    if not isinstance(quantization, Quantization) or not any(client.spec.bits for client in base.clients):
        return {}
    return {bits: lam for bits, lam in quantization.lam.items() if isinstance(lam, LinearSchedule)}


def draw_settings(base: Setup, count: int) -> list[Setting]:
    """Return the given setting, and others spread evenly over all that is chosen: a Latin hypercube."""
    given, rng = given_setting(base), generator(base.seed, "tuning")
    spread = [(rng.permutation(count - 1) + rng.random(count - 1)) / (count - 1) for _ in range(3)]
    low, high = PULLS
    training = training_epochs(base.schedule)
    settings = [given]
    for for_lr, for_pull, for_warmup in zip(*spread, strict=True):
        lr = float(f"{given.lr * LR_FACTOR ** (2 * for_lr - 1):.2g}")
        warmup = given.warmup_epochs
        if warmup is not None:
            warmup = float(int(WARMUPS[int(for_warmup * len(WARMUPS))] * training))
        setting = Setting(lr, given.rates, warmup)
        pulls = pulls_of(base, setting, base.schedule)
        wanted = low * (high / low) ** for_pull
        rates = {bits: float(f"{given.rates[bits] * wanted / pull:.3g}") for bits, pull in pulls.items() if pull}
        settings.append(setting._replace(rates={**given.rates, **rates}))
    return settings


def pulls_of(base: Setup, setting: Setting, schedule: Schedule) -> dict[int, float]:
    """Return, by bit-width, how far a setting pulls weights to their centers before fine-tuning, in all.

    In a warm-up, a client with the global network has no weights of its own to pull.
    """
    clocks = [schedule.clock(round_) for round_ in range(schedule.rounds)]
    pulled = [clock for clock in clocks if clock.phase is Phase.TRAIN and clock.t >= (setting.warmup_epochs or 0)]
    step = setting.lr / schedule.lr / 2
    return {
        bits: sum(schedule.steps(c.round) * replace(lam, rate=setting.rates[bits])(c.t) * c.lr * step for c in pulled)
        for bits, lam in schedules(base).items()
    }


def with_setting(base: Setup, setting: Setting, options: TrainingOptions) -> tuple[AnyAlgorithm, TrainingOptions]:
    """Return the algorithm and the options of a setting."""
    algorithm: Any = base.algorithm
    if setting.warmup_epochs is not None:
        algorithm = replace(algorithm, warmup_epochs=setting.warmup_epochs)
    if lams := schedules(base):
        chosen = {bits: replace(lam, rate=setting.rates[bits]) for bits, lam in lams.items()}
        lam = {**algorithm.quantization.lam, **chosen}
        algorithm = replace(algorithm, quantization=replace(algorithm.quantization, lam=lam))
    return cast(AnyAlgorithm, algorithm), replace(options, lr=setting.lr)


def trial_setup(base: Setup, setting: Setting, epochs: int) -> Setup:
    """Return the setup of a trial, which is evaluated at its end.

    A shortened one passes through the whole schedules of learning rate and lambda, and through the same share of
    warm-up. It has fewer steps, so lambda is larger: in all, weights are pulled as far to their centers.
    """
    options = replace(base.options, evaluate_every=base.schedule.epochs)
    if epochs < base.schedule.epochs:
        finetune = 0 if options.finetune_epochs == 0 else None
        full = options.schedule_epochs or options.epochs
        options = replace(options, epochs=epochs, schedule_epochs=full, finetune_epochs=finetune)
        quantizes = any(client.spec.bits for client in base.clients)
        schedule = Schedule.of(options, [len(client.train) for client in base.clients], quantizes=quantizes)
        setting = fitted(base, setting, schedule)
    return setup_like(base, *with_setting(base, setting, options))


def fitted(base: Setup, setting: Setting, schedule: Schedule) -> Setting:
    """Return what a setting is under a shorter schedule. At least its last round before fine-tuning is no warm-up."""
    warmup = setting.warmup_epochs
    if warmup is not None:
        clocks = map(schedule.clock, range(schedule.rounds))
        last = max(clock.t for clock in clocks if clock.phase is Phase.TRAIN)
        warmup = min(warmup * training_epochs(schedule) / training_epochs(base.schedule), last)
    short = setting._replace(warmup_epochs=warmup)
    before, after = pulls_of(base, setting, base.schedule), pulls_of(base, short, schedule)
    rates = {bits: rate * before[bits] / after[bits] if after[bits] else rate for bits, rate in setting.rates.items()}
    return short._replace(rates=rates)


def training_epochs(schedule: Schedule) -> float:
    """Return the epochs before fine-tuning, as t counts them."""
    return (schedule.epochs - schedule.finetune_epochs) * schedule.stretch


def setup_like(base: Setup, algorithm: AnyAlgorithm, options: TrainingOptions) -> Setup:
    """Return a setup of the same clients."""
    return Setup.of(algorithm, base.clients, base.global_network, options, base.seed, base.names)


def run_trial(
    records: "Records | None",
    progress: bool,
    base: Setup,
    number: int,
    setting: Setting,
    epochs: int,
    **arguments: Any,
) -> Trial:
    """Train with a setting, or find that in the records. One with which training diverges has failed."""
    if records is not None:
        if (trial := records.find(number, epochs, base.seed)) is not None:
            return trial
        arguments["checkpoints"] = records.checkpoints
    try:
        with progress_observer(progress, f"setting {number}, {epochs} epochs, seed {base.seed}") as shown:
            result = fit(trial_setup(base, setting, epochs), callbacks=shown, **arguments)
        accuracy, seconds, error = result.curve[-1].mean, round(result.seconds, 3), None
    except BadUpdateError as failure:
        accuracy, seconds, error = None, 0.0, str(failure)
    if accuracy is not None and math.isnan(accuracy):
        raise RunError("No client has validation samples, so nothing can be chosen.")
    trial = Trial(number, epochs, base.seed, setting, accuracy, seconds, error)
    if records is not None:
        records.keep(trial)
    return trial


class Records:
    """A folder of trials: finished ones, each a file, and checkpoints of the one that is under way."""

    def __init__(self, folder: Path, described: Mapping[str, Any]) -> None:
        """Begin a folder, or continue it if it was begun with the same description."""
        for name in (TUNING, TRIALS, CHECKPOINTS):
            refuse_link(folder / name)
        self._trials = folder / TRIALS
        self.checkpoints = Checkpoints(folder / CHECKPOINTS)
        described = plain(described)
        if (folder / TUNING).exists():
            if read_json(folder / TUNING, sealed=True) != described:
                raise RunError(
                    f"{folder} holds trials with other clients, data or options: remove it to begin again, or name "
                    "another folder."
                )
        elif any(not path.name.startswith(".") for path in folder.iterdir()):  # there is a lock
            raise RunError(f"{folder} holds other files: name another folder.")
        else:
            write_json(folder / TUNING, described)
        self._trials.mkdir(exist_ok=True)

    def _file(self, number: int, epochs: int, seed: int) -> Path:
        return self._trials / f"{number:04d}-{epochs}-{seed}.json"

    def find(self, number: int, epochs: int, seed: int) -> Trial | None:
        """Return a trial that is finished."""
        if not self._file(number, epochs, seed).exists():
            return None
        values = read_json(self._file(number, epochs, seed), "setting", "accuracy", sealed=True)
        setting = Setting(**values["setting"])
        rates = {int(bits): rate for bits, rate in setting.rates.items()}
        return Trial(**{**values, "setting": setting._replace(rates=rates)})

    def keep(self, trial: Trial) -> None:
        """Write a finished trial; its checkpoints are not needed any more."""
        file = self._file(trial.number, trial.epochs, trial.seed)
        write_json(file, {**asdict(trial), "setting": trial.setting._asdict()})
        self.checkpoints.clear()
