"""Theorem 1 of the paper, on the real step of `quped.algorithms.Local`.

The problem is multinomial logistic regression in one tensor, for which every constant of assumptions A.2-A.5 can be
bounded by hand. The step is the package's; the objective, its gradients, the constants and the subgradients of R are
computed here, in NumPy.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Literal, NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from quped.algorithms import SGD, ClientSpec, Local, Quantization
from quped.algorithms._algorithm1 import Learner
from quped.quant import LinearSchedule
from quped.typing import Batch, Clock, ModelState, Params, Phase

pytestmark = pytest.mark.slow

Array = NDArray[np.float64]
CenterProx = Literal["linear", "exact"]

SHARPNESS = 2.0
CLASSES = 3
FEATURES = 3
SAMPLES = 12
WEIGHTS = CLASSES * FEATURES
C_MAX = 1.5
STEPS = 160
LAMBDAS = (0.1, 0.3, 0.8)

CURVATURE = 1 / (6 * 3**0.5)
"""The largest |sigma''|; the largest sigma' is 1/4."""


def sigmoid(u: Array) -> Array:
    """Return 1 / (1 + exp(-u))."""
    out: Array = 1 / (1 + np.exp(-u))
    return out


def log_softmax(logits: Array) -> Array:
    """Return the logarithms of the probabilities, row by row."""
    shifted = logits - logits.max(1, keepdims=True)
    out: Array = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    return out


@dataclass(frozen=True)
class Problem:
    """f(x): the mean cross-entropy of a linear classifier, with the weights x as one flat vector."""

    inputs: Array
    labels: NDArray[np.int64]

    def f(self, x: Array) -> float:
        """Return f(x)."""
        log_p = log_softmax(self.inputs @ x.reshape(CLASSES, FEATURES).T)
        return float(-log_p[np.arange(SAMPLES), self.labels].mean())

    def gradient(self, x: Array) -> Array:
        """Return the gradient of f, the mean over samples of (p - y) a^T."""
        p = np.exp(log_softmax(self.inputs @ x.reshape(CLASSES, FEATURES).T))
        out: Array = ((p - np.eye(CLASSES)[self.labels]).T @ self.inputs / SAMPLES).reshape(-1)
        return out


def soft(x: Array, c: Array) -> Array:
    """Return Q~_c(x)."""
    steps = sigmoid(SHARPNESS * (x[:, None] - (c[1:] + c[:-1]) / 2))
    out: Array = c[0] + steps @ np.diff(c)
    return out


def soft_by_x(x: Array, c: Array) -> Array:
    """Return the diagonal of the Jacobian of Q~_c(x) by x."""
    s = sigmoid(SHARPNESS * (x[:, None] - (c[1:] + c[:-1]) / 2))
    out: Array = SHARPNESS * (s * (1 - s)) @ np.diff(c)
    return out


def soft_by_c(x: Array, c: Array) -> Array:
    """Return the Jacobian `[weights, m]` of Q~_c(x) by c."""
    s = sigmoid(SHARPNESS * (x[:, None] - (c[1:] + c[:-1]) / 2))
    bend = np.diff(c) * SHARPNESS / 2 * s * (1 - s)
    one, zero = np.ones((len(x), 1)), np.zeros((len(x), 1))
    # At the edges the missing border lies at -infinity (its sigmoid is 1) and at +infinity (0); neither bends.
    step = np.hstack([one, s]) - np.hstack([s, zero])
    out: Array = step - np.hstack([zero, bend]) - np.hstack([bend, zero])
    return out


def assignment(x: Array, c: Array) -> NDArray[np.int64]:
    """Return the nearest center of each weight."""
    out: NDArray[np.int64] = np.abs(x[:, None] - c).argmin(1)
    return out


def objective(problem: Problem, x: Array, c: Array, lam: float) -> float:
    """Return F_lambda(x, c)."""
    distance = np.abs(x[:, None] - c).min(1).sum() / 2
    return problem.f(x) + problem.f(soft(x, c)) + lam * float(distance)


