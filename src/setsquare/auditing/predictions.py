"""Predictions of any shape, read as means of a family, class probabilities, or units."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from numbers import Number
from typing import Any

import narwhals.stable.v2 as nw
import numpy as np

from setsquare._typing import Array, BoolArray
from setsquare.auditing.protected import Predictions
from setsquare.errors import InputError, MissingValuesError
from setsquare.families import Family, family
from setsquare.glm.outcome_summary import OutcomeSummary
from setsquare.notes import Note, Option
from setsquare.tables.frame import to_numpy
from setsquare.tables.outcome import MANY_CLASSES, Values, class_name, positive_class, refuse_positive
from setsquare.tables.outcome import guess_family as guess
from setsquare.tables.text_values import refuse_strays
from setsquare.tables.validation import is_missing, refuse_lazy, refuse_masked

#: Codes of notes: the predictions are class labels; some lie outside the range of their family.
LABELS, OUTSIDE = "class-labels", "outside-range"
#: Tolerance for the row sums of class probabilities.
SUM = 1e-6
#: Tolerance for rounded class probabilities, times the number of classes.
ROUNDED = 0.005


@dataclass(frozen=True, slots=True)
class Subject:
    """Predictions, ready for an evaluation model.

    Attributes
    ----------
    values : ndarray of shape (n,), (n, K) or (n, ...)
        Means; shares of K classes; or units (a tensor, an embedding).
    family : Family
    classes : tuple of str
        Names of the classes if there are three or more.
    shape : tuple of int
        Shape of the units; empty for means and classes.
    n_outside : int
        Number of predictions outside the range of the family's mean.
    notes : tuple of Note
    positive : str
        The class, of two, whose probability was predicted; empty if it has no name.
    summary : OutcomeSummary or None
        Summary of means that are read in blocks; ``values`` is then empty.
    predictions : ndarray or OutcomeSummary
        The values, or their summary.
    mean : float
        Mean prediction.
    is_constant : bool
        Whether every row has the same prediction, up to rounding.
    """

    values: Array
    family: Family
    classes: tuple[str, ...] = ()
    shape: tuple[int, ...] = ()
    n_outside: int = 0
    notes: tuple[Note, ...] = ()
    positive: str = ""
    summary: OutcomeSummary | None = None

    predictions: Predictions = field(init=False, repr=False)
    mean: float = field(init=False)
    is_constant: bool = field(init=False)

    def __post_init__(self) -> None:
        if self.summary is not None:
            mean, low, high = self.summary.mean[0], np.asarray(self.summary.low), np.asarray(self.summary.high)
        else:
            flat = self.values.reshape(len(self.values), -1)
            mean, low, high = self.values.mean(), flat.min(axis=0), flat.max(axis=0)
        size = np.maximum(np.maximum(np.abs(low), np.abs(high)), 1e-300)
        object.__setattr__(self, "predictions", self.values if self.summary is None else self.summary)
        object.__setattr__(self, "mean", float(mean))
        object.__setattr__(self, "is_constant", bool((high - low <= 1e-10 * size).all()))


@dataclass(frozen=True, slots=True)
class Raw:
    """Predictions as an array, not yet interpreted.

    Attributes
    ----------
    array : ndarray of shape (n, ...)
        Numbers, or objects with None for missing values.
    names : tuple of str
        Columns of a dataframe, or the name of a series.
    missing : boolean ndarray of shape (n,)
        Rows with a missing or infinite value.
    is_category : bool
        Whether a series has a categorical type.
    """

    array: np.ndarray[Any, Any]
    names: tuple[str, ...]
    missing: BoolArray
    is_category: bool = False

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(self.array)

    def take(self, keep: BoolArray) -> Raw:
        """Return some of the rows."""
        return self if keep.all() else replace(self, array=self.array[keep], missing=self.missing[keep])

    def check_complete(self) -> None:
        """Refuse missing values."""
        if count := int(self.missing.sum()):
            text = "{count} row(s) of the predictions are missing (NaN) or infinite: remove them, or {drop:pass}."
            raise MissingValuesError(Note("missing-predictions", text, count=count, drop=Option("missing", "drop")))


def open_predictions(predictions: Any, classes: Sequence[Any] | None = None) -> Raw:
    """Read predictions of any kind into an array; `classes` name its columns."""
    array, names, is_category = _as_array(predictions)
    refuse_masked(array)
    if array.ndim == 0:
        raise InputError(
            f"The predictions must be an array with one row per observation, not {type(predictions).__name__}."
        )
    if array.dtype.kind in "cmMV":
        raise InputError(f"Predictions of type {array.dtype} cannot be audited: pass numbers or class labels.")
    if not array.size:
        raise InputError("There are no predictions: pass at least one row and one column.")
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.dtype.kind == "O":
        gone = np.array([is_missing(value) for value in array.ravel()]).reshape(array.shape)
        array = array.copy()
        array[gone] = None
        if _all_numbers(array[~gone]):
            array = np.where(gone, np.nan, array).astype(np.float64)
    if array.dtype.kind == "f":
        missing = ~np.isfinite(array.reshape(len(array), -1)).all(axis=1)
    else:
        missing = gone.reshape(len(array), -1).any(axis=1) if array.dtype.kind == "O" else np.zeros(len(array), bool)
    if classes is not None:
        names = tuple(str(name) for name in classes)
        if array.ndim != 2 or len(names) != array.shape[1]:
            raise InputError(
                f"There are {len(names)} classes for predictions of shape {array.shape}: name each column."
            )
    return Raw(array, names, missing, is_category)


def read_predictions(
    predictions: Any,
    glm: str | Family | None = None,
    positive: object = None,
) -> Subject:
    """Interpret complete predictions, with a note where the interpretation is a guess.

    Parameters
    ----------
    predictions : Raw, array, series or dataframe of shape (n,), (n, K) or (n, ...)
    glm : str or Family, optional
        Guessed by default: probabilities and labels are binomial (multinomial for three classes or more), other
        numbers gaussian.
    positive : object, optional
        Which of two classes is audited; see :func:`setsquare.tables.outcome.positive_class`.

    Examples
    --------
    >>> subject = read_predictions([[0.9, 0.1], [0.2, 0.8], [0.5, 0.5]])
    >>> subject.family.name, subject.values
    ('binomial', array([0.1, 0.8, 0.5]))
    >>> read_predictions(["no", "yes", "yes"]).notes
    ("The predictions are class labels, audited as 0 and 1 (1 is 'yes'): give probabilities where you have them.",)
    """
    asked = None if glm is None else family(glm)
    raw = predictions if isinstance(predictions, Raw) else open_predictions(predictions)
    raw.check_complete()
    found = _interpret(raw, asked, positive)
    if positive is None or found.positive:
        return found
    if found.shape or found.family.name != "binomial":
        refuse_positive(positive)
    return replace(found, positive=class_name(positive))


def _interpret(raw: Raw, asked: Family | None, positive: object) -> Subject:
    labels = _labels(raw, asked, positive) if raw.array.ndim == 1 else None
    if labels is not None:
        return labels
    values = _numbers(raw.array)
    if values.ndim == 2 and (sums := _sums_to_one(values, asked)):
        return _classes(values, raw.names, asked, positive, rounded=sums == "rounded")
    if values.ndim > 1:
        return _units(values, asked)
    if asked is not None and asked.is_vector:
        raise InputError("The multinomial family needs a column of probabilities for each class, or class labels.")
    return _means(values, asked)


def _as_array(predictions: Any) -> tuple[np.ndarray[Any, Any], tuple[str, ...], bool]:
    """Values, names of the columns, and whether a series has a categorical type."""
    try:
        native = predictions
        if type(predictions) is not np.ndarray:
            native = nw.from_native(predictions, eager_only=True, allow_series=True, pass_through=True)
        if isinstance(native, nw.Series):
            names = (str(native.name),) if native.name else ()
            return to_numpy(native), names, isinstance(native.dtype, nw.Categorical | nw.Enum)
        if isinstance(native, nw.DataFrame):
            return native.to_numpy(), tuple(str(name) for name in native.columns), False
        refuse_lazy(predictions)
        if hasattr(predictions, "detach"):  # a torch tensor, on any device
            predictions = predictions.detach().cpu().numpy()
        if hasattr(predictions, "toarray"):
            raise InputError("Sparse predictions are not supported: pass a dense array.")
        array = predictions if isinstance(predictions, np.ma.MaskedArray) else np.asarray(predictions)
        return array, (), False
    except (TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"Could not read the predictions as an array ({error}): pass one row per observation."
        ) from None


def _all_numbers(values: np.ndarray[Any, Any]) -> bool:
    return bool(len(values)) and all(
        isinstance(value, Number) and not isinstance(value, bool | np.bool_ | complex) for value in values
    )


def _numbers(array: np.ndarray[Any, Any]) -> Array:
    try:
        return array.astype(np.float64, copy=False)
    except (TypeError, ValueError):
        raise InputError(
            f"The predictions hold text or objects (such as {array.ravel()[0]!r}): pass numbers, or one column of "
            "labels."
        ) from None


def _labels(raw: Raw, asked: Family | None, positive: object) -> Subject | None:
    """Class labels as 0 and 1, or as indicators of three classes or more; None if these are numbers."""
    array = raw.array
    text, vector = array.dtype.kind in "OUSb", asked is not None and asked.is_vector
    if not text and not vector and (asked is not None and asked.name != "binomial"):
        return None
    if text and asked is not None and asked.name not in ("binomial", "multinomial"):
        sentence = "Class labels cannot be audited by the {name} family: leave {family} out."
        raise InputError(Note("labels-family", sentence, name=asked.name, family=Option("family")))
    if array.dtype.kind == "f" and not (array == np.floor(array)).all():
        return None
    as_text = array.astype(str) if array.dtype.kind == "O" else array
    levels, codes, counts = np.unique(as_text, return_inverse=True, return_counts=True)
    if not text and not vector and len(levels) != 2:
        return None  # counts or other numbers
    if text and not raw.is_category:
        refuse_strays("The column of predictions", dict(zip(levels.tolist(), counts.tolist(), strict=True)))
    if len(levels) > MANY_CLASSES:
        raise InputError(
            f"The predictions are text with {len(levels)} different values: give numbers, or class labels."
        )
    names = tuple(map(class_name, levels))
    kind, _ = guess(Values(n_levels=len(levels), is_text=True), "predictions")
    if kind == "binomial" and not vector:
        single = names[0] if positive is None else class_name(positive)  # a single label needs no choice
        one = single if len(names) == 1 else positive_class(names, positive)
        sentence = (
            "The predictions are class labels, audited as 0 and 1 (1 is {one!r}): give probabilities where you have "
            "them."
        )
        note = Note(LABELS, sentence, severity="caution", one=one)
        glm = family(kind) if asked is None else asked
        coded = np.array([float(name == one) for name in names])[codes]
        return Subject(coded, glm, notes=(note,), positive=one)
    if asked is not None and not asked.is_vector:
        sentence = "{count} labels are more than the binomial family takes: leave {family} out."
        raise InputError(Note("labels-family", sentence, count=len(levels), family=Option("family")))
    sentence = (
        "The predictions are labels of {count} classes, audited as indicators: give probabilities where you have them."
    )
    note = Note(LABELS, sentence, severity="caution", count=len(levels))
    return Subject(np.eye(len(levels))[codes], family("multinomial"), classes=names, notes=(note,))


def _sums_to_one(values: Array, asked: Family | None) -> str:
    """Whether rows are class probabilities: "exactly", "rounded" or not ("")."""
    if asked is not None and asked.name not in ("binomial", "multinomial"):
        return ""
    gap = float(np.abs(values.sum(axis=1) - 1.0).max())
    if gap <= SUM:
        return "exactly"
    if gap <= ROUNDED * values.shape[1] and values.min() >= 0.0 and values.max() <= 1.0:
        return "rounded"
    if asked is not None and (asked.is_vector or values.min() < 0.0 or values.max() > 1.0):
        raise InputError(
            f"Rows of {values.shape[1]} predictions do not sum to 1, so they are not class probabilities: pass one "
            "column, or probabilities of all classes."
        )
    return ""


def _classes(values: Array, names: Sequence[str], asked: Family | None, positive: object, *, rounded: bool) -> Subject:
    notes = []
    if rounded:
        values = values / values.sum(axis=1, keepdims=True)
        text = "The rows of probabilities sum to 1 only roughly, and were scaled to do so."
        notes.append(Note("probabilities-scaled", text))
    if values.shape[1] == 2 and (asked is None or not asked.is_vector):
        # As in scikit-learn, the second of two columns is the positive class.
        shown = tuple(names) or ("first column", "second column")
        one = shown[1] if positive is None else positive_class(shown, positive)
        found = _means(values[:, shown.index(one)], asked or family("binomial"))
        return replace(found, notes=(*notes, *found.notes), positive=one)
    if asked is not None and not asked.is_vector:
        text = (
            "Probabilities of {count} classes are audited by the multinomial family, not by the {name} one: leave "
            "{family} out."
        )
        note = Note("classes-family", text, count=values.shape[1], name=asked.name, family=Option("family"))
        raise InputError(note)
    classes = tuple(names) or tuple(str(j) for j in range(values.shape[1]))
    used = np.abs(values).sum(axis=0) > 0.0
    if not used.all():
        empty = ", ".join(name for name, here in zip(classes, used, strict=True) if not here)
        text = "Class(es) {classes} have probability 0 in every row and were left out."
        notes.append(Note("classes-left-out", text, classes=empty))
    outside = int(((values < 0.0) | (values > 1.0)).any(axis=1).sum())
    return Subject(
        values[:, used],
        family("multinomial"),
        tuple(name for name, here in zip(classes, used, strict=True) if here),
        n_outside=outside,
        notes=(*notes, *outside_note(outside, len(values), "multinomial")),
    )


def _units(values: Array, asked: Family | None) -> Subject:
    glm, flat = asked or family("gaussian"), values.reshape(len(values), -1)
    low, high = glm.activation.range
    mean, varies = flat.mean(axis=0), np.ptp(flat, axis=0) > 0.0
    wrong = glm.is_vector or bool((varies & ~((low < mean) & (mean < high))).any())
    if wrong:
        text = (
            "Predictions of shape {shape} are units, one or more of which cannot be means of the {name} family: leave "
            "{family} out for the linear evaluation model, or give one column."
        )
        raise InputError(Note("units-family", text, shape=values.shape, name=glm.name, family=Option("family")))
    outside = int(((flat < low) | (flat > high)).any(axis=1).sum())
    notes = outside_note(outside, len(flat), glm.name)
    return Subject(flat, glm, shape=values.shape[1:], n_outside=outside, notes=notes)


def _means(values: Array, asked: Family | None) -> Subject:
    glm, notes = guess_family(float(values.min()), float(values.max()), asked)
    low, high = glm.activation.range
    outside = int(((values < low) | (values > high)).sum())
    return Subject(values, glm, n_outside=outside, notes=(*notes, *outside_note(outside, len(values), glm.name)))


def guess_family(low: float, high: float, asked: Family | None) -> tuple[Family, tuple[Note, ...]]:
    """Return the family requested, or the default for numbers in this range, with a note."""
    if asked is not None:
        return asked, ()
    name, _ = guess(Values(low, high), "predictions")
    kind = "probabilities (binomial)" if name == "binomial" else "real numbers (gaussian)"
    text = "The predictions were read as {kind}: {family:pass} if they are something else."
    return family(name), (Note("family-guessed", text, kind=kind, family=Option("family")),)


def outside_note(count: int, n: int, name: str) -> tuple[Note, ...]:
    """Note the number of predictions outside the range of the family."""
    if not count:
        return ()
    text = (
        "{count} of {n} predictions lie outside the range of the {name} family; they were used as they are, since the "
        "estimating equations only require group means within the range."
    )
    return (Note(OUTSIDE, text, severity="caution", count=count, n=n, name=name),)
