"""The paper's tables: that they say what the paper says, that a part of one runs, and what is made of the results."""

import hashlib
import io
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from quped.algorithms import QuPeD
from quped.cli import app
from quped.cli import reproduce as command
from quped.cli.paper import agree, show
from quped.data.download import store
from quped.errors import InvalidValueError, RunError
from quped.experiments import reproduce, table
from quped.paper.compare import Line, alike, markdown, provenance, rows
from quped.paper.curves import apart, by_length, draw_column, finetuning, label, look
from quped.paper.docs import document
from quped.paper.figures import FIGURES, Figure, read
from quped.paper.runs import run_cell, status, stored
from quped.paper.table import ROWS, Cell, find_table, tables

TABLE_COUNT = 10

SMALL = """
title = "A small table"
source = "nowhere"
methods = ["quped-2bit", "fedavg", "quped+-2bit"]
[training]
epochs = 4
finetune_epochs = 2
batch_size = 60
[lam]
1 = { rate = 1e-6, decay = 0.99 }
2 = { rate = 5e-6 }
[[columns]]
name = "digits"
title = "Digits"
data = { name = "digits", partition = "iid" }
clients = [{ count = 3, model = "mlp" }]
lr = { fedavg = 0.05 }
"""


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[table.Table]:
    """Have a table that runs in a second, and another one with the same runs."""
    monkeypatch.setattr(table, "FOLDER", tmp_path / "tables")
    (tmp_path / "tables").mkdir()
    for name in ("small", "twin"):
        (tmp_path / "tables" / f"{name}.toml").write_text(SMALL)
        figures = {"digits": {"quped-2bit": Figure(90.0, 0.5), "fedavg": Figure(80.0, 0.25)}}
        monkeypatch.setitem(cast(dict[str, object], FIGURES), name, figures)
    monkeypatch.setitem(reproduce.SAMPLES, "digits", 1442)
    monkeypatch.chdir(tmp_path)
    tables.cache_clear()
    yield find_table("small")
    tables.cache_clear()


def test_every_table_has_the_papers_figures() -> None:
    """Each has figures for exactly its columns and methods."""
    assert len(tables()) == TABLE_COUNT == len(FIGURES)
    for name, found in tables().items():
        assert {column.name for column in found.columns} == set(FIGURES[name])
        for column in found.columns:
            papers = [m for m in found.methods if "+" not in m and not ROWS[m].tuned and not ROWS[m].warmup_epochs]
            assert list(FIGURES[name][column.name]) == papers


def test_figures_by_hand() -> None:
    """A few numbers of the paper, and how they are read."""
    assert read("a b", "m 1.5 0.5 2 0.25\nn 3 1 4 1") == {
        "a": {"m": Figure(1.5, 0.5), "n": Figure(3, 1)},
        "b": {"m": Figure(2, 0.25), "n": Figure(4, 1)},
    }
    assert FIGURES["cifar10-cnn1"]["cifar10"]["quped-2bit"] == (74.58, 0.44)
    assert FIGURES["mnist"]["4-classes"]["perfedavg"] == (98.93, 0.09)
    assert FIGURES["heterogeneous"]["femnist-2bit-2bit"]["local"] == (91.11, 0.23)


def test_every_cell_is_a_valid_experiment_with_the_papers_hyperparameters() -> None:
    """tau = 10, decay 0.99, weight decay 1e-4, lr 0.1 but for two cases and text; bits as the method says."""
    seen = 0
    federated = [found for found in tables().values() if found.name != "table1"]
    for found in federated:
        for cell in found.cells(seeds=1):
            experiment = cell.experiment
            training, row = experiment.training, ROWS[cell.method]
            exceptions = {("femnist", "local"): 0.075, ("cifar10", "perfedavg"): 0.125}
            usual = 10 if experiment.data.name == "ag_news" else 0.1
            assert training.lr == exceptions.get((experiment.data.name, row.algorithm), usual)
            assert (training.local_steps, training.lr_decay, training.weight_decay) == (10, 0.99, 1e-4)
            assert experiment.methods[0].algorithm.name == row.algorithm
            if found.name != "heterogeneous":
                assert {group.bits for group in experiment.clients} == {row.bits}
                assert bool(training.finetune_epochs) == (row.bits < 32)
            seen += 1
    assert seen == sum(len(t.columns) * len(t.methods) for t in federated) == 142


