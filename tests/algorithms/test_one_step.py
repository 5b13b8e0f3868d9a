"""One step of every algorithm against the same step in NumPy, on a model with two parameters."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from helpers.linear_model import (
    INPUTS,
    LR,
    ONE_HOT,
    Array,
    batch,
    by_v,
    ce_gradient,
    clock,
    kd_gradient_student,
    kd_gradient_teacher,
    model,
    model_with_bias,
    network_with_bias,
    probabilities,
    spec,
)
from helpers.small_federation import clients
from numpy.typing import NDArray
from torch import Tensor

from quped import Federation
from quped._losses import cross_entropy
from quped.algorithms import (
    ALGORITHMS,
    FML,
    SGD,
    ClientSpec,
    FedAvg,
    FedAvgFT,
    Local,
    PerFedAvg,
    PFedMe,
    Quantization,
    QuPeD,
    QuPeL,
    _algorithm1,
)
from quped.algorithms._algorithm1 import Learner, Problem
from quped.algorithms._averaging import Averaging
from quped.algorithms.base import Global, broadcast
from quped.algorithms.fedavgft import Payload as Sent
from quped.algorithms.qupel import Shared as QuPeLShared
from quped.errors import InvalidValueError
from quped.quant import LinearSchedule
from quped.simulation import TrainingOptions
from quped.typing import Clock, ModelState, Params, Phase

X = np.array([0.9, -0.4])
W = np.array([0.3, 0.2])
C = np.array([-0.5, 0.6])
LAMBDA_RATE, T, ETA2, LAMBDA_P = 0.02, 3.0, 0.05, 0.25
LAM = LAMBDA_RATE * T


def v(params: Params) -> Array:
    """Return the two parameters as an array."""
    return np.asarray(params["v"].numpy())


DECAY, MOMENTUM = 0.1, 0.5


def rolling_task() -> ClientSpec:
    """Return a spec in full precision whose SGD has weight decay and momentum."""
    return replace(spec(X, W), sgd=SGD(DECAY, MOMENTUM))


class Rolling:
    """Parameters under SGD with weight decay and momentum."""

    def __init__(self, at: Array) -> None:
        """Stand still."""
        self.at, self.speed = at, np.zeros(2)

    def step(self, gradient: Array) -> None:
        """Take a step."""
        self.speed = MOMENTUM * self.speed + gradient + DECAY * self.at
        self.at = self.at - LR * self.speed


def learner(x: Array, c: Array | None) -> Learner:
    """Return a personal model."""
    centers = {} if c is None else {"v": torch.tensor(c).unsqueeze(0)}
    return Learner(model(x), centers, {}, {})


def hyper(eta2: float = ETA2, sharpness: float = math.inf, center_grad_clip: float = 10.0) -> Quantization:
    """Return hyperparameters with lambda(t) = 0.02 t, and weights that belong to the nearest center."""
    return Quantization(
        eta2=eta2,
        lam={1: LinearSchedule(LAMBDA_RATE)},
        sharpness=sharpness,
        center_grad_clip=center_grad_clip,
        assignment="nearest",
    )


CENTER_GRAD_CLIP = 0.05
"""Which cuts the gradients of this file."""


def nearest(x: Array, c: Array) -> NDArray[np.int64]:
    """Return the index of the nearest center."""
    return np.asarray(np.abs(x[:, None] - c[None]).argmin(1))


def soft_threshold(y: Array, c: Array) -> Array:
    """The weights' prox: toward the nearest center by lambda eta_1 / 2."""
    z = c[nearest(y, c)]
    return np.asarray(z + np.sign(y - z) * np.maximum(np.abs(y - z) - LAM * LR / 2, 0))


def center_pull(x: Array, c: Array) -> Array:
    """How many of a center's weights lie above it, less those below."""
    a = nearest(x, c)
    return np.array([np.sign(x[a == j] - c[j]).sum() for j in range(len(c))])


def by_centers(gradient: Array, x: Array, c: Array) -> Array:
    """Gradient by the centers for P = infinity: sum over the weights assigned to each."""
    a = nearest(x, c)
    return np.array([gradient[a == j].sum() for j in range(len(c))])


def mixed(student: Array, teacher: Array) -> Array:
    """Gradient of (1 - lambda_p) f + lambda_p f^KD by the student."""
    return (1 - LAMBDA_P) * ce_gradient(student) + LAMBDA_P * kd_gradient_student(teacher, student)


def test_local_full_precision_is_sgd_with_weight_decay() -> None:
    """x - lr (grad + wd x)."""
    work, _ = Local().step(spec(X, W, weight_decay=0.1), learner(X, None), (batch(),), clock())
    np.testing.assert_allclose(v(work.x.params), X - LR * (ce_gradient(X) + 0.1 * X), rtol=1e-12)


def test_local_step_with_label_smoothing() -> None:
    """The gradient by the logits is p - ((1 - e) onehot + e / classes)."""
    work, _ = Local(label_smoothing=0.2).step(spec(X, W), learner(X, None), (batch(),), clock())
    target = 0.8 * ONE_HOT + 0.2 / 2
    np.testing.assert_allclose(v(work.x.params), X - LR * by_v(probabilities(X) - target), rtol=1e-12)


