"""Signs that a fitted model has seen the rows that it is corrected on."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import is_classifier
from sklearn.frozen import FrozenEstimator

from setsquare._typing import Array

#: Squared errors below this share of those that the probabilities themselves predict are a sign of training rows.
#: Measured on three data sets: 0.00 to 0.26 for overfitted models on training rows, 0.34 and more on new rows.
TOO_GOOD = 0.3


def rows_fitted_on(model: Any) -> int | None:
    """Number of rows that a scikit-learn model was fitted on, where the model keeps it.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.ensemble import RandomForestRegressor
    >>> rows_fitted_on(RandomForestRegressor(3).fit(np.arange(40.0).reshape(20, 2), np.arange(20.0)))
    20
    """
    if isinstance(model, FrozenEstimator):
        return rows_fitted_on(model.estimator)
    for name in ("n_samples_fit_", "n_samples_seen_"):  # neighbours; scalers and incremental models
        if isinstance(count := getattr(model, name, None), int | float | np.number):
            return round(float(count))
    if shape := getattr(model, "shape_fit_", None):  # support vectors
        return int(shape[0])
    tree = getattr(model, "tree_", None)
    if tree is not None:  # the rows of a bootstrap sample are counted with their multiplicity
        return round(float(tree.weighted_n_node_samples[0]))
    found = (rows_fitted_on(part) for part in _parts(model))
    return next((count for count in found if count is not None), None)


def _parts(model: Any) -> list[Any]:
    """Fitted models inside a pipeline, a search or an ensemble; of an ensemble's many, one says it."""
    parts = [step for _, step in getattr(model, "steps", ()) if not isinstance(step, str)]
    parts += [getattr(model, name) for name in ("best_estimator_", "estimator_") if hasattr(model, name)]
    return parts + list(np.ravel(np.asarray(getattr(model, "estimators_", []), dtype=object))[:1])


def sign_of_training(model: Any, predictions: Array, y: Any) -> str:
    """Why these rows look like those that the model was fitted on; empty if they do not.

    Parameters
    ----------
    model : fitted estimator
    predictions : ndarray of shape (n, k)
        Probability of the second class, probabilities of K > 2 classes, or means.
    y : ndarray of shape (n,)
    """
    inner = model.estimator if isinstance(model, FrozenEstimator) else model
    name, n = type(inner).__name__, len(predictions)
    if rows_fitted_on(model) == n:
        return f"{name} was fitted on {n} rows, as many as are given here"
    if is_classifier(model):
        return too_good(name, predictions, np.asarray(y)[:, None] == np.asarray(model.classes_))
    outcome = np.asarray(y, dtype=np.float64)
    if predictions.shape[1] == 1 and np.abs(predictions[:, 0] - outcome).max() <= 1e-8 * outcome.std():
        return f"{name} predicts every outcome exactly"
    return ""


def too_good(name: str, p: Array, truth: Any) -> str:
    """Whether the outcomes lie closer to the probabilities than these themselves say, as they do on training rows."""
    truth = truth[:, 1:] if p.shape[1] == 1 else truth
    error, expected = float(np.sum((truth - p) ** 2)), float(np.sum(p * (1.0 - p)))
    if error == 0.0:
        return f"{name} predicts every outcome with certainty"
    if error < TOO_GOOD * expected:
        return (
            f"the probabilities of {name} fit the outcomes far better than they claim to (squared error "
            f"{error / len(p):.2g}, expected {expected / len(p):.2g})"
        )
    return ""
