"""Linear correction (C^l): subtract what the protected columns explain by least squares."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from setsquare.errors import InputError, MissingValuesError
from setsquare.moments import Moments
from setsquare.projection.basis import Basis, basis_of_moments, protected_basis
from setsquare.rows import mean_weight, row_slices
from setsquare.typing import Array


@dataclass(frozen=True, slots=True)
class Projector:
    """A fitted linear correction ``Y - (X - mean) @ transform @ coefficients``; column means are kept.

    It needs the protected columns of every row that it corrects. On the rows that it was fitted on it is the
    orthogonal projection ``P⊥ Y`` plus the mean; on new rows it subtracts the effects estimated there.

    Attributes
    ----------
    basis : Basis
    coefficients : ndarray of shape (r, d)
        Least-squares effects of the basis on each of the d columns (a tensor is flattened behind its first axis).

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(50, 2))
    >>> Y = (X @ rng.normal(size=(2, 6)) + rng.normal(size=(50, 6))).reshape(50, 3, 2)
    >>> corrected = Projector.fit(Y, X).apply(Y, X)
    >>> centred = X - X.mean(0)
    >>> bool(np.abs(np.tensordot(centred, corrected, axes=(0, 0))).max() < 1e-12), corrected.shape
    (True, (50, 3, 2))
    """

    basis: Basis
    coefficients: Array

    @classmethod
    def fit(cls, Y: Array, X: Array, weight: Array | None = None, names: tuple[str, ...] | None = None) -> Projector:
        """Fit the correction of ``Y`` (n, ...) by ``X`` (n, p), two passes over the rows."""
        if Y.shape[0] != X.shape[0]:
            raise InputError(
                f"The protected columns have {X.shape[0]} rows, what is to be corrected has {Y.shape[0]}: "
                "give both for the same rows."
            )
        basis = protected_basis(X, weight, names)
        w = mean_weight(len(X), weight)
        fitted = cls(basis, np.zeros((basis.rank, int(np.prod(Y.shape[1:], dtype=int)))))
        with np.errstate(invalid="ignore", over="ignore"):  # infinite values end in coefficients that are not finite
            for _ in range(2):  # the second pass removes what rounding left in the first
                fitted = cls(basis, fitted.coefficients + fitted._remaining(Y, X, w))
        if not np.isfinite(fitted.coefficients).all():
            raise MissingValuesError("What is to be corrected has missing or infinite values: remove or fill them.")
        return fitted

    @classmethod
    def of_moments(cls, moments: Moments, names: tuple[str, ...]) -> Projector:
        """Fit the correction to the joint moments of protected columns, which come first, and of what is corrected.

        Examples
        --------
        >>> import numpy as np
        >>> X = np.array([[0.0], [0.0], [1.0], [1.0]])
        >>> Y = np.array([[1.0], [2.0], [5.0], [6.0]])
        >>> Projector.of_moments(Moments.of(np.hstack([X, Y])), ("x",)).apply(Y, X).ravel()
        array([3., 4., 3., 4.])
        """
        p = len(names)
        basis = basis_of_moments(Moments(moments.weight, moments.mean[:p], moments.scatter[:p, :p]), names)
        return cls(basis, basis.transform.T @ moments.scatter[:p, p:] / moments.weight)

    def _remaining(self, Y: Array, X: Array, w: Array) -> Array:
        """``Q' diag(w) (Y - correction)``: the least-squares effect that is still there."""
        effect = np.zeros_like(self.coefficients)
        shift: Array | float = 0.0
        for rows in row_slices(Y.shape[0], self.coefficients.shape[1] + X.shape[1]):
            Q = self.basis.apply(X[rows])
            y = _flat(Y[rows])
            if isinstance(shift, float):  # a constant shift changes nothing but rounding: take the first block's mean
                shift = y.mean(axis=0)
            effect += Q.T @ ((y - shift - Q @ self.coefficients) * w[rows, None])
        return effect

    def apply(self, Y: Array, X: Array, out: Array | None = None) -> Array:
        """Correct ``Y`` (n, ...) given the protected columns ``X`` (n, p) of the same rows.

        Parameters
        ----------
        Y : ndarray of shape (n, ...)
        X : ndarray of shape (n, p)
        out : ndarray, optional
            Where to put the result; ``out=Y`` corrects in place.
        """
        if Y.shape[0] != X.shape[0]:
            raise InputError(
                f"The protected columns have {X.shape[0]} rows, what is to be corrected has {Y.shape[0]}: "
                "give both for the same rows."
            )
        out = np.empty(Y.shape, dtype=np.result_type(Y.dtype, np.float32)) if out is None else out
        for rows in row_slices(Y.shape[0], self.coefficients.shape[1] + X.shape[1]):
            corrected = _flat(Y[rows]) - self.basis.apply(X[rows]) @ self.coefficients
            out[rows] = corrected.reshape(out[rows].shape)
        return out


def _flat(block: Array) -> Array:
    return np.asarray(block, dtype=np.float64).reshape(len(block), -1)


def project_out(Y: Array, X: Array, weight: Array | None = None) -> Array:
    """Remove the linear effect of ``X`` (n, p) from ``Y`` (n, ...); column means are kept. Needs ``X``.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.array([[0.0], [0.0], [1.0], [1.0]])
    >>> project_out(np.array([1.0, 2.0, 5.0, 6.0]), X)
    array([3., 4., 3., 4.])
    """
    return Projector.fit(Y, X, weight).apply(Y, X)
