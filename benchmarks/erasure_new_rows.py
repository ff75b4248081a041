"""Erasure from few rows, seen on new ones: LEACE, ours, ours adapted to features without labels, and components first.

    python -m benchmarks.erasure_new_rows --output benchmarks/results   # about 10 minutes on one core
    python -m benchmarks.erasure_new_rows --quick

A map is fitted to n rows with protected columns. Then, on rows that it has not seen:

* probe: a ridge regression of each protected column on erased features, fitted to one half of the new rows and tested
  on the other; the largest correlation.
* canonical: the largest canonical correlation of erased features and protected columns, found on one half and measured
  on the other.
* task: AUC of a logistic regression of the outcome, fitted to the n erased rows and tested on the other half.

"adapted" maps also saw the features, not the labels, of the first half of the new rows. ``estimated`` is what
``new_rows_.correlation`` says, from the n rows alone.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from concept_erasure import LeaceEraser
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.preprocessing import StandardScaler

import setsquare as sq
from benchmarks.cross_fitting import Population, Values, coded
from benchmarks.frame import main, plain, steps
from setsquare.errors import SetsquareWarning
from studies.datasets.chest_xrays import load_nih_chest_xrays
from studies.datasets.faces import load_utkface
from studies.datasets.movies import load_movies

QUICK = {"draws": 1, "only": "movies"}
SIZES = (300, 1000, 3000)
#: Ridges of the probe, relative to the mean variance of the features; the best on the tested half counts.
RIDGES = (1e-6, 1e-3, 1e-2, 1e-1)
#: Largest number of new rows in each half.
MOST = 8000


def faces() -> Population:
    data = load_utkface()
    return Population(_wide(data.arrays["embedding"]), coded(data.protected_table()), _zero_one(data.y))


def movies() -> Population:
    data = load_movies()
    y = np.asarray(data.y, dtype=np.float64)
    return Population(_wide(data.arrays["minilm"]), coded(data.protected_table()), (y > np.median(y)).astype(int))


def xrays() -> Population:
    data = load_nih_chest_xrays()
    cluster = np.asarray(data.table[data.cluster])
    return Population(_wide(data.arrays["embedding"]), coded(data.protected_table()), _zero_one(data.y), cluster)


def generated() -> Population:
    """768 features with a falling spectrum, in which a group, an age and an outcome are spread over all directions."""
    rng = np.random.default_rng(0)
    d, n = 768, 20_000
    falling = (1.0 + np.arange(d)) ** -0.5
    X = np.column_stack([rng.random(n) < 0.5, rng.normal(size=n)]).astype(np.float64)
    sides = rng.normal(size=(3, d)) * falling
    sides /= np.linalg.norm(sides, axis=1)[:, None]
    W = rng.normal(size=(n, d)) + 2.0 * (X[:, :1] - 0.5) * sides[0] + X[:, 1:] * sides[1]
    y = (rng.random(n) < 1.0 / (1.0 + np.exp(-2.0 * W @ sides[2]))).astype(int)
    return Population((W * falling**2) @ np.linalg.qr(rng.normal(size=(d, d)))[0], X, y)


POPULATIONS: dict[str, Callable[[], Population]] = {
    "faces, 128 features": faces,
    "movies, 100 features": movies,
    "X-rays by patient, 256 features": xrays,
    "generated, 768 features": generated,
}
Erase = Callable[[Values], Values]
Fit = Callable[[Values, Values, Values, Values | None], tuple[Erase, float]]


def _wide(array: Any) -> Values:
    return np.asarray(array, dtype=np.float64)


def _zero_one(y: Any) -> Values:
    return np.unique(np.asarray(y), return_inverse=True)[1]


def nothing(Z: Values, X: Values, more: Values, cluster: Values | None) -> tuple[Erase, float]:
    return (lambda rows: rows), np.nan


def leace(Z: Values, X: Values, more: Values, cluster: Values | None) -> tuple[Erase, float]:
    eraser = LeaceEraser.fit(torch.from_numpy(Z), torch.from_numpy((X - X.mean(axis=0)) / X.std(axis=0)))
    return (lambda rows: eraser(torch.from_numpy(rows)).numpy()), np.nan


def ours(
    Z: Values, X: Values, more: Values, cluster: Values | None, *, on: str = "new rows", adapted: bool = False
) -> tuple[Erase, float]:
    fitted = sq.LinearOrthogonalizer(using="features", orthogonal_on=on).fit(Z, protected=X, cluster=cluster)
    if adapted:
        fitted.adapt(np.vstack([Z, more]))
    return fitted.transform, fitted.new_rows_.correlation


def reduced(k: int, inner: Fit = ours, *, adapted: bool = False) -> Fit:
    """A method behind principal components, which may come from all rows."""

    def fit(Z: Values, X: Values, more: Values, cluster: Values | None) -> tuple[Erase, float]:
        components = sq.PrincipalComponents(k).fit(np.vstack([Z, more]) if adapted else Z)
        erase, left = inner(components.transform(Z), X, components.transform(more), cluster)
        return (lambda rows: erase(components.transform(rows))), left

    return fit


METHODS: dict[str, Fit] = {
    "not erased": nothing,
    "LEACE (concept-erasure)": leace,
    "training rows": partial(ours, on="training rows"),
    "new rows": ours,
    "new rows, adapted": partial(ours, adapted=True),
    "64 components, new rows, adapted": reduced(64, partial(ours, adapted=True), adapted=True),
    "32 components, LEACE": reduced(32, leace),
    "32 components, new rows": reduced(32),
    "32 components, new rows, adapted": reduced(32, partial(ours, adapted=True), adapted=True),
}


def probe(A: Values, XA: Values, B: Values, XB: Values) -> tuple[float, float]:
    """Largest correlation of a column with its ridge prediction, and largest canonical correlation; on other rows."""
    mean = A.mean(axis=0)
    S, C = (A - mean).T @ (A - mean) / len(A), (A - mean).T @ (XA - XA.mean(axis=0)) / len(A)
    whitening = np.linalg.inv(np.linalg.cholesky(np.cov(XA.T, bias=True).reshape(len(C.T), -1)))
    best, canonical = 0.0, 0.0
    for ridge in RIDGES:
        W = np.linalg.solve(S + ridge * np.trace(S) / len(S) * np.eye(len(S)), C)
        F = (B - mean) @ W
        best = max(best, *(_correlation(F[:, j], XB[:, j]) for j in range(len(C.T))))
        U, _, Vt = np.linalg.svd(W @ whitening.T, full_matrices=False)
        canonical = max(canonical, _correlation((B - mean) @ U[:, 0], XB @ whitening.T @ Vt[0]))
    return best, canonical


def _correlation(a: Values, b: Values) -> float:
    return float(np.corrcoef(a, b)[0, 1]) if a.std() > 0.0 else 0.0


def try_one(population: Population, n: int, seed: int) -> dict[str, list[float]]:
    """Probe, canonical correlation, AUC of the task and the estimate, by method."""
    rng = np.random.default_rng(seed)
    rows, new = population.draw(n, rng)
    within, other = _halves(population, new, rng)
    Z, X, y = population.Z, population.X[:, population.X[rows].std(axis=0) > 0.0], population.y
    cluster = None if population.cluster is None else population.cluster[rows]
    found = {}
    for name, fit in METHODS.items():
        if Z.shape[1] >= len(rows) and name == "training rows":
            continue  # refused
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SetsquareWarning)
            erase, estimated = fit(Z[rows], X[rows], Z[within], cluster)
        erased, tested = erase(Z[rows]), erase(Z[other])
        scale = StandardScaler().fit(erased)
        head = LogisticRegression(C=0.01, max_iter=500).fit(scale.transform(erased), y[rows])
        auc = roc_auc_score(y[other], head.decision_function(scale.transform(tested)))
        found[name] = [*probe(erase(Z[within]), X[within], tested, X[other]), float(auc), estimated]
    return found


def _halves(population: Population, new: Values, rng: np.random.Generator) -> tuple[Values, Values]:
    if population.cluster is None:
        order = rng.permutation(new)
        return order[: len(new) // 2][:MOST], order[len(new) // 2 :][:MOST]
    _, codes = np.unique(population.cluster[new], return_inverse=True)
    first = rng.permutation(codes.max() + 1)[codes] <= codes.max() // 2
    return new[first], new[~first]


def run(draws: int = 5, only: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    cells = [(name, n) for name in POPULATIONS if only in name for n in SIZES]
    loaded: dict[str, Population] = {}
    for name, n in steps(cells, "erasure"):
        population = loaded.setdefault(name, POPULATIONS[name]())
        each = [try_one(population, n, seed) for seed in range(max(1, draws // 2) if "768" in name else draws)]
        cell = {
            label: {"mean": np.mean([one[label] for one in each], 0), "sd": np.std([one[label] for one in each], 0)}
            for label in each[0]
        }
        found[f"{name}, {n} rows"] = cell | {"draws": len(each)}
        show({"cells": plain({f"{name}, {n} rows": found[f"{name}, {n} rows"]})})
    return plain({"cells": found})


def show(result: dict[str, Any]) -> None:
    for name, cell in result["cells"].items():
        print(f"{name} ({cell['draws']} draws): probe, canonical, task AUC, estimated")
        for label, part in cell.items():
            if label != "draws":
                texts = ("" if value is None else f"{value:.3f}" for value in part["mean"])
                print(f"  {label:34s}", *(f"{text:>8s}" for text in texts), flush=True)


if __name__ == "__main__":
    main(run, show, QUICK)
