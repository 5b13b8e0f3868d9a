"""The files of a federation."""

from pathlib import Path

import pytest
import torch
from helpers.quantized_nets import same_states
from helpers.small_federation import CLASSES, FEATURES, Net, samples
from torch import nn

import quped
from quped import Client, FedAvg, Federation, FitResult, Local
from quped.errors import InvalidValueError, QupedError
from quped.export import read
from quped.models import build


def trained() -> FitResult:
    """Return the result of two clients: one with a network of ours, one with another."""
    ours = Client(
        "ours", samples(0, 20), samples(1, 9), lambda: build("mlp", (FEATURES,), CLASSES, hidden=[8, 8]), bits=2
    )
    other = Client("other", samples(2, 20), None, Net, bits=1, per_channel=True)
    return Federation([ours, other], Local()).fit(epochs=2, workers=0, progress=False)


@pytest.fixture(scope="module")
def fit() -> FitResult:
    return trained()


def test_a_saved_client_comes_back(fit: FitResult, tmp_path: Path) -> None:
    fit.save("ours", tmp_path / "new" / "ours.quped")
    fit.save("other", str(tmp_path / "other.quped"))
    ours = quped.load(tmp_path / "new" / "ours.quped")
    assert isinstance(ours, nn.Module)
    assert same_states(ours, fit.module("ours"))
    assert same_states(quped.load(tmp_path / "other.quped", Net()), fit.module("other"))


def test_a_file_says_where_it_comes_from(fit: FitResult) -> None:
    ours, other = fit.packed("ours").info, fit.packed("other").info
    network = {"name": "mlp", "input_shape": [FEATURES], "classes": CLASSES, "hidden": [8, 8]}
    assert ours["network"] == network
    assert (ours["client"], ours["method"]) == ("ours", "local")
    assert ours["accuracy"] == pytest.approx(fit.accuracy["ours"], abs=1e-6)
    assert ours["versions"]["torch"] == torch.__version__
    assert (other["module"], other["input_shape"], other["classes"]) == ("SmallNet", [FEATURES], CLASSES)
    assert "accuracy" not in other


def test_the_table_says_what_the_folder_holds(fit: FitResult, tmp_path: Path) -> None:
    fit.save_all(tmp_path / "models")
    sizes = {path.name: path.stat().st_size for path in (tmp_path / "models").iterdir()}
    assert sizes == {f"{client.name}.quped": client.bytes_file for client in fit.clients}
    assert {name: read(tmp_path / "models" / f"{name}.quped").floor for name in fit.models} == {
        client.name: client.bytes_packed for client in fit.clients
    }


def test_the_same_run_gives_the_same_files(fit: FitResult) -> None:
    assert trained().files == fit.files


def test_float16_makes_smaller_files(fit: FitResult, tmp_path: Path) -> None:
    fit.save_all(tmp_path, float16=True)
    assert (tmp_path / "ours.quped").stat().st_size < len(fit.files["ours"])
    half, whole = (quped.load(tmp_path / "other.quped", Net()), fit.module("other"))
    assert torch.equal(half.middle.weight, whole.get_parameter("middle.weight"))
    assert torch.equal(half.first.weight, whole.get_parameter("first.weight").half().float())


def test_full_precision_is_a_file_as_well(tmp_path: Path) -> None:
    fit = Federation([Client("a", samples(0, 20), None, Net)], FedAvg()).fit(epochs=1, workers=0, progress=False)
    fit.save("a", tmp_path / "a.quped")
    assert same_states(quped.load(tmp_path / "a.quped", Net()), fit.module("a"))
    assert fit.clients[0].bytes_packed == fit.clients[0].bytes_float32


def test_clients_that_cannot_be_saved(fit: FitResult, tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match=r"no client 'outs'\. Did you mean 'ours'"):
        fit.save("outs", tmp_path / "a.quped")
    strange = Federation([Client("a/b", samples(0, 20), None, Net)], FedAvg()).fit(epochs=1, workers=0, progress=False)
    with pytest.raises(InvalidValueError, match="'a/b' cannot name a file"):
        strange.save_all(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_clients_are_exported_for_devices(fit: FitResult, tmp_path: Path) -> None:
    assert "run on 64 inputs" in fit.export_c("ours", str(tmp_path / "ours.c"))
    assert "run on 64 inputs" in fit.export_html("ours", tmp_path / "ours.html", ["yes", "no", "maybe"])
    assert '"classes":["yes",' in (tmp_path / "ours.html").read_text()
    with pytest.raises(QupedError, match=r"network SmallNet cannot be written as C.*not one of"):
        fit.export_c("other", tmp_path / "other.c")
    pytest.importorskip("onnxruntime", reason="the extra quped[onnx] is not installed")
    assert "run on 64 inputs" in fit.export_onnx("other", tmp_path / "other.onnx")  # it has training samples only
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other.onnx", "ours.c", "ours.html"]
