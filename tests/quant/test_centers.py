"""Where centers init, against NumPy."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from helpers import quant_reference as reference
from helpers.quant_reference import Array, array, repeatable, tensor
from hypothesis import assume, given
from hypothesis import strategies as st

from quped.errors import InvalidValueError
from quped.quant import CenterInit, initial_centers

STARTS: list[CenterInit] = ["range", "kmeans"]


def squared_error(x: Array, centers: Array) -> Array:
    """Return, for each row of centers, the sum of the squared distances of its weights from the nearest of them."""
    gaps = np.abs(reference.grouped(x, centers)[:, :, None] - centers[:, None, :]).min(-1)
    out: Array = (gaps**2).sum(1)
    return out


def lloyd(x: Array, centers: Array) -> Array:
    """Return the mean of each center's weights, or the center itself where it has none."""
    home, rows = reference.nearest(x, centers), reference.grouped(x, centers)
    means = [
        [row[mine == j].mean() if (mine == j).any() else c for j, c in enumerate(levels)]
        for row, mine, levels in zip(rows, home, centers, strict=True)
    ]
    return np.array(means)


@pytest.mark.parametrize("shape", [(30,), (6, 5), (4, 3, 5, 5)])
def test_two_centers_are_the_means_of_both_signs(shape: tuple[int, ...]) -> None:
    """With m = 2 they are the mean of the negative and the mean of the positive weights; zeros belong to neither."""
    x = np.random.default_rng(0).normal(size=shape) + 0.2
    x.reshape(-1)[3] = 0.0
    found = initial_centers(tensor(x), 2)
    assert found.shape == (1, 2)
    np.testing.assert_allclose(array(found), [[x[x < 0].mean(), x[x > 0].mean()]], rtol=1e-13)


@pytest.mark.parametrize("m", [3, 4, 8, 16, 256])
def test_more_centers_are_evenly_spaced(m: int) -> None:
    """With m > 2 they go from the least to the largest weight in equal steps."""
    x = np.random.default_rng(m).normal(size=(4, 3, 5, 5))
    found = initial_centers(tensor(x), m)
    np.testing.assert_allclose(array(found), [np.linspace(x.min(), x.max(), m)], rtol=0, atol=1e-14)


def test_range_by_hand() -> None:
    """Weights -4, -2, 0, 1, 2: two centers at -3 and 1.5, four at -4, -2, 0 and 2."""
    x = torch.tensor([-4.0, -2.0, 0.0, 1.0, 2.0])
    assert initial_centers(x, 2).tolist() == [[-3.0, 1.5]]
    assert initial_centers(x, 4).tolist() == [pytest.approx([-4.0, -2.0, 0.0, 2.0], abs=1e-6)]


@pytest.mark.parametrize("m", [2, 4, 8])
@pytest.mark.parametrize("init", STARTS)
def test_channels_have_centers_of_their_own(m: int, init: CenterInit) -> None:
    """Each row of per-channel centers is what the channel would get if it were the whole layer."""
    x = np.random.default_rng(m).normal(size=(5, 3, 4, 4)) * np.arange(1, 6).reshape(5, 1, 1, 1)
    found = initial_centers(tensor(x), m, init, per_channel=True)
    assert found.shape == (5, m)
    for g in range(5):
        np.testing.assert_allclose(array(found)[g], array(initial_centers(tensor(x[g]), m, init))[0], rtol=1e-12)


def test_a_channel_with_one_sign_gets_its_ends() -> None:
    """Where a channel lacks negative or positive weights, its two centers are its least and its largest weight."""
    x = np.array([[1.0, 2.0, 6.0], [-1.0, -3.0, 8.0], [-5.0, -2.0, -3.0], [0.0, 0.0, 4.0]])
    found = array(initial_centers(tensor(x), 2, per_channel=True))
    np.testing.assert_allclose(found, [[1.0, 6.0], [-2.0, 8.0], [-5.0, -2.0], [0.0, 4.0]], rtol=1e-15)


@repeatable
@given(
    st.lists(st.integers(-64, 64), min_size=2, max_size=30),
    st.integers(2, 16),
    st.sampled_from(STARTS),
)
def test_centers_are_sorted_and_among_the_weights(values: list[int], m: int, init: CenterInit) -> None:
    """However few or repeated the weights are, m centers come out in order, none outside of their range."""
    assume(min(values) < max(values))
    x = np.array(values) / 16
    found = array(initial_centers(tensor(x), m, init))
    assert found.shape == (1, m)
    assert (np.diff(found) >= 0).all()
    assert x.min() <= found.min()
    assert found.max() <= x.max() + 1e-12


