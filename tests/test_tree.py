"""Arithmetic on trees of tensors."""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from quped import _tree
from quped.typing import ModelState, Params


class Pair(NamedTuple):
    """A state like those of the algorithms."""

    x: ModelState
    c: Params


def pair(scale: float) -> Pair:
    """Return a tree whose leaves are 1, 2, 3 and (4, 5) times a scale."""
    model = ModelState({"conv.weight": torch.tensor(1.0) * scale}, {"mean": torch.tensor(2.0) * scale})
    return Pair(model, {"b": torch.tensor(3.0) * scale, "a": torch.tensor([4.0, 5.0]) * scale})


def test_map_leaves_keeps_the_shape_and_the_types() -> None:
    """Every leaf is mapped; dictionaries keep their keys in order, NamedTuples their types."""
    found = _tree.map_leaves(lambda leaf: leaf + 1, pair(1.0))
    assert type(found) is Pair
    assert type(found.x) is ModelState
    assert found.x.params["conv.weight"].item() == 2
    assert found.x.buffers["mean"].item() == 3
    assert list(found.c) == ["b", "a"]
    assert found.c["b"].item() == 4
    assert found.c["a"].tolist() == [5, 6]


def test_map_leaves_leaves_its_arguments_alone() -> None:
    """The tree that goes in is the same afterwards, and the one that comes out is another."""
    given = pair(1.0)
    found = _tree.map_leaves(lambda leaf: leaf * 0, given)
    assert given.c["a"].tolist() == [4, 5]
    assert found.c is not given.c


def test_map_leaves_of_several_trees() -> None:
    """Corresponding leaves meet in the order of the trees."""
    found = _tree.map_leaves(lambda a, b, c: a - b / c, pair(1.0), pair(4.0), pair(2.0))
    assert found.x.params["conv.weight"].item() == 1 - 4 / 2
    assert found.c["a"].tolist() == [4 - 16 / 8, 5 - 20 / 10]


def test_map_leaves_finds_keys_by_name() -> None:
    """The order of a dictionary's keys does not matter."""
    a, b = {"p": torch.tensor(1.0), "q": torch.tensor(2.0)}, {"q": torch.tensor(20.0), "p": torch.tensor(10.0)}
    assert {k: v.item() for k, v in _tree.map_leaves(torch.add, a, b).items()} == {"p": 11, "q": 22}


def test_map_leaves_of_plain_tuples_and_single_tensors() -> None:
    """A plain tuple stays one, a tensor is a tree by itself, and an empty tree stays empty."""
    found = _tree.map_leaves(torch.neg, (torch.tensor(1.0), {"a": torch.tensor(2.0)}))
    assert type(found) is tuple
    assert (found[0].item(), found[1]["a"].item()) == (-1, -2)
    assert _tree.map_leaves(torch.neg, torch.tensor(3.0)).item() == -3
    empty: Params = {}
    assert _tree.map_leaves(torch.neg, empty) == {}


def test_trees_of_different_shapes_do_not_map() -> None:
    """A missing key, one too many, or a tuple of another length is an error."""
    small, large = {"a": torch.tensor(1.0)}, {"a": torch.tensor(1.0), "b": torch.tensor(1.0)}
    for pair_ in ((large, small), (small, large)):
        with pytest.raises(ValueError, match="same keys"):
            _tree.map_leaves(torch.add, *pair_)
    one: tuple[Tensor, ...] = (torch.tensor(1.0),)
    with pytest.raises(ValueError, match="shorter"):
        _tree.map_leaves(torch.add, one + one, one)


def test_items_name_every_leaf() -> None:
    """Fields follow a dot, keys a slash, and the order is that of the tree."""
    found = list(_tree.items(pair(1.0)))
    assert [path for path, _ in found] == ["x.params/conv.weight", "x.buffers/mean", "c/b", "c/a"]
    assert [leaf.tolist() for _, leaf in found] == [1, 2, 3, [4, 5]]


def test_items_of_plain_tuples_and_single_tensors() -> None:
    """Entries of a plain tuple are numbered, and a prefix goes in front of every path."""
    leaf = torch.tensor(0.0)
    assert [path for path, _ in _tree.items((leaf, {"a": leaf}))] == ["0", "1/a"]
    assert [path for path, _ in _tree.items({"a": (leaf, leaf)}, "top")] == ["top/a.0", "top/a.1"]
    assert [path for path, _ in _tree.items(leaf, "w")] == ["w"]
    assert list(_tree.items({})) == []


def test_other_leaves_are_refused() -> None:
    """A list or a number in a tree is a mistake, and the message says what was found."""
    with pytest.raises(TypeError, match="not list"):
        _tree.map_leaves(torch.neg, {"a": [torch.tensor(1.0)]})
    with pytest.raises(TypeError, match="not int"):
        list(_tree.items({"a": 3}))


def test_add_scaled() -> None:
    """a + scale * b."""
    a = {"p": torch.tensor([1.0, 2.0]), "q": torch.tensor(3.0)}
    b = {"q": torch.tensor(10.0), "p": torch.tensor([4.0, 8.0])}
    found = _tree.add_scaled(a, b, -0.5)
    assert {k: v.tolist() for k, v in found.items()} == {"p": [-1, -2], "q": -2}
    assert a["p"].tolist() == [1, 2]


def test_difference_and_zeros_like() -> None:
    """a - b by name, and zeros in the shape and type of a."""
    a = {"p": torch.tensor([1.0, 2.0], dtype=torch.float64), "q": torch.tensor(3)}
    b = {"q": torch.tensor(1), "p": torch.tensor([0.5, 5.0], dtype=torch.float64)}
    assert {k: v.tolist() for k, v in _tree.difference(a, b).items()} == {"p": [0.5, -3], "q": 2}
    zeros = _tree.zeros_like(a)
    assert {k: v.tolist() for k, v in zeros.items()} == {"p": [0, 0], "q": 0}
    assert zeros["p"].dtype == torch.float64
    assert zeros["q"].dtype == torch.int64


def test_floats_leaves_out_what_cannot_be_averaged() -> None:
    """A batch counter and a mask go; floating-point numbers of every width stay, the very same tensors."""
    a = {
        "mean": torch.tensor([1.0]),
        "num_batches_tracked": torch.tensor(7),
        "mask": torch.tensor([True]),
        "half": torch.tensor(1.0, dtype=torch.float16),
    }
    found = _tree.floats(a)
    assert list(found) == ["mean", "half"]
    assert found["mean"] is a["mean"]
