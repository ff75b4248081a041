"""What the output of a network still says about protected columns on new rows: blinded, refitted, constrained.

    python -m benchmarks.network_outputs             # faces and chest X-rays, 5 seeds each: about 3 minutes on one core
    python -m benchmarks.network_outputs --quick     # one seed of the X-rays; nothing is written

Results are kept, and the tables of docs/guide/network.md written from them.

A network (64 ReLU units on an embedding) predicts sex from faces (protected: age and race) or effusion from chest
X-rays (protected: age and sex). A seed cuts the rows in three parts, by patient where there are patients: the network
is trained on the first, corrections are fitted to the second, and the third is scored: AUC, and the multiple
correlation of the predicted probability with the protected columns. Where there are patients, a head that is refitted
for new rows is refitted for new patients (``cluster=``).

"Chance" is this correlation for predictions that are unrelated to the protected columns, in 999 draws: the product of
prediction and columns gets a random sign in each independent unit, a face or a patient (not an image of a patient).
A correction is estimated from the second part, which has sampling error of its own: with it, "expected" is larger by
``sqrt(1 + n_3 / n_2)``, with the numbers of units. Means and 95 % quantiles are kept.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

import setsquare as sq
from benchmarks import guide_tables
from benchmarks.cross_fitting import unit_products
from studies.datasets import load_nih_chest_xrays, load_utkface

RESULTS = Path(__file__).parent / "results" / "network_outputs.json"
SEEDS, DRAWS = (0, 1, 2, 3, 4), 999
UNITS, EPOCHS, BATCH = 64, 15, 256
#: Chosen after the first results: it costs less than refitting behind a blinded layer, which the head cannot undo.
RECOMMENDED = "constraint, then refit the head for new rows"


@dataclass(frozen=True, slots=True)
class Part:
    """Embedding (n, q), outcome (n,), protected columns (n, p) and patients (n,), if there are some, of some rows."""

    Z: Tensor
    y: Tensor
    X: Tensor
    cluster: np.ndarray | None = None

    def batches(self, size: int = 1000) -> list[tuple[Tensor, Tensor, Tensor]]:
        return list(zip(*(part.split(size) for part in (self.Z, self.y, self.X)), strict=True))


def faces(seed: int) -> tuple[Part, ...]:
    data = load_utkface("recognition")
    return _cut(data, None, seed)


def xrays(seed: int) -> tuple[Part, ...]:
    data = load_nih_chest_xrays()
    return _cut(data, data.table[data.cluster].to_numpy(), seed)


def _cut(data: Any, cluster: np.ndarray | None, seed: int) -> tuple[Part, ...]:
    units, place = np.unique(np.arange(len(data.y)) if cluster is None else cluster, return_inverse=True)
    third = np.random.default_rng(seed).integers(0, 3, len(units))[place]
    Z = torch.from_numpy(data.arrays["embedding"].astype(np.float32))
    Z = (Z - Z[third == 0].mean(0)) / Z[third == 0].std(0)
    protected = data.protected_table()
    X = np.asarray(sq.tables.learn(protected).apply(protected).values, dtype=np.float64)
    X = torch.from_numpy((X - X.mean(0)) / X.std(0)).float()
    y = torch.from_numpy(np.asarray(data.y, dtype=np.float32))
    parts = [third == k for k in range(3)]
    return tuple(Part(Z[rows], y[rows], X[rows], None if cluster is None else place[rows]) for rows in parts)


def train(rows: Part, seed: int, constraint: nn.Module | None = None) -> nn.Sequential:
    """Train a network, with a penalty on its predictions if there is a constraint."""
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Linear(rows.Z.shape[1], UNITS), nn.ReLU(), nn.Dropout(0.5), nn.Linear(UNITS, 1))
    optimizer = torch.optim.AdamW(network.parameters(), 1e-3, weight_decay=0.01)
    for _ in range(EPOCHS):
        for some in torch.randperm(len(rows.y)).split(BATCH):
            logit = network(rows.Z[some])[:, 0]
            loss = nn.functional.binary_cross_entropy_with_logits(logit, rows.y[some])
            if constraint is not None:
                loss = loss + constraint(torch.sigmoid(logit), rows.X[some])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return network.eval()


Fitted = Callable[[Part], Tensor]


def _alone(network: nn.Module) -> Fitted:
    return lambda rows: network(rows.Z)


def plain(training: Part, held: Part, seed: int) -> Fitted:
    return _alone(train(training, seed))


def blinded(training: Part, held: Part, seed: int) -> Fitted:
    network = sq.nn.blind(train(training, seed), ["1"])
    sq.nn.fit_layer(network, held.batches())
    return lambda rows: network.eval()(rows.Z, protected=rows.X)


def blind_and_refit(**options: Any) -> Callable[[Part, Part, int], Fitted]:
    def method(training: Part, held: Part, seed: int) -> Fitted:
        new = options | ({"cluster": held.cluster} if options else {})
        fit = sq.nn.blind_and_refit(train(training, seed), held.batches(), ["1"], "3", l2="auto", **new)
        return lambda rows: fit.model.eval()(rows.Z, protected=rows.X)

    return method


def refit(training: Part, held: Part, seed: int) -> Fitted:
    network = train(training, seed)
    sq.nn.refit_head(network, held.batches(), "3", l2="auto", orthogonal_on="new rows", cluster=held.cluster)
    return _alone(network)


def constrained(training: Part, held: Part, seed: int) -> Fitted:
    return _alone(train(training, seed, sq.nn.OrthogonalityConstraint(training.X.shape[1])))


def constrained_and_refit(training: Part, held: Part, seed: int) -> Fitted:
    network = train(training, seed, sq.nn.OrthogonalityConstraint(training.X.shape[1]))
    sq.nn.refit_head(network, held.batches(), "3", l2="auto", orthogonal_on="new rows", cluster=held.cluster)
    return _alone(network)


#: Name, whether the protected columns are needed for new rows, and the fit to a training and a held-out part.
METHODS: tuple[tuple[str, bool, Callable[[Part, Part, int], Fitted]], ...] = (
    ("plain", False, plain),
    ("blind, fit_layer", True, blinded),
    ("blind and refit the head", True, blind_and_refit()),
    ("blind and refit the head, for new rows", True, blind_and_refit(orthogonal_on="new rows")),
    ("refit the head alone, for new rows", False, refit),
    ("constraint", False, constrained),
    (RECOMMENDED, False, constrained_and_refit),
)


def correlation(p: np.ndarray, X: np.ndarray) -> float:
    """Multiple correlation of predictions (n,) with protected columns (n, p)."""
    Q = np.linalg.qr(X - X.mean(0))[0]
    centred = p - p.mean()
    return float(np.linalg.norm(Q.T @ centred) / np.linalg.norm(centred))


def by_chance(
    X: np.ndarray, p: np.ndarray, cluster: np.ndarray | None, n_fitted: int, rng: np.random.Generator
) -> dict[str, float]:
    """Correlation of predictions that are unrelated to the columns: mean and 95 % quantile, without and with the fit's.

    >>> rng = np.random.default_rng(0)
    >>> X, p = rng.normal(size=(4000, 5)), rng.normal(size=4000)
    >>> found = by_chance(X, p, None, 1000, rng)
    >>> round(found["chance"], 3), round(found["expected"], 3)  # 0.951 times the root of 5 / 4000, and with 5 / 1000
    (0.034, 0.077)
    """
    units = unit_products(X, p, cluster)
    drawn = np.linalg.norm(rng.choice((-1.0, 1.0), size=(DRAWS, len(units))) @ units, axis=1)
    mean, high = float(np.mean(drawn)), float(np.quantile(drawn, 0.95))
    more = float(np.sqrt(1.0 + len(units) / n_fitted))
    return {"chance": mean, "chance_high": high, "expected": more * mean, "expected_high": more * high}


def measure(load: Callable[[int], tuple[Part, ...]], seed: int) -> dict[str, dict[str, float]]:
    """Score every method on the third part."""
    training, held, new = load(seed)
    X, found = new.X.numpy().astype(np.float64), {}
    rng = np.random.default_rng(seed)
    n_fitted = len(held.y) if held.cluster is None else len(np.unique(held.cluster))
    for name, _, method in METHODS:
        fitted = method(training, held, seed)
        with torch.no_grad():
            p = torch.sigmoid(fitted(new)[:, 0]).numpy().astype(np.float64)
        scored = {"correlation": correlation(p, X), "auc": float(roc_auc_score(new.y.numpy(), p))}
        found[name] = scored | by_chance(X, p, new.cluster, n_fitted, rng)
    return found


def table(seeds: Sequence[dict[str, dict[str, float]]]) -> list[str]:
    """Lines of a Markdown table: means over the seeds."""
    needs = {name: needed for name, needed, _ in METHODS}
    lines = ["| | needs the columns | correlation (largest) | AUC |", "|---|---|---|---|"]
    for name in seeds[0]:
        left = [seed[name]["correlation"] for seed in seeds]
        auc = np.mean([seed[name]["auc"] for seed in seeds])
        shown = f"**{name}**" if name == RECOMMENDED else name
        needed = "yes" if needs[name] else "no"
        lines.append(f"| {shown} | {needed} | {np.mean(left):.3f} ({max(left):.3f}) | {auc:.3f} |")
    for what, key in (("chance", "chance"), ("chance, with the error of the fit", "expected")):
        mean, high = (np.mean([seed[RECOMMENDED][kind] for seed in seeds]) for kind in (key, f"{key}_high"))
        lines.append(f"| {what} (95 % below) | | {mean:.3f} ({high:.3f}) | |")
    return lines


def guide_lines(found: dict[str, Sequence[dict[str, dict[str, float]]]]) -> list[str]:
    """Tables for the guide."""
    about = {
        "faces": "Sex from faces, protected: age and race",
        "X-rays": "Effusion from X-rays, protected: age and sex",
    }
    lines: list[str] = []
    for name, seeds in found.items():
        lines += ["", f"*{about[name]} (means of {len(seeds)} seeds)*", "", *table(seeds)]
    return [*lines, ""]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one seed of the X-rays; nothing is written")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    sets = {"X-rays": xrays} if quick else {"faces": faces, "X-rays": xrays}
    found: dict[str, Any] = {}
    for name, load in sets.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", sq.errors.SetsquareWarning)
            found[name] = [measure(load, seed) for seed in (SEEDS[:1] if quick else SEEDS)]
        print(f"\n**{name}**\n", *table(found[name]), sep="\n", flush=True)
    if not quick:
        RESULTS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        print(guide_tables.write("network.md", "network_outputs", guide_lines(found)))


if __name__ == "__main__":
    main()