@pytest.mark.parametrize("bits", [1, 2])
@pytest.mark.parametrize("center_grad_clip", [10.0, CENTER_GRAD_CLIP])
def test_local_quantized_is_algorithm_1(bits: int, center_grad_clip: float) -> None:
    """Lines 2 to 5 of Algorithm 1 with P = infinity, the lambda of the bit-width, and the gradient by centers cut."""
    quantization = replace(
        hyper(center_grad_clip=center_grad_clip), lam={3 - bits: LinearSchedule(9.0), bits: LinearSchedule(LAMBDA_RATE)}
    )
    work, metrics = Local(quantization).step(spec(X, W, bits=bits), learner(X, C), (batch(),), clock())
    x = soft_threshold(X - LR * ce_gradient(X), C)
    h = by_centers(ce_gradient(C[nearest(x, C)]), x, C)
    assert (np.abs(h) > CENTER_GRAD_CLIP).any()
    h = np.clip(h, -center_grad_clip, center_grad_clip)
    c = C - ETA2 * h + LAM * ETA2 / 2 * center_pull(x, C)
    np.testing.assert_allclose(v(work.x.params), x, rtol=1e-12)
    np.testing.assert_allclose(work.c["v"][0].numpy(), c, rtol=1e-12)
    expected_loss = -np.log(probabilities(X)[np.arange(4), batch().labels.numpy()]).mean()
    assert float(metrics["loss"]) == pytest.approx(expected_loss, rel=1e-12)


@pytest.mark.parametrize("ratio", [1.0, 4.0])
def test_quped_step_by_hand(ratio: float) -> None:
    """Lines 9 to 13 of Algorithm 2 with P = infinity: x, then c at the new x, then w at both, with eta_3."""
    algorithm = QuPeD(lambda_p=LAMBDA_P, global_lr_ratio=ratio, quantization=hyper())
    t = spec(X, W, bits=1)
    work = algorithm.start(t, Global(model(W)), learner(X, C), clock())
    work, _ = algorithm.step(t, work, (batch(),), clock())

    x = soft_threshold(X - LR * mixed(X, W), C)
    h = by_centers(mixed(C[nearest(x, C)], W), x, C)
    c = C - ETA2 * h + LAM * ETA2 / 2 * center_pull(x, C)
    q = c[nearest(x, c)]
    w = W - ratio * LR * LAMBDA_P * (kd_gradient_teacher(W, x) + kd_gradient_teacher(W, q))

    np.testing.assert_allclose(v(work.learner.x.params), x, rtol=1e-12)
    np.testing.assert_allclose(work.learner.c["v"][0].numpy(), c, rtol=1e-12)
    np.testing.assert_allclose(v(work.w.params), w, rtol=1e-12)


def test_quped_together_by_hand() -> None:
    """For t < together w_i steps along the cross-entropy with eta_1, and x_i and c_i are what begins at w_i."""
    algorithm, t = (
        QuPeD(lambda_p=LAMBDA_P, global_lr_ratio=4.0, warmup_epochs=3.5, quantization=hyper()),
        spec(X, W, bits=1),
    )
    start = learner(X, C)
    work = algorithm.start(t, Global(model(W)), start, clock(3.0))
    work, metrics = algorithm.step(t, work, (batch(),), clock(3.0))
    w = W - LR * ce_gradient(W)
    np.testing.assert_allclose(v(work.w.params), w, rtol=1e-12)
    expected_loss = -np.log(probabilities(W)[np.arange(4), batch().labels.numpy()]).mean()
    assert float(metrics["loss"]) == pytest.approx(expected_loss, rel=1e-12)
    kept, sent = algorithm.finish(t, work, batch(), clock(3.0))
    np.testing.assert_array_equal(v(kept.x.params), v(work.w.params))
    np.testing.assert_array_equal(kept.c["v"][0].numpy(), np.sort(v(work.w.params)))
    np.testing.assert_array_equal(v(sent.w.params), v(work.w.params))
    late = algorithm.init_personal(t, Global(model(C)))  # a client whose first round comes when w has learned already
    np.testing.assert_array_equal(v(late.x.params), C)


@pytest.mark.parametrize(("bits", "centers"), [(1, [-4, 2.9375]), (2, [-4, 0.5, 2, 8])])
def test_centers_start_anew_where_w_has_learned(bits: int, centers: list[float]) -> None:
    """At the means of their weights; evenly spread they would be -4, 0, 4, 8. Of two, those of each sign."""
    algorithm = QuPeD(warmup_epochs=1.0)
    w = np.array([-4, 0.25, 0.5, 0.75, 1.75, 2, 2.25, 8, 8])
    (found,) = algorithm.init_personal(spec(X, W, bits=bits), Global(model(w))).c["v"].tolist()
    assert found == pytest.approx(centers)


@pytest.mark.parametrize("now", [clock(4.0), clock(3.0), clock(2.0, Phase.FINETUNE)])
def test_quped_after_epochs_together_is_quped(now: Clock) -> None:
    """From then on, and in fine-tuning in any case, each step is the paper's."""
    t, found = spec(X, W, bits=1), []
    for together in (0.0, 3.0):
        algorithm = QuPeD(lambda_p=LAMBDA_P, warmup_epochs=together, quantization=hyper())
        work = algorithm.start(t, Global(model(W)), learner(X, C), now)
        work, _ = algorithm.step(t, work, (batch(),), now)
        kept, sent = algorithm.finish(t, work, batch(), now)
        found.append([v(kept.x.params), kept.c["v"].numpy(), v(sent.w.params)])
    for usual, after in zip(*found, strict=True):
        np.testing.assert_array_equal(usual, after)


