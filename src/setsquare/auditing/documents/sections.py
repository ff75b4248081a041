"""Sections made from audits, scores and certificates: effects, bounds, performance, certificate."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

from setsquare.auditing.evaluations.records import Effect, Evaluation, Test
from setsquare.document import Section, section, table
from setsquare.document.formats import capital, joined, percent, term_name
from setsquare.glm.certificate import TRAINING_ROWS

if TYPE_CHECKING:
    from setsquare.auditing.certificate import Certificate, ColumnBound
    from setsquare.auditing.comparison.metric import Interval
    from setsquare.auditing.comparison.performance import Score
    from setsquare.auditing.result import AuditResult
    from setsquare.glm.solver import Certificate as FitCertificate

Audits: TypeAlias = "Mapping[str, AuditResult]"
Scores: TypeAlias = "Mapping[str, Sequence[Score]]"
#: Largest number of marks in a readable figure.
MOST_MARKS = 40
#: Names of effects on the scale of the family's link; the others are differences.
_SCALES = {"odds ratio": "log odds ratio", "rate ratio": "log rate ratio"}
_METRICS = {"auc": "AUC", "rmse": "RMSE", "r2": "R²", "brier": "Brier score"}


def sources_of(audit: AuditResult) -> list[str]:
    """Names of the protected columns that were audited."""
    effects = (effect.source for evaluation in audit.evaluations for effect in evaluation.effects)
    tests = (test.name for evaluation in audit.evaluations for test in evaluation.by_source)
    return list(dict.fromkeys([*(bound.source for bound in audit.certificate.columns), *tests, *effects]))


def effects(audits: Audits) -> Section:
    """Effects with intervals, and the tests, of each evaluation model."""
    names = dict.fromkeys(evaluation.name for audit in audits.values() for evaluation in audit.evaluations)
    tables: list[dict[str, Any]] = []
    figures: list[dict[str, Any]] = []
    text: list[str] = []
    units = {one.term: one for audit in audits.values() for one in audit.certificate.columns}
    for name in names:
        models = {side: e for side, audit in audits.items() for e in audit.evaluations if e.name == name}
        kind = _effect_kind(name, audits)
        title = next(iter(models.values())).title
        if any(model.effects for model in models.values()):
            own = {
                side: [_shown(e, units if name in ("glm", "linear") else {}) for e in m.effects]
                for side, m in models.items()
            }
            figures += _forest(title, kind, own)
            tables.append(_effect_table(title, kind, own))
            if name in ("glm", "linear") and not text:
                text.append(_how_to_read(kind, audits))
        tables.append(_test_table(title, models, audits))
    text += ["The verdict rests on the adjusted p-values."] if tables else []
    title = "Effects of the protected columns"
    return section("effects", title, text=text, tables=tables, figures=figures, detail=len(audits) > 1)


def _shown(effect: Effect, units: Mapping[str, ColumnBound]) -> Effect:
    """An effect under the name that readers see, per standard deviation of a column that is not a group."""
    unit = units.get(effect.term)
    if unit is None or unit.scale == 1.0:
        return replace(effect, term=term_name(effect.term, effect.source))
    estimate, error, low, high = (
        value * unit.scale for value in (effect.estimate, effect.std_error, effect.ci_low, effect.ci_high)
    )
    term = f"{effect.term} (per {unit.scale:.3g})"
    return replace(effect, term=term, estimate=estimate, std_error=error, ci_low=low, ci_high=high)


def references_of(audits: Audits) -> dict[str, str]:
    """Reference group of the effects of each categorical column."""
    return dict(pair for audit in audits.values() for pair in audit.references)


def _how_to_read(kind: str, audits: Audits) -> str:
    references = references_of(audits)
    listed = ", ".join(f"{source}: {level}" for source, level in references.items())
    groups = f"Each group is compared with the reference group ({listed}). " if references else ""
    scaled = any(one.scale != 1.0 for audit in audits.values() for one in audit.certificate.columns)
    numeric = "Effects of numeric columns are per standard deviation. " if scaled else ""
    return (
        f"Each effect is the {kind} in the predictions for one protected column, holding the others fixed. "
        f"{groups}{numeric}Zero means no effect."
    )


def _effect_kind(name: str, audits: Audits) -> str:
    if name not in ("glm", "linear"):
        return "effect"
    kinds = [audit.certificate.effect_kind for audit in audits.values() if audit.certificate.effect_kind]
    return _SCALES.get(kinds[-1] if kinds and name == "glm" else "", "difference")


def _effect_table(title: str, kind: str, models: Mapping[str, Sequence[Effect]]) -> dict[str, Any]:
    ratio = {shown: name for name, shown in _SCALES.items()}.get(kind)
    rows = []
    for side, own in models.items():
        for e in own:
            known = ratio and not math.isnan(e.estimate)
            ends = [_exp(value) for value in (e.estimate, e.ci_low, e.ci_high)] if known else None
            rows.append([e.term, side, ends, e.estimate, e.std_error, e.statistic, e.ci_low, e.ci_high, e.p_value])
    numbers = ("number", kind, "std. error", "statistic", "low", "high")
    columns = [("text", "column", "model"), ("interval", ratio or "ratio"), numbers, ("p", "p")]
    return table(f"Effects. {capital(title)}", columns, _by_first(rows), detail=("std. error", "statistic"))


def _exp(value: float) -> float:
    return math.exp(value) if value < 700.0 else math.inf


def shown_tests(evaluation: Evaluation) -> tuple[Test, ...]:
    """Tests in display order; the joint test of shape only summarises its parts, so it is omitted."""
    return evaluation.further or evaluation.tests if evaluation.name == "shape" else evaluation.tests


def _test_table(title: str, models: Mapping[str, Evaluation], audits: Audits) -> dict[str, Any]:
    rows = []
    for side, evaluation in models.items():
        adjusted = {m.test.name: m.adjusted for m in audits[side].members if m.evaluation.name == evaluation.name}
        for test in shown_tests(evaluation):
            p = adjusted.get(test.name, math.nan)
            rows.append([test.name, side, test.statistic, test.df, test.p_value, p, test.method])
    columns = [("text", "tested", "model"), ("number", "statistic"), ("plain", "df"), ("p", "p", "p (adjusted)")]
    columns.append(("text", "method"))
    return table(f"Tests. {capital(title)}", columns, _by_first(rows), detail=("method",))


def _by_first(rows: list[list[Any]]) -> list[list[Any]]:
    """Sort the rows by column; the sort is stable, so the models keep their order."""
    order = {term: j for j, term in enumerate(dict.fromkeys(row[0] for row in rows))}
    return sorted(rows, key=lambda row: order[row[0]])


def _forest(title: str, kind: str, models: Mapping[str, Sequence[Effect]]) -> list[dict[str, Any]]:
    """Marks of a forest plot: the largest effects where there are too many."""
    found: dict[str, dict[str, Effect]] = {}
    for side, own in models.items():
        for effect in own:
            if math.isfinite(effect.estimate):
                found.setdefault(effect.term, {})[side] = effect
    if not found:
        return []
    size = {term: max(abs(e.statistic) for e in own.values()) for term, own in found.items()}
    largest = set(sorted(found, key=lambda term: -size[term] if size[term] == size[term] else 0.0)[:MOST_MARKS])
    rows = [
        {
            "label": term,
            "marks": [
                {"side": side, "value": e.estimate, "low": e.ci_low, "high": e.ci_high, "p": e.p_value}
                for side, e in own.items()
            ],
        }
        for term, own in found.items()
        if term in largest
    ]
    left = len(found) - len(rows)
    more = f" The {left} smallest effects are in the table only." if left else ""
    about = f"Estimates with their confidence intervals, {title}; the vertical line marks no effect.{more}"
    return [
        {
            "kind": "forest",
            "title": "Effects with confidence intervals",
            "summary": about,
            "axis": kind,
            "sides": list(models),
            "rows": rows,
        }
    ]


def bounds(certificates: Mapping[str, Certificate]) -> Section | None:
    """The largest effects that an audit does not rule out, by group."""
    rows: list[list[Any]] = []
    marks: dict[str, list[dict[str, Any]]] = {}
    kind = next((c.effect_kind for c in reversed(list(certificates.values())) if c.effect_kind), "effect")
    for side, certificate in certificates.items():
        for b in certificate.columns:
            name = term_name(b.term, b.source)
            rows.append([name, side, b.n_group, b.correlation, b.correlation_upper, b.effect, b.effect_upper, b.unit])
            marks.setdefault(name, []).append(
                {"side": side, "value": b.correlation, "low": b.correlation, "high": b.correlation_upper}
            )
    if not rows:
        return None
    confidence = percent(list(certificates.values())[-1].confidence)
    numbers = ("number", "|corr|", "|corr| at most", kind, f"{kind} at most")
    columns = [("text", "column", "model"), ("count", "rows"), numbers, ("text", "per")]
    left = max(len(marks) - MOST_MARKS, 0)
    more = f" {left} more are in the table only." if left else ""
    figure = {
        "kind": "bounds",
        "title": "Correlation with each protected column, and its upper bound",
        "summary": f"The dot is the correlation found, the end of the bar its upper bound ({confidence}).{more}",
        "axis": "absolute correlation",
        "sides": list(certificates),
        "rows": [{"label": term, "marks": own} for term, own in list(marks.items())[:MOST_MARKS]],
    }
    about = (
        "An audit can miss a dependence. These upper limits say how large it can be at most, each taken by itself with "
        f"{confidence} confidence. A ratio of 1 or a difference of 0 means no effect."
    )
    return section(
        "leakage",
        "Largest effects not ruled out",
        text=[about],
        figures=[figure],
        tables=[table("Upper bounds", columns, _by_first(rows), detail=("rows", "|corr|", kind))],
        detail=len(certificates) > 1,
    )


def performance(audits: Audits, scores: Scores) -> Section | None:
    """Scores of models side by side, differences to the first, and the trade-off against the correlation."""
    if len(scores) < 2:
        return None
    first = next(iter(scores))
    rows = []
    for name, own in scores.items():
        for one in own:
            change = (*_ends(one.difference), one.difference.p_value) if name != first else (math.nan,) * 4
            rows.append([metric_name(one.metric), name, *_ends(one.value), *change])
    differences = ("signed", f"against {first}", "diff. low", "diff. high")
    columns = [("text", "metric", "model"), ("number", "value", "low", "high"), differences, ("p", "p-value")]
    about = [which_is_better(scores[first]), "Differences are paired: both models predict the same rows."]
    return section(
        "performance",
        "Effect on performance",
        text=about,
        figures=_trade_off(audits, scores),
        tables=[
            table(
                f"Performance, and differences to {first}",
                columns,
                _by_first(rows),
                detail=("value", "low", "high"),
            )
        ],
    )


def which_is_better(scores: Sequence[Score]) -> str:
    """Sentence on the direction in which each metric is better."""
    up, down = (joined([metric_name(s.metric) for s in scores if s.higher_is_better is way]) for way in (True, False))
    if up and down:
        return f"Higher is better for {up}, lower for {down}."
    return f"Higher is better for {up}." if up else f"Lower is better for {down}."


def _trade_off(audits: Audits, scores: Scores) -> list[dict[str, Any]]:
    j = main_metric(scores)
    marks = [
        {
            "side": name,
            "x": audits[name].certificate.correlation,
            "x_high": audits[name].certificate.correlation_upper,
            "y": own[j].value.estimate,
            "low": own[j].value.ci_low,
            "high": own[j].value.ci_high,
        }
        for name, own in scores.items()
        if name in audits and math.isfinite(own[j].value.estimate + audits[name].certificate.correlation)
    ]
    if len(marks) < 2:
        return []
    metric = metric_name(next(iter(scores.values()))[j].metric)
    way = "up" if next(iter(scores.values()))[j].higher_is_better else "down"
    return [
        {
            "kind": "trade-off",
            "title": f"Trade-off: {metric} against correlation",
            "summary": f"Better is {way} and to the left. Bars are intervals, and upper bounds of the correlation.",
            "x_axis": "correlation with the protected columns",
            "y_axis": metric,
            "marks": marks,
            "sides": [mark["side"] for mark in marks],
        }
    ]


def main_metric(scores: Scores) -> int:
    """Position of the metric that stands for performance: AUC or R², if they are there."""
    metrics = [score.metric for score in next(iter(scores.values()))]
    return next((metrics.index(metric) for metric in ("auc", "r2") if metric in metrics), 0)


def metric_name(metric: str) -> str:
    """Display name of a metric."""
    return _METRICS.get(metric, metric)


def _ends(value: Interval) -> tuple[float, float, float]:
    return value.estimate, value.ci_low, value.ci_high


def certificate(found: FitCertificate | None) -> Section | None:
    """Certificate of the solver on the training rows."""
    if found is None:
        return None
    about = "Measured on the training rows after the fit, not taken from the solver. "
    if found.box is not None:
        about += "The predictions are not orthogonal to the protected columns; each correlation is bounded."
    elif found.budget and found.covariance_share is not None:
        about += (
            f"The predictions keep {found.covariance_share:.3g} of the covariance with the protected columns that they "
            f"would have without the constraint (budget {found.budget:g}): they are not orthogonal to them."
        )
    elif found.threshold is not None:
        about += (
            "The decisions are orthogonal to the protected columns there, up to smoothing; the probabilities are not."
        )
    elif found.orthogonal_on == TRAINING_ROWS:
        about += "The predictions are orthogonal to the protected columns there. On new rows a part of the correlation "
        about += "comes back: see the audit."
    else:
        about += "The predictions are orthogonal to the protected columns on new rows, not exactly on these rows."
    return section("certificate", "Certificate of the corrected model", text=[about], tables=[found.table()])
