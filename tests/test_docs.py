"""The documents are true: examples run, links lead somewhere, what they name exists."""

import importlib
import re
import tomllib
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, cast

import pytest
from helpers.small_federation import Net, assert_same, clients
from safetensors.torch import load_file

from quped import FedAvg, Federation, LinearSchedule, Quantization
from quped._rng import torch_seeded
from quped.algorithms import ALGORITHMS
from quped.experiments.schema import validate

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


def test_the_readme_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """Copied from the page and run as it stands."""
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    exec(compile(example, "README.md", "exec"), {})
    printed = capsys.readouterr().out
    found = re.search(r"'phone': ([\d.]+)", printed)
    assert found is not None
    assert float(found[1]) > 0.6
    assert "LinearSchedule(in_features=16" in printed


def test_the_tutorial_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """The example of docs/quantize-your-model.md ends with a good network of two values."""
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "quantize-your-model.md").read_text(), re.DOTALL)
    exec(compile(example, "quantize-your-model.md", "exec"), {})
    found = re.fullmatch(r"accuracy (\S+)% with the values \[\S+, \S+\]\n", capsys.readouterr().out)
    assert found is not None
    assert float(found[1]) > 88


def test_the_page_on_python_runs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The example of docs/python.md ends with the sizes of three models and the file of one."""
    monkeypatch.chdir(tmp_path)
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "python.md").read_text(), re.DOTALL)
    exec(compile(example, "python.md", "exec"), {})
    found = re.findall(r"(\w+): (\d+)%, (\d+) bytes instead of (\d+)", capsys.readouterr().out)
    assert [name for name, *_ in found] == ["watch", "phone", "laptop"]
    for name, accuracy, packed, dense in found:
        assert int(accuracy) > 60
        assert (int(packed) < int(dense)) == (name != "laptop")
    assert len(set(load_file("watch.safetensors")["2.weight"].flatten().tolist())) == 2


def test_the_example_of_an_algorithm_is_one(tmp_path: Path) -> None:
    """That of docs/architecture.md, as it stands: without its pull it is FedAvg, with a strong one it hardly moves."""
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "architecture.md").read_text(), re.DOTALL)
    scope: dict[str, Any] = {"__name__": "example"}
    exec(compile(example, "architecture.md", "exec"), scope)
    fedprox = scope["FedProx"]
    members = clients(FedAvg())
    fits = [
        Federation(members, algorithm, Net).fit(epochs=2, batch_size=4, workers=workers, checkpoints=folder)
        for algorithm, workers, folder in (
            (FedAvg(), 0, None),
            (fedprox(mu=0.0), 0, None),
            (fedprox(mu=5.0), 2, tmp_path),
            (fedprox(mu=5.0), 0, tmp_path),  # continued after the last round
        )
    ]
    assert_same(fits[0], fits[1])
    assert_same(fits[2], fits[3])
    with torch_seeded(0, "init"):
        began = Net().first.weight
    ended = [fit.global_module().get_parameter("first.weight").detach() for fit in fits]
    moved = [float((weight - began.detach()).norm()) for weight in ended]
    assert 0 < moved[2] < 0.8 * moved[0]


def test_the_example_of_an_experiment_file_is_one() -> None:
    """That of docs/experiments.md passes the checks of a user's file."""
    text = (ROOT / "docs" / "experiments.md").read_text()
    example, _ = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    experiment = validate(tomllib.loads(example), "experiments.md")
    assert [group.count for group in experiment.clients] == [10, 10]
    assert [method.algorithm.name for method in experiment.methods] == ["quped", "local"]


def test_hyperparameters_are_told_as_they_are() -> None:
    """The table of docs/experiments.md has each method with its names and defaults, and no other."""
    text = (ROOT / "docs" / "experiments.md").read_text()
    table = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", text.split("## Hyperparameters")[1], re.MULTILINE))
    assert table.keys() == ALGORITHMS.keys()
    for name, kind in ALGORITHMS.items():
        told = {key: float(value) for key, value in re.findall(r"`(\w+) = ([\d.]+)`", table[name])}
        values = asdict(cast(Any, kind()))
        assert ("quantization" in table[name]) == (values.pop("quantization", None) is not None)
        assert told == values
    quantization = tomllib.loads(re.findall(r"```toml\n(.*?)```", text, re.DOTALL)[-1])["algorithm"]["quantization"]
    assert quantization.keys() == {field.name for field in fields(Quantization)}
    schedules = {int(bits): LinearSchedule(**schedule) for bits, schedule in quantization.pop("lam").items()}
    assert Quantization(**quantization, lam=schedules) == Quantization()


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: p.name)
def test_links_lead_somewhere(path: Path) -> None:
    """Every relative link of a page is a file of the project, or a section of one."""
    assert len(path.read_text()) > 200, f"{path.name} says nothing"
    for target, section in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", path.read_text()):
        page = path.parent / target if target else path
        assert page.exists(), f"{path.name} links to {target}"
        assert not section or section in sections(page), f"{path.name} links to {target}#{section}"


def sections(page: Path) -> set[str]:
    """Return the anchors that a page's headings get where Markdown is shown."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_tests_named_in_the_paper_page_exist() -> None:
    """Each `file::test` of docs/paper.md; `::test` alone means the file named last."""
    text = (ROOT / "docs" / "paper.md").read_text().replace("::\n   ", "::")
    file, found = None, 0
    for name, test in re.findall(r"`?([\w/]+\.py)?(?:::(test_\w+))?`?", text):
        file = (
            ROOT / "tests" / name
            if name.startswith(("quant/", "algorithms/test", "centralized/test", "contracts/", "test_"))
            else file
        )
        if test:
            assert file is not None
            assert f"def {test}(" in file.read_text(), f"{file.name}::{test}"
            found += 1
    assert found > 15


def test_functions_named_in_the_paper_page_exist() -> None:
    """Each dotted name such as `quant.nearest` or `QuPeD.start` is there."""
    text = (ROOT / "docs" / "paper.md").read_text()
    places = {
        "quant": "quped.quant",
        "losses": "quped._losses",
        "alternating": "quped.algorithms._algorithm1",
        "engines": "quped.simulation.engines",
        "QuPeD": "quped.algorithms.quped",
    }
    found = 0
    for name in re.findall(r"`((?:quant|losses|alternating|engines|QuPeD)(?:\.\w+)+)`", text):
        first, *rest = name.split(".")
        thing: object = importlib.import_module(places[first])
        for part in [first] if first == "QuPeD" else []:
            thing = getattr(thing, part)
        for part in rest:
            thing = getattr(thing, part)
        found += 1
    assert found > 15
