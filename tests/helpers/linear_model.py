"""A model small enough to be differentiated by hand, and its mathematics in NumPy.

One input u, two classes, parameters v = (v1, v2): logits (v1 u, v2 u).
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quped.algorithms import FULL_PRECISION, SGD, ClientSpec
from quped.typing import Batch, Clock, ModelState, Params, Phase

Array = NDArray[np.float64]

LR = 0.5
INPUTS = np.array([1.0, -2.0, 0.5, 3.0])
LABELS = np.array([0, 1, 1, 0])
ONE_HOT = np.eye(2)[LABELS]


def network(params: Params, buffers: Params, inputs: tuple[Tensor, ...], *, train: bool) -> tuple[Tensor, Params]:
    """Logits (v1 u, v2 u)."""
    return inputs[0].unsqueeze(1) * params["v"], buffers


def model(v: Array) -> ModelState:
    """Return the model with parameters v."""
    return ModelState({"v": torch.tensor(v)}, {})


def spec(x: Array, w: Array, bits: int = FULL_PRECISION, weight_decay: float = 0.0) -> ClientSpec:
    """Return a spec in which personal and global network are this one."""
    widths = {"v": bits} if bits < FULL_PRECISION else {}
    return ClientSpec(network, model(x), network, model(w), widths, has_global_network=True, sgd=SGD(weight_decay))


def network_with_bias(
    params: Params, buffers: Params, inputs: tuple[Tensor, ...], *, train: bool
) -> tuple[Tensor, Params]:
    """Logits (v1 u + b1, v2 u + b2)."""
    return inputs[0].unsqueeze(1) * params["v"] + params["b"], buffers


def model_with_bias(v: Array, b: Array) -> ModelState:
    """Return the model with these parameters."""
    return ModelState({"v": torch.tensor(v), "b": torch.tensor(b)}, {})


def ce_gradients_with_bias(v: Array, b: Array) -> tuple[Array, Array]:
    """Gradients of the mean cross-entropy by v and by b."""
    z = np.outer(INPUTS, v) + b
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    return by_v(p - ONE_HOT), np.asarray((p - ONE_HOT).mean(0))


def batch(inputs: Array = INPUTS, labels: NDArray[np.int64] = LABELS) -> Batch:
    """Return samples as a batch."""
    return Batch((torch.tensor(inputs),), torch.tensor(labels))


def clock(t: float = 3.0, phase: Phase = Phase.TRAIN) -> Clock:
    """Return a clock at epoch t with learning rate `LR`."""
    return Clock(0, int(t), phase, t, LR, LR, 0.0)


def probabilities(v: Array, inputs: Array = INPUTS) -> Array:
    """Softmax of the logits, one row per sample."""
    z = np.outer(inputs, v)
    e = np.exp(z - z.max(1, keepdims=True))
    return np.asarray(e / e.sum(1, keepdims=True))


def by_v(by_logits: Array, inputs: Array = INPUTS) -> Array:
    """Turn a gradient by the logits, of each sample's own loss, into the gradient by v of their mean."""
    return np.asarray((by_logits * inputs[:, None]).mean(0))


def ce_gradient(v: Array, inputs: Array = INPUTS, labels: NDArray[np.int64] = LABELS) -> Array:
    """Gradient of the mean cross-entropy by v: each sample's is (p - y) by its logits."""
    return by_v(probabilities(v, inputs) - np.eye(2)[labels], inputs)


def kd_gradient_student(teacher: Array, student: Array) -> Array:
    """Gradient of D_KL(teacher || student) by the student's v: q - p by its logits."""
    return by_v(probabilities(student) - probabilities(teacher))


def kd_gradient_teacher(teacher: Array, student: Array) -> Array:
    """Gradient of D_KL(teacher || student) by the teacher's v: p (log(p/q) - D_KL) by its logits."""
    p, q = probabilities(teacher), probabilities(student)
    log_ratio = np.log(p / q)
    divergence = (p * log_ratio).sum(1, keepdims=True)
    return by_v(p * (log_ratio - divergence))
