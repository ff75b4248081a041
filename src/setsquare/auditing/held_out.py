"""Audit of held-out predictions from several folds, with corrections for cross-validation.

The mean of a model's predictions depends on the outcomes that it was fitted to. Where a fold has many rows of a group,
the training rows of its model have few: the means of the models move against the held-out rows, and pooled predictions
depend on the protected columns although no model does. The mean prediction of each model on its training rows is
therefore subtracted. This also works for folds of a single row, and keeps the differences between folds that the
features explain.

A model may also be fitted to a protected column that the audit receives as a separate table: the column may still be
among the features, renamed, recoded, or as a linear combination of others. :func:`determines` compares values.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import narwhals.stable.v2 as nw
import numpy as np
from sklearn.utils import _safe_indexing

from setsquare._typing import Array, IntArray, Table
from setsquare.auditing.audit_predictions import Audited, audit_rows
from setsquare.auditing.fold_bounds import allow_for_fit, take_left_out
from setsquare.auditing.fold_dependence import allow_for_mutual_scores, mutual_scores
from setsquare.auditing.options import read_options
from setsquare.auditing.partly_missing import weigh_known
from setsquare.auditing.predictions import OUTSIDE, open_predictions, read_predictions
from setsquare.auditing.result import AuditResult
from setsquare.auditing.verdict import decide
from setsquare.glm.new_rows_bound import NewRows
from setsquare.notes import Note
from setsquare.tables.partly_missing import MODEL

#: Means that differ less than this, relative to the standard deviation within folds, are not subtracted.
SAME = 0.02
#: The mean of a model is taken over as many training rows as are held out, but at least this many.
SEEN = 500


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Held-out predictions: each row is predicted by a model that was not fitted to it.

    Attributes
    ----------
    predictions : ndarray of shape (n, ...)
        As the models gave them.
    classes : sequence or None
        Classes of a classifier.
    folds : list of pairs of index arrays
        Training and test rows.
    numbers : ndarray of shape (n, k)
        Predictions as numbers; labels as indicators of the classes. k = 0 if that is not possible.
    means : ndarray of shape (n, k)
        Mean prediction of the model of each row.
    """

    predictions: Any
    classes: Any
    folds: list[tuple[Any, Any]]
    numbers: Array
    means: Array

    @property
    def growth(self) -> float:
        """Rows over training rows of a fold."""
        return len(self.predictions) / min(len(train) for train, _ in self.folds)

    @property
    def means_differ(self) -> bool:
        """Whether the means of the models differ enough to affect a test."""
        between = self.means.std(axis=0)
        within = (self.numbers - self.means).std(axis=0)
        return bool((between > np.maximum(SAME * within, 1e-12 * np.abs(self.means).max(axis=0, initial=0.0))).any())

    @property
    def centred(self) -> Array:
        """Predictions as numbers, as if all models had the same mean."""
        gap = self.numbers - self.means
        rounding = 1e-12 * np.abs(self.numbers).max(axis=0, initial=0.0)
        return np.asarray(np.where(np.abs(gap) > rounding, gap, 0.0) + self.means.mean(axis=0))

    def at(self, rows: IntArray) -> HeldOut:
        """Return the predictions of some rows; the folds stay those of all rows."""
        return replace(self, predictions=self.predictions[rows], numbers=self.numbers[rows], means=self.means[rows])

    def audited(self) -> Any:
        """Return the values to audit: the predictions, or centred numbers if the means differ."""
        if not self.means_differ:
            return self.predictions
        if self.predictions.ndim == 1 and self.numbers.shape[1] > 1:  # labels
            return self.centred[:, 1] if self.numbers.shape[1] == 2 else self.centred
        return self.centred.reshape(self.predictions.shape)


def as_numbers(values: Any, classes: Any) -> Array:
    """Predictions or outcomes as numbers, (n, k): indicators where they are labels of the `classes`.

    Examples
    --------
    >>> as_numbers(np.array(["no", "yes"]), np.array(["no", "yes"]))
    array([[1., 0.],
           [0., 1.]])
    >>> as_numbers(np.array(["no", "yes"]), None).shape  # cannot be read
    (2, 0)
    """
    array = np.asarray(values)
    if classes is not None and array.ndim == 1 and np.ndim(classes) == 1:
        return np.asarray(array[:, None] == np.asarray(classes)[None, :], dtype=np.float64)
    try:
        return array.reshape(len(array), -1).astype(np.float64)
    except (TypeError, ValueError):
        return np.zeros((len(array), 0))


