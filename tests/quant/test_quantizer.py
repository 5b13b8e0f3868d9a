"""Which center a weight belongs to, the quantizers, R and F_lambda, against NumPy."""

import math

import numpy as np
import pytest
import torch
from helpers import quant_reference as reference
from helpers.quant_reference import Array, array, exact_problems, layouts, repeatable, tensor
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from quped.quant import Assignment, assign, by_centers, distance, hard, nearest, objective, place, quantize, soft

SIZES = [2, 3, 4, 8, 16, 256]


@pytest.mark.parametrize("m", SIZES)
@pytest.mark.parametrize("layout", [0, 1])
def test_nearest_is_the_argmin_over_all_centers(m: int, layout: int) -> None:
    """For per-layer and per-channel centers, every weight is assigned to the center with the least |x - c|."""
    x, centers = layouts(m, m)[layout]
    found = nearest(tensor(x), tensor(centers)).numpy()
    assert found.shape == (len(centers), x.size // len(centers))
    np.testing.assert_array_equal(found, reference.nearest(x, centers))


@pytest.mark.parametrize("m", SIZES)
def test_nearest_in_single_precision_is_optimal_up_to_rounding(m: int) -> None:
    """In float32 the chosen center is as near as the nearest, up to the rounding of a midpoint."""
    x, centers = layouts(m, m)[1]
    narrow_x, narrow_c = x.astype(np.float32), centers.astype(np.float32)
    found = nearest(torch.from_numpy(narrow_x), torch.from_numpy(narrow_c)).numpy()
    wide_x, wide_c = narrow_x.astype(np.float64).reshape(4, -1), narrow_c.astype(np.float64)
    gap = np.abs(wide_x - np.take_along_axis(wide_c, found, 1))
    least = np.abs(wide_x[:, :, None] - wide_c[:, None, :]).min(-1)
    assert (gap <= least + 2 * np.finfo(np.float32).eps * np.abs(wide_c).max()).all()


def test_nearest_by_hand() -> None:
    """Weights below, between, on and above the centers -1, 0 and 2; the ties -0.5 and 1 go to the lower center."""
    x = torch.tensor([-3.0, -1.0, -0.5, -0.49, 0.0, 0.9, 1.0, 1.1, 2.0, 7.0])
    found = nearest(x, torch.tensor([[-1.0, 0.0, 2.0]]))
    assert found.tolist() == [[0, 0, 0, 1, 1, 1, 1, 2, 2, 2]]


def test_nearest_keeps_channels_apart() -> None:
    """The same weight goes to different centers in channels with different centers."""
    x = torch.tensor([[0.3, 0.7], [0.3, 0.7]])
    found = nearest(x, torch.tensor([[0.0, 1.0], [-1.0, 0.0]]))
    assert found.tolist() == [[0, 1], [1, 1]]


@repeatable
@given(exact_problems())
def test_nearest_takes_the_lower_center_on_every_tie(problem: tuple[Array, Array]) -> None:
    """Where all arithmetic is exact, the assignment equals NumPy's first argmin, ties included."""
    x, centers = problem
    np.testing.assert_array_equal(nearest(tensor(x), tensor(centers)).numpy(), reference.nearest(x, centers))


@pytest.mark.parametrize("assignment", ["nearest", "sign"])
@repeatable
@given(exact_problems())
def test_a_weight_on_a_center_stays_with_it(assignment: Assignment, problem: tuple[Array, Array]) -> None:
    """The centers themselves are assigned to 0, 1, .. m - 1, and quantizing twice changes nothing."""
    x, centers = problem
    groups, m = centers.shape
    assert assign(tensor(centers), tensor(centers), assignment).tolist() == [list(range(m))] * groups
    once = hard(tensor(x), tensor(centers), assignment)
    assert torch.equal(hard(once, tensor(centers), assignment), once)


@repeatable
@given(exact_problems())
def test_assignment_by_sign(problem: tuple[Array, Array]) -> None:
    """Of two centers of different sign the upper one has the weights above 0; all others have the nearest weights."""
    x, centers = problem
    expected = reference.nearest(x, centers)
    if centers.shape[1] == 2:
        for g, (low, high) in enumerate(centers):
            if low < 0 < high:
                expected[g] = reference.grouped(x, centers)[g] > 0
    np.testing.assert_array_equal(assign(tensor(x), tensor(centers), "sign").numpy(), expected)
    np.testing.assert_array_equal(assign(tensor(x), tensor(centers)).numpy(), reference.nearest(x, centers))


def test_assignment_by_sign_by_hand() -> None:
    """-0.1 and 0.9 have their middle at 0.4; 0.1 and 0.9 are both positive, and keep theirs at 0.5; so do three."""
    x = torch.tensor([[-0.2, 0.0, 0.01, 0.45]] * 2, dtype=torch.float64)
    centers = torch.tensor([[-0.1, 0.9], [0.1, 0.9]], dtype=torch.float64)
    assert assign(x, centers, "sign").tolist() == [[0, 0, 1, 1], [0, 0, 0, 0]]
    assert assign(x, centers).tolist() == [[0, 0, 0, 1], [0, 0, 0, 0]]
    three = torch.tensor([[-0.1, 0.9, 1.0]], dtype=torch.float64)
    assert assign(x[:1], three, "sign").tolist() == [[0, 0, 0, 1]]
    # The soft quantizer has the same borders: there it is the mean of the two, and it approaches the hard one.
    assert soft(x, centers, 7.0, "sign")[0, 1].item() == pytest.approx(0.4, rel=1e-15)
    assert quantize(x, centers, 1e4, "sign")[0, [0, 2, 3]].tolist() == pytest.approx([-0.1, 0.9, 0.9], abs=1e-12)
    assert quantize(x, centers, assignment="sign")[0].tolist() == [-0.1, -0.1, 0.9, 0.9]


@repeatable
@given(
    st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=20),
    st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=9),
)
def test_no_center_is_nearer_than_the_chosen_one(weights: list[float], levels: list[float]) -> None:
    """For any floats, equal centers included, the chosen center is nearest up to the rounding of a midpoint."""
    x, centers = np.array(weights), np.sort(np.array([levels]), axis=1)
    gap = np.abs(x - array(hard(tensor(x), tensor(centers))))
    least = np.abs(x[:, None] - centers).min(1)
    assert (gap <= least + 4 * np.finfo(np.float64).eps * 1e3).all()


