"""A bound on the covariance of the protected columns with the linear predictor (Zafar et al. 2019).

    min over gamma   -loglik/n     subject to   |cov(S_j, eta)| <= c   for each protected column j,

with ``c`` chosen so that the largest ``|corr(S_j, eta)|`` is the bound that was asked for. For a given ``c`` this is
convex. Each Newton step is a quadratic programme with 2p linear inequalities, which is a least-distance problem and
solved exactly by non-negative least squares (Lawson and Hanson); the multipliers that it brings certify the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from scipy.optimize import brentq, fminbound, nnls

from setsquare import Problem
from setsquare.errors import InputError
from setsquare.families import Family
from setsquare.glm import Objective, Prepared, Settings, Status, kkt_residual, prepare, solve_sqp
from setsquare.rows import single_threaded_blas, weighted_product
from studies.arrays import Array
from studies.comparators.base import Fit, LinearComparator, max_correlation

#: Relative KKT residual of a solution, and the promised reduction of the loss (a share of it) that rounding hides.
KKT, ROUNDING = 1e-9, 1e-15
MAX_ITER = 100
#: Step of the search for a bound on the covariance, downwards; and its accuracy, relative to where it starts.
FACTOR, ACCURACY = 0.75, 1e-13
#: Tolerance of R's ``optimize``, with which the paper's benchmark searched.
R_TOLERANCE = float(np.finfo(float).eps ** 0.25)

#: Eigenvalues below this share of the largest are rounding error.
SINGULAR = 1e-9


class Optimum(NamedTuple):
    """Where the convex problem for one ``c`` ended: coefficients (m,), multipliers (p,), KKT residual, status."""

    theta: Array
    nu: Array
    kkt: float
    status: Status


@dataclass(frozen=True, slots=True)
class BoundedCovariance:
    """The convex problem, for any bound ``c``.

    Attributes
    ----------
    objective : Objective
        The model without the constraint, in whitened coordinates.
    A : ndarray of shape (p, m)
        ``cov(S_j, eta) = A theta``.
    spread : ndarray of shape (p,)
        Standard deviations of the protected columns.
    """

    objective: Objective
    A: Array
    spread: Array

    @classmethod
    def of(cls, problem: Problem, prepared: Prepared) -> BoundedCovariance:
        """Covariances of the protected columns with the whitened features."""
        S = np.asarray(problem.protected)
        centred = S - S.mean(axis=0)
        cross = weighted_product(centred, problem.mean_weight(), np.asarray(problem.features) - prepared.mean)
        A = np.column_stack([np.zeros(len(cross)), cross @ prepared.to_coef[:, 1:]])
        spread = centred.std(axis=0)
        varies = spread > 0.0
        return cls(prepared.objective, A[varies], spread[varies])

    def correlation(self, theta: Array) -> float:
        """Largest correlation of a protected column with the linear predictor."""
        size = float(np.linalg.norm(theta[1:]))
        return float(np.max(np.abs(self.A @ theta) / self.spread, initial=0.0)) / size if size > 0.0 else 0.0

    def solve(self, c: float, start: Array | None = None) -> Optimum:
        """Newton's method with exact quadratic programmes, from a point that is drawn into the feasible set."""
        theta = self.objective.start.theta if start is None else start
        worst = float(np.abs(self.A @ theta).max(initial=0.0))
        if worst > c:
            theta = np.concatenate([theta[:1], theta[1:] * (c / worst)])
        status, nu, kkt = Status.MAX_ITER, np.zeros(len(self.A)), np.inf
        for _ in range(MAX_ITER):
            model = self.objective.model(theta, np.zeros(0))
            step, nu = bounded_step(model.H, model.g, self.A, self.A @ theta, c)
            kkt = self._kkt(theta, model.g, nu, c)
            slope = float(model.g @ step)
            if kkt <= KKT or -slope <= ROUNDING * abs(model.loss):
                status = Status.CONVERGED if kkt <= KKT else Status.FLAT
                break
            length = 1.0
            # Both ends are feasible, so every point between them is: only the loss has to be watched.
            while self.objective.values(theta + length * step).loss > model.loss + 1e-4 * length * slope:
                length *= 0.5
                if length < 1e-12:
                    return Optimum(theta, nu, kkt, Status.STALLED)
            theta = theta + length * step
        return Optimum(theta, nu, kkt, status)

    def _kkt(self, theta: Array, g: Array, nu: Array, c: float) -> float:
        """Largest of gradient of the Lagrangian, violation and complementarity, each relative; 0 proves an optimum."""
        covariance, start = self.A @ theta, self.objective.start
        gradient = float(np.abs(g + self.A.T @ nu).max()) / start.slope
        violation = float(np.max(np.abs(covariance) - c, initial=0.0)) / c
        gap = float(np.sum(np.abs(nu) * c - nu * covariance)) / start.loss
        return max(gradient, violation, abs(gap))


