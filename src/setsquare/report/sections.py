"""Sections that come from audits and certificates alone: summary, effects, leakage, performance, certificate."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from setsquare.auditing import AuditResult, Effect, Evaluation, holm
from setsquare.auditing.comparison.compare import Score
from setsquare.auditing.comparison.performance import Interval
from setsquare.auditing.render import number, p_value, positive
from setsquare.glm.solution import FEW_CORRELATION, FEW_ROWS, MAX_CORRELATION, MAX_KKT, MIN_CURVATURE
from setsquare.glm.solver import Certificate
from setsquare.report.record import Kind, Section, section, table

Audits: TypeAlias = Mapping[str, AuditResult]
Scores: TypeAlias = Mapping[str, Sequence[Score]]
#: Marks beyond this do not fit into a figure that can be read.
MOST_MARKS = 40
#: Evaluation models whose effects are on the scale of the family's link; those of the others are differences.
_SCALES = {"odds ratio": "log odds ratio", "rate ratio": "log rate ratio"}


def summary(audits: Audits, scores: Scores) -> Section:
    """The main numbers, a column a model."""
    bounds = [audit.certificate for audit in audits.values()]
    rows = [
        ["Verdict", *(str(audit.verdict) for audit in audits.values())],
        ["p-value (adjusted)", *(p_value(audit.p_adjusted) for audit in audits.values())],
        ["Correlation with the protected columns", *(number(c.correlation) for c in bounds)],
        ["Correlation, at most", *(number(c.correlation_upper) for c in bounds)],
    ]
    for j, score in enumerate(next(iter(scores.values()), ())):
        known = [scores[name][j].value.estimate if name in scores else math.nan for name in audits]
        rows.append([metric_name(score.metric), *map(number, known)])
    last = list(audits.values())[-1]
    about = (
        f"{last.n:,} rows{positive(last)}; {last.setting}; intervals and bounds hold with {100 * last.confidence:g} % "
        "confidence. The correlation is the multiple one with all protected columns together."
    )
    columns: list[tuple[str, Kind]] = [("", "text"), *((name, "text") for name in audits)]
    return section("summary", "In short", text=[about], tables=[table("The main numbers", columns, rows)])


def effects(audits: Audits) -> Section | None:
    """Effects before and after, with intervals, and the tests."""
    names = dict.fromkeys(evaluation.name for audit in audits.values() for evaluation in audit.evaluations)
    tables: list[dict[str, Any]] = []
    figures: list[dict[str, Any]] = []
    text: list[str] = []
    for name in names:
        models = {side: e for side, audit in audits.items() for e in audit.evaluations if e.name == name}
        kind = _effect_kind(name, audits)
        title = next(iter(models.values())).title
        if any(model.effects for model in models.values()):
            figures += _forest(title, kind, models)
            tables.append(_effect_table(title, kind, models))
            if name in ("glm", "linear") and not text:
                text.append(
                    f"Each effect is a {kind} in the prediction that goes with one protected column, the others held "
                    "fixed. A level is compared with the reference level of its column, which has no row. Zero means "
                    "no effect."
                )
    tables.append(_test_table(audits))
    return section("effects", "Effects of the protected columns", text=text, tables=tables, figures=figures)


def _effect_kind(name: str, audits: Audits) -> str:
    if name not in ("glm", "linear"):
        return "effect"
    kinds = [audit.certificate.effect_kind for audit in audits.values() if audit.certificate.effect_kind]
    return _SCALES.get(kinds[-1] if kinds and name == "glm" else "", "difference")


def _effect_table(title: str, kind: str, models: Mapping[str, Evaluation]) -> dict[str, Any]:
    rows = []
    for side, model in models.items():
        adjusted = holm([effect.p_value for effect in model.effects])
        for e, p in zip(model.effects, adjusted, strict=True):
            rows.append([e.term, side, e.estimate, e.std_error, e.ci_low, e.ci_high, e.p_value, float(p)])
    order = {term: j for j, term in enumerate(dict.fromkeys(row[0] for row in rows))}
    rows.sort(key=lambda row: order[row[0]])  # a stable sort: models stay in their order
    columns: list[tuple[str, Kind]] = [
        ("column", "text"),
        ("model", "text"),
        (kind, "number"),
        ("std. error", "number"),
    ]
    columns += [("low", "number"), ("high", "number"), ("p", "p"), ("p (Holm)", "p")]
    return table(f"Effects. {title[:1].upper()}{title[1:]}", columns, rows)


def _test_table(audits: Audits) -> dict[str, Any]:
    rows = []
    for side, audit in audits.items():
        adjusted = {(m.evaluation.name, m.test.name): m.adjusted for m in audit.members}
        for evaluation in audit.evaluations:
            for test in (evaluation.joint, *evaluation.by_source, *evaluation.further):
                p = adjusted.get((evaluation.name, test.name), math.nan)
                rows.append([test.name, side, evaluation.name, test.statistic, test.df, test.p_value, p, test.method])
    columns: list[tuple[str, Kind]] = [("no effect of", "text"), ("model", "text"), ("evaluation", "text")]
    columns += [("statistic", "number"), ("df", "plain"), ("p", "p"), ("p (adjusted)", "p"), ("method", "text")]
    return table("Tests. Adjusted p-values decide the verdict", columns, rows)


def _forest(title: str, kind: str, models: Mapping[str, Evaluation]) -> list[dict[str, Any]]:
    """Marks of a forest plot: the largest effects where there are too many."""
    found: dict[str, dict[str, Effect]] = {}
    for side, model in models.items():
        for effect in model.effects:
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
    about = f"Estimates with their confidence intervals, {title}; the vertical line is no effect.{more}"
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


def leakage(audits: Audits) -> Section | None:
    """Upper bounds of what is left, level by level."""
    rows: list[list[Any]] = []
    marks: dict[str, list[dict[str, Any]]] = {}
    kind = next(
        (a.certificate.effect_kind for a in reversed(list(audits.values())) if a.certificate.effect_kind), "effect"
    )
    for side, audit in audits.items():
        for b in audit.certificate.columns:
            rows.append([b.term, side, b.n_group, b.correlation, b.correlation_upper, b.effect, b.effect_upper, b.unit])
            marks.setdefault(b.term, []).append(
                {"side": side, "value": b.correlation, "low": b.correlation, "high": b.correlation_upper}
            )
    if not rows:
        return None
    order = {term: j for j, term in enumerate(marks)}
    rows.sort(key=lambda row: order[row[0]])
    confidence = 100 * list(audits.values())[-1].confidence
    columns: list[tuple[str, Kind]] = [("column", "text"), ("model", "text"), ("rows", "count"), ("|corr|", "number")]
    columns += [("|corr| at most", "number"), (kind, "number"), (f"{kind} at most", "number"), ("per", "text")]
    left = max(len(marks) - MOST_MARKS, 0)
    more = f" {left} more are in the table only." if left else ""
    figure = {
        "kind": "bounds",
        "title": "Correlation with each protected column, and what it is at most",
        "summary": f"The dot is the correlation found, the end of the bar its upper bound ({confidence:g} %).{more}",
        "axis": "absolute correlation",
        "sides": list(audits),
        "rows": [{"label": term, "marks": own} for term, own in list(marks.items())[:MOST_MARKS]],
    }
    about = (
        "What an audit did not find can still be there. These bounds say how large it is at most, each with "
        f"{confidence:g} % confidence. A ratio of 1 or a difference of 0 is no effect."
    )
    return section(
        "leakage",
        "What can be left, level by level",
        text=[about],
        figures=[figure],
        tables=[table("Upper bounds", columns, rows)],
    )


def performance(audits: Audits, scores: Scores) -> Section | None:
    """Scores of each model, the difference to the first, and the trade-off against the correlation."""
    if not scores:
        return None
    first, *others = scores
    rows = []
    for name, own in scores.items():
        for one in own:
            change = one.difference if name != first else Interval(math.nan)
            rows.append([metric_name(one.metric), name, *_ends(one.value), *_ends(change), change.p_value])
    order = {metric: j for j, metric in enumerate(dict.fromkeys(row[0] for row in rows))}
    rows.sort(key=lambda row: order[row[0]])
    columns: list[tuple[str, Kind]] = [("metric", "text"), ("model", "text"), ("value", "number"), ("low", "number")]
    columns += [("high", "number"), (f"against {first}", "signed"), ("diff. low", "signed")]
    columns += [("diff. high", "signed"), ("p of no difference", "p")]
    better = {metric_name(s.metric): "higher" if s.higher_is_better else "lower" for s in scores[first]}
    about = [f"Better is {'; '.join(f'{way} for {metric}' for metric, way in better.items())}."]
    if others:
        about.append("Differences are paired: both models predict the same rows.")
    figures = _trade_off(audits, scores)
    title = "What it costs" if others else "Performance"
    return section("performance", title, text=about, figures=figures, tables=[table("Performance", columns, rows)])


def _trade_off(audits: Audits, scores: Scores) -> list[dict[str, Any]]:
    preferred = [[s.metric for s in next(iter(scores.values()))].index(m) for m in ("auc", "r2") if _has(scores, m)]
    j = (preferred or [0])[0]
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


def _has(scores: Scores, metric: str) -> bool:
    return any(score.metric == metric for score in next(iter(scores.values())))


def metric_name(metric: str) -> str:
    """A metric as a reader knows it."""
    known = {"auc": "AUC", "rmse": "RMSE", "r2": "R²", "brier": "Brier score"}
    return known.get(metric, metric)


def _ends(value: Interval) -> tuple[float, float, float]:
    return value.estimate, value.ci_low, value.ci_high


def certificate(found: Certificate | None) -> Section | None:
    """What the solver measured on the training rows."""
    if found is None:
        return None
    yes = {True: "yes", False: "NO"}
    rows = [
        ["Orthogonal to the protected columns", yes[found.is_orthogonal], ""],
        ["Largest |corr| with a protected column", number(found.max_correlation), f"at most {MAX_CORRELATION:g}"],
        ["Largest |corr| without a few extreme rows", *_few(found)],
        ["Constraint residual", number(found.constraint_residual), ""],
        ["Local optimum", yes[found.is_optimal], ""],
        ["KKT residual", number(found.kkt_residual), f"at most {MAX_KKT:g}"],
        ["Smallest curvature", number(found.min_curvature), f"at least {MIN_CURVATURE:g}"],
        ["Loss", number(found.loss), ""],
        ["Loss without the constraint", number(found.loss_unconstrained), ""],
        ["Loss with an intercept only", number(found.loss_null), ""],
        ["Cost: share of the attainable reduction", f"{found.cost:.1%}", ""],
        ["Outcome explained by the protected columns", f"{found.label_share:.1%}", ""],
        ["Rank of the protected columns", f"{found.rank_protected} of {found.n_protected}", ""],
        ["Rank of the features", f"{_known(found.rank_features)} of {found.n_features}", ""],
    ]
    for label, names in (
        ("Constant protected columns", found.constant_protected),
        ("Collinear protected columns", found.collinear_protected),
        ("Aliased features", found.aliased_features),
        ("Undetermined coefficients", found.flat_features),
    ):
        rows += [[label, ", ".join(names), ""]] if names else []
    columns: list[tuple[str, Kind]] = [("measured", "text"), ("value", "text"), ("required", "text")]
    about = (
        "Measured after the fit on the training rows, not promised by the solver. The predictions of this model stand "
        "at a right angle to the protected columns there; on new rows they do so up to chance, which the audit shows."
    )
    title = "Certificate of the corrected model"
    return section("certificate", title, text=[about], tables=[table("Certificate", columns, rows)])


def _few(found: Certificate) -> tuple[str, str]:
    """Correlation without the rows of the most extreme predictions, and what it should be."""
    if found.correlation_without is None:
        return "not measured", ""
    limit = max(FEW_CORRELATION, FEW_ROWS / max(found.n_rows, 1))
    return f"{found.correlation_without:.3f} ({found.n_left_out} row(s) left out)", f"at most {limit:g}"


def _known(rank: int | None) -> str:
    """A solver that forms no Gram matrix does not know the rank."""
    return "not known" if rank is None else str(rank)
