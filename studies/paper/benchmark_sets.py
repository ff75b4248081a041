"""The paper's tabular data as matrices, and predictions of any method on old and on new rows.

Categorical columns are coded by dummies against their first level, as in R. Levels that no row has get no column: R's
fits have one there, without an estimate, and the same predictions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from setsquare import Problem, Solution, audit, datasets, families, solve, tables
from setsquare.datasets import DataFile, find, locate
from studies.arrays import Array, IntArray
from studies.requirements import require

#: Rows of Adult (from 1) that the authors' benchmark drew.
ADULT_ROWS = DataFile(
    path="fairml/adult_subsample_seed32_5000.csv",
    sha256="dc7425e1b81a604699683770b4715bed011421a8c7eb54352987b8acbdea7cd2",
    origin="it holds the row numbers that set.seed(32) draws in R, with the heading row_position_1based",
)
#: Name of each set of the fairness benchmark, and what loads it; "health" is health.retirement.
SETS: dict[str, Callable[[], datasets.Dataset]] = {
    "adult": datasets.load_adult,
    "bank": datasets.load_bank,
    "compas": datasets.load_compas,
    "health": datasets.load_health_retirement,
}


@dataclass(frozen=True, slots=True, eq=False)
class BenchmarkSet:
    """A data set as matrices.

    Attributes
    ----------
    name, family : str
    Z : ndarray of shape (n, q)
        Features, protected columns among them in the fairness benchmark.
    y : ndarray of shape (n,)
    X : ndarray of shape (n, p)
        Protected columns.
    features, protected : tuple of str
        Names of the columns of Z and X, such as ``race[Black]``.
    """

    name: str
    family: str
    Z: Array
    y: Array
    X: Array
    features: tuple[str, ...]
    protected: tuple[str, ...]

    @property
    def metric(self) -> str:
        """What the paper scores it by."""
        return "rmse" if self.family == "poisson" else "accuracy"

    @property
    def unprotected(self) -> Array:
        """Features that are no protected columns, for methods that take the two apart."""
        return self.Z[:, [j for j, name in enumerate(self.features) if name not in self.protected]]

    def take(self, rows: IntArray) -> BenchmarkSet:
        """Return some of the rows; the columns stay, even those that are constant there."""
        return replace(self, Z=self.Z[rows], y=self.y[rows], X=self.X[rows])


#: Predictions for new rows (second) of a model fitted to others (first).
Method: TypeAlias = Callable[[BenchmarkSet, BenchmarkSet], Array]


def encode(data: datasets.Dataset, name: str) -> BenchmarkSet:
    """Code a data set by dummies.

    Examples
    --------
    >>> encode(datasets.load_diabetes(), "diabetes").X.shape
    (442, 2)
    """
    Z, X = (tables.learn(table).apply(table) for table in (data.features_table(), data.protected_table()))
    return BenchmarkSet(name, data.family, Z.values, data.y, X.values, Z.names, X.names)


def load(name: str) -> BenchmarkSet:
    """Load a set of the fairness benchmark, all rows; "adult 5000" has the rows that the authors drew."""
    if name != "adult 5000":
        return encode(SETS[name](), name)
    require("Data sets need", "pandas")
    import pandas as pd

    rows = pd.read_csv(locate(ADULT_ROWS))["row_position_1based"].to_numpy() - 1
    adult = datasets.load_adult()
    return encode(replace(adult, table=adult.table.iloc[rows].reset_index(drop=True)), name)


def names() -> tuple[str, ...]:
    """Sets of the fairness benchmark, and the authors' rows of Adult where their numbers are on this machine."""
    return (*(("adult 5000",) if find(ADULT_ROWS) else ()), *SETS)


def solve_set(data: BenchmarkSet, *, corrected: bool, solver: str = "auto", **options: Any) -> Solution:
    """Fit the generalised linear model, with the constraint or without."""
    X, protected = (data.X, data.protected) if corrected else (None, ())
    family = families.family(data.family)
    problem = Problem(data.Z, data.y, X, family, feature_names=data.features, protected_names=protected)
    return solve(problem, solver, **options)


def apply_solution(solution: Solution, data: BenchmarkSet) -> Array:
    """Predicted means."""
    return families.activation(data.family)(data.Z @ solution.coef[0] + solution.intercept[0])


def without(train: BenchmarkSet, new: BenchmarkSet) -> Array:
    """Predict by the ordinary model."""
    return apply_solution(solve_set(train, corrected=False), new)


def corrected(train: BenchmarkSet, new: BenchmarkSet) -> Array:
    """Predict by the exactly corrected model."""
    return apply_solution(solve_set(train, corrected=True), new)


def held_out(method: Method, data: BenchmarkSet, *, folds: int = 5, seed: int = 0) -> tuple[Array, IntArray]:
    """Predict every row by a model that has not seen it; return the fold of each row, too."""
    from sklearn.model_selection import KFold, StratifiedKFold

    kind = KFold if data.family == "poisson" else StratifiedKFold
    predictions, fold = np.empty(len(data.y)), np.empty(len(data.y), dtype=np.int64)
    for k, (train, test) in enumerate(kind(folds, shuffle=True, random_state=seed).split(data.Z, data.y)):
        predictions[test], fold[test] = method(data.take(train), data.take(test)), k
    return predictions, fold


def leak(data: BenchmarkSet, predictions: Array, fold: IntArray) -> dict[str, float]:
    """What held-out predictions say of the protected columns, fold by fold, with HC3 errors.

    A fold is audited on its own. Pooled, the folds of a model with a constraint look better than new rows would: where
    one fold has too much of a group, the rows that its model was fitted to have too little.

    Returns
    -------
    dict
        ``correlation``: multiple correlation, mean of the folds; ``by_chance``: about what the sampling errors of fit
        and audit make of none; ``p_value``: see :func:`combined`.
    """
    p, parts = data.X.shape[1], [np.flatnonzero(fold == k) for k in np.unique(fold)]
    audits = [audit(predictions[rows], data.X[rows], data.family) for rows in parts]
    return {
        "correlation": float(np.mean([found.certificate.correlation_sample for found in audits])),
        "by_chance": float(np.mean([np.sqrt(p / len(rows) + p / (len(fold) - len(rows))) for rows in parts])),
        "p_value": combined([found.p_value for found in audits]),
    }


def combined(p_values: Sequence[float]) -> float:
    """One p-value for all folds or splits: twice their median, which holds however they depend on each other.

    Examples
    --------
    >>> combined([0.01, 0.02, 0.9]), combined([0.3, 0.7]), combined([0.01])
    (0.04, 1.0, 0.01)
    """
    return float(p_values[0]) if len(p_values) == 1 else min(1.0, 2.0 * float(np.median(p_values)))


def known(record: Any) -> dict[str, Any]:
    """Values of a record that are not NaN, which JSON does not have.

    Examples
    --------
    >>> from setsquare.auditing import Interval
    >>> known(Interval(1.0))
    {'estimate': 1.0}
    """
    return {key: value for key, value in asdict(record).items() if value == value}