def bounded_step(H: Array, g: Array, A: Array, covariance: Array, c: float) -> tuple[Array, Array]:
    """Minimise ``g'd + d'Hd/2`` subject to ``|covariance + A d| <= c``; also returns the multipliers (p,).

    Examples
    --------
    >>> import numpy as np
    >>> step, nu = bounded_step(np.eye(2), np.array([-3.0, -1.0]), np.array([[1.0, 0.0]]), np.zeros(1), 2.0)
    >>> step, nu
    (array([2., 1.]), array([1.]))
    """
    values, vectors = np.linalg.eigh(H)
    size = np.sqrt(np.maximum(values, SINGULAR * values[-1]))
    free = -(vectors.T @ g) / size  # with x = size * V'd the unconstrained step is the point nearest to it: itself
    B = (A @ vectors) / size
    G = np.vstack([B, -B])
    h = np.concatenate([-c - covariance, covariance - c]) - G @ free  # G (x - free) >= h
    u, _ = nnls(np.vstack([G.T, h]), np.append(np.zeros(len(g)), 1.0))
    # Which constraints hold with equality is exact; what follows from that is solved anew, with all digits.
    active, multipliers = u > 0.0, np.zeros(len(G))
    multipliers[active] = np.linalg.lstsq(G[active] @ G[active].T, h[active], rcond=None)[0]
    x = free + G.T @ multipliers
    return np.asarray(vectors @ (x / size)), np.asarray(multipliers[len(A) :] - multipliers[: len(A)])


def fit_zafar(problem: Problem, bound: float = 0.05, search: Literal["exact", "published"] = "exact") -> Fit:
    """Fit the model whose linear predictor has at most the correlation `bound` with each protected column.

    Parameters
    ----------
    problem : Problem
        With protected columns; weights, offset and ridge are not used.
    bound : float
        In (0, 1].
    search : {"exact", "published"}
        "exact" lowers the bound on the covariance until the bound on the correlation is kept. "published" minimises
        ``|largest correlation - bound|`` like R's ``optimize``, which can end in a local minimum off the bound.

    Returns
    -------
    Fit
    """
    if not 0.0 < bound <= 1.0:
        raise InputError(f"The bound on the correlation must be above 0 and at most 1, not {bound!r}.")
    if search not in ("exact", "published"):
        raise InputError(f"Unknown search {search!r}: choose 'exact' or 'published'.")
    with single_threaded_blas(), np.errstate(over="ignore", invalid="ignore"):
        prepared = prepare(Problem(problem.features, problem.outcome, None, problem.family))
        bounded = BoundedCovariance.of(problem, prepared)
        ordinary = solve_sqp(prepared.objective, None, Settings(leaps=()))  # no further along open directions than R
        kkt = kkt_residual(prepared.objective, ordinary.model, ordinary.lam)
        c, end = None, Optimum(ordinary.theta, np.zeros(len(bounded.A)), kkt, ordinary.status)
        if bounded.correlation(ordinary.theta) > bound:
            c, end = _search(bounded, ordinary.theta, bound, search)
        intercept, coef = prepared.coefficients(end.theta)
    eta = intercept[0] + problem.features @ coef[0]
    fairness = max_correlation(np.asarray(problem.protected), eta)
    return Fit(problem.family, float(intercept[0]), coef[0], None, fairness, c, end.status, end.kkt)


def _search(bounded: BoundedCovariance, ordinary: Array, bound: float, search: str) -> tuple[float, Optimum]:
    """Bound on the covariance, and its optimum.

    The correlation need not grow with the bound on the covariance, for the linear predictor's own spread changes too.
    """
    largest = float(np.abs(bounded.A @ ordinary).max())
    seen: dict[float, Optimum] = {}

    def excess(c: float) -> float:
        if c not in seen:
            # From above only: where rows cost nothing the optimum is a set, and from below its far end would be found.
            above = min((other for other in seen if other > c), default=None)
            seen[c] = bounded.solve(c, ordinary if above is None else seen[above].theta)
        return bounded.correlation(seen[c].theta) - bound

    c = largest
    if search == "published":
        c = float(fminbound(lambda x: abs(excess(float(x))), 0.0, 1.1 * c, xtol=R_TOLERANCE))
    elif excess(c) > 0.0:
        while excess(FACTOR * c) > 0.0:
            c *= FACTOR
        c = float(brentq(excess, FACTOR * c, c, xtol=ACCURACY * largest, rtol=4.0 * np.finfo(float).eps))
    excess(c)
    return c, seen[c]


class Zafar(LinearComparator):
    """GLM with a bounded covariance of linear predictor and protected columns; predicts without the protected columns.

    Parameters
    ----------
    family : {"binomial", "poisson", "gaussian"}
        Binomial in the paper's benchmark.
    bound : float
        Largest ``|corr(S_j, eta)|``; 0.05 in the paper's benchmark.
    search : {"exact", "published"}
        How the bound on the covariance is found, see :func:`fit_zafar`.

    Notes
    -----
    What is bounded is the correlation of the *linear predictor*. Predicted means are not bounded: a few rows with a
    level of their own can be pushed to any linear predictor at no cost, which buys covariance for all others. On 5000
    rows of Adult two rows out of 5000 end at -190.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> S = rng.normal(size=(500, 1))
    >>> Z = 0.5 * S + rng.normal(size=(500, 2))
    >>> y = (rng.random(500) < 1 / (1 + np.exp(-Z[:, 0]))).astype(float)
    >>> model = Zafar().fit(Z, y, S)
    >>> round(model.fairness_, 8), model.predict(Z).shape
    (0.05, (500,))
    """

    needs_protected = False

    def __init__(
        self,
        *,
        family: str | Family = "binomial",
        bound: float = 0.05,
        search: Literal["exact", "published"] = "exact",
    ) -> None:
        super().__init__(family=family)
        self.bound = bound
        self.search = search

    def solve(self, problem: Problem) -> Fit:
        """Fit to a problem."""
        return fit_zafar(problem, self.bound, self.search)
