"""A mapping whose values are computed when they are asked for."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class Computed(Mapping[K, T]):
    """Values by key, each computed anew at every access: thousands of models are never in memory at once."""

    def __init__(self, keys: Iterable[K], compute: Callable[[K], T]) -> None:
        self._keys, self._compute = dict.fromkeys(keys), compute

    def __getitem__(self, key: K) -> T:
        if key not in self._keys:
            raise KeyError(key)
        return self._compute(key)

    def __iter__(self) -> Iterator[K]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, key: object) -> bool:
        return key in self._keys  # without the value
