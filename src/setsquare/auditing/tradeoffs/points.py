"""Numbers of one fit on a path of budgets: on the training rows, and on new rows by leave-one-out predictions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from setsquare._typing import Array, IntArray
from setsquare.auditing.comparison.metric import Interval, Metric, interval, mean_metric, read_pair
from setsquare.auditing.comparison.performance import auc_metric, performance
from setsquare.families import contrasts
from setsquare.glm.budget import Spent
from setsquare.glm.missing_protected import Completed
from setsquare.glm.new_rows import measure_each_row
from setsquare.glm.problem import Problem
from setsquare.glm.solver import Path
from setsquare.rows.blocks import ArrayRows
from setsquare.rows.parallel import single_threaded_blas

#: Score of each family; rmse for others.
SCORES = {"binomial": "auc", "multinomial": "auc", "gaussian": "r2"}
_UNKNOWN = Interval(np.nan)


@dataclass(frozen=True, slots=True)
class TradeoffPoint:
    """One fit of a path.

    Attributes
    ----------
    budget : float
        Share of the covariance with the protected columns that may stay.
    price : float
        Loss that a further unit of covariance would save: the length of the multipliers.
    loss, score, correlation : float
        On the training rows, the loss without the ridge; the multiple correlation with all protected columns.
    new_loss, new_score : Interval
        On new rows, by leave-one-out predictions; NaN where they are not known.
    new_correlation, new_correlation_upper : float
        Correlation on new rows, and its upper bound.
    """

    budget: float
    price: float
    loss: float
    score: float
    correlation: float
    new_loss: Interval = _UNKNOWN
    new_score: Interval = _UNKNOWN
    new_correlation: float = np.nan
    new_correlation_upper: float = np.nan


class Observed(NamedTuple):
    """Outcome, weights and clusters of the rows, in the order of the objective."""

    problem: Problem
    outcome: Array
    weight: Array | None
    cluster: IntArray | None

    @classmethod
    def of(cls, problem: Problem) -> Observed:
        """Rows of a problem in memory."""
        order = problem.order()
        parts: tuple[Any, ...] = (problem.outcome, problem.weight, problem.cluster)
        return cls(problem, *(part if part is None or order is None else part[order] for part in parts))

    def score(self, mean: Array) -> Metric:
        """The score of predictions, in the coding of the objective (n, k)."""
        family = self.problem.family
        k = mean.shape[1]
        shares = np.clip(mean @ contrasts(k + 1).T + 1.0 / (k + 1), 0.0, 1.0) if family.is_vector else mean[:, 0]
        name = SCORES.get(family.name, "rmse")
        if name == "auc":  # alone, because it is wanted for many fits
            return auc_metric(*read_pair(self.outcome, shares, family, self.weight))
        return next(one for one in performance(self.outcome, shares, family, self.weight) if one.name == name)


def measure_points(
    path: Path, budgets: Sequence[float], confidence: float, *, new_rows: bool, filled: Completed | None = None
) -> tuple[TradeoffPoint, ...]:
    """Measure all fits of a path; ``filled`` says how partly missing protected columns were completed."""
    observed = Observed.of(path.prepared.problem)
    with single_threaded_blas(), np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        return tuple(
            _measure(path, observed, spent, budget, confidence if new_rows else None, filled)
            for budget, spent in zip(budgets, path.points, strict=True)
        )


def _measure(
    path: Path, observed: Observed, spent: Spent, budget: float, confidence: float | None, filled: Completed | None
) -> TradeoffPoint:
    intercept, coef = path.prepared.coefficients(spent.end.theta)
    rows = observed.problem.rows
    assert isinstance(rows, ArrayRows)
    eta = np.asarray(rows.Z @ coef.T) + intercept
    eta = eta if rows.offset is None else eta + rows.offset
    losses, mean = observed.problem.family.value_terms(rows.y, eta)
    score, loss = observed.score(mean), float(rows.weight @ losses)  # without the ridge, as on new rows
    point = TradeoffPoint(budget, spent.slope, loss, score.value, spent.correlation)
    return point if confidence is None else _measure_new_rows(path, observed, spent, point, confidence, filled)


def _measure_new_rows(
    path: Path, observed: Observed, spent: Spent, point: TradeoffPoint, confidence: float, filled: Completed | None
) -> TradeoffPoint:
    """Add what leave-one-out predictions show; nothing where the rows do not determine them."""
    fresh = spent.refreshed()
    prepared, inverse = replace(path.prepared, objective=fresh.objective), fresh.inverse()
    found, left = measure_each_row(prepared, fresh.end, confidence, inverse)
    if found is None:
        return point
    if filled is not None:
        found = found.inflated(filled.inflation, filled.inflations.tolist())
    weight = np.full(len(left.loss), 1.0 / len(left.loss)) if observed.weight is None else observed.weight
    loss = mean_metric("loss", left.loss, weight / weight.sum(), False)
    new_loss, new_score = (interval(one, confidence, observed.cluster) for one in (loss, observed.score(left.mean)))
    return replace(
        point,
        new_loss=new_loss,
        new_score=new_score,
        new_correlation=found.correlation,
        new_correlation_upper=found.upper,
    )
