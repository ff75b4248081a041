"""Do the p-values and bounds of ``audit_model`` keep their promises? A simulation.

    python -m benchmarks.audit_calibration_models                 # 500 draws a cell
    python -m benchmarks.audit_calibration_models --draws 100     # a look

*Size*: the features know nothing of the protected columns but the outcome follows them, so that no model can leak; what
is called a leak (or a trace) is a false alarm. *Coverage*: the features follow the protected column; how often the
upper bound holds for the models of the folds, and for one that is fitted to all rows.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from joblib import Parallel, delayed
from rich.console import Console
from rich.table import Table
from scipy import stats
from sklearn.base import BaseEstimator, RegressorMixin, is_classifier
from sklearn.dummy import DummyRegressor
from sklearn.ensemble import RandomForestRegressor
from sklearn.linear_model import Lasso, LinearRegression, LogisticRegression

import setsquare as sq

NOMINAL = 0.05
MOST, LEAST = 0.07, 0.93
N_FEATURES = 5
SHARES = (0.4, 0.25, 0.15, 0.1, 0.07, 0.03)
SIZES = (200, 500, 1000)
CORRELATIONS = (0.7, 0.9, 1.0)
KINDS = ("binary", "continuous", "mix", "clusters", "weights")
#: Rows that the correlation of a forest on new rows is taken from.
N_NEW = 4000


class Constrained(RegressorMixin, BaseEstimator):
    """A user's own model: least squares without the last features, orthogonal to them on the training rows."""

    def fit(self, Z: np.ndarray, y: np.ndarray) -> Constrained:
        F, X = (part - part.mean(axis=0) for part in (Z[:, :N_FEATURES], Z[:, N_FEATURES:]))
        inverse, C = np.linalg.inv(F.T @ F), F.T @ X
        plain = inverse @ F.T @ (y - y.mean())
        self.coef_ = plain - inverse @ C @ np.linalg.solve(C.T @ inverse @ C, C.T @ plain)
        self.intercept_ = y.mean() - Z[:, :N_FEATURES].mean(axis=0) @ self.coef_
        return self

    def predict(self, Z: np.ndarray) -> np.ndarray:
        return Z[:, :N_FEATURES] @ self.coef_ + self.intercept_


MODELS: dict[str, Callable[[], Any]] = {
    "linear": LinearRegression,
    "lasso": lambda: Lasso(0.05),
    "dummy": DummyRegressor,
    "forest": lambda: RandomForestRegressor(15, min_samples_leaf=5, random_state=0),
    "logistic": LogisticRegression,
    "constrained": Constrained,
}


@dataclass(frozen=True, slots=True)
class Sample:
    """Features, outcome, protected columns, and what the audit is told of the rows."""

    Z: np.ndarray
    y: np.ndarray
    protected: Any
    options: dict[str, Any]


