"""Folds of rows in which a model is refitted, and its predictions for the rows that each fold holds out."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
from sklearn import config_context
from sklearn.base import clone, is_classifier
from sklearn.model_selection import GroupKFold, KFold, StratifiedKFold, check_cv, cross_val_predict

from setsquare._typing import IntArray, Table
from setsquare.errors import InputError, PooledLevelWarning
from setsquare.notes import Note, Option
from setsquare.tables.validation import check_clusters, check_folds, read_cluster, read_time

Folds = list[tuple[IntArray, IntArray]]
#: Value of ``cv`` that learns the correction on the rows that the model is fitted on.
IN_SAMPLE = "training rows"


def check_cv_text(cv: str) -> None:
    """Refuse a text other than "training rows"; "prefit" is what scikit-learn had for fitted models."""
    if cv != IN_SAMPLE:
        fitted = "; for a fitted model pass prefit=True" if cv == "prefit" else ""
        raise InputError(f"cv={cv!r} is not a number of folds, a splitter, None or {IN_SAMPLE!r}{fitted}.")


def split_rows(cv: Any, outcome: Any, cluster: Any, classifier: bool, seed: int) -> Folds:
    """Disjoint training and test rows of each fold; each row is tested once.

    A number of folds is shuffled, stratified by class for a classifier, and never splits a cluster.

    Examples
    --------
    >>> import numpy as np
    >>> sorted(test.tolist() for _, test in split_rows(2, np.zeros(4), np.array([0, 0, 1, 1]), False, 0))
    [[0, 1], [2, 3]]
    """
    groups = None if cluster is None else read_cluster(cluster, len(outcome))
    if isinstance(cv, int | np.integer) and not isinstance(cv, bool):
        _check_number(int(cv), len(outcome), groups)
        kinds = (StratifiedKFold if classifier else KFold) if groups is None else GroupKFold
        splitter = kinds(int(cv), shuffle=True, random_state=seed)
        strata = (
            np.unique(outcome, return_inverse=True)[1] if classifier else outcome
        )  # labels are checked by the model
    else:
        try:
            splitter, strata = check_cv(cv, outcome, classifier=classifier), outcome
        except (TypeError, ValueError) as error:
            raise InputError(f"cv must be a number of folds, a splitter or a list, not {cv!r} ({error}).") from None
    try:
        with warnings.catch_warnings():
            # What these say matters only if a fold lacks a class or splits a cluster, which is refused.
            warnings.filterwarnings("ignore", "The least populated class|The groups parameter is ignored", UserWarning)
            parts = list(splitter.split(np.zeros((len(outcome), 1)), strata, groups))
    except ValueError as error:
        raise InputError(f"The rows cannot be split: {error}") from None
    folds = [(np.asarray(train), np.asarray(test)) for train, test in parts]
    _check_folds(folds, len(outcome), groups)
    return folds


def split_by_time(time: Any, cv: Any, n_rows: int, cluster: Any) -> Folds:
    """Folds in which earlier rows predict later ones: `cv` spans of time after a first one, which is never tested.

    Rows of the same time, and clusters (at the time of their first row), are never split between spans.

    Examples
    --------
    >>> [(train.tolist(), test.tolist()) for train, test in split_by_time([3, 1, 2, 1], 2, 4, None)]
    [([1, 3], [2]), ([1, 2, 3], [0])]
    """
    moments = read_time(time, n_rows)
    if cluster is not None:
        groups = read_cluster(cluster, n_rows)
        first = np.full(int(groups.max()) + 1, np.iinfo(np.int64).max)
        np.minimum.at(first, groups, moments)
        moments = first[groups]
    _, moments, counts = np.unique(moments, return_inverse=True, return_counts=True)
    if not isinstance(cv, int | np.integer) or isinstance(cv, bool) or not 1 <= cv < len(counts):
        text = "{cv} spans of time cannot be held out of {n} distinct times: give a number from 1 to {most}."
        raise InputError(Note("time-spans", text, cv=Option("cv", cv), n=len(counts), most=max(len(counts) - 1, 1)))
    middle = np.cumsum(counts) - 0.5 * counts
    spans = np.minimum((middle * (cv + 1) / n_rows).astype(int), cv)[moments]
    folds = [(np.flatnonzero(spans < span), np.flatnonzero(spans == span)) for span in range(1, cv + 1)]
    if any(not len(train) or not len(test) for train, test in folds):
        text = "Most rows have the same time, so that {cv} spans cannot be formed: give fewer."
        raise InputError(Note("time-ties", text, cv=Option("cv", cv)))
    return folds


def _check_number(cv: int, n_rows: int, groups: IntArray | None) -> None:
    if groups is None:
        check_folds(cv, n_rows)
        return
    check_clusters(groups)
    n_clusters = int(groups.max()) + 1
    if not 2 <= cv <= n_clusters:
        text = "{cv} folds of {n} clusters are not possible: give 2 to {n} folds."
        raise InputError(Note("folds", text, cv=Option("cv", cv), n=n_clusters))


def _check_folds(folds: Folds, n_rows: int, groups: IntArray | None) -> None:
    tested = np.concatenate([test for _, test in folds]) if folds else np.zeros(0, dtype=int)
    if len(tested) != n_rows or len(np.unique(tested)) != n_rows:
        raise InputError("The folds must hold out each row exactly once: use KFold or a similar splitter.")
    if any(np.intersect1d(train, test).size for train, test in folds):
        raise InputError("A fold trains on rows that it tests: use KFold or a similar splitter, which holds them out.")
    if groups is not None and any(np.intersect1d(groups[train], groups[test]).size for train, test in folds):
        raise InputError("A fold trains on some rows of a cluster and tests others: use GroupKFold, or a number.")


def pools_unseen(estimator: Any) -> dict[str, Any]:
    """Parameters with which our models, also inside a pipeline, pool levels that are absent from a fold."""
    return {
        name: "pool"
        for name, value in estimator.get_params().items()
        if name.split("__")[-1] == "unseen" and value == "error"
    }


def cross_fitted_predictions(
    estimator: Any, features: Table, y: Any, folds: Folds, options: Mapping[str, Any]
) -> np.ndarray[Any, Any]:
    """Prediction of each row by a model that was fitted without its fold: means, or probabilities of every class.

    Parameters
    ----------
    estimator : estimator
        Cloned for each fold. Where our models have ``unseen="error"``, rows of a level that the other folds do not have
        count as the reference level.
    features : dataframe or array of n rows
    y : ndarray of shape (n,)
    folds : list of (training rows, test rows)
    options : mapping
        Further arguments of ``fit``, one value per row.
    """
    classifier = is_classifier(estimator)
    if classifier:
        _refuse_missing_class(np.asarray(y), folds)
    method = "predict_proba" if classifier else "predict"
    try:
        # The weights are for the model, whatever it has requested.
        with config_context(enable_metadata_routing=False), warnings.catch_warnings():
            warnings.simplefilter("ignore", PooledLevelWarning)
            model = clone(estimator).set_params(**pools_unseen(estimator))
            found = cross_val_predict(model, features, y, cv=folds, method=method, params=dict(options))
    except ValueError as error:  # the fit to all rows went well
        text = (
            "{model} was fitted to all rows but failed on a fold of them: {error} If a level occurs in one fold "
            "only, pool it with another or let the model ignore unknown levels; {in_sample:or pass} to learn the "
            "correction on the training rows."
        )
        reason = str(error).strip().splitlines()[0].rstrip(".") + "."
        note = Note("fold", text, model=type(estimator).__name__, error=reason, in_sample=Option("cv", "training rows"))
        raise InputError(note) from error
    return np.asarray(found)


def _refuse_missing_class(y: np.ndarray[Any, Any], folds: Folds) -> None:
    """Refuse folds whose training rows lack a class: their model could not predict it."""
    classes, codes = np.unique(y, return_inverse=True)
    for train, _ in folds:
        absent = np.flatnonzero(np.bincount(codes[train], minlength=len(classes)) == 0)
        if len(absent):
            name, count = classes[absent[0]], int(np.count_nonzero(codes == absent[0]))
            text = (
                "All {count} row(s) of the class {name!r} are in one fold, and the model of this fold cannot predict "
                "it: pool the class with another, give it rows in more clusters or folds, {in_sample:or pass} to "
                "learn the correction on the training rows."
            )
            in_sample = Option("cv", IN_SAMPLE)
            raise InputError(Note("class-in-one-fold", text, count=count, name=str(name), in_sample=in_sample))
