"""What an experiment file may say. A file is validated whole, and every mistake is reported at once."""

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    PlainValidator,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError
from torch import nn

from quped.algorithms import ALGORITHMS, AnyAlgorithm
from quped.data.datasets import dataset_name
from quped.data.image_folders import Color
from quped.data.partition import parsed
from quped.errors import InvalidValueError, did_you_mean
from quped.models import build
from quped.quant import MAX_BITS, CenterInit
from quped.records import DEFAULT_ALGORITHM
from quped.simulation import TrainingOptions
from quped.simulation.bits import BITS
from quped.simulation.budget import parse_bytes
from quped.simulation.options import MOST, find_mistakes


def known_bits(bits: int) -> int:
    """Accept a bit-width that a client can have."""
    if bits not in BITS:
        raise ValueError("must be one of 1..8 or 32")
    return bits


def known_bytes(size: int | str) -> int | str:
    """Accept a number of bytes."""
    parse_bytes(size, "budget")
    return size


def known_partition(scheme: str) -> str:
    """Accept a way to share out samples."""
    parsed(scheme)
    return scheme


MOST_CLIENTS = 100_000
MOST_WEIGHTS = 10**9
"""Of a perceptron: 4 GB."""


def affordable(hidden: tuple[int, ...]) -> tuple[int, ...]:
    """Accept hidden layers that fit into memory, before they are made."""
    if sum(a * b for a, b in pairwise(hidden)) > MOST_WEIGHTS:
        raise ValueError(f"these layers have more than {MOST_WEIGHTS:,} weights")
    return hidden


def countable(groups: tuple["Group", ...]) -> tuple["Group", ...]:
    """Accept groups that are not too many clients together."""
    if sum(group.count or 0 for group in groups) > MOST_CLIENTS:
        raise ValueError(f"these are more than {MOST_CLIENTS:,} clients")
    return groups


Whole = Annotated[int, Field(strict=True)]
Number = Annotated[float, Field(strict=True)]
"""Strict: "2" is not 2, and true is not 1."""


def mistake(
    kind: str, text: str, context: dict[str, Any], place: tuple[int | str, ...], got: object
) -> InitErrorDetails:
    """Return a mistake as pydantic takes it."""
    return InitErrorDetails(type=PydanticCustomError(kind, text, context), loc=place, input=got)


