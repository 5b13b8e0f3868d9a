"""Cross-entropy and distillation: values and gradients against NumPy."""

from typing import Literal

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from quped._losses import Softened, cross_entropy, distillation

Array = NDArray[np.float64]
Side = Literal["teacher", "student", "both"]
SIDES: list[Side] = ["teacher", "student", "both"]
WHOSE: list[Softened] = ["both", "teacher"]


def log_softmax(logits: Array) -> Array:
    """Return the logarithms of the probabilities, row by row."""
    shifted = logits - logits.max(1, keepdims=True)
    out: Array = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    return out


def divergence(teacher: Array, student: Array, temperature: float = 1.0) -> float:
    """Return the mean over rows of the sum over classes of p log(p / q), with p the teacher's, times T^2."""
    log_p, log_q = log_softmax(teacher / temperature), log_softmax(student / temperature)
    return float((np.exp(log_p) * (log_p - log_q)).sum(1).mean() * temperature**2)


def logits(seed: int, batch: int = 6, classes: int = 5) -> tuple[Array, Array]:
    """Draw the logits of a teacher and of a student."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(batch, classes)) * 2, rng.normal(size=(batch, classes)) * 2


def gradients(teacher: Array, student: Array, trains: Side, temperature: float = 1.0) -> tuple[Array, Array]:
    """Return the gradients of the package's distillation loss by the teacher's and by the student's logits."""

    def f(t: Tensor, s: Tensor) -> Tensor:
        return distillation(t, s, trains=trains, temperature=temperature)

    by_t, by_s = torch.func.grad(f, argnums=(0, 1))(torch.from_numpy(teacher), torch.from_numpy(student))
    return by_t.numpy(), by_s.numpy()


def test_cross_entropy_is_the_mean_over_the_batch() -> None:
    """-log softmax at the label, averaged."""
    z, _ = logits(0)
    labels = np.array([0, 4, 2, 2, 1, 3])
    expected = -log_softmax(z)[np.arange(6), labels].mean()
    found = cross_entropy(torch.from_numpy(z), torch.from_numpy(labels))
    assert found.item() == pytest.approx(expected, rel=1e-13)


def test_label_smoothing_mixes_the_label_with_all_classes() -> None:
    """The target is (1 - e) onehot + e / classes; e = 0 is the plain loss, bit for bit."""
    z, _ = logits(0)
    labels = np.array([0, 4, 2, 2, 1, 3])
    target = 0.7 * np.eye(5)[labels] + 0.3 / 5
    expected = -(target * log_softmax(z)).sum(1).mean()
    found = cross_entropy(torch.from_numpy(z), torch.from_numpy(labels), label_smoothing=0.3)
    assert found.item() == pytest.approx(expected, rel=1e-13)
    plain = cross_entropy(torch.from_numpy(z), torch.from_numpy(labels))
    assert torch.equal(plain, cross_entropy(torch.from_numpy(z), torch.from_numpy(labels), label_smoothing=0.0))


def test_label_smoothing_is_distillation_from_a_uniform_teacher() -> None:
    """Up to the teacher's entropy: (1 - e) f + e D_KL(uniform || student) = smoothed f - e log(classes)."""
    _, student = (torch.from_numpy(z) for z in logits(0))
    labels = torch.tensor([0, 4, 2, 2, 1, 3])
    kd = distillation(torch.zeros_like(student), student, trains="student")
    mixed = 0.75 * cross_entropy(student, labels) + 0.25 * kd
    smoothed = cross_entropy(student, labels, label_smoothing=0.25)
    assert mixed.item() == pytest.approx(smoothed.item() - 0.25 * np.log(5), rel=1e-13)


def test_cross_entropy_by_hand() -> None:
    """Probabilities 1/4 and 3/4 for the labels: the mean of ln 4 and ln 4/3."""
    z = torch.tensor([[0.0, np.log(3)], [0.0, np.log(3)]], dtype=torch.float64)
    found = cross_entropy(z, torch.tensor([0, 1]))
    assert found.item() == pytest.approx((np.log(4) + np.log(4 / 3)) / 2, rel=1e-14)


@pytest.mark.parametrize("temperature", [1.0, 3.0])
@pytest.mark.parametrize("trains", SIDES)
def test_distillation_is_the_divergence_from_teacher_to_student(trains: Side, temperature: float) -> None:
    """The value is D_KL(teacher || student) T^2 whichever side is trained."""
    teacher, student = logits(1)
    found = distillation(torch.from_numpy(teacher), torch.from_numpy(student), trains=trains, temperature=temperature)
    assert found.item() == pytest.approx(divergence(teacher, student, temperature), rel=1e-13)


