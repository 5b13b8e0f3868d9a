"""Steps that PyTorch's Inductor compiled: once for all clients of a group, and kept in the cache.

`Algorithm.step` is a pure function of tensors, a batch and the clock. It is traced to one graph, gradients, proximal
maps and the update of weights included, and compiled to a library. Numbers of the clock, such as the learning rate, are
inputs of the graph; where a step decides by them, there is a graph for each decision. Before it is used, a compiled
step is compared with the plain one.
"""

import hashlib
import logging
import math
import os
import tempfile
import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.nn.attention import SDPBackend, sdpa_kernel

from quped._cache import cache_folder
from quped._files import locked
from quped._native import product
from quped._native.build import is_trusted, processor, store
from quped._rng import torch_seeded
from quped._transform import CLOCK_NUMBERS, Decisions, entering, traced_clock
from quped.algorithms import AnyAlgorithm, ClientSpec
from quped.errors import InvalidValueError, QupedError
from quped.typing import Batch, Clock, Metrics

log = logging.getLogger("quped")

TOLERANCE = 0.05
"""How far a tensor of a compiled step may end from that of the plain one, as a share of its own step."""

ROUNDING = 1e-4
"""The same as a share of the step of all tensors, for those whose gradient is nothing but rounding."""

MOST_FORMS = 8
"""Sizes of batches in a group, above which steps are not compiled."""

TRIED = 2
"""Steps that are compared: after the first one, models that began as one differ."""

OPTIONS = {"cpp.threads": 1, "fallback_random": True, "compile_threads": 1, "aot_inductor.precompile_headers": False}
"""Of Inductor: one thread, as everywhere in an engine, and PyTorch's own random numbers."""

Run = Callable[[list[Tensor]], list[Tensor]]

Flat = tuple[list[Tensor], tuple[Hashable, ...]]
"""The leaves of a tree, and its form."""


class Program(NamedTuple):
    """A step for states and batches of one form."""

    decisions: Decisions
    run: Run | None
    """None if it could not be compiled."""


class CompiledSteps:
    """Takes an algorithm's steps, compiled where possible."""

    def __init__(self, algorithm: AnyAlgorithm) -> None:
        self._algorithm = algorithm
        self._programs: dict[int, dict[Hashable, list[Program]]] = {}
        """For each group of clients and form of their states and batches."""
        self._last: tuple[Any, Flat] = (None, ([], ()))
        """The state after the last step, and its leaves, with which the next step begins."""

    def __reduce__(self) -> Any:
        """Travel without libraries: another process takes them from the cache."""
        return CompiledSteps, (self._algorithm,)

    def step(self, spec: ClientSpec, work: Any, batches: tuple[Batch, ...], clock: Clock) -> tuple[Any, Metrics]:
        """Take one local step."""
        run = self.program(spec, work, batches, clock).run
        if run is None:
            return self._algorithm.step(spec, work, batches, clock)
        leaves, form = self._flat(work)
        outputs = run([numbers_of(clock), *leaves, *flatten(batches)[0]])
        *leaves, loss = (output.contiguous() for output in outputs)
        moved = rebuild(work, iter(leaves))
        self._last = moved, (leaves, form)
        return moved, {"loss": loss}

    def program(self, spec: ClientSpec, work: Any, batches: tuple[Batch, ...], clock: Clock) -> Program:
        """Return the program for such a step, which is made when it is first asked for."""
        if not fixed(spec, batches):
            return Program(Decisions(clock), None)
        form = self._flat(work)[1], flatten(batches)[1]
        programs = self._programs.setdefault(spec.group, {}).setdefault(form, [])
        for program in programs:
            if program.decisions.hold(clock):
                return program
        if len(self._programs[spec.group]) > MOST_FORMS:
            self._warn(spec, f"Its batches have more than {MOST_FORMS} sizes.")
            return Program(Decisions(clock), None)
        programs.append(self._make(spec, work, batches, clock))
        return programs[-1]

    def _flat(self, work: Any) -> Flat:
        """Return the leaves of a state, and its form."""
        state, flat = self._last
        return flat if state is work else flatten(work)

    def _make(self, spec: ClientSpec, work: Any, batches: tuple[Batch, ...], clock: Clock) -> Program:
        """Trace and compile a step; one that was compiled just now is tried."""
        decisions = Decisions(clock)
        try:
            graph, arguments = trace(self._algorithm, spec, work, batches, decisions)
            run = load(graph, arguments, lambda run: self._try(run, spec, work, batches, clock))
        except QupedError:
            raise
        except Exception as error:  # whatever PyTorch's compiler, or the C++ compiler, says to somebody's network
            self._warn(spec, (str(error).strip() or type(error).__name__).splitlines()[0])
            log.info("The cause of an uncompiled step:", exc_info=error)
            return Program(decisions, None)
        return Program(decisions, run)

    def _try(self, run: Run, spec: ClientSpec, work: Any, batches: tuple[Batch, ...], clock: Clock) -> None:
        """Raise unless a compiled step does what the plain one does; the second time after a step of another model."""
        for seed in range(TRIED):
            with torch_seeded(seed, "compare"):
                plain, metrics = self._algorithm.step(spec, work, batches, clock)
            before, now = flatten(work)[0], [*flatten(plain)[0], metrics["loss"]]
            with torch_seeded(seed, "compare"):
                outputs = run([numbers_of(clock), *before, *flatten(batches)[0]])
            compare(before, now, outputs)
            work = plain

    def _warn(self, spec: ClientSpec, cause: str) -> None:
        """Warn that a step is not compiled."""
        name = getattr(spec.network, "name", "network")
        method = type(self._algorithm).__name__
        warnings.warn(f"The step of {method} with {name} is not compiled: {cause} It runs as usual.", stacklevel=3)


