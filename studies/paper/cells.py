"""Results of an experiment cell by cell, so that one that was stopped goes on where it was."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from setsquare.errors import InputError


class Cells:
    """Cells that were computed before, a line of JSON each in a file; without a path, in memory only.

    A cell is found by its key: everything that its result depends on. A line that was cut off when the machine stopped
    is computed again. With each cell is kept when it was made, by which commit of the library, and its processor time.

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
        self._made: dict[str, dict[str, Any]] = {}
        self._used: dict[str, dict[str, Any]] = {}
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
                self._made[_name(cell["key"])] = dict(cell.get("made", {}))
            except (ValueError, TypeError, KeyError, RecursionError) as error:
                raise InputError(f"{path} is damaged in line {number}: delete this line, or pass --fresh.") from error

    def __contains__(self, key: Mapping[str, Any]) -> bool:
        return _name(key) in self._known

    def __call__(
        self, key: Mapping[str, Any], compute: Callable[[], Any], keep: Callable[[Any], bool] = lambda result: True
    ) -> Any:
        """Result of the cell, computed if it is not known; it must be what JSON can hold.

        A result that `keep` refuses, such as that of a training that goes on later, is not written to the file.
        """
        name = _name(key)
        if name not in self._known:
            start = time.process_time()
            line = {"key": dict(key), "result": compute()}
            date = datetime.now(UTC).date().isoformat()
            line["made"] = {"library": library(), "date": date, "seconds": round(time.process_time() - start, 3)}
            text = json.dumps(line)
            self._known[name], self._made[name] = json.loads(text)["result"], line["made"]
            if self.path is not None and keep(line["result"]):
                with self.path.open("a", encoding="utf-8") as file:
                    file.write(text + "\n")
        self._used[name] = self._made[name]
        return self._known[name]

    def made(self) -> dict[str, Any]:
        """Commits of the library and dates of the cells that were asked for, and their processor minutes together.

        ``unknown`` counts those of which nothing was recorded.
        """
        used = [one for one in self._used.values() if one]
        return {
            "library": sorted({one["library"] for one in used}),
            "dates": sorted({one["date"] for one in used}),
            "minutes": round(sum(one["seconds"] for one in used) / 60.0, 2),
            "unknown": len(self._used) - len(used),
        }


@cache
def library() -> str:
    """Last commit that changed the library, with a plus if it was changed since; "unknown" outside a clone."""
    root = Path(__file__).parents[2]
    try:
        asked = (("log", "-1", "--format=%h"), ("status", "--porcelain"))
        commit, changed = (
            subprocess.run(
                ["git", "--no-optional-locks", *words, "--", "src/setsquare"],
                cwd=root,
                capture_output=True,
                text=True,
                check=True,
            ).stdout.strip()
            for words in asked
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return commit + ("+" if changed else "") if commit else "unknown"


def _name(key: Mapping[str, Any]) -> str:
    return json.dumps(dict(key), sort_keys=True)
