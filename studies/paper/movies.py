"""The paper's movies (section ``sec:expEMB``): votes predicted from descriptions, without the gender of actor and crew.

The paper trains its LSTM with a rate of 1e-6 for up to 1000 epochs, hours on one core: each run goes on for
:data:`LIMIT` seconds from where the last one ended, and says so if early stopping has not ended it. At ten times the
rate the same network ends by the same rule in minutes, and so does one with tanh and a rate of 3e-3. The same question
is put to a Poisson model on sentence embeddings, which is fitted in a second.
"""

from __future__ import annotations

import os
import uuid
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import Progress

from studies.paper import figures
from studies.paper.catalogue import targets
from studies.paper.cells import Cells
from studies.paper.movies_models import (
    CODINGS,
    FEATURES,
    FIT,
    IN_NETWORK,
    PREDICTIONS,
    UNSEEN,
    Movies,
    divergence,
    network_model,
    new_splits,
    scores,
    text_model,
    untrained,
)
from studies.paper.movies_names import AUTHORS, FASTER, LAYER, PAPER, TEXT, TRAINED
from studies.paper.movies_network import Correction, Settings
from studies.paper.movies_reasons import missed, reasons
from studies.paper.names import WITHOUT, symbol
from studies.paper.record import Record, Table

#: Processor seconds for which a run of the study trains each network with ReLU; a later run goes on.
LIMIT = float(os.environ.get("MOVIES_SECONDS", "1200"))
PAPERS = Settings("relu", 1e-6, epochs=1000, patience=10, validation=0.2, last=True)
SETTINGS = {
    PAPER: PAPERS,
    FASTER: replace(PAPERS, learning_rate=1e-5),
    TRAINED: Settings("tanh", 3e-3, epochs=6, patience=2),
}
#: Networks that are trained: settings, what is done after the embedding, and by which coding.
NETWORKS: tuple[tuple[str, Correction, str], ...] = (
    (PAPER, "without", "paper"),
    (PAPER, "published", "paper"),
    (FASTER, "without", "paper"),
    (FASTER, "published", "paper"),
    (TRAINED, "without", "paper"),
    (TRAINED, "layer", "paper"),
    (TRAINED, "published", "paper"),
)
#: Rates at which the paper's network is watched for an epoch.
RATES = (1e-4, 1e-3)
#: Random splits as large as the paper's, and first weights without any training: their numbers are the seeds.
SPLITS, STARTS = 20, 10
#: Ticks of the figure.
RATIOS = (0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3)
ORDER: dict[str, list[str]] = {
    "model": [PAPER, FASTER, TRAINED, TEXT],
    "coding": list(CODINGS),
    "correction": [WITHOUT, LAYER, AUTHORS, FEATURES, FIT, PREDICTIONS, UNSEEN],
}


def run(*, quick: bool, cells: Cells, progress: Progress) -> Record:
    """Train the networks, fit the text model, and audit all of them; a quick run has few rows and one epoch."""
    movies = Movies.load(*((500, 250) if quick else ()))
    settings = {name: replace(one, epochs=1) if quick else one for name, one in SETTINGS.items()}
    networks = [
        one
        for one in NETWORKS
        if not quick or one[1:] in (("without", "paper"), ("layer", "paper"), ("published", "paper"))
    ]
    found: list[dict[str, Any]] = []
    trainings: list[dict[str, Any]] = []
    for name, correction, coding in networks:
        result = _train(movies, correction, coding, settings[name], cells, progress)
        found += [{"model": name, **one} for one in result.pop("found")]
        trainings.append({"model": name, "correction": IN_NETWORK[correction], "coding": coding, **result})
    found += _text(movies, cells)
    found.sort(key=lambda one: [order.index(one[key]) for key, order in ORDER.items()])
    data = {"found": found, "trainings": trainings, **_around(movies, cells, progress, quick=quick)}
    return tabulate(data)


def tabulate(data: dict[str, Any]) -> Record:
    """Tables and reasons from what was measured."""
    found = data["found"]
    tables = [_printed(found), _effects(found), _fits(found), _trainings(data["trainings"]), _splits(data["splits"])]
    sentences = tuple(reasons(data))
    title = "Movies: votes without the gender of actor and crew"
    return Record("movies", title, tuple(tables), sentences, data, missed(data))


def _text(movies: Movies, cells: Cells) -> list[dict[str, Any]]:
    """The text model with each correction and coding."""
    found = []
    for correction in (WITHOUT, FEATURES, FIT, PREDICTIONS):
        for coding in CODINGS:
            key = {"text": correction, "coding": coding, "rows": len(movies.y)}
            result = cells(key, partial(text_model, movies, correction, coding))
            found.append({"model": TEXT, "correction": correction, "coding": coding, **result})
    return found


