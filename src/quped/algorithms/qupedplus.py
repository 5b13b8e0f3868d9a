"""QuPeD+, ours: QuPeD's idea with a teacher that has learned, and with a common start.

Parts of it: FedAvg (McMahan et al., 2017); the gradient straight through the quantizer (Bengio, Leonard and Courville,
2013); center steps scaled by the size of a layer, as those of the step size in LSQ (Esser et al., Learned Step Size
Quantization, 2020); distillation and personal centers (QuPeD)."""

from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from quped import _tree
from quped._losses import cross_entropy, distillation
from quped.algorithms import _algorithm1
from quped.algorithms._algorithm1 import Learner, Problem
from quped.algorithms._averaging import at_rest, receive
from quped.algorithms._own_classes import class_prior, none_seen, restrict, see
from quped.algorithms._sgd import check_momentum
from quped.algorithms._sgd_step import sgd_step
from quped.algorithms.base import ClientSpec, Deployed, Global, GlobalNetwork, send
from quped.algorithms.quantization import Quantization
from quped.errors import check, check_number
from quped.typing import Batch, Clock, LossFn, Metrics, ModelState, Params, Phase

TOGETHER, QUANTIZED, ALONE = 0, 1, 2
"""The stages of a run."""

GLOBAL = "global"
"""The key of the global network among those that have a common model."""


class Shared(NamedTuple):
    """w, the teacher, and the common model x of each network; w is that of the global one until clients quantize."""

    w: ModelState
    x: dict[str, ModelState]
    server: dict[str, Params]
    """The velocity of each x, which stays with the server."""


class Personal(NamedTuple):
    """The client's own model; the stage of its last round, which says how much of it is in use; the classes it has."""

    learner: Learner
    stage: Tensor
    seen: Tensor


class Work(NamedTuple):
    """x_i with c_i; w_i with its velocity of this round; the classes that the client has seen."""

    learner: Learner
    w: ModelState
    velocity: Params
    seen: Tensor


class Payload(NamedTuple):
    """w_i under the key of the global network, x_i under that of the client's own; and the stage.

    Each is multiplied by `learned`, which is 0 if the client did not train it in this stage, and else 1.
    """

    models: dict[str, ModelState]
    learned: dict[str, Tensor]
    stage: Tensor


