"""From an experiment file to one with hyperparameters that were chosen on validation samples."""

import shutil
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any, cast

from quped._extras import extra
from quped.algorithms import AnyAlgorithm
from quped.errors import RunError
from quped.experiments.population import Population
from quped.experiments.schema import validate
from quped.records import DEFAULT_ALGORITHM, distinct, write_bytes
from quped.tuning import TUNING, Tuning, tune

BEST = "best.toml"


def tune_experiment(
    values: Mapping[str, Any],
    *,
    preset: str,
    seed: int,
    out: Path,
    trials: int,
    seeds: int = 1,
    compared: bool = False,
    overwrite: bool = False,
    workers: int | None = None,
    checkpoint_every: int = 25,
    progress: bool = True,
) -> list[Tuning]:
    """Choose hyperparameters of the first method, or of all that are compared, and write `best.toml`.

    Trials are recorded in `out`, those of other methods in folders below it. Recorded ones are not repeated.
    """
    experiment = validate(deepcopy(dict(values)), preset)
    held = {**experiment.model_dump(), "data": {**experiment.data.model_dump(), "evaluate_on": "validation"}}
    populations = [Population(validate(held, preset), seed + i) for i in range(seeds)]
    methods = experiment.methods if compared else experiment.methods[:1]
    setups = [[p.federation(method.algorithm).setup(method.training) for p in populations] for method in methods]
    folders = [out, *(out / name for name in distinct([method.algorithm.name for method in methods[1:]]))]
    if overwrite:
        clear(out)
    best = deepcopy(dict(values))
    chosen = []
    for i, ((setup, *others), folder) in enumerate(zip(setups, folders, strict=True)):
        tuning = tune(
            setup,
            trials=trials,
            others=others,
            folder=folder,
            about={"own_data": populations[0].facts},
            workers=workers,
            checkpoint_every=checkpoint_every,
            progress=progress,
        )
        change(best if i == 0 else best["compare"][i - 1], tuning)
        chosen.append(tuning)
    validate(deepcopy(best), BEST)
    names = ", ".join(type(tuning.algorithm).__name__ for tuning in chosen)
    head = f"# Written by `quped tune {preset}`: the options of {names} were chosen among {trials} settings each,\n"
    more = "" if seeds == 1 else f"; the last two with seeds {seed} to {seed + seeds - 1}"
    write_toml(out / BEST, head + f"# on validation samples, with seed {seed}{more}.\n", best)
    return chosen


def clear(out: Path) -> None:
    """Remove the trials in a folder, and nothing if it holds something else."""
    if out.exists() and any(out.iterdir()):
        if not (out / TUNING).exists():
            raise RunError(f"{out} holds no trials of `quped tune`: choose another folder.")
        shutil.rmtree(out)


def change(section: dict[str, Any], tuning: Tuning) -> None:
    """Write what was chosen into the section of a method: an experiment, or one of its comparisons."""
    section["training"] = {**section.get("training", {}), "lr": tuning.options.lr}
    options = section["algorithm"] = {"name": DEFAULT_ALGORITHM, **section.get("algorithm", {})}
    setting = tuning.best.setting
    if setting.warmup_epochs is not None:
        options["warmup_epochs"] = setting.warmup_epochs
    if setting.rates:
        options["quantization"] = {**options.get("quantization", {}), "lam": lam_of(tuning.algorithm)}


def lam_of(algorithm: AnyAlgorithm) -> dict[str, dict[str, float]]:
    """Return lambda(t) by bit-width, as an experiment file has it."""
    quantization = cast(Any, algorithm).quantization
    return {str(bits): {"rate": lam.rate, "decay": lam.decay} for bits, lam in quantization.lam.items()}


def write_toml(path: Path, head: str, values: Mapping[str, Any]) -> None:
    """Write an experiment file."""
    with extra("cli"):
        import tomli_w
    try:
        write_bytes(path, (head + "\n" + tomli_w.dumps(values)).encode())
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror}.") from error