def test_hyperparameters_that_depend_on_the_data_and_the_network() -> None:
    """lambda(t) by data set, lambda_p by network, and the network of the global model."""
    (cifar,) = find_table("cifar10-cnn1").cells(["quped-1bit"], seeds=1)
    quantization = cifar.experiment.algorithm["quantization"]
    assert quantization["lam"] == {"1": {"rate": 5e-7, "decay": 0.99}, "2": {"rate": 1e-6}}
    assert cifar.experiment.training.finetune_epochs == 50
    (tuned,) = find_table("cifar10-cnn1").cells(["quped-2bit-tuned"], seeds=1)
    assert tuned.experiment.algorithm["quantization"] == {"lam": {"2": {"rate": 3e-6, "decay": 0.99}}}
    assert [g.bits for g in tuned.experiment.clients] == [2]
    for name, epochs in (("cifar10-cnn1", 100), ("femnist-cnn1", 12), ("mnist", 20)):
        table = find_table(name)
        for cell in table.cells(["quped", "quped-2bit-together"], seeds=1):
            assert cell.config["algorithm"]["warmup_epochs"] == (epochs if cell.method != "quped" else 0)
    for found in tables().values():
        for cell in found.cells(seeds=1):
            if cell.recipe is None and cell.config["algorithm"]["name"] == "quped":
                step = cell.config["algorithm"]["lambda_p"] * cell.config["algorithm"]["global_lr_ratio"]
                assert step == pytest.approx(1 if cell.experiment.data.name == "cifar10" else 0.25, abs=1e-3)
    deep = {cell.method: cell.experiment for cell in find_table("cifar10-cnn2").cells(seeds=1)}
    assert deep["quped"].algorithm["lambda_p"] == 0.15
    assert deep["quped"].global_model is not None
    assert deep["quped"].global_model.name == "cnn1"
    assert deep["fedavg"].global_model is None  # it meets in the client's own
    (fixed,) = find_table("no-center-updates").cells(["quped-1bit-fixed"], seeds=1)
    assert fixed.experiment.algorithm["quantization"]["update_centers"] is False


def test_a_plus_is_the_same_run_straight_through() -> None:
    """quped+ differs from quped in this alone; and it has no figure in the paper to be compared with."""
    papers, ours = (
        cell.config for cell in find_table("mnist").cells(["quped-1bit", "quped+-1bit"], ["4-classes"], seeds=1)
    )
    assert papers["algorithm"]["quantization"].pop("straight_through") is False
    assert ours["algorithm"]["quantization"].pop("straight_through") is True
    assert papers == ours
    run = {"accuracy": {"mean": 0.9}, "epochs": 3, "full_epochs": 3, "shortened": False, "seconds": 1.0, "seed": 0}
    line = Line("quped+-1bit", "1", [run, {**run, "seed": 1}], None)
    assert line.texts() == ("QuPeD +", "1", "90.00 ± 0.00", "2", "", "")
    assert (line.values()["paper"], line.values()["difference"]) == (None, None)
    assert line.values()["accuracies"] == {0: 90.0, 1: 90.0}


def test_the_list_tells_what_a_table_needs() -> None:
    """Data sets to fetch, and the option without which networks have nothing to begin with."""
    assert command.needs(find_table("sampling")) == ["femnist", "mnist"]
    assert command.needs(find_table("table1")) == ["cifar10", "--warm-start FOLDER"]
    assert "needs: femnist, mnist" in CliRunner().invoke(app, ["reproduce", "--list"]).output


def test_a_table_may_have_options_of_quantization() -> None:
    """They stand beside lambda, and what makes a row what it is stands above them."""
    whole = find_table("ag-news")
    options = {"quped": {"quantization": {"center_grad_clip": 1.0, "straight_through": False}}}
    changed = whole.model_copy(update={"algorithms": options, "methods": ("quped-1bit", "quped+-1bit")})
    for cell, through in zip(changed.cells(seeds=1), (False, True), strict=True):
        (method,) = cell.experiment.methods
        assert isinstance(method.algorithm, QuPeD)
        found = method.algorithm.quantization
        assert (found.center_grad_clip, found.straight_through, found.lam[1].decay) == (1.0, through, 0.99)


def test_every_method_has_a_color() -> None:
    """Or else the picture would fail after hours of runs. No two look alike."""
    for found in tables().values():
        assert len({look(method) for method in found.methods}) == len(found.methods)


def test_the_papers_marks_do_not_hide_each_other() -> None:
    """Those that are near each other are put side by side."""
    assert apart([98.7, 98.66, 98.65, 97.0, 98.0], 0.1) == [0, 1, 2, 0, 0]
    assert apart([3.0, 2.0, 1.0], 1.5) == [0, 1, 0]


