"""Records of runs that nobody ran: as large or as odd as a test needs them."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from quped.records import CURVES, RunRecord

NAUGHTY = "<script>document.title='owned'</script><img src=x onerror=alert(1)>"
"""A client's name that a careless page would run."""


def make_run(
    folder: Path,
    names: list[str],
    rounds: int,
    *,
    compare: tuple[str, ...] = ("local", "fedavg"),
    finished: bool = True,
) -> None:
    """Write the record of a run of QuPeD, and of the methods that it is compared with."""
    config = {
        "description": "made up",
        "data": {"name": "digits", "partition": "classes=4", "evaluate_on": "test"},
        "clients": [{"name": "client", "count": len(names), "model": {"name": "mlp"}, "bits": 2}],
        "training": {"epochs": rounds},
        "algorithm": {"name": "quped"},
        "compare": [{"algorithm": {"name": name}} for name in compare],
    }
    for i, method in enumerate(("quped", *compare)):
        record = RunRecord.create(folder / method if i else folder)
        own = config if i == 0 else config | {"algorithm": {"name": method}, "compare": []}
        record.config({"format": 2, "preset": "made", "seed": 3, "config": own})
        make_method(record, method, names, rounds, own, finished=finished)


def make_method(
    record: RunRecord, method: str, names: list[str], rounds: int, config: dict[str, Any], *, finished: bool
) -> None:
    """Write the curve of a method, and what came out of it."""
    rng = np.random.default_rng(sum(map(ord, method)))
    ends = rng.uniform(0.5, 1.0, len(names)).round(3)
    lines = []
    for number in range(rounds):
        accuracy = dict(zip(names, (ends * (0.3 + 0.7 * (number + 1) / rounds)).tolist(), strict=True))
        center = 0.1 + 0.1 * number / rounds
        weights = {"name": "fc.weight", "reach": 0.5, "counts": [1] * 121, "centers": [-center, center]}
        lines.append(
            {
                "round": number,
                "epoch": number,
                "phase": "train" if number < 0.8 * rounds else "finetune",
                "loss": 2.0 / (number + 1),
                "accuracy": accuracy,
                "seconds": float(number),
                "accuracy_own_classes": accuracy,
                "slowest": {name: 0.5 - 0.1 * i for i, name in enumerate(names[:3])},
                "median_seconds": 0.1,
                "weights": {names[0]: weights} if method != "fedavg" else {},
                "mean": float(np.mean(list(accuracy.values()))),
            }
        )
    (record.path / CURVES).write_text("".join(json.dumps(line) + "\n" for line in lines))
    if not finished:
        return
    bits = {} if method == "fedavg" else {"fc.weight": 2}
    clients = [
        {
            "name": name,
            "network": "mlp",
            "bits": bits,
            "samples": int(rng.integers(20, 200)),
            "test_samples": 200,
            "accuracy": accuracy[name],
            "parameters": 1000,
            "bytes_file": int(rng.integers(900, 1100)) * (1 if bits else 4),
            "bytes_packed": 900,
            "bytes_float32": 4400,
            "classes": rng.multinomial(100, [0.1] * 10).tolist(),
            "rounds": rounds,
        }
        for name in names
    ]
    record.result(
        {
            "preset": "made",
            "format": 2,
            "algorithm": method,
            "seed": 3,
            "accuracy": {"mean": lines[-1]["mean"], "per_client": accuracy},
            "global_accuracy": None if method == "local" else 0.9,
            "clients": clients,
            "epochs": rounds,
            "rounds": rounds,
            "hyperparameters": {},
            "training": {"epochs": rounds},
            "sent": {"to_server": 0, "to_client": 0} if method == "local" else {"to_server": 4000, "to_client": 4000},
            "seconds": 12.5,
            "versions": {"quped": "0.1.0", "torch": "2"},
            "config": config,
        }
    )