class Section(BaseModel):
    """A table of the file; what it does not know is a mistake."""

    model_config = ConfigDict(frozen=True)

    @model_validator(mode="wrap")
    @classmethod
    def known_keys(cls, values: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """Refuse keys that are not known, and say which are, beside the mistakes in those that are."""
        mistakes = [
            mistake("unknown_key", f"is not known. {did_you_mean(key, cls.model_fields)}", {}, (key,), value)
            for key, value in (values.items() if isinstance(values, dict) else ())
            if key not in cls.model_fields
        ]
        try:
            made = handler(values)
        except ValidationError as error:
            if not mistakes:
                raise
            mistakes += [mistake(e["type"], e["msg"], e.get("ctx", {}), e["loc"], e["input"]) for e in error.errors()]
        if mistakes:
            raise ValidationError.from_exception_data(cls.__name__, mistakes)
        return made


Where = Literal["test", "validation"]
"""`validation`: a client's own validation samples, or else a fifth of its training samples, which are then not trained
on."""
Side = Annotated[Whole, Field(ge=1, le=10_000)]


class Data(Section):
    """The data set, and who gets what."""

    name: Annotated[str, AfterValidator(dataset_name)]
    partition: Annotated[str, AfterValidator(known_partition)]
    """Who gets what: `classes=N`, `dirichlet=ALPHA`, `writers=N`, `people=N` or `iid`."""
    evaluate_on: Where = "test"


class OwnData(Section):
    """A user's own samples, of clients with names."""

    evaluate_on: Where = "test"


class ModuleData(OwnData):
    """What a function of a user's own returns."""

    module: str = Field(pattern=r"\.py:[A-Za-z_]\w*$")
    """A file and a function in it, FILE.py:FUNCTION."""


class TableData(OwnData):
    """CSV files: a row is a sample."""

    label: str = "label"
    by: str | None = None
    split: str | None = None
    columns: Annotated[tuple[str, ...], Field(min_length=1)] | None = None


class CSVData(TableData):
    """One CSV file."""

    csv: str
    by: str


class FolderData(TableData):
    """A folder of CSV files, or of images in CLIENT/CLASS/FILE."""

    folder: str
    size: Side | tuple[Side, Side] | None = None
    color: Color | None = None


DATA_KINDS: Mapping[str, type[Data | OwnData]] = {
    "name": Data,
    "module": ModuleData,
    "csv": CSVData,
    "folder": FolderData,
}
"""The kinds of data by the key that each one must have."""

PATHS = ("module", "csv", "folder")
"""Keys of data that name a file: from the folder of the experiment file."""


def read_data(values: object) -> Data | OwnData:
    """Make the data section of a table: its keys say what kind it is."""
    if isinstance(values, Data | OwnData):
        return values
    keys = [key for key in DATA_KINDS if isinstance(values, dict) and key in values]
    if len(keys) != 1 and isinstance(values, dict):
        raise ValueError(f"must have one of the keys {', '.join(DATA_KINDS)}")
    return DATA_KINDS[keys[0] if keys else "name"].model_validate(values)


AnyData = Annotated[Data | ModuleData | CSVData | FolderData, BeforeValidator(read_data)]


class NetworkSection(Section):
    """A network of this package, with its options."""

    name: str

    def build(self, input_shape: Sequence[int], classes: int) -> nn.Module:
        """Make the network."""
        return build(self.name, input_shape, classes, **self.model_dump(exclude={"name"}))


class CNN(NetworkSection):
    """The paper's CNN1 and CNN2."""

    name: Literal["cnn1", "cnn2"]
    width: Number = Field(default=1.0, gt=0, le=100)


class MLP(NetworkSection):
    """A multi-layer perceptron."""

    name: Literal["mlp"]
    hidden: Annotated[tuple[Annotated[Whole, Field(ge=1, le=100_000)], ...], AfterValidator(affordable)] = (
        128,
        64,
    )


class CNN1D(NetworkSection):
    """A network for signals."""

    name: Literal["cnn1d"]
    width: Number = Field(default=1.0, gt=0, le=100)


class ResNet(NetworkSection):
    """A ResNet for 32x32 images."""

    name: Literal["resnet8", "resnet20", "resnet32"]


class Text(NetworkSection):
    """The EmbeddingBag classifier for texts."""

    name: Literal["text"]
    dim: Whole = Field(default=64, ge=1, le=100_000)


def named(value: object) -> object:
    """Let a plain name stand for a network with default options."""
    return {"name": value} if isinstance(value, str) else value


NetworkChoice = Annotated[
    CNN | CNN1D | MLP | ResNet | Text,
    Field(discriminator="name"),
    BeforeValidator(named),
]


Width = Annotated[Whole, AfterValidator(known_bits)]
ONE_WIDTH, WIDTHS = TypeAdapter(Width), TypeAdapter(dict[str, Width])


def read_bits(value: object) -> int | dict[str, int]:
    """Accept the bits of all quantized parameters, or a table with the bits of each."""
    return WIDTHS.validate_python(value) if isinstance(value, dict) else ONE_WIDTH.validate_python(value)


class Group(Section):
    """Clients with the same network and bit-width."""

    name: str = Field(default="client", pattern=r"^[A-Za-z][A-Za-z0-9_]*$")
    """The kind of device: its clients are called NAME-0, NAME-1, ..."""
    count: Annotated[Whole, Field(ge=1, le=MOST_CLIENTS)] | None = None
    members: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    """Of a user's own clients: names, or patterns such as `phone-*`."""
    model: NetworkChoice
    bits: Annotated[int | dict[str, int], PlainValidator(read_bits)] = 32
    quantize: tuple[str, ...] | None = None
    end_bits: Annotated[Whole, Field(ge=1, le=MAX_BITS)] | None = None
    budget: Annotated[Whole | str, AfterValidator(known_bytes)] | None = None
    per_channel: bool = False
    init_centers: CenterInit = "range"


def read_training(values: object) -> object:
    """Make the training options of a table; report every mistake at its own option."""
    if not isinstance(values, dict):
        return values
    if mistakes := find_mistakes(values):
        lines = [mistake("option", text, {}, (name,), values[name]) for name, text in mistakes.items()]
        raise ValidationError.from_exception_data("training", lines)
    return TrainingOptions(**values)


@cache  # to build one takes ten times as long as to use it
def validator(name: str) -> TypeAdapter[AnyAlgorithm]:
    """Return the validator of an algorithm's hyperparameters."""
    return TypeAdapter(ALGORITHMS[name])


def build_algorithm(options: Mapping[str, Any]) -> AnyAlgorithm:
    """Make an algorithm from its table: `name`, and hyperparameters by their names."""
    name = options.get("name", DEFAULT_ALGORITHM)
    kind = ALGORITHMS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise InvalidValueError(f"name {name!r} is no algorithm. {did_you_mean(str(name), ALGORITHMS)}")
    hyper = {k: v for k, v in options.items() if k != "name"}
    names = [f.name for f in fields(kind)]
    if unknown := [key for key in hyper if key not in names]:
        raise InvalidValueError(
            " ".join(f"{name} has no hyperparameter '{u}'. {did_you_mean(u, names)}" for u in unknown)
        )
    algorithm: AnyAlgorithm = validator(name).validate_python(hyper)
    return algorithm


def accepted(check: Callable[[dict[str, Any]], object], values: dict[str, Any]) -> dict[str, Any]:
    """Return options as they are written, once something could be made of them."""
    check(values)
    return values


AlgorithmOptions = Annotated[dict[str, Any], AfterValidator(partial(accepted, build_algorithm))]
"""`name`, and hyperparameters by their names."""
TrainingChanges = Annotated[dict[str, Any], AfterValidator(partial(accepted, read_training))]


class Peer(Section):
    """An algorithm to compare with, and what differs in its training."""

    algorithm: AlgorithmOptions
    training: TrainingChanges = {}

    def trained(self, training: TrainingOptions) -> TrainingOptions:
        """Return the experiment's training with this peer's changes."""
        return replace(training, **self.training)


class Method(NamedTuple):
    """One algorithm of an experiment, ready to run."""

    algorithm: AnyAlgorithm
    options: dict[str, Any]
    """As the experiment has them."""
    training: TrainingOptions

    def config(self) -> dict[str, Any]:
        """Return what the file of an experiment with this method alone would say of it."""
        return {"algorithm": self.options, "training": asdict(self.training)}


def check_groups(groups: tuple[Group, ...], info: ValidationInfo) -> tuple[Group, ...]:
    """Refuse groups that do not fit the data: a data set is shared out by count, own clients have names."""
    data = info.data.get("data")
    if not groups and not isinstance(data, ModuleData):
        raise PydanticCustomError("missing", "is missing")
    found = []
    for i, group in enumerate(groups):
        if isinstance(data, Data) and group.members is not None:
            found.append(mistake("group", "is for clients of your own data", {}, (i, "members"), group.members))
        if isinstance(data, Data) and group.count is None:
            found.append(mistake("missing", "is missing", {}, (i, "count"), None))
        if isinstance(data, OwnData) and group.name != "client":
            found.append(mistake("group", "is not for your own clients, which have names", {}, (i, "name"), group.name))
        if group.members is not None and group.count is not None:
            found.append(mistake("group", "must be left out beside members", {}, (i, "count"), group.count))
    if found:
        raise ValidationError.from_exception_data("clients", found)
    return groups


class Newcomers(Section):
    """The last clients take no part in the run. After it, each learns alone, from the global model if there is one."""

    count: Whole = Field(ge=1, le=MOST_CLIENTS)
    samples: Whole = Field(ge=1)
    """Training samples of each, drawn from all that the client has."""
    epochs: Whole = Field(ge=1, le=MOST)
    """Of learning alone."""


class Experiment(Section):
    """A whole experiment file."""

    description: str = ""
    data: AnyData
    clients: Annotated[tuple[Group, ...], AfterValidator(countable), AfterValidator(check_groups)] = Field(
        default=(), max_length=1000, validate_default=True
    )
    global_model: NetworkChoice | None = None
    training: Annotated[TrainingOptions, BeforeValidator(read_training)] = TrainingOptions()
    algorithm: AlgorithmOptions = {"name": DEFAULT_ALGORITHM}
    compare: tuple[Peer, ...] = ()
    """Further algorithms, run on the same clients beside the first one."""
    newcomers: Newcomers | None = None

    @property
    def global_network(self) -> CNN | CNN1D | MLP | ResNet | Text | None:
        """The network of the global model: that of the first group unless the file names one, if there is a group."""
        return self.global_model or (self.clients[0].model if self.clients else None)

    @property
    def methods(self) -> list[Method]:
        """The algorithm, then those it is compared with."""
        first = Method(build_algorithm(self.algorithm), self.algorithm, self.training)
        return [
            first,
            *(Method(build_algorithm(p.algorithm), p.algorithm, p.trained(self.training)) for p in self.compare),
        ]


def load(path: Path, changes: Sequence[str] = ()) -> Experiment:
    """Read an experiment file, apply `key=value` changes, and validate the whole."""
    return validate(read_values(path, changes), path.name)


def read_values(path: Path, changes: Sequence[str] = ()) -> dict[str, Any]:
    """Return what an experiment file says, after `key=value` changes, with whole paths to data."""
    values = read_toml(path)
    for change in changes:
        apply(values, change)
    if isinstance(data := values.get("data"), dict):
        data |= {key: str(path.parent.resolve() / data[key]) for key in PATHS if isinstance(data.get(key), str)}
    return values


def read_toml(path: Path) -> dict[str, Any]:
    """Return the content of a file that a person wrote."""
    try:
        return parse_toml(path.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidValueError(f"The file {path} cannot be read: {error}.") from error
    except (ValueError, RecursionError) as error:  # also of numbers with thousands of digits
        raise InvalidValueError(f"{path.name} is not valid TOML: {error}.") from error


def parse_toml(text: str) -> dict[str, Any]:
    """Return the content of a text. A ValueError also tells of numbers with more digits than Python can show."""
    values = tomllib.loads(text)
    repr(values)  # decimal ones are refused above, hexadecimal ones are not
    return values


def validate(values: dict[str, Any], name: str) -> Experiment:
    """Return the experiment, or report every mistake in it."""
    try:
        return Experiment.model_validate(values)
    except ValidationError as error:
        mistakes = describe(error)
    count = "a mistake" if len(mistakes) == 1 else f"{len(mistakes)} mistakes"
    raise InvalidValueError("\n  ".join([f"{name} has {count}:", *mistakes]))


def describe(error: ValidationError) -> list[str]:
    """Return one line for each mistake: where, what, and the value found."""
    lines = []
    for item in error.errors():
        place = ""
        for part in item["loc"]:
            place += f"[{part}]" if isinstance(part, int) else f".{part}" if place else str(part)
        text = item["msg"].removeprefix("Value error, ")
        match item["type"]:
            case "unexpected_keyword_argument":
                text = "is not known."
            case "union_tag_invalid":
                text = f"must be one of {item['ctx']['expected_tags']}"
            case "missing":
                text = "is missing"
        shown = repr(item["input"])
        told = (
            item["type"] == "missing"
            or "is not known." in text
            or "Known: " in text
            or len(shown) > 60
            or shown in text
        )
        found = "" if told else f" (got {shown})"
        lines.append(f"{place}: {text}{found}")
    return lines


def apply(values: dict[str, Any], change: str) -> None:
    """Apply one `key=value`, the key with dots and `[i]`, the value in TOML or a bare word."""
    key, equals, text = change.partition("=")
    parts = [part for piece in key.strip().split(".") for part in piece.replace("]", "").split("[")]
    if not equals or not all(parts):
        raise InvalidValueError(
            f"--set takes KEY=VALUE, such as training.epochs=5 or clients[0].bits=1, got {change!r}."
        )
    try:
        value: Any = parse_toml(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        value = text.strip()
    here: Any = values
    try:
        for part in parts[:-1]:
            if isinstance(here, dict) and isinstance(here.get(part), str):
                here[part] = named(here[part])  # a network by its name alone
            here = here[int(part)] if isinstance(here, list) else here.setdefault(part, {})
        if isinstance(here, list):
            here[int(parts[-1])] = value
        else:
            here[parts[-1]] = value
    except (ValueError, IndexError, TypeError, AttributeError) as error:
        raise InvalidValueError(f"--set {change}: there is nothing at '{key.strip()}' to set.") from error
