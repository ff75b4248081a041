"""Models of the votes of movies: the paper's LSTM, and a Poisson model on sentence embeddings; and their audit.

Protected are the main actor's gender and that of the first of the crew or the director, see :data:`CODINGS`. Models and
corrections are fitted to the paper's training rows, and audited on its test rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from setsquare import Problem, audit, families, solve, tables
from setsquare.auditing import interval, performance
from setsquare.datasets import Dataset
from setsquare.errors import NotOrthogonalError
from setsquare.projection import GeneralizedProjector, Projector
from studies.arrays import Array, BoolArray
from studies.datasets import load_movies
from studies.paper.benchmark_sets import combined, known
from studies.paper.movies_names import AUTHORS, LAYER
from studies.paper.movies_network import Correction, Network, Rows, Settings, evaluate, mean_with_dropout, train
from studies.paper.names import CLASSICAL, CONSTRAINED, GENERALISED, WITHOUT

#: The protected columns, each with the main actor: as numbers, as in the paper's code (unknown is less than female, and
#: that less than male), or as levels, male being the reference.
CODINGS = {"paper": "first_crew", "first crew": "first_crew", "director": "director"}
CODE = {"unknown": -1.0, "female": 0.0, "male": 1.0}
#: Corrections: of what the model is fitted to, by its constrained fit (on the state of the LSTM: a new head), or of
#: what it predicts.
FEATURES, FIT, PREDICTIONS = CLASSICAL, CONSTRAINED, GENERALISED
#: The last one, fitted to validation rows: a network knows its training rows too well to tell of new ones.
UNSEEN = f"{GENERALISED}, by unseen rows"
#: Ridge of the new head: without it, one description would get 375 735 votes.
RIDGE = 1.0
#: Corrections in the network, after its embedding.
IN_NETWORK: dict[Correction, str] = {"without": WITHOUT, "layer": LAYER, "published": AUTHORS}


@dataclass(frozen=True, slots=True, eq=False)
class Movies:
    """The movies as matrices: outcome (n,), protected columns (n, p) and their names by coding, who is for training."""

    data: Dataset
    y: Array
    X: dict[str, Array]
    names: dict[str, tuple[str, ...]]
    train: BoolArray

    @classmethod
    def load(cls, n_train: int | None = None, n_test: int | None = None) -> Movies:
        """Load the paper's rows, or the first of each split."""
        data = load_movies()
        split = data.table["split"].to_numpy()
        rows = np.concatenate([np.flatnonzero(split == "train")[:n_train], np.flatnonzero(split == "test")[:n_test]])
        data = data.take(np.sort(rows))
        X, names = {}, {}
        for coding, crew in CODINGS.items():
            table = data.table[["actor", crew]]
            table = table.apply(lambda column: column.map(CODE).astype(float)) if coding == "paper" else table
            coded = tables.learn(table).apply(table)
            X[coding], names[coding] = coded.values, coded.names
        return cls(data, data.y, X, names, data.table["split"].to_numpy() == "train")


def measure(movies: Movies, coding: str, mu: Array, rows: BoolArray | None = None) -> dict[str, Any]:
    """What predictions say of the protected columns, and how good they are, on the test rows.

    On the rows of the fit, which are the training rows unless others are given: ``correlation_fit``, ``p_model_fit``.
    """
    X, old, new = movies.X[coding], movies.train if rows is None else rows, ~movies.train
    held, held_model, fitted, fitted_model = (
        audit(mu[rows], X[rows], "poisson", vcov) for rows in (new, old) for vcov in ("HC3", "model")
    )
    effects = [
        known(effect) | {"term": term, "p_model": paper.p_value, "p_model_fit": in_sample.p_value}
        for term, effect, paper, in_sample in zip(
            movies.names[coding],
            *(found.evaluation().effects for found in (held, held_model, fitted_model)),
            strict=True,
        )
    ]
    leak = {"p_value": held.p_value, "correlation": held.certificate.correlation_sample}
    return {
        "effects": effects,
        **leak,
        "correlation_fit": fitted.certificate.correlation_sample,
        "mean": float(mu[new].mean()),
        "dispersion": float(mu[new].var() / mu[new].mean()),
        **scores(movies, mu),
    }


def scores(movies: Movies, mu: Array) -> dict[str, Any]:
    """RMSE and deviance of predictions on the test rows, with intervals."""
    new = ~movies.train
    return {score.name: known(interval(score)) for score in performance(movies.y[new], mu[new], "poisson")}


def fit(movies: Movies, Z: Array, coding: str | None = None, l2: float = 0.0) -> Array:
    """Predict all rows by the Poisson model that is fitted to the training rows, exactly corrected for a coding."""
    X = None if coding is None else movies.X[coding][movies.train]
    solution = solve(Problem(Z[movies.train], movies.y[movies.train], X, families.family("poisson"), l2=l2))
    if X is not None and not solution.certificate.is_orthogonal:
        raise NotOrthogonalError(f"The Poisson model could not be made orthogonal ({coding}): {solution.status}.")
    mu: Array = np.exp(Z @ solution.coef[0] + solution.intercept[0])
    return mu


