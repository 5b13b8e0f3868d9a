"""Which engine a run uses: the one list of them, and what each can be told."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch

from quped.errors import InvalidValueError, check, check_whole, did_you_mean
from quped.simulation.client_round import compile_steps
from quped.simulation.engines.base import Engine
from quped.simulation.engines.inline import InlineEngine
from quped.simulation.engines.processes import ProcessEngine, usable_cores
from quped.simulation.engines.vmap import VmapEngine
from quped.simulation.setup import Setup


@dataclass(frozen=True)
class EngineChoice:
    """An engine by its name, and what it is told. `Federation.fit` explains the fields."""

    engine: str | None = None
    workers: int | None = None
    device: torch.device | str | None = None
    address: str | None = None

    def __post_init__(self) -> None:
        check(self.engine is None or isinstance(self.engine, str), "engine", "a name such as 'inline'", self.engine)
        if self.engine is not None and self.engine not in ENGINES:
            raise InvalidValueError(f"There is no engine '{self.engine}'. {did_you_mean(self.engine, ENGINES)}")
        if self.workers is not None:
            check_whole("number of workers", self.workers, 0)
        for what in ("workers", "device", "address"):
            if getattr(self, what) and what not in ENGINES[self.name].takes:
                takers = " or ".join(f"engine='{name}'" for name, kind in ENGINES.items() if what in kind.takes)
                raise InvalidValueError(f"The engine '{self.name}' takes no {what}: leave it out, or use {takers}.")

    @property
    def name(self) -> str:
        """The engine's name; if none was given, what follows from the rest."""
        if self.engine is not None:
            return self.engine
        if self.device is not None:
            return "vmapped"
        count = usable_cores() if self.workers is None else self.workers
        return "processes" if count else "inline"

    def open(self, setup: Setup) -> Engine:
        """Start the engine."""
        if setup.options.compile:
            if self.name == "vmapped":
                raise InvalidValueError(
                    "The engine 'vmapped' computes clients at once and takes no compiled steps: leave out compile."
                )
            compile_steps(setup)
        return ENGINES[self.name].open(setup, self)


class Kind(NamedTuple):
    """How an engine is started, and which fields of a choice it takes."""

    open: Callable[[Setup, EngineChoice], Engine]
    takes: tuple[str, ...]


def open_inline(setup: Setup, _: EngineChoice) -> Engine:
    """Compute in this process."""
    return InlineEngine(setup)


def open_processes(setup: Setup, choice: EngineChoice) -> Engine:
    """Start worker processes, by default one for each core."""
    return ProcessEngine(setup, max(usable_cores(), 1) if choice.workers is None else choice.workers)


def open_vmapped(setup: Setup, choice: EngineChoice) -> Engine:
    """Compute on a device, by default a GPU if there is one."""
    return VmapEngine(setup, choice.device or ("cuda" if torch.cuda.is_available() else "cpu"))


def open_ray(setup: Setup, choice: EngineChoice) -> Engine:
    """Start actors of Ray on a cluster, or on this machine, by default one for each core."""
    from quped.simulation.engines.ray import RayEngine  # here, because Ray comes with an extra

    return RayEngine(setup, choice.workers, choice.address)


ENGINES: Mapping[str, Kind] = {
    "inline": Kind(open_inline, ()),
    "processes": Kind(open_processes, ("workers",)),
    "vmapped": Kind(open_vmapped, ("device",)),
    "ray": Kind(open_ray, ("workers", "address")),
}
"""Every engine by its name."""
