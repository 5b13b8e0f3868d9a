"""A short torture: files are changed, runs are killed, clients lie, and nothing goes wrong in silence."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[1] / "benchmarks" / "torture.py"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc, and workers that fork")
def test_half_a_minute_of_torture() -> None:
    """The trials follow from the seed; a failure names the one to repeat."""
    command = [sys.executable, str(PROGRAM), "--minutes", "0.5", "--seed", "0", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    report = json.loads(done.stdout)
    assert report["failures"] == []
    assert done.returncode == 0, done.stderr
    assert min(report["trials"].values()) >= 1
    assert report["mutations"] >= 500
    assert sum(report["kills"].values()) >= 5  # one in each program
