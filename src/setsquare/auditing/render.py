"""Results of an audit for people: text, and the piece of html that notebooks show."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from html import escape
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from setsquare.auditing.evaluations.records import Effect, Evaluation, Test

if TYPE_CHECKING:
    from setsquare.auditing.adjustment import Member
    from setsquare.auditing.comparison.compare import Comparison
    from setsquare.auditing.comparison.performance import Interval
    from setsquare.auditing.result import AuditResult

WIDTH = 100
Rows = Sequence[Sequence[str]]


def number(value: float) -> str:
    """A number as a statistician prints it: four digits, short."""
    if math.isnan(value):
        return "-"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    size = abs(value)
    if size and (size < 1e-3 or size >= 1e5):
        return f"{value:.2e}"
    return f"{value:.3f}" if size < 100 else f"{value:.1f}"


def p_value(p: float) -> str:
    """A p-value.

    Examples
    --------
    >>> p_value(0.0312), p_value(3e-20), p_value(0.0)
    ('0.0312', '3.0e-20', '<1e-300')
    """
    if math.isnan(p):
        return "-"
    if p < 1e-300:
        return "<1e-300"
    return f"{p:.1e}" if p < 1e-4 else f"{p:.4f}"


def effect_rows(effects: Sequence[Effect]) -> list[list[str]]:
    """A row an effect, the head first; columns that no effect has a number for are left out."""
    head = ["", "estimate", "std. error", "statistic", "p", "low", "high"]
    rows = [
        [
            e.term,
            *map(number, (e.estimate, e.std_error, e.statistic)),
            p_value(e.p_value),
            number(e.ci_low),
            number(e.ci_high),
        ]
        for e in effects
    ]
    used = [j for j in range(len(head)) if j < 2 or any(row[j] != "-" for row in rows)]
    return [[row[j] for j in used] for row in [head, *rows]]


def test_rows(evaluation: Evaluation, members: Sequence[Member]) -> list[list[str]]:
    """A row a test, the head first."""
    joint = () if evaluation.name == "shape" else (evaluation.joint,)  # its parts say it all
    tests: tuple[Test, ...] = (*joint, *evaluation.by_source, *evaluation.further)
    adjusted = {(m.evaluation.name, m.test.name): m.adjusted for m in members}
    rows = [
        [
            t.name,
            number(t.statistic),
            "-" if math.isnan(t.df) else f"{t.df:g}",
            p_value(t.p_value),
            p_value(adjusted.get((evaluation.name, t.name), math.nan)),
        ]
        for t in tests
    ]
    used = 5 if any(row[4] != "-" for row in rows) else 4
    return [row[:used] for row in [["test", "statistic", "df", "p", "p adjusted"], *rows]]


def bound_rows(result: AuditResult) -> list[list[str]]:
    """A row a protected column, the head first."""
    c = result.certificate
    rows = [["at most", "|corr|", c.effect_kind, "per"]]
    rows += [[b.term, number(b.correlation_upper), number(b.effect_upper), b.unit] for b in c.columns]
    return rows if c.effect_kind else [row[:2] for row in rows]


def text(result: AuditResult) -> str:
    """The whole result in plain text."""
    parts = [_wrap(f"{str(result.verdict).upper()}. {result.reason}"), _wrap(summary(result))]
    for evaluation in result.evaluations:
        parts.append(_headline(evaluation.title))
        if evaluation.effects:
            parts.append(grid(effect_rows(evaluation.effects)))
        parts.append(grid(test_rows(evaluation, result.members)))
    if result.certificate.columns:
        c = result.certificate
        parts.append(_headline(f"Upper bounds on what is left, with {100 * c.confidence:g} % confidence"))
        parts.append(grid(bound_rows(result)))
    if notes := notes_of(result):
        parts.append(_headline("Notes"))
        parts += [textwrap.fill(note, WIDTH, initial_indent="* ", subsequent_indent="  ") for note in notes]
    return "\n".join(parts)


def notes_of(result: AuditResult) -> list[str]:
    """Everything that a reader must know, each once."""
    return list(dict.fromkeys([*result.notes, *(note for e in result.evaluations for note in e.notes)]))


def summary(result: AuditResult) -> str:
    """What was audited, in one sentence."""
    return (
        f"{result.n} predictions ({result.family}{positive(result)}), {result.n_protected} protected column(s); "
        f"{result.setting}; confidence {100 * result.confidence:g} %."
    )


def _wrap(sentence: str) -> str:
    return textwrap.fill(sentence, WIDTH)


def _headline(title: str) -> str:
    return f"\n{title[0].upper()}{title[1:]}"


def grid(rows: Rows) -> str:
    """Rows in columns, the first to the left and the others to the right."""
    widths = [max(len(row[j]) for row in rows) for j in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [f"{cell:<{widths[0]}}" if j == 0 else f"{cell:>{widths[j]}}" for j, cell in enumerate(row)]
        lines.append(("  " + "  ".join(cells)).rstrip())
    return "\n".join(lines)


STYLE = """
.sq{font:14px/1.45 system-ui,sans-serif;color:#1b1f24;max-width:60rem}
.sq h3{margin:1.4em 0 .4em;font-size:1.05em}
.sq .verdict{padding:.6em .9em;border-left:5px solid;border-radius:3px;margin-bottom:.6em}
.sq .leak{border-color:#b3261e;background:#fbeceb}.sq .none{border-color:#1e7d4f;background:#eaf6f0}
.sq .unsure{border-color:#a26a00;background:#fdf4e3}
.sq table{border-collapse:collapse;font-variant-numeric:tabular-nums;margin:.3em 0}
.sq th,.sq td{padding:.2em .8em;text-align:right;border-bottom:1px solid #e3e6ea;white-space:nowrap}
.sq th:first-child,.sq td:first-child{text-align:left;padding-left:0}
.sq th{font-weight:600;color:#57606a}.sq .sum{color:#57606a}.sq ul{padding-left:1.2em;color:#57606a}
"""
_CLASSES = {"leak": "leak", "no leak found": "none"}


def fragment(result: AuditResult) -> str:
    """The result as a piece of html, as notebooks show it."""
    kind = _CLASSES.get(str(result.verdict), "unsure")
    parts = [
        f"<div class='sq'><style>{STYLE}</style>",
        f"<div class='verdict {kind}'><b>{escape(str(result.verdict))}</b><br>{escape(result.reason)}</div>",
        f"<div class='sum'>{escape(summary(result))}</div>",
    ]
    for evaluation in result.evaluations:
        parts.append(f"<h3>{escape(evaluation.title[0].upper() + evaluation.title[1:])}</h3>")
        if evaluation.effects:
            parts.append(_html_table(effect_rows(evaluation.effects)))
        parts.append(_html_table(test_rows(evaluation, result.members)))
    if result.certificate.columns:
        parts.append(
            f"<h3>Upper bounds on what is left, with {100 * result.certificate.confidence:g} % confidence</h3>"
        )
        parts.append(_html_table(bound_rows(result)))
    if notes := notes_of(result):
        parts.append(f"<h3>Notes</h3>{_html_list(notes)}")
    return "".join([*parts, "</div>"])


def page(result: AuditResult | Comparison, path: str | Path | None = None) -> str:
    """The result as a page of its own; :func:`setsquare.report.build` makes fuller ones."""
    # The layer of reports stands above this one: it is looked up when a page is asked for, and not before.
    built = import_module("setsquare.report").build(result)
    return str(built.to_html(path))


def _html_list(items: Sequence[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(item)}</li>" for item in items) + "</ul>" if items else ""


def _html_table(rows: Rows) -> str:
    head, *body = rows
    cells = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    lines = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in body)
    return f"<table><thead><tr>{cells}</tr></thead><tbody>{lines}</tbody></table>"


def comparison_rows(comparison: Comparison) -> list[list[str]]:
    """A column a set of predictions, the names first."""
    sides = comparison.sides
    bounds = [side.audit.certificate for side in sides]
    rows = [
        ["", *(side.name for side in sides)],
        ["verdict", *(str(side.audit.verdict) for side in sides)],
        ["p-value (adjusted)", *(p_value(side.audit.p_adjusted) for side in sides)],
        ["correlation", *(number(c.correlation) for c in bounds)],
        ["  at most", *(number(c.correlation_upper) for c in bounds)],
    ]
    rows += [[score.metric, *(_span(s.scores[j].value) for s in sides)] for j, score in enumerate(sides[0].scores)]
    rows.append(["calibration in the large", *(_span(side.in_the_large) for side in sides)])
    rows.append(["calibration slope", *(_span(side.slope) for side in sides)])
    return rows


def difference_rows(comparison: Comparison) -> list[list[str]]:
    """Differences to the first set of predictions, a column a set, the names first."""
    first, *others = comparison.sides
    rows = [["", *(side.name for side in others)]]
    scores = enumerate(first.scores)
    return rows + [[score.metric, *(_between(s.scores[j].difference) for s in others)] for j, score in scores]


def _span(value: Interval) -> str:
    if math.isnan(value.ci_low):
        return number(value.estimate)
    return f"{number(value.estimate)} [{number(value.ci_low)}, {number(value.ci_high)}]"


def _between(value: Interval) -> str:
    if math.isnan(value.ci_low):
        return number(value.estimate)
    return f"{value.estimate:+.4f} [{value.ci_low:+.4f}, {value.ci_high:+.4f}]"


def positive(result: AuditResult | Comparison) -> str:
    """Which of two classes the probabilities are of, where that is known."""
    return f", positive class: {result.positive}" if result.positive else ""


def comparison_summary(comparison: Comparison) -> str:
    """What was compared, and how to read it."""
    return (
        f"{comparison.n} rows ({comparison.family}{positive(comparison)}); intervals and bounds of "
        f"{100 * comparison.confidence:g} % confidence. The correlation is the multiple one with all protected "
        "columns. Calibration in the large should be 0, the slope 1."
    )


def comparison_text(comparison: Comparison) -> str:
    """The comparison in plain text."""
    parts = [_wrap(comparison_summary(comparison)), "", grid(comparison_rows(comparison))]
    if len(comparison.sides) > 1:
        parts += [_headline(f"Differences to {comparison.sides[0].name}"), grid(difference_rows(comparison))]
    notes = [
        textwrap.fill(n, WIDTH, initial_indent="* ", subsequent_indent="  ") for n in _comparison_notes(comparison)
    ]
    return "\n".join([*parts, *([""] if notes else []), *notes])


def _comparison_notes(comparison: Comparison) -> list[str]:
    own = [f"{side.name}: {note}" for side in comparison.sides for note in notes_of(side.audit)]
    return [*comparison.notes, *own]


def comparison_fragment(comparison: Comparison) -> str:
    """The comparison as a piece of html."""
    parts = [f"<div class='sq'><style>{STYLE}</style><div class='sum'>{escape(comparison_summary(comparison))}</div>"]
    parts.append(_html_table(comparison_rows(comparison)))
    if len(comparison.sides) > 1:
        parts.append(f"<h3>Differences to {escape(comparison.sides[0].name)}</h3>")
        parts.append(_html_table(difference_rows(comparison)))
    return "".join([*parts, _html_list(_comparison_notes(comparison)), "</div>"])
