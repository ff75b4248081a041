"""Results of the two groups of images: means over seeds, a table, and the figure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from studies.datasets.two_groups import best_accuracy

#: Level of a permutation test of dependence in one group.
LEVEL = 0.025


def summarise(results: dict[str, Any]) -> list[dict[str, Any]]:
    """Means over the seeds; `leaks` is the share of seeds in which a group's predictions depend."""
    cells: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in results["runs"]:
        cells.setdefault((row["method"], row["batch"]), []).append(row)
    names = list(dict.fromkeys(method for method, _ in cells))
    keys = ("confounded", "unconfounded", "dcor2_prediction", "dcor2_units")
    return [
        {"method": method, "batch": batch, "n_seeds": len(rows)}
        | {key: float(np.mean([row[key] for row in rows])) for key in keys}
        | {"leaks": float(np.mean([min(row["p_prediction"]) <= LEVEL for row in rows]))}
        | {"worst": min(row["unconfounded"] for row in rows)}
        for (method, batch), rows in sorted(cells.items(), key=lambda cell: names.index(cell[0][0]))
    ]


def show(results: dict[str, Any], console: Console) -> None:
    heads = ("accuracy", "unconfounded", "worst seed", "dcor², prediction", "dcor², units", "dependence found")
    table = Table("method", "batch", *heads, title="New images; dependence on the confounder is given the group")
    for c in summarise(results):
        numbers = (c["confounded"], c["unconfounded"], c["worst"], c["dcor2_prediction"], c["dcor2_units"])
        found = f"{c['leaks'] * c['n_seeds']:.0f} of {c['n_seeds']}"
        table.add_row(c["method"], str(c["batch"]), *(f"{number:.3f}" for number in numbers), found)
    console.print(table)
    limits = (best_accuracy(confounder=use) for use in (False, True))
    console.print("Best accuracy with the signal alone {:.3f}, with both {:.3f}.".format(*limits))


def draw_figure(results: dict[str, Any], path: Path) -> None:
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    cells = summarise(results)
    names = list(dict.fromkeys(c["method"] for c in cells))
    batches = sorted({c["batch"] for c in cells})
    colours = dict(zip(batches, colormaps["viridis"](np.linspace(0.0, 0.88, len(batches))), strict=True))
    figure = Figure(figsize=(11.0, 5.6), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(1.8, 1))
    for use, text in ((False, "best with\nsignal alone"), (True, "best with\nboth")):
        left.axvline(best_accuracy(confounder=use), color="#8a99a8", lw=1, zorder=0)
        left.text(best_accuracy(confounder=use), -0.62, text, ha="center", va="bottom", fontsize=8, color="#56636f")
    for c in cells:
        at = names.index(c["method"]) + 0.7 * ((batches.index(c["batch"]) + 0.5) / len(batches) - 0.5)
        colour = colours[c["batch"]]
        left.plot([c["confounded"], c["unconfounded"]], [at, at], color=colour, lw=1)
        left.plot(c["confounded"], at, "o", ms=5, mfc="white", color=colour)
        left.plot(c["unconfounded"], at, "o", ms=5, color=colour)
        right.plot(c["dcor2_prediction"], at, "o", ms=5, color=colour)
    for y in range(1, len(names)):
        for axis in (left, right):
            axis.axhline(y - 0.5, color="#e3e7eb", lw=0.8, zorder=0)
    left.set_yticks(range(len(names)), names)
    left.set_ylim(len(names) - 0.5, -0.5)
    left.set_xlabel("accuracy on new images:\nconfounded (open), confounder unrelated to the group (filled)")
    right.set_xlabel("squared distance correlation of predictions\nand confounder, given the group")
    right.axvline(0.0, color="#8a99a8", lw=1, zorder=0)
    handles = [left.plot([], [], "o", color=colours[batch], label=str(batch))[0] for batch in batches]
    left.legend(handles=handles, title="batch size", fontsize=8, title_fontsize=8, loc="lower left")
    for axis in (left, right):
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(axis="y", length=0)
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=150)
