"""Figures of a report as SVG, each for a wide and for a narrow page."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from setsquare.document.formats import number, p_value
from setsquare.document.svg import (
    LETTER,
    Scale,
    bottom_axis,
    drawing,
    left_axis,
    make_scale,
    mark,
    shorten,
    tag,
    words,
)

Figure: TypeAlias = Mapping[str, Any]
WIDE, NARROW = 760.0, 330.0
#: Labels up to this width stand beside their row on a narrow page, longer ones above it; of more rows than FEW they are
#: shortened.
BESIDE, FEW = 150.0, 7
#: Number of colours in the page's style.
N_COLOURS = 6


def draw(figure: Figure, name: str, width: float) -> str:
    """Draw a figure; `name` is the prefix of its ids."""
    return _DRAWERS[figure["kind"]](figure, name, width)


def colour(figure: Figure, side: str) -> str:
    """CSS class of a model's marks; a single model has the second colour."""
    return f"c{figure['sides'].index(side) % N_COLOURS if len(figure['sides']) > 1 else 1}"


def room(figure: Figure, least: float) -> float:
    """Width of the labels of the rows on a wide page."""
    return min(max(LETTER * max(len(row["label"]) for row in figure["rows"]) + 16.0, least), 320.0)


def _named(side: str) -> str:
    return f", {side}" if side else ""


def _span(mark_: Mapping[str, Any], value: str = "value") -> str:
    ends = "" if mark_["low"] is None else f" [{number(mark_['low'])}, {number(mark_['high'])}]"
    return f"{number(mark_[value])}{ends}"


def _finite(value: Any, otherwise: float) -> float:
    return float(value) if isinstance(value, float | int) else otherwise


def _intervals(figure: Figure, name: str, width: float) -> str:
    """Forest plot: one row per column or group, one line per model."""
    bounds = figure["kind"] == "bounds"
    wide = width > NARROW
    label = "label" if wide or not all("name" in row for row in figure["rows"]) else "name"
    widest = LETTER * max(len(row[label]) for row in figure["rows"]) + 16.0
    beside = wide or widest <= BESIDE or (label == "name" and len(figure["rows"]) > FEW)
    left = room(figure, 200.0) if wide else min(widest, BESIDE) if beside else 12.0
    every = [m[key] for row in figure["rows"] for m in row["marks"] for key in ("value", "low", "high")]
    zero = figure.get("from_zero", True)
    scale = make_scale(every, left, width - 14.0, zero=zero)
    step, y, parts = {1: 15.0, 2: 12.0, 3: 11.0}.get(len(figure["sides"]), 9.0), 10.0, list[str]()
    column = None
    for row in figure["rows"]:
        if label == "name" and row["column"] != column:  # its name once, not in front of each group
            column = row["column"]
            y += 3.0
            parts.append(tag("text", words(shorten(column, width)), x=0, y=y + 6.0, class_="name head"))
            y += 14.0
        if beside:
            middle = y + step * len(row["marks"]) / 2.0 + 4.0
            parts.append(
                tag("text", words(shorten(row[label], left - 16.0)), x=left - 12.0, y=middle, class_="name end")
            )
        else:
            parts.append(tag("text", words(shorten(row[label], width)), x=0, y=y + 8.0, class_="name"))
            y += 14.0
        for one in row["marks"]:
            about = f"{row['label']} ({row['n']:,} rows)" if "n" in row else row["label"]
            parts.append(_interval(figure, about, one, scale, y + step / 2.0, bounds))
            y += step
        y += 9.0 if len(figure["rows"]) <= FEW else 7.0
    axis = bottom_axis(scale, 4.0, y, figure["axis"])
    if zero:
        axis += tag("line", x1=scale(0.0), x2=scale(0.0), y1=4.0, y2=y, class_="zero")
    return drawing(name, figure["title"], figure["summary"], width, y + 40.0, axis, *parts)


