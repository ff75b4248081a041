"""Figures of the benchmarks: all ratios on one axis, and growth of time and memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from studies.paper import figures

BLUE, ORANGE, GREEN = figures.COLOURS[:3]
GREY = "#8a99a8"
NAMES = {"fit": "corrected fit", "linear": "linear correction", "audit": "audit"}
AXES = {"n": "rows n", "q": "features q", "p": "protected columns p"}


def draw_ratios(groups: Mapping[str, Sequence[Mapping[str, Any]]], path: Path) -> Path:
    """Median and quartiles of each ratio under the name of its benchmark, and the limit where it has one."""
    lines = [line for name, ratios in groups.items() for line in (name, *ratios)]
    with figures.look():
        figure, axes = figures.subplots(width=figures.PAGE, height=0.6 + 0.15 * len(lines))
        axis = axes[0, 0]
        axis.axvline(1.0, color=GREY, linewidth=0.8, zorder=0)
        for at, ratio in enumerate(lines):
            if isinstance(ratio, str):
                axis.axhline(at, color="#e3e7eb", linewidth=0.8, zorder=0)
                continue
            limit = ratio["limit"]
            colour = BLUE if limit is None or ratio["median"] <= limit else ORANGE
            axis.plot([ratio["low"], ratio["high"]], [at, at], color=colour, solid_capstyle="butt")
            axis.plot(ratio["median"], at, "o", ms=3.5, color=colour)
            if limit is not None:
                axis.plot(limit, at, "|", ms=7, color="black")
        axis.set_yticks(range(len(lines)), [_label(line) for line in lines], fontsize=5.5)
        for text, line in zip(axis.get_yticklabels(), lines, strict=True):
            text.set_weight("bold" if isinstance(line, str) else "normal")
        axis.set(xscale="log", ylim=(len(lines) - 0.4, -0.6), xlabel="ours / peer (black: limit)")
        axis.xaxis.set_major_formatter("{x:g}")
        axis.tick_params(axis="y", length=0)
        axis.grid(axis="x")
        axis.set_axisbelow(True)
        return figures.save(figure, path)


def _label(line: Any) -> str:
    if isinstance(line, str):
        return line
    of = "" if line["of"] == "time" else f" ({line['of']})"
    return f"{line['what']}: {line['ours']} / {line['peer']}{of}"


def draw_growth(growth: Mapping[str, Any], path: Path) -> Path:
    """Time above, memory below; a panel for each size that grows."""
    with figures.look():
        figure, axes = figures.subplots(2, 3, height=4.4, sharex="col", sharey="row")
        for name, visits in growth["points"].items():
            kind, _, size = name.partition(", ")
            column = list(AXES).index(size)
            for solver in dict.fromkeys(visit.get("solver", "") for visit in visits):
                same = [visit for visit in visits if visit.get("solver", "") == solver]
                colour = {"fit": BLUE, "linear": GREEN, "audit": ORANGE}[kind]
                style = "s" if solver == "large" else "o"
                label = f"{NAMES[kind]}, {solver}" if solver else NAMES[kind]
                line = next(
                    (e for e in growth["exponents"] if [e["kind"], e["size"], e["solver"]] == [kind, size, solver]),
                    None,
                )
                if line:
                    label += f": exponent {line['time']['median']:.2f}"
                for row, key in enumerate(("seconds", "peak")):
                    sizes, (low, middle, high) = _summary(same, size, key)
                    axis = axes[row, column]
                    axis.fill_between(sizes, low, high, color=colour, alpha=0.2, linewidth=0)
                    axis.plot(
                        sizes,
                        middle,
                        style,
                        ls="-",
                        ms=3,
                        color=colour,
                        label=label,
                        mfc="white" if solver == "large" else colour,
                    )
            if kind == "fit":
                sizes, (_, data, _) = _summary(visits, size, "data")
                (dots,) = axes[1, column].plot(sizes, data, ":", color=GREY, label="the data themselves")
        for column, (size, text) in enumerate(AXES.items()):
            axes[0, column].set_title(_others(growth, size))
            axes[1, column].set_xlabel(text)
            axes[0, column].legend(fontsize=6, loc="upper left")
            for row in (0, 1):
                axes[row, column].set(xscale="log", yscale="log")
                axes[row, column].xaxis.set_minor_formatter("")
                axes[row, column].yaxis.set_minor_formatter("")
                axes[row, column].grid()
                axes[row, column].set_axisbelow(True)
        axes[0, 0].set_ylabel("seconds")
        axes[1, 0].set_ylabel("peak memory of the process, MB")
        axes[1, 0].legend(handles=[dots], fontsize=6, loc="upper left")
        return figures.save(figure, path)


def _summary(visits: Sequence[Mapping[str, Any]], size: str, key: str) -> tuple[list[int], np.ndarray]:
    """Sizes, and the smallest, median and largest value of the rounds at each."""
    sizes = list(dict.fromkeys(visit[size] for visit in visits))
    rounds = [[visit[key] for visit in visits if visit[size] == value] for value in sizes]
    return sizes, np.array([[min(each), np.median(each), max(each)] for each in rounds]).T


def _others(growth: Mapping[str, Any], size: str) -> str:
    first = growth["points"][f"fit, {size}"][0]
    return ", ".join(f"{key} = {first[key]}" for key in ("n", "q", "p") if key != size)
