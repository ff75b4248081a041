"""From a problem to an objective: features whitened, protected columns turned into a basis, the start worked out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.linalg import lapack

from setsquare._typing import Array, Matrix
from setsquare.errors import InputError
from setsquare.families import RowTerms, contrasts
from setsquare.glm.aliasing import (
    Copies,
    Separated,
    centre_filled,
    correlations,
    independent,
    put_residuals,
    rounding,
    separate,
)
from setsquare.glm.freedom import check_freedom, refuse_early
from setsquare.glm.intercept import (
    Point,
    first_intercept,
    fit_intercept,
    intercept_sums,
    link_of,
    point_of,
    steepness_at,
)
from setsquare.glm.objective import Objective, Start
from setsquare.glm.problem import Problem
from setsquare.glm.streamed_problem import StreamedProblem
from setsquare.projection import Basis, protected_basis
from setsquare.rows.blocks import (
    ArrayRows,
    Block,
    Rows,
    Sums,
    as_double,
    gram_and_product,
    is_sparse,
    quietly,
    row_slices,
)

#: Mean square under which float64 has lost digits of it.
SMALLEST = 1e-290
#: Curvature that a ridge must add to that of aliased features, which have none of their own, for them to be kept.
DETERMINED = 1e-10


@dataclass(frozen=True, slots=True)
class Prepared:
    """A problem ready for a solver.

    Attributes
    ----------
    problem : Problem or StreamedProblem
    objective : Objective
    basis : Basis or None
        Of the protected columns.
    mean : ndarray of shape (q,)
        What was subtracted from the features in the objective's rows.
    scale : ndarray of shape (q,)
        Standard deviations of the features (1 for a constant one).
    gram : ndarray of shape (q, q) or None
        Correlations of the features; None where they are too many to be formed.
    aliased : tuple of str
        Features that are linear combinations of earlier ones; without a ridge their coefficient is 0.
    label_share : float
        Share of the outcome's variance that the protected columns explain.
    unmix : ndarray of shape (q, q) or None
        The features in the objective's rows are ``(Z - mean) @ unmix``, or ``Z - mean`` where it is None; see
        ``aliasing``.
    """

    problem: Problem | StreamedProblem
    objective: Objective
    basis: Basis | None
    mean: Array
    scale: Array
    gram: Array | None
    aliased: tuple[str, ...]
    label_share: float
    unmix: Array | None = None

    @property
    def rank_features(self) -> int | None:
        """Number of linearly independent features, the intercept not counted; None where it is not known."""
        return None if self.gram is None else len(self.mean) - len(self.aliased)

    @property
    def to_coef(self) -> Array:
        """Matrix (q, m) from the coordinates of a predictor to coefficients of the features as they were given."""
        T = np.asarray(self.objective.to_raw[1:])
        return T if self.unmix is None else self.unmix @ T

    def coefficients(self, theta: Array) -> tuple[Array, Array]:
        """Intercepts (k,) and coefficients (k, q) on the scale of the features as they were given."""
        raw = self.objective.raw(theta)
        coef = raw[1:].T if self.unmix is None else raw[1:].T @ self.unmix.T
        return raw[0] - coef @ self.mean, coef

    def theta(self, intercept: Array, coef: Array) -> Array:
        """Inverse of :meth:`coefficients`, up to aliased features: the point with the same linear predictor."""
        assert self.gram is not None  # who does without it has coordinates of its own
        ridge = self.problem.l2 / self.scale**2
        inner = coef if self.unmix is None else np.linalg.solve(self.unmix, coef.T).T
        scaled = (inner * self.scale).T
        T = self.objective.to_raw[1:, 1:] * self.scale[:, None]
        normal = T.T @ (self.gram + np.diag(ridge))
        whitened = np.linalg.lstsq(normal @ T, normal @ scaled, rcond=None)[0]
        centred = np.atleast_1d(intercept) + coef @ self.mean - self.objective.to_raw[0, 1:] @ whitened
        return np.column_stack([centred, whitened.T]).ravel()


def prepare(problem: Problem, *, whiten: bool = True) -> Prepared:
    """Whiten the features (or only standardise them), take a basis of the protected columns, set the objective up."""
    refuse_early(problem)
    parts = read_rows(problem)
    y, Q, w, offset, basis = parts
    Z, mean = _centre(problem.features, w)
    rows: Rows = ArrayRows(Z, y, Q, w, offset, problem.protected)
    moments = rows.reduce(feature_moments)
    check_squares(problem, np.diag(moments[0])[1:])

    def exchange(copies: Copies, unmix: Array) -> tuple[ArrayRows, Array]:
        nonlocal Z, moments
        Z, shift = put_residuals(Z, w, copies)
        mean[copies.suspect] += shift
        changed = ArrayRows(Z, y, Q, w, offset, problem.protected)
        moments = changed.reduce(feature_moments)
        return changed, moments[0]

    separated, rows = separate(moments[0], mean, rounding(problem.features, mean, moments[0]), rows, exchange)

    def start(m: int) -> Start:
        return null_model(problem, parts, m, moments)

    return set_up(problem, rows, basis, mean, separated, moments[2], start, label_share(y, Q, w), whiten=whiten)


def set_up(
    problem: Problem | StreamedProblem,
    rows: Rows,
    basis: Basis | None,
    mean: Array,
    separated: Separated,
    zq: Array,
    start: Callable[[int], Start],
    share: float,
    *,
    whiten: bool = True,
) -> Prepared:
    """Set the objective up, given rows with separated features, their moments with the basis, and the start."""
    second, kept, unmix = separated.second, separated.kept, separated.unmix
    gram, scale = correlations(second, mean)
    if basis is not None and basis.rank >= len(kept):
        check_freedom(basis, zq[1:] / scale[:, None], _whitening(gram, kept))
    M = np.diag(1.0 / scale) if unmix is None else unmix / scale
    ridge = problem.l2 * (M.T @ M)
    columns = independent(gram + ridge, DETERMINED) if problem.l2 > 0.0 else kept
    T = (_whitening(gram + ridge, columns) if whiten else np.eye(len(gram))) / scale[:, None]
    to_raw = np.zeros((1 + T.shape[0], 1 + T.shape[1]))
    to_raw[0, 0], to_raw[1:, 1:], to_raw[0, 1:] = 1.0, T, -second[0, 1:] @ T
    penalty = np.zeros((to_raw.shape[1],) * 2)
    coefficients = T if unmix is None else unmix @ T
    penalty[1:, 1:] = problem.l2 * coefficients.T @ coefficients
    rank = 0 if basis is None else basis.rank
    objective = Objective(rows, problem.family, to_raw, penalty, problem.n_predictors, rank, start(to_raw.shape[1]))
    names = np.asarray(problem.feature_names, dtype=object)
    aliased = tuple(np.delete(names, kept))
    return Prepared(problem, objective, basis, mean, scale, gram, aliased, share, unmix)


def check_squares(problem: Problem | StreamedProblem, squares: Array) -> None:
    """Refuse features whose mean squares (q,) leave float64, at either end, and name them."""
    names = np.asarray(problem.feature_names, dtype=object)
    large = ~np.isfinite(squares)
    if large.any():
        raise InputError(
            f"Feature(s) {', '.join(names[large][:5])} have values so large that their squares exceed float64: rescale "
            "or repair them."
        )
    small = np.flatnonzero(squares < SMALLEST)
    if isinstance(problem, Problem) and len(small):
        columns = problem.features[:, small]
        span = columns.max(axis=0) - columns.min(axis=0)
        tiny = np.asarray(span.todense() if is_sparse(span) else span).ravel() > 0.0
        if tiny.any():
            raise InputError(
                f"Feature(s) {', '.join(names[small[tiny]][:5])} have values so small that their squares vanish in "
                "float64: rescale them."
            )


class RowParts(NamedTuple):
    """All of a problem's rows but the features: outcome (n, k), basis (n, r), weights, offset, and the basis' maker."""

    y: Array
    Q: Array
    w: Array
    offset: Array | None
    basis: Basis | None


def read_rows(problem: Problem) -> RowParts:
    """Code the outcome and the offset, and take a basis of the protected columns."""
    w = problem.mean_weight()
    basis = None if problem.protected is None else protected_basis(problem.protected, w, tuple(problem.protected_names))
    Q = np.zeros((problem.n_rows, 0)) if basis is None else basis.apply(np.asarray(problem.protected))
    return RowParts(problem.coded_outcome(), Q, w, _coded_offset(problem), basis)


def _centre(Z: Matrix, w: Array) -> tuple[Matrix, Array]:
    """A column of ones and the features less their mean; sparse features are left where they are, to stay sparse."""
    if is_sparse(Z):
        ones = sparse.csr_array(np.ones((Z.shape[0], 1)))
        Z, mean = centre_filled(sparse.csr_array(as_double(Z)), w)
        return sparse.hstack([ones, Z], format="csr"), mean
    mean = np.asarray(w @ Z, dtype=np.float64)
    # Column by column in memory: weights then run along the rows, not along a few features.
    centred = np.empty((Z.shape[0], 1 + Z.shape[1]), order="F")
    centred[:, 0] = 1.0
    for rows in row_slices(*Z.shape):
        np.subtract(Z[rows], mean, out=centred[rows, 1:])
    return centred, mean


def feature_moments(block: Block) -> Sums:
    """Moments of the features with themselves, the outcome and the basis: (1 + q, 1 + q), (1 + q, k), (1 + q, r)."""
    k = block.y.shape[1]
    thin = block.weight[:, None] * np.hstack([block.y, block.Q])
    gram, product = gram_and_product(block.Z, block.weight, thin)
    return gram, product[:, :k], product[:, k:]


def _whitening(gram: Array, columns: NDArray[np.intp]) -> Array:
    """``T`` with ``T' gram T = I``, rows of other columns zero."""
    T = np.zeros((len(gram), len(columns)))
    if len(columns):
        upper = np.linalg.cholesky(gram[np.ix_(columns, columns)]).T
        T[columns] = lapack.dtrtri(upper)[0]
    return T


