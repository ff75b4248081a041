"""Bounds for models fitted to the protected columns, from the pooled predictions of folds.

Let ``e`` be the sampling error of the covariances of predictions and protected columns. An ordinary model has some
correlation ``a`` on new rows, and its pooled folds show ``a + e``; the bound of :mod:`setsquare.auditing.bounds`
inverts that distribution. A model with a constraint is orthogonal on its training rows, so on new rows it is off by
their error: ``a - e``. Where a fold has too many rows of a group, the training rows of its model have too few; over the
folds the two errors cancel, and the pooled folds show ``a`` almost without error, often nearly zero. The bound is then
a quantile of the length of ``a - e``. It is never tighter than the ordinary bound, so it also holds for a model that
was fitted to the columns without a constraint.

For our own generalised linear models the correlation on new rows is known from leave-one-out predictions instead, with
its covariance, and without refits (:mod:`setsquare.glm.new_rows_bound`): :func:`take_left_out`.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import numpy as np
from scipy import special

from setsquare.auditing.certificate import Certificate, ColumnBound
from setsquare.glm.new_rows_bound import NewRows

#: Above this rank the normal approximation is exact to all relevant digits.
NORMAL = 1e3


def allow_for_fit(certificate: Certificate, growth: float, rank: int | None = None) -> Certificate:
    """Widen the bounds of pooled folds to those of a model that was fitted to the protected columns.

    Parameters
    ----------
    certificate : Certificate
        Certificate of the pooled predictions.
    growth : float
        Audited rows over training rows of a fold: the error is that of the rows that a model was fitted to.
    rank : int, optional
        Number of independent protected columns; by default they all are.

    Examples
    --------
    >>> column = ColumnBound("age", "age", 0.0, 0.0822, "sd (1)", 1.0, 1.1, None, error=0.05)
    >>> widened = allow_for_fit(Certificate(400, 1, 0.95, 0.0, 0.0822, "odds ratio", (column,)), 1.25)
    >>> round(widened.correlation_upper, 3), round(widened.columns[0].effect_upper, 3)
    (0.11, 1.135)
    """
    confidence, grown = certificate.confidence, math.sqrt(growth)
    columns, errors = [], []
    for column in certificate.columns:
        error = grown * column.error
        upper = _widen(column.correlation, column.correlation_upper, error, 1, confidence)
        effect = _widen_effect(column, grown, confidence, ratio=certificate.effect_kind.endswith("ratio"))
        columns.append(column.widened(upper, effect, grown))
        errors += [] if math.isnan(error) else [error]
    # For all columns together use the noisiest, as in the bound that is widened.
    noisiest = max(errors, default=math.nan)
    rank = len(errors) if rank is None else rank
    length = max(certificate.correlation, certificate.correlation_sample)  # nearly without error: subtract nothing
    upper = _widen(length, certificate.correlation_upper, noisiest, rank, confidence)
    references = tuple(
        one.widened(
            _widen(one.correlation, one.correlation_upper, grown * one.error, 1, confidence), one.effect_upper, grown
        )
        for one in certificate.references
    )
    return replace(certificate, correlation_upper=min(upper, 1.0), columns=tuple(columns), references=references)


def take_left_out(certificate: Certificate, found: NewRows) -> Certificate:
    """Replace bounds by those of leave-one-out predictions, which are about the model that was fitted to all rows.

    The error over all columns is that of these columns, instead of the noisiest one for each. Bounds that leave-one-out
    sums do not give, such as those of reference groups among three or more, stay those of the folds.
    """
    n_columns = Counter(column.source for column in certificate.columns)
    of_source = {column.source: found.uppers.get(column.term) for column in certificate.columns}

    def take(column: ColumnBound, upper: float | None) -> ColumnBound:
        known = column.correlation if upper is None else max(upper, column.correlation)
        return column if upper is None else column.widened(known, column.effect_upper, 1.0)

    return replace(
        certificate,
        correlation_upper=max(found.upper, certificate.correlation),
        columns=tuple(take(column, found.uppers.get(column.term)) for column in certificate.columns),
        references=tuple(
            take(one, of_source.get(one.source) if n_columns[one.source] == 1 else None)
            for one in certificate.references
        ),
    )


def scale_error(estimate: float, upper: float, grown: float) -> float:
    """Upper bound on a correlation whose standard error is `grown` times the one that its bound assumes.

    Examples
    --------
    >>> round(scale_error(0.0, 0.1, 1.2), 4), round(scale_error(0.5, 0.6, 1.2), 4)
    (0.12, 0.62)
    """
    near_zero = grown * upper if 4.0 * estimate <= upper else 0.0  # there the bound is proportional to the error
    return min(1.0, max(upper, estimate + grown * (upper - estimate), near_zero))


def _widen(estimate: float, upper: float, error: float, rank: int, confidence: float) -> float:
    """Quantile of the length of ``a - e``, where ``a`` has the length `estimate`; not below the original bound."""
    if not error > 0.0:
        return upper
    length, z = estimate / error, float(special.ndtri(confidence))
    quantile = length + z if length > NORMAL else math.sqrt(special.chndtrix(confidence, rank, length**2))
    return max(upper, error * quantile)


def _widen_effect(column: ColumnBound, grown: float, confidence: float, *, ratio: bool) -> float:
    """The same for an odds ratio, rate ratio or difference, whose bound is the estimate plus z standard errors."""
    z = float(special.ndtri(confidence))
    if not math.isfinite(column.effect_upper) or z <= 0.0:
        return column.effect_upper
    effect, upper = (math.log(x) if ratio else x for x in (column.effect, column.effect_upper))
    widened = _widen(effect, upper, grown * (upper - effect) / z, 1, confidence)
    with np.errstate(over="ignore"):
        return float(np.exp(widened)) if ratio else widened
