"""The proximal maps against the paper's formulas in NumPy, and against minimisers found by trying every point."""

import numpy as np
import pytest
import torch
from helpers import quant_reference as reference
from helpers.quant_reference import Array, array, exact_problems, layouts, repeatable, tensor
from hypothesis import given
from hypothesis import strategies as st

from quped.quant import (
    CenterProx,
    descend_centers,
    nearest,
    place,
    prox_centers,
    prox_centers_exact,
    prox_weights,
    step_centers,
)

strengths = st.integers(0, 64).map(lambda n: n / 16)


def threshold(y: Array, centers: Array, strength: float) -> Array:
    """Return prox_{eta_1 lambda R(., c)}(y), case by case as in the paper's appendix."""
    target = reference.hard(y, centers)
    half = strength / 2
    return np.where(y >= target + half, y - half, np.where(y <= target - half, y + half, target))


def held(centers: Array, x: Array, home: reference.Indices) -> Array:
    """Return, for each center, 1/2 sum of |c_j - x_i| over the weights assigned to it by `home`."""
    rows = reference.grouped(x, centers)
    return np.array(
        [
            [np.abs(c - row[mine == j]).sum() / 2 for j, c in enumerate(levels)]
            for levels, row, mine in zip(centers, rows, home, strict=True)
        ]
    )


def counted(mu: Array, x: Array, centers: Array, strength: float) -> Array:
    """Return mu_j + strength / 2 * (number of j's weights above c_j - number below), by a loop over all weights."""
    result = mu.copy()
    home, rows = reference.nearest(x, centers), reference.grouped(x, centers)
    for g, row in enumerate(rows):
        for weight, j in zip(row, home[g], strict=True):
            result[g, j] += strength / 2 * (int(weight > centers[g, j]) - int(weight < centers[g, j]))
    return result


@pytest.mark.parametrize("m", [2, 3, 4, 16])
@pytest.mark.parametrize("layout", [0, 1])
@pytest.mark.parametrize("strength", [0.0, 1e-3, 0.3, 5.0])
def test_prox_of_the_weights_is_the_papers_formula(m: int, layout: int, strength: float) -> None:
    """Weights are soft-thresholded toward their nearest center, with threshold lambda eta_1 / 2."""
    y, centers = layouts(m, m)[layout]
    found = array(prox_weights(tensor(y), tensor(centers), strength))
    np.testing.assert_allclose(found, threshold(y, centers, strength), rtol=0, atol=1e-15)


@repeatable
@given(exact_problems(), strengths)
def test_prox_of_the_weights_is_exact_on_a_grid(problem: tuple[Array, Array], strength: float) -> None:
    """Where all arithmetic is exact, ties and weights at the threshold included, it equals the paper's formula."""
    y, centers = problem
    found = array(prox_weights(tensor(y), tensor(centers), strength))
    np.testing.assert_array_equal(found, threshold(y, centers, strength))


@pytest.mark.parametrize("m", [2, 3, 5])
@pytest.mark.parametrize(("eta", "lam"), [(0.1, 0.5), (0.5, 1.0), (2.0, 1.5)])
def test_prox_of_the_weights_minimises_its_objective(m: int, eta: float, lam: float) -> None:
    """No point of a fine grid has a smaller (x - y)^2 / (2 eta) + lambda R(x, c), and the best is near the prox."""
    rng = np.random.default_rng(m)
    centers, y = np.sort(rng.uniform(-1, 1, size=(1, m)), axis=1), rng.uniform(-2, 2, size=60)
    found = array(prox_weights(tensor(y), tensor(centers), lam * eta))
    grid = np.linspace(-3, 3, 30001)

    def cost(x: Array, origin: float) -> Array:
        out: Array = (x - origin) ** 2 / (2 * eta) + lam / 2 * np.abs(x[:, None] - centers).min(1)
        return out

    for origin, x in zip(y, found, strict=True):
        values = cost(grid, origin)
        assert cost(np.array([x]), origin)[0] <= values.min() + 1e-12
        assert abs(grid[values.argmin()] - x) <= grid[1] - grid[0]