def null_model(problem: Problem, rows: RowParts, m: int, moments: Sums | None = None) -> Start:
    """The intercept-only model, for ``m`` coordinates a predictor; moments of the features spare a reading there."""
    if rows.offset is not None:
        return _null_with_offset(problem, rows, rows.offset, m)
    w, y = rows.w, rows.y
    intercept = link_of(problem.family, problem.mean_outcome())
    terms = problem.family.terms(y, intercept[None], np.zeros_like(intercept)[None])  # a row stands for all
    loss, slope = float(w @ terms.loss), float(w @ np.sqrt(np.einsum("nk,nk->n", terms.slope, terms.slope)))
    alike = moments is not None and problem.family.link == "canonical"
    sums = null_sums(loss, terms, *moments) if moments is not None and alike else None
    curvatures = np.trace(terms.curvature, axis1=1, axis2=2) / problem.n_predictors
    curvature, steepness = float(w @ np.broadcast_to(curvatures, w.shape)), float(np.trace(terms.mean_slope[0]))
    return Start(null_theta(intercept, m), loss, terms.mean[0], slope, curvature, steepness, sums)


def _null_with_offset(problem: Problem, rows: RowParts, offset: Array, m: int) -> Start:
    average, top = problem.mean_outcome(), float(offset.max())
    nothing = np.zeros((problem.n_rows, 0))
    block = Block(nothing, rows.y, nothing, rows.w, offset)

    def at(intercept: Array) -> Point:
        return point_of(quietly(partial(intercept_sums, problem.family, intercept), block))

    first = first_intercept(problem.family, average, rows.w @ offset, top)
    return start_of(problem, *fit_intercept(at, problem.family, average, first, top), m)


