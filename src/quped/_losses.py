"""Cross-entropy and knowledge distillation. Reduction, direction, temperature and detachment are explicit."""

from typing import Literal

from torch import Tensor
from torch.nn import functional


def cross_entropy(logits: Tensor, labels: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Return the mean over the batch of -log softmax(logits)[label]: the paper's f.

    With label smoothing e, the target is (1 - e) onehot(label) + e / classes.
    """
    return functional.cross_entropy(logits, labels, label_smoothing=label_smoothing)


Softened = Literal["both", "teacher"]
"""Whose logits the temperature of a distillation divides."""


def distillation(
    teacher: Tensor,
    student: Tensor,
    *,
    trains: Literal["teacher", "student", "both"],
    temperature: float = 1.0,
    softened: Softened = "both",
) -> Tensor:
    """Return D_KL(softmax(teacher / T) || softmax(student / T)) * T^2, summed over classes, mean over the batch.

    The paper's f^KD(x, w) has the global model w as teacher, the *first* argument of the divergence; x is trained
    by the second argument, w by the first. `trains` names the side that gets a gradient; the other is detached.
    T^2 keeps the size of the gradient independent of T; the paper has T = 1.

    With `softened="teacher"` the student's logits are not divided, as in the authors' code:
    D_KL(softmax(teacher / T) || softmax(student)) * T^2.
    """
    if trains == "student":
        teacher = teacher.detach()
    elif trains == "teacher":
        student = student.detach()
    if temperature != 1:
        teacher = teacher / temperature
        student = student / temperature if softened == "both" else student
    log_p, log_q = functional.log_softmax(teacher, dim=-1), functional.log_softmax(student, dim=-1)
    divergence = functional.kl_div(log_q, log_p, reduction="batchmean", log_target=True)
    return divergence if temperature == 1 else divergence * temperature**2
