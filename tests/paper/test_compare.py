"""From records to tables, pictures and documents."""

from pathlib import Path

import pytest
from helpers.paper import one_run, over, small_table, write_record
from matplotlib.figure import Figure

from quped.errors import RunError
from quped.paper import docs
from quped.paper.compare import Line, compare, markdown, provenance, values, with_equal_inputs
from quped.paper.curves import by_length, curve, draw_column
from quped.paper.table import Table, find_table, tables


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return small_table(tmp_path)


def line(table: Table, method: str, folder: Path) -> Line:
    """Return the only line of a method."""
    ((_, lines),) = compare(table, folder)
    (one,) = (line for line in lines if line.row.name == method)
    return one


def test_mean_deviation_and_difference_by_hand(table: Table, tmp_path: Path) -> None:
    for seed, accuracy in enumerate((0.90, 0.94)):
        write_record(tmp_path, one_run(table, "quped-2bit", seed), accuracy)
    write_record(tmp_path, one_run(table, "quped-2bit-ste", 1), 0.95)  # a later seed alone
    ours, ste = line(table, "quped-2bit", tmp_path), line(table, "quped-2bit-ste", tmp_path)
    # The sample deviation of 90 and 94 is the root of 8.
    assert ours.texts() == ("QuPeD", "2", "92.00 ± 2.83", "", "", "", "", "", "2", "90.00 ± 0.50", "+2.00")
    assert ste.texts() == ("QuPeD, STE (ours)", "2", "95.00", "", "", "", "", "", "1", "", "")
    assert values(table, compare(table, tmp_path))["columns"]["digits"][1]["accuracies"] == {1: 95.0}


def test_what_a_mean_hides_by_hand(tmp_path: Path) -> None:
    """An error of 100 samples is 5 points at 0.50, 4.9 at 0.61, 4 at 0.80 and 3.9 at 0.81."""
    table, samples = find_table("mnist"), dict.fromkeys(["c0", "c1"], 100)
    fedavg, own = over(0.60, 0.90), over(0.95, 0.90)
    write_record(tmp_path, one_run(table, "fedavg"), fedavg, accuracy_own_classes=own, global_accuracy=0.75)
    write_record(tmp_path, one_run(table, "local-2bit"), over(0.61, 0.80), test_samples=samples)
    write_record(tmp_path, one_run(table, "quped-2bit"), over(0.50, 0.81), test_samples=samples)
    ours = line(table, "quped-2bit", tmp_path)
    assert ours.below_local == 0.5  # by 11 and by -1 points
    assert ours.below_fedavg == 0.5  # by 10, which is not more than two errors, and by 9
    assert line(table, "local-2bit", tmp_path).below_fedavg == 0.5  # by -1 and by 10
    assert line(table, "fedavg", tmp_path).below_local is None  # there is none in full precision
    restricted = line(table, "fedavg-own", tmp_path)
    assert (restricted.mean, restricted.worst_tenth) == pytest.approx((92.5, 90.0))
    text = markdown(compare(table, tmp_path))
    assert "| QuPeD | 2 | 65.50 | 50.00 | 50% | 50% |  | 1 | 98.67 ± 0.18 | -33.17 |" in text
    assert "| FedAvg | FP | 75.00 | 60.00 |  |  | 75.00 | 1 |" in text
    assert "3 runs" in text  # FedAvg's record is read twice


def test_shortened_runs_are_marked_until_there_is_a_full_one(table: Table, tmp_path: Path) -> None:
    for epochs in (1, 2):
        write_record(tmp_path, one_run(table, "fedavg", epochs=epochs), 0.5)
    ((_, lines),) = compare(table, tmp_path)
    assert [line.title for line in lines] == ["FedAvg [2 of 4 epochs]", "FedAvg [1 of 4 epochs]"]
    write_record(tmp_path, one_run(table, "fedavg"), 0.6)
    assert "epochs]" not in markdown(compare(table, tmp_path))
    assert "FedAvg [2 of 4 epochs]" in markdown(compare(table, tmp_path, epochs=2))


def test_a_mean_is_over_equal_inputs() -> None:
    records: list[dict[str, object]] = [{"data": "a", "n": 1}, {"data": "b", "n": 2}, {"data": "b", "n": 3}]
    assert with_equal_inputs(records) == records[1:]
    assert with_equal_inputs([{"weights": "a"}, {"weights": "b"}, {"weights": "a"}]) == [{"weights": "a"}] * 2
    assert with_equal_inputs([]) == []


