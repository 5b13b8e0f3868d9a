"""The report in a real browser, and what it is made of."""

import base64
import gzip
import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.browser import CHROMIUM, Page
from helpers.made_records import NAUGHTY, make_run
from helpers.program import FILE, fails, quped

from quped.errors import RunError
from quped.experiments import validate
from quped.records import CURVES, RESULT, RunRecord
from quped.report.page import MOST_CELLS, collect, render, toml, train_command, write_report
from quped.report.reading import read_all

in_browser = pytest.mark.skipif(CHROMIUM is None, reason="needs a Chromium")
NAMES = ["watch-0", "watch-1", "phone-0", NAUGHTY]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return a run with a client whose name is an attack."""
    make_run(tmp_path / "run", NAMES, 10)
    return tmp_path / "run"


@pytest.fixture
def page(run: Path, tmp_path: Path) -> Iterator[Page]:
    """Open the report of that run."""
    write_report([run], tmp_path / "report.html")
    with Page(tmp_path / "report.html", tmp_path / "profile") as opened:
        yield opened


def held(text: str) -> dict[str, Any]:
    """Return the data in a page."""
    found = re.search(r'<script type="text/plain" id="data">(.*?)</script>', text)
    assert found is not None
    return dict(json.loads(gzip.decompress(base64.b64decode(found[1]))))


def result_of(folder: Path) -> dict[str, Any]:
    """Return what came out of a run, as its record holds it."""
    return dict(json.loads((folder / RESULT).read_text()))


def rows(page: Page) -> list[list[str]]:
    """Return the rows of the table of clients, as they are shown."""
    return list(
        page("[...document.querySelectorAll('.clients tbody tr')].map(r => [...r.cells].map(c => c.innerText))")
    )


@in_browser
def test_numbers_are_those_of_the_record(page: Page, run: Path) -> None:
    """In the sentence, in the table of methods, and for every client."""
    results = [result_of(folder) for folder in (run, run / "local", run / "fedavg")]
    means = [np.mean([client["accuracy"] for client in result["clients"]]) for result in results]
    alone = {client["name"]: client["accuracy"] for client in results[1]["clients"]}
    gains = [client["accuracy"] - alone[client["name"]] for client in results[0]["clients"]]
    sentence = page("document.querySelector('h1').innerText")
    shares = [client["accuracy"] for client in results[0]["clients"]]
    hurt = sum(-gain > 2 * np.sqrt(p * (1 - p) / 200) for gain, p in zip(gains, shares, strict=True))
    assert 0 < hurt < 4
    assert f"{means[0]:.1%} right on average, {100 * abs(means[0] - means[1]):.1f} points" in sentence
    assert f"{hurt} of 4 clients" in sentence
    methods = page("[...document.querySelectorAll('.methods tbody tr')].map(r => [...r.cells].map(c => c.innerText))")
    assert [row[0].strip() for row in methods] == ["QuPeD", "Local", "FedAvg"]
    assert [row[1] for row in methods] == [f"{mean:.1%}" for mean in means]
    assert [row[3] for row in methods][:2] == [f"{hurt} of 4", "\u2013"]
    shown = {row[0]: row for row in rows(page)}
    assert list(shown) == NAMES
    for client, gain in zip(results[0]["clients"], gains, strict=True):
        row = shown[client["name"]]
        assert row[1:3] == [f"{client['accuracy']:.1%}", f"{100 * gain:+.1f}".replace("-", "\u2212")]
        assert row[4:7] == ["2", "mlp", str(client["samples"])]
        assert row[8] == "80.0\u00a0kB"
    assert page.errors == []


@in_browser
def test_names_stay_text(page: Page, run: Path) -> None:
    """Nothing of a record is run, in any picture or table."""
    assert page("document.title") == "made · quped report"
    assert page("document.querySelectorAll('img').length") == 0
    page("document.querySelectorAll('details').forEach(d => { d.open = true })")
    page(f"choose({json.dumps(NAUGHTY)})")
    page.wait("document.querySelectorAll('details table').length >= 4")
    assert page("document.title") == "made · quped report"
    assert page("document.querySelectorAll('img').length") == 0
    assert NAUGHTY in page("document.querySelector('.clients').innerText")
    assert page.errors == []
    text = (run.parent / "report.html").read_text()
    assert NAUGHTY not in text
    assert text.count("<script") == text.count("</script>") == 2


@in_browser
def test_clients_are_sorted_and_filtered(page: Page, run: Path) -> None:
    """By the mouse; then the selected one is followed through the pictures."""
    accuracies = {client["name"]: client["accuracy"] for client in result_of(run)["clients"]}
    page.click("[data-key=accuracy]")
    assert [row[0] for row in rows(page)] == sorted(accuracies, key=lambda name: accuracies[name])
    assert page("document.querySelector('[data-key=accuracy]').parentNode.ariaSort") == "ascending"
    page.click("[data-key=accuracy]")
    assert [row[0] for row in rows(page)] == sorted(accuracies, key=lambda name: -accuracies[name])
    page.click("#client-filter")
    page.type("watch")
    assert {row[0] for row in rows(page)} == {"watch-0", "watch-1"}
    assert page("document.querySelector('#client-count').innerText") == "2 of 4 clients"
    before = page("document.querySelectorAll('#curves path').length")
    page.click(".clients tbody tr")
    name = page("document.querySelector('.clients tr[aria-selected=true]').cells[0].innerText")
    assert name in ("watch-0", "watch-1")
    assert page("document.querySelector('#curve-client').value") == name
    assert page("document.querySelectorAll('#curves path').length") == before + 3
    page.click("#client-hurt")
    gains = {row[0]: row[2] for row in rows(page)}
    assert all(gain.startswith("\u2212") for gain in gains.values())
    assert page.errors == []


@in_browser
def test_pictures_answer_the_mouse_and_the_keyboard(page: Page, run: Path) -> None:
    """Hover and arrow keys show the numbers of a client or a round; methods can be hidden."""
    page("document.querySelector('#curves svg').focus()")
    page.press("End")
    tip = page("document.querySelector('#tip').innerText")
    assert tip.startswith("round 10\nQuPeD: " + f"{np.mean([c['accuracy'] for c in result_of(run)['clients']]):.1%}")
    assert page("document.querySelector('#live').textContent") == tip
    page.press("Escape")
    assert page("document.querySelector('#tip').style.opacity") == "0"
    page("document.querySelector('#overview figure svg').focus()")
    page.press("ArrowRight", "Enter")
    assert page("document.querySelector('.clients tr[aria-selected=true]').cells[0].innerText") in NAMES
    assert page("document.activeElement === document.querySelector('#overview figure svg')")
    box = page(
        "(s => { s.scrollIntoView({block: 'center', behavior: 'instant'}); return s.getBoundingClientRect().toJSON() })"
        "(document.querySelector('#gains figure svg'))"
    )
    page.mouse(box["x"] + box["width"] - 20, box["y"] + box["height"] / 2)
    best = max(held((run.parent / "report.html").read_text())["methods"][0]["clients"], key=lambda c: c["gain"])
    assert page("document.querySelector('#tip').innerText").startswith(best["name"])
    lines = page("document.querySelectorAll('#curves path').length")
    page.click(".legend button:nth-child(3)")
    assert page("document.querySelector('.legend button:nth-child(3)').ariaPressed") == "false"
    assert page("document.querySelectorAll('#curves path').length") < lines
    assert page.errors == []


@in_browser
def test_every_picture_has_a_table_and_fits_a_phone(run: Path, tmp_path: Path) -> None:
    """Also in the dark, and where there is little room."""
    write_report([run], tmp_path / "report.html")
    with Page(tmp_path / "report.html", tmp_path / "profile", width=400, dark=True) as page:
        assert page("document.documentElement.scrollWidth") == 400
        assert page("getComputedStyle(document.body).backgroundColor") == "rgb(19, 22, 25)"
        figures = page(
            "[...document.querySelectorAll('section')].filter(s => s.querySelector('figure')).map(s => s.id)"
        )
        assert figures == ["overview", "curves", "gains", "weights", "sent"]
        page("document.querySelectorAll('details').forEach(d => { d.open = true })")
        page.wait("document.querySelectorAll('details table tbody tr').length > 10")
        tables = page(
            "[...document.querySelectorAll('section')].filter(s => s.querySelector('details table')).map(s => s.id)"
        )
        assert tables == figures
        assert "3.0\u00a0kB" not in page("document.querySelector('#sent').innerText")
        assert "4.0\u00a0kB to the server" in page("document.querySelector('#sent').innerText")
        assert page.errors == []


@in_browser
@pytest.mark.slow
def test_a_thousand_clients_and_five_hundred_rounds(tmp_path: Path) -> None:
    """The file stays small, and the page usable."""
    make_run(tmp_path / "run", [f"client-{i}" for i in range(1000)], 500, compare=("local",))
    write_report([tmp_path / "run"], tmp_path / "report.html")
    assert (tmp_path / "report.html").stat().st_size < 1_500_000
    with Page(tmp_path / "report.html", tmp_path / "profile") as page:
        assert len(rows(page)) == 20
        page.click("#client-more")
        assert len(rows(page)) == 1000
        page.click("[data-key=name]")
        page.click("[data-key=name]")
        assert [row[0] for row in rows(page)][:2] == ["client-999", "client-998"]
        assert page.errors == []


def test_the_page_loads_nothing(run: Path) -> None:
    """It names no other file, and its own rules forbid it."""
    text = render(read_all([run]))
    assert not re.search(r"https?:(?!//www\.w3\.org/2000/svg)|\bsrc=|\bhref=|@import|url\(", text)
    assert "default-src 'none'" in text
    assert render(read_all([run])) == text


def test_large_runs_keep_some_points_of_every_client(tmp_path: Path) -> None:
    """The first and the last among them; means are there for all rounds."""
    make_run(tmp_path / "run", [f"client-{i}" for i in range(300)], 900, compare=())
    (method,) = held(render(read_all([tmp_path / "run"])))["methods"]
    assert len(method["curve"]["mean"]) == 900
    assert len(method["kept"]) == MOST_CELLS // 300
    assert (method["kept"][0], method["kept"][-1]) == (0, 899)
    last = json.loads((tmp_path / "run" / CURVES).read_text().splitlines()[-1])
    assert [client[-1] for client in method["by_client"]] == pytest.approx(list(last["accuracy"].values()), abs=1e-4)
    assert method["curve"]["mean"][-1] == pytest.approx(last["mean"], abs=1e-4)
    assert method["curve"]["low"][-1] == pytest.approx(np.quantile(list(last["accuracy"].values()), 0.1), abs=1e-4)


def test_unfinished_and_failed_runs(tmp_path: Path) -> None:
    """Show the last evaluation, and say so; a line that is being written is left out."""
    make_run(tmp_path / "run", ["a", "b"], 4, compare=("local",), finished=False)
    with (tmp_path / "run" / CURVES).open("a") as file:
        file.write('{"round": 4, "acc')
    methods = held(render(read_all([tmp_path / "run"])))["methods"]
    assert [method["state"] for method in methods] == ["unfinished", "unfinished"]
    assert [len(method["curve"]["round"]) for method in methods] == [4, 4]
    assert [client["name"] for client in methods[0]["clients"]] == ["a", "b"]
    RunRecord(tmp_path / "run").fail("the loss became nan")
    data = held(render(read_all([tmp_path / "run"])))
    assert (data["methods"][0]["state"], data["methods"][0]["failure"]) == ("failed", "the loss became nan")


def test_records_of_older_versions(run: Path) -> None:
    """Without digests, bytes sent, classes and weights: what they hold is shown."""
    for folder in (run, run / "local"):
        result = result_of(folder)
        for key in ("sent", "files", "sha256"):
            del result[key]
        for client in result["clients"]:
            del client["classes"], client["rounds"]
        (folder / RESULT).write_text(json.dumps(result))
        lines = [json.loads(line) for line in (folder / CURVES).read_text().splitlines()]
        for line in lines:
            del line["weights"], line["accuracy_own_classes"]
        (folder / CURVES).write_text("".join(json.dumps(line) + "\n" for line in lines))
    first = collect(read_all([run]))["methods"][0]
    assert (first["sent"], first["weights"], first["clients"][0]["classes"]) == (None, {}, None)
    assert first["clients"][0]["accuracy"] == result_of(run)["clients"][0]["accuracy"]


def test_a_federation_on_other_machines(run: Path) -> None:
    """Its record has another configuration, and of some clients neither size nor accuracy."""
    (run / "config.json").unlink()
    RunRecord(run).config({"seed": 3, "algorithm": {"name": "fedrep"}, "training": {"epochs": 10}, "nodes": NAMES})
    values = {key: value for key, value in result_of(run).items() if key not in ("config", "files", "sha256", "sent")}
    values["clients"][1] = {"name": "watch-1", "network": "mlp", "bits": {}, "samples": 3, "accuracy": None}
    RunRecord(run).result(values | {"algorithm": "fedrep"})
    data = held(render(read_all([run])))
    (method,) = data["methods"]
    assert (method["label"], data["runs"][0]["command"], data["runs"][0]["file"]) == ("FedRep", None, None)
    assert [client["bytes"] is None for client in method["clients"]] == [False, True, False, False]
    assert data["runs"][0]["config"]["training.epochs"] == "10"
    (run / RESULT).unlink()
    (unfinished,) = held(render(read_all([run])))["methods"]
    assert (unfinished["algorithm"], len(unfinished["clients"])) == ("fedrep", 4)


def test_damaged_records_are_named(run: Path, tmp_path: Path) -> None:
    """With the file."""
    fails(quped("report", "nowhere", cwd=tmp_path), "There is no folder nowhere")
    (tmp_path / "empty").mkdir()
    fails(quped("report", "empty", cwd=tmp_path), "empty holds no run")
    fails(quped("report", run, "--out", "report.pdf", cwd=tmp_path), "report.pdf", ".html")
    whole = (run / CURVES).read_text()
    (run / CURVES).write_text(whole.replace("train", "trian", 1))
    with pytest.raises(RunError, match=r"curves\.jsonl is damaged"):
        read_all([run])
    (run / CURVES).write_text(whole)
    values = {key: value for key, value in result_of(run).items() if key not in ("files", "sha256")}
    RunRecord(run).result(values | {"clients": [{"name": 5, "accuracy": "<b>"}]})
    fails(quped("report", run, cwd=tmp_path), "cannot be shown")


def test_a_report_from_start_to_finish(tmp_path: Path) -> None:
    """`quped run` ends with its path; the experiment in it is the one that ran; several runs stand side by side."""
    (tmp_path / "mine.toml").write_text(FILE)
    settings = ("--set", "training.epochs=1", "--set", "training.local_steps=2")
    done = quped("run", "mine.toml", "--out", "runs/a", *settings, cwd=tmp_path)
    assert "Report: runs/a/report.html\n" in done.stdout
    data = held((tmp_path / "runs" / "a" / "report.html").read_text())
    assert [method["label"] for method in data["methods"]] == ["QuPeD", "Local", "FedAvg"]
    recorded = result_of(tmp_path / "runs" / "a")
    assert validate(tomllib.loads(data["runs"][0]["file"]), "again.toml") == validate(recorded["config"], "record")
    assert data["runs"][0]["command"] == "quped run again.toml --seed 0"
    first = data["methods"][0]["clients"][0]
    assert sum(first["classes"]) == first["samples"]
    weights = data["methods"][0]["weights"]
    assert set(weights) == {"client-0", "client-2"}
    assert [len(points[0]["centers"]) for points in weights.values()] == [4, 2]
    model = result_of(tmp_path / "runs" / "a" / "fedavg")["clients"][0]["bytes_float32"]  # it has the global network
    assert recorded["sent"] == {"to_server": model, "to_client": model}
    assert first["sent"] == recorded["rounds"] * 2 * model
    assert [method["sent"]["to_server"] for method in data["methods"]] == [model, 0, model]

    done = quped("run", "mine.toml", "--out", "runs/b", "--no-report", "--set", "compare=[]", *settings, cwd=tmp_path)
    assert "Report" not in done.stdout
    assert not (tmp_path / "runs" / "b" / "report.html").exists()
    done = quped("train", "mlp", "--epochs", "2", "--finetune-epochs", "1", "--out", "runs/c", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Report: all.html\n" in quped("report", "runs", "--out", "all.html", cwd=tmp_path).stdout
    data = held((tmp_path / "all.html").read_text())
    labels = [method["label"] for method in data["methods"]]
    assert labels == ["QuPeD · a", "Local · a", "FedAvg · a", "QuPeD · b", "mlp (centers, 2 bits) · c"]
    assert data["methods"][4]["clients"][0]["accuracy"] == result_of(tmp_path / "runs" / "c")["accuracy"]
    again = data["runs"][2]["command"].split()
    assert quped(*again[1:], "--out", "again", cwd=tmp_path).returncode == 0
    assert result_of(tmp_path / "again")["accuracy"] == result_of(tmp_path / "runs" / "c")["accuracy"]


def test_recipes_and_experiments_as_text() -> None:
    """Flags are written alone, and what is None is left out."""
    recipe = {"model": "cnn1", "bits": 2, "warm_start": None, "validation": True, "center_grad_clip": 10.0}
    assert train_command(recipe) == "quped train cnn1 --bits 2 --validation"
    values = {"a": 'quote " and \\', "b": None, "c": {"d.e": [1, 2.5, True], "f": None}, "g": [{"h": "ü"}]}
    assert tomllib.loads(toml(values)) == {"a": values["a"], "c": {"d.e": [1, 2.5, True]}, "g": [{"h": "ü"}]}
