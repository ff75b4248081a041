"""State of a monitor, and its file: JSON of a few kilobytes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from setsquare._typing import IntArray
from setsquare.auditing.groups.partitions import Partition
from setsquare.auditing.monitoring.betting import Bets
from setsquare.auditing.monitoring.pairing import Pairing
from setsquare.errors import InputError
from setsquare.storage import write_files
from setsquare.tables.column import Column, Levels, label

FORMAT = "setsquare monitor"
VERSION = 1


@dataclass(frozen=True, slots=True)
class Grouping:
    """Groups of one protected column, as found in the first rows: labels, lower ends of bands, reference group."""

    source: str
    labels: tuple[str, ...]
    edges: tuple[float, ...]
    reference: str

    @classmethod
    def of(cls, part: Partition) -> Grouping:
        """Groups of a partition."""
        return cls(part.source, part.labels, part.edges, part.labels[part.reference])

    def codes(self, column: Column) -> IntArray:
        """Group of each row, -1 for a missing value and -2 for a group that was not there."""
        if isinstance(column, Levels):
            place = {name: k for k, name in enumerate(self.labels)}
            known = np.array([*(place.get(label(level), -2) for level in column.levels), -1])
            return known[column.codes]
        x = column.values
        if self.edges:
            return np.where(np.isnan(x), -1, np.searchsorted(self.edges, x, side="right"))
        values, inverse = np.unique(x, return_inverse=True)
        place = {name: k for k, name in enumerate(self.labels)}
        known = np.array([-1 if value != value else place.get(f"{value:g}", -2) for value in values.tolist()])
        return known[inverse]


@dataclass(frozen=True, slots=True)
class Watch:
    """One comparison of a group with the reference group of its column."""

    source: str
    group: str
    reference: str
    pairing: Pairing
    bets: Bets


@dataclass(frozen=True, slots=True)
class State:
    """Everything that a monitor remembers; the name of the predictions is empty where it is not known."""

    bounds: tuple[float, float]
    confidence: float
    groupings: tuple[Grouping, ...]
    watches: tuple[Watch, ...]
    n_rows: int = 0
    n_unknown: int = 0
    n_missing: int = 0
    predictions: str = ""


def check_same(state: State, asked: Mapping[str, Any], where: str) -> None:
    """Refuse the state of another monitor."""
    references = {one.source: one.reference for one in state.groupings}
    own: dict[str, Any] = {
        "protected": [one.source for one in state.groupings],
        "predictions": state.predictions,
        "bounds": list(state.bounds),
        "confidence": state.confidence,
    }
    for name, value in asked.items():
        if name == "reference":
            value = {key: label(level) for key, level in value.items()}
            own[name] = {key: references.get(key) for key in value}
        known = own[name]
        if value != known:
            raise InputError(
                f"{where} belongs to another monitor ({name}: {_plain(known)} there, {_plain(value)} here): name "
                "another file, or delete this one to start again."
            )


def save_state(state: State, path: Path) -> None:
    """Write the state; all or nothing."""
    tree = {"format": FORMAT, "version": VERSION, **_write(state)}
    write_files({path: f"{json.dumps(tree)}\n".encode()})


def load_state(path: Path) -> State:
    """Read a state; anything else is refused."""
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
        if tree["format"] != FORMAT or tree["version"] != VERSION:
            raise ValueError
        return _read(tree)
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        raise InputError(f"{path} is not the state of a monitor: name another file.") from None


def _write(state: State) -> dict[str, Any]:
    return {
        "bounds": list(state.bounds),
        "confidence": state.confidence,
        "groupings": [
            {"source": g.source, "labels": g.labels, "edges": g.edges, "reference": g.reference}
            for g in state.groupings
        ],
        "watches": [_write_watch(watch) for watch in state.watches],
        "n_rows": state.n_rows,
        "n_unknown": state.n_unknown,
        "n_missing": state.n_missing,
        "predictions": state.predictions,
    }


def _write_watch(watch: Watch) -> dict[str, Any]:
    p, b = watch.pairing, watch.bets
    return {
        "source": watch.source,
        "group": watch.group,
        "reference": watch.reference,
        "pairing": [p.first.tolist(), p.second.tolist(), p.n_first, p.n_second, list(p.blocks), p.dropped],
        "bets": [b.n, b.total, b.squares, b.grid.tolist(), b.up.tolist(), b.down.tolist(), b.low, b.high, b.alarm],
    }


def _read(tree: Mapping[str, Any]) -> State:
    groupings = tuple(
        Grouping(g["source"], tuple(g["labels"]), tuple(g["edges"]), g["reference"]) for g in tree["groupings"]
    )
    low, high = tree["bounds"]
    watches = tuple(map(_read_watch, tree["watches"]))
    n_rows, n_unknown, n_missing = (int(tree[name]) for name in ("n_rows", "n_unknown", "n_missing"))
    name = str(tree.get("predictions", ""))  # not in files of earlier versions
    return State((low, high), tree["confidence"], groupings, watches, n_rows, n_unknown, n_missing, name)


def _read_watch(tree: Mapping[str, Any]) -> Watch:
    first, second, n_first, n_second, (a, b), dropped = tree["pairing"]
    pairing = Pairing(_floats(first), _floats(second), n_first, n_second, (a, b), dropped)
    n, total, squares, grid, up, down, low, high, alarm = tree["bets"]
    bets = Bets(n, total, squares, _floats(grid), _floats(up), _floats(down), low, high, alarm)
    return Watch(tree["source"], tree["group"], tree["reference"], pairing, bets)


def _floats(values: Sequence[float]) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.asarray(values, dtype=np.float64)


def _plain(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {item}" for key, item in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
