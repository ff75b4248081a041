"""Designs made to break the bound on new rows: coverage, and promises that were made and not kept.

    python -m benchmarks.new_rows_attacks                    # all designs that are not yet in the file of results
    python -m benchmarks.new_rows_attacks --only rare        # designs whose name contains this
    python -m benchmarks.new_rows_attacks --show             # print the table

The truth is the multiple correlation on ``TRUTH`` further rows of the same design. ``covered`` counts fits that were
returned. A promise is ``max_correlation`` at the median of the bounds, so that about half of the fits would be
returned; ``broken`` counts those whose truth exceeds it.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

import setsquare as sq
from benchmarks.frame import plain, where, write

RESULTS = Path(__file__).parent / "results" / "new_rows_attacks.json"
TARGETS = ("training rows", "new rows")
TRUTH = 20_000
Rng = np.random.Generator


class Rows(NamedTuple):
    """Rows of a design; ``C`` are controls, which are among the features too."""

    Z: np.ndarray
    y: np.ndarray
    X: np.ndarray
    weight: np.ndarray | None = None
    cluster: np.ndarray | None = None
    offset: np.ndarray | None = None
    C: np.ndarray | None = None


class Design(NamedTuple):
    """Sample of n rows (a function of a generator and a number of rows), and how it is fitted."""

    draw: Callable[[Rng, int], Rows]
    n: int
    draws: int = 300
    family: str = "binomial"
    options: dict[str, Any] = {}  # noqa: RUF012


def outcome(rng: Rng, eta: np.ndarray, family: str = "binomial") -> np.ndarray:
    if family == "poisson":
        return rng.poisson(np.exp(0.5 * eta)).astype(float)
    return (rng.random(len(eta)) < 1.0 / (1.0 + np.exp(-eta))).astype(float)


def shifted(rng: Rng, n: int, q: int, x: np.ndarray, shift: float = 0.8) -> np.ndarray:
    """Normal features, of which five are shifted by a column."""
    Z = rng.normal(size=(n, q))
    Z[:, : min(5, q)] += shift * x[:, None]
    return Z


def signal(Z: np.ndarray) -> np.ndarray:
    return 0.4 * Z[:, :10].sum(axis=1) - 1.0


def rare(rng: Rng, n: int, share: float = 0.01, q: int = 6, shift: float = 0.8) -> Rows:
    x = (rng.random(n) < share).astype(float)
    Z = shifted(rng, n, q, x, shift)
    return Rows(Z, outcome(rng, signal(Z)), x[:, None])


def small_level(rng: Rng, n: int) -> Rows:
    """Five levels, of which the last has 0.6 % of the rows and the one before 2 %."""
    level = rng.choice(5, size=n, p=[0.5, 0.3, 0.174, 0.02, 0.006])
    X = (level[:, None] == np.arange(1, 5)).astype(float)
    Z = rng.normal(size=(n, 8))
    Z[:, :4] += 0.8 * X
    return Rows(Z, outcome(rng, signal(Z)), X)


def heavy(rng: Rng, n: int) -> Rows:
    """Features with the tails of t with 3 degrees of freedom."""
    x = (rng.random(n) < 0.5).astype(float)
    Z = rng.standard_t(3, size=(n, 10)) + 0.6 * x[:, None]
    return Rows(Z, outcome(rng, np.clip(0.3 * Z[:, :6].sum(axis=1) - 0.5, -6, 6)), x[:, None])


def heavy_counts(rng: Rng, n: int) -> Rows:
    x = (rng.random(n) < 0.5).astype(float)
    Z = np.clip(rng.standard_t(3, size=(n, 10)), -12, 12) + 0.6 * x[:, None]
    return Rows(Z, rng.poisson(np.exp(np.clip(0.15 * Z[:, :6].sum(axis=1) - 0.5, -4, 3))).astype(float), x[:, None])


def lognormal_column(rng: Rng, n: int) -> Rows:
    """A protected column with the tail of an income."""
    x = np.exp(rng.normal(size=n))
    Z = rng.normal(size=(n, 8))
    Z[:, :4] += 0.3 * x[:, None]
    return Rows(Z, outcome(rng, np.clip(signal(Z), -8, 8)), x[:, None])


def unequal(rng: Rng, n: int, sd: float = 1.0) -> Rows:
    """Weights that carry the rows to a population in which they were drawn with unequal chances."""
    m = n if n > 10_000 else 40 * n
    x = (rng.random(m) < 0.4).astype(float)
    Z = shifted(rng, m, 8, x)
    y = outcome(rng, signal(Z))
    if m == n:
        return Rows(Z, y, x[:, None])
    chance = np.exp(sd * (rng.normal(size=m) * 0.7 + 0.7 * (x - 0.4) + 0.4 * Z[:, 5]))
    rows = rng.choice(m, size=n, replace=False, p=chance / chance.sum())
    return Rows(Z[rows], y[rows], x[rows][:, None], weight=1.0 / chance[rows])


def unequal_clusters(rng: Rng, n: int, largest: float = 0.3) -> Rows:
    """Pairs of rows, and one cluster with 30 % of the rows; effects, group and part of the features are shared."""
    big = int(largest * n) if n <= 10_000 else 0
    cluster = np.concatenate([np.zeros(big, int), 1 + np.arange(n - big) // 2])
    units = cluster.max() + 1
    x = (rng.random(units) < 0.5).astype(float)[cluster]
    Z = np.sqrt(0.5) * (rng.normal(size=(n, 8)) + rng.normal(size=(units, 8))[cluster])
    Z[:, :5] += 0.8 * x[:, None]
    eta = signal(Z) + rng.normal(size=units)[cluster]
    return Rows(Z, outcome(rng, eta), x[:, None], cluster=cluster)


def exposures(rng: Rng, n: int) -> Rows:
    """Counts with an exposure that differs between the groups."""
    x = (rng.random(n) < 0.4).astype(float)
    Z = shifted(rng, n, 10, x)
    offset = 0.4 * rng.normal(size=n) + 0.2 * x
    y = rng.poisson(np.exp(0.5 * signal(Z) + offset)).astype(float)
    return Rows(Z, y, x[:, None], offset=offset)


def wide(rng: Rng, n: int, q: int = 180) -> Rows:
    x = (rng.random(n) < 0.5).astype(float)
    Z = shifted(rng, n, q, x)
    return Rows(Z, outcome(rng, signal(Z)), x[:, None])


def controlled(rng: Rng, n: int) -> Rows:
    C = rng.normal(size=n)
    x = (rng.random(n) < 1.0 / (1.0 + np.exp(-C))).astype(float)
    Z = np.column_stack([C, shifted(rng, n, 9, x)])
    return Rows(Z, outcome(rng, signal(Z)), x[:, None], C=C[:, None])


def cells(rng: Rng, n: int) -> Rows:
    """Two columns, of three and four levels with shares down to 5 %: twelve cells, the smallest of 1 %."""
    a = rng.choice(3, size=n, p=[0.6, 0.2, 0.2])
    b = rng.choice(4, size=n, p=[0.6, 0.25, 0.1, 0.05])
    Z = rng.normal(size=(n, 14))
    Z[:, 0] += (a == 1) * (b == 0)
    Z[:, 1] += a == 2
    Z[:, 2] += b > 1
    Z[:, 3] += (a == 0) * (b == 1)
    return Rows(Z, outcome(rng, signal(Z)), np.column_stack([a, b]))


def many_directions(rng: Rng, n: int) -> Rows:
    """Six levels and three numbers, of which the features predict a level and a number."""
    level = rng.integers(0, 6, n)
    X = np.column_stack([level[:, None] == np.arange(1, 6), rng.normal(size=(n, 3))]).astype(float)
    Z = rng.normal(size=(n, 30))
    Z[:, :5] += 0.8 * X[:, [0]] + 0.4 * X[:, [5]]
    return Rows(Z, outcome(rng, signal(Z)), X)


def rare_counts(rng: Rng, n: int) -> Rows:
    rows = rare(rng, n, 0.02)
    return rows._replace(y=outcome(rng, signal(rows.Z), "poisson"))


def thirty_levels(rng: Rng, n: int) -> Rows:
    """Thirty levels whose shares fall from 18 % to 0.2 %; six features differ between random levels."""
    chance = 0.86 ** np.arange(30)
    level = rng.choice(30, size=n, p=chance / chance.sum())
    X = (level[:, None] == np.arange(1, 30)).astype(float)
    shifts = np.random.default_rng(1).normal(size=(30, 6))
    Z = rng.normal(size=(n, 45))
    Z[:, :6] += 0.6 * shifts[level]
    return Rows(Z, outcome(rng, signal(Z)), X[:, X.any(axis=0)] if n <= 10_000 else X)


def loud_clusters(rng: Rng, n: int) -> Rows:
    """Clusters of 1 to 8 rows; every tenth has effects and features of four times the spread, mostly in one group."""
    size = 1 + rng.integers(0, 8, n)
    cluster = np.repeat(np.arange(n), size)[:n]
    units = cluster.max() + 1
    loud = rng.random(units) < 0.1
    x = (rng.random(units) < np.where(loud, 0.8, 0.4)).astype(float)[cluster]
    scale = np.where(loud, 4.0, 1.0)
    Z = np.sqrt(0.5) * (rng.normal(size=(n, 8)) + (scale[:, None] * rng.normal(size=(units, 8)))[cluster])
    Z[:, :5] += 0.8 * x[:, None]
    eta = np.clip(0.3 * Z[:, :6].sum(axis=1) - 0.5 + (scale * rng.normal(size=units))[cluster], -8, 8)
    return Rows(Z, outcome(rng, eta), x[:, None], cluster=cluster)


def separated(rng: Rng, n: int) -> Rows:
    """A dummy of 2 % of the rows whose outcome is always 1, mostly in one group."""
    x = (rng.random(n) < 0.4).astype(float)
    level = rng.random(n) < np.where(x > 0.0, 0.04, 0.007)
    Z = np.column_stack([shifted(rng, n, 9, x), level])
    return Rows(Z, np.where(level, 1.0, outcome(rng, signal(Z))), x[:, None])


def bent(rng: Rng, n: int) -> Rows:
    """Squares and products of features carry the group."""
    x = (rng.random(n) < 0.4).astype(float)
    Z = rng.normal(size=(n, 5)) * (1.0 + 0.6 * x[:, None])
    Z[:, 0] += 0.6 * x
    return Rows(Z, outcome(rng, 0.5 * Z[:, 0] + 0.4 * Z[:, 1] ** 2 - 0.5 * Z[:, 2] * Z[:, 3] - 0.5), x[:, None])


def skewed_number(rng: Rng, n: int) -> Rows:
    """A protected number with the tail of a squared t with 5 degrees of freedom, to which features respond little."""
    x = rng.standard_t(5, size=n) ** 2
    Z = rng.normal(size=(n, 10))
    Z[:, :4] += np.sqrt(x)[:, None]
    return Rows(Z, outcome(rng, np.clip(signal(Z) - 1.0, -8, 8)), x[:, None])


DESIGNS: dict[str, Design] = {
    "rare 1 %, 300": Design(rare, 300, 400),
    "rare 1 %, 600": Design(rare, 600, 400),
    "rare 1 %, 2000": Design(rare, 2000, 200),
    "rare 1 %, strong, 300": Design(lambda rng, n: rare(rng, n, 0.01, 6, 2.0), 300, 400),
    "rare 0.5 %, 600": Design(lambda rng, n: rare(rng, n, 0.005), 600, 400),
    "rare 3 %, 20 features, 300": Design(lambda rng, n: rare(rng, n, 0.03, 20), 300, 400),
    "rare counts 2 %, 300": Design(rare_counts, 300, 400, "poisson"),
    "many directions, 400": Design(many_directions, 400),
    "small level, 500": Design(small_level, 500),
    "heavy tails, 300": Design(heavy, 300),
    "heavy tails, counts, 400": Design(heavy_counts, 400, family="poisson"),
    "lognormal column, 300": Design(lognormal_column, 300),
    "unequal weights, 600": Design(unequal, 600),
    "very unequal weights, 600": Design(lambda rng, n: unequal(rng, n, 2.0), 600),
    "unequal clusters, 600": Design(unequal_clusters, 600),
    "exposures, 400": Design(exposures, 400, family="poisson"),
    "wide, ridge, 200": Design(wide, 200, 60, options={"l2": "auto"}),
    "controls, 400": Design(controlled, 400, options={"given": [0]}),
    "cells, 500": Design(cells, 500, 200, options={"basis": "cells"}),
    "thirty levels, 1500": Design(thirty_levels, 1500, 100),
    "loud clusters, 800": Design(loud_clusters, 800, 200),
    "separated level, 500": Design(separated, 500, 200),
    "expanded, ridge, 400": Design(bent, 400, 60, options={"l2": "auto", "expand": "auto"}),
    "skewed number, 300": Design(skewed_number, 300, 200),
    "budget, 400": Design(lambda rng, n: rare(rng, n, 0.3), 400, 200, options={"budget": 0.3}),
}


def frames(rows: Rows, as_levels: bool) -> Any:
    """Protected columns; levels as words, so that cells are formed of them."""
    if not as_levels:
        return rows.X
    return pd.DataFrame(
        {f"x{j}": np.char.add("l", column.astype(int).astype(str)) for j, column in enumerate(rows.X.T)}
    )


def truth(prediction: np.ndarray, rows: Rows, as_levels: bool) -> float:
    """Multiple correlation with the protected columns, given the controls."""
    X = rows.X
    if as_levels:
        _, number = np.unique(X, axis=0, return_inverse=True)
        X = (number[:, None] == np.arange(1, number.max() + 1)).astype(float)
    C = np.ones((len(X), 1)) if rows.C is None else np.column_stack([np.ones(len(X)), rows.C])
    residual = X - C @ np.linalg.lstsq(C, X, rcond=None)[0]
    Q, _ = np.linalg.qr(residual)
    gap = prediction - prediction.mean()
    return float(np.linalg.norm(Q.T @ gap) / np.linalg.norm(gap))


def fit_one(design: Design, rows: Rows, target: str) -> Any:
    """A fitted model, or None if it was refused."""
    binary = design.family == "binomial"
    model = (
        sq.OrthogonalGLMClassifier(orthogonal_on=target, **design.options)
        if binary
        else sq.OrthogonalGLMRegressor(design.family, orthogonal_on=target, **design.options)
    )
    given = {"sample_weight": rows.weight, "cluster": rows.cluster, "offset": rows.offset}
    given = {key: value for key, value in given.items() if value is not None}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return model.fit(rows.Z, rows.y, protected=frames(rows, "basis" in design.options), **given)
    except sq.errors.SetsquareError:
        return None


def run(name: str, draws: int | None = None, seed: int = 0) -> dict[str, Any]:
    """Coverage of a design for both targets."""
    design, as_levels = DESIGNS[name], "basis" in DESIGNS[name].options
    found: dict[str, list[tuple[float, float, float]]] = {target: [] for target in TARGETS}
    refused, skipped = dict.fromkeys(TARGETS, 0), 0
    new = design.draw(np.random.default_rng(10**6 + seed), TRUTH)
    for number in range(draws or design.draws):
        rows = design.draw(np.random.default_rng([number, design.n, seed]), design.n)
        if rows.X.std(axis=0).min() == 0.0:
            skipped += 1
            continue
        for target in TARGETS:
            model = fit_one(design, rows, target)
            left = None if model is None else model.solution_.certificate.new_rows
            if left is None:
                refused[target] += 1
                continue
            extra = {} if new.offset is None else {"offset": new.offset}
            p = model.predict_proba(new.Z)[:, 1] if design.family == "binomial" else model.predict(new.Z, **extra)
            found[target].append((truth(p, new, as_levels), left.upper, left.correlation))
    out: dict[str, Any] = {"design": name, "n": design.n, "draws": draws or design.draws, "skipped": skipped}
    for target, values in found.items():
        if not values:
            out[target] = {"fits": 0, "refused": refused[target]}
            continue
        real, upper, _ = np.array(values).T
        promise = float(np.median(upper))
        made = upper <= promise
        covered = float(np.mean(real <= upper))
        out[target] = {"fits": len(values), "refused": refused[target], "covered": covered, "upper": promise}
        out[target] |= {"truth": float(np.median(real)), "made": int(made.sum())}
        out[target] |= {"broken": int(np.sum(made & (real > promise)))}
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="designs whose name contains this")
    parser.add_argument("--draws", type=int, help="another number of draws; nothing is written")
    parser.add_argument("--seed", type=int, default=0, help="fresh samples; nothing is written unless 0")
    parser.add_argument("--show", action="store_true", help="print what there is; run nothing")
    given = parser.parse_args()
    keep = given.draws is None and given.seed == 0
    record: dict[str, Any] = {"cells": {}}
    if RESULTS.exists() and keep:
        record = json.loads(RESULTS.read_text(encoding="utf-8"))
    for name in () if given.show else DESIGNS:
        if given.only in name and name not in record["cells"]:
            record["cells"][name] = plain(run(name, given.draws, given.seed))
            print(json.dumps(record["cells"][name]), flush=True)
            if keep:
                write(RESULTS, record | where())
    for cell in record["cells"].values() if given.show else ():
        print(json.dumps(cell))


if __name__ == "__main__":
    main()
