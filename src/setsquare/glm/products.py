"""Which further features would lower the loss of a constrained fit most: forward selection at its Lagrangian."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.linalg import solve_triangular

from setsquare._typing import Array, IntArray
from setsquare.families import Family
from setsquare.glm.intercept import link_of
from setsquare.glm.newton import Settings
from setsquare.glm.problem import Problem
from setsquare.glm.solver import fit_rows
from setsquare.rows.blocks import ArrayRows
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
    intercept : ndarray of shape (k,)
    coef : ndarray of shape (k, q)
    eta : ndarray of shape (n, k)
        Linear predictors.
    rows : ArrayRows
        Rows of the problem.
    basis : ndarray of shape (n, r)
        Basis of the protected columns.
    family : Family
    curvature : float
        Curvature of the loss at the intercept-only model.
    price : float
        Mean square of the constraint's part of the rows' slopes, relative to that of the loss.
    """

    effects: Array
    weight: Array
    steer: Array
    intercept: Array
    coef: Array
    eta: Array
    rows: ArrayRows
    basis: Array
    family: Family
    curvature: float
    price: float


def fit_pilot(problem: Problem, kkt: float = 1e-4, start: tuple[Array, Array] | None = None) -> Pilot:
    """Fit a problem whose rows are in memory up to a relative gradient and a correlation ``kkt``.

    It gets a small ridge if it has none.
    """
    problem = problem if problem.l2 else problem.with_l2(RIDGE * curvature_of(problem))
    with single_threaded_blas(), np.errstate(over="ignore", invalid="ignore"):
        found = fit_rows(problem, "sqp", Settings(kkt=kkt, correlation=kkt), start)
    prepared, end, k, rows = found.prepared, found.end, problem.n_predictors, problem.rows
    assert isinstance(rows, ArrayRows) and rows.X is not None and prepared.basis is not None
    curvature = prepared.objective.start.curvature
    intercept, coef = prepared.coefficients(end.theta)
    Q = prepared.basis.apply(rows.X)
    v = Q @ end.lam.reshape(k, -1).T
    eta = np.asarray(rows.Z @ coef.T) + intercept
    eta = eta if rows.offset is None else eta + rows.offset
    terms = problem.family.terms(rows.y, eta, np.zeros_like(v))
    pull = np.einsum("nab,nb->na", terms.mean_slope, v)
    price = float(rows.weight @ (pull**2).sum(axis=1)) / float(rows.weight @ (terms.slope**2).sum(axis=1))
    slope = terms.slope + pull
    bend = np.maximum(np.abs(np.einsum("naa->na", terms.curvature)), 1e-6 * curvature)
    steer = (np.einsum("naa->na", terms.mean_slope) / bend)[:, :, None] * Q[:, None, :]
    weight = bend * rows.weight[:, None]
    return Pilot(-slope / bend, weight, steer, intercept, coef, eta, rows, Q, problem.family, curvature, price)


def curvature_of(problem: Problem) -> float:
    """Curvature of the loss at the mean outcome, the unit of penalties."""
    family, mean = problem.family, problem.outcomes.mean
    eta = link_of(family, mean)[None]
    y = np.zeros_like(eta) if family.is_vector else np.reshape(mean, (1, 1))
    return abs(float(np.trace(family.terms(y, eta, np.zeros_like(eta)).curvature[0]))) / len(eta[0])


def screen(Z: Array, factors: Array, pairs: IntArray, pilot: Pilot, most: int) -> IntArray:
    """Positions of up to ``most`` products that could lower the loss most; pairs (c, 2) of factors (n, f), in order.

    Means are removed from the factors, which changes a product by what its factors explain alone. The scores of all
    products beside the features Z (n, q) are then one matrix product, and none of them is formed.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> Z, X = rng.normal(size=(400, 3)), rng.normal(size=(400, 1))
    >>> y = Z[:, 0] + Z[:, 1] * Z[:, 2] + 0.1 * rng.normal(size=400)
    >>> pairs = np.array([[0, 1], [0, 2], [1, 2]])
    >>> screen(Z, Z, pairs, fit_pilot(Problem(Z, y, X)), most=1)
    array([2])
    """
    if len(pairs) <= most:
        return np.arange(len(pairs))
    gains = np.zeros(len(pairs))
    first, second = pairs.T
    for a in range(pilot.weight.shape[1]):
        w = pilot.weight[:, a]
        centred = factors - (w @ factors) / w.sum()
        left = np.sqrt(w) * _There(Z, pilot, a).left
        score = (centred.T @ (left[:, None] * centred))[first, second]
        squared = centred**2
        total = (squared.T @ (w[:, None] * squared))[first, second]
        gains += score**2 / np.maximum(total, np.finfo(float).tiny)
    return np.sort(np.argsort(-gains, kind="stable")[:most])


