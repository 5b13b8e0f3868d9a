"""The command line, run in this process."""

import io
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

import pytest

from quped.cli import main

FILE = """
description = "four devices"

[data]
name = "digits"
partition = "classes=5"

[[clients]]
count = 2
model = "cnn1"
bits = 2

[[clients]]
count = 2
model = { name = "mlp", hidden = [16, 8] }
bits = 1

[global_model]
name = "mlp"

[training]
epochs = 2
local_steps = 4
batch_size = 100

[algorithm]
name = "quped"

[[compare]]
algorithm = { name = "local" }

[[compare]]
algorithm = { name = "fedavg" }
training = { lr = 0.2 }
"""
"""A small experiment."""


class Done(NamedTuple):
    """What a person sees of a command that ended."""

    returncode: int
    stdout: str
    stderr: str


def quped(*arguments: str | Path, cwd: Path) -> Done:
    """Run the program's entry point, in this process, since starting one takes seconds."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.chdir(cwd)
        patch.setattr(sys, "argv", ["quped", *map(str, arguments)])
        try:
            main()
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 0
    return Done(code, out.getvalue(), err.getvalue())


def fails(done: Done, *words: str) -> None:
    """Assert exit code 2 and an error with these words, without a traceback."""
    assert done.returncode == 2, (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr, done.stderr
