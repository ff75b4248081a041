"""Covariance of numbers by group, and critical values of the largest of them.

Critical values come from the distribution of the largest of many studentised numbers. A multiplier bootstrap weights
the influence of row (or cluster) i by a random ``xi_i`` and takes the largest absolute studentised sum. With normal
multipliers, the sums are, given the data, exactly normal with the covariance of the influences: so their largest is
drawn from that covariance, and no draw has to read the rows (Chernozhukov, Chetverikov and Kato 2013).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import sparse
from scipy.special import ndtri

from setsquare._typing import Array, IntArray
from setsquare.auditing.groups.joint_cells import skewness_of_values

#: Draws of the largest number; the coverage then has a Monte Carlo standard error of 0.3 percentage points.
N_DRAWS = 5000
#: With more contrasts, Bonferroni's critical value is used: it is hardly larger then, and costs nothing.
MANY = 4000


def covariance(
    influences: Sequence[Array], codes: Sequence[IntArray], n_groups: Sequence[int], cluster: IntArray | None = None
) -> Array:
    """Covariance (K, K) of the numbers of all groups of several partitions.

    Parameters
    ----------
    influences : sequence of ndarray of shape (n,)
        For each partition, the influence of each row on the number of its own group.
    codes : sequence of integer ndarray of shape (n,)
        Groups of each partition; -1 for none.
    n_groups : sequence of int
        Number of groups of each partition; K is their sum.
    cluster : integer ndarray of shape (n,), optional
        Influences are summed within clusters.

    Examples
    --------
    >>> psi, codes = np.array([0.1, -0.1, 0.2, -0.2]), np.array([0, 0, 1, 1])
    >>> covariance([psi], [codes], [2]).round(3).tolist()
    [[0.04, 0.0], [0.0, 0.16]]
    """
    if cluster is None:
        C, units = _of_rows(influences, codes, n_groups)
    else:
        C, units = _of_clusters(influences, codes, n_groups, cluster)
    factor = np.sqrt(np.where(units > 1, units / np.maximum(units - 1.0, 1.0), 1.0))
    return np.asarray(C * factor * factor[:, None])


def _of_rows(influences: Sequence[Array], codes: Sequence[IntArray], n_groups: Sequence[int]) -> tuple[Array, IntArray]:
    """Sums of products of influences, and the number of rows that count for each number."""
    starts = np.concatenate([[0], np.cumsum(n_groups)])
    C = np.zeros((int(starts[-1]), int(starts[-1])))
    units = []
    for s, (a, first) in enumerate(zip(influences, codes, strict=True)):
        here = slice(starts[s], starts[s + 1])
        units.append(np.bincount(first + 1, a != 0.0, n_groups[s] + 1)[1:])
        C[here, here] = np.diag(np.bincount(first + 1, a * a, n_groups[s] + 1)[1:])
        for t in range(s + 1, len(codes)):
            # Row -1 and column -1 (no group) are computed beside the others and left out.
            both = (first + 1) * (n_groups[t] + 1) + codes[t] + 1
            sums = np.bincount(both, a * influences[t], (n_groups[s] + 1) * (n_groups[t] + 1))
            block = sums.reshape(n_groups[s] + 1, n_groups[t] + 1)[1:, 1:]
            there = slice(starts[t], starts[t + 1])
            C[here, there], C[there, here] = block, block.T
    return C, np.concatenate(units)


def _of_clusters(
    influences: Sequence[Array], codes: Sequence[IntArray], n_groups: Sequence[int], cluster: IntArray
) -> tuple[Array, IntArray]:
    """The same with influences summed within clusters first; units are clusters."""
    sums = _cluster_sums(influences, codes, n_groups, cluster)
    return (sums.T @ sums).toarray(), np.bincount(sums.indices, minlength=sum(n_groups))


def _cluster_sums(
    influences: Sequence[Array], codes: Sequence[IntArray], n_groups: Sequence[int], cluster: IntArray
) -> sparse.csr_array:
    """Influence of each cluster on each number."""
    starts = np.concatenate([[0], np.cumsum(n_groups)])
    used = [(code >= 0) & (a != 0.0) for a, code in zip(influences, codes, strict=True)]
    data = np.concatenate([a[keep] for a, keep in zip(influences, used, strict=True)])
    column = np.concatenate([code[keep] + start for code, keep, start in zip(codes, used, starts[:-1], strict=True)])
    row = np.concatenate([cluster[keep] for keep in used])
    return sparse.coo_array((data, (row, column)), shape=(int(cluster.max()) + 1, int(starts[-1]))).tocsr()


def skewness(
    influences: Sequence[Array],
    codes: Sequence[IntArray],
    n_groups: Sequence[int],
    cluster: IntArray | None,
    size: Array,
) -> Array:
    """Skewness (K,) of the values, or sums of clusters, behind each number; see :func:`covariance`.

    Examples
    --------
    >>> psi, codes = np.array([-0.25, -0.25, -0.25, 0.75]) / 4.0, np.zeros(4, dtype=int)
    >>> skewness([psi], [codes], [1], None, np.array([4.0])).round(2).tolist()
    [2.0]
    """
    unit = max(float(np.abs(a).max(initial=0.0)) for a in influences) or 1.0  # cubes of large influences would overflow
    influences = [a / unit for a in influences]
    if cluster is None:
        second, third = (
            np.concatenate(
                [np.bincount(c + 1, a**power, k + 1)[1:] for a, c, k in zip(influences, codes, n_groups, strict=True)]
            )
            for power in (2, 3)
        )
    else:
        sums = _cluster_sums(influences, codes, n_groups, cluster)
        second, third = (np.asarray(sums.power(power).sum(axis=0)).ravel() for power in (2, 3))
    return skewness_of_values(second, third, size)


def critical_value(
    C: Array, i: IntArray, j: IntArray | None, confidence: float, rng: np.random.Generator, n_draws: int = N_DRAWS
) -> float:
    """Critical value such that all intervals of ``x[i]``, or of ``x[i] - x[j]``, hold at once.

    Parameters
    ----------
    C : ndarray of shape (K, K)
        Covariance of x.
    i, j : integer ndarrays of shape (m,)
        The numbers, or the pairs of numbers, that have intervals.
    confidence : float
    rng : numpy.random.Generator
    n_draws : int

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> three = np.arange(3)
    >>> round(critical_value(np.eye(3), three, None, 0.95, rng), 1)  # 2.39 by Sidak's formula
    2.4
    """
    alone = float(-ndtri(0.5 * (1.0 - confidence)))
    if len(i) < 2:
        return alone
    bonferroni = float(-ndtri(0.5 * (1.0 - confidence) / len(i)))
    if len(i) > MANY:
        return bonferroni
    used, place = np.unique(np.concatenate([i, i if j is None else j]), return_inverse=True)
    D, first = C[np.ix_(used, used)], place[: len(i)]
    second = None if j is None else place[len(i) :]
    if j is None and np.count_nonzero(D) == np.count_nonzero(np.diag(D)):
        return float(-ndtri(0.5 * (1.0 - confidence ** (1.0 / len(i)))))  # independent numbers: Sidak's
    largest = _draw_largest(D, first, second, rng, n_draws)
    return float(min(max(np.quantile(largest, confidence), alone), bonferroni))


def _draw_largest(D: Array, i: IntArray, j: IntArray | None, rng: np.random.Generator, n_draws: int) -> Array:
    """Draws (n_draws,) of the largest absolute studentised number or difference under the covariance D."""
    d = np.diag(D)
    variance = d[i] if j is None else d[i] + d[j] - 2.0 * D[i, j]
    scale = np.sqrt(np.where(d > 0.0, d, 1.0))
    values, vectors = np.linalg.eigh(D / scale / scale[:, None])
    # The symmetric root: unlike the eigenvectors it is unique, so that all machines draw the same numbers.
    root = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T * scale[:, None]
    error = np.sqrt(np.maximum(variance, 0.0))
    moves = error > 1e-12 * np.sqrt(d.max(initial=0.0))  # a constant may have a variance by rounding
    largest = np.zeros(n_draws)
    if still := int((~moves).sum()):  # without an estimated variance: as if independent of the others
        largest = np.abs(rng.standard_normal((n_draws, min(still, 50)))).max(axis=1)
    if not moves.any():
        return largest
    contrast = root[i[moves]] if j is None else root[i[moves]] - root[j[moves]]
    contrast = (contrast / error[moves, None]).T.astype(np.float32)  # far more digits than draws can tell apart
    step = max(1, 100_000 // len(i))  # draws that stay in the cache
    for start in range(0, n_draws, step):
        part = slice(start, min(start + step, n_draws))
        x = rng.standard_normal((part.stop - start, len(d)), dtype=np.float32) @ contrast
        largest[part] = np.maximum(largest[part], np.maximum(x.max(axis=1), -x.min(axis=1)))
    return largest