def choose_columns(Z: Array, candidates: Array, pilot: Pilot, most: int, least: float = 0.0) -> IntArray:
    """Positions of up to ``most`` candidates (n, c) that lower the loss most beside the features Z (n, q), best first.

    Each candidate counts by the square of its score over its variance, both outside the span of the features, of the
    directions that the constraint takes up, and of the candidates chosen before. ``least`` is the smallest reduction of
    the loss, in units of what one useless candidate takes away on average.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> Z, X = rng.normal(size=(400, 2)), rng.normal(size=(400, 1))
    >>> y = Z[:, 0] + Z[:, 0] * Z[:, 1] + 0.1 * rng.normal(size=400)
    >>> candidates = np.column_stack([rng.normal(size=400), Z[:, 0] * Z[:, 1]])
    >>> choose_columns(Z, candidates, fit_pilot(Problem(Z, y, X)), most=1)
    array([1])
    """
    most = min(most, candidates.shape[1])
    searches = [_Search(Z, candidates, pilot, a, most) for a in range(pilot.effects.shape[1])]
    floor = least * sum(search.noise for search in searches)
    chosen: list[int] = []
    while len(chosen) < most:
        gains = np.sum([search.gains() for search in searches], axis=0)
        gains[chosen] = 0.0
        best = int(np.argmax(gains))
        if not gains[best] > floor:
            break
        chosen.append(best)
        for search in searches:
            search.take(best)
    return np.array(chosen, dtype=np.intp)


class _There:
    """Span of the features and of the directions that the constraint takes up, for one linear predictor."""

    def __init__(self, Z: Array, pilot: Pilot, a: int) -> None:
        self.root = np.sqrt(pilot.weight[:, a])
        self.columns = np.column_stack([np.ones(len(Z)), Z, pilot.steer[:, a]]) * self.root[:, None]
        gram = self.columns.T @ self.columns
        gram[np.diag_indices_from(gram)] += 1e-7 * gram.diagonal() + 1e-12 * np.trace(gram)
        self.factor = np.linalg.cholesky(gram)
        effects = self.root * pilot.effects[:, a]
        inside = solve_triangular(self.factor.T, self.inside(effects))
        self.left = effects - self.columns @ inside

    def inside(self, columns: Array) -> Array:
        """Coordinates of the part of columns inside the span."""
        return np.asarray(solve_triangular(self.factor, self.columns.T @ columns, lower=True))


class _Search:
    """Scores and covariances of the candidates for one linear predictor, outside the span of what is there.

    Covariances are those beside the features; ``rows`` are the rows of their Cholesky factor for the candidates chosen.
    """

    def __init__(self, Z: Array, candidates: Array, pilot: Pilot, a: int, most: int) -> None:
        there = _There(Z, pilot, a)
        columns = candidates * there.root[:, None]
        inside, whole = there.inside(columns), np.dot(columns.T, columns)
        self.total = whole.diagonal().copy()
        self.covariance = whole - np.dot(inside.T, inside)
        self.variance = self.covariance.diagonal().copy()
        self.score = columns.T @ there.left
        self.ridge = RIDGE * self.total
        self.noise = float(there.left @ there.left) / len(Z)
        self.rows, self.taken = np.empty((most, len(self.total))), 0

    def gains(self) -> Array:
        """Reduction of the loss by each candidate; none for one that adds nothing new."""
        new = self.variance > NEW * self.total
        return np.where(new, self.score**2 / np.where(new, self.variance + self.ridge, 1.0), 0.0)

    def take(self, j: int) -> None:
        """Add a candidate to what is there."""
        own = self.variance[j]
        if not own > NEW * self.total[j]:
            return  # nothing new for this predictor
        before = self.rows[: self.taken]
        row = (self.covariance[j] - np.dot(before[:, j], before)) / np.sqrt(own)
        self.score = self.score - row * (self.score[j] / np.sqrt(own))
        self.variance = self.variance - row**2
        self.rows[self.taken] = row
        self.taken += 1
