"""The examples run, are short, and end with what they promise; the notebook has the outputs of its code."""

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
SCRIPTS = sorted(EXAMPLES.glob("*.py"))

PRINTED = {
    "fleet.py": r"laptop-3 +\d+\.\d% +\d+\.\d% +\d+ B +21008 B\n$",
    "microcontroller.py": r"compiled and run on \d+ inputs: same classes.*\n(The compiled program: (\d+\.\d)%.*\n)?$",
    "new_algorithm.py": r"keeps the contracts\.\nfedavg: \d+\.\d%\nfedadagrad: \d+\.\d%\n$",
    "own_loop.py": r"epoch 20: 9\d\.\d% on test images\n.*digits\.quped: \d{4} bytes instead of 104488\n$",
}
"""What the output of each script ends with."""


def run(*command: str | Path, cwd: Path) -> str:
    """Run a program of the environment with warnings as errors; return what it prints."""
    environment = {**os.environ, "TMPDIR": str(cwd), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_there_are_four_short_scripts() -> None:
    assert [script.name for script in SCRIPTS] == sorted(PRINTED)
    for script in SCRIPTS:
        text = script.read_text()
        assert len(text.splitlines()) < 60, script.name
        assert f"python examples/{script.name}" in text


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_scripts_run(script: Path, tmp_path: Path) -> None:
    printed = run(sys.executable, "-W", "error", script, cwd=tmp_path)
    assert re.search(PRINTED[script.name], printed), printed


def shown(notebook: Any) -> list[list[tuple[str, ...]]]:
    """Return what the cells of a notebook show: the kinds of pictures, and the text without its numbers."""
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return [
        [
            (output["output_type"], *sorted(output.get("data", ())), re.sub(r"\d+", "0", output.get("text", "")))
            for output in cell["outputs"]
        ]
        for cell in cells
    ]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # those of the machinery of notebooks
def test_the_notebook_shows_what_its_code_gives() -> None:
    notebook = runpy.run_path(str(ROOT / "docs" / "run_notebook.py"))
    committed = notebook["written"]()
    assert shown(notebook["executed"]()) == shown(committed), "run `make notebook`"
    kinds = [kind for cell in shown(committed) for output in cell for kind in output]
    assert kinds.count("image/png") == 4
    assert "error" not in kinds
    assert all("execution" not in cell["metadata"] for cell in committed["cells"])
