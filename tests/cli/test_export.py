"""`quped export`, `quped inspect` and `quped plan`."""

import json
from pathlib import Path

import pytest
import torch
from helpers.program import fails, quped

from quped import load
from quped.experiments.sources import sources
from quped.export.formats import FORMATS, Format

pytestmark = pytest.mark.slow

FILE = """
data = { name = "digits", partition = "classes=5" }
clients = [{ name = "phone", count = 2, model = "cnn1", bits = 2 }]
training = { epochs = 2, batch_size = 100 }
algorithm = { name = "local" }
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "mine.toml").write_text(FILE)
    done = quped("run", "mine.toml", "--out", "out", "--workers", "0", "--quiet", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / "out"


def test_all_clients_are_exported(run: Path, tmp_path: Path) -> None:
    done = quped("export", run, "--out", "files", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "read again: every bit equal" in done.stdout
    for name in ("phone-0", "phone-1"):
        file = Path("files") / f"{name}.quped"
        assert file.name in done.stdout
        assert (tmp_path / file).read_bytes() == (run / "models" / file.name).read_bytes()


def test_chosen_clients_with_float16(run: Path) -> None:
    done = quped("export", run, "--client", "phone-1", "--float16", "--json", cwd=run)
    (line,) = json.loads(done.stdout)
    assert line["file"] == str(run / "export" / "phone-1.quped")
    assert line["bytes"] == Path(line["file"]).stat().st_size < line["floor"] < line["float32"]
    assert "quantized weights equal" in line["verified"]
    assert [path.name for path in (run / "export").iterdir()] == ["phone-1.quped"]


def test_other_formats_get_the_model_and_its_samples(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = json.loads((run / "result.json").read_text())
    for source in sources(run):
        samples, network = source.samples(), load(run / "models" / f"{source.name}.quped", source.model.module())
        batch = samples.batch(torch.arange(len(samples)))
        right = float((network(*batch.inputs).argmax(1) == batch.labels).float().mean())
        assert right == pytest.approx(result["accuracy"]["per_client"][source.name])

    def write(source: object, path: Path, float16: bool) -> str:
        path.write_text("it")
        return "by eye"

    monkeypatch.setitem(FORMATS, "text", Format(".txt", write))
    done = quped("export", run, "--format", "text", "--out", tmp_path, "--json", cwd=tmp_path)
    assert [line["verified"] for line in json.loads(done.stdout)] == ["by eye"] * 2


def test_mistakes_of_export(run: Path, tmp_path: Path) -> None:
    fails(quped("export", tmp_path, cwd=tmp_path), "holds no models", "finished run")
    fails(quped("export", run, "--client", "phone-2", cwd=tmp_path), "no client 'phone-2'", "Did you mean 'phone-")
    fails(quped("export", run, "--format", "qupped", cwd=tmp_path), "no format 'qupped'", "Did you mean 'quped'")


def test_a_file_is_inspected(run: Path) -> None:
    file = run / "models" / "phone-0.quped"
    done = quped("inspect", file, cwd=run)
    assert done.returncode == 0, done.stderr
    for words in ("features.1.weight", "16x6x5x5", "cnn1", "phone-0", "on disk", "85.5 kB in float32"):
        assert words in done.stdout
    found = json.loads(quped("inspect", file, "--json", cwd=run).stdout)
    assert found["bytes"] == file.stat().st_size
    tensors = {tensor["name"]: tensor for tensor in found["tensors"]}
    assert tensors["features.1.weight"] | {"name": ""} == {
        "name": "",
        "shape": [16, 6, 5, 5],
        "bits": 2,
        "values": "4",
        "bytes": 600 + 16,
    }
    assert tensors["features.1.bias"]["bits"] == 32
    assert sum(tensor["bytes"] for tensor in tensors.values()) == found["floor"]


def test_a_plan_is_made_without_training(tmp_path: Path) -> None:
    done = quped("plan", "cnn1", "--budget", "8kB", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for words in ("features.0.weight", "classifier.4.weight", "expected loss", "The file has at most 7,9"):
        assert words in done.stdout
    plan = json.loads(quped("plan", "cnn1", "--budget", "8000", "--json", cwd=tmp_path).stdout)
    assert 7900 < plan["most_bytes"] <= 8000
    assert plan["other_bytes"] == 4 * (6 + 16 + 120 + 84 + 10)
    assert sum(tensor["bytes"] for tensor in plan["tensors"].values()) + plan["other_bytes"] < plan["most_bytes"]
    assert all(tensor["bits"] in (*range(1, 9), 32) for tensor in plan["tensors"].values())
    assert not list(tmp_path.iterdir())


def test_mistakes_of_a_plan(tmp_path: Path) -> None:
    fails(quped("plan", "cnn1", "--budget", "1kB", cwd=tmp_path), "'cnn1' is 1,000 bytes", "smallest possible file")
    fails(quped("plan", "cnn3", "--budget", "1kB", cwd=tmp_path), "no network 'cnn3'", "Did you mean 'cnn")
    fails(quped("plan", "cnn1", "--budget", "1kB", "--data", "digit", cwd=tmp_path), "no data set 'digit'")


def test_a_file_that_cannot_be_inspected(tmp_path: Path) -> None:
    (tmp_path / "a.quped").write_bytes(b"no model")
    fails(quped("inspect", "a.quped", cwd=tmp_path), "a.quped cannot be read", "copy it or save it again")


@pytest.mark.parametrize("kind", [pytest.param("onnx", marks=pytest.mark.slow), "c", "html"])
def test_formats_for_devices(kind: str, run: Path, tmp_path: Path) -> None:
    if kind == "onnx":
        pytest.importorskip("onnxruntime", reason="the extra quped[onnx] is not installed")
    done = quped("export", run, "--format", kind, "--client", "phone-0", "--json", "--out", tmp_path, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (line,) = json.loads(done.stdout)
    assert line["file"] == str(tmp_path / f"phone-0.{kind}")
    samples = len(sources(run, ["phone-0"])[0].samples())
    assert f"run on {min(max(samples, 64), 256)} inputs: same classes" in line["verified"]
    if kind == "html":
        assert '"classes":["0","1","2"' in (tmp_path / "phone-0.html").read_text()
    else:
        fails(quped("export", run, "--format", kind, "--float16", cwd=tmp_path), "hold float32", "--format quped")
