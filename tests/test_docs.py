"""The documents are true and keep their form: examples run, links and names lead somewhere, one sentence per line."""

import importlib
import os
import re
import runpy
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from helpers.small_federation import assert_same, fit
from test_architecture import HEIGHT

from quped import FedAvg
from quped import __file__ as package_file
from quped.algorithms import ALGORITHMS
from quped.cli import COMMANDS
from quped.experiments.schema import DATA_KINDS, Experiment, Group, build_algorithm, validate

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
REFERENCE = DOCS / "reference" / "api.md"
DOCUMENTS = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
WRITTEN = [path for path in DOCUMENTS if path != REFERENCE]

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
RESULTS = re.compile(r"<!-- results: (\S+) -->\n(.*?)<!-- end -->", re.DOTALL)

every_document = pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
every_written_document = pytest.mark.parametrize("path", WRITTEN, ids=lambda path: str(path.relative_to(ROOT)))


def fences(path: Path, language: str) -> list[str]:
    """Return the blocks of code of one language."""
    return [code for label, code in FENCE.findall(path.read_text()) if label == language]


def tables(text: str) -> list[list[list[str]]]:
    """Return the tables of a text as rows of cells, without their headers."""
    blocks = re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE)
    return [
        [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in block.splitlines()[2:]]
        for block in blocks
    ]


EXAMPLES = [path for path in WRITTEN if fences(path, "python") and path.name != "ship.md"]
"""Pages whose Python runs by itself. Another test takes every step of the walks in ship.md."""