#: Note for models that were fitted to the protected columns.
CANCEL = Note(
    "folds-cancel",
    "The models were fitted to the protected columns. Cross-validation then understates the correlation on new rows; "
    "the bounds correct for this.",
)
#: Note for our own models, whose leave-one-out predictions are known.
LEFT_OUT = Note(
    "leave-one-out",
    "The upper bounds on correlations are those of the model fitted to all rows, from its leave-one-out predictions.",
)


def audit_held_out(
    held: HeldOut,
    y: Any,
    protected: Table,
    *,
    told: bool,
    features: Any = None,
    sample_weight: Any = None,
    left_out: NewRows | None = None,
    **options: Any,
) -> AuditResult:
    """Audit held-out predictions; `options` are those of :func:`audit`.

    Parameters
    ----------
    held : HeldOut
    y : array of n values
        The outcome that the models were fitted to.
    protected : table of n rows
    told : bool
        Whether the models were fitted to the protected columns; see :mod:`setsquare.auditing.fold_bounds`.
    features : table of n rows, optional
        Features of the models; where they determine a protected column, the models were fitted to it.
    sample_weight : array of n values, optional
    left_out : NewRows, optional
        Leave-one-out bounds of the model that was fitted to all rows; without them those of the folds are used.
    """
    known = np.unique(np.asarray(y))
    if held.classes is not None and held.predictions.ndim == 1 and len(known) == 2:
        options = {"positive": known[1]} | options  # for labels, too, the second class is positive, as in scikit-learn
    stated: tuple[Note, ...] = ()
    if options.get("missing") == MODEL:
        cluster = options.get("cluster")
        sample_weight, stated = weigh_known(held.predictions, protected, sample_weight, cluster, y, features)
        options = options | {"missing": "drop" if stated else "error"}
    audited = audit_pooled(held, protected, {"sample_weight": sample_weight, **options})
    result = replace(audited.result, notes=(*stated, *audited.result.notes))
    if not result.evaluations:
        return result  # constant predictions
    keep, coded = audited.coded.keep, audited.coded.columns
    outcome = as_numbers(y, held.classes)[keep]
    if outcome.shape[1] and np.isfinite(outcome).all() and held.numbers.shape[1]:
        predictions = (held.numbers - held.means)[keep]
        result = allow_for_mutual_scores(result, mutual_scores(outcome, np.nan_to_num(predictions), coded))
    if features is not None and not told:
        rows = features if keep.all() else _safe_indexing(features, np.flatnonzero(keep))
        told = determines(rows, coded.values, np.random.default_rng(options.get("random_state", 0)))
    if told:
        bounds = allow_for_fit(result.certificate, held.growth, coded.basis.rank)
        note = CANCEL
        if left_out is not None and left_out.confidence == bounds.confidence:
            bounds, note = take_left_out(bounds, left_out), LEFT_OUT
        result = replace(result, certificate=bounds, notes=(*result.notes, note))
    return decide(result)


def audit_pooled(held: HeldOut, protected: Table, options: dict[str, Any]) -> Audited:
    """Audit the predictions of all folds together, minus the means of the models where they differ."""
    values = held.audited()
    if np.ndim(values) == 2 and held.classes is not None:
        options = {"classes": held.classes} | options
    if values is held.predictions:
        return audit_rows(values, protected, read_options(**options))
    # The family is that of the original predictions: subtracting a mean does not change it.
    raw = open_predictions(held.predictions, held.classes if held.predictions.ndim == 2 else None)
    subject = read_predictions(raw.take(~raw.missing), options.get("family"), options.get("positive"))
    if np.ndim(values) == 1:
        options = options | {"positive": None}  # no longer labels or class probabilities
    found = audit_rows(values, protected, read_options(**options | {"family": subject.family}))
    notes = (*subject.notes, *(note for note in found.result.notes if note.code != OUTSIDE))
    return replace(found, result=replace(found.result, positive=subject.positive, notes=notes))


#: Number of rows compared; more of them for many features.
COMPARED = 2000
#: With more features than this, only single columns are compared, and only up to scale.
WIDE = 1000
#: Share of a column's variance that is attributed to rounding.
ROUNDING = 1e-8


