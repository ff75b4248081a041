"""Whether protected columns leave any freedom to the features; where not, refuse before anything large is formed."""

from __future__ import annotations

from functools import partial

import numpy as np

from setsquare._typing import Array
from setsquare.errors import InputError
from setsquare.glm.problem import Problem
from setsquare.projection import Basis
from setsquare.projection.moments import Moments
from setsquare.rows.blocks import Block, Rows, is_sparse

#: Canonical correlation with the protected columns that is rounding: the features know nothing of them there.
UNREACHABLE = 1e-10
#: Canonical correlation that is certainly none by rounding.
CLEAR = 1e-6
#: Protected columns from which it pays to look first whether they leave any freedom to the features.
EARLY = 50
#: Standard deviation of the predictions, as a share of the outcome's, that is as good as none.
CONSTANT_FIT = 1e-6


def check_freedom(basis: Basis, zq: Array, whitening: Array) -> None:
    """Refuse features of which every combination is correlated with the protected columns.

    Counting would not do: features that are uncorrelated with all protected columns are free, however few they are.
    ``zq`` are moments (q, r) of the scaled features with the basis, ``whitening`` (q, f) makes them orthonormal.
    """
    correlations = np.linalg.svd(whitening.T @ zq, compute_uv=False)
    if np.count_nonzero(correlations > UNREACHABLE) >= whitening.shape[1]:
        refuse_no_freedom(f"{basis.rank} independent", whitening.shape[1])


def check_varies(basis: Basis | None, n_free: int, spread: float, outcome_spread: float) -> None:
    """Refuse a constant fit where features are few: uncorrelated with the protected columns, but not independent."""
    if basis is not None and basis.rank >= n_free and spread <= CONSTANT_FIT * outcome_spread:
        refuse_no_freedom(f"{basis.rank} independent", n_free)


def refuse_no_freedom(protected: str, n_free: int) -> None:
    """Raise one sentence about features that have nothing left."""
    raise InputError(
        f"{protected} protected column(s) leave no freedom to the features (n_features = {n_free}): only a constant "
        "prediction is orthogonal to them; give more features than protected columns, or fewer protected levels."
    )


def is_early(n: int, q: int, p: int) -> bool:
    """Whether it pays to look first whether p protected columns leave any freedom to q features."""
    return p >= max(q, EARLY) and n > p


def mixing(p: int, q: int) -> Array:
    """Random combinations of p protected columns, a few more than there are features: (p, q + 5)."""
    return np.random.default_rng(0).choice([-1.0, 1.0], size=(p, q + 5))


def refuse_early(problem: Problem) -> None:
    """Refuse more protected columns than features have room for, before anything of their number squared is formed."""
    q, p = len(problem.feature_names), len(problem.protected_names)
    if is_early(problem.n_rows, q, p):
        refuse_bound(problem.rows, q, p, mixing(p, q))


def refuse_bound(rows: Rows, q: int, p: int, mix: Array | None = None) -> None:
    """Refuse q features of which every combination is correlated with random combinations of p protected columns.

    Then it is correlated with the columns themselves. Where that is not clear, nothing is refused here. ``mix`` makes
    the combinations, (p, q + 5); without it they stand in place of the protected columns.
    """
    moments = rows.reduce(partial(_mixed_moments, q, mix), Moments.merge)
    S = moments.scatter / moments.weight
    if not np.isfinite(S).all():
        return  # squares beyond float64 are refused later, by name
    T, U = (_orthonormal(S[part, part], moments.mean[part]) for part in (slice(0, q), slice(q, None)))
    if T is None or U is None or not T.shape[1] or U.shape[1] < T.shape[1]:
        return
    if np.linalg.svd(U.T @ S[q:, :q] @ T, compute_uv=False).min() > CLEAR:
        refuse_no_freedom(f"{p}", T.shape[1])


def _mixed_moments(q: int, mix: Array | None, block: Block) -> Moments:
    Z = block.Z.toarray() if is_sparse(block.Z) else block.Z[:, -q:]
    X = np.asarray(block.X)
    return Moments.of([Z, X if mix is None else X @ mix], block.weight)


def _orthonormal(S: Array, mean: Array) -> Array | None:
    """Map to an orthonormal basis of columns with these second moments; None where the rank is in doubt."""
    spread = np.sqrt(np.maximum(np.diag(S), 0.0))
    varies = spread > 1e-10 * np.abs(mean)
    inverse = np.divide(1.0, spread, out=np.zeros_like(spread), where=varies)
    if not varies.any():
        return S[:, :0]
    values, vectors = np.linalg.eigh(inverse[:, None] * S * inverse)
    clear, lost = values > 1e-8 * values[-1], values < 1e-13 * values[-1]
    return inverse[:, None] * vectors[:, clear] / np.sqrt(values[clear]) if (clear | lost).all() else None
