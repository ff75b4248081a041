"""Results of an experiment cell by cell, so that one that was stopped goes on where it was."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from setsquare.errors import InputError


class Cells:
    """Cells that were computed before, a line of JSON each in a file; without a path, in memory only.

    A cell is found by its key: everything that its result depends on. A line that was cut off when the machine stopped
    is computed again.

    Parameters
    ----------
    path : Path, optional
    fresh : bool
        Forget what the file holds.

    Examples
    --------
    >>> cells = Cells()
    >>> cells({"n": 3}, lambda: {"square": 9})
    {'square': 9}
    >>> cells({"n": 3}, lambda: {"square": 0})  # known already
    {'square': 9}
    """

    def __init__(self, path: Path | None = None, *, fresh: bool = False) -> None:
        self.path = path
        self._known: dict[str, Any] = {}
        if path is None:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        if fresh:
            path.unlink(missing_ok=True)
        lines = path.read_text("utf-8", "replace").splitlines(keepends=True) if path.exists() else []
        whole = [line for line in lines if line.endswith("\n")]
        if len(whole) < len(lines):
            path.write_text("".join(whole), encoding="utf-8")
        for number, line in enumerate(whole, start=1):
            try:
                cell = json.loads(line)
                self._known[_name(cell["key"])] = cell["result"]
            except (ValueError, TypeError, KeyError, RecursionError) as error:
                raise InputError(f"{path} is damaged in line {number}: delete this line, or pass --fresh.") from error

    def __contains__(self, key: Mapping[str, Any]) -> bool:
        return _name(key) in self._known

    def __call__(self, key: Mapping[str, Any], compute: Callable[[], Any]) -> Any:
        """Result of the cell, computed if it is not known; it must be what JSON can hold."""
        name = _name(key)
        if name not in self._known:
            line = json.dumps({"key": dict(key), "result": compute()})
            self._known[name] = json.loads(line)["result"]
            if self.path is not None:
                with self.path.open("a", encoding="utf-8") as file:
                    file.write(line + "\n")
        return self._known[name]


def _name(key: Mapping[str, Any]) -> str:
    return json.dumps(dict(key), sort_keys=True)
