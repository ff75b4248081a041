"""Matrix-free linear algebra: truncated conjugate gradients, Lanczos, and a low-rank preconditioning metric."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.linalg import eigh_tridiagonal

from setsquare._typing import Array

Apply = Callable[[Array], Array]
#: Curvature, relative to the largest seen, that cannot be distinguished from zero.
NO_CURVATURE = 1e-12
#: Curvature of a feature, relative to the largest, that a diagonal metric still corrects.
SMALLEST = 1e-12
#: Part of a Lanczos step outside the span of the earlier ones that is rounding error; Ritz values that count as zero.
EXHAUSTED, ZERO = 1e-7, 1e-10


class Descent(NamedTuple):
    """Result of conjugate gradients: ``x``, ``A x``, number of products, and why it stopped."""

    x: Array
    Ax: Array
    n_products: int
    negative: bool
    solved: bool


def conjugate_gradients(
    apply: Apply,
    precondition: Apply,
    target: Array,
    tolerance: float,
    max_products: int,
    project: Apply | None = None,
    exact: Apply | None = None,
) -> Descent:
    """Minimise ``x'Ax/2 - target'x`` on the range of a positive preconditioner, which may be a projection.

    It stops when the residual is below ``tolerance`` (absolute, in the preconditioner's norm), or in a direction of
    negative curvature, where the step uses the absolute value of the curvature, as in ``sqp``. ``project`` removes from
    a residual what the preconditioner maps to zero; left there, it grows, and its rounding error becomes larger than
    the rest (Gould, Hribar and Nocedal 2001). If ``apply`` is rounded to single precision, negative curvature may be
    rounding error: the products are those of ``exact`` from there on.

    Examples
    --------
    >>> import numpy as np
    >>> A = np.diag([1.0, 2.0, 4.0])
    >>> conjugate_gradients(lambda v: A @ v, lambda v: v, np.ones(3), 1e-12, 10).x
    array([1.  , 0.5 , 0.25])
    """
    x, Ax, residual = np.zeros_like(target), np.zeros_like(target), target if project is None else project(target)
    z = precondition(residual)
    p, square = z, float(residual @ z)
    size, largest = square, 0.0  # of p in the preconditioner's norm, in which z and the previous p are orthogonal
    for count in range(max_products):
        if square <= tolerance**2:
            return Descent(x, Ax, count, False, True)
        Ap = apply(p)
        bend = float(p @ Ap)
        if exact is not None and bend <= NO_CURVATURE * largest * size:
            apply, exact = exact, None
            Ap = apply(p)
            bend = float(p @ Ap)
        largest = max(largest, abs(bend) / size)
        if bend <= NO_CURVATURE * largest * size:
            if -bend > NO_CURVATURE * largest * size:
                x, Ax = x + (square / -bend) * p, Ax + (square / -bend) * Ap
            return Descent(x, Ax, count + 1, True, False)
        length = square / bend
        x, Ax, residual = x + length * p, Ax + length * Ap, residual - length * Ap
        residual = residual if project is None else project(residual)
        z = precondition(residual)
        before, square = square, float(residual @ z)
        p, size = z + (square / before) * p, square + (square / before) ** 2 * size
    return Descent(x, Ax, max_products, False, square <= tolerance**2)


class Ritz(NamedTuple):
    """What Lanczos steps found about a symmetric operator.

    Attributes
    ----------
    value, vector : float and ndarray of shape (m,)
        Smallest Ritz value, which is never below the smallest eigenvalue, and its vector.
    largest : float
        Largest Ritz value, which is never above the largest eigenvalue.
    n_steps, n_dimensions : int
        Number of steps, and dimensions of the space they were taken in.
    n_nonzero : int
        Ritz values that are not zero: the operator has at least this rank.
    is_exact : bool
        Whether the steps span all that the operator can reach from the start, so that the value is an eigenvalue.
    """

    value: float
    vector: Array
    largest: float
    n_steps: int
    n_dimensions: int
    n_nonzero: int
    is_exact: bool

    def lower_bound(self, confidence: float = 0.99) -> float:
        """Lower bound on the smallest eigenvalue, with this probability over the random start of the steps.

        From a start that is uniform on the sphere, k steps miss an end of the spectrum by more than a share ``eps`` of
        its width with a probability of at most ``1.648 sqrt(m) exp(-(2k - 1) sqrt(eps))`` (Kuczynski and Wozniakowski
        1992); here at either end, because the width is estimated too.

        Examples
        --------
        >>> import numpy as np
        >>> values = np.linspace(1.0, 2.0, 500)
        >>> found = lanczos(lambda v: values * v, np.random.default_rng(0).normal(size=500), np.zeros((500, 0)), 60)
        >>> bool(found.lower_bound() <= 1.0 <= found.value), round(found.value - found.lower_bound(), 3)
        (True, 0.006)
        """
        if self.is_exact:
            return self.value
        missed = (1.0 - confidence) / 2.0
        eps = (math.log(1.648 * math.sqrt(self.n_dimensions) / missed) / (2 * self.n_steps - 1)) ** 2
        return self.value - eps * (self.largest - self.value) / (1.0 - 2.0 * eps) if eps < 0.5 else -math.inf


def lowest_curvature(apply: Apply, start: Array, left_out: Array, max_products: int) -> tuple[float, Array]:
    """Smallest Ritz value of A and its vector; see :func:`lanczos`.

    Examples
    --------
    >>> import numpy as np
    >>> value, vector = lowest_curvature(lambda v: np.array([3.0, -1.0]) * v, np.ones(2), np.zeros((2, 0)), 10)
    >>> round(value, 12), np.abs(vector).round(12)
    (-1.0, array([0., 1.]))
    """
    found = lanczos(apply, start, left_out, max_products)
    return found.value, found.vector


def lanczos(apply: Apply, start: Array, left_out: Array, max_products: int) -> Ritz:
    """Lanczos steps with full reorthogonalisation, outside the span of the orthonormal columns of ``left_out`` (m, r).

    A Ritz value is never below the smallest eigenvalue on the remaining space, and converges to it from above.
    """
    start = start - left_out @ (left_out.T @ start)
    V = [start / np.linalg.norm(start)]
    diagonal: list[float] = []
    beside: list[float] = []
    while True:
        w = apply(V[-1])
        diagonal.append(float(V[-1] @ w))
        basis = np.array(V)
        for _ in range(2):  # the second pass removes rounding error
            w = w - basis.T @ (basis @ w)
            w = w - left_out @ (left_out.T @ w)
        size = float(np.linalg.norm(w))
        if len(V) == max_products or size <= EXHAUSTED * max(map(abs, diagonal)):  # the rest is rounding error
            break
        beside.append(size)
        V.append(w / size)
    values, vectors = eigh_tridiagonal(np.array(diagonal), np.array(beside))
    n_nonzero = int(np.count_nonzero(np.abs(values) > ZERO * np.abs(values).max()))
    n_free, is_exact = len(start) - left_out.shape[1], size <= EXHAUSTED * max(map(abs, diagonal))
    vector = np.asarray(vectors[:, 0] @ basis)
    return Ritz(float(values[0]), vector, float(values[-1]), len(V), n_free, n_nonzero, is_exact or len(V) >= n_free)


@dataclass(frozen=True, slots=True)
class Metric:
    """Symmetric operator ``S``: in coordinates ``theta = S x`` the Hessian is close to a multiple of the identity.

    ``S = tail (1 - UU') + U diag(shrink) U'`` on the features of each predictor, or ``S = diag(scale)``; intercepts are
    unchanged.

    Attributes
    ----------
    U : ndarray of shape (q, s)
        Orthonormal directions of large curvature.
    shrink : ndarray of shape (s,)
    tail : float
    scale : ndarray of shape (q,) or None
    """

    U: Array
    shrink: Array
    tail: float = 1.0
    scale: Array | None = None

    @classmethod
    def plain(cls, q: int) -> Metric:
        """Identity metric, for standardised features."""
        return cls(np.zeros((q, 0)), np.zeros(0))

    @classmethod
    def diagonal(cls, curvature: Array, unit: float) -> Metric:
        """Diagonal metric for features whose curvatures (q,) differ; ``unit`` is the typical one.

        Curvatures far below the largest are rounding error: they count as ``SMALLEST`` times that.
        """
        floor = SMALLEST * float(curvature.max(initial=0.0))
        scale = np.sqrt(unit / np.maximum(curvature, max(floor, np.finfo(float).tiny)))
        return cls(np.zeros((len(curvature), 0)), np.zeros(0), scale=np.where(curvature > floor, scale, 1.0))

    @classmethod
    def nystrom(cls, apply: Apply, q: int, rank: int, unit: float, rng: np.random.Generator) -> Metric:
        """Build the metric from a randomised Nyström approximation of ``A / unit``, for a positive operator A (q, q).

        See Frangella, Tropp and Udell (2023): one product with ``rank`` random directions at once.
        """
        probes = np.linalg.qr(rng.normal(size=(q, rank)))[0]
        product = apply(probes) / unit
        values, vectors = np.linalg.eigh(probes.T @ product)
        kept = values > 1e-10 * values[-1]  # at most the rank of the features
        if not kept.any():
            return cls.plain(q)
        U, s, _ = np.linalg.svd(product @ (vectors[:, kept] / np.sqrt(values[kept])), full_matrices=False)
        return cls(U, 1.0 / s, 1.0 / s[-1])

    def __call__(self, v: Array) -> Array:
        """Apply the metric to coefficients of all predictors, (m,) or (m, c)."""
        if self.scale is not None:
            full = np.tile(np.concatenate([[1.0], self.scale]), len(v) // (1 + len(self.scale)))
            return np.asarray((v.T * full).T)
        if not len(self.shrink):
            return v
        out = v.reshape(len(v) // (1 + len(self.U)), 1 + len(self.U), -1).copy()
        features = out[:, 1:]
        along = (self.shrink - self.tail)[:, None] * (self.U.T @ features)
        features *= self.tail
        features += self.U @ along
        return out.reshape(v.shape)
