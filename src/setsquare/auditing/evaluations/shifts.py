"""Robust Wald statistics of a linear model for many permutations at once, by Fourier transforms.

The rows are put into random order, and the predictions are moved along it by 1, 2, ... places, the last ones back to
the start. Every sum that a statistic needs is then a cyclic correlation, so all n shifts together take about as long as
ten permutations one by one. The shifts form a group, and so do their products with further random permutations up to
a change of order, which makes the rank of the observed statistic exact (Hemerik and Goeman 2018).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations_with_replacement
from math import comb

import numpy as np
from numpy.typing import NDArray

from setsquare._typing import Array, IntArray

Transforms = NDArray[np.complex128]
#: Largest share of the equal-variance estimate in the covariance of several columns, and the smallest of any.
MOST_SHRUNK, LEAST_SHRUNK = 1.0 / 3.0, 1e-9


@dataclass(frozen=True, slots=True)
class Shifts:
    """Transformed products of the columns of an orthonormal basis ``Q`` (n, r), and of 1.

    Attributes
    ----------
    n, rank : int
        Numbers of rows and columns.
    triples : complex ndarray of shape (m, n // 2 + 1)
        Products ``w^2 b_a b_b b_c`` of the columns ``b = (1, Q)``.
    place : integer ndarray of shape (r (r + 1) / 2, r + 1)
        Position of the product of a pair of columns with each column of b.
    singles : complex ndarray of shape (r + 1, n // 2 + 1)
        ``w b_a``.
    fourth : ndarray of shape (r (r + 1) / 2, (r + 1)^2)
        Sums of the products of a pair with two columns of b.
    cubes : complex ndarray of shape (n // 2 + 1,)
        ``w^4 |q|^4``, for the sampling variance of the covariance.
    """

    n: int
    rank: int
    triples: Transforms
    place: IntArray
    singles: Transforms
    fourth: Array
    cubes: Transforms

    @classmethod
    def of(cls, Q: Array, w: Array) -> Shifts:
        """Prepare the products of the columns ``Q`` (n, r), orthonormal with the weights ``w``."""
        n, r = Q.shape
        B = np.vstack([np.ones(n), Q.T])
        a, b, c = np.asarray(list(combinations_with_replacement(range(r + 1), 3))).T
        place = {triple: i for i, triple in enumerate(zip(a.tolist(), b.tolist(), c.tolist(), strict=True))}
        pairs = np.transpose(np.triu_indices(r)) + 1
        where = [[place[tuple(sorted((*pair, k)))] for k in range(r + 1)] for pair in pairs.tolist()]
        products = w * w * B[pairs[:, 0]] * B[pairs[:, 1]]
        fourth = products @ (B[:, None] * B[None]).reshape(-1, n).T
        triples, size = np.fft.rfft(w * w * B[a] * B[b] * B[c]), w * w * np.square(Q).sum(axis=1)
        return cls(n, r, triples, np.asarray(where), np.fft.rfft(w * B), fourth, np.fft.rfft(size * size))

    def statistics(self, y: Array, at: IntArray) -> Array:
        """Wald statistics of predictions ``y`` (n,) moved by ``at`` places; signed if there is one column.

        Residuals are taken from the group means, not from the common mean, which gives more power. For skewed
        predictions the two tails of a signed statistic differ, so it keeps its sign.
        """
        r, y = self.rank, y - y.mean()
        moved, slopes = self._sums(self.triples, y, at), self._sums(self.singles, y, at)
        V = self._sums(self.triples[self.place[:, 0]], y * y, at)
        for k, slope in enumerate(slopes):
            V -= 2.0 * slope * moved[self.place[:, k]]
        V += self.fourth @ (slopes[:, None] * slopes[None]).reshape(-1, len(at))
        equal = float(y @ y) / self.n * self.fourth[:, 0]
        if r == 1:
            return np.asarray(slopes[1] / np.sqrt(np.maximum(V[0], LEAST_SHRUNK * equal[0])))
        whole = _symmetric(V.T, r)
        noise = self._sums(self.cubes[None], y**4, at)[0] - np.square(whole).sum(axis=(1, 2)) / self.n
        whole = shrink(whole, _symmetric(equal[None], r), np.maximum(noise, 0.0))
        score = slopes[1:].T
        return np.asarray(np.einsum("br,br->b", score, np.linalg.solve(whole, score[:, :, None])[:, :, 0]))

    def _sums(self, transformed: Transforms, y: Array, at: IntArray) -> Array:
        """Sums of products with ``y`` moved by ``at`` places, (..., len(at))."""
        return np.asarray(np.fft.irfft(np.conj(transformed) * np.fft.rfft(y), self.n)[..., at])


def size_of(n: int, r: int) -> int:
    """Number of products that :class:`Shifts` holds."""
    return n * comb(r + 3, 3)


def _symmetric(upper: Array, r: int) -> Array:
    """Symmetric matrices (B, r, r) from their upper triangles (B, r (r + 1) / 2)."""
    a, b = np.triu_indices(r)
    V = np.empty((len(upper), r, r))
    V[:, a, b] = V[:, b, a] = upper
    return V


def shrink(V: Array, target: Array, noise: Array) -> Array:
    """Covariances (B, r, r) shrunk towards the ``target`` of equal variances, the more the less certain they are.

    The share of the target is ``noise / (noise + |V - target|^2)`` with ``noise`` the sampling variance of ``V``
    (Ledoit and Wolf 2004), at most a third. It tends to zero with many rows unless the variances are equal, so the
    statistic stays studentised.
    """
    share = noise / np.maximum(noise + np.square(V - target).sum(axis=(1, 2)), 1e-300)
    share = np.clip(share, LEAST_SHRUNK, MOST_SHRUNK)[:, None, None]
    return np.asarray((1.0 - share) * V + share * target)
