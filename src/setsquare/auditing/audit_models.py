"""Audit of a model: refit it in folds and audit its predictions for held-out rows."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from sklearn import get_config
from sklearn.base import clone, is_classifier
from sklearn.utils import _safe_indexing
from sklearn.utils.metadata_routing import get_routing_for_object

from setsquare import tables
from setsquare._typing import Array, Table
from setsquare.auditing.audit_predictions import audit
from setsquare.auditing.fit_noise import allow_for_fit_noise
from setsquare.auditing.held_out import SEEN, HeldOut, as_numbers, audit_held_out, audit_pooled
from setsquare.auditing.result import AuditResult
from setsquare.auditing.verdict import IN_SAMPLE
from setsquare.errors import InputError, SetsquareWarning
from setsquare.estimators import PredictionOrthogonalizer
from setsquare.estimators.folds import Folds, split_by_time, split_rows
from setsquare.estimators.glm import OrthogonalGLM
from setsquare.glm.new_rows_bound import NewRows
from setsquare.notes import Note
from setsquare.tables.arrow import accept_unread
from setsquare.tables.validation import check_alignment, check_same_rows


@accept_unread
def audit_model(
    estimator: Any,
    Z: Table,
    y: Any,
    protected: Any,
    *,
    cv: Any = 5,
    time: Any = None,
    sample_weight: Any = None,
    progress: Callable[[int, int], None] | None = None,
    random_state: int = 0,
    **options: Any,
) -> AuditResult:
    """Audit the predictions of a model on rows that it was not fitted on.

    Parameters
    ----------
    estimator : scikit-learn estimator
        Cloned and refitted in each fold. A classifier is audited by its probabilities where it has them.
    Z : dataframe or array of n rows
        Features.
    y : array of n values
        Outcome.
    protected : names of columns of `Z`, or a table of n rows
        Columns that the predictions must not depend on. Passed to `fit` if the estimator accepts them.
    cv : int, splitter, iterable, None or "prefit"
        Folds (shuffled for a number; with ``cluster=`` a cluster is never split). None fits and audits on the same
        rows, and "prefit" audits a fitted model on the rows given; the result is labelled accordingly.
    time : array of n numbers or dates, optional
        Time of each row. Each row is then predicted by a model that was fitted to earlier rows only, as in use: the
        rows are divided into ``cv + 1`` spans of time, of which the first is never audited. Rows that change over
        time, so that later ones are not like earlier ones, are the most common reason for a broken promise.
    sample_weight : array of n values, optional
        Weights of the audit; the model is fitted without them. They can carry the rows to another population.
    progress : callable, optional
        Called as ``progress(done, total)`` after each fold.
    random_state : int
    **options
        Everything else goes to :func:`audit`.

    Returns
    -------
    AuditResult

    Notes
    -----
    The predictions of all folds are audited together, with these corrections.

    * A model's mean depends on the outcomes of its training rows, which contain few rows of a group when the held-out
      rows contain many. Each model's mean prediction on training rows is therefore subtracted.
    * Rows are used to predict each other. Where the outcome depends on a protected column more than the predictions do,
      this increases the variance of the test, up to twofold; standard errors, p-values and bounds take it into account.
    * ``cv="prefit"`` finds the sampling error of a fit as well as a leak: on m rows, the statistic of a model that is
      exact on n other rows is ``1 + m / n`` times a chi-squared variable. For our own generalised linear models a note
      gives the p-value that allows for it.
    * Upper bounds on the correlations of our own generalised linear models come from the leave-one-out predictions of
      one more fit to all rows, which are tighter than bounds by folds, unless ``sample_weight`` is given.
    * Other models that are fitted to the protected columns can make the errors of the folds cancel, so that pooled
      correlations are smaller than those on new rows. The upper bounds correct for this: they hold on new rows for the
      models of the folds, and so for a model fitted to all rows; the tests become conservative. The correction is
      applied where the columns are passed to ``fit``, named in a parameter ``protected``, or determined by the
      features: by value, under any name, recoded or as a linear combination. The audit cannot detect an estimator that
      receives them in another way, nor features that were corrected before the split into folds: put such a correction
      into a pipeline.

    Examples
    --------
    >>> from sklearn.linear_model import LinearRegression
    >>> import setsquare as sq
    >>> data = sq.datasets.load_diabetes()
    >>> measurements = data.features_table().drop(columns=["age", "sex"])
    >>> result = sq.audit_model(LinearRegression(), measurements, data.y, data.protected_table())
    >>> print(result.verdict, "|", result.setting)
    leak | held out (5 folds)
    """
    table, inside = _protected(Z, protected)
    beside = None if inside else table
    n = tables.n_rows(Z)
    prefit = isinstance(cv, str) and cv == "prefit"
    if time is not None and (cv is None or prefit):
        raise InputError(f"time= needs a number of spans in cv, not {cv!r}.")
    options = _with_outcome(options, y)
    if y is not None or not prefit:
        check_same_rows("The outcome has", len(y), "the features have", n)
    check_same_rows("protected has", tables.n_rows(table), "the features have", n)
    check_alignment(Z, table, "protected")
    check_alignment(Z, y, "the outcome")
    if cv is None or prefit:
        own = cluster_for(estimator, options.get("cluster"))
        fitted = estimator if prefit else _fit(clone(estimator), Z, y, beside, **own)
        predictions, classes = _predict(fitted, Z, beside), _classes(fitted)
        setting = "a fitted model on the rows given" if prefit else IN_SAMPLE
        if predictions.ndim == 2 and classes is not None:
            options = {"classes": classes} | options
        elif classes is not None and len(known := np.unique(classes if prefit else np.asarray(y))) == 2:
            options = {"positive": known[1]} | options  # for labels, too, the second class is positive
        result = audit(predictions, table, sample_weight=sample_weight, random_state=random_state, **options)
        if not prefit:
            text = (
                "This audit is in-sample: the model was fitted and audited on the same rows, which says little about "
                "new rows."
            )
            note = Note("in-sample", text, severity="warning")
            result = replace(result, notes=(note, *result.notes))
        else:
            result = allow_for_fit_noise(result, estimator)
        return replace(result, setting=setting)
    rng, cluster = np.random.default_rng(random_state), options.get("cluster")
    how = {"sample_weight": sample_weight, "random_state": random_state} | options
    if time is not None:
        folds = split_by_time(time, cv, n, cluster)
        return _audit_later(predict_in(folds, estimator, Z, y, beside, cluster, progress, rng), table, how)
    held = predict_held_out(estimator, Z, y, beside, cv, cluster, progress, rng)
    told = inside or _is_told(estimator, beside)
    if options.get("given") is not None:
        return replace(audit_given(held, table, **how), setting=f"held out ({len(held.folds)} folds)")
    if isinstance(estimator, OrthogonalGLM) and sample_weight is None:
        how["left_out"] = left_out_bounds(estimator, Z, y, beside, options)
    result = audit_held_out(held, y, table, told=told, features=Z, **how)
    return replace(result, setting=f"held out ({len(held.folds)} folds)")


#: Options of :func:`audit` that have one value per row.
OF_ROWS = ("sample_weight", "cluster", "decisions", "outcome", "given")


def _audit_later(held: HeldOut, protected: Table, options: Mapping[str, Any]) -> AuditResult:
    """Audit the rows that were predicted from earlier ones; none of them helped to predict an earlier one."""
    n = len(held.predictions)
    tested = np.sort(np.concatenate([test for _, test in held.folds]))
    part = {
        name: _part(value, tested) if name in OF_ROWS and not isinstance(value, str) and _has_rows(value, n) else value
        for name, value in options.items()
    }
    result = audit_pooled(held.at(tested), _safe_indexing(protected, tested), part).result
    text = (
        "Each row was predicted by a model that was fitted to earlier rows only. The first {count} of {n} rows were "
        "used for fitting alone."
    )
    note = Note("over-time", text, count=n - len(tested), n=n)
    setting = f"later rows ({len(held.folds)} spans of time)"
    return replace(result, notes=(note, *result.notes), setting=setting)


def _has_rows(value: Any, n_rows: int) -> bool:
    return value is not None and tables.n_rows(value) == n_rows


#: Note for held-out audits with controls.
UNCORRECTED = Note(
    "folds-uncorrected",
    "Given controls, bounds are not widened for the dependence between folds: audit a fitted model on rows of its own "
    "for exact coverage.",
    severity="caution",
)


def audit_given(held: HeldOut, protected: Table, **options: Any) -> AuditResult:
    """Audit held-out predictions given controls; `options` are those of :func:`audit`."""
    values = held.audited()
    if np.ndim(values) == 2 and held.classes is not None:
        options = {"classes": held.classes} | options
    result = audit(values, protected, **options)
    return replace(result, notes=(*result.notes, UNCORRECTED))


def _with_outcome(options: dict[str, Any], y: Any) -> dict[str, Any]:
    """Options of :func:`audit`; what is given the outcome takes that of the model."""
    given = options.get("given")
    return {"outcome": y} | options if isinstance(given, str) and given == "outcome" else options


def left_out_bounds(
    estimator: OrthogonalGLM, Z: Table, y: Any, protected: Any, options: Mapping[str, Any]
) -> NewRows | None:
    """Bounds for new rows from the leave-one-out predictions of one of our models, fitted to all rows."""
    model = clone(estimator).set_params(confidence=options.get("confidence", 0.95), max_correlation=None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SetsquareWarning)  # the same as those of the folds
        _fit(model, Z, y, protected, **cluster_for(model, options.get("cluster")))
    found: NewRows | None = model.solution_.certificate.new_rows
    return found


def _is_told(estimator: Any, protected: Any) -> bool:
    """Whether a model receives the protected columns, or their names, when it is fitted."""
    named = (value for name, value in estimator.get_params().items() if name.split("__")[-1] == "protected")
    return bool(asked_for(estimator, "fit", protected)) or any(value is not None for value in named)


def _protected(Z: Table, protected: Any) -> tuple[Table, bool]:
    """The protected columns, and whether they are columns of the features."""
    names = [protected] if isinstance(protected, str) else protected
    if not (isinstance(names, list | tuple) and names and all(isinstance(name, str) for name in names)):
        return protected, False
    columns = tables.column_names(Z)
    if len(names) == tables.n_rows(Z) and not set(names) <= set(columns):
        return np.asarray(names), False  # one level per row
    return tables.select(Z, list(names)), True


def predict_held_out(
    estimator: Any,
    Z: Table,
    y: Any,
    protected: Any,
    cv: Any,
    cluster: Any,
    progress: Callable[[int, int], None] | None,
    rng: np.random.Generator,
) -> HeldOut:
    """Predict each row with a model fitted without that row and its cluster."""
    folds = split_rows(cv, np.asarray(y), cluster, is_classifier(estimator), int(rng.integers(2**31)))
    return predict_in(folds, estimator, Z, y, protected, cluster, progress, rng)


def predict_in(
    folds: Folds,
    estimator: Any,
    Z: Table,
    y: Any,
    protected: Any,
    cluster: Any,
    progress: Callable[[int, int], None] | None,
    rng: np.random.Generator,
) -> HeldOut:
    """Predict the test rows of each fold with a model fitted to its training rows; other rows have zeros."""
    outcome = np.asarray(y)
    predictions: Array | None = None
    classes: Any = None
    means: list[Array] = []
    for done, (train, test) in enumerate(folds, start=1):
        options = cluster_for(estimator, _part(cluster, train))
        model = _fit(clone(estimator), _safe_indexing(Z, train), outcome[train], _part(protected, train), **options)
        values = _predict(model, _safe_indexing(Z, test), _part(protected, test))
        if predictions is None:
            predictions, classes = np.zeros((len(outcome), *values.shape[1:]), dtype=values.dtype), _classes(model)
        if values.ndim > 1 and not np.array_equal(classes, _classes(model)):
            raise InputError("A class is missing from a fold, so probability columns do not match: use fewer folds.")
        if values.dtype.kind in "US" and values.dtype.itemsize > predictions.dtype.itemsize:
            predictions = predictions.astype(values.dtype)
        predictions[test] = values
        many = max(SEEN, len(test))
        seen = train if len(train) <= many else np.sort(rng.choice(train, many, replace=False))
        again = _predict(model, _safe_indexing(Z, seen), _part(protected, seen))
        means.append(as_numbers(again, classes).mean(axis=0))
        if progress is not None:
            progress(done, len(folds))
    assert predictions is not None
    numbers = as_numbers(predictions, classes)
    of_rows = np.zeros(numbers.shape)
    for (_, test), mean in zip(folds, means, strict=True):
        of_rows[test] = mean
    return HeldOut(predictions, classes, folds, numbers, of_rows)


def _part(values: Any, rows: Any) -> Any:
    return None if values is None else _safe_indexing(values, rows)


def cluster_for(estimator: Any, cluster: Any) -> dict[str, Any]:
    """Argument of ``fit`` for the clusters, where our own models use them: they leave out whole clusters."""
    takes = isinstance(estimator, OrthogonalGLM | PredictionOrthogonalizer)
    large = getattr(estimator, "solver", None) == "large"  # leaves out rows only
    return {"cluster": cluster} if takes and cluster is not None and not large else {}


def _classes(model: Any) -> Any:
    return getattr(model, "classes_", None)


def _fit(model: Any, Z: Table, y: Any, protected: Any, **options: Any) -> Any:
    return model.fit(Z, y, **asked_for(model, "fit", protected), **options)


def _predict(model: Any, Z: Table, protected: Any) -> Array:
    method = "predict_proba" if is_classifier(model) and hasattr(model, "predict_proba") else "predict"
    return np.asarray(getattr(model, method)(Z, **asked_for(model, method, protected)))


def asked_for(model: Any, method: str, protected: Any) -> dict[str, Any]:
    """The protected columns as a keyword argument, for a method that accepts them."""
    if protected is None:
        return {}
    routed = get_config()["enable_metadata_routing"] and hasattr(model, "get_metadata_routing")
    if routed and get_routing_for_object(model).consumes(method, ["protected"]):
        return {"protected": protected}
    parameters = inspect.signature(getattr(model, method)).parameters
    return {"protected": protected} if "protected" in parameters else {}
