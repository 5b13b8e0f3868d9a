"""`quped train`: it learns, resumes, and names mistakes."""

import json
import math
import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from safetensors.torch import save_file
from torch import Tensor
from typer.testing import CliRunner

from quped.cli import app
from quped.data import Subset
from quped.data.datasets.digits import digits
from quped.errors import InvalidValueError, QupedError
from quped.experiments.train import METHODS, Epoch, Recipe, halves, train
from quped.export import read
from quped.models import mlp
from quped.optim import BinaryRelax, Closure, QuantizedOptimizer
from quped.records import RunRecord, exclusive
from quped.report.plots.weights import draw

SMALL = Recipe("mlp", epochs=4, finetune_epochs=1, batch_size=64, lam=1e-4)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_learns(method: str, tmp_path: Path) -> None:
    """Better than guessing; the middle layer of the stored network has 2^bits values, unless it is not quantized."""
    recipe = replace(SMALL, method=method, bits=1, lam=0.01)
    result = train(recipe, RunRecord.create(tmp_path))
    assert result["accuracy"] > 0.4
    assert [point["phase"] for point in result["curve"]] == ["train"] * 3 + [
        "finetune" if method != "float" else "train"
    ]
    values = set(read(tmp_path / "models" / "model.quped").state()["layers.2.weight"].flatten().tolist())
    assert len(values) == 2 if method != "float" else len(values) > 1000


def test_ternary_weights_are_stored_with_two_bits(tmp_path: Path) -> None:
    """Three values, one of them between the others; the file holds their numbers in 2 bits each."""
    train(replace(SMALL, method="straight-centers", levels=3), RunRecord.create(tmp_path))
    packed = read(tmp_path / "models" / "model.quped").packed["layers.2.weight"]
    assert packed.centers.shape == (1, 3)
    assert packed.bits == 2
    assert set(packed.indices.flatten().tolist()) == {0, 1, 2}