def fixed(spec: ClientSpec, batches: tuple[Batch, ...]) -> bool:
    """Say whether a step can and should be compiled.

    The words of a text are as many as there are: each batch has another form. Networks of ours have faster kernels.
    """
    rows = all(len(part) == len(batch.labels) for batch in batches for part in batch.inputs)
    return rows and not any(getattr(network, "has_kernels", False) for network in (spec.network, spec.global_network))


def trace(
    algorithm: AnyAlgorithm, spec: ClientSpec, work: Any, batches: tuple[Batch, ...], decisions: Decisions
) -> tuple[GraphModule, list[Tensor]]:
    """Return a step as a graph, and arguments of it; what it decides by the clock is remembered."""
    from torch.fx.experimental.proxy_tensor import make_fx  # here, because it imports SymPy

    def step(*inputs: Tensor) -> list[Tensor]:
        numbers, *leaves = inputs
        state, samples = rebuild((work, batches), iter(leaves))
        moved, metrics = algorithm.step(spec, state, samples, traced_clock(decisions, numbers))
        leaves, form = flatten(moved)
        if form != flatten(work)[1]:
            raise TypeError("Its state has another form than before.")
        return [*leaves, metrics["loss"]]

    # Copies: of two inputs that are one tensor now, such as x = w before the first step, a graph would know one.
    arguments = [numbers_of(decisions.clock), *(leaf.clone() for leaf in flatten((work, batches))[0])]
    # Inductor makes attention of few large operations; PyTorch's own one is for long sequences.
    with entering("tracing"), sdpa_kernel(SDPBackend.MATH):
        traced = make_fx(step, DECOMPOSED, tracing_mode="fake", _allow_non_fake_inputs=True)
        graph = traced(*arguments)
    return graph, arguments


def scaled_sum(a: Tensor, b: Any, alpha: float = 1) -> Any:
    """Compute `torch.add`. Inductor makes a matrix product that is added into one operation, and forgets alpha."""
    return NotImplemented if alpha == 1 else torch.ops.aten.sub.Tensor(a, torch.ops.aten.mul.Tensor(b, -alpha))


DECOMPOSED: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.mm.default: product.mm,
    torch.ops.aten.addmm.default: product.addmm,
    torch.ops.aten.add.Tensor: scaled_sum,
}


def load(graph: GraphModule, arguments: list[Tensor], check: Callable[[Run], None]) -> Run:
    """Return a function that computes a graph; compile and check it if the cache does not have it."""
    file = cache_folder() / "steps" / f"{digest(graph, arguments)}.pt2"
    if is_trusted(file):
        return opened(file)
    file.parent.mkdir(parents=True, exist_ok=True)
    with locked(file.with_suffix(".lock")):
        if is_trusted(file):  # by now, of another process
            return opened(file)
        with scratch_folder() as folder:
            made = compiled(graph, arguments, folder / file.name)
            run = opened(made)
            check(run)
            store(file, made.read_bytes())
    return run