def shown_output(path: Path) -> str:
    """Return the blocks without a language that directly follow a block of Python."""
    text = path.read_text()
    return "".join(re.findall(r"^```python\n(?:(?!^```$).)*^```\n\n```\n(.*?)^```$", text, re.DOTALL | re.MULTILINE))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Most of the file is not quantized")
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_run_and_print_what_the_page_shows(
    path: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The blocks of a page are one program. Processors round differently: accuracies may differ by some points, and
    compressed files by some bytes."""
    monkeypatch.chdir(tmp_path)
    scope: dict[str, Any] = {"__name__": "example"}
    for block in fences(path, "python"):
        exec(compile(block, path.name, "exec"), scope)
    printed, shown = capsys.readouterr().out, shown_output(path)
    vague = re.compile(r"(\d+)(%| instead)")
    assert vague.sub(r"\2", printed) == vague.sub(r"\2", shown)
    for (left, unit), (right, _) in zip(vague.findall(printed), vague.findall(shown), strict=True):
        assert abs(int(left) - int(right)) <= (8 if unit == "%" else 0.01 * int(right)), printed


def test_pages_with_examples() -> None:
    names = {path.name for path in EXAMPLES}
    assert names >= {"README.md", "own-data.md", "quantize-your-model.md", "architecture.md"}
    assert all(shown_output(path) for path in EXAMPLES if path.name != "architecture.md")


def test_the_example_of_an_algorithm_is_fedprox() -> None:
    """Without its pull it is FedAvg, and a strong pull keeps it near the start."""
    (example,) = fences(DOCS / "architecture.md", "python")
    scope: dict[str, Any] = {"__name__": "example"}
    exec(compile(example.replace("check_algorithm(FedProx())", ""), "architecture.md", "exec"), scope)
    start, free, strong = (fit(scope["FedProx"](mu=mu), lr=lr) for mu, lr in ((0, 1e-12), (0, 0.1), (8, 0.1)))
    assert_same(free, fit(FedAvg(), lr=0.1))
    weights = [result.global_module().get_parameter("first.weight").detach() for result in (start, free, strong)]
    assert 0 < float((weights[2] - weights[0]).norm()) < float((weights[1] - weights[0]).norm())


def test_the_example_of_an_experiment_file_is_valid() -> None:
    whole, own, part = fences(DOCS / "guide" / "experiments.md", "toml")
    assert [group.members for group in validate(tomllib.loads(own), "experiments.md").clients] == [("watch-*",), None]
    experiment = validate(tomllib.loads(whole), "experiments.md")
    assert [group.name for group in experiment.clients] == ["watch", "phone"]
    assert [method.algorithm.name for method in experiment.methods] == ["quped", "local"]
    build_algorithm({"name": "quped", **tomllib.loads(part)["algorithm"]})


def test_the_keys_of_experiment_files_are_listed() -> None:
    text = (DOCS / "guide" / "experiments.md").read_text().split("## Keys")[1].split("\n## ")[0]
    (rows,) = tables(text)
    known = {*Experiment.model_fields} - {"data"}
    known |= {f"data.{key}" for kind in DATA_KINDS.values() for key in kind.model_fields}
    known |= {f"clients.{key}" for key in Group.model_fields}
    assert {row[0].strip("`") for row in rows} == known


def test_the_table_of_methods_is_true() -> None:
    (rows,) = tables((DOCS / "guide" / "own-data.md").read_text().split("## Methods")[1].split("## Training")[0])
    listed = {name.strip("`"): (low_bit == "yes", different == "yes") for name, low_bit, different in rows}
    assert listed == {kind.__name__: (kind.quantizes, kind.global_network != "same") for kind in ALGORITHMS.values()}


def test_the_table_of_layers_is_in_order() -> None:
    (rows, *_) = tables((DOCS / "architecture.md").read_text().split("## Layers")[1])
    parts = [part for row in rows for part in re.findall(r"`(\w+)`", row[0])]
    here = {path.stem for path in Path(package_file).parent.iterdir() if not path.name.startswith(("_", "."))}
    assert {part for part in parts if not part.startswith("_")} >= here - {"py"}
    heights = [HEIGHT[part] for part in parts if part in here]
    assert heights == sorted(heights, reverse=True)


def test_the_reference_is_up_to_date() -> None:
    render = runpy.run_path(str(DOCS / "reference" / "generate.py"))["render"]
    assert REFERENCE.read_text() == render(), "run `make reference`"


@pytest.mark.slow
def test_the_site_builds_strictly(tmp_path: Path) -> None:
    """No link leads nowhere, no page is left out, what is outside of docs/ is on the site, and code looks like code."""
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    command = [str(Path(sys.executable).with_name("mkdocs")), "build", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    pages = {page.stem for page in (tmp_path / "site").rglob("*.html")}
    assert pages >= {"index", *(path.stem for path in DOCUMENTS if path.name != "README.md")}
    results = (tmp_path / "site" / "paper" / "results.html").read_text()
    assert 'src="../results/mnist/curves.png"' in results
    assert (tmp_path / "site" / "results" / "mnist" / "curves.png").exists()
    assert "<code>Data | None</code>" in (tmp_path / "site" / "reference" / "api.html").read_text()
    assert 'class="highlight"' in (tmp_path / "site" / "index.html").read_text()


def test_the_readme_is_short() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.split()) <= 500
    assert "make demo" in text
    assert "make test" in text


def test_the_numbers_of_the_readme_are_those_of_the_results() -> None:
    blocks = dict(RESULTS.findall((DOCS / "paper" / "results.md").read_text()))
    known = {f"{float(value):.1f}" for value in re.findall(r"\d\d\.\d\d", blocks["cifar10-cnn1"])}
    (rows,) = tables((ROOT / "README.md").read_text())
    numbers = {cell for row in rows for cell in row[1:] if cell}
    assert len(numbers) > 5
    assert numbers <= known


def test_the_citation_has_the_version_of_the_package() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"version: {version}\n" in (ROOT / "CITATION.cff").read_text()


@every_document
def test_links_lead_somewhere(path: Path) -> None:
    """Every relative link is a file of the project, or a section of one."""
    for target, section in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", path.read_text()):
        page = path.parent / target if target else path
        assert page.exists(), f"{path.name} links to {target}"
        assert not section or section in sections(page), f"{path.name} links to {target}#{section}"


def sections(page: Path) -> set[str]:
    """Return the anchors that the headings of a page get where Markdown is shown."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    anchors = [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]
    assert len(set(anchors)) == len(anchors), f"{page.name} has a heading twice"
    return set(anchors)


@every_document
def test_files_and_tests_that_a_page_names_exist(path: Path) -> None:
    text = path.read_text()
    for file, test in re.findall(r"`(?:tests/)?([\w/]+\.py)::(test_\w+)`", text):
        assert f"def {test}(" in (ROOT / "tests" / file).read_text(), f"{file}::{test}"
    for file in re.findall(r"`((?:tests|src|docs|benchmarks)/[\w/.-]+)`", text):
        assert (ROOT / file).exists(), file


@every_document
def test_python_names_that_a_page_names_exist(path: Path) -> None:
    """Such as `quped.quant.nearest`; the changelog also has names of the past."""
    for name in re.findall(r"`(quped(?:\.\w+)+)(?:\([^`]*\))?`", path.read_text()):
        if path.name != "CHANGELOG.md":
            resolve(name)


def resolve(name: str) -> object:
    """Return what a dotted name stands for."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for part in parts[count:]:
            found = getattr(found, part)
        return found
    raise ModuleNotFoundError(name)


def test_the_page_on_the_method_names_functions_and_tests() -> None:
    text = (DOCS / "paper" / "method.md").read_text()
    assert len(re.findall(r"`quped\.[\w.]+`", text)) > 40
    assert len(re.findall(r"::test_\w+`", text)) > 25


@every_document
def test_commands_that_a_page_shows_exist(path: Path) -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for line in "\n".join(fences(path, "")).splitlines():
        match line.split():
            case ["quped", command, *_]:
                assert command in COMMANDS, line
            case ["make", target, *_]:
                assert target in targets, line


def prose(path: Path) -> Iterator[tuple[str, bool]]:
    """Yield the lines of prose without list markers, each with whether the same paragraph goes further."""
    text = re.sub(r"^> ", "", RESULTS.sub("", FENCE.sub("", path.read_text())), flags=re.MULTILINE)
    lines = [*text.splitlines(), ""]
    for line, following in pairwise(lines):
        if line.strip() and not line.startswith(("|", "#", "!", "<!--")):
            continues = bool(following.strip()) and not re.match(r"\s*([-*] |\d+\. |\||#)", following)
            yield re.sub(r"^\s*([-*] |\d+\. )?", "", line), continues


ABBREVIATIONS = re.compile(r"\b(et al|vs|e\.g|i\.e)\.")
SENTENCE_END = re.compile(r"[.!?:;][*\")]*$")
SECOND_SENTENCE = re.compile(r"[.!?][*\")]* +[A-Z`\[(*]")


@every_written_document
def test_one_sentence_per_line(path: Path) -> None:
    """Sentences are not wrapped, and no line has two of them: a change of a sentence is a change of one line."""
    for line, continues in prose(path):
        plain = ABBREVIATIONS.sub(r"\1", re.sub(r"`[^`]*`", "`code`", line))
        assert len(line) <= 400, line
        assert not SECOND_SENTENCE.search(plain), f"two sentences: {line}"
        assert not continues or SENTENCE_END.search(plain), f"wrapped: {line}"


PRIVATE_WORDS = (
    r"told|tells?|anew|go(?:es)? on|so many|those of|that of|first together|meets? in|local\+|centers\+"
    r"|centralized|eta3_over_eta1|admission"
)


@every_written_document
def test_words_of_the_field(path: Path) -> None:
    """No word that only the authors of the code understand; the changelog lists the old names."""
    for line, _ in prose(path):
        if path.name != "CHANGELOG.md":
            found = re.search(rf"(?<!\w)(?:{PRIVATE_WORDS})(?!\w)", re.sub(r"`[^`]*`", "", line), re.IGNORECASE)
            assert found is None, f"'{found and found[0]}' in: {line}"
