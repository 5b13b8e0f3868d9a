"""Tuning: successive halving on validation samples, which is resumed exactly and never sees a test sample."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.small_federation import Net, samples

from quped import Client, FedAvg, Federation, FitResult, Local, QuPeD, Trial, Tuning
from quped import tuning as module
from quped.data import TensorSamples, as_samples
from quped.errors import DataError, InvalidValueError, RunError
from quped.simulation import Setup
from quped.simulation.fit import fit as run_fit
from quped.tuning import LR_FACTOR, PULLS, Setting, draw_settings, ranking, rungs, trial_setup, with_setting
from quped.typing import Batch, Phase

OPTIONS: dict[str, Any] = {"epochs": 8, "local_steps": 2, "batch_size": 10, "lr": 0.1}


def devices(count: int = 2) -> list[Client]:
    return [Client(f"c{i}", samples(i, 20), samples(50 + i, 8), Net, bits=2, end_bits=8) for i in range(count)]


def tuned(folder: Path | None = None, clients: list[Client] | None = None, **changes: Any) -> Tuning:
    federation = Federation(clients or devices(), QuPeD(warmup_epochs=1.0))
    return federation.tune(**{"trials": 4, "workers": 0, "progress": False, **OPTIONS, **changes}, folder=folder)


def base(**changes: Any) -> Setup:
    return Federation(devices(), QuPeD(warmup_epochs=1.0)).setup(**OPTIONS | changes)


def without_seconds(result: Tuning) -> list[Any]:
    return [replace(trial, seconds=0.0) for trial in result.trials]


def test_the_better_half_runs_twice_as_long() -> None:
    assert rungs(16, 40) == [(16, 5), (8, 10), (4, 20), (2, 40)]
    assert rungs(5, 6) == [(5, 3), (3, 3), (2, 6)]
    assert rungs(2, 1) == [(2, 1)]


def pull(setup: Setup, bits: int) -> float:
    """Return the sum of lambda(t) eta_1(t) / 2 over the steps after the warm-up and before fine-tuning."""
    assert isinstance(setup.algorithm, QuPeD)
    total = 0.0
    for round_ in range(setup.schedule.rounds):
        clock = setup.schedule.clock(round_)
        if clock.phase is Phase.TRAIN and not setup.algorithm.is_warming_up(clock):
            strength = setup.algorithm.quantization.lam[bits](clock.t)
            total += setup.schedule.steps(round_) * strength * clock.lr / 2
    return total


def test_settings_are_spread_over_what_is_chosen() -> None:
    """The given one is first; learning rates, pulls and warm-ups of the others cover their ranges evenly."""
    setup = base(epochs=40)
    given, *drawn = draw_settings(setup, 13)
    assert given == (0.1, {1: 1e-6, 2: 5e-6}, 1.0)
    lrs = sorted(np.log(setting.lr / 0.1) / np.log(LR_FACTOR) for setting in drawn)
    assert all(-1 + 2 * i / 12 - 0.05 <= lr <= -1 + 2 * (i + 1) / 12 + 0.05 for i, lr in enumerate(lrs))
    pulls = sorted(pull(trial_setup(setup, setting, 40), 2) for setting in drawn)
    assert PULLS[0] * 0.98 < pulls[0] < 0.03
    assert 0.5 < pulls[-1] < PULLS[1] * 1.02
    assert {setting.warmup_epochs for setting in drawn} == {0.0, 8.0, 16.0, 24.0}
    assert draw_settings(setup, 13) == [given, *drawn]


@pytest.mark.parametrize("epochs", [3, 5, 10, 40])
def test_short_trials_pull_weights_as_far_as_long_ones(epochs: int) -> None:
    setup = base(epochs=40)
    for setting in draw_settings(setup, 6):
        whole, short = (trial_setup(setup, setting, count) for count in (40, epochs))
        assert short.schedule.epochs == epochs
        assert short.schedule.lr == setting.lr
        for bits in (1, 2):
            assert pull(short, bits) == pytest.approx(pull(whole, bits), rel=1e-9)


def test_the_best_of_the_last_rung_is_chosen() -> None:
    result = tuned()
    assert [(trial.epochs, trial.number) for trial in result.trials[:4]] == [(4, 0), (4, 1), (4, 2), (4, 3)]
    first, last = result.trials[:4], result.trials[4:]
    ranked = sorted(first, key=lambda trial: (-(trial.accuracy or 0), trial.number))
    assert [trial.number for trial in last] == [trial.number for trial in ranked[:2]]
    assert result.best.accuracy == max(trial.accuracy or 0 for trial in last)
    assert result.options.lr == result.best.setting.lr
    assert (result.options.epochs, result.options.evaluate_every) == (8, 1)
    assert isinstance(result.algorithm, QuPeD)
    assert {bits: lam.rate for bits, lam in result.algorithm.quantization.lam.items()} == result.best.setting.rates
    chosen = Federation([client.on_validation() for client in devices()], result.algorithm)
    again = chosen.fit(result.options, workers=0, progress=False)
    assert np.mean(list(again.accuracy.values())) == result.best.accuracy


def test_the_last_two_are_trained_with_several_seeds() -> None:
    """The other seeds are those of other runs: their clients hold out other samples."""
    one, three = tuned(), tuned(seeds=3)
    assert {trial.seed for trial in one.trials} == {0}
    assert without_seconds(three)[:4] == without_seconds(one)[:4]
    last = three.trials[4:]
    assert [trial.seed for trial in last] == [0, 1, 2] * 2
    means = [np.mean([trial.accuracy or 0 for trial in some]) for some in (last[:3], last[3:])]
    assert three.accuracy == pytest.approx(max(means))
    assert one.accuracy == one.best.accuracy
    trial = last[1]
    algorithm, options = with_setting(base(), trial.setting, base().options)
    again = Federation([client.on_validation(1) for client in devices()], algorithm, seed=1)
    accuracies = again.fit(options, workers=0, progress=False).accuracy.values()
    assert np.mean(list(accuracies)) == trial.accuracy
    with pytest.raises(InvalidValueError, match="number of seeds must be a whole number of at least 1"):
        tuned(seeds=0)


def test_the_better_mean_wins() -> None:
    """One lucky seed is not enough, and a setting that fails with a seed is left out."""
    setting = Setting(0.1)
    scores = {0: (0.5, 0.7), 1: (0.9, 0.1), 2: (0.9, None), 3: (0.7, 0.5)}
    rung = [Trial(n, 8, seed, setting, score, 1.0) for n, both in scores.items() for seed, score in enumerate(both)]
    assert [(trial.number, trial.seed) for trial in ranking(rung)] == [(0, 0), (3, 0), (1, 0)]


class Watched:
    """Samples that count how often somebody looks at them."""

    def __init__(self, data: tuple[torch.Tensor, torch.Tensor]) -> None:
        self._data, self.looks = TensorSamples(*data), 0

    def __len__(self) -> int:
        return len(self._data)

    @property
    def labels(self) -> torch.Tensor:
        self.looks += 1
        return self._data.labels

    def batch(self, indices: torch.Tensor, rng: np.random.Generator | None = None) -> Batch:
        self.looks += 1
        return self._data.batch(indices, rng)


def test_test_samples_are_never_looked_at() -> None:
    tests = [Watched(samples(50 + i, 8)) for i in range(2)]
    clients = [replace(client, test=test) for client, test in zip(devices(), tests, strict=True)]
    federation = Federation(clients, QuPeD())
    before = [test.looks for test in tests]
    assert min(before) > 0  # the federation checks them
    federation.tune(trials=2, workers=0, progress=False, **OPTIONS)
    assert [test.looks for test in tests] == before


def test_validation_samples_decide() -> None:
    """A client's own are used if it has some; else a fifth of its training samples, which are not trained on."""
    plain_client, own = devices(1)[0], samples(7, 6)
    held = plain_client.on_validation(seed=3)
    halves = [as_samples(data, "data") for data in (held.train, held.test) if data is not None]
    parts = [half.batch(torch.arange(len(half))).inputs[0].numpy() for half in halves]
    assert [len(part) for part in parts] == [16, 4]
    assert {row.tobytes() for part in parts for row in part} == {row.tobytes() for row in samples(0, 20)[0].numpy()}
    assert replace(plain_client, validation=own).on_validation() == replace(plain_client, test=own)
    with pytest.raises(DataError, match="Client 'c0' has one training sample, none to spare"):
        replace(plain_client, train=samples(0, 1)).on_validation()
    with pytest.raises(DataError, match="validation data of client 'c0'"):
        Federation([replace(plain_client, validation=[])], Local())