def test_a_client_with_another_network_learns_beside_those_that_are_together() -> None:
    """x_i and c_i take the paper's step, with w as it is; w_i learns from labels."""
    t = spec(X, W, bits=1)
    other = replace(t, has_global_network=False)
    usual, algorithm = (QuPeD(lambda_p=LAMBDA_P, warmup_epochs=n, quantization=hyper()) for n in (0.0, 3.5))
    works = [
        a.step(t_, a.start(t_, Global(model(W)), learner(X, C), clock()), (batch(),), clock())[0]
        for a, t_ in ((usual, t), (algorithm, other))
    ]
    kept, _ = algorithm.finish(other, works[1], batch(), clock())
    np.testing.assert_array_equal(v(kept.x.params), v(works[0].learner.x.params))
    np.testing.assert_array_equal(kept.c["v"].numpy(), works[0].learner.c["v"].numpy())
    np.testing.assert_allclose(v(works[1].w.params), W - LR * ce_gradient(W), rtol=1e-12)


FAR, BETWEEN = np.array([-0.1, 1.5]), np.array([0.5, -0.4])
"""Centers and weights of which the first is nearer to the center of the other sign."""


@pytest.mark.parametrize("straight_through", [False, True])
def test_with_the_border_at_zero_weights_belong_to_the_center_of_their_sign(straight_through: bool) -> None:
    """In both steps of Algorithm 1, in what w learns from, in what is deployed, and when weights are hardened."""
    quantization = replace(hyper(), assignment="sign", straight_through=straight_through)
    algorithm, t = QuPeD(lambda_p=LAMBDA_P, quantization=quantization), spec(BETWEEN, W, bits=1)
    start = learner(BETWEEN, FAR)
    assert list(nearest(BETWEEN, FAR)) == [0, 0]
    np.testing.assert_array_equal(v(algorithm.deploy(t, Global(model(W)), start).state.params), FAR[::-1])
    hardened = algorithm.start(t, Global(model(W)), start, clock(phase=Phase.FINETUNE)).learner
    np.testing.assert_array_equal(v(hardened.x.params), FAR[::-1])
    work, _ = algorithm.step(t, algorithm.start(t, Global(model(W)), start, clock()), (batch(),), clock())

    own = FAR[::-1]  # the first weight has the upper center, the second the lower one
    at_own = mixed(own, W)
    y = BETWEEN - LR * mixed(BETWEEN, W)
    if straight_through:
        y = BETWEEN - LR / 2 * (mixed(BETWEEN, W) + at_own)
    x = own + np.sign(y - own) * np.maximum(np.abs(y - own) - LAM * LR / 2, 0)
    assert x[0] > 0 > x[1]
    c = FAR - ETA2 * at_own[::-1] + LAM * ETA2 / 2 * np.sign(x - own)[::-1]
    w = W - LR * LAMBDA_P * (kd_gradient_teacher(W, x) + kd_gradient_teacher(W, c[::-1]))
    np.testing.assert_allclose(v(work.learner.x.params), x, rtol=1e-12)
    np.testing.assert_allclose(work.learner.c["v"][0].numpy(), c, rtol=1e-12)
    np.testing.assert_allclose(v(work.w.params), w, rtol=1e-12)


def test_hardened_weights_stay_with_centers_that_leave_their_sign() -> None:
    """In fine-tuning a center may pass 0: the border goes back to the middle, and no weight changes its center."""
    algorithm, t = Local(replace(hyper(), assignment="sign")), spec(BETWEEN, W, bits=1)
    centers = np.array([0.1, 1.5])
    on = learner(centers[::-1].copy(), centers)
    work = algorithm.start(t, algorithm.init_shared(t), on, clock(phase=Phase.FINETUNE))
    np.testing.assert_array_equal(v(work.x.params), centers[::-1])


def test_quped_full_precision_step_by_hand() -> None:
    """At 32 bits x takes a plain SGD step and w learns from x alone."""
    algorithm, t = QuPeD(lambda_p=LAMBDA_P), rolling_task()
    rolling = learner(X, None)._replace(velocity=t.sgd.init(model(X).params))
    work = algorithm.start(t, Global(model(W)), rolling, clock())
    x, w = Rolling(X), Rolling(W)
    for _ in range(2):
        work, _ = algorithm.step(t, work, (batch(),), clock())
        before = w.at
        x.step(mixed(x.at, before))
        w.step(LAMBDA_P * kd_gradient_teacher(before, x.at))
    np.testing.assert_allclose(v(work.learner.x.params), x.at, rtol=1e-12)
    np.testing.assert_allclose(v(work.w.params), w.at, rtol=1e-12)


def sigmoid(z: Array) -> Array:
    """The logistic function."""
    return np.asarray(1 / (1 + np.exp(-z)))


