"""Algorithm 1 of the paper on one client: alternating proximal gradient steps on weights x and centers c.

`local`, `qupel` and `quped` are this step with different losses. With 32 bits there are no centers, and the step is
plain SGD on x.

`quped.optim.CenterQuant` takes the same step on the same maps of `quped.quant`. It has a text of its own because it
changes a network in place, by any PyTorch optimizer, while this one is a pure function, as engines and vmap need it.
Tests hold the two equal.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import NamedTuple

from torch import Tensor

from quped import _tree
from quped.algorithms._autodiff import gradient
from quped.algorithms.base import ClientSpec, Deployed
from quped.algorithms.quantization import Quantization
from quped.errors import InvalidValueError
from quped.quant import (
    Assignment,
    CenterInit,
    Codebook,
    assign,
    by_centers,
    center_rate,
    descend_centers,
    initial_centers,
    place,
    prox_weights,
    quantize,
    schedule_for,
    step_centers,
)
from quped.typing import Clock, LossFn, ModelState, Params, Phase


class Learner(NamedTuple):
    """A personal model while it learns."""

    x: ModelState
    """x_i, in full precision; in the fine-tuning phase, weights that sit on their centers."""
    c: Params
    """c_i: for each quantized tensor its centers, `[1, m]` or `[channels, m]`, sorted; empty at 32 bits."""
    q_buffers: Params
    """Buffers of the network running Q_c(x): its BatchNorm statistics are not those of x."""
    velocity: Params


class Problem(NamedTuple):
    """What one step works on."""

    spec: ClientSpec
    hyper: Quantization
    inputs: tuple[Tensor, ...]
    loss: LossFn
    """Of the logits: (1 - lambda_p) f + lambda_p f^KD in QuPeD, f alone elsewhere."""
    clock: Clock
    term: Callable[[Params], Tensor] | None = None
    """A further term of the loss, in the parameters: at x and at Q~_c(x), so c learns from it."""

    def run(self, params: Params, buffers: Params) -> tuple[Tensor, Params]:
        """Return the loss at these parameters, and the buffers after the pass."""
        logits, buffers = self.logits(params, buffers)
        value = self.loss(logits)
        return value if self.term is None else value + self.term(params), buffers

    def logits(self, params: Params, buffers: Params) -> tuple[Tensor, Params]:
        """Return the network's outputs at these parameters, and the buffers after the pass."""
        return self.spec.network(params, buffers, self.inputs, train=True)


def begin(spec: ClientSpec) -> Learner:
    """Return x^0 and c^0."""
    return begin_at(spec, spec.initial, dict.fromkeys(spec.bits, spec.init_centers))


def begin_at(spec: ClientSpec, x: ModelState, init: Mapping[str, CenterInit]) -> Learner:
    """Return the learner with weights x, and centers placed among them as `init` says for each quantized tensor."""
    c = {}
    for k, bits in spec.bits.items():
        try:
            c[k] = initial_centers(x.params[k], 2**bits, init[k], per_channel=spec.per_channel)
        except InvalidValueError as error:
            raise InvalidValueError(f"'{k}': {error}") from error
    return Learner(x, c, x.buffers if c else {}, spec.sgd.init(x.params))


def begin_learned(spec: ClientSpec, w: ModelState) -> Learner:
    """Return x = w, which has learned, with centers at the means of their weights; of two centers, those of each sign.

    Evenly between the smallest and the largest weight, most weights of a network that has learned lie between two.
    """
    return begin_at(spec, w, {k: "range" if bits == 1 else "kmeans" for k, bits in spec.bits.items()})


def resume(learner: Learner, clock: Clock, assignment: Assignment) -> Learner:
    """Enter a round. In the fine-tuning phase weights are put on their centers, which does nothing the second time."""
    if clock.phase is Phase.TRAIN:
        return learner
    return learner._replace(x=ModelState(quantized(learner.x.params, learner.c, assignment), learner.x.buffers))


def quantized(params: Params, c: Params, assignment: Assignment, sharpness: float = math.inf) -> Params:
    """Q~_c(x): parameters with centers are quantized, the others stay."""
    return params | {k: quantize(params[k], centers, sharpness, assignment) for k, centers in c.items()}


def assign_all(params: Params, c: Params, assignment: Assignment) -> Params:
    """Return which center each quantized weight belongs to."""
    return {k: assign(params[k], centers, assignment) for k, centers in c.items()}


def placed(params: Params, c: Params, assigned: Params) -> Params:
    """Return the parameters with each quantized weight at the center that it is assigned to."""
    return params | {k: place(c[k], a, params[k].shape) for k, a in assigned.items()}


def deployed(learner: Learner, assignment: Assignment) -> Deployed:
    """Q_c(x) with its own buffers; x itself at 32 bits."""
    if not learner.c:
        return Deployed(learner.x, {})
    x, c = learner.x.params, learner.c
    assigned = assign_all(x, c, assignment)
    codebooks = {k: Codebook(c[k], assigned[k]) for k in c}
    return Deployed(ModelState(placed(x, c, assigned), learner.q_buffers), codebooks)


