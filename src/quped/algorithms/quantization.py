"""The hyperparameters of Algorithm 1, shared by `local`, `qupel` and `quped`."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from quped.errors import check, check_number, is_whole, number
from quped.quant import MAX_BITS, PAPER, Assignment, CenterProx, LinearSchedule


@dataclass(frozen=True)
class Quantization:
    """Hyperparameters of Algorithm 1."""

    eta2: float = 1e-4
    """eta_2, the learning rate of the centers."""
    center_grad_clip: float = 10.0
    """How large an entry of h, the gradient by a center, may be; larger ones are cut. That of the authors' code."""
    center_lr_ratio: float | None = None
    """kappa: if given, the centers of n weights have the learning rate eta_2 = kappa eta_1 / sqrt(n), and h is not cut,
    as for the step size of LSQ (Esser et al., 2020). The paper has no such rule."""
    lam: Mapping[int, LinearSchedule] = field(default_factory=lambda: dict(PAPER))
    """lambda(t) by bit-width, 1 to 8; one that is not listed takes the next lower one, or else the lowest."""
    assignment: Assignment = "sign"
    """How weights are assigned to the two centers of 1 bit: by "sign", as in the authors' code, or to the "nearest", as
    in the paper. By sign, a center that moves outward keeps its weights."""
    sharpness: float = math.inf
    """P of the soft quantizer. Infinite in the paper's experiments: the hard quantizer, with a gradient by x of 0."""
    straight_through: bool = False
    """x takes two half steps: one along grad f(x), one along the gradient at Q_c(x), straight through Q_c.
    The paper has no such step. Not with a finite P."""
    update_centers: bool = True
    """False leaves the centers where they start."""
    center_prox: CenterProx = "linear"
    """The paper's linearised prox of the centers, or the exact one (slower), for which F_lambda never increases."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    def __post_init__(self) -> None:
        """Check the ranges."""
        check(0 <= number(self.eta2) < math.inf, "eta2", "at least 0 and finite", self.eta2)
        check(number(self.center_grad_clip) > 0, "center_grad_clip", "above 0", self.center_grad_clip)
        if self.center_lr_ratio is not None:
            check_number("center_lr_ratio", self.center_lr_ratio, 0)
        check(number(self.sharpness) > 0, "sharpness P", "above 0", self.sharpness)
        for name in ("straight_through", "update_centers"):
            check(isinstance(getattr(self, name), bool), name, "True or False", getattr(self, name))
        check(self.assignment in ("sign", "nearest"), "assignment", "'sign' or 'nearest'", self.assignment)
        finite = self.sharpness < math.inf
        check(not (finite and self.straight_through), "sharpness P", "infinite with straight_through", self.sharpness)
        check(self.center_prox in ("linear", "exact"), "center_prox", "'linear' or 'exact'", self.center_prox)
        some = isinstance(self.lam, Mapping) and len(self.lam) > 0
        some = some and all(is_whole(bits) and 1 <= bits <= MAX_BITS and callable(f) for bits, f in self.lam.items())
        check(
            some,
            "lam",
            "schedules by bit-width, such as {1: LinearSchedule(1e-6, 0.99), 2: LinearSchedule(5e-6)}",
            self.lam,
        )
