"""What a person sees while a federation trains."""

import io

import pytest
from helpers.small_federation import Net, samples
from rich.console import Console

from quped import Client, Federation, QuPeD
from quped.progress import progress_bars


def federation() -> Federation:
    return Federation([Client("a", samples(0, 20), samples(1, 12), Net)], QuPeD())


def test_without_a_terminal_there_are_lines(capfd: pytest.CaptureFixture[str]) -> None:
    federation().fit(epochs=40, local_steps=1, workers=0)
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 10
    assert lines[-1].startswith("QuPeD: round 40/40, loss ")
    assert "accuracy" in lines[-1]


def test_progress_can_be_turned_off(capfd: pytest.CaptureFixture[str]) -> None:
    federation().fit(epochs=2, workers=0, progress=False)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_a_bar_fits_into_the_terminal(width: int) -> None:
    screen = io.StringIO()
    with progress_bars(Console(file=screen, force_terminal=True, width=width, highlight=False)) as follow:
        federation().fit(epochs=30, local_steps=1, workers=0, progress=False, callbacks=[follow("QuPeD")])
    last = next(line for line in reversed(screen.getvalue().splitlines()) if "QuPeD" in line)
    assert "30/30" in last
    assert "…" not in last
    assert "..." not in last