@pytest.mark.parametrize("m", SIZES)
@pytest.mark.parametrize("layout", [0, 1])
def test_hard_quantizer_and_distance(m: int, layout: int) -> None:
    """Q_c(x) takes the nearest center, in the shape of x; R is half of the l1 distance to it."""
    x, centers = layouts(m, m)[layout]
    found = hard(tensor(x), tensor(centers))
    np.testing.assert_array_equal(array(found), reference.hard(x, centers))
    assert distance(tensor(x), tensor(centers)).item() == pytest.approx(reference.distance(x, centers), rel=1e-13)


def test_hard_quantizer_and_distance_by_hand() -> None:
    """Weights -0.9, -0.2, 0.4, 1.5 with centers -1 and 1: distances 0.1, 0.8, 0.6, 0.5, half of their sum is 1."""
    x = torch.tensor([[-0.9, -0.2], [0.4, 1.5]], dtype=torch.float64)
    centers = torch.tensor([[-1.0, 1.0]], dtype=torch.float64)
    assert hard(x, centers).tolist() == [[-1.0, -1.0], [1.0, 1.0]]
    assert distance(x, centers).item() == pytest.approx(1.0, rel=1e-15)


@repeatable
@given(exact_problems())
def test_the_distance_is_zero_exactly_on_the_centers(problem: tuple[Array, Array]) -> None:
    """R(Q_c(x), c) = 0, and R(x, c) = 0 only if x is there already."""
    x, centers = tensor(problem[0]), tensor(problem[1])
    assert distance(hard(x, centers), centers).item() == 0
    assert (distance(x, centers).item() == 0) == torch.equal(hard(x, centers), x)


@pytest.mark.parametrize("sharpness", [3.0, math.inf])
@pytest.mark.parametrize("layout", [0, 1])
def test_objective(sharpness: float, layout: int) -> None:
    """F_lambda is f at the weights, plus f at the quantized weights, plus lambda R."""
    x, centers = layouts(5, 4)[layout]
    slopes = np.random.default_rng(6).normal(size=x.shape)

    def f(z: Tensor) -> Tensor:
        return ((z - tensor(slopes)) ** 2).sum()

    def f_numpy(z: Array) -> float:
        return float(((z - slopes) ** 2).sum())

    quantized = reference.hard(x, centers) if sharpness == math.inf else reference.soft(x, centers, sharpness)
    expected = f_numpy(x) + f_numpy(quantized) + 0.7 * reference.distance(x, centers)
    found = objective(f, tensor(x), tensor(centers), 0.7, sharpness)
    assert found.item() == pytest.approx(expected, rel=1e-13)