def _interval(figure: Figure, term: str, one: Mapping[str, Any], scale: Scale, y: float, bounds: bool) -> str:
    value = one["value"]
    if not isinstance(value, float | int):
        return ""
    low, high = (scale(_finite(one[key], value)) for key in ("low", "high"))
    if bounds:
        about = f"{term}{_named(one['side'])}: {number(value)}, at most {number(_finite(one['high'], math.inf))}"
    else:
        p = f", p = {p_value(_finite(one['p'], math.nan))}" if "p" in one else ""
        about = f"{term}{_named(one['side'])}: {_span(one)}{p}"
    ends = [high] if bounds else [low, high]
    return mark(
        about,
        tag("rect", x=min(low, high) - 8.0, y=y - 7.0, width=abs(high - low) + 16.0, height=14.0, class_="reach"),
        tag("line", x1=low, x2=high, y1=y, y2=y, class_="bar"),
        *(tag("line", x1=end, x2=end, y1=y - 3.5, y2=y + 3.5, class_="bar") for end in ends),
        tag("circle", cx=scale(value), cy=y, r=4.0, class_="dot"),
        class_=colour(figure, one["side"]),
    )


def _ridges(figure: Figure, name: str, width: float) -> str:
    """Stacked histograms, one per level."""
    wide = width > NARROW
    left, right, tall = (room(figure, 170.0), width - 12.0, 52.0) if wide else (4.0, width - 8.0, 44.0)
    low, high = figure["range"]
    scale = Scale(low, high, left, right)
    peak = max((h for row in figure["rows"] for m in row["marks"] for h in m["histogram"]), default=1.0) or 1.0
    y, parts = 8.0, []
    for row in figure["rows"]:
        n = f"{row['n']:,} rows"
        if wide:
            parts.append(
                tag("text", words(shorten(row["label"], left - 16.0)), x=left - 12.0, y=y + 30.0, class_="name end")
            )
            parts.append(tag("text", words(n), x=left - 12.0, y=y + 45.0, class_="tick end"))
        else:
            head = shorten(row["label"], width - 14.0 * LETTER)
            parts.append(
                tag("text", words(head), tag("tspan", words(f"  {n}"), class_="tick"), x=0, y=y + 10.0, class_="name")
            )
            y += 14.0
        base = y + tall
        parts.append(tag("line", x1=left, x2=right, y1=base, y2=base, class_="base"))
        for j, one in enumerate(row["marks"]):
            parts.append(_ridge(figure, row["label"], one, scale, base, tall / peak, 5.0 + 7.0 * j))
        y = base + 8.0 + 7.0 * len(row["marks"])
    middle = scale(figure["overall"][figure["sides"][-1]])
    overall = tag("line", x1=middle, x2=middle, y1=4.0, y2=y, class_="all")
    axis = bottom_axis(scale, 4.0, y, figure["axis"])
    return drawing(name, figure["title"], figure["summary"], width, y + 40.0, axis, overall, *parts)


def _ridge(
    figure: Figure, level: str, one: Mapping[str, Any], scale: Scale, base: float, unit: float, below: float
) -> str:
    n_bins = len(one["histogram"])
    step = (scale.end - scale.start) / n_bins
    path = f"M{scale.start:.1f} {base:.1f}"
    for height in one["histogram"]:
        path += f"V{base - unit * height:.1f}h{step:.2f}"
    quantiles = ", ".join(number(q) for q in one["quantiles"][1:4])
    about = f"{level}{_named(one['side'])}: mean {_span(one, 'mean')}; quartiles {quantiles}"
    x, y = scale(one["mean"]), base + below
    low, high = (scale(_finite(one[key], one["mean"])) for key in ("low", "high"))
    return mark(
        about,
        tag("path", d=f"{path}V{base:.1f}Z", class_="area"),
        tag("line", x1=low, x2=high, y1=y, y2=y, class_="bar"),
        tag("circle", cx=x, cy=y, r=3.2, class_="dot"),
        class_=colour(figure, one["side"]),
    )


