"""Whether the audit keeps its promises in hard designs: skewed, rare, tied, clustered, many levels, few rows.

    python -m benchmarks.audit_designs            # 2000 samples per cell, 500 at n = 5000: an hour on 2 cores
    python -m benchmarks.audit_designs --quick    # a tenth of the samples, nothing written

*Size*: how often innocent predictions are accused, by the verdict and by the test of the effects. Heteroscedastic
predictions have one mean and a spread that depends on the group: their effects must not be called a leak, their spread
must. *Coverage*: how often the upper bound on the correlation holds. *Power*: how often leaks without a linear effect
are found. Every cell is written as soon as it is done; cells that are there already are not run again.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from joblib import Parallel, delayed
from rich.console import Console
from rich.progress import track
from rich.table import Table
from scipy import stats

import setsquare as sq

RESULTS = Path(__file__).parent / "results" / "audit_designs.json"
SIZES = (200, 1000, 5000)
LETTERS, SHARES = list("abcdef"), (0.40, 0.25, 0.15, 0.10, 0.07, 0.03)
Rng = np.random.Generator


def draw_groups(kind: str, n: int, rng: Rng) -> pd.DataFrame:
    """Protected columns."""
    tenth = rng.choice(["u", "v"], n, p=[0.9, 0.1])
    six = rng.choice(LETTERS, n, p=SHARES)
    if kind == "10 % group":
        return pd.DataFrame({"group": tenth})
    if kind == "six groups":
        return pd.DataFrame({"group": six})
    return pd.DataFrame({"sex": rng.choice(["f", "m"], n), "age": rng.normal(50.0, 10.0, n), "group": six})


GROUPS = ("10 % group", "six groups", "mix")
SCORES: dict[str, Callable[[int, Rng], np.ndarray]] = {
    "normal": lambda n, rng: rng.normal(size=n),
    "lognormal": lambda n, rng: np.exp(rng.normal(size=n)),
    "zero-inflated": lambda n, rng: np.where(rng.random(n) < 0.8, 0.0, rng.exponential(size=n)),
    "0/1": lambda n, rng: (rng.random(n) < 0.12).astype(float),
    "rare probabilities": lambda n, rng: 1.0 / (1.0 + np.exp(4.0 - rng.normal(size=n))),
    "grid of 3 values": lambda n, rng: rng.choice([0.1, 0.2, 0.5], n),
    "t with 2 df": lambda n, rng: rng.standard_t(2, size=n),
    "3 classes": lambda n, rng: rng.dirichlet([4.0, 2.0, 0.5], n),
    "4 labels": lambda n, rng: rng.choice(list("stuv"), n, p=[0.55, 0.3, 0.1, 0.05]),
    "7 labels": lambda n, rng: rng.choice(list("stuvwxy"), n, p=[0.4, 0.2, 0.15, 0.1, 0.07, 0.05, 0.03]),
    "7 classes": lambda n, rng: rng.dirichlet([4.0, 3.0, 2.0, 1.0, 1.0, 0.5, 0.3], n),
}
CONTINUOUS = ("normal", "lognormal", "rare probabilities", "t with 2 df")
FURTHER = ("heteroscedastic", "very heteroscedastic", "weights", "weights by group", "clusters")


def draw_null(score: str, groups: str, n: int, seed: int) -> tuple[bool, bool]:
    """Whether the verdict, and the test of the effects, accuse predictions without an effect."""
    rng = np.random.default_rng([seed, n, *map(ord, score + groups)])
    X, options = draw_groups(groups, n, rng), {}
    if score.endswith("heteroscedastic"):
        factor = 3.0 if score.startswith("very") else 2.0
        y = rng.normal(size=n) * np.where(X["group"].isin(["v", "b", "e"]), factor, 1.0)
    elif score == "weights by group":
        y, options = (
            SCORES["zero-inflated"](n, rng),
            {"sample_weight": np.where(X["group"].isin(["v", "f"]), 10.0, 1.0)},
        )
    elif score == "weights":
        y, options = np.exp(rng.normal(size=n)), {"sample_weight": rng.exponential(size=n)}
    elif score == "clusters":
        cluster = np.arange(n) // 10
        of_clusters = draw_groups(groups, n // 10, rng)
        while of_clusters["group"].nunique() < 2:  # nothing to audit
            of_clusters = draw_groups(groups, n // 10, rng)
        X = of_clusters.iloc[cluster].reset_index(drop=True)
        y, options = np.exp(rng.normal(size=n) + rng.normal(size=n // 10)[cluster]), {"cluster": cluster}
    else:
        y = SCORES[score](n, rng)
    found = sq.audit(y, X, tolerance=sq.auditing.Limits(correlation=0.0, shape=0.0), **options)
    return found.is_leak, "effects" in found.found


def draw_leaking(score: str, leak: float, rng: Rng, group: np.ndarray) -> np.ndarray:
    """Predictions that are larger in a group."""
    n, shift = len(group), leak * group
    if score == "zero-inflated":
        return np.where(rng.random(n) < 0.8 - 0.3 * shift, 0.0, rng.exponential(size=n))
    if score == "lognormal":
        return np.exp(rng.normal(size=n) + shift)
    if score == "rare probabilities":
        return 1.0 / (1.0 + np.exp(4.0 - rng.normal(size=n) - shift))
    if score == "exponential":
        return rng.exponential(size=n) * (1.0 + shift)
    if score == "0/1":
        return (rng.random(n) < 0.12 + 0.2 * shift).astype(float)
    return rng.normal(size=n) + shift


COVERED = ("normal", "zero-inflated", "lognormal", "rare probabilities", "exponential", "0/1")
LEVELS = ((100, 20_800, 0.03), (60, 5000, 0.05), (30, 4908, 0.05), (14, 2000, 0.05))


@cache
def true_correlation(score: str, leak: float) -> float:
    rng = np.random.default_rng(0)
    group = (rng.random(4_000_000) < 0.1).astype(float)
    return float(np.corrcoef(group, draw_leaking(score, leak, rng, group))[0, 1])


def covers_group(score: str, leak: float, n: int, truth: float, seed: int) -> tuple[bool, bool]:
    rng = np.random.default_rng([seed, n, *map(ord, score)])
    group = (rng.random(n) < 0.1).astype(float)
    found = sq.audit(draw_leaking(score, leak, rng, group), group, evaluation="glm").certificate
    return found.correlation_upper >= abs(truth), found.correlation_upper >= found.correlation


def covers_skewed(leak: float, n: int, truth: float, seed: int) -> tuple[bool, bool]:
    """Whether the bound holds where the protected column itself has a long tail."""
    x, y = draw_skewed(leak, n, np.random.default_rng([seed, n]))
    found = sq.audit(y, x, evaluation="glm").certificate
    return found.correlation_upper >= truth, found.correlation_upper >= found.correlation


def draw_skewed(leak: float, n: int, rng: Rng) -> tuple[np.ndarray, np.ndarray]:
    x = np.exp(rng.normal(size=n))
    return x, rng.exponential(size=n) * (1.0 + leak * x)


def covers_levels(levels: int, n: int, truth: float, seed: int) -> tuple[bool, bool]:
    rng = np.random.default_rng([seed, n, levels])
    effect = rng.normal(size=levels)
    effect = (effect - effect.mean()) / effect.std()
    group = rng.integers(levels, size=n)
    y = truth * effect[group] + np.sqrt(1.0 - truth**2) * rng.normal(size=n)
    names = np.char.add("g", group.astype(str))
    found = sq.audit(y, pd.DataFrame({"group": names}), "gaussian", evaluation="glm").certificate
    return found.correlation_upper >= truth, found.correlation_upper >= found.correlation


def draw_shaped(kind: str, n: int, seed: int) -> bool:
    """Whether a leak without a linear effect is found and named."""
    rng = np.random.default_rng([seed, n, *map(ord, kind)])
    if kind == "curvature":  # means of .62, .40 and .61 along age
        age = rng.uniform(20.0, 80.0, n)
        y, X = 0.4 + 0.21 * ((age - 50.0) / 20.0) ** 2 / 1.5 + 0.2 * rng.normal(size=n), pd.DataFrame({"age": age})
    elif kind == "spread":  # 31 % and 2 % above 0.8
        X = pd.DataFrame({"group": rng.choice(["a", "b"], n)})
        y = np.clip(0.5 + np.where(X["group"] == "a", 0.6, 0.146) * rng.normal(size=n), 0.0, 1.0)
    else:
        X = pd.DataFrame({"race": rng.choice(["r", "s"], n), "sex": rng.choice(["f", "m"], n)})
        crossed = np.where((X["race"] == "r") == (X["sex"] == "f"), 1.0, -1.0)
        y = 0.5 + 0.05 * crossed + 0.2 * rng.normal(size=n)
    return kind in sq.audit(y, X, "gaussian", tolerance=0.0).found


def rate(hits: list[bool]) -> dict[str, float]:
    low, high = stats.binomtest(int(sum(hits)), len(hits)).proportion_ci(0.95)
    return {"rate": float(np.mean(hits)), "low": float(low), "high": float(high), "samples": len(hits)}


Cell = tuple[str, Callable[..., Any], tuple[Any, ...], int]


def cells(samples: int) -> list[Cell]:
    """Part, function, arguments and number of samples."""
    found: list[Cell] = []
    for n in SIZES:
        for groups in GROUPS:
            for score in (*SCORES, *FURTHER):
                count = min(samples, {200: 2000, 1000: 2000, 5000: 500}[n])  # long audits have fewer samples
                found.append(("size", draw_null, (score, groups, n), count))
        for score in COVERED:
            for leak in (0.3, 1.0):
                found.append(("coverage", covers_group, (score, leak, n, true_correlation(score, leak)), samples // 2))
    truth = float(np.corrcoef(*draw_skewed(0.25, 4_000_000, np.random.default_rng(0)))[0, 1])
    found += [("skewed", covers_skewed, (0.25, n, truth), min(samples, 1000)) for n in SIZES]
    found += [("levels", covers_levels, case, min(samples, 500)) for case in LEVELS]
    found += [
        ("power", draw_shaped, (kind, n), min(samples, 500))
        for kind in ("curvature", "spread", "combinations")
        for n in SIZES
    ]
    return found


def simulate(samples: int, workers: int, done: dict[str, Any], write: bool, only: str) -> dict[str, Any]:
    run = Parallel(n_jobs=workers, batch_size=10)
    for part, function, arguments, count in track([c for c in cells(samples) if only in c[0]], "cells"):
        name = f"{part}: {', '.join(map(str, arguments[:3]))}"
        if done.get(name, {}).get("samples", 0) >= count:
            continue
        found = run(delayed(function)(*arguments, seed) for seed in range(count))
        first = found if part == "power" else [pair[0] for pair in found]
        done[name] = {"part": part, "design": list(map(str, arguments))} | rate(first)
        if part != "power":
            done[name]["second"] = float(np.mean([pair[1] for pair in found]))
        if write:
            RESULTS.write_text(json.dumps(done, indent=1) + "\n")
    return done


def show(results: dict[str, Any], console: Console) -> None:
    titles = {
        "size": ("accused", "by the effects", "Size at nominal 0.05"),
        "coverage": ("covered", "bound not below estimate", "Coverage of the bound on the correlation, 10 % group"),
        "skewed": ("covered", "bound not below estimate", "Coverage, lognormal protected column"),
        "levels": ("covered", "bound not below estimate", "Coverage of the bound on the correlation, many levels"),
        "power": ("found", "", "Leaks without a linear effect"),
    }
    for part, (first, second, title) in titles.items():
        table = Table("design", first, "95 % interval", second, title=title)
        for name, cell in results.items():
            if cell["part"] == part:
                interval = f"{cell['low']:.3f} to {cell['high']:.3f}"
                table.add_row(name.split(": ")[1], f"{cell['rate']:.4f}", interval, f"{cell.get('second', 0.0):.4f}")
        console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--quick", action="store_true", help="a tenth of the samples, nothing written")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", default="", help="size, coverage, skewed, levels or power")
    parser.add_argument("--show", action="store_true", help="print what was kept")
    options = parser.parse_args()
    done = json.loads(RESULTS.read_text()) if RESULTS.exists() and not options.quick else {}
    if not options.show:
        samples = options.samples // 10 if options.quick else options.samples
        done = simulate(samples, options.workers, done, not options.quick, options.only)
    show(done, Console(width=110))


if __name__ == "__main__":
    main()
