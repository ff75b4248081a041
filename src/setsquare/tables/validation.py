"""Checks of input, one sentence each: lengths, order, weights, offsets, clusters, finite values, options."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, NoReturn, ParamSpec, TypeVar

import numpy as np
from scipy import sparse

from setsquare._typing import Array, IntArray, Matrix, Table
from setsquare.errors import InputError, MissingValuesError
from setsquare.notes import Note, Option, lead, message

P = ParamSpec("P")
R = TypeVar("R")


def check_same_rows(what: str, n: int, other: str, n_other: int, *, advice: str = "") -> None:
    """Refuse two inputs of different lengths; ``what`` and ``other`` include their verb.

    Examples
    --------
    >>> check_same_rows("The outcome has", 3, "the features have", 3)
    """
    if n != n_other:
        raise InputError(f"{what} {n} rows but {other} {n_other}: pass the same rows in both{advice}.")


def check_alignment(table: Table, other: Any, what: str) -> None:
    """Refuse pandas objects with the same labels in another order: rows are matched by position, as in scikit-learn."""
    index: Any = getattr(table, "index", None)
    other_index: Any = getattr(other, "index", None)
    if not hasattr(index, "equals") or not hasattr(other_index, "equals") or len(index) != len(other_index):
        return
    if not index.equals(other_index) and index.is_unique and len(index.difference(other_index)) == 0:
        raise InputError(
            f"The rows of {what} have the labels of the features in another order: bring them into the same order, or "
            "reset the index of both if their order is right as it is."
        )


def read_weight(weight: Any, n_rows: int) -> Array | None:
    """Sample weights as float64, one per row; a single number stands for all rows."""
    if weight is None:
        return None
    array = _numbers(weight, "sample_weight")
    if array.ndim == 0:
        array = np.full(n_rows, float(array))
    check_per_row("sample_weight", array, n_rows)
    check_weight(array)
    return array


def check_weight(weight: Array) -> None:
    """Refuse sample weights that are negative, not finite, or all zero."""
    check_weight_values(weight)
    if not weight.any():
        refuse_zero_weight()


def check_weight_values(weight: Array) -> None:
    """Refuse sample weights that are negative or not finite; all of a batch may be zero."""
    if not np.isfinite(weight).all() or (weight < 0.0).any():
        raise InputError("Sample weights must be finite and not negative: remove or repair the rows that break this.")


def refuse_zero_weight() -> NoReturn:
    """Refuse sample weights that are all zero."""
    raise InputError("Sample weights must contain at least one non-zero number: give two rows or more a weight.")


def read_offset(offset: Any, n_rows: int) -> Array | None:
    """Offset of the linear predictor as float64, (n,) or (n, k)."""
    if offset is None:
        return None
    array = _numbers(offset, "offset")
    if array.ndim == 0 or len(array) != n_rows:
        check_per_row("offset", array, n_rows)
    return array


def check_offset(offset: Array) -> None:
    """Refuse an offset that is not finite."""
    if not np.isfinite(offset).all():
        raise InputError("The offset has missing or infinite values; note that an exposure of 0 has no logarithm.")


def read_cluster(cluster: Any, n_rows: int) -> IntArray:
    """Clusters as numbers 0, 1, ...; a missing label is refused."""
    values = np.asarray(cluster)
    values = values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values
    check_per_row("cluster", values, n_rows)
    labels = values.dtype.kind == "O"
    if any(map(is_missing, values)) if labels else values.dtype.kind in "fmM" and not np.isfinite(values).all():
        raise MissingValuesError("cluster has missing values: give each row a cluster.")
    if not labels:
        return np.unique(values, return_inverse=True)[1]
    place = {label: code for code, label in enumerate(sorted(dict.fromkeys(values), key=str))}
    return np.array([place[label] for label in values], dtype=np.int64)


def read_time(time: Any, n_rows: int) -> IntArray:
    """Times as ranks 0, 1, ...: numbers, dates, or text such as 2024-05-31; a missing one is refused.

    Examples
    --------
    >>> read_time(["2024-05-31", "2023-01-01", "2024-05-31"], 3).tolist()
    [1, 0, 1]
    """
    values = np.asarray(time)
    values = values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values
    check_per_row("time", values, n_rows)
    labels = values.dtype.kind in "OUS"
    lacking = any(map(is_missing, values)) if labels else values.dtype.kind in "fmM" and not np.isfinite(values).all()
    if lacking:
        raise MissingValuesError("time has missing values: give each row a time.")
    if labels:
        try:
            values = values.astype("datetime64[us]")
        except (TypeError, ValueError):
            raise InputError(
                f"time must be numbers or dates such as 2024-05-31, and {str(values[0])!r} is neither: convert it."
            ) from None
    return np.unique(values, return_inverse=True)[1]


def check_clusters(codes: IntArray) -> None:
    """Refuse a single cluster, which cannot be left out; the codes are those of :func:`read_cluster`."""
    if not codes.any():
        text = (
            "{cluster} has the same value in every row, so that no cluster can be left out: give a column that tells "
            "the clusters apart, or leave {cluster} out if the rows are independent."
        )
        raise InputError(Note("one-cluster", text, cluster=Option("cluster", words="cluster")))


def is_missing(value: Any) -> bool:
    """Whether a single value is None, NaN or pandas' NA."""
    try:
        return value is None or bool(value != value)
    except (TypeError, ValueError):  # pandas' NA is neither equal nor unequal to itself
        return True


