"""Standard errors of a constrained fit by refits to resampled rows, or clusters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from setsquare._typing import Array, IntArray
from setsquare.errors import SetsquareError
from setsquare.glm.problem import Problem
from setsquare.glm.solution import Solution, Status

#: Parts of a problem that have one entry per row.
_BY_ROW = ("features", "outcome", "protected", "weight", "offset", "cluster")


class Refits(NamedTuple):
    """Results of refits to resampled rows.

    Attributes
    ----------
    std_error : ndarray of shape (k, 1 + q)
        Standard deviations of intercepts and coefficients; NaN for coefficients that fewer than two refits determine.
    precision : ndarray of shape (k, 1 + q)
        Relative standard errors of these standard deviations, which are larger where refits have heavy tails.
    n_refits : int
        Refits that ended with a solution.
    n_failed : int
        Resamples without one, for example because a level or a class does not occur in them.
    """

    std_error: Array
    precision: Array
    n_refits: int
    n_failed: int


def refit_resampled(
    problem: Problem, refit: Callable[[Problem], Solution], n_samples: int, rng: np.random.Generator
) -> Refits:
    """Refit a problem in memory to rows drawn with replacement; whole clusters where it has them.

    Examples
    --------
    >>> from setsquare.glm import solve
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(200, 1))
    >>> Z = X + rng.normal(size=(200, 2))
    >>> problem = Problem(Z, Z[:, 0] + rng.normal(size=200), X)
    >>> found, known = refit_resampled(problem, solve, 100, rng), solve(problem).std_error
    >>> bool(np.abs(found.std_error / known - 1.0).max() < 0.3)
    True
    """
    members = None if problem.cluster is None else _members(problem.cluster)
    drawn: list[Array] = []
    failed = 0
    for _ in range(n_samples):
        try:
            found = refit(resample(problem, members, rng))
        except SetsquareError:
            failed += 1
            continue
        if found.status not in (Status.CONVERGED, Status.FLAT):
            failed += 1
            continue
        estimate = np.column_stack([found.intercept, found.coef])
        aliased = np.isin(np.asarray(problem.feature_names, dtype=object), list(found.certificate.aliased_features))
        estimate[:, 1:][:, aliased] = np.nan
        drawn.append(estimate)
    if len(drawn) < 2:
        return Refits(np.full((1, 1), np.nan), np.full((1, 1), np.nan), len(drawn), failed)
    return Refits(*_deviation(np.asarray(drawn)), len(drawn), failed)


def _deviation(drawn: Array) -> tuple[Array, Array]:
    """Standard deviation over the refits that determine a coefficient, and its own relative error by the kurtosis."""
    known = np.isfinite(drawn)
    count = known.sum(axis=0)
    total = np.where(known, drawn, 0.0)
    mean = total.sum(axis=0) / np.maximum(count, 1)
    gap = np.where(known, drawn - mean, 0.0) ** 2
    square = np.where(count > 1, gap.sum(axis=0) / np.maximum(count - 1, 1), np.nan)
    with np.errstate(divide="ignore", invalid="ignore"):  # coefficients that never change, or are not known
        kurtosis = (gap**2).sum(axis=0) / count / square**2
        return np.sqrt(square), np.sqrt(np.maximum(kurtosis - 1.0, 0.0) / (4.0 * count))


def resample(problem: Problem, members: list[IntArray] | None, rng: np.random.Generator) -> Problem:
    """The same problem for as many rows, or clusters, drawn with replacement; a cluster drawn twice counts as two."""
    n = len(problem.outcome)
    parts: dict[str, Any] = {}
    if members is None:
        rows = rng.integers(0, n, n)
    else:
        chosen = rng.integers(0, len(members), len(members))
        rows = np.concatenate([members[g] for g in chosen])
        parts["cluster"] = np.repeat(np.arange(len(chosen)), [len(members[g]) for g in chosen])
    for name in _BY_ROW:
        values = getattr(problem, name)
        if name not in parts:
            parts[name] = None if values is None else values[rows]
    parts["given"] = problem.given[rows] if isinstance(problem.given, np.ndarray) else problem.given
    names = problem.protected_names[: problem.protected.shape[1]] if problem.protected is not None else ()
    return replace(problem, **parts, protected_names=names)


def _members(cluster: Any) -> list[IntArray]:
    """Positions of the rows of each cluster."""
    order = np.argsort(cluster, kind="stable")
    return list(np.split(order, np.flatnonzero(np.diff(cluster[order])) + 1))