def test_prox_of_the_weights_by_hand() -> None:
    """With centers -1 and 1 and threshold 0.25: over the threshold a weight moves by it, under it onto the center."""
    y = torch.tensor([-2.0, -1.25, -0.9, -0.5, 0.5, 1.0, 1.5])
    found = prox_weights(y, torch.tensor([[-1.0, 1.0]]), 0.5)
    assert found.tolist() == [-1.75, -1.0, -1.0, -0.75, 0.75, 1.0, 1.25]


def test_prox_of_the_weights_ends_on_the_centers() -> None:
    """A strong pull gives Q_c(y) to the last bit, which the next assignment and R = 0 rely on."""
    y, centers = layouts(9, 4)[1]
    found = prox_weights(tensor(y), tensor(centers), 100.0)
    np.testing.assert_array_equal(array(found), reference.hard(y, centers))


@pytest.mark.parametrize("m", [2, 3, 4, 16])
@pytest.mark.parametrize("layout", [0, 1])
@pytest.mark.parametrize("strength", [0.0, 1e-3, 0.3])
def test_linear_prox_of_the_centers_counts_weights_on_both_sides(m: int, layout: int, strength: float) -> None:
    """Each center moves from mu by strength / 2 times (weights above it - weights below it)."""
    x, centers = layouts(m, m)[layout]
    mu = centers + np.random.default_rng(m).normal(size=centers.shape) * 0.1
    found = array(prox_centers(tensor(mu), tensor(x), tensor(centers), strength))
    np.testing.assert_allclose(found, counted(mu, x, centers, strength), rtol=1e-13, atol=1e-13)


@repeatable
@given(exact_problems(), strengths)
def test_linear_prox_of_the_centers_is_exact_on_a_grid(problem: tuple[Array, Array], strength: float) -> None:
    """Weights that sit on a center or midway between two are counted as the formula says."""
    x, centers = problem
    found = array(prox_centers(tensor(centers), tensor(x), tensor(centers), strength))
    np.testing.assert_array_equal(found, counted(centers, x, centers, strength))


def test_linear_prox_of_the_centers_by_hand() -> None:
    """Center 0 has two weights above and one below, 10 one on it and two below: they move by +0.05 and -0.1."""
    x = torch.tensor([-1.0, 1.0, 2.0, 10.0, 9.0, 8.0], dtype=torch.float64)
    centers = torch.tensor([[0.0, 10.0]], dtype=torch.float64)
    mu = torch.tensor([[0.5, 9.5]], dtype=torch.float64)
    assert prox_centers(mu, x, centers, 0.1).tolist() == [pytest.approx([0.55, 9.4], rel=1e-15)]


@pytest.mark.parametrize("seed", range(5))
def test_a_small_linear_step_decreases_the_distance(seed: int) -> None:
    """R falls by at least strength / 4 times the squared counts: the paper's printed sign would raise it.

    As long as no weight is crossed, R with the assignment held is linear in c with slope -count / 2; R itself is not
    larger.
    """
    for x, centers in layouts(seed, 4):
        home = reference.nearest(x, centers)
        closest = np.abs(reference.grouped(x, centers) - np.take_along_axis(centers, home, 1)).min()
        counts = counted(np.zeros_like(centers), x, centers, 2.0)
        strength = float(closest / np.abs(counts).max())
        moved = array(prox_centers(tensor(centers), tensor(x), tensor(centers), strength))
        fall = reference.distance(x, centers) - reference.distance(x, moved)
        assert fall >= strength / 4 * (counts**2).sum() - 1e-12
        assert fall > 0