def determines(Z: Any, X: Array, rng: np.random.Generator) -> bool:
    """Whether a protected column is a function of one feature, or a linear combination of several.

    Parameters
    ----------
    Z : dataframe, array, sparse matrix or list of n rows
        Features.
    X : ndarray of shape (n, p)
        Coded protected columns.
    rng : Generator
        Chooses the rows that are compared.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> Z = rng.normal(size=(100, 3))
    >>> x = (rng.random(100) < 0.4).astype(float)
    >>> determines(Z, x[:, None], rng), determines(np.column_stack([Z, Z[:, 0] - 2.0 * x]), x[:, None], rng)
    (False, True)
    """
    n = len(X)
    m = min(n, max(COMPARED, 3 * _width(Z)) if _width(Z) <= WIDE else COMPARED)
    rows = np.sort(rng.choice(n, m, replace=False)) if m < n else np.arange(n)
    X = X[rows] - X[rows].mean(axis=0)
    size = np.linalg.norm(X, axis=0)
    X = X[:, size > 0.0] / size[size > 0.0]
    if not X.shape[1]:
        return False
    part = _safe_indexing(Z, rows)
    if _width(Z) > WIDE or hasattr(part, "tocsr"):
        return _resembles(part if hasattr(part, "tocsr") else _matrix(part), X)
    numbers: list[Array] = []
    for codes, values in _columns(part, m):
        if codes is not None and _is_function(codes, X):
            return True
        numbers += [] if values is None else [values]
    return bool(numbers) and _combines(np.column_stack(numbers), X)


def _width(Z: Any) -> int:
    shape = np.shape(Z) if not hasattr(Z, "shape") else Z.shape
    return int(np.prod(shape[1:])) if len(shape) > 1 else 1


def _matrix(part: Any) -> Array:
    """Wide features as numbers; columns that are not numeric are skipped."""
    try:
        values = np.asarray(part, dtype=np.float64).reshape(len(part), -1)
    except (TypeError, ValueError):
        return np.zeros((len(part), 0))
    return np.asarray(values[:, np.isfinite(values).all(axis=0)])


def _resembles(F: Any, X: Array) -> bool:
    """Whether some column of the features, dense or sparse, is one of ``X`` in other units."""
    squares = F.multiply(F) if hasattr(F, "tocsr") else F * F
    mean, square = (np.asarray(part.mean(axis=0)).ravel() for part in (F, squares))
    spread = np.maximum(square - mean**2, 0.0)
    varies = spread > 1e-12 * square
    if not varies.any():
        return False
    size = np.sqrt(len(X) * np.where(varies, spread, np.inf))
    correlation = np.asarray(F.T @ X) / size[:, None]
    return bool((1.0 - correlation**2).min() < ROUNDING)


def _columns(part: Any, m: int) -> Iterator[tuple[IntArray | None, Array | None]]:
    """Level codes of each feature with few levels, and the values of each numeric feature."""
    frame = nw.from_native(part, eager_only=True, allow_series=True, pass_through=True)
    if isinstance(frame, nw.DataFrame):
        columns = [frame[:, j].to_numpy() for j in range(frame.shape[1])]
    else:
        columns = list(np.asarray(part).reshape(m, -1).T)
    for column in columns:
        values: Array | None
        try:
            values = np.asarray(column, dtype=np.float64)
        except (TypeError, ValueError):
            values = None
        levels, codes = np.unique(column.astype(str) if values is None else values, return_inverse=True)
        few = 1 < len(levels) <= max(2, m // 10)
        yield (codes if few else None), (values if values is not None and np.isfinite(values).all() else None)


def _is_function(codes: IntArray, X: Array) -> bool:
    """Whether rows with the same level always have the same value of some protected column."""
    first = np.unique(codes, return_index=True)[1]
    return bool((np.abs(X - X[first[codes]]).max(axis=0) == 0.0).any())


def _combines(F: Array, X: Array) -> bool:
    """Whether a linear combination of the features is a column of ``X``."""
    F = F - F.mean(axis=0)
    size = np.linalg.norm(F, axis=0)
    F = F[:, size > 0.0] / size[size > 0.0]
    if not F.shape[1]:
        return False
    if 2 * F.shape[1] > len(X):  # this many features can fit any column
        return bool((1.0 - (F.T @ X) ** 2).min() < ROUNDING)
    left = X - F @ np.linalg.lstsq(F, X, rcond=1e-12)[0]
    return bool((left**2).sum(axis=0).min() < ROUNDING)