def start_of(
    problem: Problem | StreamedProblem, intercept: Array, point: Point, m: int, sums: Sums | None = None
) -> Start:
    """The intercept-only model as a start, for ``m`` coordinates a predictor."""
    curvature = float(np.trace(point.hessian)) / len(intercept)
    steepness = steepness_at(problem.family, problem.mean_outcome())
    return Start(null_theta(intercept, m), point.loss, point.mean, point.slope, curvature, steepness, sums)


def null_theta(intercept: Array, m: int) -> Array:
    """Coordinates of the model with these intercepts (k,) and nothing else, ``m`` for each of them."""
    theta = np.zeros((len(intercept), m))
    theta[:, 0] = intercept
    return theta.ravel()


def null_sums(loss: float, terms: RowTerms, second: Array, zy: Array, zq: Array) -> Sums:
    """The sums of :meth:`Objective.model` where all rows have the same mean and curvature."""
    mean, mean_slope, curvature = terms.mean[0], terms.mean_slope[0], terms.curvature[0]
    zero = np.zeros_like(mean)  # no prediction differs from the mean
    J, H = mean_slope[:, :, None, None] * zq.T, curvature[:, :, None, None] * second
    g = np.outer(second[0], mean) - zy
    return np.asarray(loss), np.outer(zq[0], zero), zero, zero, np.trace(mean_slope), g, J, H


def _coded_offset(problem: Problem) -> Array | None:
    if problem.offset is None:
        return None
    if not problem.family.is_vector:
        return problem.offset.reshape(problem.n_rows, 1)
    return problem.offset @ contrasts(problem.n_predictors + 1)


def label_share(y: Array, Q: Array, w: Array) -> float:
    """R² of the least-squares fit of the outcome on the protected columns."""
    centred = y - w @ y
    total = float(np.sum(w @ centred**2))
    return float(np.sum((Q.T @ (w[:, None] * centred)) ** 2)) / total if total > 0.0 else 0.0