def test_quped_step_with_a_finite_p() -> None:
    """With the soft quantizer, x also gets the gradient through Q~, and c that of the sigmoid."""
    p = 4.0
    algorithm = QuPeD(lambda_p=LAMBDA_P, quantization=hyper(sharpness=p))
    t = spec(X, W, bits=1)
    work = algorithm.start(t, Global(model(W)), learner(X, C), clock())
    work, _ = algorithm.step(t, work, (batch(),), clock())

    def soft(x: Array, c: Array) -> Array:
        return np.asarray(c[0] + (c[1] - c[0]) * sigmoid(p * (x - c.mean())))

    s = sigmoid(p * (X - C.mean()))
    by_x = p * (C[1] - C[0]) * s * (1 - s)
    x = soft_threshold(X - LR * (mixed(X, W) + by_x * mixed(soft(X, C), W)), C)
    s = sigmoid(p * (x - C.mean()))
    slope = (C[1] - C[0]) * p / 2 * s * (1 - s)
    g = mixed(soft(x, C), W)
    h = np.array([(g * (1 - s - slope)).sum(), (g * (s - slope)).sum()])
    c = C - ETA2 * h + LAM * ETA2 / 2 * center_pull(x, C)
    w = W - LR * LAMBDA_P * (kd_gradient_teacher(W, x) + kd_gradient_teacher(W, soft(x, c)))

    np.testing.assert_allclose(v(work.learner.x.params), x, rtol=1e-12)
    np.testing.assert_allclose(work.learner.c["v"][0].numpy(), c, rtol=1e-12)
    np.testing.assert_allclose(v(work.w.params), w, rtol=1e-12)


CROSSING = np.array([-0.055, 0.37])
"""The first half step takes one weight over the border between the centers, the second the other."""


def two_half_steps(x: Array, g: Callable[[Array], Array], decay: float = 0.0) -> tuple[Array, Array]:
    """Return x after half a step at x and half a step at Q_c(x), with weight decay in both, and h of the second."""
    first = x - LR / 2 * (g(x) + decay * x)
    at_q = g(C[nearest(first, C)])
    return first - LR / 2 * (at_q + decay * first), by_centers(at_q, first, C)


@pytest.mark.parametrize("start", [X, CROSSING], ids=["staying", "crossing"])
def test_quped_plus_step_by_hand(start: Array) -> None:
    """Two half steps, at x and straight through at Q_c(x); then the prox of x; then c with the second gradient."""
    algorithm = QuPeD(lambda_p=LAMBDA_P, quantization=replace(hyper(), straight_through=True))
    t = spec(start, W, bits=1, weight_decay=0.3)
    work = algorithm.start(t, Global(model(W)), learner(start, C), clock())
    work, _ = algorithm.step(t, work, (batch(),), clock())

    y, h = two_half_steps(start, lambda x: mixed(x, W), 0.3)
    x = soft_threshold(y, C)
    c = C - ETA2 * h + LAM * ETA2 / 2 * center_pull(x, C)
    by_w = kd_gradient_teacher(W, x) + kd_gradient_teacher(W, c[nearest(x, c)])

    np.testing.assert_allclose(v(work.learner.x.params), x, rtol=1e-12)
    np.testing.assert_allclose(work.learner.c["v"][0].numpy(), c, rtol=1e-12)
    np.testing.assert_allclose(v(work.w.params), W - LR * (LAMBDA_P * by_w + 0.3 * W), rtol=1e-12)


def test_the_crossing_example_crosses() -> None:
    """Or else it would not tell one order of the steps from another."""
    first = CROSSING - LR / 2 * (mixed(CROSSING, W) + 0.3 * CROSSING)
    y, _ = two_half_steps(CROSSING, lambda x: mixed(x, W), 0.3)
    assert not np.array_equal(nearest(CROSSING, C), nearest(first, C))
    assert not np.array_equal(nearest(first, C), nearest(y, C))


def test_straight_through_with_fixed_centers_and_momentum() -> None:
    """x takes both half steps with one velocity, the centers none."""
    quantization = replace(hyper(), straight_through=True, update_centers=False)
    t = replace(spec(X, W, bits=1), sgd=SGD(0.0, 0.5))
    rolling = learner(X, C)._replace(velocity={"v": torch.tensor([0.2, -0.4], dtype=torch.float64)})
    work, _ = Local(quantization).step(t, rolling, (batch(),), clock())
    velocity = 0.5 * np.array([0.2, -0.4]) + ce_gradient(X)
    first = X - LR / 2 * velocity
    velocity = 0.5 * velocity + ce_gradient(C[nearest(first, C)])
    np.testing.assert_allclose(v(work.x.params), soft_threshold(first - LR / 2 * velocity, C), rtol=1e-12)
    np.testing.assert_allclose(work.velocity["v"].numpy(), velocity, rtol=1e-12)
    np.testing.assert_array_equal(work.c["v"][0].numpy(), C)


def test_straight_through_a_penalty_counts_in_both_half_steps() -> None:
    """As much as it does in one whole step."""
    problem = Problem(
        spec(X, W, bits=1),
        replace(hyper(), straight_through=True),
        batch().inputs,
        partial(cross_entropy, labels=batch().labels),
        clock(),
    )
    penalty = np.array([0.3, -0.2])
    stepped, _ = _algorithm1.step(problem, learner(X, C), {"v": torch.tensor(penalty)})
    first = X - LR / 2 * (ce_gradient(X) + penalty)
    at_q = ce_gradient(C[nearest(first, C)])
    np.testing.assert_allclose(v(stepped.x.params), soft_threshold(first - LR / 2 * (at_q + penalty), C), rtol=1e-12)
    h = by_centers(at_q, first, C)  # without the penalty: it is a term in x alone
    c = C - ETA2 * h + LAM * ETA2 / 2 * center_pull(v(stepped.x.params), C)
    np.testing.assert_allclose(stepped.c["v"][0].numpy(), c, rtol=1e-12)


