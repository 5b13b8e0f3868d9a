"""`import quped` is light and quiet, and packages of an extra are imported when they are needed."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from quped.data.datasets import cifar10, digits
from quped.data.download.fetch import ignore_progress
from quped.data.download.sources import Url
from quped.data.partition import split
from quped.data.samples import Dataset, TensorSamples
from quped.errors import QupedError
from quped.report.plots.partition import draw_partition

EXTRAS = {"PIL", "matplotlib", "pydantic", "requests", "rich", "scipy", "sklearn", "tomli_w", "typer"}


def test_no_package_of_an_extra_is_imported() -> None:
    code = """
import sys
from quped import *
import quped.data.datasets, quped.data.download.fetch, quped.data.partition
print(*{name.split(".")[0] for name in sys.modules})
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stderr == ""
    loaded = set(result.stdout.split())
    assert "torch" in loaded
    assert not loaded & EXTRAS


def draw_digits() -> None:
    data = TensorSamples(torch.zeros(2, 1), torch.arange(2))
    dataset = Dataset("two", data, data, classes=2, input_shape=(1,), class_names=("a", "b"))
    draw_partition(dataset, split(dataset, "iid", 2, 0), "two", Path("two.png"))


@pytest.mark.parametrize(
    ("package", "extra", "use"),
    [
        ("sklearn", "data", digits.digits),
        ("PIL", "data", lambda: cifar10.picture(b"", "a.png")),
        ("requests", "data", lambda: Url("https://example.invalid/a", "0").save(Path(), ignore_progress)),
        ("matplotlib", "plot", draw_digits),
    ],
)
def test_a_missing_package_is_named_with_its_extra(
    package: str, extra: str, use: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(QupedError, match=rf"'{package}' is not installed.*pip install 'quped\[{extra}\]'"):
        use()
