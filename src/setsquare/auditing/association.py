"""How much association can be left: upper confidence bounds on correlations.

The multiple correlation ``R`` of predictions and protected columns is zero exactly when every evaluation model with an
intercept has no effect. In an orthonormal basis of the columns it is the length of a vector of r correlations, each
with an error of about ``1/sqrt(n)``; so ``n R²`` follows a non-central F law, which is inverted for the largest ``R``
that the data do not contradict. Its scale is not taken from normal theory but measured: by the spread of the rows'
products near zero, and by the influence of each row on ``R²`` away from it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import numpy as np
from scipy import special

from setsquare.projection import Basis, protected_basis
from setsquare.rows import ArrayRows, Block, Rows, Sums, add_up, mean_weight, row_slices, single_threaded_blas
from setsquare.typing import Array, IntArray


@dataclass(frozen=True, slots=True)
class Association:
    """A (multiple) correlation with its upper bound.

    Attributes
    ----------
    estimate : float
        Correlation in the sample, not negative.
    upper : float
        The correlation in the population is at most this, with the confidence asked for.
    rank : int
        Number of independent columns.
    """

    estimate: float
    upper: float
    rank: int


#: What a dozen arrays of fit into the cache together.
PIECE_BYTES = 2**20
#: Statistics beyond this follow the normal law to all digits that matter.
NORMAL = 2e3
#: With fewer rows a column than this, the noisiest direction is an artefact.
MANY = 50
NONE = Association(0.0, 0.0, 0)


def association(
    y: Array,
    X: Array,
    *,
    weight: Array | None = None,
    cluster: IntArray | None = None,
    level: float = 0.95,
    basis: Basis | None = None,
) -> tuple[Association, tuple[Association, ...]]:
    """Bound the multiple correlation of ``y`` (n,) with all columns of ``X`` (n, p), and that with each of them.

    Parameters
    ----------
    y : ndarray of shape (n,)
    X : ndarray of shape (n, p)
    weight : ndarray of shape (n,), optional
    cluster : integer ndarray of shape (n,), optional
        Rows with the same code are not independent.
    level : float
        Confidence of each bound.
    basis : Basis, optional
        Of the columns, where it is known already.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(1000, 2))
    >>> together, (first, second) = association(X[:, 0] + rng.normal(size=1000), X)
    >>> 0.7 < first.estimate <= together.estimate < together.upper < 0.8
    True
    >>> second.upper < 0.12
    True
    """
    w = mean_weight(len(y), weight)
    basis = basis or protected_basis(X, w)
    rows = ArrayRows(X, y[:, None], np.zeros((len(y), 0)), w)
    if cluster is None:
        return associate(rows, float(w @ y), basis, float(w @ w), level)
    share = cluster_sums(w, cluster)
    sample = _Sample(len(share), float(share @ share))
    return _associate(rows, float(w @ y), basis, sample, level, Block(X, y[:, None], X[:, :0], w), cluster)


def associate(
    rows: Rows, mean: float, basis: Basis, concentration: float, level: float
) -> tuple[Association, tuple[Association, ...]]:
    """Bound correlations as :func:`association` does, of rows anywhere whose features are the protected columns.

    ``mean`` is that of the predictions, ``concentration`` the sum of the squared weights.
    """
    return _associate(rows, mean, basis, _Sample(rows.n_rows, concentration), level)


def _associate(
    rows: Rows,
    mean: float,
    basis: Basis,
    sample: _Sample,
    level: float,
    whole: Block | None = None,
    cluster: IntArray | None = None,
) -> tuple[Association, tuple[Association, ...]]:
    p = len(basis.names)
    with single_threaded_blas():
        spread, cov, variance = rows.reduce(partial(_moments, mean, basis.mean))
    if float(spread) <= (1e-14 * max(abs(mean), 1e-300)) ** 2:
        return NONE, (NONE,) * p
    size, scale = math.sqrt(float(spread)), np.sqrt(variance)
    varies = np.asarray([name not in basis.constant for name in basis.names])
    inverse = np.where(varies, 1.0 / np.where(varies, scale, 1.0), 0.0)
    c, own = basis.transform.T @ cov / size, cov * inverse / size
    parts = _Parts(basis, inverse, c, own, mean, size)
    if whole is None:
        with single_threaded_blas():
            near, pull, near_own, pull_own = rows.reduce(parts.block_sums)
    else:
        near, pull, near_own, pull_own = parts.sums(whole, cluster)
    total = _bound(float(c @ c), _error(near, sample.n), float(pull), sample, basis.rank, level)
    single = [
        _bound(float(own[j] ** 2), float(near_own[j]), float(pull_own[j]), sample, 1, level)
        if varies[j]
        else Association(math.nan, math.nan, 0)
        for j in range(p)
    ]
    return total, tuple(single)


def _moments(mean: float, centre: Array, block: Block) -> Sums:
    gap, X = block.y[:, 0] - mean, np.subtract(np.asarray(block.Z).T, centre[:, None], order="C")
    weighted = block.weight * gap
    return np.asarray(weighted @ gap), X @ weighted, (X * X) @ block.weight


@dataclass(frozen=True, slots=True)
class _Parts:
    """What each row adds to the errors, of all columns together and of each."""

    basis: Basis
    inverse: Array
    c: Array
    own: Array
    mean: float
    size: float

    def block_sums(self, block: Block) -> Sums:
        """Sums over a block in small pieces: a dozen arrays of its size would not stay in the cache."""
        X, y, w = np.asarray(block.Z), block.y, block.weight
        n, p = X.shape
        pieces = row_slices(n, p, PIECE_BYTES)
        return add_up(self.sums(Block(X[rows], y[rows], X[rows, :0], w[rows])) for rows in pieces)

    def sums(self, block: Block, cluster: IntArray | None = None) -> Sums:
        """Squares of the rows' scores near zero (r, r) and of their influence on R², then both column by column."""
        w, z = block.weight, (block.y[:, 0] - self.mean) / self.size
        Q = self.basis.apply(np.asarray(block.Z))
        residual = z - Q @ self.c
        near = cluster_sums((Q * (w * residual)[:, None]).T, cluster)
        pull = cluster_sums(w * ((1.0 - self.c @ self.c) * z * z - residual * residual), cluster)
        # Columns first: the rows then run along memory.
        S = np.subtract(np.asarray(block.Z).T, self.basis.mean[:, None], order="C")
        S *= self.inverse[:, None]
        alone = z - self.own[:, None] * S
        near_alone = cluster_sums(alone * S * w, cluster)
        pull_alone = cluster_sums(((1.0 - self.own[:, None] ** 2) * (z * z) - alone * alone) * w, cluster)
        squares = (np.einsum("pn,pn->p", part, part) for part in (near_alone, pull_alone))
        return near @ near.T, np.asarray(pull @ pull), *squares


