"""Which further features would lower the loss of a constrained fit most: forward selection at its Lagrangian."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from setsquare._typing import Array, IntArray
from setsquare.glm.newton import Settings
from setsquare.glm.preparation import prepare
from setsquare.glm.problem import Problem
from setsquare.glm.solver import fit_rows
from setsquare.rows.parallel import single_threaded_blas

#: Ridge of the fit, and of a candidate's own coefficient, in units of the outcome's curvature.
RIDGE = 1e-3
#: Share of a candidate that must lie outside the span of the features and of those chosen before it.
NEW = 5e-3


class Pilot(NamedTuple):
    """A fit to the features that are there, as weighted least squares in which candidates are compared.

    Attributes
    ----------
    effects : ndarray of shape (n, k)
        Slope of the Lagrangian in each row divided by its curvature: what is left to explain.
    weight : ndarray of shape (n, k)
        Curvature of each row.
    steer : ndarray of shape (n, k, r)
        Directions that the constraint takes up.
    coef : ndarray of shape (k, q)
    """

    effects: Array
    weight: Array
    steer: Array
    coef: Array


def fit_pilot(problem: Problem) -> Pilot:
    """Fit a problem with a small ridge."""
    curvature = prepare(problem).objective.start.curvature
    with single_threaded_blas(), np.errstate(over="ignore", invalid="ignore"):
        found = fit_rows(problem.with_l2(RIDGE * curvature), "sqp", Settings(kkt=1e-4))
    prepared, end, k = found.prepared, found.end, problem.n_predictors
    intercept, coef = prepared.coefficients(end.theta)
    blocks = problem.rows.in_memory()
    assert blocks is not None and prepared.basis is not None
    parts: list[tuple[Array, Array, Array]] = []
    for block in blocks:
        assert block.X is not None
        Q = prepared.basis.apply(block.X)
        v = Q @ end.lam.reshape(k, -1).T
        eta = np.asarray(block.Z @ coef.T) + intercept
        eta = eta if block.offset is None else eta + block.offset
        terms = problem.family.terms(block.y, eta, np.zeros_like(v))
        slope = terms.slope + np.einsum("nab,nb->na", terms.mean_slope, v)
        bend = np.abs(np.einsum("naa->na", terms.curvature))
        bend = np.maximum(bend, 1e-6 * curvature)
        steep = np.einsum("naa->na", terms.mean_slope) / bend
        parts.append((-slope / bend, bend * block.weight[:, None], steep[:, :, None] * Q[:, None, :]))
    effects, weight, steer = (np.concatenate(part) for part in zip(*parts, strict=True))
    return Pilot(effects, weight, steer, coef)


def choose_columns(Z: Array, candidates: Array, pilot: Pilot, most: int) -> IntArray:
    """Positions of up to ``most`` candidates (n, c) that lower the loss most beside the features Z (n, q), best first.

    Each candidate counts by the square of its score over its variance, both outside the span of the features, of the
    directions that the constraint takes up, and of the candidates chosen before.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> Z, X = rng.normal(size=(400, 2)), rng.normal(size=(400, 1))
    >>> y = Z[:, 0] + Z[:, 0] * Z[:, 1] + 0.1 * rng.normal(size=400)
    >>> candidates = np.column_stack([rng.normal(size=400), Z[:, 0] * Z[:, 1]])
    >>> choose_columns(Z, candidates, fit_pilot(Problem(Z, y, X)), most=1)
    array([1])
    """
    searches = [_Search(Z, candidates, pilot, a) for a in range(pilot.effects.shape[1])]
    chosen: list[int] = []
    while len(chosen) < min(most, candidates.shape[1]):
        gains = np.sum([search.gains() for search in searches], axis=0)
        gains[chosen] = 0.0
        best = int(np.argmax(gains))
        if not gains[best] > 0.0:
            break
        chosen.append(best)
        for search in searches:
            search.take(best)
    return np.array(chosen, dtype=np.intp)


class _Search:
    """Scores and variances of the candidates for one linear predictor, outside the span of what is there."""

    def __init__(self, Z: Array, candidates: Array, pilot: Pilot, a: int) -> None:
        root = np.sqrt(pilot.weight[:, a])
        there = np.column_stack([np.ones(len(Z)), Z, pilot.steer[:, a]]) * root[:, None]
        gram = there.T @ there
        gram[np.diag_indices_from(gram)] += 1e-7 * gram.diagonal() + 1e-12 * np.trace(gram)
        self.there, self.factor = there, np.linalg.cholesky(gram)
        self.columns = candidates * root[:, None]
        self.left = root * pilot.effects[:, a]
        self.left = self.outside(self.left)
        self.total = np.einsum("nc,nc->c", self.columns, self.columns)
        inside = np.linalg.solve(self.factor, there.T @ self.columns)
        self.variance = self.total - np.einsum("qc,qc->c", inside, inside)
        self.score = self.columns.T @ self.left
        self.ridge = RIDGE * self.total
        self.taken: list[Array] = []

    def outside(self, column: Array) -> Array:
        """Part of a column outside the span of the features."""
        inner = np.linalg.solve(self.factor, self.there.T @ column)
        return np.asarray(column - self.there @ np.linalg.solve(self.factor.T, inner))

    def gains(self) -> Array:
        """Reduction of the loss by each candidate; none for one that adds nothing new."""
        new = self.variance > NEW * self.total
        return np.where(new, self.score**2 / np.where(new, self.variance + self.ridge, 1.0), 0.0)

    def take(self, j: int) -> None:
        """Add a candidate to what is there."""
        if not self.variance[j] > NEW * self.total[j]:
            return  # nothing new for this predictor
        direction = self.outside(self.columns[:, j])
        for other in self.taken:
            direction = direction - other * (other @ direction)
        direction /= np.linalg.norm(direction)
        self.taken.append(direction)
        along = direction @ self.columns
        self.score = self.score - along * float(direction @ self.left)
        self.variance = self.variance - along**2