def correct(movies: Movies, mu: Array, coding: str, rows: BoolArray | None = None) -> Array:
    """Correct predictions by the generalised projection that is fitted to the training rows, or to others."""
    X, eta, rows = movies.X[coding], np.log(mu), movies.train if rows is None else rows
    corrected: Array = GeneralizedProjector.fit(eta[rows], X[rows], "exp").predict(eta, X)
    return corrected


def text_model(movies: Movies, correction: str, coding: str) -> dict[str, Any]:
    """The Poisson model on sentence embeddings."""
    Z = movies.data.arrays["minilm"].astype(np.float64)
    if correction == FEATURES:
        X = movies.X[coding]
        Z = Projector.fit(Z[movies.train], X[movies.train]).apply(Z, X)
    mu = fit(movies, Z, coding if correction == FIT else None)
    return measure(movies, coding, correct(movies, mu, coding) if correction == PREDICTIONS else mu)


def new_splits(movies: Movies, coding: str, splits: int) -> dict[str, float]:
    """What the exactly corrected text model leaks on average over random splits of the paper's size."""
    Z, X, n_new = movies.data.arrays["minilm"].astype(np.float64), movies.X[coding], int((~movies.train).sum())
    audits = []
    for seed in range(splits):
        train = np.random.default_rng(seed).permutation(len(Z)) >= n_new
        mu = fit(replace(movies, train=train), Z, coding)
        audits.append(audit(mu[~train], X[~train], "poisson"))
    by_chance = np.sqrt(X.shape[1] * (1.0 / n_new + 1.0 / (len(Z) - n_new)))
    return {
        "correlation": float(np.mean([found.certificate.correlation_sample for found in audits])),
        "largest": float(np.max([found.certificate.correlation_sample for found in audits])),
        "by_chance": float(by_chance),
        "p_value": combined([found.p_value for found in audits]),
    }


def _rows(movies: Movies, coding: str) -> Rows:
    tokens, y, X = (torch.from_numpy(part) for part in (movies.data.arrays["tokens"], movies.y, movies.X[coding]))
    return Rows(tokens.long(), y.float(), X.float())


def network_model(
    movies: Movies,
    correction: Correction,
    coding: str,
    settings: Settings,
    *,
    afterwards: bool = False,
    checkpoint: Path | None = None,
    advance: Callable[[], object] = lambda: None,
    limit: float = float("inf"),
) -> dict[str, Any]:
    """Train a network and audit it; if asked, also with a new head and with corrected predictions.

    Without a correction it is audited by all codings.

    Returns
    -------
    dict
        ``losses``, ``ended``, ``seconds`` and ``before`` as in :class:`~studies.paper.movies_network.Trained`;
        ``loss_constant``, that of the mean; ``mean_with_dropout``; ``found``: a dict for each correction and coding, as
        :func:`measure` gives it, with ``deviance_level``, that of predictions which one factor gives the mean of the
        validation rows.
    """
    rows, old = _rows(movies, coding), np.flatnonzero(movies.train)
    trained = train(
        correction, rows.take(torch.from_numpy(old)), settings, checkpoint=checkpoint, advance=advance, limit=limit
    )
    outcome = evaluate(trained.network, rows)
    eta, state = (part.double().numpy() for part in outcome)
    unseen, mu, found = np.zeros(len(eta), dtype=bool), np.exp(eta), []
    unseen[old[trained.validation.numpy()]] = True
    mean = movies.y[movies.train & ~unseen].mean()

    def add(name: str, coding: str, mu: Array, rows: BoolArray | None = None) -> None:
        level = movies.y[unseen].mean() / mu[unseen].mean()
        deviance = {"deviance_level": scores(movies, level * mu)["deviance"]["estimate"]}
        found.append({"correction": name, "coding": coding, **measure(movies, coding, mu, rows), **deviance})

    for one in CODINGS if correction == "without" else [coding]:
        add(IN_NETWORK[correction], one, mu)
        if afterwards:
            add(FIT, one, fit(movies, state, one, RIDGE))
            add(PREDICTIONS, one, correct(movies, mu, one))
            add(UNSEEN, one, correct(movies, mu, one, unseen), unseen)
    return {
        "losses": trained.losses,
        "ended": trained.ended,
        "loss_constant": float(mean - movies.y[unseen].mean() * np.log(mean)),
        "mean_with_dropout": mean_with_dropout(trained.network, outcome.state),
        "seconds": trained.seconds,
        "before": trained.before,
        "found": found,
    }


def untrained(movies: Movies, coding: str, seed: int) -> dict[str, Any]:
    """Effects on what the paper's network predicts for test rows before any training, with model-based errors."""
    torch.manual_seed(seed)
    new = torch.from_numpy(~movies.train)
    eta = evaluate(Network("relu"), _rows(movies, coding).take(new)).eta.double().numpy()
    effects = audit(np.exp(eta), movies.X[coding][~movies.train], "poisson", "model").evaluation().effects
    return {"p_values": [effect.p_value for effect in effects], "mean": float(np.exp(eta).mean())}


def divergence(movies: Movies, rate: float) -> dict[str, int | None]:
    """Steps after which the loss of the paper's network is no number any more, within an epoch."""
    rows = _rows(movies, "paper").take(torch.from_numpy(movies.train))
    return {"steps": train("without", rows, Settings("relu", rate, epochs=1)).diverged}