def test_a_full_precision_client_of_quped_plus_takes_whole_steps() -> None:
    """In a federation with bit-widths of many kinds."""
    quantization = replace(hyper(), straight_through=True)
    work, _ = Local(quantization).step(spec(X, W), learner(X, None), (batch(),), clock())
    np.testing.assert_allclose(v(work.x.params), X - LR * ce_gradient(X), rtol=1e-12)
    with pytest.raises(InvalidValueError, match="infinite with straight_through"):
        Quantization(straight_through=True, sharpness=10.0)


def test_a_border_that_is_not_known_is_refused() -> None:
    """The error says which there are."""
    unknown: Any = "zero"
    with pytest.raises(InvalidValueError, match="assignment must be 'sign' or 'nearest'"):
        Quantization(assignment=unknown)


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (Quantization, {"eta2": "a"}),
        (Quantization, {"center_grad_clip": None}),
        (Quantization, {"sharpness": "10"}),
        (Quantization, {"straight_through": "false"}),
        (QuPeD, {"temperature": "1"}),
        (QuPeD, {"warmup_epochs": "1"}),
        (QuPeD, {"quantization": 2}),
        (Local, {"quantization": 2}),
        (QuPeD, {"softened": "student"}),
        (QuPeL, {"penalty_on": "q"}),
        (Local, {"label_smoothing": 1.5}),
        (PFedMe, {"inner_steps": 2.0}),
        (PFedMe, {"reset_theta": 1}),
        (PerFedAvg, {"adapts": "w"}),
    ],
)
def test_hyperparameters_out_of_range_are_refused(kind: Callable[..., object], wrong: dict[str, object]) -> None:
    """With one sentence for all."""
    ((name, value),) = wrong.items()
    with pytest.raises(InvalidValueError, match=rf"{name}.* must be .*, got {value!r}"):
        kind(**wrong)


@pytest.mark.parametrize(
    "lam", [1e-4, {}, {1: 1e-4}, {"1": LinearSchedule(1e-4)}, {9: LinearSchedule(1e-4)}, LinearSchedule(1e-4)]
)
def test_lambda_is_a_schedule_for_each_bit_width(lam: Any) -> None:
    """Anything else is told at once, with an example."""
    with pytest.raises(InvalidValueError, match=r"lam must be schedules by bit-width, such as \{1: LinearSchedule\("):
        Quantization(lam=lam)


def test_unquantized_parameters_learn_from_both_passes_straight_through() -> None:
    """A parameter without centers has a true gradient of f(Q_c(x)), and gets it."""
    t = spec(X, W, bits=1)
    free = Learner(
        ModelState({**model(X).params, "u": torch.zeros((), dtype=torch.float64)}, {}), learner(X, C).c, {}, {}
    )
    network = t.network

    def shifted(params: Params, buffers: Params, inputs: tuple[Tensor, ...], *, train: bool) -> tuple[Tensor, Params]:
        logits, buffers = network({"v": params["v"]}, buffers, inputs, train=train)
        return logits + params["u"] * torch.tensor([1.0, 0.0], dtype=torch.float64), buffers

    quantization = replace(hyper(), straight_through=True)
    work, _ = Local(quantization).step(replace(t, network=shifted), free, (batch(),), clock())

    def by_u(x: Array, u: float) -> float:
        return float((sigmoid(INPUTS * (x[0] - x[1]) + u) - ONE_HOT[:, 0]).mean())

    u = -LR / 2 * by_u(X, 0.0)
    first = X - LR / 2 * ce_gradient(X)
    u -= LR / 2 * by_u(C[nearest(first, C)], u)
    assert float(work.x.params["u"]) == pytest.approx(u, rel=1e-12)


@pytest.mark.parametrize("center_grad_clip", [10.0, CENTER_GRAD_CLIP])
def test_quped_fine_tuning_moves_weights_with_their_centers(center_grad_clip: float) -> None:
    """In the last phase weights sit on centers, only centers learn, and w learns from both equal students."""
    algorithm = QuPeD(lambda_p=LAMBDA_P, quantization=hyper(center_grad_clip=center_grad_clip))
    t, late = spec(X, W, bits=1), clock(phase=Phase.FINETUNE)
    work = algorithm.start(t, Global(model(W)), learner(X, C), late)
    a = nearest(X, C)
    np.testing.assert_array_equal(v(work.learner.x.params), C[a])
    work, _ = algorithm.step(t, work, (batch(),), late)
    h = by_centers(mixed(C[a], W), X, C)
    assert (np.abs(h) > CENTER_GRAD_CLIP).any()
    c = C - ETA2 * np.clip(h, -center_grad_clip, center_grad_clip)
    w = W - 2 * LR * LAMBDA_P * kd_gradient_teacher(W, c[a])
    np.testing.assert_allclose(work.learner.c["v"][0].numpy(), c, rtol=1e-12)
    np.testing.assert_array_equal(v(work.learner.x.params), work.learner.c["v"][0].numpy()[a])
    np.testing.assert_allclose(v(work.w.params), w, rtol=1e-12)


def test_fine_tuning_keeps_the_assignment_when_centers_cross() -> None:
    """A weight follows its center past another one; afterwards centers are sorted again."""
    t, late = spec(X, W, bits=1), clock(phase=Phase.FINETUNE)
    close = np.array([0.1, 0.100001])
    algorithm = Local(hyper(eta2=1.0))
    work = algorithm.start(t, algorithm.init_shared(t), learner(np.array([0.0, 1.0]), close), late)
    work, _ = algorithm.step(t, work, (batch(),), late)
    moved = close - by_centers(ce_gradient(close), np.array([0.0, 1.0]), close)
    assert moved[0] > moved[1]
    np.testing.assert_allclose(v(work.x.params), moved, rtol=1e-12)
    np.testing.assert_allclose(work.c["v"][0].numpy(), np.sort(moved), rtol=1e-12)