def test_table_1_is_the_papers_recipe() -> None:
    """Adam with 0.01, lambda(t) = 1e-4 t, eta_2 1e-4 with two drops, 250 epochs; full precision is only evaluated."""
    recipes = {cell.method: cell.recipe for cell in find_table("table1").cells(columns=["resnet32"], seeds=1)}
    two_bits, full = recipes["centers-2bit"], recipes["float"]
    assert two_bits is not None
    assert full is not None
    assert (two_bits.model, two_bits.bits, two_bits.epochs, two_bits.finetune_epochs) == ("resnet32", 2, 250, 50)
    assert (two_bits.lr, two_bits.lam, two_bits.batch_size) == (0.01, 1e-4, 128)
    assert [two_bits.eta2_at(t) for t in (1, 79, 80, 140)] == pytest.approx([1e-4, 1e-4, 1e-5, 1e-6])
    assert full.epochs == 0
    (short,) = find_table("table1").cells(["centers-1bit"], ["resnet20"], 1, 10)
    assert short.recipe is not None
    assert (short.recipe.epochs, short.recipe.finetune_epochs, short.recipe.stretch) == (10, 2, 25.0)


def test_a_shortened_run_ends_where_the_full_one_does() -> None:
    """Its schedules pass five times as fast, and its share of fine-tuning is the same."""
    full, short = (find_table("mnist").cells(["quped-2bit"], ["3-classes"], 1, e)[0] for e in (None, 10))
    assert short.shortened
    assert not full.shortened
    assert short.path == Path("mnist/3-classes/quped-2bit/epochs-10/seed-0.json")
    assert full.path == Path("mnist/3-classes/quped-2bit/seed-0.json")
    training = short.experiment.training
    assert (training.epochs, training.finetune_epochs, training.stretch) == (10, 1, 5.0)
    assert find_table("mnist").cells(["fedavg"], None, 1, 50)[0].path.parent.name == "fedavg"


def test_unknown_names_are_refused_with_a_hint() -> None:
    """Tables, methods, columns."""
    with pytest.raises(InvalidValueError, match=r"no table 'minst'.*mnist"):
        find_table("minst")
    with pytest.raises(InvalidValueError, match=r"no method 'quped2bit'.*quped-2bit"):
        find_table("mnist").cells(["quped2bit"])
    with pytest.raises(InvalidValueError, match=r"no column '3'"):
        find_table("mnist").cells(None, ["3"])


def test_a_table_from_start_to_finish(small: table.Table) -> None:
    """It runs, is shown, is skipped the second time, and one shared with another table is found there."""
    runner = CliRunner()
    done = runner.invoke(app, ["reproduce", "small", "--seeds", "2", "--workers", "0"], catch_exceptions=False)
    assert done.exit_code == 0
    assert "6 to go" in done.output
    assert "QuPeD" in done.output
    assert "90.00 ± 0.50" in done.output
    folder = Path("results/small")
    assert {p.name for p in folder.iterdir()} == {"digits", "table.md", "table.json", "curves.png"}
    assert (folder / "curves.png").stat().st_size > 10_000
    assert not list(folder.rglob("*.partial"))
    stamps = {path: path.stat().st_mtime_ns for path in folder.rglob("seed-*.json")}
    assert len(stamps) == 6

    again = runner.invoke(app, ["reproduce", "twin", "--seeds", "2", "--json"], catch_exceptions=False)
    assert {path: path.stat().st_mtime_ns for path in Path("results").rglob("seed-*.json")} == stamps
    values = json.loads(again.output)["columns"]["digits"]
    assert [line["method"] for line in values] == ["quped-2bit", "fedavg", "quped+-2bit"]
    accuracies = [
        json.loads((folder / f"digits/quped-2bit/seed-{s}.json").read_text())["accuracy"]["mean"] for s in (0, 1)
    ]
    assert values[0]["mean"] == pytest.approx(50 * sum(accuracies), abs=1e-4)
    assert values[0]["std"] == pytest.approx(100 * abs(accuracies[0] - accuracies[1]) / 2**0.5, abs=1e-4)
    assert values[0]["difference"] == pytest.approx(values[0]["mean"] - 90, abs=1e-4)

    shown = runner.invoke(app, ["reproduce", "small", "--status"], catch_exceptions=False)
    assert "fedavg" in shown.output
    assert not status(small.cells(seeds=2), Path("results")).missing
    assert [cell.seed for cell in status(small.cells(seeds=3), Path("results")).missing] == [2, 2, 2]