def _around(movies: Movies, cells: Cells, progress: Progress, *, quick: bool) -> dict[str, Any]:
    """What is measured besides: other rates, random splits, networks that were never trained, a constant prediction."""
    rates, splits, starts = ((), 2, 2) if quick else (RATES, SPLITS, STARTS)
    size = {"rows": len(movies.y)}
    task = progress.add_task("other rates, random splits, first weights", total=len(rates) + len(CODINGS) + starts)
    diverged, again, first = {}, {}, []
    for rate in rates:
        diverged[f"{rate:.0e}"] = cells({"divergence": rate, **size}, partial(divergence, movies, rate))["steps"]
        progress.advance(task)
    for coding in CODINGS:
        key = {"splits": splits, "coding": coding, **size}
        again[coding] = cells(key, partial(new_splits, movies, coding, splits))
        progress.advance(task)
    for seed in range(starts):
        first.append(cells({"start": seed, **size}, partial(untrained, movies, "paper", seed)))
        progress.advance(task)
    constant = np.full(len(movies.y), movies.y[movies.train].mean())
    votes = movies.y[movies.train]
    cut = len(votes) - round(PAPERS.validation * len(votes))
    known = {"mean": float(constant[0]), "early": float(votes[:cut].mean()), "late": float(votes[cut:].mean())}
    known |= scores(movies, constant)
    return {"constant": known, "diverged": diverged, "splits": again, "untrained": first}


