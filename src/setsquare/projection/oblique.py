"""Directions of an erasure among whitened features, with or without columns that are to be preserved."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from setsquare._typing import Array
from setsquare.errors import InputError

#: Canonical correlations below this are rounding error; such directions are kept.
ROUNDING = 1e-9
#: Largest overlap of protected and preserved directions. At 0.999 the erasure multiplies noise by more than 20.
MOST_OVERLAP = 0.999


@dataclass(frozen=True, slots=True)
class Oblique:
    """Erasure ``w - (w @ left) @ variates'`` of whitened features w.

    Attributes
    ----------
    left, variates : ndarray of shape (r, k)
        Equal where nothing is preserved.
    correlations : ndarray of shape (k,)
        Canonical correlations with the protected columns.
    overlap, kept : float
        Largest canonical correlation between the predictions of protected and of preserved columns, and the smallest
        share of a preserved column's R² that is left; NaN where nothing is preserved.
    """

    left: Array
    variates: Array
    correlations: Array
    overlap: float = float("nan")
    kept: float = float("nan")


def find_oblique(protected: Array, preserved: Array) -> Oblique:
    """Erase columns with the covariances ``protected`` (r, b) to whitened features, and keep ``preserved`` (r, s).

    With orthonormal bases V and U of both and ``A = (I - UU') V``, the map is ``I - V (A'V)^-1 A'`` (SPLINCE): it maps
    V to zero and U to itself. It exists unless the spans of U and V share a direction.

    Examples
    --------
    >>> import numpy as np
    >>> found = find_oblique(np.array([[0.6], [0.0]]), np.array([[0.3], [0.3]]))
    >>> P = np.eye(2) - found.variates @ found.left.T
    >>> (P @ [[0.6, 0.3], [0.0, 0.3]]).round(12) + 0.0
    array([[0. , 0.3],
           [0. , 0.3]])
    >>> round(found.overlap, 3), round(found.kept, 3)
    (0.707, 0.5)
    """
    V, correlations = _singular(protected)
    if not preserved.shape[1]:
        return Oblique(V, V, correlations)
    size = (preserved**2).sum(axis=0)
    U, _ = _singular(preserved / np.sqrt(np.where(size > 0.0, size, np.inf)))
    C = U.T @ V
    overlap = float(np.linalg.norm(C, 2)) if C.size else 0.0
    if overlap > MOST_OVERLAP:
        raise InputError(
            "What predicts the preserved columns from the features is what predicts the protected columns (their "
            f"predictions correlate with {overlap:.4f}), so nothing can keep one and erase the other: preserve "
            "fewer columns, or leave out a protected one."
        )
    left = np.asarray(np.linalg.solve(np.eye(len(correlations)) - C.T @ C, (V - U @ C).T).T, dtype=np.float64)
    lost = ((V.T @ preserved) ** 2).sum(axis=0)
    return Oblique(left, V, correlations, overlap, float((1.0 - lost[size > 0.0] / size[size > 0.0]).min(initial=1.0)))


def _singular(coefficients: Array) -> tuple[Array, Array]:
    """Left singular vectors and singular values, without those that are rounding error."""
    U, values, _ = np.linalg.svd(coefficients, full_matrices=False)
    kept = values > ROUNDING
    return U[:, kept], values[kept]
