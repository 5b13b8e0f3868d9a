"""What comes out of a federation."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from quped._evaluate import Evaluation, Score, over_clients
from quped._extras import extra
from quped.algorithms import Deployed
from quped.data import Samples
from quped.errors import InvalidValueError, did_you_mean
from quped.export import SUFFIX, PackedModel, from_bytes, to_bytes, write_file
from quped.export.formats import FORMATS, Source
from quped.models import FunctionalNetwork
from quped.records import plain, versions
from quped.typing import ModelState

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True)
class ClientResult:
    """What came out for one client."""

    name: str
    network: str
    bits: dict[str, int]
    """Bits per weight of each quantized parameter; empty in full precision."""
    samples: int
    """Training samples."""
    test_samples: int
    """Test samples; 0 without any."""
    accuracy: float | None
    """On the client's test samples; None without any."""
    parameters: int
    bytes_file: int
    """Size of the model's file."""
    bytes_packed: int
    """Size of the numbers in it without names, shapes and compression: packed indices, and all others in float32."""
    bytes_float32: int
    """Size of the same model in float32."""
    classes: list[int] = field(default_factory=list)
    """Training samples of each class."""
    rounds: int = 0
    """In which it took part."""


@dataclass(frozen=True)
class FitResult:
    """The result of `Federation.fit`."""

    algorithm: str
    seed: int
    epochs: int
    rounds: int
    """Rounds that were run: fewer than scheduled if a callback ended the run."""
    seconds: float
    curve: list[Evaluation] = field(repr=False)
    """One point per evaluation. The last one, after the last round, is the result."""
    describe: Callable[[str], ClientResult] = field(repr=False)
    """Returns what came out for a client: see `clients`."""
    models: Mapping[str, Deployed] = field(repr=False)
    """Each client's deployed tensors, with the codebooks of the quantized ones; made when they are asked for."""
    files: Mapping[str, bytes] = field(repr=False)
    """Each client's model as its packed file, which is made when it is asked for."""
    networks: Mapping[str, FunctionalNetwork] = field(repr=False)
    samples: Mapping[str, Samples] = field(repr=False)
    """Each client's test samples, or its training samples if it has no others: exports are verified on them."""
    global_model: ModelState | None = field(repr=False)
    """The tensors of the global model w; None for methods without."""
    score_global: Callable[[], Score | None] = field(repr=False)
    """Returns how well w does: see `global_accuracy`."""
    global_network: FunctionalNetwork = field(repr=False)
    options: dict[str, Any] = field(repr=False)
    """The method's `hyperparameters`, and the `training`: the options, and what follows from them.
    A `batch_size` of None: clients have their own."""
    sent: dict[str, int] = field(repr=False, default_factory=dict)
    """Bytes for one client in one round, uncompressed: `to_server` and `to_client`."""

    @cached_property
    def clients(self) -> list[ClientResult]:
        """What came out for each client; measured when it is first asked for."""
        return [self.describe(name) for name in self.models]

    @cached_property
    def _global_score(self) -> Score | None:
        return self.score_global()

    @property
    def global_accuracy(self) -> float | None:
        """Accuracy of w on the clients' own test samples, mean over clients: whether there was something to learn from.
        None for methods without w. Measured when it is first asked for."""
        return None if self._global_score is None else self._global_score.accuracy

    @property
    def global_accuracy_own_classes(self) -> float | None:
        """The same if w may only choose among the classes in each client's training data: what a method gains that does
        nothing but know them."""
        return None if self._global_score is None else self._global_score.own_classes

    @property
    def accuracy(self) -> dict[str, float]:
        """Test accuracy of each client's deployed model after the last round."""
        return self.curve[-1].accuracy

    @property
    def accuracy_own_classes(self) -> dict[str, float]:
        """The same if a model may only choose among the classes in its client's training data."""
        return self.curve[-1].accuracy_own_classes

    def module(self, client: str) -> nn.Module:
        """Return a client's model as an ordinary module in evaluation mode, with hard-quantized weights."""
        self._check_known(client)
        return self.networks[client].module(self.models[client].state)

    def packed(self, client: str) -> PackedModel:
        """Return a client's model as its file holds it."""
        self._check_known(client)
        return from_bytes(self.files[client], client)

    def save(self, client: str, path: Path | str, *, float16: bool = False) -> None:
        """Write a client's model to a packed file, which `quped.load` reads; `float16` rounds unquantized numbers."""
        model = self.packed(client)
        write_file(path, to_bytes(model, float16=True) if float16 else self.files[client])

    def save_all(self, folder: Path | str, *, float16: bool = False) -> None:
        """Write every client's model to `FOLDER/NAME.quped`."""
        if bad := [client for client in self.models if Path(client).name != client]:
            raise InvalidValueError(f"'{bad[0]}' cannot name a file: save this client with save(client, path).")
        for client in self.models:
            self.save(client, Path(folder) / f"{client}{SUFFIX}", float16=float16)

    def export_onnx(self, client: str, path: Path | str) -> str:
        """Write a client's model to an ONNX file; return how it was verified. This needs `quped[onnx]`."""
        return FORMATS["onnx"].write(self._source(client), Path(path), False)

    def export_c(self, client: str, path: Path | str) -> str:
        """Write a client's model to a C file, if its network is a chain of plain layers; return how it was verified."""
        return FORMATS["c"].write(self._source(client), Path(path), False)

    def export_html(self, client: str, path: Path | str, class_names: Sequence[str] = ()) -> str:
        """Write a client's model to a page that runs it, as for `export_c`; return how it was verified."""
        return FORMATS["html"].write(self._source(client, class_names), Path(path), False)

    def global_module(self) -> nn.Module:
        """Return the global model as an ordinary module in evaluation mode: a start for clients that join later."""
        if self.global_model is None:
            raise InvalidValueError(f"The method {self.algorithm} leaves no global model to use.")
        return self.global_network.module(self.global_model)

    def to_frame(self) -> "DataFrame":
        """Return a table with one row per client and evaluation. This needs `quped[pandas]`."""
        with extra("pandas"):
            import pandas
        whole = ("round", "epoch", "phase", "loss", "seconds")
        return pandas.DataFrame(
            {
                **{field: getattr(point, field) for field in whole},
                "client": client,
                "accuracy": accuracy,
                "accuracy_own_classes": point.accuracy_own_classes.get(client),
            }
            for point in self.curve
            for client, accuracy in point.accuracy.items()
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain values, as `result.json` holds them."""
        result = {
            "format": FORMAT,
            "algorithm": self.algorithm,
            "seed": self.seed,
            "accuracy": over_clients(self.accuracy),
            "accuracy_own_classes": over_clients(self.accuracy_own_classes),
            "global_accuracy": self.global_accuracy,
            "global_accuracy_own_classes": self.global_accuracy_own_classes,
            "clients": [asdict(client) for client in self.clients],
            "epochs": self.epochs,
            "rounds": self.rounds,
            **self.options,
            "sent": self.sent,
            "seconds": round(self.seconds, 3),
            "versions": versions(),
        }
        return dict(plain(result))

    def _source(self, client: str, class_names: Sequence[str] = ()) -> Source:
        model = self.packed(client)
        return Source(client, model, lambda: self.samples[client], lambda: class_names, self.module(client))

    def _check_known(self, client: str) -> None:
        if client not in self.models:
            raise InvalidValueError(f"There is no client {client!r}. {did_you_mean(str(client), self.models)}")


FORMAT = 2
"""Of result files; raised when a key changes its name or meaning."""
