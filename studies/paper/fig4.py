"""The paper's figure on coloured digits (``fig:mnist``): accuracy and influence of red, for every mode."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import Progress

from studies.paper import colored_mnist, figures
from studies.paper.cells import Cells
from studies.paper.colored_mnist import PARTS
from studies.paper.colored_mnist_training import MODES, Settings
from studies.paper.record import Record, Table

#: Modes that are also stopped on the validation loss, since the paper does not name its rule.
ON_LOSS = ("published",)
QUICK = ("uncorrected", "published", "generalized", "moments, colour")
_PRINTED = {"uncorrected": "not much more than 0.5", "published": "better (a figure, no number)"}


def run(*, quick: bool, cells: Cells, progress: Progress, seeds: Sequence[int] = (0, 1, 2)) -> Record:
    """Train the networks of all modes and seeds; ``quick`` one seed of four modes, on few rows."""
    if quick:
        results = {"accuracy": colored_mnist.run(QUICK, [0], Settings(2, 2, n_train=1000), cells=cells)}
    else:
        settings = {"accuracy": Settings(), "loss": Settings(monitor="loss")}
        modes = {"accuracy": tuple(MODES), "loss": ON_LOSS}
        results = {
            rule: colored_mnist.run(modes[rule], seeds, settings[rule], cells=cells, progress=progress)
            for rule in settings
        }
    rows, runs = [], []
    for monitor, result in results.items():
        for mode, mean in result["table"].items():
            constrained = MODES[mode].constraint is not None
            rows.append(
                (
                    mode,
                    MODES[mode].protected if _corrects(mode) else "",
                    "penalty" if constrained else monitor,
                    *(mean[part] for part in PARTS),
                    f"{mean['test_range'][0]:.3f} to {mean['test_range'][1]:.3f}",
                    mean["influence_output"],
                    _PRINTED.get(mode, ""),
                )
            )
        runs += [row | {"label": _label(row["mode"], monitor)} for row in result["runs"]]
    columns = ("mode", "protects", "stops on", *PARTS, "test, worst to best seed", "corr(red, output)", "paper, test")
    first = next(iter(results.values()))
    title = f"Accuracy on the counterfactual test rows, means over {len({row['seed'] for row in runs})} seed(s)"
    return Record(
        "fig4",
        "Coloured digits: a network blinded to red",
        (Table(title, columns, rows),),
        _reasons(first["red_and_label"]),
        {"red_and_label": first["red_and_label"], "settings": first["settings"], "runs": runs},
    )


def _corrects(mode: str) -> bool:
    return MODES[mode].where is not None or MODES[mode].constraint is not None


def _label(mode: str, monitor: str) -> str:
    return f"{mode} (stop on loss)" if monitor == "loss" else mode


def _reasons(red_and_label: float) -> tuple[str, ...]:
    return (
        f"Measured before anything is fitted: the correlation of red with the label in the training rows is "
        f"{red_and_label:.3f}. Red is the label there, so whatever removes all of red removes the label, too.",
        "The paper's plot of the influence projects the responses once more before it measures them; here it is "
        "measured on what the network puts out at test time, on test images of all three colours.",
        "The published layer is off at test time, and its network still reads the colour: where its accuracy is above "
        "one half, that depends on the epoch at which it is stopped.",
        "Correcting a layer row by row leaves the colour in what is not linear in red at that layer, and the rest of "
        "the network finds it. Pressing the spatially pooled responses towards zero correlation moves the filters "
        "themselves; with the colour (red and green) protected they answer to shape.",
        'Protecting red alone, as the paper does, is not enough: see "moments, red", "pooled, red". Zero correlation '
        "with red allows a strong answer to green and a weak one to blue.",
    )


def draw(record: Record, path: Path) -> Path:
    """Box plots as in the paper's figure: influence of red on the first convolution, and accuracies."""
    runs: list[dict[str, Any]] = record.data["runs"]
    labels = list(dict.fromkeys(row["label"] for row in runs))
    figure, axes = figures.subplots(1, 2, height=0.9 + 0.27 * len(labels), sharey=True, width_ratios=(1, 1.6))
    left, right = axes[0]
    names = ("whislo", "q1", "med", "q3", "whishi")
    boxes = []
    for label in labels:
        quartiles = np.mean([row["influence_units"] for row in runs if row["label"] == label], axis=0)
        boxes.append(dict(zip(names, quartiles, strict=True)))
    grey = {"color": "#444444"}
    left.bxp(
        boxes,
        showfliers=False,
        orientation="horizontal",
        widths=0.5,
        boxprops=grey,
        whiskerprops=grey,
        capprops=grey,
        medianprops={"color": figures.COLOURS[1], "linewidth": 2.0},
    )
    left.axvline(0.0, color="#999999", linewidth=0.6, zorder=0)
    left.set(xlabel="correlation of red with a unit\nof the first convolution, at test time", yticklabels=labels)
    for k, part in enumerate(PARTS):
        for place, label in enumerate(labels, start=1):
            values = [row[part] for row in runs if row["label"] == label]
            height = place + 0.25 * (k - 1)
            right.plot([min(values), max(values)], [height, height], color=figures.COLOURS[k], linewidth=2.0, alpha=0.5)
            right.plot(values, [height] * len(values), "o", color=figures.COLOURS[k], markersize=3.0)
        right.plot([], [], "o", color=figures.COLOURS[k], label="counterfactual test" if part == "test" else part)
    right.axvline(0.5, color="#999999", linewidth=0.6, zorder=0)
    right.set(xlabel="accuracy (a point a seed)", xlim=(0.45, 1.02))
    right.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=3)
    left.invert_yaxis()
    return figures.save(figure, path)