def opened(file: Path) -> Run:
    """Return the function of a library."""
    with scratch_folder():
        loaded = torch._inductor.aoti_load_package(str(file))
    # Its own call flattens arguments and checks devices, which takes longer than a small network's step.
    return cast(Run, loaded.loader.run)


def compiled(graph: GraphModule, arguments: list[Tensor], file: Path) -> Path:
    """Compile a graph; return the file of its library."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what PyTorch's compiler says of itself
        exported = torch.export.export(graph, tuple(arguments))
        options = dict(OPTIONS)  # Inductor adds its own
        torch._inductor.aoti_compile_and_package(exported, package_path=str(file), inductor_configs=options)
    return file


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Let Inductor keep its files in a folder that is removed after the block; what is loaded needs it no longer."""
    names = ("TORCHINDUCTOR_CACHE_DIR", "TMPDIR")
    before = {name: os.environ.get(name) for name in names}
    with tempfile.TemporaryDirectory(prefix="quped-") as folder:
        os.environ.update(dict.fromkeys(names, folder))
        try:
            yield Path(folder)
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value


def digest(graph: GraphModule, arguments: Sequence[Tensor]) -> str:
    """Return a name for a graph, its constants, and what compiles it."""
    found = hashlib.sha256()
    about = (graph.code, str(OPTIONS), torch.__version__, processor(), torch.__config__.show())
    forms = [f"{a.dtype} {tuple(a.shape)} {a.stride()}" for a in arguments]
    found.update("\0".join((*about, *forms)).encode())
    for node in graph.graph.nodes:
        if node.op == "get_attr":
            constant = getattr(graph, node.target)
            found.update(f"{node.target} {constant.dtype} {tuple(constant.shape)} {constant.stride()}".encode())
            found.update(constant.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:32]


def compare(before: Sequence[Tensor], plain: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
    """Raise unless each tensor of a compiled step ended where the plain one does, up to rounding."""
    *states, loss = zip([*before, torch.zeros(())], plain, outputs, strict=True)
    if any(wanted.shape != got.shape or wanted.dtype != got.dtype for _, wanted, got in (*states, loss)):
        raise ArithmeticError("Compiled, it gives tensors of another form.")
    moved = [distance(start, wanted) for start, wanted, _ in states]
    far = [distance(got, wanted) for _, wanted, got in states]
    # Counters and statistics of a network move farther than its weights.
    step = math.hypot(*(length for length, (start, *_) in zip(moved, states, strict=True) if start.dim() > 1))
    for off, length in [*zip(far, moved, strict=True), (distance(loss[1], loss[2]), distance(*loss[:2]))]:
        if not off <= TOLERANCE * length + ROUNDING * step:  # NaN is not
            raise ArithmeticError(f"Compiled, a tensor ends {off / (length or step or 1):.1%} of its step away.")


def distance(a: Tensor, b: Tensor) -> float:
    """Return the Euclidean distance of two tensors."""
    return float(torch.linalg.vector_norm(a.double() - b.double()))


@lru_cache(maxsize=1)
def numbers_of(clock: Clock) -> Tensor:
    """Return the numbers of a clock as a tensor."""
    return torch.tensor([float(getattr(clock, name)) for name in CLOCK_NUMBERS], dtype=torch.float64)


def flatten(tree: object) -> Flat:
    """Return the leaves of a tree, without gaps in memory, and its form. Dictionaries count in the order of their keys.

    Faster than `_tree.items`, which makes a path for each leaf: this is done in each step.
    """
    leaves: list[Tensor] = []
    form: list[Hashable] = []

    def add(part: object) -> None:
        if isinstance(part, Tensor):
            leaves.append(part.contiguous())
            form.append((part.shape, part.dtype))
        elif isinstance(part, dict):
            keys = sorted(part)
            form.append(tuple(keys))
            for key in keys:
                add(part[key])
        elif isinstance(part, tuple):
            for one in part:
                add(one)
        else:
            raise InvalidValueError(f"With compile=True, states hold tensors alone, not {type(part).__name__}.")

    add(tree)
    return leaves, tuple(form)


def rebuild(template: Any, leaves: Iterator[Tensor]) -> Any:
    """Return a tree in the form of a template: the inverse of `flatten`."""
    if isinstance(template, Tensor):
        return next(leaves)
    if isinstance(template, dict):
        return {key: rebuild(template[key], leaves) for key in sorted(template)}
    parts = [rebuild(part, leaves) for part in template]
    return type(template)(*parts) if hasattr(template, "_fields") else tuple(parts)