class KilledError(Exception):
    pass


def test_killed_and_resumed_is_never_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the middle of a trial, too: finished trials are read, and the one under way continues at its checkpoint."""
    whole = tuned()
    calls, rounds = [0], [0]

    class Killer:
        def after_round(self, round_: Any) -> None:
            rounds[0] += 1
            if calls[0] == 3 and round_.clock.round == 2:
                raise KilledError

    def fit(*arguments: Any, callbacks: Any, **options: Any) -> FitResult:
        calls[0] += 1
        return run_fit(*arguments, **{**options, "checkpoint_every": 1}, callbacks=[*callbacks, Killer()])

    monkeypatch.setattr(module, "fit", fit)
    with pytest.raises(KilledError):
        tuned(tmp_path)
    assert len(list((tmp_path / "trials").iterdir())) == 2
    assert list((tmp_path / "checkpoints").iterdir())
    calls[0], rounds[0] = 10, 0
    resumed = tuned(tmp_path)
    assert without_seconds(resumed) == without_seconds(whole)
    assert calls[0] == 10 + 4  # two of the first rung, two of the last
    assert rounds[0] == 2 * 4 - 2 + 2 * 8
    assert without_seconds(tuned(tmp_path)) == without_seconds(whole)
    assert calls[0] == 10 + 4
    with pytest.raises(RunError, match="holds trials with other clients, data or options"):
        tuned(tmp_path, lr=0.2)
    with pytest.raises(RunError, match="holds trials with other clients, data or options"):
        tuned(tmp_path, seeds=2)
    with pytest.raises(RunError, match="holds trials with other clients, data or options"):
        tuned(tmp_path, clients=[replace(client, train=samples(9, 20)) for client in devices()])


def test_a_setting_that_diverges_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LR_FACTOR", 1e9)
    result = tuned(lr=1.0, trials=3)
    failed = [trial for trial in result.trials if trial.error]
    assert failed
    assert all(trial.accuracy is None and "lower the learning rate" in str(trial.error) for trial in failed)
    assert not result.best.error
    with pytest.raises(RunError, match=r"No setting could be trained. The first one failed: .*learning rate"):
        tuned(lr=1e20, trials=2)


def test_methods_have_what_they_can_have_chosen(tmp_path: Path) -> None:
    plain_clients = [replace(client, bits=32, end_bits=None) for client in devices()]
    setup = Federation(plain_clients, FedAvg()).setup(**OPTIONS)
    assert all(setting[1:] == ({}, None) for setting in draw_settings(setup, 4))
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(RunError, match="holds other files"):
        tuned(tmp_path)
    with pytest.raises(InvalidValueError, match="number of trials must be a whole number from 2"):
        tuned(trials=1)