def gradient_by_x(problem: Problem, x: Array, c: Array) -> Array:
    """Return the gradient by x of f(x) + f(Q~_c(x)): the smooth part of F_lambda."""
    return problem.gradient(x) + soft_by_x(x, c) * problem.gradient(soft(x, c))


def gradient_by_c(problem: Problem, x: Array, c: Array) -> Array:
    """Return the gradient by c of f(Q~_c(x))."""
    return problem.gradient(soft(x, c)) @ soft_by_c(x, c)


class Constants(NamedTuple):
    """The smoothness of the two blocks: L + G L_Q1 + G_Q1 L l_Q1 in x, and G L_Q2 + G_Q2 L l_Q2 in c."""

    x: float
    c: float

    @property
    def eta1(self) -> float:
        """The theorem's eta_1."""
        return 1 / (2 * self.x)

    @property
    def eta2(self) -> float:
        """The theorem's eta_2."""
        return 1 / (2 * self.c)

    @property
    def bound(self) -> float:
        """18 L_max^2 / L_min, with the L_max and L_min that end the proof: half of those in the theorem."""
        return 18 * max(self) ** 2 / min(self)


def constants(problem: Problem, m: int) -> Constants:
    """Bound the constants of A.2-A.5 while c_1 <= ... <= c_m lie in [-c_max, c_max].

    f: the Hessian is the mean of (diag(p) - p p^T) (x) a a^T, and diag(p) - p p^T has no eigenvalue above 1/2; the
    gradient is the mean of (p - y) a^T, and ||p - y|| <= sqrt 2.

    Q~ by x: the Jacobian is diagonal with entries sum_j P gap_j sigma'_j <= P (2 c_max) / 4, whose derivatives are at
    most P^2 (2 c_max) max|sigma''|. All gaps together are at most 2 c_max.

    Q~ by c: a row is a sum of differences of sigmoids, non-negative and together 1, minus terms gap_j P sigma'_j / 2
    that each occur twice: its norm is at most 1 + P (2 c_max) / 4. The Hessian of a summand gap_j sigma_j is, in the
    orthonormal coordinates (c_j -+ c_{j-1}) / sqrt 2, [[0, -P sigma'], [-P sigma', gap_j P^2 sigma'' / 2]]: norm at
    most P / 4 + gap_j P^2 max|sigma''| / 2. Every second summand shares no center with another, so that the norm of
    their sum is the largest of their norms; for m > 2 there are two such families, for m = 2 one.
    A row bound holds for each of the d weights: sqrt(d) in Frobenius norm.
    """
    smooth = np.linalg.eigvalsh(problem.inputs.T @ problem.inputs / SAMPLES).max() / 2
    steep = 2**0.5 * np.linalg.norm(problem.inputs, axis=1).mean()
    span, root = 2 * C_MAX, WEIGHTS**0.5
    l_q1 = SHARPNESS * span / 4
    smooth_q1 = SHARPNESS**2 * span * CURVATURE
    steep_q1 = root * l_q1
    l_q2 = steep_q2 = root * (1 + SHARPNESS * span / 4)
    families = 1 if m == 2 else 2
    smooth_q2 = root * (families * SHARPNESS / 4 + span * SHARPNESS**2 * CURVATURE / 2)
    return Constants(
        float(smooth + steep * smooth_q1 + steep_q1 * smooth * l_q1),
        float(steep * smooth_q2 + steep_q2 * smooth * l_q2),
    )


def network(
    params: Params, buffers: Params, inputs: tuple[torch.Tensor, ...], *, train: bool
) -> tuple[torch.Tensor, Params]:
    """Return the logits of the linear classifier; it has no buffers."""
    return inputs[0] @ params["w"].T, buffers


class Setting(NamedTuple):
    """A problem, how it is quantized, and where it starts."""

    problem: Problem
    bits: int
    lam: float
    sizes: Constants
    w: Array


class Run(NamedTuple):
    """z^0 .. z^T, and F_lambda at each."""

    x: list[Array]
    c: list[Array]
    values: list[float]


