"""Generalised linear evaluation model: regression of the predictions on the protected columns.

With an intercept, all effects are zero exactly when every protected column is uncorrelated with the predictions, in any
family and with any link. Predictions are fractions, not outcomes, so sandwich standard errors are the default.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from setsquare._typing import Array
from setsquare.auditing.cells import CellRows
from setsquare.auditing.evaluations.agreement import settle_disagreement
from setsquare.auditing.evaluations.covariance import Covariance, covariance
from setsquare.auditing.evaluations.records import ALL, Effect, Evaluation, Test, wald, z_effect
from setsquare.auditing.evaluations.score import (
    answer,
    larger,
    largest_score,
    questions_of,
    sample_of,
    select_tested,
    signed,
    summed_rows_of,
)
from setsquare.auditing.protected import Predictions, Protected, list_names
from setsquare.document.formats import joined
from setsquare.families import Family, contrasts
from setsquare.glm.certify import settle_status
from setsquare.glm.outcome_summary import OutcomeSummary
from setsquare.glm.preparation import Prepared, prepare
from setsquare.glm.problem import Problem
from setsquare.glm.solution import Status
from setsquare.glm.sqp import Settings, solve_sqp
from setsquare.notes import Note
from setsquare.projection.moments import Ranges
from setsquare.rows.parallel import single_threaded_blas

#: Ordinary names of the regression of each family, with the canonical link and with another one.
REGRESSIONS = {
    "gaussian": ("linear regression", "Gaussian regression"),
    "binomial": ("logistic regression", "binomial regression"),
    "multinomial": ("multinomial logistic regression", "multinomial regression"),
    "poisson": ("Poisson regression", "Poisson regression"),
    "gamma": ("gamma regression", "gamma regression"),
    "tweedie": ("Tweedie regression", "Tweedie regression"),
    "negative_binomial": ("negative binomial regression", "negative binomial regression"),
}
#: Linear predictors beyond this give a probability or a count that equals its limit in floating point.
FAR = 12.0
#: Leverage above which an effect rests on too few rows: groups of fewer than 20 rows.
FEW = 0.05
#: Share of one row in the variance of a test above which it dominates the test.
DOMINANT = 0.25
#: Effects below this share of the largest one count as zero.
ROUNDING = 1e-12


@dataclass(frozen=True, slots=True)
class Fit:
    """A fitted evaluation model.

    Attributes
    ----------
    coef : ndarray of shape (k, p)
        Effects; k is 1, or the number of classes minus one, as the first is the reference class. NaN where the data do
        not determine an effect, infinite where a group's predictions lie on the boundary of their range.
    cov : ndarray of shape (k * p, k * p)
        Their covariance, class by class.
    all, by_source : tests that effects are zero
    df : float
        Degrees of freedom of t statistics; infinite for normal ones.
    dispersion : float
    separated, undetermined : tuple of str
        Columns with an infinite effect, and columns determined by the others or the intercept.
    converged : bool
    """

    coef: Array
    cov: Array
    all: Test
    by_source: tuple[Test, ...]
    df: float
    dispersion: float
    separated: tuple[str, ...]
    undetermined: tuple[str, ...]
    converged: bool


def fit_glm(y: Predictions, protected: Protected, glm: Family, vcov: str = "HC3") -> Fit:
    """Fit the evaluation model of ``y``, means or shares of classes.

    Examples
    --------
    >>> import numpy as np
    >>> from setsquare.families import binomial
    >>> x = np.array([0.0, 0.0, 0.0, 1.0, 1.0, 1.0])
    >>> y = np.array([0.2, 0.3, 0.25, 0.5, 0.6, 0.4])
    >>> fit = fit_glm(y, Protected(x[:, None], ("x",), ("x",)), binomial)
    >>> round(float(fit.coef[0, 0]), 4)  # log(.5/.5) - log(.25/.75)
    1.0986
    """
    with single_threaded_blas(), np.errstate(over="ignore", invalid="ignore"):
        prepared = prepare(_problem(y, protected, glm, vcov))
        return _fit_prepared(prepared, protected, vcov, _total_weight(y, protected))


def _problem(y: Predictions, protected: Protected, glm: Family, vcov: str) -> Problem:
    if isinstance(y, OutcomeSummary):
        assert protected.elsewhere is not None
        return Problem.of_rows(protected.elsewhere, y, glm, protected.names, quasi=True)
    weight, names = protected.weight, protected.names
    rows = summed_rows_of(y, protected)
    if isinstance(rows, CellRows) and vcov.startswith("HC"):
        return Problem(rows.Z, rows.y[:, 0], family=glm, weight=rows.weight, quasi=True, feature_names=names)
    return Problem(protected.values, y, family=glm, weight=weight, quasi=True, feature_names=names)


def _total_weight(y: Predictions, protected: Protected) -> float:
    if isinstance(y, OutcomeSummary):
        return y.weight
    return float(protected.n_rows if protected.weight is None else protected.weight.sum())


def _fit_prepared(prepared: Prepared, protected: Protected, vcov: str, total_weight: float) -> Fit:
    glm = prepared.problem.family
    end = solve_sqp(prepared.objective, None, Settings(kkt=1e-7))
    status = settle_status(prepared, end)
    rough = status is Status.CONVERGED and end.trace[-1].kkt > 1e-11
    theta = _polish(prepared, end.theta) if rough else end.theta
    n = protected.n_rows
    cells_of = None if prepared.objective.rows.n_rows == n else n
    options: dict[str, Any] = {"cluster": protected.cluster, "cells_of": cells_of}
    V = covariance(prepared.objective, theta, vcov, total_weight=total_weight, **options)
    linear = glm.name == "gaussian" and glm.link == "canonical"
    separated = () if linear or status is Status.CONVERGED else _separated(prepared, theta, protected.found)
    fit = _summarise(prepared, theta, V, protected, separated)
    if status in (Status.CONVERGED, Status.FLAT) or separated:
        return fit
    return replace(fit, converged=False, coef=np.full_like(fit.coef, np.nan))  # a failed solver has no estimate


def _polish(prepared: Prepared, theta: Array) -> Array:
    """One more Newton step, for the last digits after the stopping rule."""
    model = prepared.objective.model(theta, np.zeros(0))
    polished = theta - np.linalg.solve(model.H, model.g)
    return polished if np.isfinite(polished).all() else theta


def _separated(prepared: Prepared, theta: Array, ranges: Ranges) -> tuple[str, ...]:
    """Columns with an infinite effect: all predictions of a group lie on the boundary of their range (separation)."""
    coef = prepared.coefficients(theta)[1].T
    reach = np.abs(coef).max(axis=1) * (ranges.high - ranges.low)
    return tuple(np.asarray(prepared.problem.feature_names, dtype=object)[reach > FAR])


def _summarise(
    prepared: Prepared, theta: Array, V: Covariance, protected: Protected, separated: tuple[str, ...]
) -> Fit:
    k, T = prepared.objective.n_predictors, prepared.to_coef
    m, names = T.shape[1], protected.names
    point = theta.reshape(k, m)
    inner = np.arange(k * m).reshape(k, m)[:, 1:].ravel()
    joint = wald(ALL, theta[inner], V.values[np.ix_(inner, inner)], V.df)
    D = np.eye(1) if not prepared.problem.family.is_vector else contrasts(k + 1)[1:] - contrasts(k + 1)[0]
    coef = D @ point @ T.T
    L = np.kron(D, T)
    cov = L @ V.values @ L.T
    kept = [j for j, name in enumerate(names) if name not in prepared.aliased]
    by_source = []
    for source in dict.fromkeys(protected.sources):
        columns = [j for j in kept if protected.sources[j] == source]
        index = [a * len(names) + j for a in range(len(D)) for j in columns]
        by_source.append(wald(source, coef.ravel()[index], cov[np.ix_(index, index)], V.df))
    lost = np.isin(np.asarray(names), prepared.aliased)
    coef = np.where(lost, np.nan, coef)
    far = np.isin(np.asarray(names), separated)
    coef = np.where(far & (np.abs(coef) > 0.0), np.copysign(np.inf, coef), coef)
    undetermined = tuple(name for name in names if name in prepared.aliased)
    return Fit(coef, cov, joint, tuple(by_source), V.df, V.dispersion, separated, undetermined, True)


def evaluate_glm(
    y: Predictions,
    protected: Protected,
    glm: Family,
    *,
    vcov: str = "HC3",
    confidence: float = 0.95,
    classes: tuple[str, ...] = (),
    seed: int = 0,
) -> tuple[Evaluation, Fit | None]:
    """Regress predictions ``y`` on the protected columns by a generalised linear model."""
    y, tested = select_tested(y, protected)
    nothing = _nothing(tested, _regression(glm, tested)), None
    if not tested.varies.any():
        return nothing
    if not isinstance(y, OutcomeSummary):
        if np.ptp(y, axis=0).max() == 0.0:
            return nothing
        if y.ndim == 2:
            classes = classes if len(classes) == y.shape[1] else tuple(str(c) for c in range(y.shape[1]))
            there = np.abs(y).sum(axis=0) > 0.0  # a class may have been in the rows that were left out
            y, classes = y[:, there], tuple(name for name, here in zip(classes, there, strict=True) if here)
    fit = _without_lost_reference(fit_glm(y, tested, glm, vcov), protected, tested)
    return _conclude(y, fit, tested, glm, vcov, confidence, classes, seed), fit


def _conclude(
    y: Predictions,
    fit: Fit,
    tested: Protected,
    glm: Family,
    vcov: str,
    confidence: float,
    classes: tuple[str, ...],
    seed: int,
) -> Evaluation:
    """Effects and tests of a fitted model; score tests where Wald tests are not reliable.

    Wald tests estimate the variance of a rare group from the group itself, so they are used only as far as the
    equal-variance tests agree.
    """
    joint, by_source, single, notes = fit.all, fit.by_source, None, list(tested.notes)
    reason = _why_not_wald(fit, tested, vcov, glm, y)
    if reason or vcov != "model":
        alone = bool(fit.separated) or not fit.converged
        questions = questions_of(tested.names, tested.sources, single=alone)
        whole, *found = answer(sample_of(y, tested), questions, robust=bool(reason))
        sources = found[: len(by_source)]
        if reason:
            # The score equations are the same for every family: their test has the same hypothesis and always exists.
            joint, by_source = whole.robust, tuple(one.robust for one in sources)
            single = tuple(signed(one) for one in found[len(sources) :]) if alone else None
            text = "{reason}: joint tests are therefore score tests of the same hypothesis."
            notes.append(Note("score-tests", text, reason=reason))
        joint = settle_disagreement(y, tested, joint, whole.pooled, np.random.default_rng(seed))
        by_source = tuple(larger(own, one.pooled) for own, one in zip(by_source, sources, strict=True))
        if len(by_source) == 1:
            by_source = (replace(joint, name=by_source[0].name),)  # with one source this is the joint test
    if fit.undetermined:
        text = "{columns}: constant, or determined by the other protected columns; no effect of their own."
        notes.append(Note("undetermined-columns", text, columns=list_names(fit.undetermined)))
    title = f"{_regression(glm, tested)}, {_errors(vcov, fit)}"
    effects = _effects(fit, single, tested, confidence, classes)
    return Evaluation("glm", title, effects, joint, by_source, notes=tuple(notes))


def _without_lost_reference(fit: Fit, before: Protected, after: Protected) -> Fit:
    """Set effects to NaN where the reference level was dropped: they would be relative to another level."""
    if after is before:
        return fit
    varying = set(np.asarray(after.names, dtype=object)[after.varies])
    lost = {name for name in fit.undetermined if name in varying and name not in before.basis.collinear}
    sources = {s for name, s in zip(after.names, after.sources, strict=True) if name in lost}
    gone = np.asarray([source in sources for source in after.sources])
    return replace(fit, coef=np.where(gone, np.nan, fit.coef))


def _nothing(protected: Protected, title: str) -> Evaluation:
    """Evaluation without tests, if no rows are left to compare."""
    effects = [Effect(*pair, *6 * (math.nan,)) for pair in zip(protected.names, protected.sources, strict=True)]
    names = dict.fromkeys((ALL, *protected.sources))
    joint, *by_source = (Test(name, math.nan, 0.0, math.nan, "nothing to test") for name in names)
    return Evaluation("glm", title, tuple(effects), joint, tuple(by_source), notes=protected.notes)


def _why_not_wald(fit: Fit, protected: Protected, vcov: str, glm: Family, y: Predictions) -> str:
    """Reason why Wald tests are not reliable; empty if they are."""
    if fit.separated:
        return (
            f"The effects of {', '.join(fit.separated)} are infinite, because a group's predictions lie on the "
            "boundary of their range"
        )
    if not fit.converged:
        return f"The model did not converge ({glm}), so effects and their bounds are not known"
    if not all(math.isfinite(test.statistic) or math.isnan(test.statistic) for test in (fit.all, *fit.by_source)):
        return "Some group has no spread in its predictions, which would make its effect look certain"
    if vcov == "cluster":
        return "A group may lie within a few clusters"
    if vcov == "model":
        return ""
    if protected.max_leverage > FEW:
        return f"Some effects rest on fewer than {1 / FEW:.0f} rows, where Wald tests reject too often"
    if largest_score(y, protected) > DOMINANT:
        return "A few predictions are so extreme that they outweigh the others, where Wald tests reject too often"
    return ""


def _effects(
    fit: Fit, single: tuple[Test, ...] | None, protected: Protected, confidence: float, classes: tuple[str, ...]
) -> tuple[Effect, ...]:
    """One effect per column (and class), with the statistics of `single` tests if given."""
    errors = np.sqrt(np.maximum(np.diag(fit.cov), 0.0)).reshape(fit.coef.shape)
    reach = np.where(np.isfinite(fit.coef), np.abs(fit.coef) * protected.spreads, 0.0)
    # Two classes with equal predictions differ by rounding, which would be significant with a zero standard error.
    coef = np.where(np.isfinite(fit.coef) & (reach <= ROUNDING * reach.max()), 0.0, fit.coef)
    effects = []
    for a, row in enumerate(coef):
        suffix = f" ({classes[a + 1]} vs {classes[0]})" if classes else ""
        for j, (name, source) in enumerate(zip(protected.names, protected.sources, strict=True)):
            estimate, error = float(row[j]), float(errors[a, j])
            lost = math.isnan(estimate) or math.isinf(estimate)
            effect = z_effect(name + suffix, source, estimate, math.nan if lost else error, fit.df, confidence)
            if single is not None and name not in fit.undetermined:
                effect = replace(effect, statistic=single[j].statistic, p_value=single[j].p_value)
            effects.append(effect)
    return tuple(effects)


def _errors(vcov: str, fit: Fit) -> str:
    if vcov == "model":
        return f"model-based standard errors (dispersion {fit.dispersion:.4g})"
    return "cluster-robust standard errors" if vcov == "cluster" else f"{vcov} standard errors"


def _regression(glm: Family, protected: Protected) -> str:
    """Name of the regression as a statistician writes it, with its columns."""
    own, other = REGRESSIONS[glm.name]
    parameter = {"tweedie": "power", "negative_binomial": "theta"}.get(glm.name, "parameter")
    details = [] if glm.parameter is None else [f"{parameter} {glm.parameter:g}"]
    details += [] if glm.link == "canonical" else [f"{glm.link} link"]
    name = own if glm.link == "canonical" else other
    about = f" ({', '.join(details)})" if details else ""
    return f"{name}{about} of the predictions on {joined(list(dict.fromkeys(protected.sources)))}"
