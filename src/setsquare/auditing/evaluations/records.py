"""Result records of the evaluation models: effects of the protected columns, and their tests."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
from scipy import special

from setsquare._typing import Array
from setsquare.notes import Note, describe


@dataclass(frozen=True, slots=True)
class Effect:
    """Effect of one protected column; NaN where the data do not determine a number.

    Attributes
    ----------
    term, source : str
        ``race[Black]`` and the column that it comes from, ``race``.
    estimate, std_error, statistic, p_value, ci_low, ci_high : float
    """

    term: str
    source: str
    estimate: float
    std_error: float
    statistic: float
    p_value: float
    ci_low: float
    ci_high: float


EFFECT_COLUMNS = tuple(field.name for field in fields(Effect))


@dataclass(frozen=True, slots=True)
class Test:
    """A test of the hypothesis that some protected columns have no effect.

    Attributes
    ----------
    name : str
        ``all protected columns``, or the source column.
    statistic : float
    df : float
        Number of effects that are tested; NaN for a permutation test.
    p_value : float
    method : str
        How the p-value was found, in words.
    sources : tuple of str
        Protected columns that are tested, if different from the name.
    upper : float or None
        Upper confidence bound on the tested correlation, if computed.
    """

    __test__ = False  # not a pytest class

    name: str
    statistic: float
    df: float
    p_value: float
    method: str
    sources: tuple[str, ...] = ()
    upper: float | None = None


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One evaluation model, fitted to the predictions.

    Attributes
    ----------
    name : str
        ``glm``, ``linear``, ``shape``, ``relu``, ``forest``, ``tensor`` or ``independence``.
    title : str
        The model in words.
    effects : tuple of Effect
        One per protected column (and class).
    joint : Test
        Joint test of all protected columns, which the verdict is based on.
    by_source : tuple of Test
        Tests of each source column.
    further : tuple of Test
        Other tests that belong to this evaluation.
    notes : tuple of Note
        Notes for the reader.
    """

    name: str
    title: str
    effects: tuple[Effect, ...]
    joint: Test
    by_source: tuple[Test, ...] = ()
    further: tuple[Test, ...] = ()
    notes: tuple[Note, ...] = ()

    @property
    def tests(self) -> tuple[Test, ...]:
        """All tests in order: joint, by source column, further ones."""
        return (self.joint, *self.by_source, *self.further)

    def to_dict(self) -> dict[str, Any]:
        """Plain values; tuples become lists."""
        values = {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}
        return values | {"notes": list(map(describe, self.notes))}


ALL = "all protected columns"


def z_effect(term: str, source: str, estimate: float, std_error: float, df: float, confidence: float) -> Effect:
    """Effect with a normal (``df`` infinite) or t statistic; p-values are accurate down to 1e-300.

    Examples
    --------
    >>> effect = z_effect("age", "age", 2.0, 0.1, math.inf, 0.95)
    >>> round(effect.statistic, 6), f"{effect.p_value:.3g}"
    (20.0, '5.51e-89')
    """
    statistic = estimate / std_error if std_error > 0.0 else math.copysign(math.inf, estimate) if estimate else 0.0
    if math.isnan(std_error):
        return Effect(term, source, estimate, math.nan, math.nan, math.nan, math.nan, math.nan)
    half = float(critical_value(df, confidence)) * std_error
    p = two_sided(statistic, df)
    return Effect(term, source, estimate, std_error, statistic, p, estimate - half, estimate + half)


def two_sided(statistic: float, df: float) -> float:
    """Two-sided p-value of a z (``df`` infinite) or t statistic."""
    size = abs(statistic)
    return float(2.0 * (special.ndtr(-size) if math.isinf(df) else special.stdtr(df, -size)))


def critical_value(df: float, confidence: float) -> float:
    """Half the width of a two-sided interval, in standard errors."""
    share = 0.5 + 0.5 * confidence
    return float(special.ndtri(share) if math.isinf(df) else special.stdtrit(df, share))


def wald(name: str, estimate: Array, covariance: Array, df: float) -> Test:
    """Test that all of `estimate` is zero: chi-squared, or F with ``df`` residual degrees of freedom.

    Examples
    --------
    >>> wald("x", np.array([2.0, 0.0]), np.eye(2), math.inf).p_value.__round__(4)
    0.1353
    """
    if not len(estimate):
        return Test(name, math.nan, 0.0, math.nan, "nothing to test")
    spread = np.sqrt(np.maximum(np.diag(covariance), 0.0))
    if not (np.isfinite(spread).all() and np.isfinite(estimate).all()):
        return Test(name, math.nan, float(len(estimate)), math.nan, "not estimable")
    certain = bool(np.any(estimate[spread == 0.0] != 0.0))  # a nonzero effect with zero variance
    estimate, spread = estimate[spread > 0.0] / spread[spread > 0.0], spread[spread > 0.0]
    correlation = covariance[np.ix_(*2 * (np.flatnonzero(np.diag(covariance) > 0.0),))] / np.outer(spread, spread)
    values, vectors = np.linalg.eigh(correlation) if len(spread) else (np.ones(0), np.ones((0, 0)))
    along = vectors.T @ estimate
    kept = values > 1e-12 * values.max(initial=0.0)
    certain |= bool(np.any(np.abs(along[~kept]) > 1e-5 * max(1.0, float(np.linalg.norm(estimate)))))
    q = int(kept.sum())
    method = f"Wald, chi-squared({q})" if math.isinf(df) else f"Wald, F({q}, {df:g})"
    if certain or q == 0:
        return Test(name, math.inf if certain else 0.0, float(q), 0.0 if certain else 1.0, method)
    statistic = float(np.sum(along[kept] ** 2 / values[kept]))
    p = special.chdtrc(q, statistic) if math.isinf(df) else special.fdtrc(q, df, statistic / q)
    return Test(name, statistic, float(q), float(p), method)


def holm(p_values: Sequence[float] | Array) -> Array:
    """P-values adjusted by Holm (family-wise error rate). NaN stays NaN and is not counted.

    Examples
    --------
    >>> holm([0.01, 0.04, 0.03])
    array([0.03, 0.06, 0.06])
    """
    return _adjust(p_values, lambda p: np.minimum(1.0, np.maximum.accumulate(p * np.arange(len(p), 0, -1))))


def benjamini_hochberg(p_values: Sequence[float] | Array) -> Array:
    """P-values adjusted by Benjamini and Hochberg (false discovery rate).

    Examples
    --------
    >>> benjamini_hochberg([0.01, 0.04, 0.03])
    array([0.03, 0.04, 0.04])
    """
    return _adjust(p_values, lambda p: np.minimum.accumulate((p * len(p) / np.arange(1, len(p) + 1))[::-1])[::-1])


def _adjust(p_values: Sequence[float] | Array, rule: Callable[[Array], Array]) -> Array:
    p = np.asarray(p_values, dtype=np.float64)
    adjusted = np.full(p.shape, np.nan)
    known = np.flatnonzero(~np.isnan(p))
    order = known[np.argsort(p[known], kind="stable")]
    if len(order):
        adjusted[order] = np.minimum(rule(p[order]), 1.0)
    return adjusted
