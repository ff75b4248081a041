"""Ridge-penalised generalised linear models under a bound on unfairness (Scutari, Panero and Proissl 2022).

With ``U`` the residuals of the features from a least-squares regression on ``[1, S]``, the model has the linear
predictor ``a + S beta + U gamma`` and minimises ``-loglik/n + lambda/2 sum_j (s_j beta_j)^2``, ``s_j`` the standard
deviation of a protected column. The smallest ``lambda`` is sought at which the unfairness is within its bound.

Nothing here forms ``U``: the core whitens its columns in their order, so behind an orthonormal basis ``Q`` of the
protected columns its coordinates of the features *are* those of the residuals, reduced to their rank.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from scipy.optimize import brentq

from setsquare import Problem
from setsquare.errors import InputError
from setsquare.families import Family
from setsquare.glm import Iterate, Objective, Prepared, Settings, kkt_residual, prepare, solve_sqp
from setsquare.projection import Basis, protected_basis
from setsquare.rows import single_threaded_blas
from studies.arrays import Array
from studies.comparators import unfairness
from studies.comparators.base import Fit, LinearComparator, split_coefficients

#: Where the search for a penalty starts, and the penalty at which the protected columns have no effect left.
FIRST, LAST = 1e-3, 1e12
#: Accuracy of the logarithm of the penalty at a jump, and of the unfairness where it has none.
LOG_ACCURACY, ACCURACY = 1e-8, 1e-9


@dataclass(frozen=True, slots=True)
class RidgePath:
    """The penalised fits of one problem, for any penalty.

    Attributes
    ----------
    problem : Problem
        The one that was given.
    prepared : Prepared
        Of the features ``[Q, Z]``.
    basis : Basis
        Of the protected columns, rank r.
    loadings : ndarray of shape (r, p)
        ``(S - mean) / s = Q loadings``.
    """

    problem: Problem
    prepared: Prepared
    basis: Basis
    loadings: Array

    @classmethod
    def of(cls, problem: Problem) -> RidgePath:
        """Whiten the columns once for all penalties."""
        S = np.asarray(problem.protected)
        basis = protected_basis(S, None, tuple(problem.protected_names))
        Q = basis.apply(S)
        names = (*(f"basis {j}" for j in range(basis.rank)), *problem.feature_names)
        both = Problem(np.hstack([Q, problem.features]), problem.outcome, None, problem.family, feature_names=names)
        spread = S.std(axis=0)
        spread[spread == 0.0] = np.inf
        return cls(problem, prepare(both), basis, Q.T @ ((S - basis.mean) / spread) / len(S))

    @property
    def objective(self) -> Objective:
        """Without a penalty."""
        return self.prepared.objective

    def delta(self, theta: Array) -> Array:
        """Effects of the basis, (r,): ``S beta`` is ``Q delta`` up to a constant."""
        own = slice(1, 1 + self.basis.rank)
        return np.asarray(self.objective.to_raw[own, own] @ theta[own])

    def beta(self, theta: Array) -> Array:
        """Effects of the protected columns, (p,); of all that give the same predictor, the least penalised."""
        spread = np.asarray(self.problem.protected).std(axis=0)
        b = np.linalg.lstsq(self.loadings, self.delta(theta), rcond=None)[0]
        return np.asarray(np.divide(b, spread, out=np.zeros_like(b), where=spread > 0.0))

    def penalised(self, lam: float) -> Objective:
        """Return the objective with the penalty ``lam``."""
        own = slice(1, 1 + self.basis.rank)
        T = self.objective.to_raw[own, own]
        penalty = np.zeros_like(self.objective.penalty)
        # |b|^2 of the shortest b with loadings b = delta: collinear protected columns share an effect, as a ridge does
        penalty[own, own] = lam * T.T @ np.linalg.solve(self.loadings @ self.loadings.T, T)
        return self.objective.penalised(penalty)

    def fit(self, lam: float, start: Array | None = None) -> Iterate:
        """Newton's method from a neighbouring fit.

        Measures that compare with the fit without a penalty depend on how far that follows an open direction: as far
        as Newton steps do in R.
        """
        return solve_sqp(self.penalised(lam), start, Settings(leaps=()))


class _Point(NamedTuple):
    lam: float
    value: float
    end: Iterate


def fit_fair_ridge(problem: Problem, definition: str, bound: float = 0.05) -> Fit:
    """Fit the model with the smallest ridge whose unfairness is at most `bound`.

    Parameters
    ----------
    problem : Problem
        With protected columns; weights, offset and ridge are not used.
    definition : {"sp", "eo", "if"}
    bound : float
        In (0, 1].

    Returns
    -------
    Fit
    """
    if not 0.0 < bound <= 1.0:
        raise InputError(f"The bound on the unfairness must be above 0 and at most 1, not {bound!r}.")
    with single_threaded_blas(), np.errstate(over="ignore", invalid="ignore"):
        path = RidgePath.of(problem)
        free = path.fit(0.0)
        measure = unfairness.DEFINITIONS[definition](path, free.theta)
        value = measure(free.theta)
        found = _Point(0.0, value, free) if value <= bound else _search(path, measure, bound, free)
        intercept, coef, protected_coef = split_coefficients(path.prepared, found.end.theta, path.basis)
    kkt = kkt_residual(path.objective, found.end.model, found.end.lam)
    return Fit(problem.family, intercept, coef, protected_coef, found.value, found.lam, found.end.status, kkt)


def _search(path: RidgePath, measure: Callable[[Array], float], bound: float, free: Iterate) -> _Point:
    """Find the smallest penalty within the bound: decade by decade, then by Brent's method on its logarithm.

    A measure that counts classes jumps, and its root is a jump; the point on the fair side of it is returned.
    """
    tried = [_Point(0.0, math.inf, free)]
    known: dict[float, float] = {}

    def excess(log_lam: float) -> float:
        if log_lam not in known:
            nearest = min(tried, key=lambda point: abs(math.log(point.lam or FIRST) - log_lam))
            end = path.fit(math.exp(log_lam), nearest.end.theta)
            tried.append(_Point(math.exp(log_lam), measure(end.theta), end))
            gap = tried[-1].value - bound
            known[log_lam] = 0.0 if abs(gap) <= ACCURACY else gap
        return known[log_lam]

    decade, high = math.log(10.0), math.log(FIRST)
    while excess(high) <= 0.0 and high > -math.log(LAST):  # too much of a penalty to begin with
        high -= decade
    while excess(high) > 0.0:
        if high > math.log(LAST):
            left = bound + known[high]
            raise InputError(
                f"An unfairness of {bound:g} cannot be reached: without any effect of the protected columns it is "
                f"{left:.3g}, because the features stand for them; choose a larger bound."
            )
        high += decade
    low = high - decade
    if excess(low) > 0.0:
        excess(float(brentq(excess, low, high, xtol=LOG_ACCURACY, rtol=4.0 * np.finfo(float).eps)))
    return min((point for point in tried if point.value <= bound + ACCURACY), key=lambda point: point.lam)


class FairRidge(LinearComparator):
    """Ridge-penalised GLM with bounded unfairness; needs the protected columns to predict.

    Base of :class:`KomiyamaParity`, :class:`KomiyamaOpportunity` and :class:`BerkIndividual`, which differ in what
    they call unfair.

    Parameters
    ----------
    family : {"binomial", "poisson", "gaussian"}
    bound : float
        Largest unfairness; 0.05 in the paper's benchmark.
    """

    definition: ClassVar[str]

    def __init__(self, *, family: str | Family = "binomial", bound: float = 0.05) -> None:
        super().__init__(family=family)
        self.bound = bound

    def solve(self, problem: Problem) -> Fit:
        """Fit to a problem."""
        return fit_fair_ridge(problem, self.definition, self.bound)


class KomiyamaParity(FairRidge):
    """Komiyama et al. for GLMs, statistical parity (`sp`); needs the protected columns to predict.

    Unfairness is the share of the explained deviance that goes when the effects of the protected columns are set to
    zero, ``(D_SU - D_U) / (D_SU - D_0)``, without a new fit; for the gaussian family ``var(S beta) / var(eta)``.

    It bounds that share. It does not make the predictions uncorrelated with the protected columns. Because the
    intercept is not fitted anew, the share also depends on where the protected columns have their zero.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> S = rng.normal(size=(500, 1))
    >>> Z = S + rng.normal(size=(500, 2))
    >>> y = (rng.random(500) < 1 / (1 + np.exp(-Z[:, 0] - S[:, 0]))).astype(float)
    >>> model = KomiyamaParity().fit(Z, y, S)
    >>> round(model.fairness_, 6), model.predict(Z, S).shape
    (0.05, (500,))
    """

    definition = "sp"


class KomiyamaOpportunity(FairRidge):
    """Komiyama et al. for GLMs, equality of opportunity (`eo`); needs the protected columns to predict.

    The predictions (for binomial outcomes the class at 0.5) are regressed on the protected columns and the outcome.
    Unfairness is the share of the explained deviance that belongs to the protected columns, entered first.

    Classes jump, and so does the measure: the bound is kept, but as a rule not reached. Probabilities are not bounded.
    """

    definition = "eo"


class BerkIndividual(FairRidge):
    """Berk et al. for GLMs, individual fairness (`if`); needs the protected columns to predict.

    Unfairness is the mean over all pairs of rows of ``|y_i - y_j| (s_i - s_j)^2`` with ``s = S beta``, divided by the
    same of the model without a penalty. It is a quadratic form in ``beta``, taken from sorted rows once.

    It bounds the part ``S beta`` relative to the ordinary fit. It says nothing of the predictions as such: where the
    protected columns matter much to begin with, much is left.
    """

    definition = "if"
