"""Predictions, outcome and protected columns of the same rows; labels and probabilities of classes in one order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from setsquare._typing import Array, BoolArray, IntArray, Table
from setsquare.auditing.audit_predictions import Audited
from setsquare.auditing.predictions import LABELS, Raw, open_predictions, read_predictions
from setsquare.errors import InputError
from setsquare.families import Family
from setsquare.notes import Note
from setsquare.tables import n_rows
from setsquare.tables.outcome import MANY_CLASSES, bears, class_name, positive_class, refuse_positive, refuse_text
from setsquare.tables.text_values import refuse_strays
from setsquare.tables.validation import check_alignment, check_same_rows, read_cluster, read_weight


def is_text(raw: Raw) -> bool:
    """Whether the values are labels rather than numbers."""
    return raw.array.dtype.kind in "OUSb"


def class_names(outcome: Raw, given: Mapping[str, Raw], glm: Family, positive: object = None) -> tuple[str, ...]:
    """Names of the classes, with the positive one of two last; None for a numeric outcome.

    Parameters
    ----------
    outcome : Raw
    given : mapping of name to Raw
        Predictions; see :func:`align`.
    glm : Family
    positive : object, optional
        Which of two classes is positive; see :func:`setsquare.tables.outcome.positive_class`.
    """
    classes = _ordered_classes(outcome, given, glm)
    if len(classes) != 2 or glm.is_vector:
        if positive is not None:
            refuse_positive(positive)
        return classes
    single = {name: raw for name, raw in given.items() if raw.array.ndim == 1}
    columns = [name for key, raw in single.items() if not is_text(raw) for name in (key, *raw.names)]
    # As in scikit-learn, the second of two columns is the positive class.
    one = positive_class(classes, positive, columns, otherwise=None if single else classes[1])
    return next(name for name in classes if name != one), one


def _ordered_classes(outcome: Raw, given: Mapping[str, Raw], glm: Family) -> tuple[str, ...]:
    """Names of the classes in the order of unnamed columns of probabilities; empty for a numeric outcome."""
    if glm.name not in ("binomial", "multinomial"):
        if is_text(outcome):
            refuse_text(glm)
        return ()
    seen = _levels(outcome)
    if glm.name == "binomial" and not is_text(outcome) and len(seen) > 2:
        if outcome.array.min() < 0.0 or outcome.array.max() > 1.0:
            raise InputError(f"The outcome has {len(seen)} values; the binomial family takes two classes, or shares.")
        return ()
    widths = {raw.array.shape[1] for raw in given.values() if raw.array.ndim == 2}
    if len(widths) > 1:
        raise InputError(
            f"The predictions have {sorted(widths)} columns: pass probabilities of the same classes in each set."
        )
    width = widths.pop() if widths else None
    columns = [_named_after(raw.names, seen) for raw in given.values() if raw.names and raw.array.ndim == 2]
    named = [names for names in columns if set(seen) <= set(names)]
    if named:
        return tuple(named[0]) if len(named[0]) == 2 else tuple(sorted(named[0]))
    numbers = not is_text(outcome) and all(float(c).is_integer() and float(c) >= 0 for c in seen)
    if numbers and (width is None or float(seen[-1]) < width):
        top = max(int(float(c)) for c in seen) if width is None else width - 1
        if max(top, 1) < MANY_CLASSES and (glm.is_vector or set(seen) <= {"0", "1"}):
            return tuple(str(j) for j in range(max(top, 1) + 1))
    labels = [_levels(raw) for raw in given.values() if raw.array.ndim == 1 and is_text(raw)]
    union = tuple(sorted(set(seen).union(*labels)))
    if not is_text(outcome) and set(union) == set(seen):
        union = seen  # columns of probabilities are in numerical order: 9 before 10
    if width is not None and width != len(seen):
        raise InputError(
            f"The outcome has {len(seen)} classes and the predictions {width} columns: name the columns like the "
            "classes."
        )
    if width is None and glm.name == "binomial" and len(union) > 2:
        for raw in given.values():
            if is_text(raw):
                refuse_strays("The column of predictions", Counter(raw.array.astype(str).tolist()))
        strange = sorted(set(union) - set(seen))
        more = ", …" if len(strange) > 5 else ""
        raise InputError(
            f"Predicted labels {', '.join(strange[:5])}{more} are not among the outcomes {', '.join(seen)}: write the "
            "classes alike in both."
        )
    if len(union) < 2:
        raise InputError(f"The outcome is {union[0]} in every row: there is nothing to compare.")
    return union


def _named_after(columns: tuple[str, ...], classes: tuple[str, ...]) -> tuple[str, ...]:
    """Map each column to the class that it is named after, or to its own name."""
    found = []
    for column in columns:
        after = [name for name in classes if bears(column, name)]
        found.append(column if column in classes or len(after) != 1 else after[0])
    return tuple(found)


def _column_classes(columns: tuple[str, ...], classes: tuple[str, ...]) -> tuple[str, ...]:
    """The class of each column of probabilities; columns without names have the order of ``predict_proba``."""
    names = _named_after(columns, classes)
    if sorted(names) == sorted(classes):
        return names
    if columns and columns != tuple(str(j) for j in range(len(columns))):
        raise InputError(
            f"The columns {', '.join(columns)} do not say which of the classes {', '.join(classes)} they belong to: "
            "name them after the classes."
        )
    if len(classes) > 2:
        return classes
    try:
        return tuple(sorted(classes, key=float))
    except ValueError:
        return tuple(sorted(classes))


def _levels(raw: Raw) -> tuple[str, ...]:
    array = raw.array
    if array.dtype.kind in "fiu":
        return tuple(map(class_name, np.unique(array)))
    return tuple(sorted(set(array.astype(str).tolist())))


def _codes(raw: Raw, classes: tuple[str, ...]) -> Array:
    number = raw.array.dtype.kind in "fiu"
    values, places = np.unique(raw.array if number else raw.array.astype(str), return_inverse=True)
    names = list(map(class_name, values))
    if strange := sorted(set(names) - set(classes)):
        raise InputError(
            f"The label(s) {', '.join(strange[:5])} are not among the classes {', '.join(classes)}: use one set of "
            "labels."
        )
    return np.array([classes.index(name) for name in names], dtype=np.float64)[places]


def _are_classes(raw: Raw, classes: tuple[str, ...]) -> bool:
    """Whether numbers are class numbers rather than probabilities."""
    try:
        return bool(np.isin(raw.array, [float(name) for name in classes]).all())
    except ValueError:
        return False


def _are_shares(raw: Raw) -> bool:
    """Whether numbers are between 0 and 1 and not all whole."""
    low, high = raw.array.min(), raw.array.max()
    return bool(low >= 0.0 and high <= 1.0 and (raw.array != np.floor(raw.array)).any())


def code_outcome(outcome: Raw, classes: tuple[str, ...]) -> Array:
    """The outcome as numbers, or as class numbers."""
    return _codes(outcome, classes) if classes else outcome.array.astype(np.float64)


def align(raw: Raw, glm: Family, classes: tuple[str, ...]) -> tuple[Array, tuple[Note, ...]]:
    """Predictions as means, or as shares in the order of the classes."""
    raw.check_complete()
    if raw.array.ndim > 2:
        raise InputError("Tensors and embeddings have no outcome to be compared with: use audit.")
    if raw.array.ndim == 2 and raw.array.shape[1] == len(classes):
        names = _column_classes(raw.names, classes)
        raw = Raw(raw.array[:, [names.index(name) for name in classes]], classes, raw.missing)
    labels = raw.array.ndim == 1 and bool(classes) and (is_text(raw) or glm.is_vector or _are_classes(raw, classes))
    if labels:
        if glm.is_vector and raw.array.dtype.kind == "f" and _are_shares(raw):
            raise InputError(
                f"The outcome has {len(classes)} classes ({', '.join(classes[:5])}{', …' if len(classes) > 5 else ''}) "
                "and the predictions are one column of probabilities: give a column of probabilities per class."
            )
        codes = _codes(raw, classes)
        note = Note(
            LABELS, "The predictions are class labels: give probabilities where you have them.", severity="caution"
        )
        return (np.eye(len(classes))[codes.astype(int)] if glm.is_vector else codes), (note,)
    subject = read_predictions(raw, glm)
    if subject.shape:
        raise InputError("Columns that are not class probabilities cannot be compared with an outcome: use audit.")
    if glm.is_vector and subject.values.shape[1] < raw.array.shape[1]:
        # A class that is never predicted can still occur in the outcome.
        return raw.array.astype(np.float64), subject.notes
    return subject.values, subject.notes


@dataclass(frozen=True, slots=True)
class Sample:
    """Weights and clusters of the rows (or None), and the confidence level of intervals."""

    weight: Array | None = None
    cluster: IntArray | None = None
    confidence: float = 0.95

    def part(self, rows: IntArray) -> tuple[Array | None, IntArray | None]:
        """Weights and clusters of some rows."""
        weight = None if self.weight is None else self.weight[rows]
        return weight, None if self.cluster is None else self.cluster[rows]


@dataclass(frozen=True, slots=True)
class PredictedRows:
    """Predictions of each model for the same rows, with outcome, protected columns and weights.

    Attributes
    ----------
    values : dict of name to ndarray of shape (n,) or (n, K)
        Empty for units of a layer, which are not predictions.
    family : Family
    classes : tuple of str
        Names of the K classes.
    protected : table or None
    outcome : ndarray of shape (n,) or None
    sample : Sample
    keep : boolean ndarray or None
        Rows of `protected` that are used.
    n_dropped : int
        Rows without a prediction, an outcome or a weight.
    """

    values: dict[str, Array]
    family: Family
    classes: tuple[str, ...]
    protected: Table | None
    outcome: Array | None
    sample: Sample
    keep: BoolArray | None = None
    n_dropped: int = 0

    @property
    def positive(self) -> str:
        """The positive class of a binary outcome; empty for other outcomes."""
        return self.classes[1] if len(self.classes) == 2 and not self.family.is_vector else ""

    def weighted(self) -> PredictedRows:
        """The rows that have a weight."""
        weight, cluster = self.sample.weight, self.sample.cluster
        if weight is None or bool((keep := weight > 0.0).all()):
            return self
        return replace(
            self,
            values={name: values[keep] for name, values in self.values.items()},
            outcome=None if self.outcome is None else self.outcome[keep],
            sample=replace(self.sample, weight=weight[keep], cluster=None if cluster is None else cluster[keep]),
            keep=keep,
            n_dropped=int((~keep).sum()),
        )


def read_rows(
    predictions: Mapping[str, Any],
    protected: Any,
    outcome: Any,
    *,
    family: Family,
    confidence: float,
    sample_weight: Any = None,
    cluster: Any = None,
    positive: object = None,
) -> PredictedRows:
    """Read predictions; rows with a missing prediction, outcome or weight are dropped and counted."""
    given = {name: open_predictions(values) for name, values in predictions.items()}
    target = None if outcome is None else open_predictions(outcome)
    n = _count_rows(given, target, protected)
    for name, column in predictions.items():
        for table in (protected, outcome):
            if table is not None:
                check_alignment(table, column, f"{name}, a set of predictions,")
    weight = read_weight(sample_weight, n)
    keep = ~np.logical_or.reduce([raw.missing for raw in (*given.values(), *([] if target is None else [target]))])
    keep &= True if weight is None else weight > 0.0
    if not keep.any():
        raise InputError("No row has a prediction, an outcome and a weight: there is nothing to report.")
    codes = None if cluster is None else read_cluster(cluster, n)
    if not keep.all():
        given = {name: raw.take(keep) for name, raw in given.items()}
        target = None if target is None else target.take(keep)
        weight, codes = (None if part is None else part[keep] for part in (weight, codes))
    values, classes, y = _interpret(given, target, family, positive)
    kept = None if keep.all() else keep
    sample = Sample(weight, codes, confidence)
    return PredictedRows(values, family, classes, protected, y, sample, kept, int(n - keep.sum()))


def rows_of_audit(audited: Audited, protected: Table) -> PredictedRows:
    """Rows as an audit has read them; it has already said which rows it left out."""
    subject, coded, result = audited.subject, audited.coded, audited.result
    values = {} if subject.shape else {"": subject.values}
    sample = Sample(coded.columns.weight, coded.columns.cluster, result.confidence)
    keep = None if coded.keep.all() else coded.keep
    return PredictedRows(values, subject.family, subject.classes, protected, None, sample, keep)


def _count_rows(given: Mapping[str, Raw], target: Raw | None, protected: Any) -> int:
    sizes = {f"The set of predictions {name!r}": raw.n_rows for name, raw in given.items()}
    sizes |= {} if target is None else {"The outcome": target.n_rows}
    sizes |= {} if protected is None else {"The table of protected columns": n_rows(protected)}
    n = next(iter(sizes.values()))
    for what, rows in sizes.items():
        check_same_rows(f"{what} has", rows, "others have", n)
    return n


def _interpret(
    given: Mapping[str, Raw], target: Raw | None, glm: Family, positive: object
) -> tuple[dict[str, Array], tuple[str, ...], Array | None]:
    """Predictions as means or shares, names of the classes, and the outcome as numbers; units are not predictions."""
    if target is not None:
        classes = class_names(target, given, glm, positive)
        return {n: align(raw, glm, classes)[0] for n, raw in given.items()}, classes, code_outcome(target, classes)
    subjects = {name: read_predictions(raw, glm, positive=positive) for name, raw in given.items()}
    if any(subject.shape for subject in subjects.values()):
        return {}, (), None
    return {name: one.values for name, one in subjects.items()}, next(iter(subjects.values())).classes, None