def test_shortened_runs_are_marked_everywhere(small: table.Table) -> None:
    """In the file, in the table, in Markdown, at every length; and a full run takes their place when it is there."""
    out = Path("results")
    (short,) = small.cells(["fedavg"], None, 1, 2)
    result = run_cell(short, out, workers=0)
    assert result is not None
    assert (result["shortened"], result["epochs"], result["full_epochs"]) == (True, 2, 4)
    assert "FedAvg [2 of 4 epochs]" in markdown(rows(small, out))
    (shorter,) = small.cells(["fedavg"], None, 1, 1)
    run_cell(shorter, out, workers=0)
    ((_, found),) = rows(small, out)
    assert [line.title for line in found] == ["FedAvg [2 of 4 epochs]", "FedAvg [1 of 4 epochs]"]
    assert found[0].std is None
    assert by_length(found) == [found[:1], found[1:]]
    (full,) = small.cells(["fedavg"], None, 1)
    run_cell(full, out, workers=0)
    assert "epochs]" not in markdown(rows(small, out))
    assert "FedAvg [2 of 4 epochs]" in markdown(rows(small, out, epochs=2))


def test_runs_are_shown_wherever_they_are(small: table.Table) -> None:
    """A seed without those before it; a shortened run of another table; more epochs than the full run has."""
    out = Path("results")
    (_, second) = small.cells(["fedavg"], None, 2)
    run_cell(second, out, workers=0)
    ((_, (line,)),) = rows(small, out)
    assert [result["seed"] for result in line.results] == [1]
    (short,) = small.cells(["quped-2bit"], None, 1, 2)
    run_cell(short, out, workers=0)
    twin = find_table("twin")
    assert "QuPeD [2 of 4 epochs]" in markdown(rows(twin, out))
    asked = ["reproduce", "small", "--methods", "fedavg", "--seeds", "2", "--epochs", "9", "--workers", "0"]
    CliRunner().invoke(app, asked, catch_exceptions=False)
    assert [result["seed"] for result in rows(small, out, 9)[0][1][0].results] == [0, 1]
    assert {p.name for p in (out / "small").iterdir()} == {"digits", "table.md", "table.json", "curves.png"}


def test_a_record_says_what_made_it(small: table.Table, tmp_path: Path) -> None:
    """Versions, the commit in a checkout; and what is no record is named."""
    (cell,) = small.cells(["fedavg"], None, 1)
    result = run_cell(cell, tmp_path, workers=0)
    assert result is not None
    git = shutil.which("git") or "false"
    asked = subprocess.run([git, "-C", Path(__file__).parent, "rev-parse", "HEAD"], capture_output=True, text=True)
    if asked.returncode == 0:
        assert re.fullmatch(r"[0-9a-f]{10,}\+?", result["revision"])
        assert asked.stdout.startswith(result["revision"].rstrip("+"))
    else:
        assert result["revision"] is None
    lacking = json.dumps({key: value for key, value in result.items() if key != "seconds"})
    for damaged in ("[]", '{"a": 1}', lacking):
        (tmp_path / cell.path).write_text(damaged)
        with pytest.raises(RunError, match=r"seed-0\.json is damaged, or no part of a record: remove it"):
            stored(cell, tmp_path)
    accuracy = result["accuracy"]
    wrongs: list[dict[str, object]] = [{"accuracy": {**accuracy, "mean": mean}} for mean in (7.5, 0.123, "abc", None)]
    wrongs += [{"seed": 7}, {"method": "local"}, {"accuracy": 0.9}]
    for wrong in wrongs:
        (tmp_path / cell.path).write_text(json.dumps({**result, **wrong}))
        with pytest.raises(RunError, match=r"seed-0\.json says what its run cannot have given: remove it"):
            stored(cell, tmp_path)
    (tmp_path / cell.path).write_text(lacking[:50])
    with pytest.raises(RunError, match=r"seed-0\.json cannot be read: .* remove it and run anew"):
        stored(cell, tmp_path)