def test_an_annealed_learning_rate_falls_to_0(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a cosine over all steps; in bfloat16 the network learns, too."""
    seen: list[float] = []
    step = QuantizedOptimizer.step

    def watched(optimizer: QuantizedOptimizer, closure: Closure) -> Tensor:
        seen.append(optimizer.param_groups[0]["lr"])
        return step(optimizer, closure)

    monkeypatch.setattr(QuantizedOptimizer, "step", watched)
    recipe = replace(SMALL, method="straight-centers", anneal=True, bfloat16=True, batch_size=361, lr=0.01)
    result = train(recipe, RunRecord.create(tmp_path))
    expected = 0.01 * (1 + np.cos(np.pi * np.arange(16) / 16)) / 2
    np.testing.assert_allclose(seen, expected, rtol=1e-12)
    assert result["accuracy"] > 0.4


def test_interrupted_and_resumed_is_never_interrupted(tmp_path: Path) -> None:
    """Bit for bit: weights, curve but for the times."""

    class StoppedError(Exception):
        """Ends a run."""

    def stop(news: Epoch | float) -> None:
        if isinstance(news, Epoch) and news.epoch == 1:
            raise StoppedError

    whole = train(SMALL, RunRecord.create(tmp_path / "whole"))
    record = RunRecord.create(tmp_path / "parts")
    with pytest.raises(StoppedError):
        train(SMALL, record, stop)
    again = train(SMALL, record)
    for point, other in zip(whole["curve"], again["curve"], strict=True):
        assert {**point, "seconds": 0} == {**other, "seconds": 0}
    first, second = (read(tmp_path / name / "models" / "model.quped").state() for name in ("whole", "parts"))
    assert all(torch.equal(first[key], second[key]) for key in first)
    lines = (tmp_path / "parts" / "curves.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == [0, 1, 2, 3]


def test_a_resumed_run_needs_no_initial_weights(tmp_path: Path) -> None:
    """The checkpoint has the weights: the file may be gone. Recorded centers belong to the weights at that time."""
    weights = tmp_path / "weights.safetensors"
    save_file(mlp(digits().input_shape, 10).state_dict(), weights)
    record = RunRecord.create(tmp_path / "run")
    recipe = replace(SMALL, method="kmeans", warm_start=str(weights))

    def stop(news: Epoch | float) -> None:
        if isinstance(news, Epoch):
            weights.unlink()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(recipe, record, stop)
    curve = train(recipe, record)["curve"]
    assert len({tuple(point["weights"]["centers"]) for point in curve}) == len(curve) - 1  # all but the hard one


def test_warm_start(tmp_path: Path) -> None:
    """With no epochs, the accuracy is the one of the given weights."""
    data = digits()
    torch.manual_seed(0)
    network = mlp(data.input_shape, 10)
    save_file(network.state_dict(), tmp_path / "weights.safetensors")
    recipe = replace(
        SMALL, method="float", epochs=0, finetune_epochs=0, warm_start=str(tmp_path / "weights.safetensors")
    )
    batch = data.test.batch(torch.arange(len(data.test)))
    expected = float((network(*batch.inputs).argmax(1) == batch.labels).float().mean())
    assert train(recipe, RunRecord.create(tmp_path / "run"))["accuracy"] == pytest.approx(expected)
    with pytest.raises(InvalidValueError, match="another network"):
        train(replace(recipe, model="cnn1"), RunRecord.create(tmp_path / "other"))
    with pytest.raises(InvalidValueError, match="cannot be read"):
        train(replace(recipe, warm_start=str(tmp_path / "none")), RunRecord.create(tmp_path / "none-run"))


def test_a_shortened_run_passes_through_the_whole_schedule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """t counts epochs of the full run, several in one epoch of a shortened one; the centers' rate falls on its way."""
    seen: list[tuple[float, float]] = []
    step = QuantizedOptimizer.step

    def watched(optimizer: QuantizedOptimizer, closure: Closure) -> Tensor:
        seen.append((optimizer.epoch, optimizer.groups[0]["eta2"]))
        return step(optimizer, closure)

    monkeypatch.setattr(QuantizedOptimizer, "step", watched)
    recipe = replace(SMALL, epochs=2, finetune_epochs=1, batch_size=361, schedule_epochs=160, eta2=1e-4)
    train(recipe, RunRecord.create(tmp_path / "run"))
    assert [t for t, _ in seen] == [1, 21, 41, 61, 81, 101, 121, 141]
    assert [eta2 for _, eta2 in seen] == pytest.approx([1e-4] * 4 + [1e-5] * 3 + [1e-6])


@pytest.mark.parametrize(("epochs", "finetune"), [(250, 50), (10, 2)])
def test_binary_relax_has_its_authors_schedule(epochs: int, finetune: int) -> None:
    """lambda grows by 4 % in an epoch; the last quarter of the training epochs is exact, in a shortened run, too."""
    recipe = Recipe("mlp", "digits", "binaryrelax", epochs=epochs, finetune_epochs=finetune, schedule_epochs=250)
    optimizer = recipe.optimizer(mlp((64,), 10))
    assert isinstance(optimizer, BinaryRelax)
    assert optimizer.lam(150) == pytest.approx(1.04**150)
    assert optimizer.lam(151) == math.inf


def test_validation_samples_are_not_trained_on() -> None:
    """A tenth of the training samples; no test sample is looked at."""
    data = digits()
    rest, held = halves(data, replace(SMALL, validation=True))
    assert (len(rest), len(held)) == (1298, 144)
    every = np.concatenate([cast(Subset, half).indices.numpy() for half in (rest, held)])
    assert sorted(every) == list(range(1442))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": "resnet21"}, r"no network 'resnet21'.*resnet20"),
        ({"data": "cifar"}, r"no data set 'cifar'"),
        ({"method": "center"}, r"no method 'center'.*centers"),
        ({"bits": 9}, "bits must be .* from 1 to 8"),
        ({"finetune_epochs": 5}, "finetune_epochs"),
    ],
)
def test_bad_recipes(change: dict[str, Any], words: str) -> None:
    """Refused before anything is loaded."""
    with pytest.raises(InvalidValueError, match=words):
        replace(SMALL, **change)