def step(problem: Problem, learner: Learner, penalty: Params | None = None) -> tuple[Learner, Tensor]:
    """Take one step of Algorithm 1 (lines 2-5); return the learner and the loss before it.

    `penalty` is the gradient of a further term in x alone.
    """
    if not learner.c:
        return step_weights(problem, learner, penalty)
    if problem.clock.phase is Phase.FINETUNE:
        return finetune(problem, learner, penalty)
    lam = {k: schedule_for(bits, problem.hyper.lam)(problem.clock.t) for k, bits in problem.spec.bits.items()}
    if problem.hyper.straight_through:
        learner, value, h = half_steps(problem, learner, penalty)
        learner, assigned = pull_weights(problem, learner, lam)
    else:
        learner, value = step_weights(problem, learner, penalty)
        learner, assigned = pull_weights(problem, learner, lam)
        learner, h = center_gradient(problem, learner, assigned)
    return move_centers(problem, learner, h, lam, assigned), value


def step_part(problem: Problem, learner: Learner, names: Iterable[str]) -> tuple[Learner, Tensor]:
    """Step some parameters of x by the gradient at Q_c(x); the others and c stay. Return it and the loss at Q_c(x)."""
    x, (q, buffers) = learner.x, deployed(learner, problem.hyper.assignment).state
    part = {k: q[k] for k in names}
    grads, value, buffers = gradient(lambda params: problem.run(q | params, buffers), part)
    moved, velocity = problem.spec.sgd.step({k: x.params[k] for k in part}, grads, learner.velocity, problem.clock.lr)
    return Learner(
        x=ModelState(x.params | moved, x.buffers if learner.c else buffers),
        c=learner.c,
        q_buffers=buffers if learner.c else {},
        velocity=learner.velocity | velocity,
    ), value


def step_weights(problem: Problem, learner: Learner, penalty: Params | None) -> tuple[Learner, Tensor]:
    """y = x - eta_1 g, g = grad_x [f(x) + f(Q~_c(x))]; line 2. Return it and the loss at x.

    With P = infinity the second term's gradient is taken as 0, for all of x, as in the paper's appendix.
    """
    x, c, hyper = learner.x, learner.c, problem.hyper

    def f(params: Params) -> tuple[Tensor, Params]:
        value, buffers = problem.run(params, x.buffers)
        if c and hyper.sharpness < math.inf:
            value = value + problem.run(quantized(params, c, hyper.assignment, hyper.sharpness), learner.q_buffers)[0]
        return value, buffers

    grads, value, buffers = gradient(f, x.params)
    return descend_weights(problem, learner._replace(x=x._replace(buffers=buffers)), grads, penalty), value


def descend_weights(problem: Problem, learner: Learner, grads: Params, penalty: Params | None) -> Learner:
    """Take an SGD step of x along the sum of two gradients."""
    if penalty is not None:
        grads = _tree.add_scaled(grads, penalty, 1.0)
    params, velocity = problem.spec.sgd.step(learner.x.params, grads, learner.velocity, problem.clock.lr)
    return learner._replace(x=learner.x._replace(params=params), velocity=velocity)


def half_steps(problem: Problem, learner: Learner, penalty: Params | None) -> tuple[Learner, Tensor, Params]:
    """Step x along grad f(x), then straight through: along the gradient at Q_c(x), as if Q_c were the identity (Bengio,
    Leonard and Courville, 2013), each with half of the learning rate. Return it, the loss at x, and h of the second
    gradient.

    With whole steps, or with the sum of both gradients in one, single clients lose their network for good.
    """
    half = problem._replace(clock=problem.clock._replace(lr=problem.clock.lr / 2))
    learner, value = step_weights(half, learner, penalty)
    x, c = learner.x.params, learner.c
    assigned = assign_all(x, c, problem.hyper.assignment)
    q = placed(x, c, assigned)
    grads, _, buffers = gradient(lambda params: problem.run(params, learner.q_buffers), q)
    h = {k: by_centers(grads[k], c[k], assigned[k]) for k in c}
    return descend_weights(half, learner._replace(q_buffers=buffers), grads, penalty), value, h


def pull_weights(problem: Problem, learner: Learner, lam: Mapping[str, float]) -> tuple[Learner, Params]:
    """x^{t+1} = prox_{eta_1 lambda R(., c)}(y); line 3. Return it and the assignment, which it does not change."""
    x, c = learner.x, learner.c
    assigned = assign_all(x.params, c, problem.hyper.assignment)
    moved = {k: prox_weights(x.params[k], c[k], lam[k] * problem.clock.lr, assigned[k]) for k in c}
    return learner._replace(x=x._replace(params=x.params | moved)), assigned