def test_a_changed_table_is_run_anew(small: table.Table, tmp_path: Path) -> None:
    """A result of other hyperparameters is not taken for one of these."""
    (cell,) = small.cells(["fedavg"], None, 1)
    run_cell(cell, tmp_path, workers=0)
    assert stored(cell, tmp_path) is not None
    (quantized,) = small.cells(["quped-2bit"], None, 1)
    assert quantized.config["algorithm"]["quantization"]["center_grad_clip"] == 10.0  # defaults are part of it, too
    run_cell(quantized, tmp_path, workers=0)
    path = tmp_path / quantized.path
    result = json.loads(path.read_text())
    result["config"]["algorithm"]["quantization"]["center_grad_clip"] = 5.0
    path.write_text(json.dumps(result))
    assert stored(quantized, tmp_path) is None
    told = CliRunner().invoke(app, ["reproduce", "small", "--seeds", "1", "--out", str(tmp_path), "--workers", "0"])
    assert "1 of them are recorded with other settings or data, and will be replaced" in told.output
    column = small.columns[0].model_copy(update={"lr": {"fedavg": 0.3}})
    assert stored(Cell(small, column, "fedavg", 0), tmp_path) is None


def test_a_record_from_before_a_hyperparameter_counts_with_the_value_it_had(small: table.Table, tmp_path: Path) -> None:
    """Then eta_3 was eta_1; with another value it is another run."""
    (cell,) = small.cells(["quped-2bit"], None, 1)
    run_cell(cell, tmp_path, workers=0)
    path = tmp_path / cell.path
    result = json.loads(path.read_text())
    assert result["config"]["algorithm"].pop("global_lr_ratio") == 1.0
    path.write_text(json.dumps(result))
    assert stored(cell, tmp_path) == result
    other = small.columns[0].model_copy(update={"algorithms": {"quped": {"global_lr_ratio": 4.0}}})
    assert Cell(small, other, "quped-2bit", 0).config["algorithm"]["global_lr_ratio"] == 4.0
    assert stored(Cell(small, other, "quped-2bit", 0), tmp_path) is None


def test_a_run_that_cannot_begin_leaves_nothing(small: table.Table, tmp_path: Path) -> None:
    """Neither a folder that counts as begun nor a lock."""
    column = small.columns[0].model_copy(update={"lr": {"fedavg": 1e30}})
    cell = Cell(small, column, "fedavg", 0)
    with pytest.raises(RunError, match="training loss of client"):
        run_cell(cell, tmp_path, workers=0)
    assert status([cell], tmp_path).begun == 0
    assert list((tmp_path / "small").rglob("seed*")) == []


def test_a_run_of_another_process_is_left_to_it(small: table.Table, tmp_path: Path) -> None:
    """Two calls do not compute the same, and the status tells that it is under way."""
    (cell,) = small.cells(["fedavg"], None, 1)
    seen: list[object] = []

    def meanwhile(_: object) -> None:
        if not seen:
            seen.append(run_cell(cell, tmp_path, workers=0))
            seen.append(status([cell], tmp_path).begun)

    first = run_cell(cell, tmp_path, workers=0, progress=meanwhile)
    assert first is not None
    assert seen == [None, 1]
    assert status([cell], tmp_path).begun == 0
    assert run_cell(cell, tmp_path, workers=0) == first  # not computed again: seconds are equal, too