def quped(*arguments: str) -> str:
    """Run the command line in this process; return what it prints."""
    return CliRunner().invoke(app, arguments, catch_exceptions=False).output


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the call to the picture; a second call with --resume of a finished run shows it again."""
    monkeypatch.chdir(tmp_path)
    options = ["--epochs", "3", "--out", "run"]
    printed = quped("train", "mlp", *options)
    assert "epoch 3/3" in printed
    assert "2-bit mlp after 3 epochs: test accuracy" in printed
    assert re.search(r"Size: 3\d\.\d kB, [12]\.\d times smaller than 68\.9 kB in float32", printed)
    assert {path.name for path in Path("run").iterdir()} == {
        "config.json",
        "curves.jsonl",
        "models",
        "result.json",
        "weights.png",
    }
    again = json.loads(quped("train", "--resume", "run", "--json"))
    assert again["recipe"]["bits"] == 2
    assert again["bytes_packed"] < again["bytes_float32"]
    for arguments, words in (
        (["train"], "network to train"),
        (["train", "--resume", "run", "--epochs", "7"], "leave out epochs"),
        (["train", "mlp", *options], "--overwrite"),
        (["train", "mlp", "--method", "proxquant", "--out", "other"], "ProxQuant"),
        (["run", "--resume", "run"], "no run of `quped run`"),
    ):
        with pytest.raises(QupedError, match=words):
            quped(*arguments)
    assert not Path("other").exists()
    monkeypatch.setattr("quped.records.files.PATIENCE", 0.1)
    before = {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()}
    with exclusive(Path("run")), pytest.raises(QupedError, match="in use by another process"):
        quped("train", "mlp", *options, "--seed", "1", "--overwrite")
    assert {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()} == before


def test_the_commands_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is in the recipe, and so are the values that follow from others."""
    monkeypatch.chdir(tmp_path)
    begin = ["train", "mlp", "--data", "digits", "--bits", "1", "--batch-size", "361"]
    said = quped(*begin, "--epochs", "1", "--method", "float", "--out", "float")
    assert f"Size: {Path('float/models/model.quped').stat().st_size / 1000:.1f} kB\n" in said
    weights = Path("float/models/model.quped")
    given = ["--epochs", "2", "--schedule-epochs", "50", "--finetune-epochs", "1", "--validation", "--seed", "3"]
    given += ["--anneal", "--bfloat16", "--levels", "3", "--center-lr-ratio", "2"]
    more = ["--lr", "0.002", "--lam", "0.001", "--eta2", "1e-5", "--warm-start", str(weights), "--threads", "1"]
    before = torch.get_num_threads()
    try:
        quped(*begin, *given, *more, "--out", "run")
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)
    expected = Recipe(
        "mlp",
        bits=1,
        batch_size=361,
        epochs=2,
        finetune_epochs=1,
        schedule_epochs=50,
        seed=3,
        lr=0.002,
        lam=0.001,
        eta2=1e-5,
        levels=3,
        anneal=True,
        bfloat16=True,
        center_lr_ratio=2.0,
        validation=True,
        warm_start=str(weights.resolve()),
    )
    assert json.loads(Path("run/config.json").read_text())["recipe"] == asdict(expected)
    quped(*begin, "--epochs", "5", "--out", "five")
    recipe = json.loads(Path("five/config.json").read_text())["recipe"]
    assert (recipe["finetune_epochs"], recipe["schedule_epochs"]) == (1, None)


@pytest.mark.slow
def test_the_command_without_options_makes_a_good_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No data to fetch, no file to have: 2 bits, handwritten digits, well under a minute."""
    monkeypatch.chdir(tmp_path)
    assert "2-bit cnn1 after 60 epochs: test accuracy" in quped("train", "cnn1")
    (folder,) = Path("runs").iterdir()
    result = json.loads((folder / "result.json").read_text())
    assert result["accuracy"] > 0.94
    assert result["bytes_float32"] / result["bytes_file"] > 8


@pytest.mark.parametrize("epochs", [1, 3])
def test_the_picture_shows_the_centers(epochs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line for each from edge to edge, also after a single epoch, in which no line has a length by itself."""
    drawn: list[Figure] = []
    monkeypatch.setattr("quped.report.plots.weights.write", lambda figure, _: drawn.append(figure))
    points = [
        {
            "epoch": epoch,
            "phase": "train",
            "weights": {"name": "w", "reach": 1.0, "counts": [1, 2, 1], "centers": [-0.5, 0.1 * epoch]},
        }
        for epoch in range(epochs)
    ]
    draw(points, tmp_path / "weights.png")
    lines = drawn[0].axes[0].lines
    assert len(lines) == 2
    for line in lines:
        where = np.asarray(line.get_xdata())
        assert (where.min(), where.max()) == (0.5, epochs + 0.5)


def test_one_pool_is_not_its_own_test() -> None:
    """Where training and test samples are one pool, accuracy on the latter would be that on the former."""
    data = replace(digits(), writers=np.zeros(len(digits().train), dtype=np.int64))
    with pytest.raises(InvalidValueError, match=r"digits is one pool.*--validation"):
        halves(data, SMALL)
    samples, held = halves(data, replace(SMALL, validation=True))
    assert len(samples) + len(held) == len(data.train)


def test_damaged_curves_and_foreign_checkpoints(tmp_path: Path) -> None:
    """Curves are written again from the checkpoint; the checkpoint of another recipe is refused."""

    class StopError(Exception):
        pass

    def stop(news: object) -> None:
        if isinstance(news, Epoch) and news.epoch == 1:
            raise StopError

    record = RunRecord(tmp_path)
    recipe = Recipe("mlp", bits=1, batch_size=361, epochs=3, finetune_epochs=1)
    with pytest.raises(StopError):
        train(recipe, record, stop)
    curves = tmp_path / "curves.jsonl"
    lines = curves.read_text()
    curves.write_text(lines.replace('"epoch": 0', '"epoch": 8'))
    with pytest.raises(QupedError, match="is of another run"):
        train(replace(recipe, lr=0.5), record)
    with pytest.warns(UserWarning, match=r"curves.jsonl is damaged"):
        train(recipe, record)
    assert curves.read_text().startswith(lines)
