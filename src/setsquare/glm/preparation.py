"""Preparation of a problem for the solvers: whitened features, basis of the protected columns, starting point."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, lapack

from setsquare._typing import Array, BoolArray, IntArray, Matrix
from setsquare.errors import InputError
from setsquare.families import Family
from setsquare.glm.aliasing import (
    FILLED,
    Copies,
    independent,
    precision,
    put_residuals,
    rounding,
    separate,
)
from setsquare.glm.centring import Centre, feature_moments
from setsquare.glm.freedom import check_freedom, refuse_early
from setsquare.glm.hessian import whitening_of
from setsquare.glm.intercept import (
    Point,
    first_intercept,
    fit_intercept,
    intercept_sums,
    link_of,
    null_sums,
    point_of,
    steepness_at,
)
from setsquare.glm.objective import Objective, Start
from setsquare.glm.problem import Problem
from setsquare.projection import Basis
from setsquare.projection.basis import basis_of_rows
from setsquare.projection.moments import Moments
from setsquare.rows.blocks import ArrayRows, Block, Rows, is_sparse
from setsquare.rows.parallel import Sums, add_sums
from setsquare.tables.mixed_matrix import MixedMatrix

#: Mean square below which float64 loses digits.
SMALLEST = 1e-290
#: Size of a centred copy of dense features, in bytes, above which they are read as they are stored instead.
LARGEST_COPY = 2**26
#: Mean of such a feature in standard deviations up to which it is not subtracted: squares then lose two digits of 16.
NEAR_ZERO = 10.0
#: Rows that its mean is estimated from: any value near it will do.
SAMPLE = 4096
#: Curvature that a ridge must add to an aliased feature, which has none of its own, for it to be kept.
DETERMINED = 1e-10


@dataclass(frozen=True, slots=True)
class Prepared:
    """A problem ready for a solver.

    Attributes
    ----------
    problem : Problem
    objective : Objective
    basis : Basis or None
        Basis of the protected columns.
    mean : ndarray of shape (q,)
        Values subtracted from the features in the objective's rows.
    scale : ndarray of shape (q,)
        Standard deviations of the features (1 for a constant one).
    gram : ndarray of shape (q, q) or None
        Correlations of the features; None if there are too many features to form it.
    aliased : tuple of str
        Features that are linear combinations of earlier ones; without a ridge their coefficient is 0.
    label_share : float
        Share of the outcome's variance that the protected columns explain.
    loadings : ndarray of shape (r, p)
        Covariances of the basis with the protected columns.
    unmix : ndarray of shape (q, q) or None
        The features in the objective's rows are ``(Z - mean) @ unmix``, or ``Z - mean`` if None; see ``aliasing``.
    """

    problem: Problem
    objective: Objective
    basis: Basis | None
    mean: Array
    scale: Array
    gram: Array | None
    aliased: tuple[str, ...]
    label_share: float
    loadings: Array
    unmix: Array | None = None

    @property
    def rank_features(self) -> int | None:
        """Number of linearly independent features, without the intercept; None if unknown."""
        return None if self.gram is None else len(self.mean) - len(self.aliased)

    @property
    def to_coef(self) -> Array:
        """Matrix (q, m) from the coordinates of a predictor to coefficients of the original features."""
        T = np.asarray(self.objective.to_raw[1:])
        return T if self.unmix is None else self.unmix @ T

    def coefficients(self, theta: Array) -> tuple[Array, Array]:
        """Intercepts (k,) and coefficients (k, q) on the scale of the original features."""
        raw = self.objective.raw(theta)
        coef = raw[1:].T if self.unmix is None else raw[1:].T @ self.unmix.T
        return raw[0] - coef @ self.mean, coef

    def theta(self, intercept: Array, coef: Array) -> Array:
        """Inverse of :meth:`coefficients`, up to aliased features: the point with the same linear predictor."""
        assert self.gram is not None  # WidePrepared, which has none, overrides this
        ridge = self.problem.l2 / self.scale**2
        inner = coef if self.unmix is None else np.linalg.solve(self.unmix, coef.T).T
        scaled = (inner * self.scale).T
        T = self.objective.to_raw[1:, 1:] * self.scale[:, None]
        normal = T.T @ (self.gram + np.diag(ridge))
        whitened = np.linalg.lstsq(normal @ T, normal @ scaled, rcond=None)[0]
        centred = np.atleast_1d(intercept) + coef @ self.mean - self.objective.to_raw[0, 1:] @ whitened
        return np.column_stack([centred, whitened.T]).ravel()


@dataclass(frozen=True, slots=True)
class Survey:
    """Statistics from the first pass over the rows.

    Attributes
    ----------
    mean : ndarray of shape (q,)
        Means of the features; 0 for those that are read as they are stored.
    filled : ndarray of shape (q,) or None
        Number of stored values of each feature, if some are sparse or dummies of a category.
    moments : Moments
        Joint moments of the protected columns and the outcome.
    null : tuple of arrays
        Sums of the intercept-only model; empty with an offset.
    eps : float
        Relative rounding error of the features.
    """

    mean: Array
    filled: IntArray | None
    moments: Moments
    null: Sums
    eps: float

    def merge(self, other: Survey) -> Survey:
        """Combine with the statistics of other rows."""
        mean, *null = add_sums((self.mean, *self.null), (other.mean, *other.null))
        filled = None if self.filled is None or other.filled is None else self.filled + other.filled
        return Survey(mean, filled, self.moments.merge(other.moments), tuple(null), max(self.eps, other.eps))


@dataclass(frozen=True, slots=True)
class Surveyed:
    """Results derived from the first pass over the rows.

    Attributes
    ----------
    found : Survey
    basis : Basis or None
        Basis of the protected columns.
    mean : ndarray of shape (q,)
        Values to subtract from the features: their means, but 0 for sparse features and dummies of a category, unless
        these have almost no zeros; for features that are read as they are stored, near their means, or 0 near zero.
    label_share : float
    loadings : ndarray of shape (r, p)
        Covariances of the basis with the protected columns; 0 for constant ones.
    intercept : ndarray of shape (k,)
        Intercept of the intercept-only model ``null``.
    """

    found: Survey
    basis: Basis | None
    mean: Array
    label_share: float
    loadings: Array
    intercept: Array
    null: Point

    def start(self, problem: Problem, m: int, moments: Sums | None = None) -> Start:
        """Intercept-only model for ``m`` coordinates per predictor; moments of the features save a pass."""
        k, null, sums, mean = problem.n_predictors, self.null, None, self.null.mean
        steepness = 0.0
        if not problem.has_offset:
            average = self.found.moments.mean[None, -k:]
            terms = problem.family.terms(average, self.intercept[None], np.zeros((1, k)))
            mean = terms.mean[0]  # bitwise the mean of every row, so that no row differs from it
            steepness = float(np.trace(terms.mean_slope[0]))
            if moments is not None and problem.family.link == "canonical":
                sums = null_sums(null.loss, terms, *moments)
        theta = np.zeros((k, m))
        theta[:, 0] = self.intercept
        curvature = float(np.trace(null.hessian)) / k
        steepness = steepness if not problem.has_offset else steepness_at(problem.family, problem.outcomes.mean)
        return Start(theta.ravel(), null.loss, mean, null.slope, curvature, steepness, sums)


def survey(problem: Problem) -> Surveyed:
    """Compute means, a basis of the protected columns and the intercept-only model; raise if no fit is possible.

    This takes one pass over the rows, and more with an offset or with nearly collinear protected columns.
    """
    refuse_early(problem)
    q, p = len(problem.feature_names), len(problem.protected_names)
    given = fit_null(problem) if problem.has_offset else None
    intercept = link_of(problem.family, problem.outcomes.mean) if given is None else given[0]
    kernel = partial(_survey, q, problem.family, intercept if given is None else None, stays_stored(problem))
    found = problem.rows.reduce(kernel, Survey.merge)
    moments, share, basis, loadings = found.moments, 0.0, None, np.zeros((0, p))
    if p:
        own = Moments(moments.weight, moments.mean[:p], moments.scatter[:p, :p])
        basis = basis_of_rows(own, tuple(problem.protected_names), problem.rows)
        total = float(moments.scatter.diagonal()[p:].sum())
        cross = basis.transform.T @ moments.scatter[:p]
        share = float(np.sum(cross[:, p:] ** 2)) / total if total > 0.0 else 0.0
        loadings = cross[:, :p]
        loadings[:, [basis.names.index(name) for name in basis.constant]] = 0.0
    mean = found.mean if found.filled is None else np.where(found.filled >= FILLED * problem.n_rows, found.mean, 0.0)
    if stays_stored(problem):
        mean = rough_means(np.asarray(problem.features), problem.weight)
    null = point_of(found.null) if given is None else given[1]
    return Surveyed(found, basis, mean, share, loadings, intercept, null)


def stays_stored(problem: Problem) -> bool:
    """Whether the features are a dense array that is too large for a centred copy."""
    Z = problem.features
    return isinstance(Z, np.ndarray) and 8 * Z.size > LARGEST_COPY


def rough_means(Z: Array, weight: Array | None) -> Array:
    """Means (q,) of dense features on some of the rows that count; 0 if they are near zero.

    Examples
    --------
    >>> rough_means(np.array([[1.0, 100.0], [-1.0, 101.0], [7.0, 0.0]]), np.array([1.0, 1.0, 0.0]))
    array([  0. , 100.5])
    """
    if weight is None or weight.all():
        some = Z[:: max(1, len(Z) // SAMPLE)]
    else:
        counted = np.flatnonzero(weight)
        some = Z[counted[:: max(1, len(counted) // SAMPLE)]]
    some = np.asarray(some, dtype=np.float64)
    with np.errstate(over="ignore", invalid="ignore"):  # squares that overflow are refused later
        mean, variance = some.mean(axis=0), some.var(axis=0)
        return np.where(mean**2 <= NEAR_ZERO**2 * variance, 0.0, mean)


def _survey(q: int, family: Family, intercept: Array | None, stored: bool, block: Block) -> Survey:
    thin, w = is_sparse(block.Z), block.weight
    split = isinstance(block.Z, MixedMatrix)
    Z = block.Z if thin or split else block.Z[:, -q:]
    parts = [block.y] if block.X is None else [block.X, block.y]
    A = np.empty((len(w), sum(part.shape[1] for part in parts)), order="F")  # contiguous columns for the moments
    np.concatenate(parts, axis=1, out=A)
    null = () if intercept is None else intercept_sums(family, intercept, block)
    filled = np.bincount(Z.indices, minlength=q) if thin else Z.counts() if split else None
    total = np.zeros(q)
    if not stored:
        total = np.asarray(np.dot(w, Z) if isinstance(Z, np.ndarray) else w @ Z)  # ``@`` would let other threads wait
    return Survey(total, filled, Moments.of(A, w), null, precision(Z))


def fit_null(problem: Problem) -> tuple[Array, Point]:
    """Fit the intercept-only model with an offset, in several passes over the rows."""
    outcomes, family = problem.outcomes, problem.family
    assert outcomes.offset is not None

    def at(intercept: Array) -> Point:
        return point_of(problem.rows.reduce(partial(intercept_sums, family, intercept)))

    first = first_intercept(family, outcomes.mean, outcomes.offset / outcomes.weight, outcomes.top)
    return fit_intercept(at, family, outcomes.mean, first, outcomes.top)


def prepare(problem: Problem, *, whiten: bool = True) -> Prepared:
    """Whiten (or only standardise) the features, compute a basis of the protected columns, and build the objective."""
    surveyed = survey(problem)
    basis, mean = surveyed.basis, surveyed.mean.copy()
    rank, stored = 0 if basis is None else basis.rank, stays_stored(problem)
    of_features = partial(feature_moments, rank)
    rows, moments = _centred(problem, Centre(mean, basis, stored), of_features)
    if stored and (far := _are_far(moments[0], mean)).any():  # some of the rows were unlike all of them
        mean[far] += moments[0][0, 1:][far]
        rows, moments = _centred(problem, Centre(mean, basis, stored), of_features)
    check_squares(problem, moments[0].diagonal()[1:])

    def exchange(copies: Copies) -> tuple[Rows, Array]:
        nonlocal rows, moments
        mean[copies.suspect] += copies.mean
        rows = rows.map(partial(put_residuals, copies)).keep()
        moments = rows.reduce(of_features)
        return rows, moments[0]

    noise = rounding(surveyed.found.eps, mean, moments[0])
    separated, rows = separate(moments[0], mean, noise, rows, exchange)
    second, kept, unmix = separated.second, separated.kept, separated.unmix
    gram, scale = separated.gram, separated.scale
    if basis is not None and basis.rank >= len(kept):
        check_freedom(basis, moments[2][1:] / scale[:, None], _whitening(gram, kept))
    l2, ridge = problem.l2, np.zeros(0)
    if l2 > 0.0:
        M = np.diag(1.0 / scale) if unmix is None else unmix / scale
        ridge = l2 * (M.T @ M)
    inner = gram + ridge if l2 > 0.0 else gram
    columns = independent(inner, DETERMINED) if l2 > 0.0 else kept
    T = (_whitening(inner, columns) if whiten else np.eye(len(gram))[:, columns]) / scale[:, None]
    to_raw = np.zeros((1 + T.shape[0], 1 + T.shape[1]))
    to_raw[0, 0], to_raw[1:, 1:], to_raw[0, 1:] = 1.0, T, -second[0, 1:] @ T
    penalty = np.zeros((to_raw.shape[1],) * 2)
    if l2 > 0.0:
        coefficients = T if unmix is None else unmix @ T
        penalty[1:, 1:] = l2 * coefficients.T @ coefficients
    start = surveyed.start(problem, to_raw.shape[1], moments)
    white = whitening_of(to_raw, columns, second, problem.l2, unmix)
    objective = Objective(rows, problem.family, to_raw, penalty, problem.n_predictors, rank, start, whitening=white)
    left = sorted(set(range(len(gram))).difference(kept.tolist())) if len(kept) < len(gram) else []
    aliased = tuple(problem.feature_names[j] for j in left)
    return Prepared(
        problem, objective, basis, mean, scale, gram, aliased, surveyed.label_share, surveyed.loadings, unmix
    )


def _centred(problem: Problem, centre: Centre, of_features: Callable[[Block], Sums]) -> tuple[Rows, Sums]:
    """Rows for the objective, and the moments of their features."""
    rows: Rows = _merged(problem.rows).map(centre).keep()
    return rows, rows.reduce(of_features)


def _are_far(second: Array, mean: Array) -> BoolArray:
    """Which features (q,) are still far from zero after ``mean`` was subtracted, by their second moments."""
    left, square = second[0, 1:], second.diagonal()[1:]
    rounding = np.finfo(float).eps * len(second) * np.abs(mean)
    return (left**2 > NEAR_ZERO**2 * (square - left**2)) & (np.abs(left) > rounding)


def _merged(rows: Rows) -> Rows:
    """Merge small categories of rows in memory."""
    together = isinstance(rows, ArrayRows) and isinstance(rows.Z, MixedMatrix)
    return replace(rows, Z=rows.Z.merged()) if together else rows  # type: ignore[attr-defined, type-var]


def check_squares(problem: Problem, squares: Array) -> None:
    """Raise if mean squares (q,) of features overflow or underflow float64, naming the features."""
    names = np.asarray(problem.feature_names, dtype=object)
    large = ~np.isfinite(squares)
    if large.any():
        raise InputError(
            f"Feature(s) {', '.join(names[large][:5])} have values so large that their squares exceed float64: rescale "
            "or correct them."
        )
    small = (squares < SMALLEST).nonzero()[0]
    if len(small):
        low, high = problem.rows.reduce(partial(_ends, small - len(squares)), _wider)
        tiny = low < high
        if tiny.any():
            raise InputError(
                f"Feature(s) {', '.join(names[small[tiny]][:5])} have values so small that their squares vanish in "
                "float64: rescale them."
            )


def _ends(columns: NDArray[np.intp], block: Block) -> tuple[Array, Array]:
    """Smallest and largest value of features given by negative column indices."""
    columns = block.Z.shape[1] + columns
    Z: Matrix = block.Z.take(columns) if isinstance(block.Z, MixedMatrix) else block.Z[:, columns]
    Z = Z.toarray() if is_sparse(Z) else Z
    return Z.min(axis=0), Z.max(axis=0)


def _wider(a: tuple[Array, Array], b: tuple[Array, Array]) -> tuple[Array, Array]:
    return np.minimum(a[0], b[0]), np.maximum(a[1], b[1])


def _whitening(gram: Array, columns: NDArray[np.intp]) -> Array:
    """``T`` with ``T' gram T = I``, and zero rows for features outside ``columns``."""
    T = np.zeros((len(gram), len(columns)))
    if len(columns):
        kept = gram if len(columns) == len(gram) else gram[np.ix_(columns, columns)]
        upper, failed = lapack.dpotrf(kept)
        if failed:
            raise LinAlgError("The second moments of the features are not positive definite.")
        T[columns] = lapack.dtrtri(upper)[0]
    return T
