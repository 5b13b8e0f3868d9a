"""The mathematics of quantization: centers, quantizers, proximal maps, lambda schedules."""

from quped.quant.centers import MAX_BITS, CenterInit, initial_centers
from quped.quant.prox import (
    CenterProx,
    center_rate,
    descend_centers,
    prox_centers,
    prox_centers_exact,
    prox_weights,
    step_centers,
)
from quped.quant.quantizer import (
    Assignment,
    Codebook,
    assign,
    by_centers,
    distance,
    hard,
    nearest,
    objective,
    place,
    quantize,
    soft,
)
from quped.quant.schedules import PAPER, LinearSchedule, schedule_for
from quped.quant.sizes import FULL_PRECISION

__all__ = [
    "FULL_PRECISION",
    "MAX_BITS",
    "PAPER",
    "Assignment",
    "CenterInit",
    "CenterProx",
    "Codebook",
    "LinearSchedule",
    "assign",
    "by_centers",
    "center_rate",
    "descend_centers",
    "distance",
    "hard",
    "initial_centers",
    "nearest",
    "objective",
    "place",
    "prox_centers",
    "prox_centers_exact",
    "prox_weights",
    "quantize",
    "schedule_for",
    "soft",
    "step_centers",
]
