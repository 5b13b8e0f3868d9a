"""A report of runs as one HTML file, which holds all of its data and draws it when it is opened."""

import base64
import gzip
import json
import shlex
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quped._evaluate import hurt
from quped.errors import RunError
from quped.records import flatten, write_bytes
from quped.report.reading import Run, Values, read_all
from quped.report.summary import sentence
from quped.report.terminal import bits_label, kind, titles

TEMPLATE = Path(__file__).parent / "templates" / "report.html"
Table = NDArray[np.float64]
MOST_CELLS = 240_000
"""Accuracies by client and evaluation in a file: of larger runs, every client keeps some evaluations."""
WARM = "end of the warm-up"
MOST_COLUMNS = 80
"""Evaluations whose weights are drawn."""


def write_report(paths: Iterable[Path], out: Path) -> None:
    """Write the report of the runs in some folders, side by side."""
    families = read_all(paths)
    try:
        page = render(families)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        folders = ", ".join(str(family[0].folder) for family in families)
        raise RunError(f"{folders} cannot be shown: it is no record of a run, or one of another version.") from error
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(out, page.encode())
    except OSError as error:
        raise RunError(f"The report {out} cannot be written: {error.strerror}.") from error


def render(families: Sequence[list[Run]]) -> str:
    """Return the page."""
    # Compressed: small, and no word in a record can be taken for a part of the page.
    text = json.dumps(collect(families), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    data = base64.b64encode(gzip.compress(text.encode("utf-8", "replace"), 6, mtime=0)).decode()
    return TEMPLATE.read_text(encoding="utf-8").replace("@DATA@", data)


def collect(families: Sequence[list[Run]]) -> Values:
    """Return all that the page shows, as plain values."""
    runs = [run for family in families for run in family]
    cells = sum(len(client_names(run)) for run in runs)
    points = max(2, MOST_CELLS // max(1, cells))
    methods: list[Values] = []
    for family in families:
        first = len(methods)
        for label, run in zip(labels(family, families), family, strict=True):
            methods.append(method(run, label, points) | {"family": first})
        add_gains(methods[first:])
    return {
        "title": ", ".join(dict.fromkeys(title(family[0]) for family in families)),
        "description": str(families[0][0].experiment.get("description") or "") if len(families) == 1 else "",
        "facts": facts(families),
        "sentence": sentence(methods),
        "version": metadata.version("quped"),
        "methods": methods,
        "runs": [provenance(family[0]) for family in families],
    }


def labels(family: list[Run], families: Sequence[list[Run]]) -> list[str]:
    """Return the names of methods; of several runs, with their folders."""
    names = titles([{"algorithm": run.algorithm, **(run.result or {})} for run in family])
    if family[0].recipe is not None:
        names = [recipe_label(family[0].recipe)]
    here = "" if len(families) == 1 else f" · {family[0].folder.resolve().name}"
    return [f"{name}{here}" for name in names]


def recipe_label(recipe: Values) -> str:
    """Return what a network is called that was trained by a recipe."""
    bits = "" if recipe.get("method") == "float" else f", {recipe.get('bits')} bits"
    return f"{recipe.get('model')} ({recipe.get('method')}{bits})"


def title(run: Run) -> str:
    """Return what a run is called."""
    return str(run.recipe.get("model")) if run.recipe is not None else str(run.config.get("preset") or run.folder.name)


def facts(families: Sequence[list[Run]]) -> list[str]:
    """Return what is said of all runs beside the title."""
    if len(families) > 1:
        return [f"{len(families)} runs side by side"]
    run = families[0][0]
    options = run.options
    data = options.get("data")
    name = data.get("name") if isinstance(data, dict) else data
    clients, seed = len(client_names(run)), options.get("seed", run.config.get("seed"))
    rounds = run.curve[-1]["round"] + 1 if run.curve else 0
    unit = "epoch" if run.recipe is not None else "round"
    told = [str(name or ""), "" if run.recipe is not None else counted(clients, "client"), counted(rounds, unit)]
    return [word for word in (*told, "" if seed is None else f"seed {seed}") if word]


def counted(number: int, noun: str) -> str:
    """Return a number of things."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def client_names(run: Run) -> list[str]:
    """Return the clients of a run, as far as its record names them."""
    if run.recipe is not None:
        return ["model"]
    if run.result is not None:
        return [str(client["name"]) for client in run.result["clients"]]
    return list(run.curve[-1]["accuracy"]) if run.curve else []


def method(run: Run, label: str, points: int) -> Values:
    """Return what the page shows of one method, of whose clients it keeps so many points."""
    result, names = run.result or {}, client_names(run)
    accuracies = table_of(run.curve, names)
    clients = train_client(run) if run.recipe is not None else [client_of(c, result.get("sent")) for c in known(run)]
    kept = spread(len(run.curve), points)
    return {
        "label": label,
        "algorithm": run.algorithm,
        "folder": str(run.folder),
        "state": "finished" if run.result is not None else "failed" if run.failure else "unfinished",
        "failure": run.failure,
        "single": run.recipe is not None,
        "validation": is_validated(run),
        "seconds": result.get("seconds") or (run.curve[-1].get("seconds") if run.curve else None),
        "sent": result.get("sent") or None,
        "clients": clients,
        "curve": curve_of(run.curve, accuracies),
        "float": [point["accuracy_float"] for point in run.curve if "accuracy_float" in point],
        "phases": phases(run),
        "kept": kept,
        "by_client": listed(accuracies[kept].T) if len(names) > 1 else [],
        "weights": weights_of(run),
    }


def table_of(curve: Sequence[Values], names: Sequence[str]) -> Table:
    """Return the accuracies, a row per evaluation and a column per client; NaN if it has none."""
    held = [point["accuracy"] for point in curve]
    rows = [[row.get(name) for name in names] if isinstance(row, dict) else [row] for row in held]
    return np.array(rows, float).reshape(len(curve), len(names))


def listed(values: Table) -> Any:
    """Return accuracies with the digits that a picture needs; None for those that are not there."""
    found = values.round(4).astype(object)
    found[~np.isfinite(values)] = None
    return found.tolist()


def is_validated(run: Run) -> bool:
    """Say whether accuracies are those on validation samples."""
    data = run.experiment.get("data")
    named = isinstance(data, dict) and data.get("evaluate_on") == "validation"
    return named or bool((run.recipe or {}).get("validation"))


def known(run: Run) -> list[Values]:
    """Return the clients of a run: what came out, or, before the end, the accuracy at the last evaluation."""
    if run.result is not None:
        return list(run.result["clients"])
    return [{"name": name, "accuracy": run.curve[-1]["accuracy"][name]} for name in client_names(run)]


def client_of(client: Values, sent: Values | None) -> Values:
    """Return what the page shows of a client; what an older record does not hold is None."""
    rounds = client.get("rounds")
    total = rounds * sum(sent.values()) if sent and rounds is not None else None
    return {
        "name": str(client["name"]),
        "kind": kind(client),
        "network": client.get("network"),
        "bits": bits_label(client) if "bits" in client else None,
        "bytes": client.get("bytes_file"),
        "float32": client.get("bytes_float32"),
        "samples": client.get("samples"),
        "tested": client.get("test_samples"),
        "classes": client.get("classes") or None,
        "accuracy": client.get("accuracy"),
        "sent": total,
    }


def train_client(run: Run) -> list[Values]:
    """Return the one network of `quped train` as a client."""
    recipe, result = run.recipe or {}, run.result or (run.curve[-1] if run.curve else {})
    bits = {} if recipe.get("method") == "float" else {"weights": recipe.get("bits")}
    return [client_of({"name": "model", "network": recipe.get("model"), "bits": bits, **result}, None)]


def curve_of(curve: Sequence[Values], accuracies: Table) -> Values:
    """Return the learning curve: the mean over clients, and between which values the middle eight tenths are."""
    means, low, high = bands(accuracies)
    rounds = [int(point["round"]) for point in curve]
    return {"round": rounds, "mean": listed(means), "low": listed(low), "high": listed(high)}


def bands(accuracies: Table) -> Table:
    """Return the mean and the two bounds of every row; NaN where it has no numbers."""
    if accuracies.size and np.isfinite(accuracies).all():
        return np.vstack([accuracies.mean(1), np.quantile(accuracies, (0.1, 0.9), axis=1)])
    tested = [row[np.isfinite(row)] for row in accuracies]
    found = [[row.mean(), *np.quantile(row, (0.1, 0.9))] if row.size else [np.nan] * 3 for row in tested]
    return np.array(found, float).reshape(-1, 3).T


def phases(run: Run) -> list[Values]:
    """Return where the parts of a run begin: after the warm-up, and with the fine-tuning."""
    hyperparameters, training = ((run.result or {}).get(key) or {} for key in ("hyperparameters", "training"))
    warm = (hyperparameters.get("warmup_epochs") or 0) / (training.get("stretch") or 1)
    begun = {
        WARM: [bool(warm) and point["epoch"] >= warm for point in run.curve],
        "fine-tuning": [point.get("phase") == "finetune" for point in run.curve],
    }
    marks = []
    for name, flags in begun.items():
        at = flags.index(True) if True in flags else 0
        if at:
            marks.append({"name": name, "round": (run.curve[at - 1]["round"] + run.curve[at]["round"]) / 2})
    return marks


def weights_of(run: Run) -> Values:
    """Return, for each client whose weights were watched, where they were at some evaluations."""
    watched: Values = {}
    begun = max((mark["round"] for mark in phases(run) if mark["name"] == WARM), default=0)
    for point in run.curve:
        if point["round"] < begun:  # until then a client has no weights of its own
            continue
        found = point.get("weights") or {}
        histograms = {"model": found} if "counts" in found else found
        for name, weights in histograms.items():
            watched.setdefault(name, []).append({"round": point["round"], **weights})
    if run.recipe is not None and run.recipe.get("method") == "float":
        return {}
    return {name: [points[i] for i in spread(len(points), MOST_COLUMNS)] for name, points in watched.items()}


def spread(count: int, most: int) -> list[int]:
    """Return at most so many of the numbers below `count`, evenly, with the first and the last one."""
    if count <= most:
        return list(range(count))
    return [round(i * (count - 1) / (most - 1)) for i in range(most)]


def add_gains(methods: list[Values]) -> None:
    """Add to the clients of a run how much better they are than by local training, if it was compared.

    A client with the same bits as there is also said to be hurt or not: see `quped._evaluate.hurt`.
    """
    local = next((one for one in methods if one["algorithm"] == "local"), None)
    alone = {client["name"]: client for client in local["clients"] if client["accuracy"] is not None} if local else {}
    for one in methods:
        one["compared"] = local is not None and one is not local
        both = [client for client in one["clients"] if client["accuracy"] is not None and client["name"] in alone]
        alike = [client for client in both if client["bits"] == alone[client["name"]]["bits"]]
        verdicts = hurt(
            {client["name"]: client["accuracy"] for client in alike},
            {name: client["accuracy"] for name, client in alone.items()},
            {client["name"]: client["tested"] or 0 for client in alike},
        )
        for client in both if one["compared"] else ():
            client["gain"] = client["accuracy"] - alone[client["name"]]["accuracy"]
            client["hurt"] = verdicts.get(client["name"])


def provenance(run: Run) -> Values:
    """Return what a run follows from, and how to run it again."""
    shown = {"folder": str(run.folder), "versions": (run.result or {}).get("versions") or {}}
    if run.recipe is not None:
        return {**shown, "config": flatten(run.recipe), "command": train_command(run.recipe), "file": None}
    if not run.experiment:
        return {**shown, "config": flatten(run.options), "command": None, "file": None}
    command = f"quped run again.toml --seed {run.config.get('seed', 0)}"
    return {**shown, "config": flatten(run.experiment), "command": command, "file": toml(run.experiment)}


def train_command(recipe: Values) -> str:
    """Return the command that trains by a recipe."""
    words = ["quped", "train", str(recipe.get("model"))]
    for name, value in recipe.items():
        if name not in ("model", "center_grad_clip") and value not in (None, False):
            words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    return shlex.join(words)


def toml(experiment: Values) -> str:
    """Return an experiment as a file that `quped run` takes."""
    import tomli_w  # here, because it comes with an extra

    return tomli_w.dumps(without_none(experiment))


def without_none(value: Any) -> Any:
    """Leave out what is None, which TOML cannot write."""
    if isinstance(value, dict):
        return {key: without_none(item) for key, item in value.items() if item is not None}
    return [without_none(item) for item in value] if isinstance(value, list) else value
