"""The records of runs, one small JSON file each: which one belongs to a run, and the inputs that it was made from."""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from quped.data.download import store
from quped.errors import InvalidValueError, RunError
from quped.experiments.train import Recipe
from quped.paper.runs import PaperRun, complete
from quped.records import read_json
from quped.result import FORMAT

Record = dict[str, Any]
"""The content of the file of a run."""

KEYS = ("config", "accuracy", "curve", "epochs", "full_epochs", "shortened", "seconds", "date", "versions")
"""Keys that every record has."""

ANY_INPUTS: Mapping[str, str] = {}

NETWORK = "model"
"""The name of a single network where a federation has those of its clients."""


def find_record(run: PaperRun, folder: Path, inputs: Mapping[str, str] = ANY_INPUTS) -> Record | None:
    """Return the record of a run with this very configuration, and these inputs, under this table or another one."""
    own = folder / run.path
    others = sorted(folder.glob(str(Path("*", *run.path.parts[1:]))))
    for path in dict.fromkeys([own, *others]):
        if path.exists():
            record = read_record(path, run)
            if inputs.items() <= record.items() and complete(record["config"], str(path)) == run.config:
                return record
    return None


def read_record(path: Path, run: PaperRun) -> Record:
    """Read a record of a run, or of one that differs in its options; raise if it cannot be one."""
    record = read_json(path, *KEYS, sealed=True)
    if record.get("format") != FORMAT:
        raise RunError(f"{path} has not the format {FORMAT} of this version: remove it and repeat the run.")
    if not is_consistent(record, run):
        raise RunError(f"{path} contradicts itself, or belongs elsewhere: remove it and repeat the run.")
    return record


def is_consistent(record: Record, run: PaperRun) -> bool:
    """Say whether a record is one of this row, column and seed, and its accuracy is a mean over its clients."""
    names = {"column": run.column.name, "method": run.row.recorded_as, "seed": run.seed}
    accuracy = record["accuracy"]
    mean = accuracy.get("mean") if isinstance(accuracy, dict) else None
    if not names.items() <= record.items() or not isinstance(mean, float | int) or not 0 <= mean <= 1:
        return False
    clients = accuracy.get("per_client", {"": mean})
    return math.isclose(mean, sum(clients.values()) / len(clients), rel_tol=1e-9)


def input_checksums(run: PaperRun, warm_start: Path | None) -> dict[str, str]:
    """Return the SHA-256 of a run's inputs on this machine: a network's weights, or a federation's data if fetched.

    Data of another size than the column's are not its data.
    """
    if run.recipe is not None:
        weights = Path(str(with_weights(run.recipe, warm_start).warm_start))
        return {"weights": hashlib.sha256(weights.read_bytes()).hexdigest()}
    if run.column.data is None:
        return {}
    file = store.stored_file(run.column.data.name)
    return {"data": store.read(file).checksum} if file.exists() and not has_other_data(run) else {}


def has_other_data(run: PaperRun) -> bool:
    """Say whether the stored data have another size than the column's, so that the run cannot be made."""
    if not run.column.exact or run.column.data is None:
        return False
    file = store.stored_file(run.column.data.name)
    return file.exists() and len(store.read(file).tensors["train_labels"]) != run.column.samples


def inputs_id(record: Record) -> str:
    """Return the checksum of the data or weights that a record names; nothing if it names none."""
    return str(record.get("data") or record.get("weights", ""))


def with_weights(recipe: Recipe, folder: Path | None) -> Recipe:
    """Return a recipe with the weights to start from."""
    kinds = (".quped", ".safetensors")
    files = [] if folder is None else sorted(file for kind in kinds for file in folder.glob(f"{recipe.model}*{kind}"))
    if len(files) != 1:
        raise InvalidValueError(
            f"The network {recipe.model} starts from weights in full precision: pass --warm-start FOLDER with one file "
            f"{recipe.model}*.quped or {recipe.model}*.safetensors in it. "
            f"`quped train {recipe.model} --method float --out DIR` makes one: copy DIR/models/model.quped under that "
            "name."
        )
    return replace(recipe, warm_start=str(files[0]))