def check_reference(reference: Mapping[str, Any], columns: Sequence[str]) -> None:
    """Refuse a reference group of a column that is not there."""
    for name in reference:
        if name not in columns:
            raise InputError(f"The reference names the column {name!r}, which is not among {list(columns)}.")


def check_roles(roles: Mapping[str, Sequence[str | None]]) -> None:
    """Refuse a column that has two roles.

    Examples
    --------
    >>> check_roles({"protected": ["sex", "age"], "outcome": ["income"]})
    """
    seen: dict[str, str] = {}
    for role, names in roles.items():
        for name in names:
            if name is not None and seen.setdefault(name, role) != role:
                raise InputError(f"The column {name!r} has two roles ({seen[name]} and {role}): choose one.")


def check_per_row(what: str, values: Array, n_rows: int) -> None:
    """Refuse anything but one value per row."""
    if values.shape != (n_rows,):
        raise InputError(f"{what} has the shape {values.shape} but there are {n_rows} rows: give one value per row.")


def are_finite(values: Array) -> bool:
    """Whether all numbers are finite, without a temporary array of the same size."""
    with np.errstate(over="ignore", invalid="ignore"):  # one bad number would spoil a sum, and that of squares is quick
        quick = values.flags.forc and values.dtype.kind == "f" and values.itemsize >= 4
        flat = values.ravel(order="K") if quick else None
        total = values.sum(dtype=np.float64) if flat is None else np.dot(flat, flat)
        if math.isfinite(total):
            return True
    return all(np.isfinite(values[start : start + 1000]).all() for start in range(0, len(values), 1000))


def check_finite(values: Matrix, names: Sequence[str], what: str) -> None:
    """Refuse missing or infinite values, with the name of the column and their number."""
    is_sparse = type(values) is not np.ndarray and bool(sparse.issparse(values))
    if are_finite(values.data if is_sparse else values):
        return
    by_column = values.tocsc() if is_sparse else None
    for j, name in enumerate(names):
        column = values[:, j] if by_column is None else by_column[:, [j]].data
        for count, kind in ((np.isnan(column).sum(), "NaN (missing)"), (np.isinf(column).sum(), "infinite")):
            if count:
                label = f"{what} {name}".strip()
                raise MissingValuesError(
                    f"{label[0].upper()}{label[1:]} has {count} {kind} value(s): "
                    'remove or fill them, or pass missing="drop" to an estimator.'
                )


def require_finite(what: str, *arrays: Array) -> None:
    """Refuse values that are not finite; ``what`` includes its verb, such as "The features have"."""
    if not all(map(are_finite, arrays)):
        refuse_not_finite(what)


def refuse_not_finite(what: str, remedy: str = "remove or fill them") -> NoReturn:
    """Refuse values that are not finite, with the sentence "``what`` missing or infinite values: ``remedy``"."""
    raise MissingValuesError(f"{what} missing (NaN) or infinite values: {remedy}.")


def check_second_moments(squares: Array) -> None:
    """Refuse features whose mean squares (q,) are not finite, by their positions."""
    bad = np.flatnonzero(~np.isfinite(squares))
    if len(bad):
        where = ", ".join(map(str, bad[:5])) + (", ..." if len(bad) > 5 else "")
        raise MissingValuesError(
            f"The features at position(s) {where} (counted from 0) have missing (NaN) or infinite values, or values so "
            "large that their squares exceed float64: remove, fill or rescale them."
        )


def refuse_missing_outcome(count: int, what: str = "The outcome has", remedy: Option | None = None) -> None:
    """Refuse missing outcomes, if there are any."""
    if count:
        text = "{what} {count} missing (NaN) value(s): " + ("{remedy:pass}." if remedy else "leave out those rows.")
        raise MissingValuesError(Note("missing-values", text, what=what, count=count, remedy=remedy))


def refuse_masked(values: Any) -> None:
    """Refuse a masked array, whose mask would be lost."""
    if type(values) is not np.ndarray and isinstance(values, np.ma.MaskedArray):
        raise InputError("Masked arrays are not read: fill the masked entries with NaN first.")


def refuse_lazy(table: Any) -> None:
    """Refuse a table that is not computed yet."""
    if hasattr(table, "collect") or hasattr(table, "compute"):
        raise InputError(f"A lazy {type(table).__name__} cannot be read here: collect or compute it first.")