def setting(seed: int, bits: int, lam: float) -> Setting:
    """Draw a problem whose classes overlap, and a starting point."""
    rng = np.random.default_rng(seed)
    labels = np.arange(SAMPLES) % CLASSES
    inputs = (rng.normal(size=(CLASSES, FEATURES))[labels] + rng.normal(size=(SAMPLES, FEATURES))) / 2
    problem = Problem(inputs, labels)
    return Setting(problem, bits, lam, constants(problem, 2**bits), rng.uniform(-1, 1, size=(CLASSES, FEATURES)))


def descend(given: Setting, count: int, center_prox: CenterProx, c: Array | None = None) -> Run:
    """Take `count` steps of the package's algorithm on the whole data set, from its own centers or from `c`."""
    quantization = Quantization(
        eta2=given.sizes.eta2,
        lam={given.bits: LinearSchedule(given.lam)},
        assignment="nearest",
        sharpness=SHARPNESS,
        center_prox=center_prox,
    )
    algorithm = Local(quantization)
    initial = ModelState({"w": torch.from_numpy(given.w)}, {})
    spec = ClientSpec(network, initial, network, initial, bits={"w": given.bits}, sgd=SGD(weight_decay=0.0))
    # lambda(t) = rate * t, so that at t = 1 it is the rate.
    clock = Clock(0, 0, Phase.TRAIN, 1.0, given.sizes.eta1, given.sizes.eta1, 0.0)
    batch = Batch((torch.from_numpy(given.problem.inputs),), torch.from_numpy(given.problem.labels))
    shared = algorithm.init_shared(spec)
    learner: Learner = algorithm.start(spec, shared, algorithm.init_personal(spec, shared), clock)
    if c is not None:
        learner = learner._replace(c={"w": torch.from_numpy(c)[None]})
    learners = [learner]
    for _ in range(count):
        learners.append(algorithm.step(spec, learners[-1], (batch,), clock)[0])
    xs = [one.x.params["w"].numpy().reshape(-1) for one in learners]
    cs = [one.c["w"].numpy()[0] for one in learners]
    return Run(xs, cs, [objective(given.problem, x, c, given.lam) for x, c in zip(xs, cs, strict=True)])


class Slopes(NamedTuple):
    """What the proof says about step t: lambda times the subgradients of R that it took, and the two parts of G^t."""

    pull_x: Array
    pull_c: Array
    in_x: Array
    in_c: Array


def slopes(given: Setting, run: Run, t: int) -> Slopes:
    """Read the subgradients of R off the first-order conditions of both prox steps, and G^t from them.

    In x: lambda xi = (y - x^{t+1}) / eta_1 with y = x^t - eta_1 g^t, the point that the prox was taken of; in c
    likewise. G^t = [grad_x F_lambda(x^{t+1}, c^t), grad_c F_lambda(x^{t+1}, c^{t+1})] takes R's part from there.
    """
    x, c, new_x, new_c = run.x[t], run.c[t], run.x[t + 1], run.c[t + 1]
    pull_x = (x - new_x) / given.sizes.eta1 - gradient_by_x(given.problem, x, c)
    pull_c = (c - new_c) / given.sizes.eta2 - gradient_by_c(given.problem, new_x, c)
    return Slopes(
        pull_x,
        pull_c,
        gradient_by_x(given.problem, new_x, c) + pull_x,
        gradient_by_c(given.problem, new_x, new_c) + pull_c,
    )


@cache
def exact_run(seed: int, bits: int, lam: float) -> tuple[Setting, Run, list[Slopes]]:
    """Run once for all the tests that look at the same run."""
    given = setting(seed, bits, lam)
    run = descend(given, STEPS, "exact")
    return given, run, [slopes(given, run, t) for t in range(STEPS)]


