"""Trees in memory-mapped files."""

from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from quped.simulation.engines._shared_rows import Rows
from quped.typing import ModelState


class State(NamedTuple):
    """A state with tensors of several types and sizes."""

    model: ModelState
    scale: Tensor


def state(value: int) -> State:
    """Return a state filled with a number."""
    params = {"a": torch.full((3, 5), float(value)), "b": torch.full((1,), value, dtype=torch.float64)}
    return State(ModelState(params, {"count": torch.tensor(value)}), torch.tensor(value / 2))


def equal(a: State, b: State) -> bool:
    """Say whether two states agree in all tensors and their types."""
    pairs = [*((a.model.params[k], b.model.params[k]) for k in ("a", "b")), (a.scale, b.scale)]
    pairs.append((a.model.buffers["count"], b.model.buffers["count"]))
    return all(x.dtype == y.dtype and torch.equal(x, y) for x, y in pairs)


def test_rows_keep_what_is_written(tmp_path: Path) -> None:
    """Each row its own tree; also through a second mapping of the same file."""
    rows = Rows(tmp_path / "rows", state(0), 4)
    for i in range(4):
        rows.write(i, state(i + 10))
    rows.write(2, state(99))
    for reader in (rows, Rows(tmp_path / "rows", state(0), 4)):
        assert [equal(reader.read(i), state(v)) for i, v in enumerate((10, 11, 99, 13))] == [True] * 4


def test_untouched_rows_take_no_space(tmp_path: Path) -> None:
    """A million rows of a kilobyte are nothing on the disk until they are written."""
    template = {"x": torch.zeros(250)}
    rows = Rows(tmp_path / "rows", template, 1_000_000)
    rows.write(999_999, {"x": torch.ones(250)})
    assert (tmp_path / "rows").stat().st_size > 1e9
    assert (tmp_path / "rows").stat().st_blocks * 512 < 1e6
    assert float(rows.read(999_999)["x"].sum()) == 250


def test_an_empty_tree_has_rows_too(tmp_path: Path) -> None:
    """State of a method that has none."""
    rows = Rows(tmp_path / "rows", {}, 3)
    rows.write(1, {})
    assert rows.read(1) == {}
