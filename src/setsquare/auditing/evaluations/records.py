"""Result records of the evaluation models: effects of the protected columns, their tests, and adjusted p-values.

The tests that decide (:func:`adjust`) share the probability of any false alarm. The joint test of the effects receives
most of it; the tests of each source column, and those of curvature, combinations and spread, share the rest. A test
that rejects passes its share on: the joint test to the source columns, the others back to it (a graphical procedure,
Bretz et al. 2009).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
from scipy import special

from setsquare._typing import Array
from setsquare.notes import Note, describe

#: Share of the error rate for the tests of shape; share of the rest for single source columns.
SHAPE_SHARE, SOURCE_SHARE = 0.15, 0.06
#: Share that a source column passes on to the tests outside its own evaluation model.
LITTLE = 1e-3


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


@dataclass(frozen=True, slots=True)
class Member:
    """A test of the family, with its adjusted p-value."""

    evaluation: Evaluation
    test: Test
    adjusted: float


def adjust(evaluations: Sequence[Evaluation]) -> tuple[Member, ...]:
    """Adjusted p-values of the joint tests, the source columns and the tests of shape; untested ones are absent.

    Examples
    --------
    >>> sources = (Test("age", 9.0, 1.0, 0.003, ""), Test("sex", 0.1, 1.0, 0.75, ""))
    >>> effects = Evaluation("glm", "", (), Test("all", 9.1, 2.0, 0.01, ""), sources)
    >>> [round(member.adjusted, 3) for member in adjust([effects])]
    [0.011, 0.011, 0.75]
    """
    members: list[tuple[Evaluation, Test]] = []
    weights: list[float] = []
    has_shape = any(e.name == "shape" for e in evaluations)
    n_effects = sum(e.name != "shape" for e in evaluations)
    groups: list[list[int]] = []
    for evaluation in evaluations:
        if evaluation.name == "shape":
            share, tests, parts = SHAPE_SHARE if n_effects else 1.0, evaluation.further, evaluation.further
        else:
            share = (1.0 - SHAPE_SHARE if has_shape else 1.0) / n_effects
            tests = (evaluation.joint, *_sources(evaluation))
            parts = tests[1:]
        known = [test for test in tests if not math.isnan(test.p_value)]
        parts = tuple(test for test in known if test in parts)
        for test in known:
            whole = SOURCE_SHARE if len(parts) < len(known) else 1.0
            weights.append(share * (whole / len(parts) if test in parts else 1.0 - SOURCE_SHARE * bool(parts)))
        groups.append(list(range(len(members), len(members) + len(known))))
        members += [(evaluation, test) for test in known]
    p = np.asarray([test.p_value for _, test in members])
    adjusted = graphical(p, np.asarray(weights) / max(sum(weights), 1e-300), _handing_on(members, groups))
    for group in groups:
        if group and members[group[0]][0].name != "shape":  # if one column has an effect, all together have one
            adjusted[group[0]] = max(adjusted[group].min(), p[group[0]])
    return tuple(Member(*member, float(value)) for member, value in zip(members, adjusted, strict=True))


def _sources(evaluation: Evaluation) -> tuple[Test, ...]:
    """Tests of the source columns; a single one is the joint test itself."""
    return evaluation.by_source if len(evaluation.by_source) > 1 else ()


def _handing_on(members: Sequence[tuple[Evaluation, Test]], groups: Sequence[Sequence[int]]) -> Array:
    """Transition weights of a test that rejects: within its group first, then to the others."""
    G = np.zeros((len(members),) * 2)
    for group in groups:
        outside = [i for i in range(len(members)) if i not in group]
        for i in group:
            inside = [j for j in group if j != i]
            if members[i][0].name != "shape" and len(group) > 1 and i == group[0]:
                inside = list(group[1:])
            for targets, share in ((inside, 1.0 - LITTLE if outside else 1.0), (outside, LITTLE if inside else 1.0)):
                for j in targets:
                    G[i, j] = share / len(targets)
    return G


def graphical(p: Array, weights: Array, G: Array) -> Array:
    """Adjusted p-values of a graphical procedure with the transition matrix ``G`` (m, m).

    Examples
    --------
    >>> everywhere = np.full((3, 3), 0.5) - 0.5 * np.eye(3)
    >>> graphical(np.array([0.01, 0.04, 0.03]), np.full(3, 1 / 3), everywhere).round(12)  # Holm's procedure
    array([0.03, 0.06, 0.06])
    """
    w, G = weights.astype(np.float64).copy(), G.copy()
    adjusted, left, largest = np.full(len(p), np.nan), list(range(len(p))), 0.0
    while left:
        ratios = [p[i] / w[i] if w[i] > 0.0 else math.inf for i in left]
        j = left.pop(int(np.argmin(ratios)))
        largest = max(largest, min(float(min(ratios)), 1.0))
        adjusted[j] = largest
        w += w[j] * G[j]
        through = 1.0 - G[:, j] * G[j]
        G = (
            np.where(through > 0.0, 1.0, 0.0)[:, None]
            * (G + np.outer(G[:, j], G[j]))
            / np.maximum(through, 1e-12)[:, None]
        )
        np.fill_diagonal(G, 0.0)
        G[:, j] = 0.0
    return adjusted
