"""One argument names the engine, and the others must fit it."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from helpers.program import fails, quped
from helpers.small_federation import assert_same, clients, fit

from quped import Federation, QuPeD, QupedError
from quped.simulation.engines import EngineChoice, InlineEngine, ProcessEngine, VmapEngine, usable_cores
from quped.testing import SmallNet


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"workers": 0}, "inline"),
        ({"workers": 2}, "processes"),
        ({"device": "cpu"}, "vmapped"),
        ({"device": "cpu", "workers": 0}, "vmapped"),
        ({"engine": "inline", "workers": 0}, "inline"),
        ({"engine": "processes"}, "processes"),
        ({}, "processes" if usable_cores() else "inline"),
    ],
)
def test_the_engine_follows_from_the_arguments(arguments: dict[str, Any], name: str) -> None:
    assert EngineChoice(**arguments).name == name


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        ({"engine": "inline"}, InlineEngine),
        ({"engine": "processes", "workers": 1}, ProcessEngine),
        ({"engine": "vmapped", "device": "cpu"}, VmapEngine),
    ],
)
def test_a_name_starts_its_engine(arguments: dict[str, Any], kind: type) -> None:
    engine = EngineChoice(**arguments).open(Federation(clients(QuPeD(), 2), QuPeD(), SmallNet).setup())
    engine.close()
    assert type(engine) is kind


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"engine": "proceses"}, "There is no engine 'proceses'. Did you mean 'processes'?"),
        ({"engine": 3}, "The engine must be a name such as 'inline', got 3"),
        (
            {"engine": "inline", "workers": 2},
            "The engine 'inline' takes no workers: .* engine='processes' or engine='ray'",
        ),
        ({"engine": "processes", "device": "cpu"}, "The engine 'processes' takes no device: .* engine='vmapped'"),
        ({"engine": "processes", "address": "auto"}, "The engine 'processes' takes no address: .* engine='ray'"),
        ({"engine": "processes", "workers": 0}, "number of workers must be at least 1, got 0"),
        ({"workers": -1}, "number of workers must be a whole number of at least 0, got -1"),
    ],
)
def test_what_does_not_fit_is_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(QupedError, match=words):
        fit(QuPeD(), **arguments)


@pytest.mark.skipif(find_spec("ray") is not None, reason="Ray is installed")
def test_a_missing_package_names_its_extra() -> None:
    with pytest.raises(QupedError, match=r"package 'ray' is not installed: .*quped\[ray\]"):
        fit(QuPeD(), engine="ray", workers=None)


def test_named_engines_agree_bit_for_bit() -> None:
    assert_same(fit(QuPeD(), engine="processes", workers=2), fit(QuPeD(), engine="inline"))


def test_the_command_line_says_what_engines_there_are(tmp_path: Path) -> None:
    done = quped("run", "--engine", "cloud", cwd=tmp_path)
    fails(done, "There is no engine 'cloud'.", "inline", "processes", "vmapped")