def squared_norms(steps: list[Slopes]) -> Array:
    """Return ||G^t||^2 for every t."""
    return np.array([(one.in_x**2).sum() + (one.in_c**2).sum() for one in steps])


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Do without threads: for nine weights they gain nothing, and waiting for them on a busy machine takes long."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# Each run is on a problem of its own, two for every bit-width and lambda.
RUNS = [(seed, bits, lam) for seed, (bits, lam, _) in enumerate(product((1, 2), LAMBDAS, range(2)))]
every_run = pytest.mark.parametrize(("seed", "bits", "lam"), RUNS)


@pytest.mark.parametrize("bits", [1, 2])
def test_the_constants_bound_the_smoothness_of_both_blocks(bits: int) -> None:
    """No pair of points has gradients further apart than the constants allow, some come within a factor of 100."""
    rng = np.random.default_rng(bits)
    given = setting(0, bits, 0.1)
    ratios = []
    for _ in range(500):
        x = rng.uniform(-C_MAX, C_MAX, WEIGHTS)
        c = np.sort(rng.uniform(-C_MAX, C_MAX, 2**bits))
        near_x = x + rng.normal(size=WEIGHTS) * 0.01
        near_c = np.sort(np.clip(c + rng.normal(size=c.shape) * 0.01, -C_MAX, C_MAX))
        change_x = gradient_by_x(given.problem, near_x, c) - gradient_by_x(given.problem, x, c)
        change_c = gradient_by_c(given.problem, x, near_c) - gradient_by_c(given.problem, x, c)
        ratios.append(
            (
                np.linalg.norm(change_x) / np.linalg.norm(near_x - x) / given.sizes.x,
                np.linalg.norm(change_c) / np.linalg.norm(near_c - c) / given.sizes.c,
            )
        )
    worst = np.array(ratios).max(0)
    assert (worst <= 1).all()
    assert (worst > 1 / 100).all()


@every_run
def test_the_centers_stay_sorted_and_within_c_max(seed: int, bits: int, lam: float) -> None:
    """The run stays where the constants hold."""
    _, run, _ = exact_run(seed, bits, lam)
    assert len(run.c) == STEPS + 1
    assert max(np.abs(c).max() for c in run.c) <= C_MAX
    assert min(np.diff(c).min() for c in run.c) > 0


@every_run
def test_the_step_is_algorithm_1(seed: int, bits: int, lam: float) -> None:
    """Both prox steps meet their first-order conditions: what they add is lambda times a subgradient of R.

    R's subgradient by a weight is 1/2 on one side of its center, -1/2 on the other, anything between on it. By a
    center it is the sum of the same over the weights assigned to it, with the sign reversed. The assignment is the
    one at c^t: where the step changes no weight's center, this is the subgradient of R itself.
    """
    _, run, steps = exact_run(seed, bits, lam)
    for t, step in enumerate(steps):
        x, c, new_c = run.x[t + 1], run.c[t], run.c[t + 1]
        home = assignment(x, c)
        side = np.sign(x - c[home])
        np.testing.assert_allclose(step.pull_x[side != 0], lam / 2 * side[side != 0], atol=1e-11)
        assert (np.abs(step.pull_x[side == 0]) <= lam / 2 + 1e-11).all()
        for j, center in enumerate(new_c):
            mine = x[home == j]
            middle = lam / 2 * (int((mine < center).sum()) - int((mine > center).sum()))
            assert abs(step.pull_c[j] - middle) <= lam / 2 * int((mine == center).sum()) + 1e-11


@every_run
def test_the_objective_never_increases(seed: int, bits: int, lam: float) -> None:
    """F_lambda falls in the x-step and in the c-step, by at least what the proof's sufficient decrease says."""
    given, run, _ = exact_run(seed, bits, lam)
    for t in range(STEPS):
        before, after = run.values[t], run.values[t + 1]
        between = objective(given.problem, run.x[t + 1], run.c[t], lam)
        slack = 1e-12 * abs(before)
        assert after <= before + slack
        assert between + given.sizes.x / 2 * ((run.x[t + 1] - run.x[t]) ** 2).sum() <= before + slack
        assert after + given.sizes.c / 2 * ((run.c[t + 1] - run.c[t]) ** 2).sum() <= between + slack
    assert run.values[-1] < run.values[0] - 0.1


