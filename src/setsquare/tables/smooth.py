"""Bases of smooth functions of protected columns: cubic splines, and the leading functions of a Gaussian kernel."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.linalg import solve_triangular

from setsquare._typing import Array, IntArray
from setsquare.errors import InputError
from setsquare.tables.coders import Categorical, Coder, NumberCoder, Numeric, Unseen
from setsquare.tables.column import TableRows

#: Fewest inner knots of a spline, and number of values up to which a column gets a knot at each instead.
FEWEST_KNOTS, FEW_VALUES = 4, 6
#: Default bound of a kernel basis, and most of its points.
BOUND, MOST_POINTS = 0.01, 500
#: Rows up to which a kernel is one standard deviation wide, and factor by which it widens until its functions fit.
WIDE_ROWS, WIDER = 243, 1.25
#: Features for each function of a basis that grows with the rows: the others are left to predict with.
FEATURES_EACH = 3


@dataclass(frozen=True, slots=True)
class Spline(NumberCoder):
    """B-splines of a numeric column without the first; values beyond the training rows count as the end of their range.

    Attributes
    ----------
    name : str
    knots : tuple of float
        With repeated ends.
    degree : int
    fill, indicator
        As in :class:`Numeric`.

    Examples
    --------
    >>> Spline("age", (20.0, 20.0, 40.0, 60.0, 60.0), 1).names
    ('age[spline 1]', 'age[spline 2]')
    """

    name: str
    knots: tuple[float, ...]
    degree: int
    fill: float | None = None
    indicator: bool = False

    @property
    def made(self) -> tuple[str, ...]:
        """One name per spline."""
        return tuple(f"{self.name}[spline {j + 1}]" for j in range(len(self.knots) - self.degree - 2))

    def write(self, values: Array, out: Array) -> None:
        """Write the splines at the values."""
        from scipy.interpolate import BSpline  # brings scipy.optimize, which a plain audit does not need

        x = np.clip(values, self.knots[0], self.knots[-1])
        splines = BSpline.design_matrix(x, np.array(self.knots), self.degree).toarray()[:, 1:]
        out[:, : splines.shape[1]] = splines


def learn_spline(base: Numeric, values: Array, room: float = math.inf, weight: Array | None = None) -> Coder:
    """Cubic spline with knots at quantiles; of few values, every function of them; of two or fewer, the column itself.

    There are ``n^(1/3) / 2`` inner knots for n rows, four at least: predictions can change steeply along a protected
    column where a feature does (retirement), and more rows show more of that. The rate is the one for functions of
    bounded variation. A jump is followed between neighbouring knots only. ``room`` is the number of features that the
    column may use: with few of them there are four knots. Row weights (n,) move the quantiles as repeated rows would;
    n counts the rows with a weight above 0, since weights have no scale.

    Examples
    --------
    >>> learn_spline(Numeric("x"), np.array([1.0, 2.0, 4.0, 4.0])).knots
    (1.0, 1.0, 2.0, 4.0, 4.0)
    """
    known = ~np.isnan(values) if weight is None else ~np.isnan(values) & (weight > 0.0)
    x = values[known]
    distinct = np.unique(x)
    if len(distinct) <= 2:
        return base
    few = len(distinct) <= FEW_VALUES
    degree = 1 if few else 3
    count = max(
        FEWEST_KNOTS, min(round(0.5 * len(x) ** (1.0 / 3.0)), math.floor(min(room / FEATURES_EACH, len(x))) - 3)
    )
    shares = np.linspace(0.0, 1.0, count + 2)[1:-1]
    inner = distinct[1:-1] if few else np.unique(quantiles(x, shares, None if weight is None else weight[known]))
    gap = np.finfo(np.float64).eps * (distinct[-1] - distinct[0])  # closer knots would divide by zero
    inner = inner[(np.diff(inner, prepend=distinct[0]) > gap) & (inner < distinct[-1] - gap)]
    knots = (*[distinct[0]] * (degree + 1), *inner, *[distinct[-1]] * (degree + 1))
    return Spline(base.name, tuple(map(float, knots)), degree, base.fill, base.indicator)


def quantiles(x: Array, shares: Array, weight: Array | None = None) -> Array:
    """Quantiles of values (n,): the smallest that at least a share of the rows, or of their weight, does not exceed.

    Examples
    --------
    >>> quantiles(np.array([3.0, 1.0, 2.0]), np.array([0.5, 0.9]), np.array([1.0, 4.0, 1.0]))
    array([1., 3.])
    """
    order = np.argsort(x, kind="stable")
    below = np.arange(1.0, len(x) + 1.0) if weight is None else np.cumsum(weight[order])
    places = np.searchsorted(below, shares * below[-1] * (1.0 - 1e-12))  # rounding must not skip the share itself
    return np.asarray(x[order[places]])


@dataclass(frozen=True, slots=True)
class Ball:
    """What a kernel basis says about every smooth function of the protected columns.

    If the predictions are uncorrelated with its functions on the training rows, then the covariance with any function
    of norm at most 1 in the kernel's space (values between -1 and 1) is at most ``remainder`` times the standard
    deviation of the predictions on those rows.

    Attributes
    ----------
    n_functions : int
    remainder : float
    widths : tuple of (str, float)
        Numeric columns, and the distance over which functions of norm 1 vary little along each.
    """

    n_functions: int
    remainder: float
    widths: tuple[tuple[str, float], ...] = ()

    def __str__(self) -> str:
        widths = ", ".join(f"{name} {width:.3g}" for name, width in self.widths)
        return (
            f"{self.n_functions} functions of a Gaussian kernel{f' (width: {widths})' if widths else ''}: the "
            "covariance of the predictions with any function of norm 1 in its space is at most "
            f"{self.remainder:.2g} standard deviations of the predictions."
        )


@dataclass(frozen=True, slots=True)
class Kernel(Coder):
    """Leading functions of a Gaussian kernel of several columns, uncorrelated and of variance 1 in the training rows.

    Numbers are divided by the width of the kernel, levels are dummies, and ``k(u, v) = exp(-|u - v|^2 / 2)``.

    Attributes
    ----------
    levels : tuple of tuples
        Levels of each category; empty for a numeric column.
    fills : tuple of float or None
        What stands for a missing number.
    scales : tuple of float
        Widths along numeric columns; 1 for categories.
    points : tuple of tuples of float
        Points z of the functions ``sum_l weights[l] k(u, z_l) - shift``.
    weights : tuple of tuples of float
    shift : tuple of float
    remainder : float
        See :class:`Ball`.
    """

    columns: tuple[str, ...] = field()  # not the property of the base
    levels: tuple[tuple[Any, ...], ...]
    fills: tuple[float | None, ...]
    scales: tuple[float, ...]
    points: tuple[tuple[float, ...], ...]
    weights: tuple[tuple[float, ...], ...]
    shift: tuple[float, ...]
    remainder: float

    @property
    def names(self) -> tuple[str, ...]:
        """Output column names."""
        return tuple(f"{self.source}[kernel {j + 1}]" for j in range(len(self.shift)))

    @property
    def ball(self) -> Ball:
        """Statement about every smooth function."""
        each = zip(self.columns, self.levels, self.scales, strict=True)
        return Ball(len(self.shift), self.remainder, tuple((name, scale) for name, levels, scale in each if not levels))

    def encode(self, rows: TableRows, out: Array, unseen: Unseen) -> dict[str, int]:
        """Fill `out` and return the number of pooled rows by source."""
        coders = [
            Categorical(name, levels) if levels else Numeric(name, fill)
            for name, levels, fill in zip(self.columns, self.levels, self.fills, strict=True)
        ]
        U, pooled = _inputs(coders, self.scales, rows, unseen)
        distinct, where = np.unique(U, axis=0, return_inverse=True)
        values = gaussian(distinct, np.array(self.points)) @ np.array(self.weights) - np.array(self.shift)
        out[:] = values[where.reshape(-1)]
        return pooled


def gaussian(U: Array, V: Array) -> Array:
    """Gaussian kernel (n, m) of the rows of U and V."""
    from scipy.spatial.distance import cdist

    return np.asarray(np.exp(-0.5 * cdist(U, V, "sqeuclidean")))


def learn_kernel(
    coders: Sequence[Numeric | Categorical],
    rows: TableRows,
    bound: float = BOUND,
    room: float = math.inf,
    weight: Array | None = None,
) -> Kernel:
    """Learn the functions of a kernel basis: as many as keep the remainder of the ball within a bound.

    For up to 243 rows the kernel is one standard deviation wide. For n rows and one numeric column its width is ``3
    n^(-1/5)`` standard deviations, three times Scott's bandwidth, and the number of functions grows with ``n^(1/5)``;
    for d numeric columns the d-th root of this factor keeps the growth the same. ``room`` is the number of features
    that predict: a kernel that would use more than a third of them is wider, up to one standard deviation. Row weights
    (n,) count as repeated rows in standard deviations and functions; n counts the rows with a weight above 0.
    """
    numeric = sum(isinstance(coder, Numeric) for coder in coders)
    n = rows.n if weight is None else int(np.count_nonzero(weight))
    width = min(1.0, (WIDE_ROWS / n) ** (0.2 / max(numeric, 1)))
    while True:
        found = _learn_kernel(coders, rows, bound, width, weight)
        if width == 1.0 or len(found.shift) <= room / FEATURES_EACH:
            return found
        width = min(1.0, WIDER * width)


def _learn_kernel(
    coders: Sequence[Numeric | Categorical], rows: TableRows, bound: float, width: float, weight: Array | None
) -> Kernel:
    """Learn the functions of a kernel of this width, in standard deviations of numeric columns."""
    values = [rows.numbers(coder.name) if isinstance(coder, Numeric) else None for coder in coders]
    spreads = [1.0 if x is None else _deviation(x, weight) for x in values]
    scales = tuple(
        1.0 if x is None or not spread > 0.0 else width * spread for x, spread in zip(values, spreads, strict=True)
    )
    U, _ = _inputs(coders, scales, rows, "pool")
    U, counted = (U, None) if weight is None else (U[weight > 0.0], weight[weight > 0.0])
    distinct, where = np.unique(U, axis=0, return_inverse=True)
    counts = np.bincount(where.reshape(-1), counted)
    names = tuple(coder.name for coder in coders)
    if len(distinct) < 2:
        raise InputError(
            f"basis='kernel' needs protected columns with at least two distinct values: {', '.join(names)} is constant."
        )
    share = counts / counts.sum()
    chosen, G, left = _factor(distinct, share, 0.1 * bound**2)
    mean = share @ G
    spread, V = np.linalg.eigh((G - mean).T @ ((G - mean) * share[:, None]))
    spread, V = np.maximum(spread[::-1], 0.0), V[:, ::-1]
    tails = np.append(spread, 0.0) + left
    m = max(1, int(np.argmax(tails <= bound**2)) if (tails <= bound**2).any() else len(spread))
    if m + 1 >= len(U):  # only a constant would be left
        raise InputError(
            f"basis='kernel' needs {m} functions of {', '.join(names)} for its bound of {bound:g}, but there are "
            f"{len(U)} rows: pass more rows, fewer columns, or a larger bound, basis={{'kernel': {2 * bound:g}}}."
        )
    to_columns = V[:, :m] / np.sqrt(np.maximum(spread[:m], np.finfo(float).tiny))
    weights = solve_triangular(G[chosen], to_columns, lower=True, trans="T")  # of k(u, z) @ inv(L)'
    return Kernel(
        names,
        tuple(coder.levels if isinstance(coder, Categorical) else () for coder in coders),
        tuple(coder.fill if isinstance(coder, Numeric) else None for coder in coders),
        scales,
        tuple(map(tuple, distinct[chosen].tolist())),
        tuple(map(tuple, weights.tolist())),
        tuple((mean @ to_columns).tolist()),
        float(np.sqrt(tails[m])),
    )


def _deviation(x: Array, weight: Array | None) -> float:
    """Standard deviation of the values that are not missing."""
    if weight is None:
        return float(np.nanstd(x))
    known = ~np.isnan(x) & (weight > 0.0)
    if not known.any():
        return 0.0
    x, w = x[known], weight[known] / weight[known].sum()
    return float(np.sqrt(w @ (x - w @ x) ** 2))


def _factor(U: Array, share: Array, enough: float) -> tuple[IntArray, Array, float]:
    """Incomplete Cholesky factor of the kernel's matrix of the distinct rows, by the largest remaining share.

    Returns the rows chosen, the factor G with ``K = G G' + E``, and the weighted trace of E, which bounds its effect.
    """
    rest = np.ones(len(U))
    chosen: list[int] = []
    G = np.zeros((len(U), min(len(U), MOST_POINTS)))
    while len(chosen) < G.shape[1] and float(share @ rest) > enough:
        j = int(np.argmax(share * rest))
        if not rest[j] > 1e-12:
            break
        k = len(chosen)
        G[:, k] = (gaussian(U, U[j : j + 1])[:, 0] - G[:, :k] @ G[j, :k]) / np.sqrt(rest[j])
        rest = np.maximum(rest - G[:, k] ** 2, 0.0)
        rest[j] = 0.0
        chosen.append(j)
    return np.array(chosen), G[:, : len(chosen)], float(share @ rest)


def _inputs(
    coders: Sequence[Numeric | Categorical], scales: Sequence[float], rows: TableRows, unseen: Unseen
) -> tuple[Array, dict[str, int]]:
    """Inputs (n, d) of the kernel, and rows with an unseen level or a missing number by column."""
    parts: list[Array] = []
    pooled: dict[str, int] = {}
    for coder, scale in zip(coders, scales, strict=True):
        if isinstance(coder, Numeric):
            values, missing, _ = Numeric(coder.name, coder.fill, coder.fill is not None).values(rows, unseen)
            parts.append(values[:, None] / scale)
            if coder.fill is not None:
                parts.append(missing[:, None].astype(np.float64))
            continue
        codes, count = coder.codes(rows, unseen)
        parts.append((codes[:, None] == np.arange(len(coder.levels))).astype(np.float64))
        pooled |= {coder.name: count} if count else {}
    return np.column_stack(parts), pooled


@dataclass(frozen=True, slots=True)
class Transformed(Coder):
    """Columns that a fitted scikit-learn transformer makes of coded columns."""

    coders: tuple[Numeric | Categorical, ...]
    transformer: Any
    width: int

    @property
    def columns(self) -> tuple[str, ...]:
        """Input columns."""
        return tuple(coder.name for coder in self.coders)

    @property
    def names(self) -> tuple[str, ...]:
        """Output column names."""
        return tuple(f"{self.source}[{j + 1}]" for j in range(self.width))

    def encode(self, rows: TableRows, out: Array, unseen: Unseen) -> dict[str, int]:
        """Fill `out` and return the number of pooled rows by source."""
        U, pooled = code(self.coders, rows, unseen)
        out[:] = _dense(self.transformer.transform(U))
        return pooled


def learn_transformed(coders: Sequence[Numeric | Categorical], rows: TableRows, transformer: Any) -> Transformed:
    """Fit a copy of a transformer to the coded columns."""
    from sklearn.base import clone

    U, _ = code(coders, rows, "pool")
    fitted = clone(transformer).fit(U)
    made = _dense(fitted.transform(U))
    if made.ndim != 2 or len(made) != len(U) or not np.isfinite(made).all():
        raise InputError(
            f"basis={type(transformer).__name__}() must give one row of finite numbers for each row of the protected "
            f"columns, and gave the shape {made.shape}."
        )
    return Transformed(tuple(coders), fitted, made.shape[1])


def code(coders: Sequence[Numeric | Categorical], rows: TableRows, unseen: Unseen) -> tuple[Array, dict[str, int]]:
    """Columns (n, d) as the coders write them, and pooled rows by column."""
    out = np.zeros((rows.n, sum(len(coder.names) for coder in coders)))
    pooled: dict[str, int] = {}
    start = 0
    for coder in coders:
        stop = start + len(coder.names)
        pooled |= coder.encode(rows, out[:, start:stop], unseen)
        start = stop
    return out, pooled


def _dense(values: Any) -> Array:
    return np.asarray(values.toarray() if hasattr(values, "toarray") else values, dtype=np.float64)
