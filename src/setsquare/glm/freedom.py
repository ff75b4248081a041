"""Check that a non-constant orthogonal prediction exists, before any large matrix is formed."""

from __future__ import annotations

from functools import partial

import numpy as np

from setsquare import tables
from setsquare._typing import Array, BoolArray, Matrix, Table
from setsquare.errors import InputError
from setsquare.glm.problem import Problem
from setsquare.notes import Note, Option
from setsquare.projection import Basis
from setsquare.projection.moments import Moments
from setsquare.rows.blocks import ArrayRows, Block, Rows, mean_weight, view_rows
from setsquare.rows.parallel import row_slices
from setsquare.tables import Design
from setsquare.tables.frame import dense

#: Largest canonical correlation with the protected columns that counts as rounding error, and the features as free.
UNREACHABLE = 1e-10
#: Canonical correlation that is certainly more than rounding error.
CLEAR = 1e-6
#: Number of protected columns from which the early check pays off.
EARLY = 50
#: Standard deviation of the predictions, relative to the outcome's, up to which they count as constant.
CONSTANT_FIT = 1e-6
#: Largest block of coded protected columns in bytes.
BLOCK = 2**25


def check_freedom(basis: Basis, zq: Array, whitening: Array) -> None:
    """Raise if every combination of the features is correlated with the protected columns.

    Comparing counts is not enough: even a single feature that is uncorrelated with all protected columns can be used.
    ``zq`` are moments (q, r) of the scaled features with the basis, ``whitening`` (q, f) makes them orthonormal.
    """
    correlations = np.linalg.svd(whitening.T @ zq, compute_uv=False)
    if np.count_nonzero(correlations > UNREACHABLE) >= whitening.shape[1]:
        refuse_no_freedom(f"{basis.rank} independent", whitening.shape[1])


def check_varies(basis: Basis | None, n_free: int, spread: float, outcome_spread: float) -> None:
    """Raise if the fit is constant and there are at most as many features as protected columns.

    Features that are uncorrelated with the protected columns, but not independent of them, can lead to such a fit.
    """
    if basis is not None and basis.rank >= n_free and spread <= CONSTANT_FIT * outcome_spread:
        refuse_no_freedom(f"{basis.rank} independent", n_free)


def refuse_no_freedom(protected: str, n_free: int) -> None:
    """Raise the error for features without a non-constant orthogonal prediction."""
    text = (
        "Only a constant prediction is orthogonal to the {protected} protected column(s), because only {n_free} "
        "feature(s) are usable: use more features than protected columns or functions of them ({expand} adds some), "
        "merge protected categories, or bound the correlations instead ({relax})."
    )
    expand, relax = Option("expand", "auto"), Option("relax", "box")
    raise InputError(Note("no-freedom", text, protected=protected, n_free=n_free, expand=expand, relax=relax))


def is_early(n: int, q: int, p: int) -> bool:
    """Whether to run the early check for n rows, q features and p protected columns."""
    return p >= max(q, EARLY) and n > p


def mixing(p: int, q: int) -> Array:
    """Coefficients (p, q + 5) of random combinations of p protected columns, a few more than there are features."""
    return np.random.default_rng(0).choice([-1.0, 1.0], size=(p, q + 5))


def refuse_early(problem: Problem) -> None:
    """Raise if there are too many protected columns for the features, before any p x p matrix is formed."""
    q, p = len(problem.feature_names), len(problem.protected_names)
    if is_early(problem.n_rows, q, p):
        refuse_bound(problem.rows, q, p, mixing(p, q))


def refuse_bound(rows: Rows, q: int, p: int, mix: Array | None = None) -> None:
    """Raise if every combination of the q features is correlated with random combinations of p protected columns.

    It is then also correlated with the columns themselves. In doubtful cases nothing is raised. ``mix`` (p, q + 5)
    forms the combinations; without it, the rows already hold them in place of the protected columns.
    """
    moments = rows.reduce(partial(_mixed_moments, q, mix), Moments.merge)
    S = moments.scatter / moments.weight
    if not np.isfinite(S).all():
        return  # a later check raises for overflowing squares, with the column names
    T, U = (_orthonormal(S[part, part], moments.mean[part]) for part in (slice(0, q), slice(q, None)))
    if T is None or U is None or not T.shape[1] or U.shape[1] < T.shape[1]:
        return
    if np.linalg.svd(U.T @ S[q:, :q] @ T, compute_uv=False).min() > CLEAR:
        refuse_no_freedom(f"{p}", T.shape[1])


def _mixed_moments(q: int, mix: Array | None, block: Block) -> Moments:
    X, found = np.asarray(block.X), None
    for rows in row_slices(len(X), q):  # categories and sparse features are written out for a few rows at a time
        Z = view_rows(block.Z, rows)
        Z = Z[:, -q:] if isinstance(Z, np.ndarray) else Z.toarray()
        part = Moments.of([Z, X[rows] if mix is None else X[rows] @ mix], block.weight[rows])
        found = part if found is None else found.merge(part)
    assert found is not None
    return found


def _orthonormal(S: Array, mean: Array) -> Array | None:
    """Map to an orthonormal basis of columns with these second moments; None if the rank is unclear."""
    spread = np.sqrt(np.maximum(np.diag(S), 0.0))
    varies = spread > 1e-10 * np.abs(mean)
    inverse = np.divide(1.0, spread, out=np.zeros_like(spread), where=varies)
    if not varies.any():
        return S[:, :0]
    values, vectors = np.linalg.eigh(inverse[:, None] * S * inverse)
    clear, lost = values > 1e-8 * values[-1], values < 1e-13 * values[-1]
    return inverse[:, None] * vectors[:, clear] / np.sqrt(values[clear]) if (clear | lost).all() else None


def refuse_levels(weight: Array | None, Z: Matrix, protected: Design, source: Table, keep: BoolArray | None) -> None:
    """Refuse more protected columns than features (n, q) can be orthogonal to, without coding all rows at once.

    ``keep`` selects the rows of the weights.
    """
    (n, q), p = Z.shape, len(protected.names)
    if not is_early(n, q, p):
        return
    mixed, mix = np.empty((n, q + 5)), mixing(p, q)
    for rows in row_slices(n, p, BLOCK):
        inside = np.zeros(n, dtype=bool)
        inside[rows] = True
        mixed[rows] = dense(protected.apply(tables.filter_rows(source, inside)).values) @ mix
    counted = weight if weight is None or keep is None else weight[keep]
    nothing = np.zeros((n, 0))
    refuse_bound(ArrayRows(Z, nothing, nothing, mean_weight(n, counted), X=mixed), q, p)
