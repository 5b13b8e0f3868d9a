"""`quped paper`, and its old name."""

import json
from pathlib import Path

import pytest
from filelock import FileLock
from helpers.paper import SMALL, one_run, over, small_table, write_record
from typer.testing import CliRunner, Result

from quped.cli import app
from quped.errors import InvalidValueError, RunError
from quped.paper.execute import scratch_folder
from quped.paper.table import Table


@pytest.fixture(autouse=True)
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Table:
    """Work in an empty folder with the file small.toml."""
    monkeypatch.chdir(tmp_path)
    return small_table(tmp_path)


def quped(*words: str) -> Result:
    return CliRunner().invoke(app, list(words), catch_exceptions=False)


RUN = ("paper", "run", "small.toml", "--workers", "0")


def test_a_table_from_start_to_finish() -> None:
    first = quped(*RUN, "--seeds", "2", "--methods", "quped-2bit,fedavg")
    assert "4 to go" in first.output
    assert "90.00 ± 0.50" in first.output
    folder = Path("results/small")
    assert {path.name for path in folder.iterdir()} == {"digits", "table.md", "table.json", "curves.png"}
    assert (folder / "curves.png").stat().st_size > 10_000
    stamps = {path: path.stat().st_mtime_ns for path in folder.rglob("seed-*.json")}
    assert len(stamps) == 4

    again = quped(*RUN, "--seeds", "2", "--methods", "fedavg", "--json")
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("seed-*.json")} == stamps
    lines = json.loads(again.stdout)["columns"]["digits"]
    assert [(line["method"], line["seeds"]) for line in lines] == [("quped-2bit", 2), ("fedavg", 2)]


def test_a_shortened_run_has_its_own_files() -> None:
    done = quped(*RUN, "--methods", "fedavg", "--seeds", "1", "--epochs", "2")
    assert "table-epochs-2.md, table-epochs-2.json, curves-epochs-2.png" in done.output
    for name in ("table.md", "table-epochs-2.md"):
        assert "FedAvg [2 of 4 epochs]" in (Path("results/small") / name).read_text()


def test_a_run_of_another_process_is_a_note_beside_the_json(table: Table) -> None:
    lock = Path("results") / scratch_folder(one_run(table, "fedavg"), "")
    lock.parent.mkdir(parents=True)
    with FileLock(lock.with_suffix(".lock")):
        done = quped(*RUN, "--methods", "fedavg", "--seeds", "1", "--json")
    assert json.loads(done.stdout)["columns"] == {"digits": []}
    assert "another process executes 1" in done.stderr


def test_a_grid_tries_the_same_rates_for_every_row_on_validation_samples(tmp_path: Path) -> None:
    small_table(tmp_path, text=SMALL.replace('source = "nowhere"', 'source = "nowhere"\ngrid = [0.1, 0.4, 1e30]'))
    grid = ("paper", "grid", "small.toml", "--workers", "0", "--epochs", "2")
    first = quped(*grid, "--methods", "fedavg", "--json")
    (line,) = json.loads(first.stdout)["columns"]["digits"]
    assert (line["method"], line["used"], line["accuracies"]["1e+30"]) == ("fedavg", 0.05, 0.0)
    assert line["accuracies"][f"{line['best']:g}"] == max(line["accuracies"].values())
    records = [json.loads(path.read_text()) for path in sorted(Path("results").rglob("seed-0.json"))]
    assert [record["config"]["training"]["lr"] for record in records] == [0.1, 0.4, 1e30]
    assert {record["config"]["data"]["evaluate_on"] for record in records} == {"validation"}
    assert "training loss" in records[-1]["failed"]
    second = json.loads(quped(*grid, "--methods", "quped-2bit", "--json").stdout)["columns"]["digits"]
    assert [one["method"] for one in second] == ["quped-2bit", "fedavg"]
    assert second[1] == line
    assert json.loads(Path("results/small/grid-epochs-2.json").read_text())["columns"]["digits"] == second
    with pytest.raises(RunError, match="no record of any table"):  # trials are no results
        quped("paper", "docs", "--update", "--docs", "small.toml")


def test_list_says_what_tables_need() -> None:
    done = quped("paper", "list").output
    assert "needs: femnist, mnist" in done
    assert "needs: cifar10, --warm-start FOLDER" in done


def test_claims_as_a_table_and_as_json() -> None:
    with pytest.raises(InvalidValueError, match="nothing to compare"):
        quped("paper", "claims")
    for method, accuracy in (("quped", over(0.99, 0.98)), ("fedavg", over(0.98, 0.97))):
        write_record(Path("results"), one_run("mnist", method), accuracy)
    shown = quped("paper", "claims").output
    assert "QuPeD beats FedAvg" in shown
    assert "+1.00" in shown
    (claim,) = json.loads(quped("paper", "claims", "--json").stdout)
    assert claim["evidence"][0]["verdict"] == "holds"


def test_docs_are_updated_and_checked() -> None:
    write_record(Path("results"), one_run("mnist", "quped"), 0.99)
    document = Path("mine.md")
    document.write_text("<!-- results: mnist -->\n<!-- end -->\n")
    with pytest.raises(RunError, match="does not agree"):
        quped("paper", "docs", "--docs", "mine.md")
    quped("paper", "docs", "--update", "--docs", "mine.md")
    assert "| QuPeD | FP | 99.00 |" in document.read_text()
    assert "agrees" in quped("paper", "docs", "--docs", "mine.md").output


@pytest.mark.parametrize(
    ("words", "command", "shown"),
    [
        ((), "list", "mnist"),
        (("--list",), "list", "mnist"),
        (("small.toml", "--status"), "status", "quped-2bit-ste"),
        (("small.toml", "--methods", "fedavg", "--seeds", "1", "--workers", "0"), "run", "FedAvg"),
    ],
)
def test_the_old_name_still_works(words: tuple[str, ...], command: str, shown: str) -> None:
    done = quped("reproduce", *words)
    assert f"now `quped paper {command}`" in done.stderr
    assert shown in done.stdout
    assert done.exit_code == 0
    assert "reproduce" not in quped("--help").output