def test_fedavg_step() -> None:
    """w - lr (grad + wd w)."""
    t = spec(X, W, weight_decay=0.1)
    algorithm = FedAvg()
    work = algorithm.start(t, Global(model(W)), algorithm.init_personal(t, Global(model(W))), clock())
    work, _ = algorithm.step(t, work, (batch(),), clock())
    np.testing.assert_allclose(v(work.w.params), W - LR * (ce_gradient(W) + 0.1 * W), rtol=1e-12)


@pytest.mark.parametrize("kind", [kind for kind in ALGORITHMS.values() if issubclass(kind, Averaging)])
def test_server_momentum_by_hand(kind: type[Averaging]) -> None:
    """d = mean - w;  v <- d + 0.6 v, cut to 2 ||d||;  w <- w + d + 0.6 v. The clients hardly move in the last round."""
    algorithm = kind(server_momentum=0.6)
    shared = algorithm.init_shared(spec(X, W))
    w, velocity = W, np.zeros_like(W)
    cuts: list[float] = []
    for moved in (np.array([0.3, 0.1]), np.array([-0.2, 0.2]), np.array([0.01, 0.02])):
        mean = w + moved
        payload: Any = Sent(model(mean), torch.tensor(1.0)) if kind is FedAvgFT else Global(model(mean))
        shared = algorithm.server_update(shared, payload)
        velocity = 0.6 * velocity + moved
        cuts.append(min(1.0, float(2 * np.linalg.norm(moved) / np.linalg.norm(velocity))))
        velocity *= cuts[-1]
        w = w + moved + 0.6 * velocity
        np.testing.assert_allclose(v(shared.w.params), w, rtol=1e-12)
    with pytest.raises(InvalidValueError, match=f"server_momentum of {kind.__name__} must be .* below 1"):
        kind(server_momentum=1.0)
    assert cuts[:2] == [1, 1]
    assert cuts[2] < 0.5


def test_the_velocity_of_the_server_is_not_sent() -> None:
    shared = FedAvg(server_momentum=0.6).init_shared(spec(X, W))
    assert shared.server
    assert not broadcast(shared).server
    assert torch.equal(broadcast(shared).w.params["v"], shared.w.params["v"])
    members, options = clients(FedAvg()), TrainingOptions()
    with_momentum, without = (
        Federation(members, FedAvg(server_momentum=momentum)).setup(options) for momentum in (0.6, 0.0)
    )
    assert with_momentum.sent == without.sent


def test_pfedme_step() -> None:
    """K steps on f + lam/2 ||theta - w||^2 from the client's own theta, then w toward theta."""
    from quped.algorithms.pfedme import Personal

    algorithm, t = PFedMe(lam=0.5, eta=0.2, inner_steps=3), rolling_task()
    work = algorithm.start(t, Global(model(W)), Personal(model(X)), clock())
    w, at = W, X
    for _ in range(2):
        work, _ = algorithm.step(t, work, (batch(),), clock())
        theta = Rolling(at)  # momentum begins anew with every inner problem
        for _ in range(3):
            theta.step(ce_gradient(theta.at) + 0.5 * (theta.at - w))
        at = theta.at
        w = w - 0.2 * 0.5 * (w - at)
    np.testing.assert_allclose(v(work.theta.params), at, rtol=1e-12)
    np.testing.assert_allclose(v(work.w.params), w, rtol=1e-12)


def test_pfedme_begins_a_round_at_w_if_it_resets_theta() -> None:
    """Whatever the client's theta was."""
    from quped.algorithms.pfedme import Personal

    algorithm, t = PFedMe(reset_theta=True), rolling_task()
    work = algorithm.start(t, Global(model(W)), Personal(model(X)), clock())
    np.testing.assert_array_equal(v(work.theta.params), W)
    work, _ = algorithm.step(t, work, (batch(),), clock())
    kept, _ = algorithm.finish(t, work, batch(), clock())
    np.testing.assert_array_equal(v(kept.theta.params), v(work.theta.params))


def test_perfedavg_adapts_the_global_model() -> None:
    """One step of alpha from the w that the client received, not from its w_i; w_i is sent all the same."""
    algorithm, t = PerFedAvg(alpha=0.3, adapts="global"), spec(X, W)
    work = algorithm.start(t, Global(model(W)), algorithm.init_personal(t, Global(model(W))), clock())
    for _ in range(2):
        work, _ = algorithm.step(t, work, (batch(), batch()), clock())
    personal, payload = algorithm.finish(t, work, batch(), clock())
    np.testing.assert_allclose(v(personal.adapted.params), W - 0.3 * ce_gradient(W), rtol=1e-12)
    np.testing.assert_array_equal(v(payload.w.params), v(work.w.params))