def draw_uninformative(kind: str, n: int, correlation: float, rng: np.random.Generator) -> Sample:
    """Features that are independent of everything, and an outcome that follows the protected columns."""
    Z, options, index = rng.normal(size=(n, N_FEATURES)), {}, np.arange(n)
    if kind == "clusters":  # of five rows, which share the protected column and most of the features
        index = np.repeat(np.arange(n // 5), 5)
        Z = rng.normal(size=(n // 5, N_FEATURES))[index] + 0.5 * Z
        options = {"cluster": index}
    if kind == "weights":
        options = {"sample_weight": rng.exponential(size=n)}
    protected, signal = _draw_protected(kind, index, rng)
    y = correlation * signal + np.sqrt(1.0 - correlation**2) * rng.normal(size=n)
    return Sample(Z, y, protected, options)


def _draw_protected(kind: str, index: np.ndarray, rng: np.random.Generator) -> tuple[Any, np.ndarray]:
    """Protected columns, one value for each `index`, and a standardised combination that the outcome follows."""
    m = int(index.max()) + 1
    binary, number = (rng.random(m) < 0.4).astype(float)[index], rng.normal(size=m)[index]
    level = rng.choice(len(SHARES), size=m, p=SHARES)[index]
    if kind == "continuous":
        return number, number
    if kind != "mix":
        return binary, (binary - 0.4) / np.sqrt(0.24)
    table = pd.DataFrame({"sex": binary, "age": number, "race": np.array(list("abcdef"))[level]})
    signal = binary / np.sqrt(0.24) + number + (level == 1) / np.sqrt(0.25 * 0.75)
    return table, (signal - signal.mean()) / signal.std()


def is_alarm(model: str, kind: str, n: int, correlation: float, seed: int) -> bool:
    """Whether a model that cannot leak is called a leak."""
    rng = np.random.default_rng([seed, n, round(100 * correlation), *map(ord, model + kind)])
    sample, estimator = draw_uninformative(kind, n, correlation, rng), MODELS[model]()
    y = (sample.y > 0.0).astype(int) if is_classifier(estimator) else sample.y
    found = sq.audit_model(estimator, sample.Z, y, sample.protected, random_state=seed, **sample.options)
    return str(found.verdict) in ("leak", "trace")


def draw_informative(
    kind: str, n: int, effects: tuple[float, float, float], rng: np.random.Generator
) -> tuple[Any, ...]:
    """Features of which the first ones follow a protected column each, an outcome that follows them; the columns.

    ``effects`` are those of the columns on the features, of the columns on the outcome, and of the features on it.
    """
    leak, direct, signal = effects
    p = 3 if kind == "three columns" else 1
    X = (rng.random((n, p)) < 0.4) / np.sqrt(0.24) if kind == "binary" else rng.normal(size=(n, p))
    Z = rng.normal(size=(n, N_FEATURES))
    Z[:, :p] += leak * X
    return Z, signal * Z.sum(axis=1) + direct * X.sum(axis=1) + rng.normal(size=n), X


def _new_rows(kind: str, effects: tuple[float, float, float]) -> tuple[Any, ...]:
    """New rows in which correlations are those of the population, but for what is not linear."""
    Z, y, X = draw_informative(kind, N_NEW, effects, np.random.default_rng(0))
    noise, p = Z.copy(), X.shape[1]
    noise[:, :p] -= effects[0] * X
    D = np.column_stack([np.ones(N_NEW), X])
    noise -= D @ np.linalg.lstsq(D, noise, rcond=None)[0]
    noise[:, :p] += effects[0] * X
    return noise, y, X


def is_covered(model: str, kind: str, n: int, effects: tuple[float, float, float], seed: int) -> tuple[bool, bool]:
    """Whether the upper bound holds for the models of the folds on average, and for one that is fitted to all rows."""
    rng = np.random.default_rng([seed, n, *(round(100 * effect) for effect in effects), *map(ord, model + kind)])
    Z, y, X = draw_informative(kind, n, effects, rng)
    new = _new_rows(kind, effects)
    if model == "constrained":  # the protected columns are among the features, by value
        Z = np.column_stack([Z, X])
    fitted: list[Any] = []

    class Kept(type(MODELS[model]())):  # type: ignore[misc]
        def fit(self, *args: Any, **options: Any) -> Any:
            fitted.append(self)
            return super().fit(*args, **options)

    estimator = Kept(**MODELS[model]().get_params())
    upper = sq.audit_model(estimator, Z, y, X, random_state=seed).certificate.correlation_upper
    final = MODELS[model]().fit(Z, y)
    of_folds = [_correlation(one, effects[0], new) for one in fitted]
    return bool(upper >= np.mean(of_folds)), bool(upper >= _correlation(final, effects[0], new))


def _correlation(model: Any, leak: float, new: tuple[Any, ...]) -> float:
    """Multiple correlation with independent columns of variance 1: known for a linear model, else on new rows."""
    p = new[2].shape[1]
    if hasattr(model, "coef_"):
        follows = leak * model.coef_[:p]
        return float(np.linalg.norm(follows) / np.sqrt(model.coef_ @ model.coef_ + follows @ follows))
    found = np.corrcoef(np.column_stack([model.predict(new[0]), new[2]]).T)[0, 1:]
    return float(np.linalg.norm(found))


def size_cells() -> Iterator[tuple[Any, ...]]:
    """Arguments of :func:`is_alarm`."""
    models = [name for name in MODELS if name != "constrained"]
    yield from itertools.product(models, KINDS, SIZES, CORRELATIONS)


def coverage_cells() -> Iterator[tuple[Any, ...]]:
    """Arguments of :func:`is_covered`."""
    designs = ((0.5, 2.0, 0.0), (0.2, 1.0, 1.0), (0.5, 0.0, 1.0), (1.0, 1.0, 1.0))
    kinds = ("binary", "continuous", "three columns")
    yield from itertools.product(("linear", "forest", "constrained"), kinds, (200, 500), designs)


def interval(hits: list[bool]) -> str:
    low, high = stats.binomtest(sum(hits), len(hits)).proportion_ci(0.95)
    return f"{low:.3f} to {high:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=500)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--models", default="", help="comma-separated, all by default")
    parser.add_argument("--sizes", default="", help="numbers of rows, comma-separated, all by default")
    parser.add_argument("--part", choices=("size", "coverage"), help="both by default")
    options = parser.parse_args()
    models, rows = (
        options.models.split(",") if options.models else MODELS,
        {int(n) for n in options.sizes.split(",") if n},
    )
    run = Parallel(n_jobs=options.workers, batch_size=8)
    console = Console(width=120)
    wanted = lambda cell: cell[0] in models and (not rows or cell[2] in rows)  # noqa: E731
    if options.part != "coverage":
        table = Table(
            "model", "protected", "n", "corr(x, y)", "false alarms", "95 % interval", title="Size, nominal 0.05"
        )
        for cell in filter(wanted, size_cells()):
            hits = list(run(delayed(is_alarm)(*cell, seed) for seed in range(options.draws)))
            table.add_row(*map(str, cell), f"{np.mean(hits):.3f}{' *' if np.mean(hits) > MOST else ''}", interval(hits))
        console.print(table)
    if options.part != "size":
        table = Table(
            "model", "protected", "n", "x on z, x on y, z on y", "folds", "all rows", title="Coverage, nominal 0.95"
        )
        for cell in filter(wanted, coverage_cells()):
            found = list(run(delayed(is_covered)(*cell, seed) for seed in range(options.draws)))
            rates = np.mean(found, axis=0)
            table.add_row(*map(str, cell), *(f"{rate:.3f}{' *' if rate < LEAST else ''}" for rate in rates))
        console.print(table)
    console.print(f"* more than {MOST}, less than {LEAST}")


if __name__ == "__main__":
    main()