@every_run
def test_the_gradient_is_bounded_by_the_step(seed: int, bits: int, lam: float) -> None:
    """Each part of G^t is at most three times its smoothness constant times the length of its step."""
    given, run, steps = exact_run(seed, bits, lam)
    for t, step in enumerate(steps):
        assert np.linalg.norm(step.in_x) <= 3 * given.sizes.x * np.linalg.norm(run.x[t + 1] - run.x[t]) + 1e-11
        assert np.linalg.norm(step.in_c) <= 3 * given.sizes.c * np.linalg.norm(run.c[t + 1] - run.c[t]) + 1e-11


@every_run
def test_the_gradients_are_summable_with_the_constant_of_theorem_1(seed: int, bits: int, lam: float) -> None:
    """The sum of ||G^t||^2 over t < T is at most 18 L_max^2 / L_min (F^0 - F^T), for every T."""
    given, run, steps = exact_run(seed, bits, lam)
    sums = np.cumsum(squared_norms(steps))
    falls = run.values[0] - np.array(run.values[1:])
    assert sums[0] > 0
    assert (sums <= given.sizes.bound * falls * (1 + 1e-12)).all()


@every_run
def test_the_mean_squared_gradient_falls_like_one_over_t(seed: int, bits: int, lam: float) -> None:
    """Four times as many steps leave less than half of the mean of ||G^t||^2 (1/T: a quarter; 1/sqrt T: a half)."""
    _, _, steps = exact_run(seed, bits, lam)
    norms = squared_norms(steps)
    assert norms.mean() < norms[: STEPS // 4].mean() / 2


@pytest.mark.parametrize(("seed", "bits", "lam"), [run for run in RUNS if run[2] == LAMBDAS[-1]])
def test_a_strong_lambda_puts_weights_on_their_centers(seed: int, bits: int, lam: float) -> None:
    """The runs above do reach the kinks of R, where the linearised prox and the exact one differ."""
    _, run, _ = exact_run(seed, bits, lam)
    final = np.abs(run.x[-1][:, None] - run.c[-1]).min(1)
    assert (final == 0).sum() > WEIGHTS / 2


def test_the_linearised_center_prox_can_increase_the_objective() -> None:
    """Why the theorem needs the exact prox of the centers.

    CenterInit with every weight on its center, R = 0, and lambda so strong that leaving a center never pays. The
    linearised prox takes the derivative of |c_j - x_i| at c_j = x_i as 0: it does not see that moving c_j away from
    its n_j weights costs lambda n_j / 2 per unit of length, and follows the gradient h, which gains only |h_j|. The
    exact prox leaves the centers where they are, and F_lambda with them.
    """
    signs = np.array([[1.0, -1.0, 1.0], [-1.0, -1.0, 1.0], [1.0, 1.0, -1.0]])
    given = setting(0, 1, 2.0)._replace(w=signs / 2)
    c = np.array([-0.5, 0.5])
    linear, exact = (descend(given, 1, kind, c) for kind in ("linear", "exact"))

    h = gradient_by_c(given.problem, given.w.reshape(-1), c)
    assert (np.abs(h) > 0.01).all()
    assert (np.abs(h) < given.lam / 2 * np.array([4, 5])).all()
    for run in (linear, exact):
        np.testing.assert_array_equal(run.x[1], given.w.reshape(-1))

    np.testing.assert_allclose(linear.c[1], c - given.sizes.eta2 * h, rtol=1e-12)
    away = np.abs(linear.c[1] - c)
    rise = linear.values[1] - linear.values[0]
    assert rise > 0
    # To first order: + lambda n_j / 2 - |h_j| per unit of length.
    assert rise == pytest.approx(float(away @ (given.lam / 2 * np.array([4, 5]) - np.abs(h))), rel=0.05)

    np.testing.assert_array_equal(exact.c[1], c)
    assert exact.values[1] == exact.values[0]