def _means(figure: Figure, name: str, width: float) -> str:
    """Mean prediction along a continuous column."""
    rows = [row for row in figure["rows"] if row["x"] is not None]
    left, right, top, bottom = 52.0, width - 12.0, 10.0, 230.0 if width > NARROW else 200.0
    x_scale = make_scale([row["x"] for row in rows], left, right)
    every = [m[key] for row in rows for m in row["marks"] for key in ("mean", "low", "high")]
    y_scale = make_scale([*every, *figure["overall"].values()], bottom, top)
    middle = y_scale(figure["overall"][figure["sides"][-1]])
    parts = [tag("line", x1=left, x2=right, y1=middle, y2=middle, class_="all")]
    for k, side in enumerate(figure["sides"]):
        aside = 5.0 * (k - (len(figure["sides"]) - 1) / 2.0)  # so that intervals do not overlap
        own = [(row, m) for row in rows for m in row["marks"] if m["side"] == side]
        line = " ".join(f"{x_scale(row['x']) + aside:.1f},{y_scale(m['mean']):.1f}" for row, m in own)
        parts.append(tag("polyline", points=line, class_=f"line {colour(figure, side)}"))
        for row, m in own:
            x, y = x_scale(row["x"]) + aside, y_scale(m["mean"])
            low, high = (y_scale(_finite(m[key], m["mean"])) for key in ("low", "high"))
            about = f"{figure['column']} {row['label']}{_named(side)}: mean {_span(m, 'mean')}, {row['n']:,} rows"
            shapes = (
                tag("line", x1=x, x2=x, y1=low, y2=high, class_="bar"),
                tag("circle", cx=x, cy=y, r=3.5, class_="dot"),
            )
            parts.append(mark(about, *shapes, class_=colour(figure, side)))
    axes = bottom_axis(x_scale, top, bottom, figure["column"]) + left_axis(y_scale, left, right)
    return drawing(name, figure["title"], figure["summary"], width, bottom + 40.0, axes, *parts)


