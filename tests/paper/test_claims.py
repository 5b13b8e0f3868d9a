"""What the records say of the paper's claims: differences by hand, and what counts as evidence."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from quped.cli import app
from quped.errors import InvalidValueError
from quped.paper.claims import CLAIMS, Evidence, evidence, known, markdown, values
from quped.paper.table import ROWS, Cell, find_table, tables
from quped.records import write_json


def record(
    folder: Path, table: str, method: str, seed: int, accuracy: float, epochs: int | None = None, data: str = "abc"
) -> None:
    """Write the record of a run that was never made, in the last column of a table."""
    found = find_table(table)
    cell = Cell(found, found.columns[-1], method, seed, epochs)
    path = folder / cell.path
    path.parent.mkdir(parents=True, exist_ok=True)
    result = {
        **{"table": table, "column": cell.column.name, "method": method, "seed": seed, "config": cell.config},
        **{"accuracy": {"mean": accuracy}, "curve": [], "epochs": epochs or cell.full_epochs, "data": data},
        **{"full_epochs": cell.full_epochs, "shortened": cell.shortened, "seconds": 1.0, "date": "", "versions": {}},
    }
    write_json(path, result)


def one(folder: Path, words: str) -> Evidence:
    """Return the only evidence of a claim."""
    (claim,) = (claim for claim in CLAIMS if claim.words == words)
    (found,) = evidence(claim, folder)
    return found


def test_every_claim_is_about_methods_of_a_table() -> None:
    """No pair is misspelt, and each can be compared somewhere."""
    assert len(CLAIMS) == 19
    for claim in CLAIMS:
        for pair in claim.pairs:
            assert set(pair) <= ROWS.keys()
            assert any(set(pair) <= set(table.methods) for table in tables().values()), pair


def test_differences_at_equal_seeds(tmp_path: Path) -> None:
    """MNIST with 4 classes, by hand: seeds 0 and 1 have both, seed 2 only one."""
    for seed, accuracy in enumerate((0.985, 0.980, 0.999)):
        record(tmp_path, "mnist", "quped", seed, accuracy)
    for seed, accuracy in enumerate((0.980, 0.979)):
        record(tmp_path, "mnist", "fedavg", seed, accuracy)
    found = one(tmp_path, "QuPeD in full precision beats FedAvg")
    assert found.seeds == [0, 1]
    assert found.differences == pytest.approx([0.5, 0.1])
    assert found.verdict == "holds"
    assert found.paper == pytest.approx(98.89 - 98.65)
    # Mean 0.3, sample deviation 0.4 / sqrt 2.
    row = "| QuPeD in full precision beats FedAvg | MNIST, 4 classes +0.30 ± 0.28 (+0.24) |  |  |"
    assert markdown(known(tmp_path)).splitlines()[2:] == [row]


@pytest.mark.parametrize(
    ("accuracies", "verdict"),
    [
        ([0.984], "holds"),
        ([0.982], "level"),
        ([0.976], "does not hold"),
        ([0.981, 0.9801], "holds"),
        ([0.990, 0.979], "level"),
        ([0.9799, 0.970], "does not hold"),
    ],
)
def test_one_seed_decides_by_its_size_and_several_by_their_sign(
    accuracies: list[float], verdict: str, tmp_path: Path
) -> None:
    """Against local training at 98.0."""
    for seed, accuracy in enumerate(accuracies):
        record(tmp_path, "mnist", "quped-2bit", seed, accuracy)
        record(tmp_path, "mnist", "local-2bit", seed, 0.980)
    assert one(tmp_path, "QuPeD at 2 bits beats local training at 2 bits").verdict == verdict


def test_runs_of_equal_length_are_compared(tmp_path: Path) -> None:
    """Full ones if there are both, or else the longest; and shortened ones say so."""
    record(tmp_path, "cifar10-cnn1", "quped+-1bit", 0, 0.68, epochs=40)
    record(tmp_path, "cifar10-cnn1", "quped+-1bit", 0, 0.60, epochs=20)
    record(tmp_path, "cifar10-cnn1", "quped-1bit", 0, 0.70)
    assert known(tmp_path) == []
    record(tmp_path, "cifar10-cnn1", "quped-1bit", 0, 0.61, epochs=20)
    record(tmp_path, "cifar10-cnn1", "quped-1bit", 0, 0.65, epochs=40)
    assert "| CIFAR-10, 1 bit [40 of 250 epochs] +3.00 |" in markdown(known(tmp_path))
    record(tmp_path, "cifar10-cnn1", "quped+-1bit", 0, 0.69)
    assert "| CIFAR-10, 1 bit -1.00 |" in markdown(known(tmp_path))


def test_runs_on_other_data_are_not_compared(tmp_path: Path) -> None:
    """Such as all of a data set, and an extract of it."""
    record(tmp_path, "ag-news", "quped", 0, 0.85)
    record(tmp_path, "ag-news", "fedavg", 0, 0.80, data="extract")
    assert known(tmp_path) == []


def test_clients_that_differ_have_a_claim_of_their_own(tmp_path: Path) -> None:
    """QuPeD against local training there is not a row of full precision."""
    for method, accuracy in (("quped", 0.75), ("local", 0.72)):
        record(tmp_path, "heterogeneous", method, 0, accuracy)
    (claim,) = values(known(tmp_path))
    assert claim["claim"] == "Collaboration helps where networks and bit-widths differ"
    (found,) = claim["evidence"]
    assert found["differences"] == {0: 3.0}


def test_on_the_command_line(tmp_path: Path) -> None:
    """As tables, as JSON, and what is said without records."""
    record(tmp_path, "mnist", "quped", 0, 0.99)
    with pytest.raises(InvalidValueError, match="nothing to compare"):
        CliRunner().invoke(app, ["reproduce", "--claims", "--out", str(tmp_path)], catch_exceptions=False)
    record(tmp_path, "mnist", "fedavg", 0, 0.98)
    shown = CliRunner().invoke(app, ["reproduce", "--claims", "--out", str(tmp_path)])
    assert shown.exit_code == 0
    assert "MNIST, 4 classes" in shown.output
    assert "+1.00" in shown.output
    asked = CliRunner().invoke(app, ["reproduce", "--claims", "--json", "--out", str(tmp_path)])
    (claim,) = json.loads(asked.stdout)
    assert claim["evidence"][0]["verdict"] == "holds"