def test_what_an_older_table_left_unfinished_is_not_begun(small: table.Table, tmp_path: Path) -> None:
    """It will not be gone on with, so the status does not count it."""
    (cell,) = small.cells(["fedavg"], None, 1)
    other = Cell(small, small.columns[0].model_copy(update={"lr": {"fedavg": 0.3}}), "fedavg", 0)

    def stop(_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_cell(other, tmp_path, workers=0, progress=stop)
    assert status([other], tmp_path).begun == 1
    assert status([cell], tmp_path).begun == 0


def test_a_mean_is_of_runs_on_the_same_data() -> None:
    """Of two kinds of data the one with more runs; weights count as data do."""
    runs: list[dict[str, object]] = [{"data": "a", "n": 1}, {"data": "b", "n": 2}, {"data": "b", "n": 3}]
    assert alike(runs) == runs[1:]
    assert alike([{"weights": "a"}, {"weights": "a"}, {"weights": "b"}]) == [{"weights": "a"}] * 2
    assert alike([]) == []


@pytest.mark.parametrize(
    ("accuracies", "said"), [([0.1, 0.5, 0.9], ""), ([0.1, 0.9, 0.2, 0.9], ", fell to 20 on the way"), ([0.1, 0.2], "")]
)
def test_the_legend_tells_of_a_curve_that_left_the_picture(accuracies: list[float], said: str) -> None:
    """Not of one that was on its way up."""
    curve = [{"epoch": i, "accuracy": accuracy} for i, accuracy in enumerate(accuracies)]
    run = {"accuracy": {"mean": 0.9}, "epochs": 3, "full_epochs": 3, "shortened": False, "curve": curve}
    assert label(Line("fedavg", "FP", [run], Figure(91.0, 0.1)), 80.0) == f"FedAvg: 90.00 (paper 91.00){said}"


def test_a_picture_compares_runs_of_one_length() -> None:
    """Each length has a field of its own, the longest first; what was not trained is in each."""
    lengths = [("fedavg", 10), ("fedavg", 3), ("local", 10), ("local", 3), ("fml", 3), ("pfedme", 5), ("pfedme", 2)]
    found = [Line(method, "FP", [{"epochs": epochs}], None) for method, epochs in lengths]
    given = Line("float", "FP", [{"epochs": 0}], None)
    drawn = [[line.method for line in field] for field in by_length([given, *found])]
    assert drawn == [
        ["float", *names] for names in (["fedavg", "local"], ["pfedme"], ["fedavg", "local", "fml"], ["pfedme"])
    ]
    assert by_length([given]) == [[given]]
    assert by_length([]) == []


def test_many_curves_have_a_field_for_each_bit_width() -> None:
    """On one scale, with the fewest bits at the right; few curves share a field."""
    from matplotlib.figure import Figure as Picture

    run = {"accuracy": {"mean": 0.9}, "epochs": 2, "full_epochs": 2, "shortened": False, "config": {}}
    run["curve"] = [{"epoch": 0, "accuracy": 0.8}, {"epoch": 1, "accuracy": 0.9}]
    femnist = find_table("femnist-cnn1")
    methods = [method for method in femnist.methods if "+" not in method]
    widths = {1: "1", 2: "2", 32: "FP"}
    found = [Line(method, widths[ROWS[method].bits], [run], None) for method in methods]
    for count, titles in ((len(found), ["full precision", "2 bits", "1 bit"]), (8, [""])):
        (part,) = Picture().subfigures(1, 1, squeeze=False).flat
        draw_column(part, femnist.columns[0], found[:count])
        assert [axis.get_title() for axis in part.axes] == titles
        assert len({axis.get_ylim() for axis in part.axes}) == 1
        drawn = [text.get_text() for axis in part.axes for text in axis.get_legend().get_texts()]
        assert len(drawn) == len(set(drawn)) == count


def test_pictures_tell_where_fine_tuning_begins(small: table.Table) -> None:
    """Of full runs of federations and of networks; not of those that are not quantized."""
    config = small.cells(["quped-2bit"], None, 1)[0].config
    run = {"epochs": 4, "shortened": False, "config": config}
    assert finetuning(Line("quped-2bit", "2", [run], None)) == 2
    assert finetuning(Line("quped-2bit", "2", [{**run, "shortened": True}], None)) is None
    assert finetuning(Line("centers-1bit", "1", [{**run, "config": {"finetune_epochs": 1}}], None)) == 3
    plain = small.cells(["fedavg"], None, 1)[0].config
    assert finetuning(Line("fedavg", "FP", [{**run, "config": plain}], None)) is None


def test_a_narrow_terminal_shows_what_was_run(small: table.Table) -> None:
    """Every method with its name, and the mark of a shortened run."""
    out = Path("results")
    (short,) = small.cells(["quped+-2bit"], None, 1, 2)
    run_cell(short, out, workers=0)
    console = Console(width=44, record=True, file=io.StringIO())
    show(console, small, rows(small, out))
    text = console.export_text()
    methods = [line.split("│")[1].strip() for line in text.splitlines() if line.startswith("│")]
    assert " ".join(methods) == "QuPeD + [2 of 4 epochs]"
    assert "…" not in text
    assert "Difference" not in text


def test_a_shortened_run_leaves_all_tables_up_to_date(small: table.Table) -> None:
    """That of all lengths, too, so that documents agree with it."""
    asked = ["reproduce", "small", "--methods", "fedavg", "--seeds", "1", "--epochs", "2", "--workers", "0"]
    done = CliRunner().invoke(app, asked, catch_exceptions=False)
    assert "table-epochs-2.md, table-epochs-2.json, curves-epochs-2.png" in done.output
    assert re.search(r"digits fedavg 0: \d+\.\d\d% in \d+ s", done.output)
    for name in ("table.md", "table-epochs-2.md"):
        assert "FedAvg [2 of 4 epochs]" in (Path("results/small") / name).read_text()


def test_an_interrupted_network_says_how_to_go_on(small: table.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an interrupted federation does."""

    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "run_cell", stop)
    done = CliRunner().invoke(app, ["reproduce", "small", "--methods", "fedavg", "--seeds", "1"])
    assert "The same command goes on from the last checkpoint" in done.stderr


def test_json_keeps_notes_on_the_other_channel(small: table.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as the one that another process is at a run."""
    monkeypatch.setattr(command, "run_cell", lambda *_, **__: None)
    asked = ["reproduce", "small", "--methods", "fedavg", "--seeds", "1", "--json"]
    done = CliRunner().invoke(app, asked, catch_exceptions=False)
    assert json.loads(done.stdout)["columns"] == {"digits": []}
    assert "1 of the runs are not done yet: another process is at them" in done.stderr


def test_what_another_process_gave_up_is_run_in_the_end(small: table.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the rest is done, those that were busy are tried once more."""
    tried: list[str] = []

    def busy_at_first(cell: Cell, *_: object, **__: object) -> dict[str, object] | None:
        tried.append(cell.method)
        return None if tried == ["quped-2bit"] else {"accuracy": {"mean": 0.5}, "seconds": 1.0}

    monkeypatch.setattr(command, "run_cell", busy_at_first)
    done = CliRunner().invoke(app, ["reproduce", "small", "--seeds", "1"], catch_exceptions=False)
    assert tried == ["quped-2bit", "fedavg", "quped+-2bit", "quped-2bit"]
    assert "another process" not in done.output
    for option in ("--methods", "--columns"):
        with pytest.raises(InvalidValueError, match=f"{option} names nothing"):
            CliRunner().invoke(app, ["reproduce", "small", option, " ,"], catch_exceptions=False)


def test_a_table_says_where_its_numbers_come_from() -> None:
    """Runs, time, days, data, and the weights that networks began with: all, where they are not the same."""
    first = {"date": "2026-01-02", "versions": {"torch": "2"}, "seconds": 5400, "samples": 2000, "weights": "a" * 64}
    second = {"date": "2026-01-01", "versions": {"torch": "2"}, "seconds": 1800, "samples": 10, "weights": "b" * 64}
    assert provenance([first, second]) == (
        "2 runs, 2.0 hours of computing, 2026-01-01 to 2026-01-02; 10 and 2,000 training samples; begun with the "
        "weights of SHA-256 aaaaaaaaaaaa and bbbbbbbbbbbb; torch 2."
    )
    assert provenance([{k: v for k, v in second.items() if k not in ("samples", "weights")}]) == (
        "1 run, 30 minutes of computing, 2026-01-01; torch 2."
    )


def test_networks_remember_what_they_started_from(tmp_path: Path) -> None:
    """A result from other weights is not taken; full precision alone gives no speed to guess from."""
    (cell,) = find_table("table1").cells(["float"], ["resnet20"], 3)
    write = tmp_path / cell.path
    write.parent.mkdir(parents=True)
    about = {"column": "resnet20", "method": "float", "seed": 0, "accuracy": {"mean": 0.9}}
    rest = dict.fromkeys(reproduce.KEYS) | about
    write.write_text(json.dumps({**rest, "config": cell.config, "weights": "abc", "seconds": 3.0}))
    assert stored(cell, tmp_path, {"weights": "abc"}) is not None
    assert stored(cell, tmp_path, {"weights": "def"}) is None
    assert stored(cell, tmp_path) is not None
    cells = find_table("table1").cells(None, ["resnet20"], 1)
    assert status(cells, tmp_path).seconds_left > 3600
    weights = tmp_path / "resnet20.safetensors"
    weights.write_bytes(b"others")
    assert status([cell], tmp_path).missing == []
    assert status([cell], tmp_path, warm_start=tmp_path).missing == [cell]
    same = hashlib.sha256(b"others").hexdigest()
    write.write_text(json.dumps({**rest, "config": cell.config, "weights": same, "seconds": 3.0}))
    assert status([cell], tmp_path, warm_start=tmp_path).missing == []
    weights.unlink()
    with pytest.raises(InvalidValueError, match=r"--warm-start FOLDER.*resnet20\*"):
        run_cell(cells[1], tmp_path, warm_start=tmp_path)


def test_federations_remember_the_data_they_learned_from(
    small: table.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run on a part of the data set is not taken for one on all of it; without data there is nothing to compare."""
    monkeypatch.setenv("QUPED_CACHE", str(tmp_path))
    cells = small.cells(["fedavg"], None, 1)

    def fetch(rows: int) -> str:
        tensors = {"rows": torch.arange(rows)}
        (tmp_path / "scratch").mkdir(exist_ok=True)
        store.write(store.stored_file("digits"), tensors, "a test", tmp_path / "scratch")
        return store.checksum(tensors)

    part = fetch(10)
    first = run_cell(cells[0], tmp_path, workers=0)
    assert first is not None
    assert first["data"] == part
    assert status(cells, tmp_path).missing == []
    whole = fetch(120)
    assert status(cells, tmp_path).missing == cells
    second = run_cell(cells[0], tmp_path, workers=0)
    assert second is not None
    assert second["data"] == whole
    assert status(cells, tmp_path).missing == []
    store.stored_file("digits").unlink()
    assert status(cells, tmp_path).missing == []


def test_the_projects_records_say_what_they_were_made_from() -> None:
    """Data everywhere, or weights; and all of one table's column the same, so that means are of one kind."""
    root = Path(__file__).parents[1] / "results"
    columns: dict[Path, set[str]] = {}
    for path in root.rglob("seed-*.json"):
        record = json.loads(path.read_text())
        column = root / record["table"] / record["column"]
        columns.setdefault(column, set()).add(record["weights"] if record["table"] == "table1" else record["data"])
    assert columns
    assert {len(made_from) for made_from in columns.values()} == {1}


def test_documents_agree_with_the_records(small: table.Table) -> None:
    """--check finds a number that was changed by hand, --update puts it right."""
    (cell,) = small.cells(["fedavg"], None, 1)
    run_cell(cell, Path("results"), workers=0)
    docs = Path("results.md")
    two = "# Results\n\n<!-- results: twin -->\n<!-- end -->\n<!-- results: small -->\n<!-- end -->\n\nMore.\n"
    docs.write_text(two)
    runner = CliRunner()
    with pytest.raises(RunError, match="does not agree"):
        runner.invoke(app, ["reproduce", "--check", "--docs", "results.md"], catch_exceptions=False)
    runner.invoke(app, ["reproduce", "--update", "--docs", "results.md"], catch_exceptions=False)
    text = docs.read_text()
    assert text.count("| FedAvg | FP |") == 2
    assert text.endswith("<!-- end -->\n\nMore.\n")
    fine = runner.invoke(app, ["reproduce", "--check", "--docs", "results.md"], catch_exceptions=False)
    assert "agrees" in fine.output
    docs.write_text(text.replace("80.00 ± 0.25", "81.00 ± 0.25"))
    with pytest.raises(RunError, match=r"81\.00"):
        runner.invoke(app, ["reproduce", "--check", "--docs", "results.md"], catch_exceptions=False)
    docs.write_text(text)
    (Path("results") / "small" / "table.md").write_text("| FedAvg | 99.99 |")
    with pytest.raises(RunError, match=r"small/table\.md is not that of the records"):
        runner.invoke(app, ["reproduce", "--check", "--docs", "results.md"], catch_exceptions=False)
    with pytest.raises(RunError, match=r"has no <!-- end -->"):
        document(two.replace("<!-- end -->\n\nMore", ""), Path("results"))
    with pytest.raises(RunError, match=r"records of twin, but the document has no place"):
        document("<!-- results: small -->\n<!-- end -->", Path("results"))
    with pytest.raises(RunError, match="'none', which does not exist"):
        document("<!-- results: none -->\n<!-- end -->", Path("results"))


def test_the_projects_own_documents_agree_with_its_records() -> None:
    """docs/results.md is made of results/, and so are the tables there."""
    root = Path(__file__).parents[1]
    agree(root / "docs/results.md", root / "results", Console(quiet=True), write=False)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["table1", "--workers", "2"], "--workers is for federations: table1 trains one network"),
        (["--check", "--update"], "stand alone"),
        (["mnist", "--check"], "stand alone"),
        (["mnist", "--claims"], "--claims stands alone"),
        (["--check", "--json"], "stand alone"),
        (["--list", "--status"], "give one of them"),
        (["mnist", "--list"], "shown by --status"),
        (["--check", "--out", "nowhere", "--docs", "README.md"], "no results in nowhere"),
        (["--epochs", "3"], "of which table"),
        (["--list", "--json"], "--json prints the numbers of a table"),
        (["mnist", "--status", "--json"], "--json prints the numbers of a table"),
    ],
)
def test_options_that_do_not_go_together(asked: list[str], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are refused, not ignored."""
    monkeypatch.chdir(Path(__file__).parents[1])
    with pytest.raises(InvalidValueError, match=said):
        CliRunner().invoke(app, ["reproduce", *asked], catch_exceptions=False)