def test_distillation_with_a_softened_teacher_only() -> None:
    """The authors' form: D_KL(s(teacher / T) || s(student)) T^2; at T = 1 it is the usual one, bit for bit."""
    teacher, student = logits(1)
    log_p, log_q = log_softmax(teacher / 3), log_softmax(student)
    expected = (np.exp(log_p) * (log_p - log_q)).sum(1).mean() * 9
    z = torch.from_numpy(teacher), torch.from_numpy(student)
    found = distillation(*z, trains="student", temperature=3.0, softened="teacher")
    assert found.item() == pytest.approx(expected, rel=1e-13)
    usual, other = (distillation(*z, trains="both", softened=side) for side in WHOSE)
    assert torch.equal(usual, other)


def test_distillation_by_hand() -> None:
    """Teacher (3/4, 1/4) and student (1/2, 1/2): 3/4 ln 3/2 + 1/4 ln 1/2."""
    teacher = torch.tensor([[np.log(3), 0.0]], dtype=torch.float64)
    student = torch.zeros((1, 2), dtype=torch.float64)
    expected = 0.75 * np.log(1.5) + 0.25 * np.log(0.5)
    assert distillation(teacher, student, trains="student").item() == pytest.approx(expected, rel=1e-14)
    # The other way round: 1/2 ln 2/3 + 1/2 ln 2.
    backward = 0.5 * np.log(2 / 3) + 0.5 * np.log(2)
    assert distillation(student, teacher, trains="student").item() == pytest.approx(backward, rel=1e-14)
    assert abs(expected - backward) > 0.01


@pytest.mark.parametrize("temperature", [1.0, 3.0])
@pytest.mark.parametrize("seed", range(5))
def test_distillation_is_zero_for_equals_and_positive_otherwise(seed: int, temperature: float) -> None:
    """A divergence: 0 for equal predictions, even if their logits differ by a constant, and above 0 for others."""
    teacher, student = (torch.from_numpy(z) for z in logits(seed))
    shifted = teacher + 4.0
    equal = distillation(teacher, shifted, trains="both", temperature=temperature).item()
    assert equal == pytest.approx(0, abs=1e-14)
    assert distillation(teacher, student, trains="both", temperature=temperature).item() > 0.1


def test_distillation_sums_over_classes() -> None:
    """It is not divided by the number of classes: classes that nobody predicts change nothing."""
    teacher, student = logits(2)
    never = np.full((6, 20), -100.0)
    wide = distillation(
        torch.from_numpy(np.hstack([teacher, never])), torch.from_numpy(np.hstack([student, never])), trains="both"
    )
    assert wide.item() == pytest.approx(divergence(teacher, student), rel=1e-12)


def test_distillation_is_a_mean_over_the_batch() -> None:
    """Seeing every sample twice changes nothing."""
    teacher, student = logits(3)
    twice = distillation(
        torch.from_numpy(np.vstack([teacher, teacher])), torch.from_numpy(np.vstack([student, student])), trains="both"
    )
    assert twice.item() == pytest.approx(divergence(teacher, student), rel=1e-13)


@pytest.mark.parametrize("temperature", [1.0, 3.0])
@pytest.mark.parametrize("trains", ["student", "both"])
def test_gradient_by_the_student(trains: Side, temperature: float) -> None:
    """It is T (softmax(student / T) - softmax(teacher / T)) / B; without T at T = 1."""
    teacher, student = logits(4)
    q, p = (np.exp(log_softmax(z / temperature)) for z in (student, teacher))
    _, found = gradients(teacher, student, trains, temperature)
    np.testing.assert_allclose(found, temperature * (q - p) / 6, rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize("temperature", [1.0, 3.0])
@pytest.mark.parametrize("trains", ["teacher", "both"])
def test_gradient_by_the_teacher(trains: Side, temperature: float) -> None:
    """It is T p (log(p / q) - KL) / B, with KL that of the row; without T at T = 1."""
    teacher, student = logits(5)
    log_p, log_q = log_softmax(teacher / temperature), log_softmax(student / temperature)
    p = np.exp(log_p)
    kl = (p * (log_p - log_q)).sum(1, keepdims=True)
    found, _ = gradients(teacher, student, trains, temperature)
    np.testing.assert_allclose(found, temperature * p * (log_p - log_q - kl) / 6, rtol=1e-11, atol=1e-14)


def test_the_other_side_gets_no_gradient() -> None:
    """Training one side leaves the other as it is."""
    teacher, student = logits(6)
    by_teacher, by_student = gradients(teacher, student, "student")
    assert (by_teacher == 0).all()
    assert (by_student != 0).all()
    by_teacher, by_student = gradients(teacher, student, "teacher")
    assert (by_teacher != 0).all()
    assert (by_student == 0).all()


def test_extreme_logits_stay_finite() -> None:
    """A probability that underflows to 0 gives a large loss, not NaN; its value is the gap of the logits."""
    teacher, student = np.array([[1000.0, 0.0]]), np.array([[0.0, 1000.0]])
    found = distillation(torch.from_numpy(teacher), torch.from_numpy(student), trains="both")
    assert found.item() == pytest.approx(1000.0, rel=1e-14)
    for part in gradients(teacher, student, "both"):
        assert np.isfinite(part).all()
