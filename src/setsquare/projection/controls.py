"""Residuals of the protected columns on controls: what orthogonality given other columns is about.

By Frisch and Waugh, the effects of X in a regression of a prediction on X and C are zero if and only if the prediction
is uncorrelated with ``Xr``, the residual of the regression of X on [1, C]. Every correction and every audit therefore
holds given C once ``Xr`` takes the place of X.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from setsquare._typing import Array, BoolArray
from setsquare.errors import InputError
from setsquare.projection.basis import Basis, basis_of_moments, protected_basis
from setsquare.projection.moments import Moments

#: Share of a column's variance outside the span of the controls, below which they determine the column: squares of
#: float64 resolve no less.
DETERMINED = 1e-11


@dataclass(frozen=True, slots=True)
class Controls:
    """``Xr = (X - mean - (C - centre) @ coef)[:, free]``, uncorrelated with the controls C on the rows of the fit.

    Attributes
    ----------
    mean : ndarray of shape (p,)
    centre : ndarray of shape (c,)
    transform : ndarray of shape (c, s)
        ``(C - centre) @ transform`` is an orthonormal basis of the controls.
    coef : ndarray of shape (c, p)
    free : ndarray of shape (p,)
        Whether a column varies beyond the controls.
    """

    mean: Array
    centre: Array
    transform: Array
    coef: Array
    free: BoolArray

    def residual(self, X: Array, C: Array) -> Array:
        """Residuals (n, free) of the protected columns (n, p) on the controls (n, c)."""
        left = np.subtract(X, self.mean, dtype=np.float64, order="F")[:, self.free]
        left -= np.subtract(C, self.centre, dtype=np.float64) @ self.coef[:, self.free]
        return left

    def basis(self, C: Array) -> Array:
        """Orthonormal basis (n, s) of the controls (n, c), without the constant."""
        return np.asfortranarray(np.subtract(C, self.centre, dtype=np.float64) @ self.transform)

    def names(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Names of the columns that vary beyond the controls."""
        return tuple(name for name, free in zip(names, self.free, strict=True) if free)


def fit_controls(
    X: Array, C: Array, weight: Array | None, names: tuple[str, ...], given: tuple[str, ...] | None = None
) -> Controls:
    """Regress the protected columns ``X`` (n, p) on the controls ``C`` (n, c); raise if they determine all of them.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> C = rng.normal(size=(100, 2))
    >>> X = C[:, :1] + rng.normal(size=(100, 1))
    >>> left = fit_controls(X, C, None, ("age",)).residual(X, C)
    >>> bool(np.abs(C.T @ left).max() < 1e-12)
    True
    """
    basis = protected_basis(C, weight, given) if np.ptp(C, axis=0).any() else None
    return controls_of(Moments.of([C, X], weight), C.shape[1], names, given or (), basis)


def controls_of(
    moments: Moments, c: int, names: tuple[str, ...], given: tuple[str, ...], basis: Basis | None = None
) -> Controls:
    """Regression of protected columns on ``c`` controls, from the moments of both, controls first."""
    S = moments.scatter / moments.weight
    if basis is None and np.diag(S)[:c].any():
        own = Moments(moments.weight, moments.mean[:c], moments.scatter[:c, :c])
        basis = basis_of_moments(own)
    T = np.zeros((c, 0)) if basis is None else basis.transform
    along = T.T @ S[:c, c:]
    total = np.diag(S)[c:]
    left = total - np.sum(along**2, axis=0)
    constant = total <= 0.0
    free = constant | (left > DETERMINED * total)
    if not (free & ~constant).any() and not constant.all():
        _refuse_determined(names, given)
    return Controls(moments.mean[c:], moments.mean[:c], T, T @ along, free)


def _refuse_determined(names: tuple[str, ...], given: tuple[str, ...]) -> None:
    shown = ", ".join(given[:4]) + (", ..." if len(given) > 4 else "")
    raise InputError(
        f"Given {shown or 'the controls'}, nothing of the protected columns ({', '.join(names[:4])}) is left to "
        "protect: they are linear combinations of the given columns. Leave such columns out of given."
    )
