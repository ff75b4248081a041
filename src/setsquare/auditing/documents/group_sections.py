"""Sections by protected group: predictions, and their calibration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from setsquare.document import Kind, Section, section, table

if TYPE_CHECKING:
    from setsquare.auditing.comparison.by_group import ByGroup, Distribution, GroupCalibration, Spread
    from setsquare.auditing.comparison.calibration import Bin


def levels(found: ByGroup | None, *, named: bool) -> Section | None:
    """Distributions of the predictions: histograms by group, means along continuous columns."""
    if found is None or not found.distributions:
        return None
    about = "Where a model ignores a protected column, its predictions look alike in every row of these figures."
    return section(
        "levels",
        "Predictions by protected group",
        text=[about],
        notes=found.notes,
        figures=[_figure(one) for one in found.distributions],
        tables=[_spread_table(one, named) for one in found.distributions],
        detail=True,
    )


def calibration(found: ByGroup | None, *, named: bool) -> Section | None:
    """Whether outcomes are as frequent, or as large, as predicted, in each group."""
    if found is None or not found.calibrations:
        return None
    about = (
        "In a calibrated group outcome minus prediction is 0, and the points lie on the diagonal. A model that may not "
        "follow a protected column predicts alike for groups whose outcomes differ: it is then too low for one and too "
        "high for another. That is the price of ignoring the column, not an error of the fit."
    )
    if found.has_classes:
        about += " With several classes, the predicted class is judged."
    return section(
        "calibration",
        "Calibration by protected group",
        text=[about],
        figures=[_curves(one) for one in found.calibrations],
        tables=[_calibration_table(one, named) for one in found.calibrations],
        detail=True,
    )


def _of(response: str) -> str:
    return f" of class {response}" if response else ""


def _figure(found: Distribution) -> dict[str, Any]:
    sides = list(found.spreads)
    shared = {
        "title": f"Predictions{_of(found.response)} by {found.column}",
        "column": found.column,
        "sides": sides,
        "overall": found.overall,
        "axis": f"prediction{_of(found.response)}",
    }
    rows: list[dict[str, Any]] = [
        {"label": label, "n": found.spreads[sides[0]][k].n, "marks": [_mark(s, found.spreads[s][k]) for s in sides]}
        for k, label in enumerate(found.labels)
    ]
    if found.centres:
        for row, centre in zip(rows, found.centres, strict=True):
            row["x"] = centre
            for mark in row["marks"]:
                del mark["histogram"]
        about = (
            "Mean prediction in slices of about equal size (each with its lower end), with confidence intervals; the "
            "dashed line is the mean of all rows."
        )
        return {"kind": "means", "summary": about, "rows": rows, **shared}
    about = (
        "Histograms by group; heights are square roots of shares, so that small bars can be seen. The dot below is "
        "the mean, the dashed line the mean of all rows."
    )
    return {"kind": "ridges", "summary": about, "rows": rows, "range": list(found.ends), **shared}


def _mark(side: str, spread: Spread) -> dict[str, Any]:
    return {
        "side": side,
        "mean": spread.mean.estimate,
        "low": spread.mean.ci_low,
        "high": spread.mean.ci_high,
        "quantiles": list(spread.quantiles),
        "histogram": [round(height, 5) for height in spread.histogram],
    }


def _spread_table(found: Distribution, named: bool) -> dict[str, Any]:
    rows = []
    for k, label in enumerate(found.labels):
        for side, own in found.spreads.items():
            mean = own[k].mean
            away = mean.estimate - found.overall[side]
            rows.append(
                [label, side * named, own[k].n, mean.estimate, mean.ci_low, mean.ci_high, away, *own[k].quantiles]
            )
    columns: list[tuple[str, Kind]] = [(found.column, "text"), ("model", "text"), ("rows", "count"), ("mean", "number")]
    columns += [("low", "number"), ("high", "number"), ("mean minus overall", "signed")]
    columns += [("5 %", "number"), ("25 %", "number"), ("median", "number"), ("75 %", "number"), ("95 %", "number")]
    return table(f"Predictions{_of(found.response)} by {found.column}", columns, rows)


def _calibration_table(found: GroupCalibration, named: bool) -> dict[str, Any]:
    rows = []
    for k, label in enumerate(found.labels):
        for side, own in found.sides.items():
            one, gap = own[k], own[k].difference
            rows.append(
                [label, side * named, one.n, one.outcome, one.prediction, gap.estimate, gap.ci_low, gap.ci_high]
            )
    columns: list[tuple[str, Kind]] = [(found.column, "text"), ("model", "text"), ("rows", "count")]
    columns += [("mean outcome", "number"), ("mean prediction", "number")]
    columns += [("outcome minus prediction", "signed"), ("low", "signed"), ("high", "signed")]
    return table(f"Calibration by {found.column}", columns, rows)


def _curves(found: GroupCalibration) -> dict[str, Any]:
    panels = [
        {
            "label": label,
            "n": next(iter(found.sides.values()))[k].n,
            "curves": [{"side": side, "points": list(map(_point, own[k].bins))} for side, own in found.sides.items()],
        }
        for k, label in enumerate(found.labels)
    ]
    return {
        "kind": "calibration",
        "title": f"Outcome against prediction by {found.column}",
        "summary": "Points are groups of rows with similar predictions; on the diagonal outcomes are as predicted.",
        "sides": list(found.sides),
        "panels": panels,
    }


def _point(one: Bin) -> dict[str, Any]:
    seen = one.outcome
    return {"x": one.prediction, "n": one.count, "y": seen.estimate, "low": seen.ci_low, "high": seen.ci_high}
