"""Numbers of groups as estimates with influence functions: means, rates and AUC, in linear time.

Groups of a partition do not overlap, so a number has one influence per row and partition: that of the row on the number
of its own group. Nothing of size rows times groups is formed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from setsquare._typing import Array, BoolArray, IntArray
from setsquare.auditing.groups.auc_variance import widen_auc
from setsquare.auditing.groups.critical_values import covariance, skewness
from setsquare.auditing.groups.intervals import Estimates
from setsquare.auditing.groups.joint_cells import JointCells
from setsquare.auditing.groups.partitions import Partition
from setsquare.auditing.groups.shared_shape import share_shape

#: Differences of AUCs that are rounding errors.
ROUNDING = 1e-12


@dataclass(frozen=True, slots=True)
class Rows:
    """What is known of each row.

    Attributes
    ----------
    score : ndarray of shape (n,)
        Predictions.
    decision : ndarray of shape (n,) of 0 and 1, or None
    outcome : ndarray of shape (n,), or None
    weight : ndarray of shape (n,) or None
    cluster : integer ndarray of shape (n,) or None
    """

    score: Array
    decision: Array | None = None
    outcome: Array | None = None
    weight: Array | None = None
    cluster: IntArray | None = None


@dataclass(frozen=True, slots=True)
class Number:
    """One number of every group.

    Attributes
    ----------
    name : str
    estimates : Estimates
        In the order of the partitions and their groups.
    undefined : str
        Why the number is undefined in a group where it is NaN.
    """

    name: str
    estimates: Estimates
    undefined: str = ""


def count_numbers(rows: Rows, partitions: Sequence[Partition]) -> dict[str, Number]:
    """All numbers that the rows allow, by name.

    ``mean``; with decisions ``selection_rate``; with outcomes ``calibration`` (mean outcome minus mean prediction),
    ``outcome`` (its mean) and, if they are 0 and 1, ``auc``; with both ``tpr``, ``fpr``, ``ppv``, ``npv`` and
    ``accuracy``.

    Examples
    --------
    >>> from setsquare.auditing.groups.partitions import partition_rows
    >>> score, hired = np.array([0.2, 0.8, 0.6, 0.9]), np.array([0.0, 1.0, 1.0, 1.0])
    >>> found = count_numbers(Rows(score, hired), partition_rows(["f", "f", "m", "m"], min_group=1))
    >>> {name: one.estimates.value.round(2).tolist() for name, one in found.items()}
    {'mean': [0.5, 0.75], 'selection_rate': [0.5, 1.0]}
    """
    s, d, y = rows.score, rows.decision, rows.outcome
    # Sums over clusters need the influence of each row.
    cells = JointCells.of(partitions) if rows.cluster is None else None
    shares = bool(s.min() >= 0.0 and s.max() <= 1.0)
    found = [mean_number("mean", s, rows, partitions, cells, is_rate=shares)]
    if d is not None:
        found.append(mean_number("selection_rate", d, rows, partitions, cells))
    binary = y is not None and bool(((y == 0.0) | (y == 1.0)).all())
    if y is not None and d is not None and binary:
        for name, values, kept, undefined in (
            ("tpr", d, y == 1.0, "no positive outcome"),
            ("fpr", d, y == 0.0, "no negative outcome"),
            ("ppv", y, d == 1.0, "no positive decision"),
            ("npv", 1.0 - y, d == 0.0, "no negative decision"),
            ("accuracy", 1.0 * (d == y), None, ""),
        ):
            found.append(mean_number(name, values, rows, partitions, cells, subset=kept, undefined=undefined))
    if y is not None:
        found += [auc_number(rows, y, partitions)] if binary else []
        found.append(mean_number("outcome", y, rows, partitions, cells, is_rate=binary))
        found.append(mean_number("calibration", y - s, rows, partitions, cells, is_rate=False))
    return {one.name: one for one in found}


def mean_number(
    name: str,
    values: Array,
    rows: Rows,
    partitions: Sequence[Partition],
    cells: JointCells | None = None,
    *,
    subset: BoolArray | None = None,
    is_rate: bool = True,
    undefined: str = "",
) -> Number:
    """Weighted mean of values in each group, over all rows or a subset; from sums over cells where these are given."""
    binary = bool(((values == 0.0) | (values == 1.0)).all())
    exact = is_rate and rows.weight is None and rows.cluster is None and binary
    found = None if cells is None else cells.means(values, rows.weight, subset, binary=binary)
    w = np.ones(len(values)) if rows.weight is None else rows.weight
    w = w if subset is None else w * subset
    if cells is not None and found is not None:
        value, C, skewed = found
        number = _number(name, value, C, cells.effective_sizes(rows.weight, subset), is_rate, exact, undefined)
        return number if skewed is None else _shared(number, skewed)
    estimates, influences = [], []
    for part in partitions:
        total, weighted = (_sums(part, x) for x in (w, w * values))
        with np.errstate(all="ignore"):
            mean = weighted / total
        estimates.append(mean)
        influences.append(_spread(part, np.where(total > 0.0, 1.0 / np.maximum(total, 1e-300), 0.0), mean, w, values))
    number = _finish(name, estimates, influences, w, rows, partitions, is_rate, exact, undefined)
    if binary:
        return number
    codes, counts = [part.codes for part in partitions], [len(part.labels) for part in partitions]
    return _shared(number, skewness(influences, codes, counts, rows.cluster, number.estimates.size))


def _shared(number: Number, skewed: Array) -> Number:
    return replace(number, estimates=share_shape(number.estimates, skewed))


def auc_number(rows: Rows, y: Array, partitions: Sequence[Partition]) -> Number:
    """Probability that a positive outcome of a group scores higher than a negative one of it; ties count half."""
    w = np.ones(len(y)) if rows.weight is None else rows.weight
    order = np.argsort(rows.score, kind="stable")
    estimates, influences, freedoms, cases = [], [], [], []
    for part in partitions:
        up, down = w * y, w * (1.0 - y)
        n_up, n_down = _sums(part, up), _sums(part, down)
        below, under = _midranks(rows.score, part, order, down, up)
        c = part.codes
        with np.errstate(all="ignore"):
            area = np.where(n_down > 0.0, _sums(part, up * below), np.nan) / (n_up * n_down)  # exact without weights
            below, under = below / n_down[c], under / n_up[c]
            # An area of 1 up to the rounding of weights is 1, and nothing varies.
            area = np.where(np.abs(area - 1.0) <= ROUNDING, 1.0, area)
            gap = np.where(y == 1.0, below, 1.0 - under) - area[c]
            gap = np.where(np.abs(gap) <= ROUNDING, 0.0, gap)
            psi = np.where(y == 1.0, up / n_up[c], down / n_down[c]) * gap
            kish = [total**2 / _sums(part, x**2) for total, x in ((n_up, up), (n_down, down))]
        psi = np.where((c >= 0) & np.isfinite(psi), psi, 0.0)
        estimates.append(area)
        influences.append(psi)
        cases.append(np.nan_to_num(kish))
        freedoms.append(_welch([_sums(part, psi**2 * own) for own in (y, 1.0 - y)], kish))
    number = _finish("auc", estimates, influences, w, rows, partitions, True, False, "one outcome only")
    found, (ups, downs) = number.estimates, np.concatenate(cases, axis=1)
    if rows.cluster is None:
        return replace(number, estimates=widen_auc(found, ups, downs, np.concatenate(freedoms)))
    # The variance of an AUC of A is at most A (1 - A) / min(positives, negatives) (Birnbaum and Klose 1957).
    return replace(number, estimates=replace(found, size=np.minimum(ups, downs)))


def _welch(variances: Sequence[Array], sizes: Sequence[Array]) -> Array:
    """Degrees of freedom of a sum of two variances (Welch and Satterthwaite); 0 where nothing varies."""
    with np.errstate(all="ignore"):
        parts = [v**2 / np.maximum(n - 1.0, 0.0) for v, n in zip(variances, sizes, strict=True)]
        df = (variances[0] + variances[1]) ** 2 / (parts[0] + parts[1])
    return np.where(np.isfinite(df), df, 0.0)


def _finish(
    name: str,
    estimates: Sequence[Array],
    influences: Sequence[Array],
    w: Array,
    rows: Rows,
    partitions: Sequence[Partition],
    is_rate: bool,
    exact: bool,
    undefined: str,
) -> Number:
    codes, counts = [part.codes for part in partitions], [len(part.labels) for part in partitions]
    C = covariance(influences, codes, counts, rows.cluster)
    size = np.concatenate([_kish(part, w, rows.cluster) for part in partitions])
    return _number(name, np.concatenate(estimates), C, size, is_rate, exact, undefined)


def _number(name: str, value: Array, C: Array, size: Array, is_rate: bool, exact: bool, undefined: str) -> Number:
    df = np.full(len(value), np.inf) if exact else np.maximum(size - 1.0, 0.0)
    return Number(name, Estimates(value, C, is_rate, size, df), undefined)


def _sums(part: Partition, x: Array) -> Array:
    return np.asarray(np.bincount(part.codes + 1, x, len(part.labels) + 1)[1:], dtype=np.float64)


def _spread(part: Partition, inverse: Array, mean: Array, w: Array, values: Array) -> Array:
    c = part.codes
    psi = w * inverse[c] * (values - np.nan_to_num(mean)[c])
    return np.where(c >= 0, psi, 0.0)


def _kish(part: Partition, w: Array, cluster: IntArray | None) -> Array:
    """Effective number of rows, or of clusters, of each group."""
    if cluster is None:
        total, squares = _sums(part, w), _sums(part, w * w)
    else:
        k = len(part.labels) + 1
        pairs, place = np.unique(cluster * k + part.codes + 1, return_inverse=True)
        sums = np.bincount(place, w)
        total, squares = (np.asarray(np.bincount(pairs % k, x, k)[1:], dtype=float) for x in (sums, sums * sums))
    with np.errstate(all="ignore"):
        return np.nan_to_num(total**2 / squares)


def _midranks(score: Array, part: Partition, order: IntArray, *weights: Array) -> tuple[Array, ...]:
    """Weight of the rows of the same group with a smaller score, plus half the weight of ties, for each row."""
    small = part.codes[order].astype(np.int16 if len(part.labels) < 2**15 else np.int64)  # a radix sort for int16
    by_group = order[np.argsort(small, kind="stable")]
    code, ordered = part.codes[by_group], score[by_group]
    starts = np.empty(len(code), dtype=bool)
    starts[0], starts[1:] = True, (code[1:] != code[:-1]) | (ordered[1:] != ordered[:-1])
    run = np.cumsum(starts) - 1
    first = code[starts]
    turns = np.flatnonzero(np.concatenate([[True], first[1:] != first[:-1]]))  # first run of each group
    lengths = np.diff(np.concatenate([turns, [len(first)]]))
    found = []
    for weight in weights:
        sums = np.bincount(run, weight[by_group])
        # Sums over all groups are large beside those of a small one: their rounding would be seen in it.
        total = np.cumsum(sums, dtype=np.longdouble) - 0.5 * sums
        ranks = np.empty(len(code))
        ranks[by_group] = (total - np.repeat(total[turns] - 0.5 * sums[turns], lengths))[run]
        found.append(ranks)
    return tuple(found)
