"""First section of a document: the groups in one figure, the numbers that matter, and the size of the audit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from setsquare.auditing.documents.sections import main_metric, metric_name, sources_of, which_is_better
from setsquare.document import Section, section, table, typed
from setsquare.document.formats import joined, number, percent

if TYPE_CHECKING:
    from setsquare.auditing.comparison.metric import Interval
    from setsquare.auditing.comparison.result import Side
    from setsquare.auditing.documents.sections import Audits, Scores
    from setsquare.auditing.groups.result import GroupNumbers

#: Marks that fit on a first screen.
MOST_MARKS = 14
RATE, MEAN = "selection_rate", "mean"


def summary(audits: Audits, scores: Scores, sides: Sequence[Side] = ()) -> Section:
    """Figure of the groups, the main numbers, and what was audited."""
    numbers = {name: audit.numbers for name, audit in audits.items() if audit.numbers is not None}
    several = len(audits) > 1
    key = _key_rows(audits, numbers, scores)
    rest = _main_rows(audits, scores, sides, several=several)
    columns = [("text", "", *(name or "value" for name in audits))]
    if several:
        tables = [table("Side by side", columns, [*rest[:1], *key[:1], *rest[1:]])]
    else:
        tables = [table("Key numbers", columns, key, form="key")]
        tables += [table("Further numbers", columns, rest[1:])] if scores else []
    figures = _group_figures(numbers) if numbers else []
    return section("summary", "In short", text=_about(audits, scores, sides), tables=tables, figures=figures)


def _about(audits: Audits, scores: Scores, sides: Sequence[Side]) -> list[str]:
    """Size and setting of the audit."""
    last, several = list(audits.values())[-1], len(audits) > 1
    positive = f", positive class: {last.positive}" if last.positive else ""
    columns = joined(sources_of(last)) or "none could be tested"
    text = [
        f"{last.n:,} {'rows' if several else 'predictions'} ({last.family}{positive}; {last.setting}). Protected: "
        f"{columns}. Intervals and bounds hold with {percent(last.confidence)} confidence.",
        "The correlation (0: none, 1: complete) is the multiple correlation with all protected columns.",
    ]
    if sides:
        text[-1] += " Calibration in the large should be 0, the slope 1."
    if scores and not several:
        text.append(which_is_better(next(iter(scores.values()))))
    return text


def _key_rows(audits: Audits, numbers: Mapping[str, GroupNumbers], scores: Scores) -> list[list[Any]]:
    """Three numbers: distance of the groups, correlation, and performance or the number of rows."""
    rows = [_group_row(audits, numbers)] if numbers else []
    bounds = [audit.certificate for audit in audits.values()]
    correlation = (f"{number(c.correlation)}, at most {number(c.correlation_upper)}" for c in bounds)
    rows.append(["Correlation with the protected columns", *correlation])
    if scores:
        rows += [_score_row(audits, scores, main_metric(scores))]
    else:
        rows.append(["Rows", *(typed(audit.n, "count") for audit in audits.values())])
    return rows


def _group_row(audits: Audits, numbers: Mapping[str, GroupNumbers]) -> list[Any]:
    """Ratio of selection rates, or difference of means, of the column whose groups differ most in the first model."""
    first = next(iter(numbers.values()))
    single = [part.source for part in first.partitions if not part.parts]
    gap = "demographic_parity_difference" if RATE in first.numbers else "mean_difference"
    gaps = {one.source: one.value for one in first.measures.summaries if one.name == gap and one.source in single}
    source = max(gaps, key=lambda name: gaps[name] if gaps[name] == gaps[name] else -1.0)
    shown = "demographic_parity_ratio" if RATE in first.numbers else gap
    label = "Lowest ÷ highest selection rate" if RATE in first.numbers else "Largest difference between group means"
    cells = []
    for name in audits:
        own = numbers[name].measures.summaries if name in numbers else ()
        found = [[one.value, one.low, one.high] for one in own if (one.name, one.source) == (shown, source)]
        cells.append(typed(found[0], "interval") if found else None)
    return [f"{label}, {source}", *cells]


def _main_rows(audits: Audits, scores: Scores, sides: Sequence[Side], *, several: bool) -> list[list[Any]]:
    """The other numbers, one column per model."""
    bounds = [audit.certificate for audit in audits.values()]
    rows: list[list[Any]] = [
        ["Verdict", *(str(audit.verdict) for audit in audits.values())],
        ["p-value (adjusted)", *(typed(audit.p_adjusted, "p") for audit in audits.values())],
    ]
    if several:
        rows.append(["Correlation with the protected columns", *(typed(c.correlation, "number") for c in bounds)])
        rows.append(["Correlation, at most", *(typed(c.correlation_upper, "number") for c in bounds)])
    shown = None if several or not scores else main_metric(scores)
    n_scores = len(next(iter(scores.values()), ()))
    rows += [_score_row(audits, scores, j) for j in range(n_scores) if j != shown]
    if sides:
        rows.append(["Calibration in the large", *(_interval(side.in_the_large) for side in sides)])
        rows.append(["Calibration slope", *(_interval(side.slope) for side in sides)])
    return rows


def _score_row(audits: Audits, scores: Scores, j: int) -> list[Any]:
    values = (_interval(scores[name][j].value) if name in scores else None for name in audits)
    return [metric_name(next(iter(scores.values()))[j].metric), *values]


def _interval(value: Interval) -> dict[str, Any]:
    return typed([value.estimate, value.ci_low, value.ci_high], "interval")


def _group_figures(numbers: Mapping[str, GroupNumbers]) -> list[dict[str, Any]]:
    """Means or selection rates of the groups, of many those that are furthest from the rest; none if all are small."""
    first = next(iter(numbers.values()))
    single = {part.source for part in first.partitions if not part.parts}
    shown = RATE if RATE in first.numbers else MEAN
    values = first.measures.columns[shown].value
    known = [k for k, g in enumerate(first.groups) if g.source in single and g.is_shown and values[k] == values[k]]
    if not known:
        return []
    middle = sum(values[k] * first.groups[k].n for k in known) / max(sum(first.groups[k].n for k in known), 1)
    most = max(MOST_MARKS // len(numbers), 4)
    far = set(sorted(known, key=lambda k: -abs(values[k] - middle))[:most])
    rows: list[dict[str, Any]] = [
        {
            "label": f"{first.groups[k].source}: {first.groups[k].name}",
            "column": first.groups[k].source,
            "name": first.groups[k].name,
            "n": first.groups[k].n,
            "marks": [_mark(side, one, shown, k) for side, one in numbers.items()],
        }
        for k in known
        if k in far
    ]
    shown_values = [mark["value"] for row in rows for mark in row["marks"]]
    what = {RATE: "Share selected", MEAN: "Mean prediction"}[shown]
    left = len(known) - len(rows)
    are = "group nearer to the average is" if left == 1 else "groups nearer to the average are"
    more = f" {left} {are} in the table below." if left else ""
    notes = [note for one in numbers.values() for note in one.notes if shown == MEAN]  # warnings are about means
    doubts = dict.fromkeys(note for note in notes if note.severity == "warning")
    about = " ".join([f"{_how_to_read(first, shown, several=len(numbers) > 1)}{more}", *doubts])
    figure = {
        "kind": "groups",
        "title": f"{what} by group",
        "summary": about,
        "axis": what.lower(),
        "from_zero": min(shown_values) < 0.5 * max(shown_values) if first.is_positive else False,
        "sides": list(numbers),
        "rows": rows,
    }
    return [figure]


def _how_to_read(numbers: GroupNumbers, shown: str, *, several: bool) -> str:
    """Dots and bars in words, for readers without statistics."""
    dot = {
        RATE: "the share of a group that was selected in these data (its selection rate)",
        MEAN: "the mean prediction of a group in these data",
    }[shown]
    chosen = ""
    if shown == RATE and numbers.selected:
        chosen = f"A row of the data (one person or application, say) counts as selected if {numbers.selected}. "
    right, wrong = (f"{100 * share:g}" for share in (numbers.confidence, 1.0 - numbers.confidence))
    return (
        f"{chosen}Each dot is {dot}. Its bar shows how uncertain that is: with very much more data of the same kind, "
        f"the dot would end up somewhere within its bar. This is true of all bars{' of a model' if several else ''} in "
        f"about {right} of 100 audits like this one; in the other {wrong}, at least one dot would not."
    )


def _mark(side: str, numbers: GroupNumbers, name: str, k: int) -> dict[str, Any]:
    one = numbers.measures.columns[name]
    return {"side": side, "value": float(one.value[k]), "low": float(one.low[k]), "high": float(one.high[k])}
