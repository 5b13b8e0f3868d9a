"""Tables are data: they inherit, and they say what the paper says."""

from pathlib import Path

import pytest
from helpers.paper import SMALL, one_run, small_table

from quped.errors import InvalidValueError
from quped.paper.runs import paper_runs
from quped.paper.table import PaperNumber, find_table, tables


def test_a_new_row_is_one_entry_of_one_file(tmp_path: Path) -> None:
    row = """
    [rows.new]
    from = "quped-2bit"
    title = "New"
    ours = true
    algorithm.warmup_epochs = 1
    color = "#000000"
    """
    table = small_table(tmp_path, text=SMALL + row)
    new, old = table.rows["new"], table.rows["quped-2bit"]
    assert (new.label, new.bits, new.cost, new.highlight) == ("New (ours)", 2, old.cost, True)
    assert new.paper == {}  # the paper's number belongs to the old row alone
    config, expected = one_run(table, "new").config, one_run(table, "quped-2bit").config
    assert config["algorithm"].pop("warmup_epochs") == 1.0
    assert expected["algorithm"].pop("warmup_epochs") == 0.0
    assert config == expected


def test_rows_have_precedence_over_columns_and_tables(tmp_path: Path) -> None:
    levels = """
    [by_algorithm]
    quped = { training.lr = 0.2, quantization.center_grad_clip = 1.0 }
    fedavg = { training.lr = 0.2 }
    """
    table = small_table(tmp_path, text=SMALL.replace("[training]", "[training]\nlr = 0.3") + levels)
    quped, fedavg, ste = (one_run(table, name).config for name in table.rows)
    assert (quped["training"]["lr"], fedavg["training"]["lr"]) == (0.2, 0.05)
    assert quped["algorithm"]["quantization"]["center_grad_clip"] == 1.0
    assert quped["algorithm"]["quantization"]["lam"] == {"2": {"rate": 5e-6, "decay": 1.0}}
    assert ste["algorithm"]["quantization"]["straight_through"] is True


def test_columns_inherit() -> None:
    three, four = (run.config for run in paper_runs(find_table("mnist"), ["fedavg"], seeds=1))
    assert (three["data"].pop("partition"), four["data"].pop("partition")) == ("classes=3", "classes=4")
    assert three == four


def test_a_parent_stands_above(tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match=r"'new' inherits from 'later'.*above"):
        small_table(tmp_path, text=SMALL + '[rows.new]\nfrom = "later"\n[rows.later]\nfrom = "fedavg"')


def test_mistakes_in_a_file_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match=r"small\.toml is not a table:\n.*new.*colour"):
        small_table(tmp_path, text=SMALL + '[rows.new]\nfrom = "fedavg"\ncolour = "red"')
    with pytest.raises(InvalidValueError, match=r"small\.toml is not valid TOML"):
        small_table(tmp_path, text="title =")
    for text, words in (
        ("title = " + "9" * 5000, r"not valid TOML: Exceeds the limit"),
        ("title = " + "[" * 50_000, r"not valid TOML: maximum recursion"),
        ("rows = 3", "rows and the columns of a table must be tables"),
        ("rows.fedavg = 3", "rows and the columns of a table must be tables"),
    ):
        with pytest.raises(InvalidValueError, match=words):
            small_table(tmp_path, text=text)


@pytest.mark.parametrize("epochs", ["nan", "''", "true", "-1", "1" + "0" * 400])
def test_epochs_that_are_no_number_are_named(epochs: str, tmp_path: Path) -> None:
    table = small_table(tmp_path, text=SMALL.replace("epochs = 4", f"epochs = {epochs}", 1))
    with pytest.raises(InvalidValueError, match=r"epochs in small\.toml must be a whole number from 0 to 1e\+09, got"):
        assert paper_runs(table)[0].full_epochs


def test_unknown_names_get_a_suggestion() -> None:
    with pytest.raises(InvalidValueError, match=r"no table 'mnits'.*mnist"):
        find_table("mnits")
    with pytest.raises(InvalidValueError, match=r"no method 'quped2bit'.*quped-2bit"):
        paper_runs(find_table("mnist"), ["quped2bit"])
    with pytest.raises(InvalidValueError, match="no column '3'"):
        paper_runs(find_table("mnist"), None, ["3"])


@pytest.mark.parametrize("name", tables())
def test_every_row_of_the_paper_has_its_numbers_and_every_curve_its_look(name: str) -> None:
    table = find_table(name)
    for row in table.rows.values():
        assert set(row.paper) == (set() if row.ours else set(table.columns)), row.name
    assert len({(row.color, row.line) for row in table.rows.values()}) == len(table.rows)


