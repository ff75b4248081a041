"""Sections by protected group: predictions, and their calibration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from setsquare._typing import Array
from setsquare.auditing.comparison.by_group import (
    Groups,
    Reliability,
    Spread,
    group_rows,
    histogram_edges,
    reliabilities,
    spreads_by_column,
)
from setsquare.auditing.comparison.calibration import Bin
from setsquare.auditing.comparison.predicted_rows import PredictedRows
from setsquare.auditing.groups.partitions import MIN_GROUP
from setsquare.document import Section, section, table
from setsquare.notes import Note

#: Largest number of classes shown separately.
MOST_CLASSES = 6


def describe_groups(rows: PredictedRows, *, named: bool, min_group: int = MIN_GROUP) -> tuple[Section, ...]:
    """Predictions by protected column, and their calibration if there is an outcome.

    ``named`` says whether tables name the models, which a single model does not need. Groups with fewer than
    ``min_group`` rows are pooled or have no numbers.
    """
    if rows.protected is None or not rows.values:
        return ()
    shown = (_levels(rows, named, min_group),)
    return shown if rows.outcome is None else (*shown, _calibration(rows, rows.outcome, named, min_group))


def _levels(rows: PredictedRows, named: bool, min_group: int) -> Section:
    """Distributions of the predictions: histograms by group, means along continuous columns."""
    figures, tables, notes = [], [], list[Note]()
    if rows.n_dropped:
        text = "{count:,} rows without a prediction, an outcome or a weight are left out."
        notes.append(Note("rows-left-out", text, count=rows.n_dropped))
    columns = group_rows(rows.protected, rows.keep, min_group=min_group)
    notes += _note_small(columns, min_group)
    for response, values in _responses(rows, notes):
        edges, beyond = histogram_edges(tuple(values.values()))
        if beyond:
            text = "{count:,} predictions{of} beyond {low:.4g} and {high:.4g} are in the end bins."
            ends = {"low": float(edges[0]), "high": float(edges[-1])}
            notes.append(Note("beyond-histogram", text, severity="info", count=beyond, of=_of(response), **ends))
        overall = {side: float(np.average(v, weights=rows.sample.weight)) for side, v in values.items()}
        # Decisions have no distribution beside their rates, which are among the numbers by group.
        decided = all(((v == 0.0) | (v == 1.0)).all() for v in values.values()) and not response
        used = [groups for groups in columns if groups.rows and (groups.centres or not decided)]
        for groups, found in zip(used, spreads_by_column(values, used, edges, rows.sample), strict=True):
            figures.append(_figure(groups, found, overall, edges, response))
            tables.append(_spread_table(groups, found, overall, response, named))
            if groups.n_pooled:
                text = "The {count} smallest levels of {column} are shown together."
                notes.append(Note("levels-pooled", text, count=groups.n_pooled, column=groups.column))
    about = "If a model ignores a protected column, its predictions look the same for every group in these figures."
    return section(
        "levels",
        "Predictions by protected group",
        text=[about] if figures else [],
        notes=list(dict.fromkeys(notes)),
        figures=figures,
        tables=tables,
        detail=True,
    )


def _note_small(columns: Sequence[Groups], min_group: int) -> list[Note]:
    small = [name for groups in columns for name in groups.masked]
    if not small:
        return []
    listed = "; ".join(small[:8]) + (f" and {len(small) - 8} more" if len(small) > 8 else "")
    text = "Groups with fewer than {limit} rows are pooled or have no numbers: {groups}."
    return [Note("small-groups", text, limit=min_group, groups=listed, count=len(small))]


def _calibration(rows: PredictedRows, outcome: Array, named: bool, min_group: int) -> Section:
    """Calibration in each group, or in each quarter of a continuous column."""
    figures, tables = [], []
    pairs = {side: _judged(outcome, values) for side, values in rows.values.items()}
    orders = {side: np.argsort(values, kind="stable") for side, (_, values) in pairs.items()}
    # Enough rows for a curve, in the bands of the numbers by group.
    columns = group_rows(rows.protected, rows.keep, n_slices=4, rounded=True, min_group=min_group)
    for groups in (groups for groups in columns if groups.rows):
        found = {
            side: reliabilities(y, values, groups, rows.family, rows.sample, orders[side], min_group)
            for side, (y, values) in pairs.items()
        }
        figures += [_gaps(groups, found), _curves(groups, found)]
        tables.append(_calibration_table(groups, found, named))
    about = (
        "In a calibrated group, outcome minus prediction is 0 and the points lie on the diagonal. A model that may not "
        "depend on a protected column predicts the same for groups with different outcomes: too low for one and too "
        "high for another. This is the cost of ignoring the column, not an error of the fit. These curves were not "
        "tested."
    )
    if rows.family.is_vector:
        about += " With several classes, the predicted class is judged."
    title = "Calibration by protected group"
    return section("calibration", title, text=[about], figures=figures, tables=tables, detail=True)


def _responses(rows: PredictedRows, notes: list[Note]) -> list[tuple[str, dict[str, Array]]]:
    """One set of predictions, or one per class."""
    if not rows.family.is_vector:
        return [("", rows.values)]
    first = next(iter(rows.values.values()))
    names = rows.classes or tuple(map(str, range(first.shape[1])))
    shown = np.sort(np.argsort(-first.mean(axis=0), kind="stable")[:MOST_CLASSES])
    if len(shown) < len(names):
        text = "The {shown} most frequent of {count} classes are shown."
        notes.append(Note("classes-not-shown", text, shown=len(shown), count=len(names)))
    return [(names[k], {side: values[:, k] for side, values in rows.values.items()}) for k in shown]


def _judged(y: Array, values: Array) -> tuple[Array, Array]:
    """Outcome and prediction; for several classes, whether the predicted class was right, and its probability."""
    if values.ndim == 1:
        return y, values
    top = values.argmax(axis=1)
    return (y == top).astype(np.float64), values[np.arange(len(y)), top]


def _of(response: str) -> str:
    return f" of class {response}" if response else ""


def _figure(
    groups: Groups, found: Mapping[str, tuple[Spread, ...]], overall: dict[str, float], edges: Array, response: str
) -> dict[str, Any]:
    sides = list(found)
    shared = {
        "title": f"Predictions{_of(response)} by {groups.column}",
        "column": groups.column,
        "sides": sides,
        "overall": overall,
        "axis": f"prediction{_of(response)}",
    }
    rows: list[dict[str, Any]] = [
        {"label": label, "n": found[sides[0]][k].n, "marks": [_mark(side, found[side][k]) for side in sides]}
        for k, label in enumerate(groups.labels)
    ]
    if groups.centres:
        for row, centre in zip(rows, groups.centres, strict=True):
            row["x"] = centre
            for mark in row["marks"]:
                del mark["histogram"]
        about = (
            "Mean prediction in slices of about equal size (each with its lower end), with confidence intervals; the "
            "dashed line is the mean of all rows."
        )
        return {"kind": "means", "summary": about, "rows": rows, **shared}
    about = (
        "Histograms by group: the height is the share of the group's rows. The dot below is the mean, the dashed line "
        "the mean of all rows."
    )
    return {"kind": "ridges", "summary": about, "rows": rows, "range": [float(edges[0]), float(edges[-1])], **shared}


def _mark(side: str, spread: Spread) -> dict[str, Any]:
    return {
        "side": side,
        "mean": spread.mean.estimate,
        "low": spread.mean.ci_low,
        "high": spread.mean.ci_high,
        "quantiles": list(spread.quantiles),
        "histogram": [round(height, 5) for height in spread.histogram],
    }


def _spread_table(
    groups: Groups, found: Mapping[str, tuple[Spread, ...]], overall: dict[str, float], response: str, named: bool
) -> dict[str, Any]:
    rows = []
    for k, label in enumerate(groups.labels):
        for side, own in found.items():
            mean = own[k].mean
            away = mean.estimate - overall[side]
            numbers = [own[k].n, mean.estimate, mean.ci_low, mean.ci_high, away, *own[k].quantiles]
            rows.append([label, side * named, *numbers])
    columns = [("text", groups.column, "model"), ("count", "rows"), ("number", "mean", "low", "high")]
    columns += [("signed", "mean minus overall"), ("number", "5 %", "25 %", "median", "75 %", "95 %")]
    return table(f"Predictions{_of(response)} by {groups.column}", columns, rows, form="folded")


def _calibration_table(groups: Groups, found: Mapping[str, tuple[Reliability, ...]], named: bool) -> dict[str, Any]:
    rows = []
    for k, label in enumerate(groups.labels):
        for side, own in found.items():
            one, gap = own[k], own[k].difference
            rows.append(
                [label, side * named, one.n, one.outcome, one.prediction, gap.estimate, gap.ci_low, gap.ci_high]
            )
    columns = [("text", groups.column, "model"), ("count", "rows"), ("number", "mean outcome", "mean prediction")]
    columns.append(("signed", "outcome minus prediction", "low", "high"))
    return table(f"Calibration by {groups.column}", columns, rows, form="folded")


def _curves(groups: Groups, found: Mapping[str, tuple[Reliability, ...]]) -> dict[str, Any]:
    panels = [
        {
            "label": label,
            "n": next(iter(found.values()))[k].n,
            "curves": [{"side": side, "points": [_point(one) for one in own[k].bins]} for side, own in found.items()],
        }
        for k, label in enumerate(groups.labels)
    ]
    return {
        "kind": "calibration",
        "title": f"Outcome against prediction by {groups.column}",
        "summary": "Points are groups of rows with similar predictions; on the diagonal outcomes are as predicted.",
        "sides": list(found),
        "panels": panels,
    }


def _gaps(groups: Groups, found: Mapping[str, tuple[Reliability, ...]]) -> dict[str, Any]:
    """Outcome minus prediction of each group."""
    rows = []
    for k, label in enumerate(groups.labels):
        gaps = {side: own[k].difference for side, own in found.items()}
        marks = [{"side": s, "value": g.estimate, "low": g.ci_low, "high": g.ci_high} for s, g in gaps.items()]
        rows.append({"label": label, "marks": marks})
    return {
        "kind": "forest",
        "title": f"Outcome minus prediction by {groups.column}",
        "summary": "To the right of zero outcomes are higher than predicted, to the left lower.",
        "axis": "outcome minus prediction",
        "sides": list(found),
        "rows": rows,
    }


def _point(one: Bin) -> dict[str, Any]:
    seen = one.outcome
    return {"x": one.prediction, "n": one.count, "y": seen.estimate, "low": seen.ci_low, "high": seen.ci_high}
