"""Corrected black boxes on new rows: learned on cross-fitted predictions (the default) and on the training rows.

    python -m benchmarks.cross_fitting --output benchmarks/results   # about 20 minutes on one core
    python -m benchmarks.cross_fitting --quick

Samples of real populations; the model is fitted and corrected on a sample and predicts the other rows. Measured there:
the largest correlation of a protected column with the predictions, their multiple correlation with all protected
columns, and AUC or R². ``chance`` is the multiple correlation of a correction whose only error is that of the sample,
seen on new rows: about sqrt(r / n + r / N) for r protected columns, n rows and N new ones. Rows of a patient are not
independent, so that it is counted by patient (see :func:`by_chance`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier, RandomForestRegressor
from sklearn.metrics import r2_score, roc_auc_score
from sklearn.tree import DecisionTreeClassifier

import setsquare as sq
from benchmarks.frame import main, plain, steps
from setsquare import tables
from setsquare.errors import SetsquareWarning
from studies.datasets.chest_xrays import load_nih_chest_xrays

QUICK = {"draws": 1, "only": "adult forest 2000"}
Values = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Population:
    """Coded features, coded protected columns, outcome and, where rows are not independent, their cluster."""

    Z: Values
    X: Values
    y: Values
    cluster: Values | None = None

    def draw(self, n: int, rng: np.random.Generator) -> tuple[Values, Values]:
        """About n rows to fit to, and the others; clusters stay together."""
        if self.cluster is None:
            order = rng.permutation(len(self.y))
            return order[:n], order[n:]
        _, codes = np.unique(self.cluster, return_inverse=True)
        place = rng.permutation(codes.max() + 1)[codes]
        order = np.argsort(place, kind="stable")
        last = place[order[n - 1]]
        return np.flatnonzero(place <= last), np.flatnonzero(place > last)


def coded(table: Any) -> Values:
    values = tables.learn(table).apply(table).values
    return np.asarray(values.toarray() if hasattr(values, "toarray") else values, dtype=np.float64)


def adult() -> Population:
    data = sq.datasets.load_adult()
    y = np.unique(np.asarray(data.y), return_inverse=True)[1]
    return Population(coded(data.features_table().drop(columns=list(data.protected))), coded(data.protected_table()), y)


def health() -> Population:
    data = sq.datasets.load_health_retirement()
    features = data.features_table().drop(columns=list(data.protected), errors="ignore")
    return Population(coded(features), coded(data.protected_table()), np.asarray(data.y, dtype=np.float64))


def xrays() -> Population:
    data = load_nih_chest_xrays()
    Z = np.asarray(data.arrays["embedding"][:, :64], dtype=np.float64)
    y = np.asarray(data.y).astype(int)
    return Population(Z, coded(data.protected_table()), y, np.asarray(data.table[data.cluster]))


def forest(seed: int) -> Any:
    return RandomForestClassifier(random_state=seed)


#: Population, rows, model, further options of the correction, draws as a share of those asked for.
CELLS: dict[str, tuple[Callable[[], Population], int, Callable[[int], Any], dict[str, Any], float]] = {
    "adult forest 2000": (adult, 2000, forest, {}, 1.0),
    "adult forest 8000": (adult, 8000, forest, {}, 0.5),
    "adult boosting 2000": (adult, 2000, lambda seed: HistGradientBoostingClassifier(random_state=seed), {}, 1.0),
    "adult boosting 8000": (adult, 8000, lambda seed: HistGradientBoostingClassifier(random_state=seed), {}, 0.5),
    "adult tree (0 and 1) 2000": (adult, 2000, lambda seed: DecisionTreeClassifier(random_state=seed), {}, 1.0),
    "health forest regression 2000": (health, 2000, lambda seed: RandomForestRegressor(random_state=seed), {}, 0.5),
    "X-rays forest, by patient 3000": (xrays, 3000, forest, {}, 0.5),
}


def correlations(X: Values, p: Values) -> tuple[float, float]:
    """Largest |corr| with a column, and the multiple correlation with all."""
    X, p = X - X.mean(axis=0), p - p.mean()
    X = X[:, np.linalg.norm(X, axis=0) > 0.0]
    size = np.linalg.norm(p)
    fitted = X @ np.linalg.lstsq(X, p, rcond=None)[0]
    return float(np.abs(X.T @ p / np.linalg.norm(X, axis=0) / size).max()), float(np.linalg.norm(fitted) / size)


def by_chance(X: Values, p: Values, cluster: Values | None, n_fitted: int) -> float:
    """Root mean square of the multiple correlation if the protected columns are independent of the predictions.

    Their covariance on the new rows is a sum over units (rows or clusters), whose squares say how far it varies. The
    units of the fit vary as much, so that their share is larger by the ratio of the numbers.

    >>> rng = np.random.default_rng(0)
    >>> X, p = rng.normal(size=(4000, 5)), rng.normal(size=4000)
    >>> round(by_chance(X, p, None, 1000), 3), round((5 / 1000 + 5 / 4000) ** 0.5, 3)
    (0.08, 0.079)
    """
    units = unit_products(X, p, cluster)
    return float(np.sqrt(np.sum(units**2) * (1.0 + len(units) / n_fitted)))


def unit_products(X: Values, p: Values, cluster: Values | None) -> Values:
    """Products of predictions and orthonormal protected columns, summed in each unit: a row, or a cluster.

    The length of their sum over the units is the multiple correlation.
    """
    basis, sizes, _ = np.linalg.svd(X - X.mean(axis=0), full_matrices=False)
    basis, gap = basis[:, sizes > 1e-9 * sizes[0]], p - p.mean()
    units = basis * (gap / np.linalg.norm(gap))[:, None]
    if cluster is None:
        return units
    codes = np.unique(cluster, return_inverse=True)[1]
    return np.column_stack([np.bincount(codes, weights=column) for column in units.T])


def try_one(population: Population, n: int, model: Any, options: dict[str, Any], seed: int) -> dict[str, list[float]]:
    """Largest and multiple correlation on the new rows, and AUC or R²: uncorrected, in-sample and cross-fitted."""
    rows, new = population.draw(n, np.random.default_rng(seed))
    Z, X, y = population.Z, population.X, population.y
    kept = X[rows].std(axis=0) > 0.0
    X = X[:, kept]
    classes = hasattr(model, "predict_proba")
    cluster = {} if population.cluster is None else {"cluster": population.cluster[rows]}
    found = {}
    for name, cv in (("training rows", "training rows"), ("cross-fitted", 5)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SetsquareWarning)
            fitted = sq.PredictionOrthogonalizer(model, cv=cv, **options).fit(Z[rows], y[rows], X[rows], **cluster)
        both = {"uncorrected": fitted.estimator_, name: fitted}
        for label, one in both.items():
            given = {} if label == "uncorrected" else {"protected": X[new]}
            p = one.predict_proba(Z[new], **given)[:, 1] if classes else one.predict(Z[new], **given)
            score = roc_auc_score(y[new], p) if classes else r2_score(y[new], p)
            found[label] = [*correlations(X[new], p), float(score)]
    units = None if population.cluster is None else population.cluster[new]
    n_fitted = len(rows if population.cluster is None else np.unique(population.cluster[rows]))
    return found | {"chance": [np.nan, by_chance(X[new], p, units, n_fitted), np.nan]}


def run(draws: int = 10, only: str = "") -> dict[str, Any]:
    cells = {name: cell for name, cell in CELLS.items() if only in name}
    found: dict[str, Any] = {}
    for name, (load, n, model, options, share) in steps(cells.items(), "models"):
        population, count = load(), max(1, round(draws * share))
        each = [try_one(population, n, model(seed), options, seed) for seed in range(count)]
        found[name] = {
            label: {
                "mean": np.mean([one[label] for one in each], axis=0),
                "sd": np.std([one[label] for one in each], axis=0, ddof=min(1, count - 1)),
                "draws": count,
            }
            for label in each[0]
        }
        show({"cells": plain({name: found[name]})})
    return plain({"cells": found})


def show(result: dict[str, Any]) -> None:
    for name, cell in result["cells"].items():
        print(f"{name}: largest correlation, multiple correlation, AUC or R² on new rows (sd over draws)")
        for label, part in cell.items():
            numbers = zip(part["mean"], part["sd"], strict=True)
            texts = ("" if mean is None else f"{mean:.3f} ({sd:.3f})" for mean, sd in numbers)
            print(f"  {label:14s}", *(f"{text:>16s}" for text in texts), flush=True)


if __name__ == "__main__":
    main(run, show, QUICK)
