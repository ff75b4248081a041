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
from studies.paper.record import Record, Table

#: The paper's two networks, corrections of the same layer, the map of channels, and images without colours (ceiling).
SHOWN = ("uncorrected", "published", "second moments, red", "post", "pre", "generalized", "grey")
QUICK = ("uncorrected", "published", "generalized", "grey")
_PRINTED = {"uncorrected": "not much more than 0.5", "published": "better (a figure, no number)"}


def run(*, quick: bool, cells: Cells, progress: Progress, seeds: Sequence[int] = (0, 1, 2)) -> Record:
    """Train the networks of all modes and seeds; ``quick`` one seed of four modes, on few rows."""
    chosen = (QUICK, [0], Settings(2, 2, n_train=1000)) if quick else (SHOWN, seeds, Settings())
    result = colored_mnist.run(*chosen, cells=cells, progress=progress)
    early = [
        cells({"over time": mode, "seed": seed, "steps": list(STEPS)}, partial(over_time, mode, seed))
        for seed in (() if quick else (0, 1, 2))
        for mode in ("published", "uncorrected")
    ]
    runs = [row | {"label": row["mode"]} for row in result["runs"]]
    rows = [
        (
            mode,
            MODES[mode].protected if _corrects(mode) else "",
            *(mean[part] for part in PARTS),
            f"{mean['test_range'][0]:.3f} to {mean['test_range'][1]:.3f}",
            mean["influence_output"],
            _PRINTED.get(mode, ""),
        )
        for mode, mean in result["table"].items()
    ]
    columns = ("mode", "protects", *PARTS, "test, worst to best seed", "corr(red, output)", "paper, test")
    title = f"Accuracy on the counterfactual test rows, means over {len({row['seed'] for row in runs})} seed(s)"
    return Record(
        "fig4",
        "Coloured digits: a network blinded to red",
        (Table(title, columns, rows),),
        reasons(runs, result["red_and_label"], early),
        {"red_and_label": result["red_and_label"], "settings": result["settings"], "runs": runs, "early": early},
    )


def _corrects(mode: str) -> bool:
    return MODES[mode].where is not None or MODES[mode].channels is not None


def reasons(runs: list[dict[str, Any]], red_and_label: float, early: list[dict[str, Any]]) -> tuple[str, ...]:
    """What the numbers say; each sentence is chosen by them."""
    mean = {
        label: {key: float(np.mean([row[key] for row in runs if row["label"] == label])) for key in ("test", "seconds")}
        for label in dict.fromkeys(row["label"] for row in runs)
    }
    sentences = [
        f"The correlation of red with the label is {red_and_label:.3f} in the training rows: red is the label, so "
        "whatever removes all of red removes the label, too.",
        "The influence in the printed figure is zero by construction: the script projects [1, red] out of the "
        "responses before it regresses them on red. Here it is measured on what the network puts out at test time.",
    ]
    networks = {label: mean[label]["test"] for label in ("published", "post", "pre", "generalized") if label in mean}
    for verdict, low in (("still reads the colour", True), ("mostly reads the digit", False)):
        if shown := [f"{label} {test:.3f}" for label, test in networks.items() if (test < 0.75) == low]:
            sentences.append(f"Test accuracy {', '.join(shown)}: each of these networks {verdict}.")
    if "second moments, red" in mean:
        sentences.append(
            f"second moments, red: test accuracy {mean['second moments, red']['test']:.3f}. A map of the channels, "
            "the same for every pixel and learned on pixels with ink before training, keeps what has the same mean and "
            "the same square for red and other images: grey. It assumes that colour is a property of single pixels."
        )
    if early:
        at = {
            mode: np.mean([one["accuracy"] for one in early if one["mode"] == mode], axis=0)
            for mode in ("published", "uncorrected")
        }
        best = int(np.argmax(at["published"]))
        sentences.append(
            f"Over training time, the published layer has a test accuracy of {at['published'][best]:.2f} after "
            f"{STEPS[best]} steps and {at['published'][-1]:.2f} after {STEPS[-1]} (without a correction "
            f"{at['uncorrected'][best]:.2f} and {at['uncorrected'][-1]:.2f}; means of {len(early) // 2} seeds): what "
            "it reaches depends on when training stops, and the validation rows cannot tell when."
        )
    minutes = {label: one["seconds"] / 60.0 for label, one in mean.items() if label in ("published", "uncorrected")}
    if len(minutes) == 2:
        printed = targets()["colored_mnist"]["minutes"]
        sentences.append(
            f"Minutes of a training: {printed['with'][0]} with and {printed['without'][0]:.2f} without the layer are "
            f"printed; here {minutes['published']:.2f} and {minutes['uncorrected']:.2f}, on another machine. More "
            f"epochs make the difference, as the paper says: {epochs(runs, 'published'):.1f} and "
            f"{epochs(runs, 'uncorrected'):.1f} on average (a training ends as soon as the validation accuracy is 1)."
        )
    return tuple(sentences)


def epochs(runs: list[dict[str, Any]], label: str) -> float:
    """Epochs of a training on average."""
    return float(np.mean([row["epochs"] for row in runs if row["label"] == label]))


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
