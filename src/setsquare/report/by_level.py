"""Sections that need the rows: predictions by protected level, and their calibration."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from setsquare._typing import Array
from setsquare.report.groups import Groups
from setsquare.report.levels import Reliability, Spread, histogram_edges, reliabilities, spreads
from setsquare.report.material import Material
from setsquare.report.record import Kind, Section, section, table

#: Classes that are shown one by one.
MOST_CLASSES = 6


def levels(material: Material | None) -> Section | None:
    """Distributions of the predictions: histograms by level, means along continuous columns."""
    if material is None or not material.values or not material.groups:
        return None
    figures, tables, notes = [], [], _dropped(material)
    for response, values in _responses(material, notes):
        edges, beyond = histogram_edges(tuple(values.values()))
        if beyond:
            notes.append(
                f"{beyond:,} predictions{_of(response)} beyond {edges[0]:.4g} and {edges[-1]:.4g} are in the end bins."
            )
        for groups in material.groups:
            found = {side: spreads(v, groups, edges, material.sample) for side, v in values.items()}
            overall = {side: float(np.average(v, weights=material.sample.weight)) for side, v in values.items()}
            figures.append(_figure(groups, found, overall, edges, response))
            tables.append(_spread_table(groups, found, overall, response))
            if groups.n_pooled:
                notes.append(f"The {groups.n_pooled} smallest levels of {groups.column} are shown together.")
    about = "Where a model ignores a protected column, its predictions look alike in every row of these figures."
    return section(
        "levels",
        "Predictions by protected level",
        text=[about],
        notes=list(dict.fromkeys(notes)),
        figures=figures,
        tables=tables,
    )


def calibration(material: Material | None) -> Section | None:
    """Whether outcomes are as frequent, or as large, as predicted, in each group."""
    if material is None or material.outcome is None or not material.coarse_groups:
        return None
    figures, tables = [], []
    pairs = {side: _judged(material.outcome, values) for side, values in material.values.items()}
    for groups in material.coarse_groups:
        found = {
            side: reliabilities(y, values, groups, material.family, material.sample)
            for side, (y, values) in pairs.items()
        }
        figures.append(_curves(groups, found))
        tables.append(_calibration_table(groups, found))
    about = (
        "In a calibrated group outcome minus prediction is 0, and the points lie on the diagonal. A model that may not "
        "follow a protected column predicts alike for groups whose outcomes differ: it is then too low for one and too "
        "high for another. That is the price of ignoring the column, not an error of the fit."
    )
    if material.family.is_vector:
        about += " Of several classes the predicted one is judged."
    return section("calibration", "Calibration by protected level", text=[about], figures=figures, tables=tables)


def _judged(y: Array, values: Array) -> tuple[Array, Array]:
    """Outcome and prediction; of several classes, whether the predicted one was right, and its probability."""
    if values.ndim == 1:
        return y, values
    top = values.argmax(axis=1)
    return (y == top).astype(np.float64), values[np.arange(len(y)), top]


def _responses(material: Material, notes: list[str]) -> list[tuple[str, dict[str, Array]]]:
    """One set of predictions, or one for each class."""
    if not material.family.is_vector:
        return [("", material.values)]
    first = next(iter(material.values.values()))
    names = material.classes or tuple(map(str, range(first.shape[1])))
    shown = np.sort(np.argsort(-first.mean(axis=0), kind="stable")[:MOST_CLASSES])
    if len(shown) < len(names):
        notes.append(f"The {len(shown)} most frequent of {len(names)} classes are shown.")
    return [(names[k], {side: values[:, k] for side, values in material.values.items()}) for k in shown]


def _of(response: str) -> str:
    return f" of class {response}" if response else ""


def _dropped(material: Material) -> list[str]:
    count = material.n_dropped
    return [f"{count:,} rows without a prediction, an outcome or a weight are left out."] if count else []


def _figure(
    groups: Groups, found: dict[str, tuple[Spread, ...]], overall: dict[str, float], edges: Array, response: str
) -> dict[str, Any]:
    sides = list(found)
    title = f"Predictions{_of(response)} by {groups.column}"
    shared = {"column": groups.column, "sides": sides, "overall": overall, "axis": f"prediction{_of(response)}"}
    rows = [
        {"label": label, "n": found[sides[0]][k].n, "marks": [_mark(side, found[side][k]) for side in sides]}
        for k, label in enumerate(groups.labels)
    ]
    if groups.centres:
        for row, centre in zip(rows, groups.centres, strict=True):
            row["x"] = centre
            for mark in row["marks"]:  # type: ignore[attr-defined]
                del mark["histogram"]
        about = (
            "Mean prediction in slices of about equal size (each with its lower end), with confidence intervals; the "
            "dashed line is the mean of all rows."
        )
        return {"kind": "means", "title": title, "summary": about, "rows": rows, **shared}
    about = (
        "Histograms by level; heights are square roots of shares, so that small bars are seen too. The dot below is "
        "the mean, the dashed line the mean of all rows."
    )
    ends = [float(edges[0]), float(edges[-1])]
    return {"kind": "ridges", "title": title, "summary": about, "rows": rows, "range": ends, **shared}


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
    groups: Groups, found: dict[str, tuple[Spread, ...]], overall: dict[str, float], response: str
) -> dict[str, Any]:
    rows = [
        [
            label,
            side,
            own[k].n,
            own[k].mean.estimate,
            own[k].mean.ci_low,
            own[k].mean.ci_high,
            own[k].mean.estimate - overall[side],
            *own[k].quantiles,
        ]
        for k, label in enumerate(groups.labels)
        for side, own in found.items()
    ]
    columns: list[tuple[str, Kind]] = [
        (groups.column, "text"),
        ("model", "text"),
        ("rows", "count"),
        ("mean", "number"),
    ]
    columns += [("low", "number"), ("high", "number"), ("mean minus overall", "signed")]
    columns += [("5 %", "number"), ("25 %", "number"), ("median", "number"), ("75 %", "number"), ("95 %", "number")]
    return table(f"Predictions{_of(response)} by {groups.column}", columns, rows)


def _calibration_table(groups: Groups, found: dict[str, tuple[Reliability, ...]]) -> dict[str, Any]:
    rows = []
    for k, label in enumerate(groups.labels):
        for side, own in found.items():
            one, gap = own[k], own[k].difference
            rows.append([label, side, one.n, one.outcome, one.prediction, gap.estimate, gap.ci_low, gap.ci_high])
    columns: list[tuple[str, Kind]] = [(groups.column, "text"), ("model", "text"), ("rows", "count")]
    columns += [("mean outcome", "number"), ("mean prediction", "number")]
    columns += [("outcome minus prediction", "signed"), ("low", "signed"), ("high", "signed")]
    return table(f"Calibration by {groups.column}", columns, rows)


def _curves(groups: Groups, found: dict[str, tuple[Reliability, ...]]) -> dict[str, Any]:
    panels = [
        {
            "label": label,
            "n": next(iter(found.values()))[k].n,
            "curves": [
                {
                    "side": side,
                    "points": [
                        {"x": b.prediction, "n": b.count} | {name: asdict(b.outcome)[key] for name, key in _POINT}
                        for b in own[k].bins
                    ],
                }
                for side, own in found.items()
            ],
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


_POINT = (("y", "estimate"), ("low", "ci_low"), ("high", "ci_high"))