def test_a_table_names_its_sources() -> None:
    first = {"date": "2026-01-02", "versions": {"torch": "2"}, "seconds": 5400, "samples": 2000, "weights": "a" * 64}
    second = {"date": "2026-01-01", "versions": {"torch": "2"}, "seconds": 1800}
    text = provenance([first, second])
    for part in ("2 runs", "2.0 hours", "2026-01-01 to 2026-01-02", "2,000 training samples", "a" * 12, "torch 2"):
        assert part in text
    assert provenance([second]).startswith("1 run, 30 minutes")


def test_a_picture_has_a_field_for_each_length(tmp_path: Path) -> None:
    for method, epochs in (("centers-1bit", 10), ("centers-1bit", 3), ("centers-2bit", 3), ("float", None)):
        write_record(tmp_path, one_run("table1", method, epochs=epochs), 0.9)
    ((_, lines),) = compare(find_table("table1"), tmp_path)
    fields = [{line.row.name for line in field} for field in by_length(lines)]
    assert fields == [{"float", "centers-1bit"}, {"float", "centers-1bit", "centers-2bit"}]  # float is in each


def test_many_curves_have_a_panel_for_each_bit_width(tmp_path: Path) -> None:
    table = find_table("femnist-cnn1")
    for name in table.rows:
        write_record(tmp_path, one_run(table, name), 0.9)
    ((column, lines),) = compare(table, tmp_path)
    for shown, titles in ((lines, ["full precision", "2 bits", "1 bit"]), (lines[:8], [""])):
        (part,) = Figure().subfigures(1, 1, squeeze=False).flat
        draw_column(part, column, shown)
        assert [axis.get_title() for axis in part.axes] == titles
        assert len({axis.get_ylim() for axis in part.axes}) == 1
        labels = [text.get_text() for axis in part.axes for text in axis.get_legend().get_texts()]
        assert len(set(labels)) == len(shown)


def test_a_curve_is_the_mean_at_the_epochs_of_all_seeds(table: Table, tmp_path: Path) -> None:
    """Runs that began with the model of another one have no accuracies before."""
    for seed, known in enumerate(([2, 3], [0, 1, 2, 3])):
        points = [{"epoch": epoch, "accuracy": 0.1 * epoch + 0.2 * seed} for epoch in known]
        write_record(tmp_path, one_run(table, "quped-2bit", seed), 0.9, curve=points)
    epochs, accuracies = curve(line(table, "quped-2bit", tmp_path))
    assert epochs == [3.0, 4.0]
    assert accuracies == pytest.approx([30.0, 40.0])


BLOCK = "<!-- results: small -->\n<!-- end -->"


def test_documents_are_written_and_checked(table: Table, tmp_path: Path) -> None:
    write_record(tmp_path, one_run(table, "fedavg"), 0.8)
    document = tmp_path / "results.md"
    document.write_text(f"# Results\n\n{BLOCK}\n\nMore.\n")
    docs.update(document, [table], tmp_path)
    text = document.read_text()
    assert "| FedAvg | FP | 80.00 | 1 | 80.00 ± 0.25 | +0.00 |" in text
    assert text.endswith("<!-- end -->\n\nMore.\n")
    assert {path.name for path in (tmp_path / "small").glob("*.*")} == {"table.md", "table.json", "curves.png"}
    assert docs.check(document, [table], tmp_path) == []
    document.write_text(text.replace("80.00 ± 0.25", "81.00 ± 0.25"))
    assert any("81.00" in difference for difference in docs.check(document, [table], tmp_path))
    document.write_text(text)
    (tmp_path / "small" / "table.md").write_text("| FedAvg | 99.99 |")
    (difference,) = docs.check(document, [table], tmp_path)
    assert "table.md differs" in difference


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (BLOCK + "\n<!-- results: small -->\n", "no <!-- end -->"),
        ("Nothing.", "records of small.*no place"),
        ("<!-- results: none -->\n<!-- end -->", "'none', which does not exist"),
    ],
)
def test_blocks_and_tables_belong_together(text: str, words: str, table: Table, tmp_path: Path) -> None:
    write_record(tmp_path, one_run(table, "fedavg"), 0.8)
    with pytest.raises(RunError, match=words):
        docs.fill(text, [table], tmp_path)


def test_the_projects_documents_agree_with_its_records() -> None:
    root = Path(__file__).parents[2]
    (document,) = (root / "docs").rglob("results.md")
    assert docs.check(document, tables().values(), root / "results") == []
