"""Numbers by group of the rows of an audit: decisions and outcomes are read, groups are formed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import narwhals.stable.v2 as nw
import numpy as np

from setsquare._typing import Array, BoolArray, IntArray, Table
from setsquare.auditing.groups.partitions import MIN_GROUP, Partition, note_masked, partition_rows
from setsquare.auditing.groups.rates import Rows, count_numbers
from setsquare.auditing.groups.rates_with_intervals import note_doubtful
from setsquare.auditing.groups.result import Group, GroupNumbers
from setsquare.auditing.groups.standards import fill_standard, keep_shares, standard_rows
from setsquare.errors import InputError, MissingValuesError
from setsquare.notes import Note, Option
from setsquare.tables import filter_rows
from setsquare.tables.column import read
from setsquare.tables.frame import open_table
from setsquare.tables.outcome import class_name, positive_class
from setsquare.tables.validation import check_alignment, check_cutoff, check_per_row, is_missing


@dataclass(frozen=True, slots=True)
class GroupRequest:
    """What is asked about groups; see :func:`setsquare.audit`."""

    threshold: float | None = None
    decisions: Any = None
    outcome: Any = None
    positive: object = None
    reference: Mapping[str, Any] | None = None
    min_group: int = MIN_GROUP
    standard: str | None = None

    @property
    def is_plain(self) -> bool:
        """Whether only means were asked for."""
        return self.threshold is None and self.decisions is None and self.outcome is None and self.standard is None

    def refuse(self, why: str) -> None:
        """Refuse decisions, outcomes and standards if the audit has no numbers by group."""
        if not self.is_plain:
            raise InputError(f"threshold, decisions, outcome and standard need {why}.")


def number_audited(
    request: GroupRequest,
    score: Array,
    protected: Table,
    keep: BoolArray,
    weight: Array | None,
    cluster: IntArray | None,
    *,
    missing_group: bool = False,
    confidence: float = 0.95,
    seed: int = 0,
    backend: str = "pandas",
) -> GroupNumbers | None:
    """Numbers by group of the audited rows; None if no protected column has two groups.

    Parameters
    ----------
    request : GroupRequest
        Its decisions and outcome are of all rows.
    score : ndarray of shape (n,)
        Predictions of the rows to keep, and so are `weight` and `cluster`.
    protected : dataframe, series or array
        All rows.
    keep : boolean ndarray
        The rows that are audited.
    missing_group : bool
        Whether missing protected values are a group.
    confidence, seed, backend
        See :class:`GroupNumbers`.
    """
    for values, what in ((request.decisions, "decisions"), (request.outcome, "outcome")):
        check_alignment(protected, values, what)
    given = None if request.decisions is None else read_column(request.decisions, len(keep), "decisions")[keep]
    decision = read_decisions(score, request.threshold, given, request.positive)
    outcome = None
    if request.outcome is not None:
        outcome = read_outcome(read_column(request.outcome, len(keep), "outcome")[keep], request.positive)
    table = protected if keep.all() else filter_rows(protected, keep)
    partitions = partition_rows(
        table,
        reference=request.reference,
        min_group=request.min_group,
        missing_group=missing_group and request.standard is None,  # standards count such rows beside the table
    )
    if not partitions:
        return None
    rows = Rows(score, decision, outcome, weight, cluster)
    options: dict[str, Any] = {"confidence": confidence, "seed": seed, "backend": backend}
    options["selected"] = "" if decision is None else _selected(request, decision, given)
    asked = request.threshold is not None or given is not None
    options["notes"] = note_same_decision(score, decision, request.threshold) if asked and decision is not None else ()
    if request.standard is None:
        return number_groups(rows, partitions, min_group=request.min_group, **options)
    rows, rate = standard_rows(rows, request.standard)
    options["selected"] = options["selected"] or "its score is above the median of all rows"
    partitions = keep_shares(partitions, request.standard)
    found = number_groups(rows, partitions, min_group=request.min_group, **options)
    frame = open_table(protected)
    unknown = tuple((name, int(np.count_nonzero(read(frame, name).missing))) for name in frame.names)
    return found.filed(fill_standard(found, request.standard, rate, unknown, request.min_group))


def number_groups(
    rows: Rows,
    partitions: Sequence[Partition],
    *,
    confidence: float = 0.95,
    seed: int = 0,
    backend: str = "pandas",
    min_group: int = 10,
    selected: str = "",
    notes: tuple[Note, ...] = (),
) -> GroupNumbers:
    """Numbers of every group, with intervals on demand; ``notes`` come before those on the groups.

    Examples
    --------
    >>> from setsquare.auditing.groups.partitions import partition_rows
    >>> import pandas as pd
    >>> people = pd.DataFrame({"sex": np.repeat(["female", "male"], [40, 60])})
    >>> found = number_groups(Rows(np.linspace(0.0, 0.9, 100)), partition_rows(people))
    >>> print(found.sentence("Mean score"))
    Mean score by sex: female 0.18 (40 rows of data), male 0.63 (60 rows of data).
    """
    groups = tuple(
        Group(part.source, name, int(n), float(w), bool(shown), k == part.reference)
        for part in partitions
        for k, (name, n, w, shown) in enumerate(
            zip(part.labels, part.counts, _weights(part, rows.weight), part.shown, strict=True)
        )
    )
    numbers = count_numbers(rows, partitions)
    return GroupNumbers(
        tuple(part.without_rows() for part in partitions),
        groups,
        numbers,
        confidence,
        seed,
        backend,
        (*notes, *note_masked(partitions, min_group), *note_doubtful(numbers, partitions)),
        bool(rows.score.min() >= 0.0),
        rows.weight is not None,
        selected=selected,
    )


def _selected(request: GroupRequest, decision: Array, given: np.ndarray[Any, Any] | None) -> str:
    """When a row counts as selected, in words."""
    if request.threshold is not None:
        return f"its prediction is at least {request.threshold:g}"
    if given is None:
        return f"its prediction is {class_name(1 if request.positive is None else request.positive)}"
    names = given[decision == 1.0][:1].tolist()
    return f"its decision is {class_name(names[0])}" if names else "its decision is positive"


def note_same_decision(score: Array, decision: Array, threshold: float | None) -> tuple[Note, ...]:
    """A warning if every row has the same decision: rates are then equal whatever the predictions are.

    Examples
    --------
    >>> score = np.array([0.2, 0.4])
    >>> print(*note_same_decision(score, np.zeros(2), 0.5))
    No row is selected: the largest prediction, 0.4, is below the threshold of 0.5. Rates that are 0 % in every group
    do not show equal treatment: choose a lower threshold.
    """
    if decision.min() != decision.max():
        return ()
    one = bool(decision[0])
    fields: dict[str, Any] = {"who": "Every row" if one else "No row", "rate": 100 if one else 0}
    why = advice = ""
    if threshold is not None:
        why = ": the {end} prediction, {value:.4g}, is {side} the threshold of {limit:g}"
        advice = ": choose a {other} {threshold}"
        fields |= {"end": "smallest" if one else "largest", "value": float(score.min() if one else score.max())}
        fields |= {"side": "not below" if one else "below", "limit": threshold, "other": "higher" if one else "lower"}
        fields["threshold"] = Option("threshold", words="threshold")
    text = "{who} is selected" + why + ". Rates that are {rate} % in every group do not show equal treatment" + advice
    return (Note("same-decision", text + ".", "warning", **fields),)


def _weights(part: Partition, weight: Array | None) -> Array:
    weight = np.ones(len(part.codes)) if weight is None else weight
    return np.asarray(np.bincount(part.codes + 1, weight, len(part.labels) + 1)[1:], dtype=np.float64)


def read_decisions(score: Array, threshold: float | None, decisions: Any, positive: object = None) -> Array | None:
    """Decisions as 0 and 1: as given, by a threshold, or the predictions themselves if these are all 0 and 1.

    A prediction at the threshold is a positive decision.

    Examples
    --------
    >>> read_decisions(np.array([0.2, 0.5, 0.7]), 0.5, None)
    array([0., 1., 1.])
    >>> read_decisions(np.array([0.2, 0.5]), None, ["no", "yes"])
    array([0., 1.])
    """
    if threshold is not None and decisions is not None:
        raise InputError("Both a threshold and decisions were given: pass one of them.")
    if threshold is not None:
        check_cutoff(threshold)
        return (score >= threshold).astype(np.float64)
    if decisions is not None:
        return read_binary(read_column(decisions, len(score), "decisions"), "decisions", positive)
    return score if ((score == 0.0) | (score == 1.0)).all() else None


def read_binary(array: np.ndarray[Any, Any], what: str, positive: object = None) -> Array:
    """A column of two classes as 0 and 1; anything else is refused.

    Examples
    --------
    >>> read_binary(np.array([True, False]), "decisions")
    array([1., 0.])
    """
    _refuse_missing(array, what)
    names, codes = np.unique(array.astype(str) if array.dtype.kind == "O" else array, return_inverse=True)
    classes = [class_name(value) for value in names.tolist()]
    asked = positive if positive is not None and _is_among(classes, positive) else None
    if set(classes) <= {"0", "1"} or (array.dtype.kind == "b"):
        one = class_name(asked) if asked is not None else "True" if array.dtype.kind == "b" else "1"
    elif len(classes) == 2:
        one = _positive_of(classes, asked, what, positive)
    else:
        listed = ", ".join(classes[:5]) + (", …" if len(classes) > 5 else "")
        text = "{what} must be 0 and 1, or two classes of which {positive} names one; it has the values {values}."
        raise InputError(Note("not-binary", text, "info", what=what, positive=Option("positive"), values=listed))
    return np.array([float(name.casefold() == one.casefold()) for name in classes])[codes]


def _positive_of(classes: list[str], asked: object, what: str, positive: object) -> str:
    """The positive one of two classes; one that was asked for and is not there is named, unless it is plain anyway."""
    try:
        return positive_class(classes, asked)
    except InputError:
        if positive is None or asked is not None:
            raise
    text = "{what} has the classes {classes}, and {positive} is neither of them."
    named = " and ".join(map(repr, classes))
    fields = {"what": what, "classes": named, "positive": Option("positive", positive)}
    raise InputError(Note("no-such-class", text, "info", **fields))


def read_outcome(array: np.ndarray[Any, Any], positive: object = None) -> Array:
    """An outcome as 0 and 1 if it has two values or is text, otherwise as numbers.

    Examples
    --------
    >>> read_outcome(np.array([1.5, 2.0, 7.0]))
    array([1.5, 2. , 7. ])
    """
    _refuse_missing(array, "outcome")
    if array.dtype.kind in "iuf" and len(np.unique(array)) > 2:
        return array.astype(np.float64)
    return read_binary(array, "outcome", positive)


def read_column(values: Any, n_rows: int, what: str) -> np.ndarray[Any, Any]:
    """One value per row as an array, whatever holds them."""
    native = nw.from_native(values, eager_only=True, allow_series=True, pass_through=True)
    array = native.to_numpy() if isinstance(native, nw.Series | nw.DataFrame) else np.asarray(values)
    array = array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array
    check_per_row(what, array, n_rows)
    return array.astype(object) if array.dtype.kind not in "biuf" else array


def _refuse_missing(array: np.ndarray[Any, Any], what: str) -> None:
    if array.dtype.kind == "O":
        count = sum(map(is_missing, array.tolist()))
    else:
        count = int((~np.isfinite(array)).sum()) if array.dtype.kind == "f" else 0
    if count:
        raise MissingValuesError(f"{what} has {count} missing value(s): leave those rows out, or fill them in.")


def _is_among(names: list[str], asked: object) -> bool:
    return class_name(asked).casefold() in [name.casefold() for name in names]
