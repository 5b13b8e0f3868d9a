"""A mapping whose values are computed when they are asked for."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

T = TypeVar("T")


class Computed(Mapping[str, T]):
    """Values by name, each computed anew at every access: thousands of files are never in memory at once."""

    def __init__(self, names: Sequence[str], compute: Callable[[str], T]) -> None:
        self._names, self._compute = names, compute

    def __getitem__(self, name: str) -> T:
        if name not in self._names:
            raise KeyError(name)
        return self._compute(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
