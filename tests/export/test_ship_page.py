"""The walks of docs/guide/ship.md, word for word but for the length of the run."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from helpers.program import quped

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "ship.md"
SHORT = ["--workers=0", "--set", "training.epochs=2", "--set", "compare=[]"]


def command(line: str, folder: Path) -> str:
    """Run a line of a shell, with quped in this process; return what it prints."""
    program, *arguments = shlex.split(line)
    if program == "quped":
        done = quped(*arguments, *(SHORT if arguments[0] == "run" else ()), cwd=folder)
        assert done.returncode == 0, (line, done.stderr)
        return done.stdout
    if program.startswith("arm-none-eabi-") and shutil.which(program) is None:
        return ""
    return subprocess.run([program, *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_the_walks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxruntime", reason="the extra quped[onnx] is not installed")
    monkeypatch.chdir(tmp_path)
    printed = ""
    for language, code in re.findall(r"```(bash|python|c)\n(.*?)```", PAGE.read_text(), re.DOTALL):
        if language == "c":
            (tmp_path / "files" / "main.c").write_text(code)
        elif language == "python":
            exec(compile(code, PAGE.name, "exec"), {})
        else:
            printed += "".join(command(line, tmp_path) for line in code.splitlines())
    assert printed.count("same classes") == 3
    assert re.search(r"^class \d$", printed, re.MULTILINE)
    assert re.fullmatch(r"\[(\d ){9}\d\]\n", capsys.readouterr().out)
    assert (tmp_path / "files" / "phone-00.html").exists()