def test_perfedavg_step_and_adaptation() -> None:
    """First-order MAML: the gradient at the adapted model, on another batch; the own model is adapted once more."""
    algorithm, t = PerFedAvg(alpha=0.3), rolling_task()
    second = (np.array([0.7, -1.1, 2.0]), np.array([1, 1, 0]))
    work = algorithm.start(t, Global(model(W)), algorithm.init_personal(t, Global(model(W))), clock())
    rolling = Rolling(W)
    for _ in range(2):
        work, _ = algorithm.step(t, work, (batch(), batch(*second)), clock())
        rolling.step(ce_gradient(rolling.at - 0.3 * ce_gradient(rolling.at), *second))
    w = rolling.at
    np.testing.assert_allclose(v(work.w.params), w, rtol=1e-12)
    personal, payload = algorithm.finish(t, work, batch(), clock())
    np.testing.assert_allclose(v(personal.adapted.params), w - 0.3 * ce_gradient(w), rtol=1e-12)
    np.testing.assert_allclose(v(payload.w.params), w, rtol=1e-12)


def test_fml_step_is_simultaneous() -> None:
    """Both models step by gradients at the old pair; each divergence trains its second argument."""
    from quped.algorithms.fml import Personal

    algorithm, t = FML(alpha=0.2, beta=0.4), rolling_task()
    personal, shared = Personal(model(X), t.sgd.init(model(X).params)), Global(model(W))
    x, w = Rolling(X), Rolling(W)
    for _ in range(2):
        work = algorithm.start(t, shared, personal, clock())
        for _ in range(2):
            work, _ = algorithm.step(t, work, (batch(),), clock())
            at_x, at_w = x.at, w.at
            x.step(0.8 * ce_gradient(at_x) + 0.2 * kd_gradient_student(at_w, at_x))
            w.step(0.6 * ce_gradient(at_w) + 0.4 * kd_gradient_student(at_x, at_w))
        personal, shared = algorithm.finish(t, work, batch(), clock())
        np.testing.assert_allclose(v(personal.x.params), x.at, rtol=1e-12)
        np.testing.assert_allclose(v(shared.w.params), w.at, rtol=1e-12)
        w = Rolling(w.at)  # what is averaged begins every round without momentum


def test_qupel_step() -> None:
    """Algorithm 1 with lambda_p (x - w) in the gradient of x, then w toward the new x."""
    algorithm = QuPeL(lambda_p=0.2, eta3=0.5, quantization=hyper())
    t = spec(X, W, bits=1)
    work = algorithm.start(t, QuPeLShared(model(W).params), learner(X, C), clock())
    work, _ = algorithm.step(t, work, (batch(),), clock())
    x = soft_threshold(X - LR * (ce_gradient(X) + 0.2 * (X - W)), C)
    c = C - ETA2 * by_centers(ce_gradient(C[nearest(x, C)]), x, C) + LAM * ETA2 / 2 * center_pull(x, C)
    np.testing.assert_allclose(v(work.learner.x.params), x, rtol=1e-12)
    np.testing.assert_allclose(work.learner.c["v"][0].numpy(), c, rtol=1e-12)
    np.testing.assert_allclose(v(work.w), W - 0.5 * 0.2 * (W - x), rtol=1e-12)


def test_qupel_step_with_the_penalty_on_both_models() -> None:
    """Centers get the sum of lambda_p (Q - w) over their weights, and w moves toward x and toward Q."""
    algorithm = QuPeL(lambda_p=0.2, eta3=0.5, penalty_on="both", quantization=hyper())
    t = spec(X, W, bits=1)
    work = algorithm.start(t, QuPeLShared(model(W).params), learner(X, C), clock())
    work, _ = algorithm.step(t, work, (batch(),), clock())
    x = soft_threshold(X - LR * (ce_gradient(X) + 0.2 * (X - W)), C)
    q = C[nearest(x, C)]
    c = C - ETA2 * by_centers(ce_gradient(q) + 0.2 * (q - W), x, C) + LAM * ETA2 / 2 * center_pull(x, C)
    np.testing.assert_allclose(v(work.learner.x.params), x, rtol=1e-12)
    np.testing.assert_allclose(work.learner.c["v"][0].numpy(), c, rtol=1e-12)
    np.testing.assert_allclose(v(work.w), W - 0.5 * 0.2 * (W - x + W - c[nearest(x, c)]), rtol=1e-12)


def test_qupel_penalty_on_both_in_fine_tuning_and_at_32_bits() -> None:
    """Hardened, x is Q and centers feel the penalty; in full precision there is one model, as with "x"."""
    algorithm, t, late = (
        QuPeL(lambda_p=0.2, eta3=0.5, penalty_on="both", quantization=hyper()),
        spec(X, W, bits=1),
        clock(phase=Phase.FINETUNE),
    )
    work = algorithm.start(t, QuPeLShared(model(W).params), learner(X, C), late)
    work, _ = algorithm.step(t, work, (batch(),), late)
    q = C[nearest(X, C)]
    c = C - ETA2 * by_centers(ce_gradient(q) + 0.2 * (q - W), X, C)
    np.testing.assert_allclose(work.learner.c["v"][0].numpy(), c, rtol=1e-12)
    np.testing.assert_allclose(v(work.w), W - 0.5 * 0.2 * 2 * (W - c[nearest(X, C)]), rtol=1e-12)
    exact = algorithm.start(spec(X, W), QuPeLShared(model(W).params), learner(X, None), clock())
    exact, _ = algorithm.step(spec(X, W), exact, (batch(),), clock())
    x = X - LR * (ce_gradient(X) + 0.2 * (X - W))
    np.testing.assert_allclose(v(exact.learner.x.params), x, rtol=1e-12)
    np.testing.assert_allclose(v(exact.w), W - 0.5 * 0.2 * (W - x), rtol=1e-12)


