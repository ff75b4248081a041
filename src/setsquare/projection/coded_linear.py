"""Linear correction by protected columns of which some are categories of many levels, stored as codes.

The moments of such columns are counts and sums by level, and their effects are looked up by level, so no dummy column
is written out: the memory is that of the codes and of a matrix (p, p).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from setsquare._typing import Array
from setsquare.projection.basis import Basis, basis_of_moments, cholesky_factor, settle_basis
from setsquare.projection.moments import Moments
from setsquare.rows.parallel import Sums, sum_over_rows
from setsquare.rows.products import weighted_gram
from setsquare.tables.mixed_matrix import MixedMatrix

#: Counts are exact, so their Cholesky factor may have smaller pivots than that of rounded products.
SMALLEST_PIVOT = 1e-4


def fit_coded(Y: Array, X: MixedMatrix, weight: Array | None, names: tuple[str, ...]) -> tuple[Basis, Array]:
    """Basis of ``X`` (n, p), and least-squares effects (r, d) of its columns on ``Y`` (n, d).

    The effects are refined once by their residual moments, which corrects for rounding in the basis.

    Examples
    --------
    >>> import numpy as np
    >>> from setsquare.tables.mixed_matrix import join
    >>> X = join(np.zeros((4, 0)), [np.array([0, 0, 1, 1])], [2], [True])
    >>> basis, effects = fit_coded(np.array([[1.0], [2.0], [5.0], [6.0]]), X, None, ("x[b]",))
    >>> (basis.transform @ effects).round(6)
    array([[4.]])
    """
    n, p = X.shape
    w = np.ones(n) if weight is None else weight
    shift = np.zeros(p)
    shift[X.places] = w @ X.dense / w.sum()
    near = X.centred(shift)  # squares of numbers far from zero lose the digits of their variance
    S, cross = _moments(Y, near, w)
    own = Moments(1.0, shift + S[0], S[1])
    R = cholesky_factor(own.scatter, SMALLEST_PIVOT)
    basis = basis_of_moments(own, names) if R is None else settle_basis(own.mean, R, names)
    effects = basis.transform.T @ cross
    effects += basis.transform.T @ (cross - own.scatter @ (basis.transform @ effects))
    return basis, np.asarray(effects)


def _moments(Y: Array, X: MixedMatrix, w: Array) -> tuple[tuple[Array, Array], Array]:
    """Mean (p,) and covariance (p, p) of the protected columns, and their covariance (p, d) with ``Y``."""
    total, (n, d) = w.sum(), Y.shape
    with np.errstate(invalid="ignore", over="ignore"):  # the shift affects only the rounding
        shift = Y[:1000].mean(axis=0, dtype=np.float64)

    def kernel(rows: slice, memory: Array) -> Sums:
        y = (Y[rows] - shift) * w[rows, None]
        return X[rows].T @ y, y.sum(axis=0)

    # At least as many rows per block as columns: adding up the products must cost less than computing them.
    cross, first = sum_over_rows(kernel, n, d, max(2**21, 8 * X.shape[1] * d))
    mean = (X.T @ w) / total
    S = weighted_gram(X, w)
    S /= total
    S -= np.outer(mean, mean)
    with np.errstate(invalid="ignore"):  # shows as products that are not finite
        return (mean, S), (cross - np.outer(mean, first)) / total


def effects_of_rows(basis: Basis, effects: Array, X: MixedMatrix) -> Callable[[slice], Array]:
    """Function of a slice of rows: what the protected columns ``X`` (n, p) of these rows add, (b, d)."""
    B = basis.transform @ effects
    centre = basis.mean @ B
    return lambda rows: np.asarray(X[rows] @ B - centre)
