"""A number that is computed when it is first read."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


class Deferred:
    """A number, or a function that computes it when it is first read.

    Until then it holds whatever the function refers to, such as rows of the training data. Reading, comparing,
    copying and pickling compute the number and release the function.

    Examples
    --------
    >>> number = Deferred(lambda: 0.25)
    >>> number
    Deferred(not computed yet)
    >>> number.value, number
    (0.25, Deferred(0.25))
    """

    __slots__ = ("_compute", "_lock", "_value")

    def __init__(self, value: float | Callable[[], float]) -> None:
        self._compute = value if callable(value) else None
        self._value = None if callable(value) else float(value)
        self._lock = threading.Lock()

    @property
    def value(self) -> float:
        """The number, computed if necessary."""
        with self._lock:
            if self._value is None:
                assert self._compute is not None
                self._value = float(self._compute())
                self._compute = None
            return self._value

    @property
    def is_known(self) -> bool:
        """Whether the number has been computed."""
        return self._value is not None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Deferred) and self.value == other.value

    def __hash__(self) -> int:
        return hash(self.value)

    def __repr__(self) -> str:
        return f"Deferred({'not computed yet' if self._value is None else self._value})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Deferred, (self.value,)


__all__ = ["Deferred"]
