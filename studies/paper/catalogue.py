"""Every table and figure of the paper, and how it is run here."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Any

from rich.progress import Progress

from setsquare.errors import InputError
from studies.paper.cells import Cells
from studies.paper.figures import look
from studies.paper.record import Record


@dataclass(frozen=True, slots=True)
class Entry:
    """A table or figure of the paper.

    Attributes
    ----------
    name : str
        The name that ``python -m studies`` takes.
    label : str
        Label in the paper's source.
    title : str
    module : str, optional
        Module of this package with ``run(quick, cells, progress) -> Record`` and ``draw(record, path)``, which returns
        the path of its figure, or several.
    reason : str
        Why there is none.
    """

    name: str
    label: str
    title: str
    module: str | None = None
    reason: str = ""

    @property
    def status(self) -> str:
        """Whether it can be run."""
        return "runs" if self.module else self.reason


ENTRIES = (
    Entry("table1", "tab:mimic", "Chest X-ray embeddings, pleural effusion", "table1"),
    Entry("fig1", "fig:demo_plot", "Loss surfaces, paths and correlation along the path", "fig1"),
    Entry(
        "table2", "tab:adult_transposed", "Adult: effects without, with Xu et al., and with the correction", "table2"
    ),
    Entry("fig3", "fig:fair", "Fairness benchmark: effects and p-values of five methods on four data sets", "fig3"),
    Entry("table3", "tab:performance_fair", "Performance with and without the correction", "table3"),
    Entry("table4", "tab:faces_transposed", "Faces: sex without age and race", "table4"),
    Entry("fig4", "fig:mnist", "Coloured digits: a network blinded to red", "fig4"),
    Entry("movies", "sec:expEMB", "Movie reviews: counts without the protected columns", "movies"),
    Entry("fig-forest", "fig:randfor", "Random forests as evaluation models", "fig_forest"),
    Entry(
        "fig-sim",
        "fig:glmsim to fig:glmsim6",
        "Simulation: effects and p-values after linear and generalised correction",
        "fig_sim",
    ),
    Entry("optimisers", "app:theo1", "The modified differential multiplier method and the exact optimum", "optimisers"),
    Entry("concepts", "Other Notions of Orthogonality", "Flipped attributes, free features and group-DRO", "concepts"),
    Entry("datasets", "tab:datasets", "Overview of the data sets", reason="nothing to run: see setsquare.datasets"),
    Entry("workflow", "fig:workflow", "The method as a diagram", reason="drawn in docs/theory.md"),
    Entry(
        "vector", "fig:vector", "Orthogonal vectors before and after an activation", reason="drawn in docs/theory.md"
    ),
    Entry("table6", "tab:runtime", "Run times of all methods", "table6"),
)


def find(name: str) -> Entry:
    """Entry of a table or figure.

    Examples
    --------
    >>> find("table2").label
    'tab:adult_transposed'
    """
    for entry in ENTRIES:
        if entry.name == name:
            return entry
    raise InputError(f"There is no experiment {name!r}: choose from {', '.join(entry.name for entry in ENTRIES)}.")


def targets() -> dict[str, Any]:
    """Figures as printed in the paper."""
    text = files("studies.paper").joinpath("targets.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def run(
    name: str,
    folder: Path,
    *,
    quick: bool = False,
    fresh: bool = False,
    progress: Progress | None = None,
) -> tuple[Record, list[Path]]:
    """Run an experiment and write its tables and its figure; one that was stopped goes on where it was.

    Parameters
    ----------
    name : str
        Of :data:`ENTRIES`.
    folder : Path
        Where the files go; ``cells/NAME.jsonl`` holds what was computed so far.
    quick : bool
        A smaller run, to see that it works: its files go to ``quick/``.
    fresh : bool
        Compute everything anew.
    progress : rich.progress.Progress, optional
        Where to show how far it is.
    """
    entry = find(name)
    if entry.module is None:
        raise InputError(f"{name} cannot be run ({entry.reason}): see python -m studies --list.")
    module = import_module(f"studies.paper.{entry.module}")
    cells = Cells(folder / "cells" / f"{name}{'-quick' if quick else ''}.jsonl", fresh=fresh)
    found: Record = module.run(quick=quick, cells=cells, progress=progress or Progress(disable=True))
    record = replace(found, made=cells.made())
    folder = folder / "quick" if quick else folder
    paths = record.write(folder)
    if hasattr(module, "draw"):
        with look():
            drawn = module.draw(record, folder / f"{name}.png")
        paths += [drawn] if isinstance(drawn, Path) else drawn
    return record, paths