def cluster_sums(values: Array, cluster: IntArray | None) -> Array:
    """Sum the last axis over clusters, which are the independent units; without clusters each row is one."""
    if cluster is None:
        return values
    order = np.argsort(cluster, kind="stable")
    starts = np.searchsorted(cluster[order], np.arange(int(cluster.max()) + 1))
    return np.asarray(np.add.reduceat(values[..., order], starts, axis=-1))


@dataclass(frozen=True, slots=True)
class _Sample:
    """Number of independent units (rows or clusters), and the sum of their squared shares: 1/n if all are equal."""

    n: int
    concentration: float


def _error(near: Array, n: int) -> float:
    """Variance in the noisiest direction; with many columns the mean over all, since the largest is that by chance."""
    values = np.linalg.eigvalsh(near)
    return float(values[-1] if MANY * len(values) <= n else values.mean())


def _bound(R2: float, near: float, pull: float, sample: _Sample, rank: int, level: float) -> Association:
    R2, df = min(R2, 1.0), sample.n - rank - 1
    if df < 1:
        return Association(math.sqrt(R2), 1.0, rank)  # as many columns as independent units: nothing is ruled out
    # A group of a few rows can look quieter than it is: no error is below that of an average group of its size.
    variance = max(near, (1.0 - R2) * sample.concentration) * sample.n / df
    if 10.0 * rank * variance < R2:  # further out the error of R is that of its influence function
        variance = max(variance * (1.0 - R2), pull / (4.0 * R2) * sample.n / df)
    return Association(math.sqrt(R2), _upper(R2, variance, rank, df, level), rank)


def _upper(R2: float, variance: float, rank: int, df: int, level: float) -> float:
    """Largest ``R`` for which so small an estimate is not a surprise."""
    if variance <= 0.0:
        return math.sqrt(R2)
    statistic, t = R2 / variance, float(special.stdtrit(df, level))
    noncentrality = (math.sqrt(statistic) + t) ** 2
    if statistic < NORMAL:
        noncentrality = float(special.ncfdtrinc(rank, df, 1.0 - level, statistic / rank))
    # A sample that happens to lie at zero does not prove zero.
    return min(1.0, math.sqrt(variance * max(noncentrality, t * t)))
