"""A value that is computed when it is first read."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Deferred(Generic[T]):
    """A value, or a function that computes it when it is first read.

    Until then it holds whatever the function refers to, such as rows of the training data. Reading, comparing,
    copying and pickling compute the value and release the function.

    Examples
    --------
    >>> number = Deferred(lambda: 0.25)
    >>> number
    Deferred(not computed yet)
    >>> number.value, number
    (0.25, Deferred(0.25))
    """

    __slots__ = ("__weakref__", "_compute", "_lock", "_value")

    def __init__(self, value: T | Callable[[], T]) -> None:
        self._compute: Callable[[], T] | None = value if callable(value) else None
        self._value: T | None = None if callable(value) else value
        self._lock = threading.Lock()

    @property
    def value(self) -> T:
        """The value, computed if necessary."""
        with self._lock:
            if self._compute is not None:
                self._value = self._compute()
                self._compute = None
            return self._value  # type: ignore[return-value]

    def give_up(self, value: T) -> None:
        """Take ``value`` unless it has been computed, and release the function."""
        with self._lock:
            if self._compute is not None:
                self._value, self._compute = value, None

    @property
    def is_known(self) -> bool:
        """Whether the value has been computed."""
        return self._compute is None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Deferred) and bool(self.value == other.value)

    def __hash__(self) -> int:
        return hash(self.value)

    def __repr__(self) -> str:
        return f"Deferred({self._value if self.is_known else 'not computed yet'})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Deferred, (self.value,)
