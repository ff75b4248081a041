"""Linear correction (C^l): subtract the least-squares effect of the protected columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import blas

from setsquare._typing import Array
from setsquare.projection.basis import Basis, basis_of_moments, check_rows, protected_basis
from setsquare.projection.coded_linear import effects_of_rows, fit_coded
from setsquare.projection.moments import Moments
from setsquare.rows.parallel import OWN_CACHE, Sums, n_cores, room, row_slices, sum_over_rows
from setsquare.tables.mixed_matrix import MixedMatrix
from setsquare.tables.validation import check_same_rows, refuse_not_finite


@dataclass(frozen=True, slots=True)
class Projector:
    """Fitted linear correction ``Y - (X - mean) @ transform @ coefficients``, which keeps column means.

    Correcting a row requires its protected columns. On the rows of the fit the result is the orthogonal projection
    ``P⊥ Y`` plus the mean; on new rows the effects estimated in the fit are subtracted.

    Attributes
    ----------
    basis : Basis
    coefficients : ndarray of shape (r, d)
        Least-squares effects of the basis on each of the d columns (tensors are flattened after the first axis).

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
    def fit(
        cls, Y: Array, X: Array | MixedMatrix, weight: Array | None = None, names: tuple[str, ...] | None = None
    ) -> Projector:
        """Fit the correction of ``Y`` (n, ...) by ``X`` (n, p), in one pass over the rows of each.

        The Gram matrix of the basis is computed rather than assumed: for nearly collinear columns rounding makes it
        differ from the identity, and solving the normal equations corrects for this.
        """
        _check_same_rows(Y, X)
        if isinstance(X, MixedMatrix):
            check_rows(*X.shape)
            return cls(*_finite(*fit_coded(_flat(Y), X, weight, names or tuple(f"x{j}" for j in range(X.shape[1])))))
        basis = protected_basis(X, weight, names)
        d = int(np.prod(Y.shape[1:], dtype=int))
        with np.errstate(invalid="ignore", over="ignore"):  # the shift affects only the rounding
            shift = _flat(Y[:1000]).mean(axis=0, dtype=np.float64)

        def kernel(rows: slice, memory: Array) -> Sums:
            y = _flat(Y[rows])
            y = np.subtract(y, shift, out=room(memory, y, d))
            Q = np.column_stack([coordinates(basis, X[rows]), np.ones(len(y))])
            weighted = Q if weight is None else Q * weight[rows, None]
            return weighted.T @ y, weighted.T @ Q

        width = d + basis.rank
        # At least as many rows per block as directions: adding up the products must cost less than computing them.
        effect, gram = sum_over_rows(kernel, Y.shape[0], width, max(OWN_CACHE, 8 * basis.rank * width))
        _finite(basis, effect)
        return cls(basis, np.asarray(np.linalg.solve(gram, effect)[:-1], dtype=np.float64))

    @classmethod
    def of_moments(cls, moments: Moments, names: tuple[str, ...]) -> Projector:
        """Fit the correction to joint moments of the protected columns, which come first, and the columns to correct.

        Examples
        --------
        >>> import numpy as np
        >>> X = np.array([[0.0], [0.0], [1.0], [1.0]])
        >>> Y = np.array([[1.0], [2.0], [5.0], [6.0]])
        >>> Projector.of_moments(Moments.of([X, Y]), ("x",)).apply(Y, X).ravel()
        array([3., 4., 3., 4.])
        """
        p = len(names)
        basis = basis_of_moments(Moments(moments.weight, moments.mean[:p], moments.scatter[:p, :p]), names)
        return cls(basis, basis.transform.T @ moments.scatter[:p, p:] / moments.weight)

    def apply(self, Y: Array, X: Array | MixedMatrix, out: Array | None = None) -> Array:
        """Correct ``Y`` (n, ...) given the protected columns ``X`` (n, p) of its rows; ``out=Y`` corrects in place."""
        _check_same_rows(Y, X)
        out = np.empty_like(Y, dtype=np.result_type(Y.dtype, np.float32), subok=False) if out is None else out
        if isinstance(X, MixedMatrix):
            effects = effects_of_rows(self.basis, self.coefficients, X)
            for rows in row_slices(Y.shape[0], self.coefficients.shape[1]):
                np.subtract(Y[rows], effects(rows).reshape(Y[rows].shape), out=out[rows], casting="same_kind")
            return out

        def kernel(rows: slice, memory: Array) -> Sums:
            subtract_product(Y[rows], coordinates(self.basis, X[rows]), self.coefficients, memory, out[rows])
            return ()

        sum_over_rows(kernel, Y.shape[0], self.coefficients.shape[1] + self.basis.rank)
        return out


def subtract_product(Y: Array, A: Array, B: Array, memory: Array, out: Array) -> None:
    """Write ``Y - A @ B`` to ``out``, with the product in ``memory``; ``Y`` may be a tensor, and may be ``out``."""
    if n_cores() == 1 and out.dtype == np.float64 and out.ndim == 2 and out.flags.c_contiguous and A.size and B.size:
        if not np.may_share_memory(Y, out):
            np.copyto(out, Y)
        blas.dgemm(-1.0, B.T, A.T, 1.0, out.T, overwrite_c=1)  # in one step, but other threads would wait meanwhile
        return
    product = room(memory, Y, B.shape[1])
    if np.isfortran(product):
        np.matmul(B.T, A.T, out=product.T)
    else:
        np.matmul(A, B, out=product)
    np.subtract(Y, product.reshape(Y.shape), out=out, casting="same_kind")


def coordinates(basis: Basis, X: Array) -> Array:
    """Return :meth:`Basis.apply` in row-major order."""
    return np.asarray(np.subtract(X, basis.mean, dtype=np.float64) @ basis.transform)


def _finite(basis: Basis, effects: Array) -> tuple[Basis, Array]:
    if not np.isfinite(effects).all():
        refuse_not_finite("The array to correct has")
    return basis, effects


def _flat(block: Array) -> Array:
    return block if block.ndim == 2 else block.reshape(len(block), -1)


def _check_same_rows(Y: Array, X: Array | MixedMatrix) -> None:
    check_same_rows("The protected columns have", X.shape[0], "the array to correct has", len(Y))


def project_out(Y: Array, X: Array, weight: Array | None = None) -> Array:
    """Remove the linear effect of ``X`` (n, p) from ``Y`` (n, ...), keeping the column means.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.array([[0.0], [0.0], [1.0], [1.0]])
    >>> project_out(np.array([1.0, 2.0, 5.0, 6.0]), X)
    array([3., 4., 3., 4.])
    """
    return Projector.fit(Y, X, weight).apply(Y, X)