def refuse_no_rows(columns: Sequence[str]) -> NoReturn:
    """Refuse a table without a complete row."""
    raise InputError(f"No row is left: every one has a missing value in {', '.join(map(repr, columns))}.")


def refuse_constant_protected(names: Sequence[str], purpose: str = "protect") -> NoReturn:
    """Refuse protected columns that are all constant."""
    listed = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
    raise InputError(
        f"Every protected column is constant ({listed}): there is nothing to {purpose}; name a column that varies."
    )


def check_moments(moments: Any) -> None:
    """Refuse moments other than the first two."""
    if isinstance(moments, bool) or moments not in (1, 2):
        raise InputError(f"moments must be 1 (means) or 2 (also variances and covariances), not {moments!r}.")


def refuse_constant_features() -> NoReturn:
    """Refuse features that are all constant."""
    raise InputError("Every feature is constant, so there is nothing to correct: pass features that vary.")


def check_classes(classes: Any, all_weighted: bool = True) -> None:
    """Refuse an outcome of a single class, or with a class whose rows all have the weight 0."""
    if len(classes) < 2:
        raise InputError(
            f"The outcome has only one class ({classes[0]}): there is nothing to predict; give rows of two classes at "
            "least."
        )
    if not all_weighted:
        raise InputError("After leaving out rows of weight 0 a class has no row: give it rows or leave it out.")


def refuse_coding(function: Callable[P, R]) -> Callable[P, R]:
    """Let a function refuse ``coding=``, the word before ``basis=``, with a sentence that names the new one."""

    @wraps(function)
    def checked(*arguments: P.args, **options: P.kwargs) -> R:
        if "coding" in options:
            raise InputError("coding= is now called basis=: pass basis='linear' for 'dummy', or basis='cells'.")
        return function(*arguments, **options)

    return checked


@contextmanager
def naming(name: str, *, among: int = 2) -> Iterator[None]:
    """Lead an error with the name of the predictions that it is about, where there are several."""
    try:
        yield
    except InputError as error:
        if among < 2:
            raise
        raise type(error)(lead(name, message(error))) from error


def check_choice(option: str, value: object, choices: Sequence[str]) -> None:
    """Refuse an option that does not exist.

    Examples
    --------
    >>> check_choice("vcov", "HC3", ("HC3", "model"))
    """
    if value not in choices:
        raise InputError(f"{option}={value!r} is not one of {', '.join(map(repr, choices))}.")


def check_l2(l2: float) -> None:
    """Refuse a ridge that is negative or not finite."""
    if not (np.isfinite(l2) and l2 >= 0.0):
        raise InputError(f"l2 must be a number of 0 or more, not {l2}.")


def check_one_column(outcome: Array) -> None:
    """Refuse an outcome of several columns."""
    if outcome.ndim != 1:
        raise InputError(f"The outcome must be one column, not the shape {outcome.shape}.")


def check_confidence(confidence: float) -> None:
    """Refuse a confidence that no interval can have."""
    if not 0.5 <= confidence < 1.0:
        text = "{confidence} must be between 0.5 and 1, such as 0.95."
        raise InputError(Note("confidence", text, confidence=Option("confidence", confidence)))


def check_cutoff(threshold: float) -> None:
    """Refuse a threshold of predictions that is not a number."""
    if not np.isfinite(threshold):
        raise InputError(f"threshold={threshold} must be a finite number.")


def check_max_rows(max_rows: int | None) -> None:
    """Refuse a sample of rows that is too small to say anything."""
    if max_rows is not None and max_rows < 100:
        raise InputError(f"max_rows={max_rows} is too few: give 100 or more.")


def check_folds(cv: int, n_rows: int) -> None:
    """Refuse a number of folds that the rows, or clusters, cannot be split into."""
    if not 2 <= cv <= n_rows:
        text = "{cv} folds of the rows (n_samples = {n}) are not possible: give 2 or more, at most one per row."
        raise InputError(Note("folds", text, cv=Option("cv", cv), n=n_rows))


def _numbers(values: Any, what: str) -> Array:
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{what} must be numbers, not {type(values).__name__}: give one value per row.") from None


def read_scores(scores: Any) -> Array:
    """Scores as one finite number per row."""
    try:
        s = np.asarray(scores, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError("The scores must be numbers: pass probabilities of the positive class.") from None
    s = s[:, 0] if s.ndim == 2 and s.shape[1] == 1 else s
    if s.ndim != 1 or not len(s):
        raise InputError(f"The scores must have one value per row, got shape {s.shape}: pass one column.")
    if count := int(np.count_nonzero(~np.isfinite(s))):
        raise InputError(f"The scores have {count} missing or infinite value(s): fill them in, or drop these rows.")
    return s
