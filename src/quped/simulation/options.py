"""The options of training, written once: `Federation.fit`, the schedule and experiment files use them."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypeVar, cast

from quped.algorithms import SGD
from quped.errors import InvalidValueError, check, check_whole, did_you_mean, number

Function = TypeVar("Function", bound=Callable[..., object])


def _help(text: str) -> Mapping[str, str]:
    return {"help": text}


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """How long and how fast a federation trains."""

    epochs: int = field(default=30, metadata=_help("Passes over the data of an average client."))
    local_steps: int = field(
        default=10,
        metadata=_help("tau, the steps of a client between two communications. The last round may be shorter."),
    )
    batch_size: int | None = field(
        default=None,
        metadata=_help(
            "Samples in a batch; 25 by default. With `steps_per_epoch` and no `batch_size`, each client gets the "
            "batch size at which an epoch is one pass over its own data."
        ),
    )
    steps_per_epoch: int | None = field(
        default=None,
        metadata=_help("Steps of an epoch; by default as many as the average client needs to see its samples once."),
    )
    lr: float = field(default=0.1, metadata=_help("eta_1, the learning rate of the weights."))
    lr_decay: float = field(default=0.99, metadata=_help("Factor on the learning rate per epoch."))
    weight_decay: float = field(default=1e-4, metadata=_help("Weight decay of SGD."))
    momentum: float = field(default=0.0, metadata=_help("Momentum of SGD."))
    finetune_epochs: int | None = field(
        default=None,
        metadata=_help(
            "The last epochs, spent on fine-tuning after hard quantization; by default a sixth of the epochs, at least "
            "the last of several rounds, and none if no client is quantized."
        ),
    )
    clients_per_round: int | None = field(
        default=None, metadata=_help("K, the clients sampled for each round; by default all take part.")
    )
    evaluate_every: int = field(
        default=1, metadata=_help("Epochs between two evaluations. The last round is always evaluated.")
    )
    evaluate_clients: int | None = field(
        default=None,
        metadata=_help(
            "Clients whose models are evaluated, drawn once from the seed among those with test samples; by default "
            "all. With many clients, an evaluation of all takes longer than many rounds."
        ),
    )
    bad_updates: Literal["stop", "skip"] = field(
        default="stop",
        metadata=_help(
            "If a client's round gives NaN, infinity or tensors of another form: stop the run, or skip the client in "
            "this round, with a warning."
        ),
    )
    max_update_norm: float | None = field(
        default=None,
        metadata=_help(
            "How far a client may move what is averaged in a round, as the Euclidean norm of all its numbers: a longer "
            "update is shortened to it. By default there is no bound."
        ),
    )
    own_classes: bool = field(
        default=False,
        metadata=_help(
            "Deployed models choose among the classes in their client's training data only. Their last layer needs a "
            "bias, which then says so in every file and export."
        ),
    )
    compile: bool = field(
        default=False,
        metadata=_help(
            "Compile the steps of clients, which takes 10 to 60 seconds for each network and stage of a method, and is "
            "kept for later runs. Results differ from those of plain steps in the last bits."
        ),
    )
    schedule_epochs: int | None = field(
        default=None,
        metadata=_help(
            "Epochs of the schedules of learning rate and lambda; by default `epochs`. A shortened run passes through "
            "the whole schedule of the longer one that it stands for."
        ),
    )

    def __post_init__(self) -> None:
        if mistakes := find_mistakes(vars(self)):
            raise InvalidValueError(" ".join(mistakes.values()))

    @property
    def sgd(self) -> SGD:
        """The optimizer of the weights."""
        return SGD(self.weight_decay, self.momentum)


def _positive(name: str, value: object) -> None:
    check(0 < number(value) < math.inf, name, "above 0 and finite", value)


MOST = 10**9
"""No run is longer; larger numbers cannot all be divided."""


def _whole(low: int) -> Callable[[str, object], None]:
    def rule(name: str, value: object) -> None:
        check_whole(name, value, low)
        check(number(value) <= MOST, name, f"at most {MOST:,}", value)

    return rule


RULES: Mapping[str, Callable[[str, object], object]] = {
    "epochs": _whole(1),
    "local_steps": _whole(1),
    "batch_size": _whole(1),
    "steps_per_epoch": _whole(1),
    "lr": _positive,
    "lr_decay": lambda name, value: check(0 < number(value) <= 1, name, "above 0 and at most 1", value),
    "weight_decay": lambda name, value: SGD(weight_decay=cast(float, value)),
    "momentum": lambda name, value: SGD(momentum=cast(float, value)),
    "finetune_epochs": _whole(0),
    "clients_per_round": _whole(1),
    "evaluate_every": _whole(1),
    "evaluate_clients": _whole(1),
    "bad_updates": lambda name, value: check(value in ("stop", "skip"), name, "'stop' or 'skip'", value),
    "max_update_norm": _positive,
    "own_classes": lambda name, value: check(isinstance(value, bool), name, "True or False", value),
    "compile": lambda name, value: check(isinstance(value, bool), name, "True or False", value),
    "schedule_epochs": _whole(1),
}
"""What each option may be."""

OPTIONAL = {option.name for option in fields(TrainingOptions) if option.default is None}


def find_mistakes(values: Mapping[str, object]) -> dict[str, str]:
    """Return, for each option that is unknown or has a wrong value, what is wrong."""
    mistakes = {}
    for name, value in values.items():
        if name not in RULES:
            mistakes[name] = f"There is no training option '{name}'. {did_you_mean(name, RULES)}"
        elif value is not None or name not in OPTIONAL:
            try:
                RULES[name](name, value)
            except InvalidValueError as error:
                mistakes[name] = str(error)
    if not mistakes and (finetune := values.get("finetune_epochs")) is not None:
        try:
            check_whole("finetune_epochs", finetune, 0, float(number(values.get("epochs", TrainingOptions.epochs))))
        except InvalidValueError as error:
            mistakes["finetune_epochs"] = str(error)
    return mistakes


def training_options(options: TrainingOptions | None, changes: Mapping[str, Any]) -> TrainingOptions:
    """Return options with changes by name."""
    check(options is None or isinstance(options, TrainingOptions), "options", "a TrainingOptions(...)", options)
    given = {} if options is None else vars(options)
    if unknown := [name for name in changes if name not in RULES]:
        raise InvalidValueError(" ".join(find_mistakes(dict.fromkeys(unknown)).values()))
    return TrainingOptions(**{**given, **changes})


def documented(function: Function) -> Function:
    """List the training options in the docstring of a function that takes them by name."""
    lines = []
    for option in fields(TrainingOptions):
        kind = option.type if isinstance(option.type, str) else getattr(option.type, "__name__", str(option.type))
        lines.append(f"    {option.name}: {kind} = {option.default!r}\n        {option.metadata['help']}")
    function.__doc__ = f"{(function.__doc__ or '').rstrip()}\n\n        Training options:\n" + "\n".join(
        "        " + line.replace("\n", "\n        ") for line in lines
    )
    return function