def test_momentum_and_weight_decay_equal_torch() -> None:
    """Our SGD step is that of torch.optim.SGD, over several steps."""
    ours, velocity = {"v": torch.tensor(X)}, SGD(0.1, 0.9).init({"v": torch.tensor(X)})
    theirs = torch.nn.Parameter(torch.tensor(X))
    optimizer = torch.optim.SGD([theirs], lr=LR, momentum=0.9, weight_decay=0.1)
    for i in range(5):
        gradient = torch.tensor([0.3 * i, -0.2], dtype=torch.float64)
        ours, velocity = SGD(0.1, 0.9).step(ours, {"v": gradient}, velocity, LR)
        theirs.grad = gradient.clone()
        optimizer.step()
    torch.testing.assert_close(ours["v"], theirs.detach(), rtol=1e-12, atol=0)


def test_the_gradient_helpers_agree_with_finite_differences() -> None:
    """The hand-derived gradients of this file are those of the losses that they are named after."""

    def kd(teacher: Array, student: Array) -> float:
        p, q = probabilities(teacher), probabilities(student)
        return float((p * np.log(p / q)).sum(1).mean())

    for i in range(2):
        step = 1e-6 * np.eye(2)[i]
        by_student = (kd(W, X + step) - kd(W, X - step)) / 2e-6
        by_teacher = (kd(W + step, X) - kd(W - step, X)) / 2e-6
        assert kd_gradient_student(W, X)[i] == pytest.approx(by_student, rel=1e-6)
        assert kd_gradient_teacher(W, X)[i] == pytest.approx(by_teacher, rel=1e-6)
    assert by_v(np.ones((4, 2))).shape == (2,)


def test_temperature_softens_the_distillation() -> None:
    """At T = 2, x's gradient of T^2 D_KL(s(w/T) || s(x/T)) is T (s(x/T) - s(w/T)) by its logits; w's likewise."""
    algorithm = QuPeD(lambda_p=1.0, temperature=2.0)
    t = spec(X, W)
    work = algorithm.start(t, Global(model(W)), learner(X, None), clock())
    work, _ = algorithm.step(t, work, (batch(),), clock())
    x = X - LR * 2 * by_v(probabilities(X / 2) - probabilities(W / 2))
    np.testing.assert_allclose(v(work.learner.x.params), x, rtol=1e-12)
    np.testing.assert_allclose(v(work.w.params), W - LR * 2 * kd_gradient_teacher(W / 2, x / 2), rtol=1e-12)


def test_temperature_of_the_teacher_alone() -> None:
    """The authors' form: x's gradient of T^2 D_KL(s(w/T) || s(x)) is T^2 (s(x) - s(w/T)), w's T p (log(p/q) - D_KL)."""
    algorithm, t = QuPeD(lambda_p=1.0, temperature=2.0, softened="teacher"), spec(X, W)
    work = algorithm.start(t, Global(model(W)), learner(X, None), clock())
    work, _ = algorithm.step(t, work, (batch(),), clock())
    x = X - LR * 4 * by_v(probabilities(X) - probabilities(W / 2))
    np.testing.assert_allclose(v(work.learner.x.params), x, rtol=1e-12)
    np.testing.assert_allclose(v(work.w.params), W - LR * 2 * kd_gradient_teacher(W / 2, x), rtol=1e-12)


def test_centers_start_where_the_task_says() -> None:
    """`start` reaches the centers: k-means instead of the range."""
    weights = np.array([0.0, 0.1, 0.2, 5.0])
    t = replace(spec(weights, W, bits=1), init_centers="kmeans")
    np.testing.assert_allclose(_algorithm1.begin(t).c["v"][0].numpy(), [0.1, 5.0], rtol=1e-12)
    np.testing.assert_allclose(_algorithm1.begin(spec(weights - 1, W, bits=1)).c["v"][0].numpy(), [-0.9, 4.0])


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_unquantized_parameters_in_fine_tuning(momentum: float) -> None:
    """They take SGD steps with weight decay, momentum and QuPeL's penalty, two steps in a row."""
    decay, pull, late = 0.1, 0.2, clock(phase=Phase.FINETUNE)
    start, bias, shared = C[nearest(X, C)], np.array([0.3, -0.1]), np.array([0.5, 0.5])
    x = model_with_bias(start, bias)
    t = ClientSpec(network_with_bias, x, network_with_bias, x, {"v": 1}, sgd=SGD(decay, momentum))
    algorithm = QuPeL(lambda_p=pull, eta3=0.0, quantization=hyper(eta2=0.0))
    personal = Learner(x, {"v": torch.tensor(C).unsqueeze(0)}, {}, t.sgd.init(x.params))
    work = algorithm.start(t, QuPeLShared(x.params | {"b": torch.tensor(shared)}), personal, late)
    expected, speed = bias, np.zeros(2)
    for _ in range(2):
        work, _ = algorithm.step(t, work, (batch(),), late)
        z = np.outer(INPUTS, start) + expected
        p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
        speed = momentum * speed + (p - ONE_HOT).mean(0) + pull * (expected - shared) + decay * expected
        expected = expected - LR * speed
    np.testing.assert_allclose(work.learner.x.params["b"].numpy(), expected, rtol=1e-12)
    np.testing.assert_array_equal(v(work.learner.x.params), start)
