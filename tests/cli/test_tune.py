"""`quped tune`: from an experiment file to a better one."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from helpers.program import FILE, fails, quped

from quped.experiments.schema import load

ROWS = [f"{'ab'[i % 2]},train,{i % 3},{i % 3 + i / 100}" for i in range(24)]
TESTED = [f"{client},test,{i % 3},{i}" for client in "ab" for i in range(3)]


@pytest.mark.slow
def test_a_file_is_tuned_and_the_best_one_runs(tmp_path: Path) -> None:
    """For the compared methods, too; the same command reads the trials again."""
    (tmp_path / "mine.toml").write_text(FILE)
    command = ("tune", "mine.toml", "--trials", "2", "--seeds", "2", "--compared", "--workers", "0", "--seed", "1")
    done = quped(*command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for word in (
        "QuPeD: accuracy on validation samples",
        "Local:",
        "FedAvg:",
        "yours",
        "lambda at 2 bits",
        "best.toml",
    ):
        assert word in done.stdout
    best = load(tmp_path / "runs" / "tune-mine" / "best.toml")
    tunings = json.loads(quped(*command, "--json", cwd=tmp_path).stdout)
    assert [[trial["seed"] for trial in tuning["trials"]] for tuning in tunings] == [[1, 2, 1, 2]] * 3
    for method, tuning in zip(best.methods, tunings, strict=True):
        lr, rates, warmup = tuning["best"]["setting"]
        assert method.training.lr == lr
        assert getattr(method.algorithm, "warmup_epochs", None) == warmup
        quantization = getattr(method.algorithm, "quantization", None)
        assert rates == ({} if quantization is None else {str(b): lam.rate for b, lam in quantization.lam.items()})
    assert best.data.evaluate_on == "test"
    run = quped("run", "runs/tune-mine/best.toml", "--out", "out", "--workers", "0", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    fails(quped(*command[:-1], "2", cwd=tmp_path), "holds trials with other clients, data or options")
    assert quped("tune", "mine.toml", "--trials", "2", "--overwrite", "-q", cwd=tmp_path).returncode == 0


def test_test_rows_change_nothing(tmp_path: Path) -> None:
    """Own data: trials are the same whatever the test rows are, and continue as if these had not changed."""
    toml = """
        data = { csv = "rows.csv", by = "who", split = "part", label = "kind" }
        clients = [{ model = { name = "mlp", hidden = [4, 4] }, bits = 2, end_bits = 8 }]
        training = { epochs = 2, local_steps = 2, batch_size = 5 }
        """
    (tmp_path / "mine.toml").write_text(toml)
    seen: list[Any] = []
    for rows in (TESTED, [row + "5" for row in TESTED]):
        (tmp_path / "rows.csv").write_text("\n".join(["who,part,kind,x", *ROWS, *rows]))
        command = ("tune", "mine.toml", "--trials", "2", "--workers", "0", "--json")
        for out in (f"new-{len(seen)}", "same"):
            done = quped(*command, "--out", out, cwd=tmp_path)
            assert done.returncode == 0, done.stderr
        seen.append([{**trial, "seconds": 0} for trial in json.loads(done.stdout)[0]["trials"]])
    assert seen[0] == seen[1]
    (tmp_path / "rows.csv").write_text("\n".join(["who,part,kind,x", *ROWS[1:], *TESTED]))
    fails(quped(*command, "--out", "same", cwd=tmp_path), "holds trials with other clients, data or options")
    fails(quped("tune", "mine.toml", "--overwrite", "--out", ".", cwd=tmp_path), "holds no trials of `quped tune`")
    assert tomllib.loads((tmp_path / "same" / "best.toml").read_text())["data"]["csv"] == str(tmp_path / "rows.csv")