def test_numbers_of_the_paper_by_hand() -> None:
    assert find_table("cifar10-cnn1").rows["quped-2bit"].paper["cifar10"] == PaperNumber(74.58, 0.44)
    assert find_table("mnist").rows["perfedavg"].paper["4-classes"] == PaperNumber(98.93, 0.09)
    assert find_table("heterogeneous").rows["local"].paper["femnist-2bit-2bit"] == PaperNumber(91.11, 0.23)
    assert find_table("table1").rows["float"].paper["resnet32"] == PaperNumber(92.95)


@pytest.mark.parametrize("name", [name for name in tables() if name != "table1"])
def test_hyperparameters_are_the_papers(name: str) -> None:
    for run in paper_runs(find_table(name), seeds=1):
        config, data = run.config, run.config["data"]["name"]
        training, algorithm = config["training"], config["algorithm"]
        exceptions = {("femnist", "local"): 0.075, ("cifar10", "perfedavg"): 0.125}
        if run.column.name == "ag-news":
            exceptions = dict.fromkeys(((data, method) for method in ("fedavg", "fedavgft", "qupedplus")), 5)
        assert training["lr"] == exceptions.get((data, algorithm["name"]), 10 if data == "ag_news" else 0.1)
        assert (training["local_steps"], training["lr_decay"], training["weight_decay"]) == (10, 0.99, 1e-4)
        assert training["schedule_epochs"] is None
        bits = {group["bits"] for group in config["clients"]}
        assert run.column.mixed or bits == {run.row.bits}
        hardens = min(bits) < 32 and algorithm["name"] != "qupedplus"
        assert bool(training["finetune_epochs"]) == hardens
        if algorithm["name"] == "fedavgft":
            assert algorithm["warmup_epochs"] == 0.8 * training["epochs"]
            assert training["epochs"] - training["finetune_epochs"] > algorithm["warmup_epochs"]
        if algorithm["name"] == "quped":
            warmup = 0.4 * training["epochs"] if "warmup" in run.row.name else 0
            assert algorithm["warmup_epochs"] == warmup
        if algorithm["name"] == "quped" and algorithm["lambda_p"]:
            step = algorithm["lambda_p"] * algorithm["global_lr_ratio"]
            assert step == pytest.approx(1 if data == "cifar10" else 0.25, abs=1e-3)


def test_hyperparameters_that_depend_on_data_and_network() -> None:
    lam = one_run("cifar10-cnn1", "quped-1bit").config["algorithm"]["quantization"]["lam"]
    assert lam == {"1": {"rate": 5e-7, "decay": 0.99}, "2": {"rate": 1e-6, "decay": 1.0}}
    tuned = one_run("cifar10-cnn1", "quped-2bit-tuned").config["algorithm"]["quantization"]["lam"]
    assert tuned == {"2": {"rate": 3e-6, "decay": 0.99}}
    deep = one_run("cifar10-cnn2", "quped").config
    assert (deep["algorithm"]["lambda_p"], deep["global_model"]["name"]) == (0.15, "cnn1")
    assert one_run("cifar10-cnn2", "fedavg").config["global_model"] is None  # it is the clients' own
    fixed = one_run("no-center-updates", "quped-1bit-fixed").config["algorithm"]["quantization"]
    assert fixed["update_centers"] is False


def test_table_1_is_the_papers_recipe() -> None:
    two_bits, full = (one_run("table1", name).recipe for name in ("centers-2bit", "float"))
    assert two_bits is not None
    assert full is not None
    assert (two_bits.model, two_bits.method, two_bits.bits) == ("resnet32", "centers", 2)
    assert (two_bits.epochs, two_bits.finetune_epochs, two_bits.batch_size) == (250, 50, 128)
    assert (two_bits.lr, two_bits.lam, two_bits.eta2) == (0.01, 1e-4, 1e-4)
    assert (full.epochs, full.finetune_epochs) == (0, 0)  # only evaluated
    assert [run.seed for run in paper_runs(find_table("table1"), ["float"], ["resnet20"])] == [0]


def test_a_shortened_run_compresses_its_schedules() -> None:
    run = one_run("mnist", "quped-2bit", epochs=20)
    assert run.shortened
    assert run.path == Path("mnist/4-classes/quped-2bit/epochs-20/seed-0.json")
    training = run.config["training"]
    assert (training["epochs"], training["schedule_epochs"], training["evaluate_every"]) == (20, 50, 1)
    assert training["finetune_epochs"] == 3  # 7 of 50 are 2.8 of 20
    network = one_run("table1", "centers-1bit", epochs=10).recipe
    assert network is not None
    assert (network.epochs, network.schedule_epochs, network.finetune_epochs) == (10, 250, 2)
    full = one_run("mnist", "quped-2bit", epochs=50)
    assert not full.shortened
    assert full.config == one_run("mnist", "quped-2bit").config
