"""Upper confidence bounds on the correlation of predictions with protected columns.

The multiple correlation ``R`` of predictions and protected columns is zero exactly when every evaluation model with an
intercept has no effect. In an orthonormal basis of the columns it is the length of a vector of r correlations, each
with a standard error of about ``1/sqrt(n)``; the distribution of its length is inverted to find the largest ``R`` that
the data do not rule out. Standard errors are not taken from normal theory but estimated: from the variance of the rows'
products near zero, and from the influence of each row on ``R`` away from it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from scipy import special

from setsquare._typing import Array, IntArray
from setsquare.auditing.cells import CellRows
from setsquare.projection import Basis, protected_basis
from setsquare.rows.blocks import ArrayRows, Block, Rows, all_rows, mean_weight
from setsquare.rows.parallel import Sums, add_up, row_slices, single_threaded_blas
from setsquare.rows.products import weighted_gram


@dataclass(frozen=True, slots=True)
class Association:
    """A (multiple) correlation with its upper bound.

    Attributes
    ----------
    sample : float
        Correlation in the sample, not negative.
    estimate : float
        The same, corrected for chance: r independent columns explain ``r/n`` of the variance by chance, of which the
        part of all columns but one is subtracted.
    upper : float
        Upper confidence bound on the correlation in the population.
    error : float
        Standard error of one correlation near zero.
    rank : int
        Number of independent columns.
    """

    sample: float
    estimate: float
    upper: float
    error: float
    rank: int


#: Size at which a dozen arrays fit into the cache together.
PIECE_BYTES = 2**20
#: Above this the normal approximation is exact to all relevant digits.
NORMAL = 2e3
#: A leverage counts up to one minus this, which doubles the influence of a row.
LEAST_REST = 0.5
#: With fewer rows per column than this, the noisiest direction is an artefact.
MANY = 50
NONE = Association(0.0, 0.0, 0.0, 0.0, 0)
UNKNOWN = Association(math.nan, math.nan, math.nan, math.nan, 0)


def association(
    y: Array,
    X: Array,
    *,
    weight: Array | None = None,
    cluster: IntArray | None = None,
    confidence: float = 0.95,
) -> tuple[Association, tuple[Association, ...]]:
    """Bound the multiple correlation of ``y`` (n,) with all columns of ``X`` (n, p), and with each column.

    Parameters
    ----------
    y : ndarray of shape (n,)
    X : ndarray of shape (n, p)
    weight : ndarray of shape (n,), optional
    cluster : integer ndarray of shape (n,), optional
        Rows with the same code are not independent.
    confidence : float
        Confidence level of each bound.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(1000, 2))
    >>> together, (first, second) = association(X[:, 0] + rng.normal(size=1000), X)
    >>> 0.7 < first.sample <= together.sample < together.upper < 0.8
    True
    >>> second.upper < 0.12
    True
    """
    w = mean_weight(len(y), weight)
    rows = ArrayRows(X, y[:, None], np.zeros((len(y), 0)), w)
    return associate(rows, float(w @ y), protected_basis(X, w), float(w @ w), confidence, cluster)


def associate(
    rows: Rows,
    mean: float,
    basis: Basis,
    concentration: float,
    confidence: float,
    cluster: IntArray | None = None,
    change: Callable[[Block], Block] | None = None,
) -> tuple[Association, tuple[Association, ...]]:
    """Bound correlations as :func:`association` does, for rows read in blocks with the protected columns as features.

    ``mean`` is the mean prediction, ``concentration`` the sum of the squared weights. With ``change``, the features of
    the changed blocks are the protected columns.
    """
    cells = rows.cells if isinstance(rows, CellRows) else None
    p, sample = len(basis.names), _Sample(rows.n_rows if cells is None else len(cells.codes), concentration)
    whole_rows, rows = rows, rows if change is None else rows.map(change)
    with single_threaded_blas():
        spread, cov, variance = rows.reduce(partial(_moments, mean, basis.mean))
    if float(spread) <= (1e-14 * max(abs(mean), 1e-300)) ** 2:
        return NONE, (NONE,) * p
    size, scale = math.sqrt(float(spread)), np.sqrt(variance)
    varies = np.asarray([name not in basis.constant for name in basis.names])
    inverse = np.where(varies, 1.0 / np.where(varies, scale, 1.0), 0.0)
    c, own = basis.transform.T @ cov / size, cov * inverse / size
    parts = _Parts(basis, inverse, c, own, mean, size)
    if isinstance(whole_rows, CellRows) and cells is not None:
        block = Block(cells.values, cells.counts[:, None], cells.values[:, :0], cells.counts)
        powers = cells.powers((np.asarray(whole_rows.response) - mean) / size)
        values = np.asarray((block if change is None else change(block)).Z)
        near, pull, near_own, pull_own = parts.cell_sums(values, powers, concentration)
    elif cluster is None:
        with single_threaded_blas():
            near, pull, near_own, pull_own = rows.reduce(parts.block_sums)
    else:
        whole = all_rows(rows)
        noise = shared_noise(basis.apply(np.asarray(whole.Z)), whole.y - mean, whole.weight, cluster)
        sample = _Sample(int(cluster.max()) + 1, float(np.trace(noise)) / basis.rank)
        near, pull, near_own, pull_own = parts.sums(whole, cluster)
    single = [
        _bound(float(own[j] ** 2), near_own[j, None, None], pull_own[j], sample, confidence) if varies[j] else UNKNOWN
        for j in range(p)
    ]
    return _bound(float(c @ c), near, pull, sample, confidence), tuple(single)


def _moments(mean: float, centre: Array, block: Block) -> Sums:
    gap, X = block.y[:, 0] - mean, np.subtract(np.asarray(block.Z).T, centre[:, None], order="C")
    weighted = block.weight * gap
    return np.asarray(weighted @ gap), X @ weighted, (X * X) @ block.weight


@dataclass(frozen=True, slots=True)
class _Parts:
    """Contributions of the rows to the standard errors, for all columns together and for each."""

    basis: Basis
    inverse: Array
    c: Array
    own: Array
    mean: float
    size: float

    def block_sums(self, block: Block) -> Sums:
        """Sum over a block in small pieces, so that a dozen arrays stay in the cache."""
        X, y, w = np.asarray(block.Z), block.y, block.weight
        n, p = X.shape
        pieces = row_slices(n, p, PIECE_BYTES)
        return add_up(self.sums(Block(X[rows], y[rows], X[rows, :0], w[rows])) for rows in pieces)

    def sums(self, block: Block, cluster: IntArray | None = None) -> Sums:
        """Squares of the rows' scores near zero (r, r), powers of their influence on R; then column by column.

        The influence of a row on a correlation ``R`` is ``q z - R (q² + z²) / 2``, with ``q`` and ``z`` in standard
        deviations; for a multiple correlation, ``q`` is the fitted value. Each is divided by one minus the row's
        leverage, as in HC3 standard errors: rows in the tail of a protected column draw the fit towards themselves.
        """
        w, z = block.weight, (block.y[:, 0] - self.mean) / self.size
        Q = self.basis.apply(np.asarray(block.Z))
        fitted = Q @ self.c
        own = w / np.maximum(1.0 - w * np.einsum("nr,nr->n", Q, Q), LEAST_REST)
        near = cluster_sums((Q * (own * (z - fitted))[:, None]).T, cluster)
        R = max(math.sqrt(float(self.c @ self.c)), 1e-150)
        along = fitted / R
        pull = cluster_sums(own * (z * along - 0.5 * R * (along * along + z * z)), cluster)
        # Columns first, so that rows are contiguous in memory.
        S = np.subtract(np.asarray(block.Z).T, self.basis.mean[:, None], order="C")
        S *= (self.inverse * np.where(self.own < 0.0, -1.0, 1.0))[:, None]
        size = np.abs(self.own)[:, None]
        squares = S * S
        own_alone = w / np.maximum(1.0 - w * squares, LEAST_REST)
        near_alone = cluster_sums((z - size * S) * S * own_alone, cluster)
        pull_alone = cluster_sums((z * S - 0.5 * size * (squares + z * z)) * own_alone, cluster)
        return near @ near.T, _powers(pull), np.einsum("pn,pn->p", near_alone, near_alone), _powers(pull_alone)

    def cell_sums(self, values: Array, M: Array, w: float) -> Sums:
        """The same sums from those of the powers of ``z`` (7, c) in cells of equal columns (c, p), of weights ``w``."""
        Q = self.basis.apply(values)
        fitted, R = Q @ self.c, max(math.sqrt(float(self.c @ self.c)), 1e-150)
        own = w / np.maximum(1.0 - w * np.einsum("nr,nr->n", Q, Q), LEAST_REST)
        left = M[2] - 2.0 * fitted * M[1] + fitted * fitted * M[0]
        along = fitted / R
        pull = _power_sums(own, (-0.5 * R * along * along, along, np.full_like(along, -0.5 * R)), M)
        S = (values - self.basis.mean) * (self.inverse * np.where(self.own < 0.0, -1.0, 1.0))
        size = np.abs(self.own)
        alone = w / np.maximum(1.0 - w * S * S, LEAST_REST)
        left_alone = M[2][:, None] - 2.0 * size * S * M[1][:, None] + (size * S) ** 2 * M[0][:, None]
        pulls = [
            _power_sums(alone[:, j], (-0.5 * size[j] * s * s, s, np.full_like(s, -0.5 * size[j])), M)
            for j, s in enumerate(S.T)
        ]
        near = weighted_gram(Q, own * own * left)
        return near, pull, np.einsum("cp,cp,cp->p", alone * alone, S * S, left_alone), np.stack(pulls)


def _power_sums(own: Array, terms: tuple[Array, Array, Array], M: Array) -> Array:
    """Sums over the rows of the square and the cube of ``own (a + b z + c z^2)``, by sums of powers of z in cells."""
    first = np.stack(terms)
    square = _multiply(first, first)
    cube = _multiply(square, first)
    return np.asarray([own**2 @ np.sum(square * M[:5], axis=0), own**3 @ np.sum(cube * M, axis=0)])


def _multiply(a: Array, b: Array) -> Array:
    """Product of polynomials, one in each column, with the constant first."""
    product = np.zeros((len(a) + len(b) - 1, a.shape[1]))
    for i, term in enumerate(a):
        product[i : i + len(b)] += term * b
    return product


def _powers(values: Array) -> Array:
    """Sums of squares and of cubes along the last axis."""
    squares = values * values
    return np.stack([squares.sum(axis=-1), np.einsum("...n,...n->...", squares, values)], axis=-1)


def cluster_sums(values: Array, cluster: IntArray | None) -> Array:
    """Sum the last axis over clusters, which are the independent units; without clusters each row is one."""
    if cluster is None:
        return values
    order = np.argsort(cluster, kind="stable")
    starts = np.searchsorted(cluster[order], np.arange(int(cluster.max()) + 1))
    return np.asarray(np.add.reduceat(values[..., order], starts, axis=-1))


def shared_noise(X: Array, residual: Array, w: Array, cluster: IntArray) -> Array:
    """Covariance of ``sum_i w_i x_i r_i`` (p, p) for residuals of variance one, correlated within clusters.

    ``X`` (n, p) is centred. The correlation within clusters, from 0 to 1, is estimated from products of residuals (n,
    k).
    """
    size, shares = np.sum(residual**2, axis=1), cluster_sums(w, cluster)
    together = cluster_sums((w[:, None] * residual).T, cluster)
    expected = float(size @ w) * float(shares @ shares - w @ w)
    shared = (float(np.sum(together**2)) - float(w**2 @ size)) / expected if expected > 0.0 else 0.0
    shared = min(max(shared, 0.0), 1.0)
    sums = cluster_sums((w[:, None] * X).T, cluster)
    return np.asarray((1.0 - shared) * weighted_gram(X, w**2) + shared * (sums @ sums.T))


@dataclass(frozen=True, slots=True)
class _Sample:
    """Number of independent units (rows or clusters), and the sum of their squared shares: 1/n if all are equal."""

    n: int
    concentration: float


def _bound(R2: float, near: Array, powers: Array, sample: _Sample, confidence: float) -> Association:
    R2, rank = min(R2, 1.0), len(near)
    df = sample.n - rank - 1
    if df < 1:  # as many columns as independent units: no correlation can be ruled out
        return Association(math.sqrt(R2), math.sqrt(R2), 1.0, math.inf, rank)
    grown, (pull, third) = sample.n / df, powers.tolist()
    floor = (1.0 - R2) * sample.concentration * grown
    upper = bound_length(R2, near * grown, floor, df, confidence, pull=pull * grown, third=third * grown)
    mean = float(np.trace(near)) * grown / rank
    estimate = math.sqrt(max(R2 - (rank - 1) * min(mean, floor), 0.0))
    return Association(math.sqrt(R2), estimate, max(upper, estimate), math.sqrt(max(mean, floor)), rank)


def bound_length(
    R2: float, V: Array, floor: float, df: float, confidence: float, *, pull: float = 0.0, third: float = 0.0
) -> float:
    """Upper bound on the length of a vector, from an estimate with squared length ``R2`` and covariance ``V`` (r, r).

    ``|c + N(0, V)|^2`` has the mean ``|c|^2 + tr V``, and the variance ``2 tr V^2 + 4 c'Vc``: a shifted and scaled
    non-central chi-squared (or F) variable of the same mean and variance is inverted, ``c`` along the noisiest
    direction. The variance of a small group can be underestimated: no variance is below ``floor``, the one for equal
    variances in all rows. Where few rows dominate, an estimate is too small more often than it is too large: ``third``,
    the sum of the cubed influences, corrects for that skewness (Johnson 1978).

    Parameters
    ----------
    R2 : float
    V : ndarray of shape (r, r)
    floor : float
        Variance in each direction if all rows have the same variance.
    df : float
        Degrees of freedom of the variances.
    confidence : float
        Confidence.
    pull, third : float
        Sums of the squared and cubed influences of the rows on the length itself, where they are known.

    Examples
    --------
    >>> import numpy as np
    >>> round(bound_length(0.0, np.eye(1) / 1000, 1 / 1000, 1e9, 0.95), 4)  # a zero in the sample does not prove zero
    0.052
    >>> round(bound_length(0.01, np.eye(30) / 1000, 1 / 1000, 1e9, 0.95), 4)  # 30 columns explain 0.03 by chance
    0.052
    """
    rank = len(V)
    values = np.linalg.eigvalsh(V)
    noisiest = float(values[-1] if MANY * rank <= df else values.mean())
    t = float(special.stdtrit(df, confidence))
    skew = third / (6.0 * pull) * (1.0 + 2.0 * t * t) if pull > 0.0 else 0.0
    if 10.0 * rank * max(noisiest, floor) < R2:  # further out, the error of R comes from its influence function
        variance = max(noisiest * (1.0 - R2), floor * (1.0 - R2), pull)
        return min(1.0, math.sqrt(R2) + t * math.sqrt(variance) + max(skew, 0.0))
    scale = max(noisiest, floor)
    if scale <= 0.0:
        return math.sqrt(R2)
    # Conservative: subtract the smaller estimate of the chance part, use the larger estimate of the error.
    noise = min(float(values.sum()), rank * floor)
    dimension = max(float(values @ values), rank * floor**2) / scale**2
    statistic = max((R2 - noise) / scale + dimension, 0.0)
    noncentrality = _largest_noncentrality(statistic, dimension, df, confidence, t)
    # A sample that happens to lie at zero does not prove zero.
    return min(1.0, math.sqrt(scale * max(noncentrality, t * t)) + abs(skew))


def _largest_noncentrality(statistic: float, dimension: float, df: float, confidence: float, t: float) -> float:
    """Largest non-centrality that a statistic this small does not rule out."""
    if statistic < NORMAL:
        return float(special.ncfdtrinc(dimension, df, 1.0 - confidence, statistic / dimension))
    middle = statistic - dimension + 2.0 * t * t
    return middle + math.sqrt(middle**2 - (statistic - dimension) ** 2 + 2.0 * t * t * dimension)