def test_repeated_linear_steps_pull_to_the_medians() -> None:
    """From centers that are not medians, steps without a gradient end at the medians of two separated clusters."""
    rng = np.random.default_rng(0)
    low, high = rng.exponential(size=51) - 10, rng.exponential(size=31) + 10
    x, step = np.concatenate([low, high]), 1e-3
    centers = tensor(np.array([[-7.0, 12.0]]))
    for _ in range(1200):
        centers = prox_centers(centers, tensor(x), centers, step)
    # At the end a center steps back and forth over the median, by at most step / 2 times its number of weights.
    assert array(centers)[0] == pytest.approx([np.median(low), np.median(high)], abs=step / 2 * 51)
    assert abs(np.median(low) - low.mean()) > step * 51


@pytest.mark.parametrize("strength", [0.01, 0.1, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_exact_prox_of_the_centers_minimises_its_objective(seed: int, strength: float) -> None:
    """No point of a fine grid has a smaller (c - mu)^2 / 2 + strength / 2 sum |c - x_i|, and the best is near."""
    rng = np.random.default_rng(seed)
    x, centers = rng.normal(size=(2, 9)), np.sort(rng.normal(size=(2, 3)), axis=1)
    mu = centers + rng.normal(size=centers.shape) * 0.5
    found = array(prox_centers_exact(tensor(mu), tensor(x), tensor(centers), strength))
    home, grid = reference.nearest(x, centers), np.linspace(-5, 5, 50001)
    for g, j in np.ndindex(2, 3):
        mine, tried = x[g][home[g] == j], np.append(grid, found[g, j])
        cost = (tried - mu[g, j]) ** 2 / 2 + strength / 2 * np.abs(tried[:, None] - mine).sum(1)
        assert cost[-1] <= cost[:-1].min() + 1e-12
        assert abs(grid[cost[:-1].argmin()] - found[g, j]) <= grid[1] - grid[0]


@repeatable
@given(exact_problems(), strengths, st.lists(st.integers(-16, 16), min_size=18, max_size=18))
def test_exact_prox_of_the_centers_never_increases_its_objective(
    problem: tuple[Array, Array], strength: float, shifts: list[int]
) -> None:
    """From any mu its result costs no more than staying at c^t, than mu itself, and than the linearised result."""
    x, centers = problem
    mu = centers + np.array(shifts[: centers.size]).reshape(centers.shape) / 8
    home = reference.nearest(x, centers)
    found = array(prox_centers_exact(tensor(mu), tensor(x), tensor(centers), strength))
    linear = counted(mu, x, centers, strength)

    def cost(c: Array) -> Array:
        return (c - mu) ** 2 / 2 + strength * held(c, x, home)

    for other in (centers, mu, linear):
        assert (cost(found) <= cost(other)).all()


@repeatable
@given(exact_problems(), strengths)
def test_exact_prox_of_the_centers_never_increases_the_distance(problem: tuple[Array, Array], strength: float) -> None:
    """Without a gradient, mu = c^t, R(x, .) does not grow, however strong the pull."""
    x, centers = problem
    moved = array(prox_centers_exact(tensor(centers), tensor(x), tensor(centers), strength))
    assert reference.distance(x, np.sort(moved, axis=1)) <= reference.distance(x, centers)


@pytest.mark.parametrize("seed", range(5))
def test_both_proxes_of_the_centers_agree_where_no_weight_is_crossed(seed: int) -> None:
    """With steps shorter than the way to the nearest weight, and none on a center, they are the same."""
    for x, centers in layouts(seed, 4):
        home = reference.nearest(x, centers)
        closest = float(np.abs(reference.grouped(x, centers) - np.take_along_axis(centers, home, 1)).min())
        mu = centers + np.random.default_rng(seed).uniform(-0.4, 0.4, size=centers.shape) * closest
        strength = closest / x.size
        found = array(prox_centers_exact(tensor(mu), tensor(x), tensor(centers), strength))
        np.testing.assert_allclose(found, counted(mu, x, centers, strength), rtol=0, atol=1e-14)
        assert np.abs(found - mu).max() > 0


def test_exact_prox_of_the_centers_by_hand() -> None:
    """Four centers, of which one is pulled onto a weight, one held by weights, one pulled back a bit, one free.

    kappa = 0.5. Center 0 has mu = 0 and weights 1 and 4: pulled by 2 kappa = 1, it ends on the first, at 1.
    Center 10 has mu = 9 and weights 10, 10, 10: they hold it with 3 kappa = 1.5 against a way of 1. It stays at 10.
    Center 20 has mu = 23 and the weight 20: pulled back by kappa to 22.5. Center 30 has no weight: it goes to mu.
    """
    x = torch.tensor([1.0, 4.0, 10.0, 10.0, 10.0, 20.0], dtype=torch.float64)
    centers = torch.tensor([[0.0, 10.0, 20.0, 30.0]], dtype=torch.float64)
    mu = torch.tensor([[0.0, 9.0, 23.0, 31.0]], dtype=torch.float64)
    found = prox_centers_exact(mu, x, centers, 1.0)
    assert found.tolist() == [[1.0, 10.0, 22.5, 31.0]]


def test_the_linear_prox_does_not_see_weights_on_their_center() -> None:
    """Three weights on their center pull it back when it is to move away, but not in the linearised prox."""
    x = torch.tensor([10.0, 10.0, 10.0, 0.0])
    centers, mu = torch.tensor([[0.0, 10.0]]), torch.tensor([[0.0, 9.0]])
    assert prox_centers(mu, x, centers, 1.0).tolist() == [[0.0, 9.0]]
    assert prox_centers_exact(mu, x, centers, 1.0).tolist() == [[0.0, 10.0]]


def test_center_gradients_are_cut() -> None:
    """c - eta_2 h, with h = 3 as it is and h = -40 and 12 cut to 10."""
    centers, h = torch.tensor([[1.0, 2.0, 4.0]]), torch.tensor([[3.0, -40.0, 12.0]])
    assert descend_centers(centers, h, 0.5, 10.0).tolist() == [[-0.5, 7.0, -1.0]]


@repeatable
@given(exact_problems(), st.permutations(range(6)))
def test_placing_carries_weights_along_with_their_centers(problem: tuple[Array, Array], order: list[int]) -> None:
    """Weights on centers move with these, even where the centers swap places."""
    x, centers = problem
    on = reference.hard(x, centers)
    moved = centers[:, [k for k in order if k < centers.shape[1]]] + 0.25
    found = array(place(tensor(moved), nearest(tensor(on), tensor(centers)), torch.Size(x.shape)))
    rows = reference.grouped(on, centers)
    expected = [[moved[g, list(centers[g]).index(weight)] for weight in row] for g, row in enumerate(rows)]
    np.testing.assert_array_equal(found, np.array(expected).reshape(x.shape))


@pytest.mark.parametrize(("center_prox", "expected"), [("linear", [[0.0, 9.0]]), ("exact", [[0.0, 10.0]])])
def test_a_step_of_the_centers_by_hand(center_prox: CenterProx, expected: list[list[float]]) -> None:
    """The gradient moves the second center from 10 to 9. Its three weights hold it in the exact prox only."""
    x, centers, h = torch.tensor([10.0, 10.0, 10.0, 0.0]), torch.tensor([[0.0, 10.0]]), torch.tensor([[0.0, 2.0]])
    moved = step_centers(centers, h, x, nearest(x, centers), lam=2.0, eta2=0.5, clip=10.0, center_prox=center_prox)
    assert moved.tolist() == expected


def test_a_step_of_the_centers_cuts_and_sorts() -> None:
    """Gradients of 40 are cut to 8: the centers move by 6, past each other, and are sorted."""
    x, centers, h = torch.tensor([0.0, 10.0]), torch.tensor([[0.0, 10.0]]), torch.tensor([[-40.0, 40.0]])
    moved = step_centers(centers, h, x, nearest(x, centers), lam=0.0, eta2=0.75, clip=8.0)
    assert moved.tolist() == [[4.0, 6.0]]
