"""Whether protected columns leave any freedom to the features; where not, refuse before anything large is formed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from setsquare._typing import Array, Matrix
from setsquare.errors import InputError
from setsquare.glm.problem import Problem
from setsquare.projection import Basis
from setsquare.rows.blocks import as_double, is_sparse

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


def check_varies(basis: Basis | None, n_free: int, spread: float, outcome_spread: Callable[[], float]) -> None:
    """Refuse a constant fit where features are few: uncorrelated with the protected columns, but not independent."""
    if basis is not None and basis.rank >= n_free and spread <= CONSTANT_FIT * outcome_spread():
        refuse_no_freedom(f"{basis.rank} independent", n_free)


def refuse_no_freedom(protected: str, n_free: int) -> None:
    """Raise one sentence about features that have nothing left."""
    raise InputError(
        f"{protected} protected column(s) leave no freedom to the features (n_features = {n_free}): only a constant "
        "prediction is orthogonal to them; give more features than protected columns, or fewer protected levels."
    )


def refuse_early(problem: Problem) -> None:
    """Refuse more protected columns than features have room for, before anything of their number squared is formed."""
    X = problem.protected
    if X is not None and is_early(problem.n_rows, problem.features.shape[1], X.shape[1]):
        mixed = X @ mixing(X.shape[1], problem.features.shape[1])
        refuse_bound(problem.features, mixed, problem.mean_weight(), X.shape[1])


def is_early(n: int, q: int, p: int) -> bool:
    """Whether it pays to look first whether p protected columns leave any freedom to q features."""
    return p >= max(q, EARLY) and n > p


def mixing(p: int, q: int) -> Array:
    """Random combinations of p protected columns, a few more than there are features: (p, q + 5)."""
    return np.random.default_rng(0).choice([-1.0, 1.0], size=(p, q + 5))


def refuse_bound(Z: Matrix, mixed: Array, w: Array, p: int) -> None:
    """Refuse features (n, q) of which every combination is correlated with random combinations (n, q + 5) of p columns.

    Then it is correlated with the columns themselves. Where that is not clear, nothing is refused here.
    """
    features = as_double(Z).toarray() if is_sparse(Z) else np.asarray(Z, dtype=np.float64)
    if not (np.isfinite(features).all() and np.isfinite(mixed).all()):
        return
    with np.errstate(over="ignore", invalid="ignore"):  # squares beyond float64 are refused later, by name
        U, Q = _orthonormal(features, w), _orthonormal(mixed, w)
    if U is None or Q is None or not U.shape[1] or Q.shape[1] < U.shape[1]:
        return
    if np.linalg.svd(Q.T @ U, compute_uv=False).min() > CLEAR:
        refuse_no_freedom(f"{p}", U.shape[1])


def _orthonormal(A: Array, w: Array) -> Array | None:
    """Orthonormal basis (n, f) of centred columns times the root of the weights; None where the rank is in doubt."""
    centred = np.sqrt(w)[:, None] * (A - w @ A)
    spread = np.linalg.norm(centred, axis=0)
    if not np.isfinite(spread).all():
        return None
    varies = spread > 1e-10 * np.abs(w @ A)
    if not varies.any():
        return centred[:, :0]
    U, s, _ = np.linalg.svd(centred[:, varies] / spread[varies], full_matrices=False)
    clear, lost = s > 1e-4 * s[0], s < 1e-10 * s[0]
    return U[:, clear] if (clear | lost).all() else None