@pytest.mark.parametrize(("n", "m"), [(50, 2), (50, 16), (400, 4), (400, 64), (2000, 8), (2000, 16), (20000, 16)])
def test_kmeans_reaches_a_fixed_point(n: int, m: int) -> None:
    """Every center with weights is their mean: one more step of Lloyd's algorithm changes nothing."""
    x = np.random.default_rng(n + m).normal(size=n)
    found = array(initial_centers(tensor(x), m, "kmeans"))
    np.testing.assert_allclose(found, lloyd(x, found), rtol=0, atol=1e-10)


@pytest.mark.parametrize("n", [50, 400, 2000])
@pytest.mark.parametrize("m", [2, 4, 8, 16, 64, 256])
def test_kmeans_is_not_worse_than_range(n: int, m: int) -> None:
    """It is there to lower the squared error: for normal weights, and in every channel, it never has a larger one."""
    x = np.random.default_rng(n + m).normal(size=(4, n))
    kmeans, evenly = (array(initial_centers(tensor(x), m, init, per_channel=True)) for init in ("kmeans", "range"))
    assert (squared_error(x, kmeans) <= squared_error(x, evenly) * (1 + 1e-12)).all()


@pytest.mark.parametrize("m", [2, 3, 4, 8])
def test_kmeans_finds_separated_clusters(m: int) -> None:
    """Clusters of one size that lie far apart are found exactly: each center is the mean of one."""
    rng = np.random.default_rng(m)
    clusters = np.sort(rng.choice(20, m, replace=False))[:, None] * 10.0 + rng.uniform(-1, 1, size=(m, 25))
    x = rng.permutation(clusters.reshape(-1))
    found = array(initial_centers(tensor(x), m, "kmeans"))
    np.testing.assert_allclose(found, [clusters.mean(1)], rtol=1e-13)


@pytest.mark.parametrize("per_channel", [False, True])
def test_unit_centers_do_not_depend_on_the_weights(per_channel: bool) -> None:
    """From -1 to 1 in equal steps, also among weights that are all the same."""
    for x in (torch.full((3, 4), 0.5), 7 * torch.randn(3, 4)):
        for m, expected in ((2, [-1.0, 1.0]), (4, [-1.0, -1 / 3, 1 / 3, 1.0])):
            centers = initial_centers(x, m, "unit", per_channel=per_channel)
            assert centers.tolist() == [pytest.approx(expected)] * (3 if per_channel else 1)


def test_kmeans_by_hand() -> None:
    """Weights 0, 1, 2, 10, 12 with two centers: 1 and 11."""
    x = torch.tensor([10.0, 0.0, 2.0, 12.0, 1.0])
    assert initial_centers(x, 2, "kmeans").tolist() == [[1.0, 11.0]]


@pytest.mark.parametrize("m", [1, 0, -3])
@pytest.mark.parametrize("init", STARTS)
def test_fewer_than_two_centers_are_refused(m: int, init: CenterInit) -> None:
    """One center quantizes nothing."""
    with pytest.raises(InvalidValueError, match=rf"^The number of centers must be at least 2, got {m}\.$"):
        initial_centers(torch.randn(10), m, init)


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("init", STARTS)
def test_constant_weights_are_refused(per_channel: bool, init: CenterInit) -> None:
    """Centers cannot be told apart among equal weights; the message names the value and what to do."""
    message = r"^4 centers cannot be placed among weights that are all 0\.5: initialise .*, or leave it unquantized\.$"
    with pytest.raises(InvalidValueError, match=message):
        initial_centers(torch.full((3, 4), 0.5), 4, init, per_channel=per_channel)


def test_one_constant_channel_is_refused() -> None:
    """A layer may vary as a whole and still have a channel that does not."""
    x = torch.tensor([[1.0, 2.0, 3.0], [-7.0, -7.0, -7.0]])
    assert initial_centers(x, 4).shape == (1, 4)
    with pytest.raises(InvalidValueError, match="weights that are all -7:"):
        initial_centers(x, 4, per_channel=True)


def test_centers_do_not_belong_to_the_graph_of_the_weights() -> None:
    """They are a starting point: no gradient flows back to the weights that they were placed among."""
    x = torch.randn(20, requires_grad=True)
    for m in (2, 4):
        assert not initial_centers(x, m).requires_grad


def test_an_unknown_start_is_refused() -> None:
    """A misspelt name does not silently become another one."""
    make: Callable[..., torch.Tensor] = initial_centers
    with pytest.raises(InvalidValueError, match=r"init_centers must be .*, got 'k-means'"):
        make(torch.tensor([1.0, 2.0]), 2, "k-means")