def center_gradient(problem: Problem, learner: Learner, assigned: Params) -> tuple[Learner, Params]:
    """h = grad_c f(Q~_c(x)) at x = x^{t+1}; line 4. Return the learner with the buffers of this pass, and h."""
    x, c, hyper = learner.x.params, learner.c, problem.hyper
    buffers, h = learner.q_buffers, dict[str, Tensor]()
    if not hyper.update_centers:
        if buffers:
            buffers = problem.logits(quantized(x, c, hyper.assignment, hyper.sharpness), buffers)[1]
    elif hyper.sharpness < math.inf:
        soft = partial(quantized, x, assignment=hyper.assignment, sharpness=hyper.sharpness)
        h, _, buffers = gradient(lambda centers: problem.run(soft(centers), learner.q_buffers), c)
    else:
        q = placed(x, c, assigned)
        inner = {k: q[k] for k in c}
        grads, _, buffers = gradient(lambda weights: problem.run(q | weights, learner.q_buffers), inner)
        h = {k: by_centers(grads[k], c[k], assigned[k]) for k in c}
    return learner._replace(q_buffers=buffers), h


def move_centers(problem: Problem, learner: Learner, h: Params, lam: Mapping[str, float], assigned: Params) -> Learner:
    """c^{t+1} = prox_{eta_2 lambda R(x, .)}(c - eta_2 h); line 5."""
    x, c, hyper = learner.x.params, learner.c, problem.hyper
    if not hyper.update_centers:
        return learner
    moved = {}
    for k in c:
        eta2, clip = center_rates(problem, x[k], c[k])
        moved[k] = step_centers(
            c[k], h[k], x[k], assigned[k], lam=lam[k], eta2=eta2, clip=clip, center_prox=hyper.center_prox
        )
    return learner._replace(c=moved)


def center_rates(problem: Problem, x: Tensor, c: Tensor) -> tuple[float, float]:
    """Return the learning rate of a tensor's centers, and the size to which their gradients are cut."""
    hyper = problem.hyper
    if hyper.center_lr_ratio is None:
        return hyper.eta2, hyper.center_grad_clip
    return center_rate(hyper.center_lr_ratio, problem.clock.lr, x, c), math.inf


def step_through(problem: Problem, learner: Learner) -> tuple[Learner, Tensor]:
    """Step x along the gradient at Q_c(x), straight through Q_c, and c along its own; return it and the loss at Q_c(x).

    One pass, and no R. At 32 bits a step of SGD; in the fine-tuning phase x stays on its centers.
    """
    if not learner.c:
        return step_weights(problem, learner, None)
    if problem.clock.phase is Phase.FINETUNE:
        return finetune(problem, learner, None)
    x, c = learner.x.params, learner.c
    assigned = assign_all(x, c, problem.hyper.assignment)
    grads, value, buffers = gradient(lambda q: problem.run(q, learner.q_buffers), placed(x, c, assigned))
    moved = descend_weights(problem, learner._replace(q_buffers=buffers), grads, None)
    return moved._replace(
        c={k: v.sort(1).values for k, v in descended(problem, learner, grads, assigned).items()}
    ), value


def descended(problem: Problem, learner: Learner, grads: Params, assigned: Params) -> Params:
    """Return c - eta_2 h for a gradient by the quantized weights."""
    x, c = learner.x.params, learner.c
    if not problem.hyper.update_centers:
        return c
    h = {k: by_centers(grads[k], c[k], assigned[k]) for k in c}
    return {k: descend_centers(c[k], h[k], *center_rates(problem, x[k], c[k])) for k in c}


def finetune(problem: Problem, learner: Learner, penalty: Params | None) -> tuple[Learner, Tensor]:
    """Train the centers and the unquantized parameters; each quantized weight stays with its center, at which it is.

    R is 0 here and its prox the identity.
    """
    x, c, hyper = learner.x.params, learner.c, problem.hyper
    assigned = assign_all(x, c, hyper.assignment)
    grads, value, buffers = gradient(lambda params: problem.run(params, learner.q_buffers), x)
    free, slopes, velocity = ({k: v for k, v in of.items() if k not in c} for of in (x, grads, learner.velocity))
    if penalty is not None:
        slopes = _tree.add_scaled(slopes, penalty, 1.0)
    free, velocity = problem.spec.sgd.step(free, slopes, velocity, problem.clock.lr)
    moved = descended(problem, learner, grads, assigned)
    return learner._replace(
        x=ModelState(placed(x | free, moved, assigned), learner.x.buffers),
        c={k: v.sort(1).values for k, v in moved.items()},
        q_buffers=buffers,
        velocity=learner.velocity | velocity,
    ), value


def student_logits(problem: Problem, learner: Learner) -> list[Tensor]:
    """Return the logits of x and of Q~_c(x), of x alone at 32 bits; buffers do not change."""
    exact = problem.logits(learner.x.params, learner.x.buffers)[0]
    if not learner.c:
        return [exact]
    if problem.clock.phase is Phase.FINETUNE:
        return [exact, exact]
    return [exact, problem.logits(quantized_student(problem, learner), learner.q_buffers)[0]]


def quantized_student(problem: Problem, learner: Learner) -> Params:
    """Return Q~_c(x)."""
    x, hyper = learner.x.params, problem.hyper
    if problem.clock.phase is Phase.FINETUNE:  # x sits on its centers
        return x
    return quantized(x, learner.c, hyper.assignment, hyper.sharpness)