def _train(
    movies: Movies, correction: Correction, coding: str, settings: Settings, cells: Cells, progress: Progress
) -> dict[str, Any]:
    """One network as a cell; a training that was stopped goes on from the checkpoint beside the cells."""
    n = int(movies.train.sum())
    key: dict[str, Any] = {"network": correction, "coding": coding, "rows": len(movies.y), **asdict(settings)}
    steps = settings.epochs * -(-round((1.0 - settings.validation) * n) // settings.batch)
    label = f"{correction}, {coding}, {settings.activation}, rate {settings.learning_rate:.0e}"
    task = progress.add_task(label, total=steps)
    # The name is a cell, too: whoever asks for everything anew gets a new file.
    name = cells({**key, "checkpoint": True}, lambda: uuid.uuid4().hex)
    checkpoint = None if cells.path is None else cells.path.parent / f"movies-{name}.pt"
    compute = partial(network_model, movies, correction, coding, settings, checkpoint=checkpoint)
    afterwards = correction == "without" and settings.activation == "tanh"  # an untrained network is not worth it
    whole = partial(compute, afterwards=afterwards, advance=partial(progress.advance, task))
    whole = partial(whole, limit=LIMIT) if settings.last else whole
    # Kept only when it has ended: a training that was cut off goes on in the next run.
    result = dict(cells(key, whole, keep=lambda found: found["ended"]))
    progress.update(task, completed=steps)
    return result


def _printed(found: list[dict[str, Any]]) -> Table:
    """The paper's p-values beside those of the same coding here."""
    printed = targets()["movies"]
    rows: list[Any] = []
    for one in found:
        if one["coding"] == "paper":
            p = {WITHOUT: printed["without_p"], AUTHORS: printed["corrected_p"]}.get(one["correction"], (None, None))
            for effect, as_printed in zip(one["effects"], p if one["model"] != TEXT else (None, None), strict=True):
                here = (effect[key] for key in ("p_model", "p_model_fit", "p_value"))
                rows.append((one["model"], one["correction"], _term(effect), as_printed, *here, *_ratio(effect)))
    p_values = ("p, printed", "p, model-based", "p, the same, rows of the fit", "p, HC3")
    columns = ("model", "correction", "term", *p_values, "rate ratio", "low", "high")
    title = "The paper's coding (unknown -1, female 0, male 1), test rows: p-values, and rate ratio for one more"
    return Table(title, columns, rows)


def _term(effect: dict[str, Any]) -> str:
    """A name without brackets, which the terminal takes for markup: ``actor: female``."""
    name: str = effect["term"].replace("_", " ").replace("[", ": ").rstrip("]")
    return name


def _ratio(effect: dict[str, Any]) -> list[float | None]:
    return [float(np.exp(effect[key])) if key in effect else None for key in ("estimate", "ci_low", "ci_high")]


def _effects(found: list[dict[str, Any]]) -> Table:
    rows = [
        (one["model"], one["coding"], one["correction"], _term(effect), *_ratio(effect), effect["p_value"])
        for one in found
        if one["coding"] != "paper" and one["model"] != PAPER
        for effect in one["effects"]
    ]
    columns = ("model", "crew", "correction", "term", "rate ratio", "low", "high", "p, HC3")
    title = "Unknown gender as a level, test rows: predicted votes relative to male, with 95 % intervals (HC3)"
    return Table(title, columns, rows)


def _fits(found: list[dict[str, Any]]) -> Table:
    before = {one["model"]: one for one in found if one["correction"] == WITHOUT}
    rows = []
    for one in found:
        cost = {
            score: 100.0 * (one[score]["estimate"] / before[one["model"]][score]["estimate"] - 1.0)
            for score in ("rmse", "deviance")
        }
        leak = (one["correlation_fit"], one["correlation"], one["p_value"])
        rmse = (one["rmse"].get(key) for key in ("estimate", "ci_low", "ci_high"))
        printed = one["model"] != TEXT and (one["correction"], one["coding"]) == (AUTHORS, "paper")
        costs = (100.0 * targets()["movies"]["rmse_increase"] if printed else None, cost["rmse"])
        deviance = (one["deviance"]["estimate"], cost["deviance"], one.get("deviance_level"))
        rows.append((one["model"], one["correction"], one["coding"], *leak, *rmse, *costs, *deviance))
    errors = ("RMSE", "low", "high", "RMSE, %, printed", "RMSE, %", "deviance", "deviance, %", "deviance, level set")
    columns = ("model", "correction", "coding", "corr, rows of the fit", "corr, test", "p, HC3", *errors)
    return Table("Correlation with all protected columns, errors on test rows and their increase in %", columns, rows)


def _trainings(trainings: list[dict[str, Any]]) -> Table:
    rows: list[Any] = []
    for one in trainings:
        losses = one["losses"]
        best = int(np.argmin(losses))
        kind = (one["model"], one["correction"], one["coding"])
        rows.append((*kind, len(losses) - 1, best, losses[0], losses[best], one["loss_constant"], one["seconds"]))
    columns = (
        "network",
        "correction",
        "coding",
        "epochs",
        "best epoch",
        "loss at start",
        "best",
        "constant",
        "seconds",
    )
    title = "Trainings: Poisson loss on validation rows (ReLU: the last fifth, as in Keras; tanh: a random tenth)"
    return Table(title, columns, rows)


def _splits(again: dict[str, Any]) -> Table:
    keys = ("correlation", "largest", "by_chance", "p_value")
    rows = [(coding, *(one[key] for key in keys)) for coding, one in again.items()]
    columns = ("coding", "corr, new rows", "largest", "by chance", "p, HC3")
    return Table("Text model, exact fit, on random splits of the paper's size: correlation on new rows", columns, rows)


def draw(record: Record, path: Path) -> Path:
    """Rate ratios with intervals, by correction; the paper's coding above, levels below."""
    found: list[dict[str, Any]] = record.data["found"]
    figure, axes = figures.subplots(2, 2, figures.PAGE, 4.4, sharex=True, sharey="row", height_ratios=(2, 4))
    colours = dict(zip(ORDER["correction"], ("#000000", *figures.COLOURS[:6]), strict=True))
    for column, model in zip(axes.T, (TRAINED, TEXT), strict=True):
        for axis, coding in zip(column, ("paper", "director"), strict=True):
            shown = [one for one in found if (one["model"], one["coding"]) == (model, coding)]
            for k, one in enumerate(shown):
                ratio, low, high = np.array([_ratio(effect) for effect in one["effects"]], dtype=float).T
                height = np.arange(len(ratio)) + 0.13 * (k - 0.5 * (len(shown) - 1))
                ends, colour = (ratio - low, high - ratio), colours[one["correction"]]
                axis.errorbar(ratio, height, xerr=ends, fmt="o", ms=3, color=colour)
            terms = [_term(effect).replace(": ", ":\n") for effect in shown[0]["effects"]]
            axis.axvline(1.0, color="black", lw=0.6)
            axis.set_yticks(range(len(terms)), terms)
            axis.set(ylim=(len(terms) - 0.5, -0.5), xscale="log")
            axis.set_xticks(RATIOS, [f"{ratio:.1f}" for ratio in RATIOS])
            axis.minorticks_off()
            axis.grid(axis="x")
        column[0].set_title(model)
        column[1].set_xlabel("ratio of predicted votes, 95 % (HC3)")
    axes[0, 0].set_ylabel("paper's coding,\none step up")
    axes[1, 0].set_ylabel("levels, to male")
    there = {one["correction"] for one in found}
    for name, colour in colours.items():
        if name not in there:
            continue
        axes[0, 0].errorbar([], [], xerr=[], fmt="o", ms=3, color=colour, label=symbol(name))
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figures.save(figure, path)
