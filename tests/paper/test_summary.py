"""The summary: which lines it compares, and by how much."""

from pathlib import Path

from helpers.paper import SMALL, one_run, over, small_table, write_record

from quped.paper import docs
from quped.paper.compare import compare
from quped.paper.summary import Pair, markdown, summarize
from quped.paper.table import Table, find_table

FLAGSHIP = SMALL.replace("quped-2bit-ste = {}", "quped-2bit-ste = { flagship = true }")


def record(folder: Path, table: Table, method: str, accuracies: tuple[float, ...], size: float, seed: int = 0) -> None:
    write_record(folder, one_run(table, method, seed), over(*accuracies), bytes_packed=size)


def only(table: Table, folder: Path) -> Pair:
    (pair,) = summarize([compare(table, folder)])
    return pair


def test_the_best_of_both_kinds_by_hand(tmp_path: Path) -> None:
    table = small_table(tmp_path)
    record(tmp_path, table, "quped-2bit", (0.90, 0.94), 10_000)
    assert summarize([compare(table, tmp_path)]) == []  # there is nothing in full precision
    record(tmp_path, table, "fedavg", (0.93, 0.95), 80_000)
    record(tmp_path, table, "quped-2bit-ste", (0.80, 0.84), 10_000)
    # Differences of -3 and -1 points: mean -2, deviation sqrt 2, standard error 1.
    line = "| Digits | QuPeD | 92.00 | 10.0 |  | FedAvg | 94.00 | 80.0 | -2.00 ± 1.00 |"
    assert markdown([only(table, tmp_path)]).splitlines()[2:] == [line]


def test_the_flagship_stands_for_us(tmp_path: Path) -> None:
    table = small_table(tmp_path, text=FLAGSHIP)
    for method, accuracies in (("quped-2bit", (0.9,)), ("quped-2bit-ste", (0.8,)), ("fedavg", (0.7,))):
        record(tmp_path, table, method, accuracies, 10_000)
    assert only(table, tmp_path).ours.row.name == "quped-2bit-ste"


def test_shortened_runs_and_mixed_clients_are_left_out(tmp_path: Path) -> None:
    table = find_table("mnist")
    for method in ("quped-2bit", "fedavg"):
        write_record(tmp_path, one_run(table, method, epochs=20), 0.9)
    for method in ("quped", "local"):
        write_record(tmp_path, one_run("heterogeneous", method), 0.9)
    assert summarize([compare(table, tmp_path), compare(find_table("heterogeneous"), tmp_path)]) == []


def test_a_document_gets_the_table_and_the_picture(tmp_path: Path) -> None:
    table = small_table(tmp_path)
    for method, size in (("quped-2bit", 10_000), ("fedavg", 80_000)):
        record(tmp_path, table, method, (0.9, 0.8), size)
    document = tmp_path / "results.md"
    document.write_text("".join(f"<!-- results: {name} -->\n<!-- end -->\n" for name in ("small", "summary")))
    docs.update(document, [table], tmp_path)
    assert "| Digits | QuPeD | 85.00 | 10.0 |" in document.read_text()
    assert (tmp_path / "summary.png").stat().st_size > 5_000
    assert docs.check(document, [table], tmp_path) == []
    document.write_text(document.read_text().replace("| 85.00 | 10.0 |", "| 86.00 | 10.0 |"))
    assert any("86.00" in difference for difference in docs.check(document, [table], tmp_path))


def test_differences_are_at_equal_seeds(tmp_path: Path) -> None:
    table = small_table(tmp_path)
    for method, seeds in (("quped-2bit", (0, 1)), ("fedavg", (1, 2))):
        for seed in seeds:
            record(tmp_path, table, method, (0.9, 0.8 - seed / 10), 1000, seed)
    assert only(table, tmp_path).difference == "+0.00 ± 0.00"