def test_objective_by_hand() -> None:
    """For f(z) = sum of z, x = (0.25, 1.5), c = (0, 1), lambda = 2: 1.75 + (0 + 1) + 2 * (0.25 + 0.5) / 2 = 3.5."""
    x, centers = torch.tensor([0.25, 1.5]), torch.tensor([[0.0, 1.0]])
    assert objective(torch.sum, x, centers, 2.0).item() == 3.5


@pytest.mark.parametrize("m", SIZES)
@pytest.mark.parametrize("layout", [0, 1])
@pytest.mark.parametrize("sharpness", [0.5, 10.0, 1e4])
def test_soft_quantizer(m: int, layout: int, sharpness: float) -> None:
    """Q~_c(x) equals the paper's sum of sigmoids."""
    x, centers = layouts(m, m)[layout]
    found = array(soft(tensor(x), tensor(centers), sharpness))
    np.testing.assert_allclose(found, reference.soft(x, centers, sharpness), rtol=1e-12, atol=1e-13)


def test_soft_quantizer_by_hand() -> None:
    """On the border between -1 and 3 it is their mean; at distance ln(3) / P above it, three quarters of the way."""
    x = torch.tensor([1.0, 1.0 + math.log(3) / 2], dtype=torch.float64)
    found = soft(x, torch.tensor([[-1.0, 3.0]], dtype=torch.float64), 2.0)
    assert found.tolist() == pytest.approx([1.0, 2.0], rel=1e-15)


@pytest.mark.parametrize("sharpness", [10.0, 100.0, 1000.0])
@pytest.mark.parametrize("m", [2, 4, 16])
def test_soft_quantizer_approaches_the_hard_one(m: int, sharpness: float) -> None:
    """Its error is at most (c_m - c_1) exp(-P d), with d the distance from the nearest border: 0 as P grows."""
    for x, centers in layouts(m, m):
        borders = (centers[:, 1:] + centers[:, :-1]) / 2
        d = np.abs(reference.grouped(x, centers)[:, :, None] - borders[:, None, :]).min(-1)
        error = np.abs(
            reference.grouped(array(soft(tensor(x), tensor(centers), sharpness)), centers)
            - reference.grouped(reference.hard(x, centers), centers)
        )
        span = centers[:, -1:] - centers[:, :1]
        assert (error <= span * np.exp(-sharpness * d) + 1e-14).all()
        assert error.max() > 1e-6  # some weight is near a border: what is bounded is not 0


def gradient_by_weight(x: Array, centers: Array, sharpness: float) -> Array:
    """Return the paper's derivative of Q~_c(x)_i by x_i, for one row of centers."""
    total = np.zeros_like(x)
    for low, high in zip(centers[0, :-1], centers[0, 1:], strict=True):
        s = reference.sigmoid(sharpness * (x - (high + low) / 2))
        total += sharpness * (high - low) * s * (1 - s)
    return total


def gradient_by_center(x: Array, centers: Array, sharpness: float) -> Array:
    """Return the paper's derivatives `[n, m]` of Q~_c(x)_i by c_j, for one row of centers.

    The lowest center has no border below: its first sigmoid is the coefficient 1 of c_1 itself. The highest has none
    above. The terms of a missing border are 0.
    """
    c, m = centers[0], centers.shape[1]
    columns = []
    for j in range(m):
        column = np.ones_like(x) if j == 0 else np.zeros_like(x)
        if j > 0:
            s = reference.sigmoid(sharpness * (x - (c[j] + c[j - 1]) / 2))
            column = column + s - (c[j] - c[j - 1]) * sharpness / 2 * s * (1 - s)
        if j < m - 1:
            s = reference.sigmoid(sharpness * (x - (c[j] + c[j + 1]) / 2))
            column = column - s + (c[j] - c[j + 1]) * sharpness / 2 * s * (1 - s)
        columns.append(column)
    return np.stack(columns, 1)


def jacobians(x: Array, centers: Array, sharpness: float) -> tuple[Array, Array]:
    """Return the derivatives of the package's Q~_c(x) by x, `[n, n]`, and by c, `[n, m]`."""
    by_x, by_c = torch.func.jacrev(lambda w, c: soft(w, c, sharpness), argnums=(0, 1))(tensor(x), tensor(centers))
    return array(by_x), array(by_c[:, 0])


