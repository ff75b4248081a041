"""Monitor of predictions that arrive over time: alarms that may be looked for after every row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from setsquare._typing import Array, Table
from setsquare.auditing.groups.partitions import partition_rows
from setsquare.auditing.monitoring.betting import place_bets, start_bets
from setsquare.auditing.monitoring.pairing import LEARN, pair_rows, start_pairing
from setsquare.auditing.monitoring.state import Grouping, State, Watch, check_same, load_state, save_state
from setsquare.auditing.predictions import open_predictions
from setsquare.document import Document, Documented, Headline, section, table
from setsquare.errors import InputError
from setsquare.notes import Note, Option, describe
from setsquare.tables.arrow import accept_unread
from setsquare.tables.column import read
from setsquare.tables.frame import backend_of, open_table, to_frame
from setsquare.tables.validation import check_confidence, check_same_rows, refuse_constant_protected

ALARM, QUIET = "alarm", "no alarm"
COLUMNS = ("source", "group", "reference", "n", "n_reference", "pairs", "difference", "low", "high", "wealth", "alarm")


@dataclass(frozen=True, slots=True)
class MonitorResult(Documented):
    """Result of a monitor so far.

    Attributes
    ----------
    state : State
        Everything that the monitor remembers; pass the result as ``state=`` with the next rows, or use a file.
    backend : str
        Dataframe library of the table.
    notes : tuple of Note
    """

    state: State = field(repr=False)
    backend: str = "pandas"
    notes: tuple[Note, ...] = ()

    @property
    def is_alarm(self) -> bool:
        """Whether some group differs from its reference group; once raised, an alarm stays."""
        return any(watch.bets.alarm for watch in self.state.watches)

    @property
    def verdict(self) -> str:
        """Either "alarm" or "no alarm"."""
        return ALARM if self.is_alarm else QUIET

    @property
    def reason(self) -> str:
        """The finding in plain words, then the statistics."""
        state, span = self.state, self.state.bounds[1] - self.state.bounds[0]
        method = (
            f"Test by betting on pairs of rows, valid at every look; probability of any false alarm at most "
            f"{1.0 - state.confidence:.2g} over {len(state.watches)} comparison(s)."
        )
        found = [watch for watch in state.watches if watch.bets.alarm]
        if not found:
            return f"No group differs from its reference group after {state.n_rows:,} rows. {method}"
        watch = max(found, key=lambda one: abs(one.bets.mean))
        bets = watch.bets
        interval = f"difference between {bets.low * span:.3f} and {bets.high * span:.3f}"
        if not bets.is_constant:
            interval = "the difference changed over time, so that it has no interval"
        more = f" {len(found) - 1} more group(s) differ." if len(found) > 1 else ""
        return (
            f"Mean prediction of {watch.source} {watch.group} is {abs(bets.mean) * span:.3f} "
            f"{'below' if bets.mean < 0 else 'above'} that of {watch.reference} ({interval}), noticed after "
            f"{bets.alarm:,} pairs of rows.{more} {method}"
        )

    def table(self) -> Table:
        """One row per group: rows, pairs, difference to the reference group with its confidence sequence, wealth.

        ``wealth`` is the evidence against equal means; ``alarm`` is the number of pairs at the alarm, 0 without one.
        """
        return to_frame(self._columns(), self.backend)

    def _columns(self) -> dict[str, list[Any]]:
        span = self.state.bounds[1] - self.state.bounds[0]
        rows = []
        for watch in self.state.watches:
            bets, pairing = watch.bets, watch.pairing
            low, high = (bets.low, bets.high) if bets.is_constant else (float("nan"), float("nan"))
            ends = (bets.mean * span, low * span, high * span)
            wealth = float(np.exp(min(bets.log_wealth, 700.0)))
            counts = (pairing.n_first, pairing.n_second, bets.n)
            rows.append((watch.source, watch.group, watch.reference, *counts, *ends, wealth, bets.alarm))
        return {name: [row[j] for row in rows] for j, name in enumerate(COLUMNS)}

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        columns = self._columns()
        rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
        return {
            "verdict": self.verdict,
            "reason": self.reason,
            "n": self.state.n_rows,
            "confidence": self.state.confidence,
            "comparisons": rows,
            "notes": list(map(describe, self.notes)),
        }

    def document(self) -> Document:
        """Verdict, comparisons and notes, for every renderer."""
        columns = self._columns()
        kinds = [("text", *COLUMNS[:3]), ("count", *COLUMNS[3:6]), ("signed", *COLUMNS[6:9]), ("number", "wealth")]
        rows = list(zip(*columns.values(), strict=True))
        part = table("Groups against their reference group", [*kinds, ("count", "alarm")], rows)
        headline = Headline("", self.verdict, self.reason)
        sections = (section("monitor", "Monitor", tables=[part], notes=self.notes),)
        return Document("Do predictions still treat the groups alike?", (headline,), sections)


@accept_unread
def monitor(
    predictions: Any,
    protected: Any,
    *,
    state: str | Path | MonitorResult | None = None,
    reference: Mapping[str, Any] | None = None,
    confidence: float | None = None,
    bounds: tuple[float, float] | None = None,
) -> MonitorResult:
    """Watch predictions that arrive over time, with an alarm if a group's mean differs from its reference group's.

    Call it with each new batch of rows, in their order; one may look after every row. The probability that a monitor
    of equal groups ever raises an alarm is at most ``1 - confidence``, however long it runs. Rows of a group are paired
    with rows of the reference group in the order of arrival, and a bet on their differences is the test (Waudby-Smith
    and Ramdas 2024); the error probability is shared equally by all comparisons. Rows of a pair can be some rows apart,
    so a common drift of all scores should be slow.

    Parameters
    ----------
    predictions : array or series of n values
        Scores within `bounds`, or decisions of 0 and 1. A state keeps the name of a series, and refuses another.
    protected : dataframe, series or array of n rows
        Groups are those of the first call: levels, or bands of a numeric column. Later groups are counted, not tested.
    state : path or MonitorResult, optional
        A file that keeps the monitor between calls: it is read if it exists, and written. Or the last result.
    reference : mapping of column to group, optional
        Reference groups; by default the largest of the first call.
    confidence : float
        0.95 by default.
    bounds : (float, float)
        Smallest and largest possible prediction; (0, 1) by default.

    Returns
    -------
    MonitorResult

    Examples
    --------
    >>> import numpy as np
    >>> import setsquare as sq
    >>> rng = np.random.default_rng(0)
    >>> sex = rng.choice(["female", "male"], 4000)
    >>> score = rng.beta(2, 2, size=4000) - 0.1 * (sex == "female")
    >>> first = sq.monitor(score[:90].clip(0, 1), sex[:90])
    >>> later = sq.monitor(score[90:].clip(0, 1), sex[90:], state=first)
    >>> first.verdict, later.verdict
    ('no alarm', 'alarm')
    """
    name = getattr(predictions, "name", None)
    return monitor_column(
        name if isinstance(name, str) else "",
        predictions,
        protected,
        state=state,
        reference=reference,
        confidence=confidence,
        bounds=bounds,
    )


def monitor_column(
    name: str,
    predictions: Any,
    protected: Any,
    *,
    state: str | Path | MonitorResult | None,
    reference: Mapping[str, Any] | None,
    confidence: float | None,
    bounds: tuple[float, float] | None,
) -> MonitorResult:
    """:func:`monitor` for predictions of which the name is known, if they have one; a state keeps it."""
    path = Path(state) if isinstance(state, str | Path) else None
    before = load_state(path) if path is not None and path.exists() else None
    before = state.state if isinstance(state, MonitorResult) else before
    score = _scores(predictions)
    frame = open_table(protected)
    check_same_rows("The predictions have", len(score), "the protected columns have", frame.n_rows)
    asked: dict[str, Any] = {"protected": list(frame.names)}
    asked |= {"predictions": name} if name and before is not None and before.predictions else {}
    asked |= {} if bounds is None else {"bounds": [float(end) for end in bounds]}
    asked |= {} if confidence is None else {"confidence": confidence}
    asked |= {} if not reference else {"reference": dict(reference)}
    if before is None:
        before = _begin(protected, reference, 0.95 if confidence is None else confidence, bounds or (0.0, 1.0))
    else:
        check_same(before, asked, str(path or "The result"))
    before = replace(before, predictions=before.predictions or name)
    after = _update(before, _scaled(score, before.bounds), {name: read(frame, name) for name in frame.names})
    if path is not None:
        save_state(after, path)
    return MonitorResult(after, backend_of(protected, predictions), _notes(after))


def _scores(predictions: Any) -> Array:
    raw = open_predictions(predictions, None)
    raw.check_complete()
    if raw.array.ndim != 1 or raw.array.dtype.kind not in "biuf":
        raise InputError("A monitor takes one number per row: pass scores, or decisions of 0 and 1.")
    return np.asarray(raw.array, dtype=np.float64)


def _scaled(score: Array, bounds: tuple[float, float]) -> Array:
    """Scores as shares of the way between the bounds."""
    low, high = bounds
    if outside := int(((score < low) | (score > high)).sum()):
        text = "{count} of {n} predictions lie outside {low:g} to {high:g}: {bounds:pass} with their possible range."
        ends = {"low": low, "high": high}
        note = Note("outside-bounds", text, "info", count=outside, n=len(score), bounds=Option("bounds"), **ends)
        raise InputError(note)
    return (score - low) / (high - low)


def _begin(
    protected: Any, reference: Mapping[str, Any] | None, confidence: float, bounds: tuple[float, float]
) -> State:
    check_confidence(confidence)
    low, high = (float(end) for end in bounds)
    if not (np.isfinite(low) and np.isfinite(high) and low < high):
        raise InputError(f"bounds=({low:g}, {high:g}) must be two finite numbers, the smaller one first.")
    parts = partition_rows(protected, reference=reference, min_group=1, intersections=False)
    missing = set(open_table(protected).names) - {part.source for part in parts}
    if missing:
        refuse_constant_protected(sorted(missing), "monitor")
    groupings = tuple(map(Grouping.of, parts))
    watches = tuple(
        Watch(one.source, name, one.reference, start_pairing(), start_bets())
        for one in groupings
        for name in one.labels
        if name != one.reference
    )
    return State((low, high), confidence, groupings, watches)


def _update(state: State, score: Array, columns: Mapping[str, Any]) -> State:
    codes = {one.source: one.codes(columns[one.source]) for one in state.groupings}
    place = {one.source: {name: k for k, name in enumerate(one.labels)} for one in state.groupings}
    alpha = (1.0 - state.confidence) / len(state.watches)
    watches = []
    for watch in state.watches:
        code, of = codes[watch.source], place[watch.source]
        mine = (code == of[watch.group]) | (code == of[watch.reference])
        pairing, differences = pair_rows(watch.pairing, score[mine], code[mine] == of[watch.group])
        watches.append(replace(watch, pairing=pairing, bets=place_bets(watch.bets, differences, alpha)))
    unknown, missing = (int(sum((code == value).sum() for code in codes.values())) for value in (-2, -1))
    return replace(
        state,
        watches=tuple(watches),
        n_rows=state.n_rows + len(score),
        n_unknown=state.n_unknown + unknown,
        n_missing=state.n_missing + missing,
    )


def _notes(state: State) -> tuple[Note, ...]:
    notes = []
    if state.n_unknown:
        text = "{count} value(s) are of groups that the first rows did not have; they are not monitored: start again."
        notes.append(Note("new-groups", text, severity="caution", count=state.n_unknown))
    if state.n_missing:
        text = "{count} protected value(s) are missing; they are in no group."
        notes.append(Note("missing-groups", text, severity="caution", count=state.n_missing))
    if waiting := [f"{w.source} {w.group}" for w in state.watches if w.pairing.blocks == (0, 0)]:
        text = "Fewer than {limit} rows so far, so nothing was tested: {groups}."
        notes.append(Note("few-rows", text, limit=LEARN, groups=", ".join(waiting[:6])))
    return tuple(notes)
