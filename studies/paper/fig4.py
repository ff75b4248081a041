"""The paper's figure on coloured digits (``fig:mnist``): accuracy and influence of red, for every mode."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import Progress

from studies.paper import colored_mnist, figures
from studies.paper.catalogue import targets
from studies.paper.cells import Cells
from studies.paper.colored_mnist import PARTS
from studies.paper.colored_mnist_early import STEPS, over_time
from studies.paper.colored_mnist_training import MODES, Settings
from studies.paper.movies_names import AUTHORS
from studies.paper.names import WITHOUT
from studies.paper.record import Record, Table

CHANNELS = "map of channels, ours"
#: Names of the paper's two networks, of corrections of the same layer, the map of channels, and the ceiling.
SHOWN = {
    "uncorrected": WITHOUT,
    "published": AUTHORS,
    "post": "layer, ours, behind ReLU",
    "pre": "layer, ours, before ReLU",
    "generalized": "layer, ours, generalised",
    "second moments, red": CHANNELS,
    "grey": "images without colours",
}
QUICK = ("uncorrected", "published", "generalized", "grey")
_PRINTED = {WITHOUT: "not much more than 0.5", AUTHORS: "better (a figure, no number)"}


def run(*, quick: bool, cells: Cells, progress: Progress, seeds: Sequence[int] = (0, 1, 2)) -> Record:
    """Train the networks of all modes and seeds; ``quick`` one seed of four modes, on few rows."""
    chosen = (QUICK, [0], Settings(2, 2, n_train=1000)) if quick else (tuple(SHOWN), seeds, Settings())
    early = [
        cells({"over time": mode, "seed": seed, "steps": list(STEPS)}, partial(over_time, mode, seed))
        for seed in (() if quick else (0, 1, 2))
        for mode in ("published", "uncorrected")
    ]
    result = colored_mnist.run(*chosen, cells=cells, progress=progress)
    runs = [row | {"label": SHOWN[row["mode"]]} for row in result["runs"]]
    rows = [
        (
            SHOWN[mode],
            MODES[mode].protected if _corrects(mode) else "",
            *(mean[part] for part in PARTS),
            f"{mean['test_range'][0]:.3f} to {mean['test_range'][1]:.3f}",
            mean["influence_output"],
            _PRINTED.get(SHOWN[mode], ""),
        )
        for mode, mean in result["table"].items()
    ]
    columns = ("network", "protects", *PARTS, "test, worst to best seed", "corr(red, output)", "paper, test")
    title = f"Accuracy on the counterfactual test rows, {_seeds(len({row['seed'] for row in runs}))}"
    return Record(
        "fig4",
        "Coloured digits: a network blinded to red",
        (Table(title, columns, rows),),
        reasons(runs, result["red_and_label"], early),
        {"red_and_label": result["red_and_label"], "settings": result["settings"], "runs": runs, "early": early},
    )


def _seeds(count: int) -> str:
    return "one seed" if count == 1 else f"means over {count} seeds"


def _corrects(mode: str) -> bool:
    return MODES[mode].where is not None or MODES[mode].channels is not None


def reasons(runs: list[dict[str, Any]], red_and_label: float, early: list[dict[str, Any]]) -> tuple[str, ...]:
    """What the numbers say; each sentence is chosen by them."""
    mean = {
        label: {key: float(np.mean([row[key] for row in runs if row["label"] == label])) for key in ("test", "seconds")}
        for label in dict.fromkeys(row["label"] for row in runs)
    }
    sentences = []
    if early:
        at = {
            mode: np.mean([one["accuracy"] for one in early if one["mode"] == mode], axis=0)
            for mode in ("published", "uncorrected")
        }
        best = int(np.argmax(at["published"]))
        sentences.append(
            f"Over training time, the network with the authors' layer has a test accuracy of "
            f"{at['published'][best]:.2f} after {STEPS[best]} steps and {at['published'][-1]:.2f} after {STEPS[-1]} "
            f"(without a correction {at['uncorrected'][best]:.2f} and {at['uncorrected'][-1]:.2f}; means of "
            f"{len(early) // 2} seeds): what it reaches depends on when training stops, and the validation rows cannot "
            "tell when."
        )
    sentences.append(
        "The influence in the printed figure, on units of the convolutional layer, is zero by construction: the script "
        "applies the layer's projection to the responses and then regresses them on red. Here the table has the "
        "correlation of red with the network's output at test time, on test digits in all three colours (the paper's "
        "test digits have no red), the picture that with the units of the first convolution."
    )
    if CHANNELS in mean:
        sentences.append(
            f"A map of the three channels, the same for every pixel and learned on pixels with ink before training, "
            f"reaches {mean[CHANNELS]['test']:.3f}: it keeps what has the same mean and the same square for red and "
            "other images, which is grey. It assumes that colour is a property of single pixels."
        )
    networks = {label: one["test"] for label, one in mean.items() if label.startswith("layer")}
    for verdict, low in (("still reads the colour", True), ("mostly reads the digit", False)):
        if shown := [f"{label} {test:.3f}" for label, test in networks.items() if (test < 0.75) == low]:
            sentences.append(
                f"Test accuracy: {'; '.join(shown)}. Each of these networks {verdict}. The correlation of red with the "
                f"label is {red_and_label:.3f} in the training rows: whatever removes all of red removes the label."
            )
    minutes = {label: one["seconds"] / 60.0 for label, one in mean.items() if label in (AUTHORS, WITHOUT)}
    if len(minutes) == 2:
        printed = targets()["colored_mnist"]["minutes"]
        sentences.append(
            f"Minutes of a training: {printed['with'][0]} with and {printed['without'][0]:.2f} without the layer are "
            f"printed; here {minutes[AUTHORS]:.2f} and {minutes[WITHOUT]:.2f} of processor time, on another machine. "
            f"With the layer there are more epochs, as the paper says: {epochs(runs, AUTHORS):.1f} and "
            f"{epochs(runs, WITHOUT):.1f} on average (a training ends as soon as the validation accuracy is 1)."
        )
    return tuple(sentences)


def epochs(runs: list[dict[str, Any]], label: str) -> float:
    """Epochs of a training on average."""
    return float(np.mean([row["epochs"] for row in runs if row["label"] == label]))


def draw(record: Record, path: Path) -> Path:
    """As in the paper's figure: influence of red on the first convolution, and accuracies; these over time, too."""
    runs: list[dict[str, Any]] = record.data["runs"]
    labels = list(dict.fromkeys(row["label"] for row in runs))
    height = 1.0 + 0.27 * len(labels)
    figure, axes = figures.subplots(1, 3, figures.PAGE, height, width_ratios=(1.0, 1.2, 1.1))
    left, middle, right = axes[0]
    names = ("whislo", "q1", "med", "q3", "whishi")
    boxes = []
    for label in labels:
        quartiles = np.mean([row["influence_units"] for row in runs if row["label"] == label], axis=0)
        boxes.append(dict(zip(names, quartiles, strict=True)))
    grey = {"color": "#444444"}
    styles = dict.fromkeys(("boxprops", "whiskerprops", "capprops"), grey)
    median = {"color": figures.COLOURS[1], "linewidth": 2.0}
    left.bxp(boxes, showfliers=False, orientation="horizontal", widths=0.5, medianprops=median, **styles)
    left.axvline(0.0, color="#999999", linewidth=0.6, zorder=0)
    left.set(xlabel="correlation of red with units\nof the first convolution, test")
    left.set_yticks(range(1, len(labels) + 1), labels)
    for k, part in enumerate(PARTS):
        for place, label in enumerate(labels, start=1):
            values = [row[part] for row in runs if row["label"] == label]
            where = place + 0.25 * (k - 1)
            middle.plot([min(values), max(values)], [where, where], color=figures.COLOURS[k], linewidth=2.0, alpha=0.5)
            middle.plot(values, [where] * len(values), "o", color=figures.COLOURS[k], markersize=3.0)
        middle.plot([], [], "o", color=figures.COLOURS[k], ms=3.0, label=part)
    middle.axvline(0.5, color="#999999", linewidth=0.6, zorder=0)
    middle.set(xlabel="accuracy, one point per seed\n(test: counterfactual)", xlim=(0.45, 1.02))
    middle.set_yticks(range(1, len(labels) + 1), [])
    middle.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, columnspacing=1.0, handletextpad=0.2)
    for axis in (left, middle):
        axis.set_ylim(len(labels) + 0.5, 0.5)
    _over_time(right, record.data["early"])
    return figures.save(figure, path)


def _over_time(axis: Any, early: list[dict[str, Any]]) -> None:
    """Test accuracy after so many steps, a line for each seed."""
    for k, (mode, style) in enumerate((("uncorrected", "--"), ("published", "-"))):
        lines = [one for one in early if one["mode"] == mode]
        for j, one in enumerate(lines):
            label = SHOWN[mode] if j == 0 else None
            axis.plot(one["steps"], one["accuracy"], style, color=figures.COLOURS[k], lw=1.0, label=label)
    axis.axhline(0.5, color="#999999", linewidth=0.6, zorder=0)
    axis.set(xscale="log", xlabel="steps of training", ylabel="test accuracy", ylim=(0.35, 1.02))
    if early:
        axis.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=1)