@pytest.mark.parametrize("m", [2, 3, 5, 16])
@pytest.mark.parametrize("sharpness", [1.0, 8.0, 50.0])
def test_soft_gradients_are_the_papers(m: int, sharpness: float) -> None:
    """By x the Jacobian is diagonal with the paper's entries; by c it has the paper's formula in every column."""
    rng = np.random.default_rng(m)
    x, centers = rng.normal(size=20), np.sort(rng.normal(size=(1, m)), axis=1)
    by_x, by_c = jacobians(x, centers, sharpness)
    np.testing.assert_allclose(by_x, np.diag(gradient_by_weight(x, centers, sharpness)), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(by_c, gradient_by_center(x, centers, sharpness), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("m", [2, 3, 5])
def test_soft_gradients_are_finite_differences(m: int) -> None:
    """Central differences of the NumPy value give the same Jacobians."""
    rng = np.random.default_rng(m)
    x, centers, h = rng.normal(size=20), np.sort(rng.normal(size=(1, m)), axis=1), 1e-5
    by_x, by_c = jacobians(x, centers, 4.0)
    slope = (reference.soft(x + h, centers, 4.0) - reference.soft(x - h, centers, 4.0)) / (2 * h)
    np.testing.assert_allclose(np.diag(by_x), slope, atol=1e-8)
    for j in range(m):
        move = np.zeros_like(centers)
        move[0, j] = h
        slope = (reference.soft(x, centers + move, 4.0) - reference.soft(x, centers - move, 4.0)) / (2 * h)
        np.testing.assert_allclose(by_c[:, j], slope, atol=1e-8)


def test_per_channel_soft_gradients_stay_in_their_channel() -> None:
    """A channel's centers get the gradient of that channel's weights alone."""
    x, centers = layouts(1, 3)[1]
    slopes = np.random.default_rng(2).normal(size=x.shape)
    found = torch.func.grad(lambda c: (soft(tensor(x), c, 5.0) * tensor(slopes)).sum())(tensor(centers))
    for g in range(4):
        row = slopes[g].reshape(-1) @ gradient_by_center(x[g].reshape(-1), centers[g : g + 1], 5.0)
        np.testing.assert_allclose(array(found)[g], row, rtol=1e-11)


@pytest.mark.parametrize("layout", [0, 1])
def test_hard_gradients_are_the_limit_of_the_appendix(layout: int) -> None:
    """At P = infinity the gradient by x is 0, and by c_j the sum over the weights that are assigned to c_j."""
    x, centers = layouts(3, 4)[layout]
    slopes = np.random.default_rng(4).normal(size=x.shape)

    def f(w: Tensor, c: Tensor) -> Tensor:
        return (quantize(w, c, math.inf) * tensor(slopes)).sum()

    by_x, by_c = torch.func.grad(f, argnums=(0, 1))(tensor(x), tensor(centers))
    assert by_x.shape == x.shape
    assert (array(by_x) == 0).all()
    home, rows = reference.nearest(x, centers), reference.grouped(slopes, centers)
    expected = [[row[mine == j].sum() for j in range(4)] for row, mine in zip(rows, home, strict=True)]
    np.testing.assert_allclose(array(by_c), np.array(expected), rtol=1e-12, atol=1e-12)


def test_quantize_chooses_by_sharpness() -> None:
    """An infinite P gives Q_c, which is the default, a finite one Q~_c."""
    x, centers = layouts(7, 4)[0]
    assert np.array_equal(array(quantize(tensor(x), tensor(centers))), reference.hard(x, centers))
    assert np.array_equal(array(quantize(tensor(x), tensor(centers), math.inf)), reference.hard(x, centers))
    found = array(quantize(tensor(x), tensor(centers), 2.0))
    np.testing.assert_allclose(found, reference.soft(x, centers, 2.0), rtol=1e-12)


@pytest.mark.parametrize("layout", [0, 1])
def test_gradients_by_centers_are_sums_over_their_weights(layout: int) -> None:
    """The same as autograd's through `place`."""
    x, centers = layouts(5, 4)[layout]
    slopes = tensor(np.random.default_rng(6).normal(size=x.shape))
    c = tensor(centers).requires_grad_()
    assignment = nearest(tensor(x), c)
    (expected,) = torch.autograd.grad(place(c, assignment, slopes.shape), c, slopes)
    torch.testing.assert_close(by_centers(slopes, c.detach(), assignment), expected)