def _calibration(figure: Figure, name: str, width: float) -> str:
    """One small panel per level: outcome against prediction."""
    most = 2 if width <= NARROW else 4 if len(figure["panels"]) in (4, 7, 8) else 3
    n_across, size = min(most, len(figure["panels"])), (width + 8.0) / most
    points = [p for panel in figure["panels"] for c in panel["curves"] for p in c["points"]]
    ends = make_scale([p[key] for p in points for key in ("x", "y")], 0.0, 1.0)
    side_length = size - 58.0
    parts = []
    for k, panel in enumerate(figure["panels"]):
        left, top = size * (k % n_across) + 44.0, (size + 22.0) * (k // n_across) + 24.0
        x_scale = Scale(ends.low, ends.high, left, left + side_length)
        y_scale = Scale(ends.low, ends.high, top + side_length, top)
        parts.append(tag("text", words(shorten(panel["label"], side_length)), x=left, y=top - 8.0, class_="name"))
        parts.append(bottom_axis(x_scale, top, top + side_length, "prediction"))
        parts.append(left_axis(y_scale, left, left + side_length))
        x, y = left - 33.0, top + side_length / 2.0
        parts.append(
            tag("text", words("outcome"), x=x, y=y, class_="tick mid", transform=f"rotate(-90 {x:.0f} {y:.0f})")
        )
        corners = {"x1": left, "y1": top + side_length, "x2": left + side_length, "y2": top}
        parts.append(tag("line", **corners, class_="all"))
        for curve in panel["curves"]:
            parts.append(_curve(figure, panel["label"], curve, x_scale, y_scale))
    height = (size + 22.0) * math.ceil(len(figure["panels"]) / n_across)
    return drawing(name, figure["title"], figure["summary"], width, height, *parts)


def _curve(figure: Figure, level: str, curve: Mapping[str, Any], x_scale: Scale, y_scale: Scale) -> str:
    points = [p for p in curve["points"] if p["y"] is not None]
    line = " ".join(f"{x_scale(p['x']):.1f},{y_scale(p['y']):.1f}" for p in points)
    shapes = [tag("polyline", points=line, class_="line")]
    for p in points:
        x, low, high = x_scale(p["x"]), *(y_scale(_finite(p[key], p["y"])) for key in ("low", "high"))
        shapes.append(tag("line", x1=x, x2=x, y1=low, y2=high, class_="bar thin"))
        shapes.append(tag("circle", cx=x, cy=y_scale(p["y"]), r=2.4, class_="dot"))
    pairs = "; ".join(f"{number(p['x'])} predicted, {number(p['y'])} seen" for p in points)
    return mark(f"{level}{_named(curve['side'])}: {pairs}", *shapes, class_=colour(figure, curve["side"]))


def _trade_off(figure: Figure, name: str, width: float) -> str:
    """Performance against correlation."""
    left, right, top, bottom = 58.0, width - 20.0, 16.0, 190.0
    marks = figure["marks"]
    x_scale = make_scale([m[key] for m in marks for key in ("x", "x_high")], left, right, zero=True)
    y_scale = make_scale([m[key] for m in marks for key in ("y", "low", "high")], bottom, top)
    parts = []
    for m in marks:
        x, y, far = x_scale(m["x"]), y_scale(m["y"]), x_scale(_finite(m["x_high"], m["x"]))
        low, high = (y_scale(_finite(m[key], m["y"])) for key in ("low", "high"))
        most = number(_finite(m["x_high"], math.inf))
        about = f"{m['side']}: {figure['y_axis']} {_span(m, 'y')}; correlation {number(m['x'])}, at most {most}"
        at_right = x > (left + right) / 2.0
        room = (x - left if at_right else right - x) - 10.0
        place = {"x": x - 9.0 if at_right else x + 9.0, "y": y - 9.0, "class_": "name end" if at_right else "name"}
        parts.append(
            mark(
                about,
                tag("line", x1=x, x2=far, y1=y, y2=y, class_="bar"),
                tag("line", x1=x, x2=x, y1=low, y2=high, class_="bar"),
                tag("circle", cx=x, cy=y, r=5.0, class_="dot"),
                tag("text", words(shorten(m["side"], room)), **place),
                class_=colour(figure, m["side"]),
            )
        )
    axes = bottom_axis(x_scale, top, bottom, figure["x_axis"]) + left_axis(y_scale, left, right)
    return drawing(name, figure["title"], figure["summary"], width, bottom + 40.0, axes, *parts)


def _path(figure: Figure, name: str, width: float) -> str:
    """Curves of fits along a path, with intervals and the budget of each fit in its tooltip."""
    left, right, top, bottom = 58.0, width - 20.0, 16.0, 230.0
    every = [(p[key], axis) for c in figure["curves"] for p in c["points"] for axis, key in _PLACES]
    x_scale = make_scale([value for value, axis in every if axis == "x"], left, right, zero=True)
    y_scale = make_scale([value for value, axis in every if axis == "y"], bottom, top)
    parts = []
    for curve in figure["curves"]:
        places = [(x_scale(p["x"]), y_scale(p["y"])) for p in curve["points"]]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        own = colour(figure, curve["side"])
        parts.append(tag("polyline", points=line, class_=f"line {own}"))
        for p, (x, y) in zip(curve["points"], places, strict=True):
            low, high = (y_scale(_finite(p[key], p["y"])) for key in ("low", "high"))
            about = f"budget {number(p['budget'])}{_named(curve['side'])}: {figure['y_axis']} {_span(p, 'y')}; "
            shapes = (
                tag("line", x1=x, x2=x, y1=low, y2=high, class_="bar thin"),
                tag("circle", cx=x, cy=y, r=2.8, class_="dot"),
            )
            parts.append(mark(f"{about}correlation {number(p['x'])}", *shapes, class_=own))
    axes = bottom_axis(x_scale, top, bottom, figure["x_axis"]) + left_axis(y_scale, left, right)
    return drawing(name, figure["title"], figure["summary"], width, bottom + 40.0, axes, *parts)


_PLACES = (("x", "x"), ("y", "y"), ("y", "low"), ("y", "high"))
_DRAWERS: dict[str, Callable[[Figure, str, float], str]] = {
    "forest": _intervals,
    "bounds": _intervals,
    "groups": _intervals,
    "ridges": _ridges,
    "means": _means,
    "calibration": _calibration,
    "trade-off": _trade_off,
    "path": _path,
}
