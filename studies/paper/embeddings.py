"""Embeddings of a network that nobody can retrain: reduced, corrected in four ways, and audited on old and new rows.

Everything is fitted to the training rows only. Rows that belong together (images of a patient) are in one split, and
errors know of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn import config_context
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

from setsquare import (
    LinearOrthogonalizer,
    OrthogonalGLMClassifier,
    PredictionOrthogonalizer,
    PrincipalComponents,
    audit,
    tables,
)
from setsquare.auditing import Metric, difference, interval, performance
from setsquare.datasets import Dataset
from setsquare.rows import mean_weight
from studies.arrays import Array
from studies.paper.benchmark_sets import known
from studies.paper.names import CLASSICAL, CONSTRAINED, GENERALISED, WITHOUT

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """The rows of one split.

    Attributes
    ----------
    Z : array of shape (n, q)
        Embedding: an array, or a memory-mapped file.
    y : ndarray of shape (n,)
        Outcome, 0 or 1.
    protected : pandas.DataFrame, n rows
    cluster : ndarray of shape (n,) or None
        Which rows belong together.
    """

    Z: Any
    y: Array
    protected: pd.DataFrame
    cluster: Any = None


def split(data: Dataset, *, array: str = "embedding") -> tuple[Part, Part]:
    """Training and test rows of a data set, by its column ``split``."""
    parts = (data.take(data.table["split"] == name) for name in ("train", "test"))
    train, test = (
        Part(
            part.arrays[array],
            part.y,
            part.protected_table(),
            None if part.cluster is None else part.table[part.cluster].to_numpy(),
        )
        for part in parts
    )
    return train, test


def join(train: Part, test: Part) -> Part:
    """Rows of both parts, which must be in memory."""
    import pandas as pd

    protected = pd.concat([train.protected, test.protected], ignore_index=True)
    cluster = None if train.cluster is None else np.concatenate([train.cluster, test.cluster])
    return Part(np.concatenate([train.Z, test.Z]), np.concatenate([train.y, test.y]), protected, cluster)


@dataclass(frozen=True, slots=True)
class Method:
    """What comes after the principal components.

    Attributes
    ----------
    steps : callable
        Makes the steps of a pipeline; they ask for the protected columns by metadata routing.
    fits, predicts : bool
        Whether the protected columns are needed to fit, and to predict.
    """

    steps: Callable[[], tuple[Any, ...]]
    fits: bool = True
    predicts: bool = False


def logistic() -> Pipeline:
    """Logistic regression without a penalty; scaled, since the last components are small."""
    return make_pipeline(StandardScaler(), LogisticRegression(C=np.inf, solver="newton-cholesky", tol=1e-8))


def _linear() -> tuple[Any, ...]:
    removal = LinearOrthogonalizer().set_fit_request(protected=True).set_transform_request(protected=True)
    return removal, logistic()


def _constrained() -> tuple[Any, ...]:
    return (OrthogonalGLMClassifier().set_fit_request(protected=True),)


def _projected() -> tuple[Any, ...]:
    model = PredictionOrthogonalizer(logistic(), cv="training rows")
    return (model.set_fit_request(protected=True).set_predict_proba_request(protected=True),)


METHODS = {
    WITHOUT: Method(lambda: (logistic(),), fits=False),
    CLASSICAL: Method(_linear, predicts=True),
    CONSTRAINED: Method(_constrained),
    GENERALISED: Method(_projected, predicts=True),
}


def pipeline(name: str, components: PrincipalComponents | None = None) -> Pipeline:
    """A method of :data:`METHODS` as one estimator, behind the principal components where these are given.

    Examples
    --------
    >>> [step for step, _ in pipeline("classical (C^l)", PrincipalComponents(32)).steps]
    ['principalcomponents', 'linearorthogonalizer', 'pipeline']
    """
    with config_context(enable_metadata_routing=True):
        return make_pipeline(*(() if components is None else (components,)), *METHODS[name].steps())


@dataclass(frozen=True, slots=True, eq=False)
class Predictor:
    """A fitted pipeline, which predicts probabilities for the rows of any part."""

    pipeline: Pipeline
    method: Method

    def __call__(self, part: Part) -> Array:
        """Probabilities of the rows, (n,)."""
        with config_context(enable_metadata_routing=True):
            given = {"protected": part.protected} if self.method.predicts else {}
            return np.asarray(self.pipeline.predict_proba(part.Z, **given)[:, 1], dtype=np.float64)


def fit(name: str, train: Part, components: PrincipalComponents | None = None) -> Predictor:
    """Fit a method of :data:`METHODS`."""
    method, model = METHODS[name], pipeline(name, components)
    with config_context(enable_metadata_routing=True):
        model.fit(train.Z, train.y, **({"protected": train.protected} if method.fits else {}))
    return Predictor(model, method)


def reduce(components: PrincipalComponents, train: Part, test: Part) -> tuple[Part, Part]:
    """Both parts in the principal components of the first, which are found once for all methods."""
    components.fit(train.Z)
    return replace(train, Z=components.transform(train.Z)), replace(test, Z=components.transform(test.Z))


def examine(train: Part, test: Part, names: Sequence[str] = tuple(METHODS)) -> dict[str, dict[str, Any]]:
    """Fit methods to one part and measure their predictions on it and on the other.

    Returns
    -------
    dict
        For each method "train" and "test" as in :func:`measure`; "test" also has ``auc_change``, the paired difference
        to the first method.
    """
    found: dict[str, dict[str, Any]] = {}
    aucs: dict[str, Metric] = {}
    for name in names:
        predict = fit(name, train)
        predictions = predict(test)
        aucs[name] = auc(test.y, predictions)
        change = difference(aucs[name], aucs[names[0]], cluster=test.cluster)
        found[name] = {
            "train": measure(predict(train), train),
            "test": measure(predictions, test) | {"auc_change": known(change)},
        }
    return found


def first_levels(protected: Any) -> dict[str, Any]:
    """Reference groups as the paper has them: the first level of each categorical column."""
    coders: Any = tables.learn(protected).coders
    return {one.name: one.levels[0] for one in coders if hasattr(one, "levels")}


def measure(predictions: Array, part: Part) -> dict[str, Any]:
    """What probabilities say of the protected columns, and how good they are; intervals of 95 %.

    Returns
    -------
    dict
        ``effects`` by term with robust errors (HC3, or by cluster), and ``p_model``, the p-value as the paper has it;
        ``correlations`` by term; ``correlation`` and ``correlation_upper`` with all columns; ``p_value`` of all
        columns, robust; ``auc``.
    """
    options: dict[str, Any] = {"cluster": part.cluster, "reference": first_levels(part.protected)}
    robust, printed = (audit(predictions, part.protected, "binomial", vcov, **options) for vcov in ("HC3", "model"))
    pairs = zip(robust.evaluation().effects, printed.evaluation().effects, strict=True)
    coded = tables.learn(part.protected).apply(part.protected)
    return {
        "effects": {effect.term: known(effect) | {"p_model": paper.p_value} for effect, paper in pairs},
        "correlations": {
            term: known(interval(correlation(x, predictions), cluster=part.cluster))
            for term, x in zip(coded.names, coded.values.T, strict=True)
        },
        "correlation": robust.certificate.correlation_sample,
        "correlation_upper": robust.certificate.correlation_upper,
        "p_value": robust.p_value,
        "auc": known(interval(auc(part.y, predictions), cluster=part.cluster)),
    }


def auc(y: Array, predictions: Array) -> Metric:
    """Area under the ROC curve."""
    return next(metric for metric in performance(y, predictions, "binomial") if metric.name == "auc")


def correlation(x: Array, y: Array, weight: Array | None = None) -> Metric:
    """Pearson's correlation with the influence of each row.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> x, noise = rng.normal(size=(2, 1000))
    >>> found = interval(correlation(x, x + noise))
    >>> round(found.estimate, 2), round(found.std_error, 3)  # (1 - r^2) / sqrt(n) where both are normal
    (0.71, 0.016)
    """
    w = mean_weight(len(y), weight)
    a, b = (v - w @ v for v in (np.asarray(x, dtype=np.float64), y))
    a, b = a / np.sqrt(w @ a**2), b / np.sqrt(w @ b**2)
    r = float(w @ (a * b))
    return Metric("correlation", r, w * (a * b - 0.5 * r * (a * a + b * b)))


def largest(correlations: Mapping[str, Mapping[str, float]]) -> float:
    """Largest absolute value among correlations of :func:`measure`."""
    return max(abs(one["estimate"]) for one in correlations.values())