@dataclass(frozen=True)
class QuPeDPlus:
    """Three stages, by the share of the run that is done:

    1. Together, up to `together`: FedAvg. w_i <- w_i - lr grad f_i(w_i); w <- mean of w_i.
    2. Quantized together, up to `common`: w stays. From x = w,
       x_i <- x_i - lr grad f_i(Q_ci(x_i)), straight through Q, and for centers of n weights
       c_i <- c_i - lr kappa / sqrt(n) grad_c f_i(Q_ci(x_i)); x <- mean of x_i.
       In both stages, w and x go beyond the mean, as FedAvg's w with `server_momentum`; x takes over the velocity of w.
       Every client has its own centers, so bit-widths may differ.
    3. Alone: from x, which no longer changes, the same steps along F_i, with w as the teacher. In the fine-tuning phase
       weights sit on their centers.

    F_i = (1 - lambda_p) f_i(x) + lambda_p D_KL(s(w) || s(x)). From stage 2 on, softmax s chooses among the classes of
    client i only, in f_i, too; so does the model that it deploys. The learning rate of these stages begins at the
    geometric mean of the initial and the present one, since a network that was just quantized has far to go, and falls
    linearly to 0.

    There is one x for each network, the mean over the clients that have it. Clients with another network than the
    global one also train x in stage 1, in full precision, by F_i with w_i as the teacher. Where the server does not
    know a client's network, as on Flower, its x_i is its own in all stages, and learns by F_i.
    """

    server_momentum: float = field(default=0.9, kw_only=True)
    """The momentum of w, and of x, as FedAvg has it as an option."""
    together: float = 0.7
    """The share of the run in which w learns from labels."""
    common: float = 0.9
    """The share of the run after which every client is alone. Fine-tuning is alone in any case."""
    lambda_p: float = 0.1
    """lambda_p, the share of distillation in a client's loss."""
    center_lr_ratio: float = 0.1
    """kappa."""
    own_classes: bool = True
    """Whether models choose among the classes in their client's training data only."""

    name: ClassVar[str] = "qupedplus"
    quantizes: ClassVar[bool] = True
    global_network: ClassVar[GlobalNetwork] = "any"
    batches_per_step: ClassVar[int] = 1

    def __post_init__(self) -> None:
        check_momentum("server_momentum of QuPeDPlus", self.server_momentum)
        check_number("together of QuPeDPlus", self.together, 0, 1)
        check_number("common of QuPeDPlus", self.common, self.together, 1)
        check_number("lambda_p of QuPeDPlus", self.lambda_p, 0, 1)
        check_number("center_lr_ratio of QuPeDPlus", self.center_lr_ratio, 0)
        check(isinstance(self.own_classes, bool), "own_classes of QuPeDPlus", "True or False", self.own_classes)

    @property
    def quantization(self) -> Quantization:
        """How centers move, in the terms of Algorithm 1."""
        return Quantization(center_lr_ratio=self.center_lr_ratio)

    def stage(self, clock: Clock) -> int:
        """Return the stage of a round."""
        if clock.phase is Phase.FINETUNE or clock.progress >= self.common:
            return ALONE
        return TOGETHER if clock.progress < self.together else QUANTIZED

    def is_common(self, clock: Clock) -> bool:
        """Say whether the clients train w."""
        return self.stage(clock) == TOGETHER

    def lr(self, clock: Clock) -> float:
        """Return the learning rate of stages 2 and 3."""
        left = (1 - clock.progress) / (1 - self.together) if self.together < 1 else 0.0
        mean: float = (clock.initial_lr * clock.lr) ** 0.5
        return mean * min(left, 1.0)

    def init_shared(self, spec: ClientSpec) -> Shared:
        """Start from the networks' weights."""
        x = {GLOBAL: spec.global_initial, **spec.networks}
        return Shared(
            spec.global_initial, x, {k: at_rest(model, self.server_momentum).server for k, model in x.items()}
        )

    def init_personal(self, spec: ClientSpec, shared: Shared) -> Personal:
        """Return a model of which nothing is in use but, where the network is another one, its weights."""
        seen = none_seen(spec) if self.own_classes else torch.zeros(0, dtype=torch.bool)
        return Personal(_algorithm1.begin(spec), torch.tensor(TOGETHER), seen)

    def start(self, spec: ClientSpec, shared: Shared, personal: Personal, clock: Clock) -> Work:
        """w_i = w. Together, x_i = x where the network is another one; from stage 2 on, the client's present model."""
        learner = personal.learner
        if not self.is_common(clock):
            learner = _algorithm1.resume(own_model(spec, shared, personal), clock, self.quantization.assignment)
        elif spec.network_key is not None:
            learner = with_centers(spec, shared.x[spec.network_key], learner.c)
        return Work(learner, shared.w, spec.sgd.init(shared.w.params), personal.seen)

    def step(self, spec: ClientSpec, work: Work, batches: tuple[Batch, ...], clock: Clock) -> tuple[Work, Metrics]:
        """Take one step on w_i, on x_i, or, with another network and together, on both."""
        (batch,) = batches
        seen = see(work.seen, batch.labels) if self.own_classes else work.seen
        if self.is_common(clock):
            return self._learn_together(spec, work._replace(seen=seen), batch, clock)
        # A mean over clients knows what a teacher could tell.
        averages = self.stage(clock) == QUANTIZED and own_key(spec) is not None
        loss = self._loss(spec, work.w, batch, seen, 0.0 if averages else self.lambda_p)
        problem = Problem(spec, self.quantization, batch.inputs, loss, clock._replace(lr=self.lr(clock)))
        learner, value = _algorithm1.step_through(problem, work.learner)
        return work._replace(learner=learner, seen=seen), {"loss": value}

    def _learn_together(self, spec: ClientSpec, work: Work, batch: Batch, clock: Clock) -> tuple[Work, Metrics]:
        """Step w_i along its gradient; another network learns from labels and from w_i, in full precision."""
        w, velocity, value = sgd_step(spec.sgd, spec.global_network, work.w, work.velocity, batch, clock.lr)
        if spec.has_global_network:
            return work._replace(w=w, velocity=velocity), {"loss": value}
        loss = self._loss(spec, work.w, batch, work.seen, self.lambda_p)
        problem = Problem(spec, self.quantization, batch.inputs, loss, clock)
        learner, value = _algorithm1.step_weights(problem, work.learner, None)
        return Work(learner, w, velocity, work.seen), {"loss": value}

    def _loss(self, spec: ClientSpec, w: ModelState, batch: Batch, seen: Tensor, lambda_p: float) -> LossFn:
        """Return F_i as a function of the logits; its teacher is w."""
        prior = class_prior(seen) if self.own_classes else torch.zeros(())
        if lambda_p == 0:
            return lambda logits: cross_entropy(logits + prior, batch.labels)
        with torch.no_grad():
            teacher = spec.global_network(w.params, w.buffers, batch.inputs, train=False)[0]

        def loss(logits: Tensor) -> Tensor:
            divergence = distillation(teacher + prior, logits + prior, trains="student")
            return (1 - lambda_p) * cross_entropy(logits + prior, batch.labels) + lambda_p * divergence

        return loss

    def finish(self, spec: ClientSpec, work: Work, batch: Batch, clock: Clock) -> tuple[Personal, Payload]:
        """Send the common models that this stage trains, and zeros for others. What is sent is not kept."""
        stage, learner, key = self.stage(clock), work.learner, own_key(spec)
        trained = {GLOBAL: work.w} if stage == TOGETHER else {}
        if key is not None and (stage == QUANTIZED or (stage == TOGETHER and key != GLOBAL)):
            # The buffers of the quantized model are those that count.
            quantized = stage == QUANTIZED and learner.c
            trained[key] = ModelState(learner.x.params, learner.q_buffers) if quantized else learner.x
        models = {GLOBAL: work.w} | ({} if key is None else {key: learner.x}) | trained
        learned = {k: torch.tensor(float(k in trained)) for k in models}
        payload = Payload(
            models={k: _tree.map_leaves(partial(torch.mul, learned[k]), send(model).w) for k, model in models.items()},
            learned=learned,
            stage=torch.tensor(float(stage)),
        )
        if key in trained:
            learner = with_centers(spec, spec.initial, learner.c)
        return Personal(learner, torch.tensor(stage), work.seen), payload

    def server_update(self, shared: Shared, mean: Payload) -> Shared:
        """Each x, and together w, is the mean over the clients that trained it, or beyond it. Alone they stay."""
        moved = {
            key: receive(
                Global(shared.x[key], shared.server[key]), over(mean.models[key], learned), self.server_momentum
            )
            for key, learned in mean.learned.items()
            if learned
        }
        x = shared.x | {key: model.w for key, model in moved.items()}
        server = shared.server | {key: model.server for key, model in moved.items()}
        return Shared(x[GLOBAL] if mean.stage == TOGETHER else shared.w, x, server)

    def deploy(self, spec: ClientSpec, shared: Shared, personal: Personal) -> Deployed:
        """Q_ci(x_i), which chooses among the client's own classes."""
        model = _algorithm1.deployed(own_model(spec, shared, personal), self.quantization.assignment)
        return restrict(model, spec, personal.seen) if self.own_classes else model


def own_key(spec: ClientSpec) -> str | None:
    """Return the key of the common model of a client's network, if there is one."""
    return GLOBAL if spec.has_global_network else spec.network_key


def over(total: ModelState, learned: Tensor) -> ModelState:
    """Return the mean over the clients that trained a model."""
    return _tree.map_leaves(lambda leaf: leaf / learned, total)


def own_model(spec: ClientSpec, shared: Shared, personal: Personal) -> Learner:
    """Return the client's present model, quantized: until it was alone, the common one; its centers once it has some.

    Without a common model of its network, its weights are its own from the beginning.
    """
    learner, key = personal.learner, own_key(spec)
    x = learner.x if key is None else shared.x[key]
    return _tree.choose(
        personal.stage == TOGETHER,
        lambda: _algorithm1.begin_learned(spec, x),
        lambda: _tree.choose(
            (personal.stage == QUANTIZED) & (key is not None),
            lambda: with_centers(spec, x, learner.c),
            lambda: learner,
        ),
    )


def with_centers(spec: ClientSpec, x: ModelState, c: Params) -> Learner:
    """Return a learner that begins with these weights and centers."""
    return Learner(x, c, x.buffers if c else {}, spec.sgd.init(x.params))
