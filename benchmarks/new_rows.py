"""Correlation on new rows: constraint on the training rows against leave-one-out constraint, and the upper bound.

    python -m benchmarks.new_rows                      # all cells that are not yet in the file of results
    python -m benchmarks.new_rows --only simulation    # one part: simulation, population, embedding, ...
    python -m benchmarks.new_rows --again              # compute kept cells of other commits anew
    python -m benchmarks.new_rows --show               # print the tables
    python -m benchmarks.new_rows --page               # write the table of docs/theory.md from the kept cells

A cell is a set-up with many draws, and has the commit that it was computed with. In simulations the truth is the
correlation on 20 000 further rows. A real data set is a population: samples are drawn from it with replacement (whole
patients where it has patients), and the truth is the correlation over all its rows. ``bias`` is the length of the mean
over draws of the correlations with the basis of the protected columns, less what chance adds to it; ``noise`` is their
standard deviation around this mean. Cells are written as they are finished, so that a run that was stopped goes on.
"""

from __future__ import annotations

import argparse
import functools
import json
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import setsquare as sq
from benchmarks import guide_tables
from benchmarks.frame import plain, where, write
from setsquare import datasets, tables
from setsquare.families import contrasts
from setsquare.glm import NewRows, Solution, choose_l2

RESULTS = Path(__file__).parent / "results" / "new_rows.json"
TARGETS = ("training rows", "new rows")
SETS = {
    "adult": datasets.load_adult,
    "bank": datasets.load_bank,
    "compas": datasets.load_compas,
    "health": datasets.load_health_retirement,
}
Draw = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]


def simulate(rng: np.random.Generator, n: int, q: int, family: str, kind: str) -> Draw:
    """Features, outcome, protected column and clusters; five features are shifted by the protected column."""
    cluster = np.arange(n) // 10 if kind.startswith("clusters") else None
    units = n if cluster is None else -(-n // 10)
    x = (rng.random(units) < 0.5).astype(float)
    Z = rng.normal(size=(n, q))
    if cluster is not None:  # shared by the rows of a cluster: the group, half of the features' variance, an effect
        x, Z = x[cluster], np.sqrt(0.5) * (Z + rng.normal(size=(units, q))[cluster])
    if kind == "correlated":
        Z = Z @ np.linalg.cholesky(0.7 ** np.abs(np.subtract.outer(np.arange(q), np.arange(q)))).T
    Z[:, :5] += 0.8 * x[:, None]
    eta = 0.4 * Z[:, :10].sum(axis=1) - 1.0  # half of the signal is independent of the protected column
    if cluster is not None:
        eta = eta + rng.normal(size=units)[cluster]
    if family == "binomial":
        y = (rng.random(n) < 1.0 / (1.0 + np.exp(-eta))).astype(float)
    elif family == "poisson":
        frailty = rng.normal(size=n) if kind == "heavy tails" else 0.0
        y = rng.poisson(np.exp(0.5 * eta + frailty)).astype(float)
    elif family == "gamma":
        y = rng.gamma(2.0, np.exp(0.5 * eta) / 2.0)
    else:
        scores = np.column_stack([np.zeros(n), eta, 0.5 * Z[:, 10] - 0.5 * eta])
        y = np.argmax(scores + rng.gumbel(size=(n, 3)), axis=1).astype(float)
    return Z, y, x[:, None], cluster


def predict(solution: Solution, family: str, Z: np.ndarray) -> np.ndarray:
    """Predictions (n, k); classes in contrasts."""
    eta = Z @ solution.coef.T + solution.intercept
    h = sq.families.activation(family)(eta)
    return h @ contrasts(h.shape[1]) if family == "multinomial" else h


def multiple_correlation(prediction: np.ndarray, X: np.ndarray) -> float:
    """Multiple correlation with all protected columns, as in the certificate."""
    Q, _ = np.linalg.qr(X - X.mean(axis=0))
    gap = prediction - prediction.mean(axis=0)
    return float(np.linalg.norm(Q.T @ gap) / np.linalg.norm(gap))


def signed(prediction: np.ndarray, x: np.ndarray) -> float:
    """Correlation with one column; for classes, that of the second contrast's sign times the length."""
    if prediction.shape[1] == 1:
        return float(np.corrcoef(prediction[:, 0], x)[0, 1])
    each = [np.corrcoef(column, x)[0, 1] * column.std() for column in prediction.T]
    return float(each[0] / np.sqrt(np.sum(prediction.std(axis=0) ** 2)))


def fit(problem: sq.Problem, target: str, confidence: float = 0.95) -> tuple[Solution, NewRows] | None:
    """Fit on a target; None if it was refused."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        solution = sq.solve(problem, orthogonal_on=target, confidence=confidence)
    found = solution.certificate.new_rows
    return (solution, found) if solution.certificate.is_orthogonal and found is not None else None


def ridged(problem: sq.Problem, target: str, ridge: str) -> sq.Problem | None:
    """The problem with its ridge; None if no ridge was found."""
    if ridge != "auto":
        return problem
    try:
        return problem.with_l2(choose_l2(problem, orthogonal_on=target))
    except sq.errors.NotOrthogonalError:
        return None


def simulation_cell(n: int, q: int, family: str, kind: str, draws: int, ridge: str = "0") -> dict[str, Any]:
    """Mean correlation on new rows under both targets."""
    found: dict[str, list[float]] = {target: [] for target in TARGETS}
    refused = dict.fromkeys(TARGETS, 0)
    covered, loo = 0, []
    for seed in range(draws):
        Z, y, X, cluster = simulate(np.random.default_rng(seed), n, q, family, kind)
        Zn, _, Xn, _ = simulate(np.random.default_rng(10**6 + seed), 20_000, q, family, kind)
        left = cluster if kind != "clusters, rows left out" else None
        problem = sq.Problem(Z, y, X, family, cluster=left)
        for target in TARGETS:
            used = ridged(problem, target, ridge)
            done = None if used is None else fit(used, target)
            if done is None:
                refused[target] += 1
                continue
            prediction = predict(done[0], family, Zn)
            found[target].append(signed(prediction, Xn[:, 0]))
            if target == "new rows":
                covered += multiple_correlation(prediction, Xn) <= done[1].upper
                loo.append(done[1].upper)
    cell: dict[str, Any] = {"n": n, "q": q, "family": family, "kind": kind, "draws": draws, "l2": ridge}
    for target, values in found.items():
        sd = float(np.std(values, ddof=1)) if len(values) > 1 else np.nan
        mean, error = float(np.mean(values)) if values else np.nan, sd / max(len(values), 1) ** 0.5
        cell[target] = {"mean": mean, "sd": sd, "error": error, "refused": refused[target]}
        cell[target]["met"] = bool(abs(mean) <= max(3.0 * error, 0.3 / n**0.5))
    return cell | {"coverage": covered / max(len(loo), 1), "upper": np.median(loo) if loo else None}


class Population(NamedTuple):
    """All rows of a data set as matrices; the protected columns are not among the features."""

    Z: np.ndarray
    y: np.ndarray
    X: np.ndarray
    family: str
    cluster: np.ndarray | None = None

    def problem(self, rows: np.ndarray, copy: np.ndarray) -> sq.Problem:
        """Problem of some rows; those of a cluster that was drawn twice are two clusters."""
        cluster = None if self.cluster is None else copy
        return sq.Problem(self.Z[rows], self.y[rows], self.X[rows], self.family, cluster=cluster)


@functools.cache
def population(name: str) -> Population:
    """A data set; embeddings have the number of columns that are used in their names."""
    if name in SETS:
        data = SETS[name]()
        features, protected = data.features_table(), data.protected_table()
        Z = np.asarray(coded(features.drop(columns=list(protected))), float)
        return Population(Z, np.asarray(data.y, float), coded(protected), data.family)
    kind, _, width = name.partition(" ")
    data = EMBEDDINGS[kind]()
    Z = np.asarray(next(iter(data.arrays.values()))[:, : int(width)], float)
    y = np.unique(np.asarray(data.y), return_inverse=True)[1].astype(float)
    cluster = None if data.cluster is None else np.unique(np.asarray(data.table[data.cluster]), return_inverse=True)[1]
    return Population(Z / Z.std(axis=0), y, coded(data.protected_table()), "binomial", cluster)


def coded(table: Any) -> np.ndarray:
    values = tables.learn(table).apply(table).values
    return np.asarray(values.toarray() if hasattr(values, "toarray") else values, float)


def faces() -> datasets.Dataset:
    from studies.datasets.faces import load_utkface

    return load_utkface()


def xrays() -> datasets.Dataset:
    from studies.datasets.chest_xrays import load_nih_chest_xrays

    return load_nih_chest_xrays()


EMBEDDINGS = {"faces": faces, "xrays": xrays}


def area(y: np.ndarray, score: np.ndarray) -> float:
    """Area under the ROC curve, or the rank correlation's analogue for counts (0 against more)."""
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(y > 0, score))


def draw_sample(rng: np.random.Generator, of: Population, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows (or whole clusters, n of them) with replacement, and the number of each draw; all columns vary."""
    while True:
        if of.cluster is None:
            rows = rng.integers(0, len(of.y), n)
            copy = np.arange(n)
        else:
            order = np.argsort(of.cluster, kind="stable")
            starts = np.searchsorted(of.cluster[order], np.arange(of.cluster.max() + 2))
            drawn = rng.integers(0, len(starts) - 1, n)
            rows = np.concatenate([order[starts[unit] : starts[unit + 1]] for unit in drawn])
            copy = np.repeat(np.arange(n), starts[drawn + 1] - starts[drawn])
        if of.y[rows].std() > 0.0 and (of.X[rows].std(axis=0) > 0.0).any():
            return rows, copy


def fold_bound(Z: np.ndarray, y: np.ndarray, X: np.ndarray, family: str, **given: Any) -> tuple[float, str]:
    """Upper bound and verdict of the audit by folds, whose bounds are used where the audit has weights."""
    model = sq.OrthogonalGLMClassifier(**given) if family == "binomial" else sq.OrthogonalGLMRegressor(family, **given)
    weights = {} if given else {"sample_weight": np.ones(len(y))}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = sq.audit_model(model, Z, y, X, **weights)
    return result.certificate.correlation_upper, str(result.verdict)


def verdict_cell(name: str, n: int, draws: int) -> dict[str, Any]:
    """Verdicts of ``audit_model`` with leave-one-out bounds, for both targets."""
    of = population(name)
    cell: dict[str, Any] = {"set": name, "n": n, "draws": draws}
    for target in TARGETS:
        found: list[tuple[float, str]] = []
        for seed in range(draws):
            rows, _ = draw_sample(np.random.default_rng([seed, n]), of, n)
            try:
                found.append(fold_bound(of.Z[rows], of.y[rows], of.X[rows], of.family, orthogonal_on=target))
            except sq.errors.SetsquareError:
                continue  # refused, or a level is missing from a fold
        cell[target] = {"upper": np.median([upper for upper, _ in found]) if found else None, "audits": len(found)}
        verdicts = [verdict for _, verdict in found]
        cell[target] |= {verdict: verdicts.count(verdict) / len(found) for verdict in sorted(set(verdicts))}
    return cell


def population_cell(name: str, n: int, draws: int, ridge: str = "0", folds: int = 0) -> dict[str, Any]:
    """Correlation, loss and area on the population, and coverage of the bound; by folds for the first few draws."""
    of = population(name)
    Z, y, X, family, _ = of
    Q, _ = np.linalg.qr(X - X.mean(axis=0))
    out: dict[str, dict[str, list[float]]] = {t: {"corr": [], "loss": [], "auc": [], "upper": []} for t in TARGETS}
    broken, refused = dict.fromkeys(TARGETS, 0), dict.fromkeys(TARGETS, 0)
    by_folds: list[tuple[float, str]] = []
    sides: dict[str, list[np.ndarray]] = {target: [] for target in TARGETS}
    activation = sq.families.activation(family)
    for seed in range(draws):
        rows, copy = draw_sample(np.random.default_rng([seed, n]), of, n)
        problem = of.problem(rows, copy)
        for target in TARGETS:
            used = ridged(problem, target, ridge)
            done = None if used is None else fit(used, target)
            if done is None:
                refused[target] += 1
                continue
            eta = Z @ done[0].coef.T + done[0].intercept
            mean = activation(eta)
            corr = multiple_correlation(mean, X)
            part = out[target]
            part["corr"].append(corr)
            sides[target].append(Q.T @ (mean[:, 0] - mean.mean()) / np.linalg.norm(mean - mean.mean()))
            part["loss"].append(float(sq.families.family(family).row_losses(y, eta[:, 0])[0].mean()))
            part["auc"].append(area(y, mean[:, 0]))
            part["upper"].append(done[1].upper)
            broken[target] += corr > done[1].upper
        if seed < folds:
            try:
                by_folds.append(fold_bound(Z[rows], y[rows], X[rows], family))
            except sq.errors.SetsquareError:
                continue  # a level is missing from a fold
    cell: dict[str, Any] = {"set": name, "n": n, "draws": draws, "l2": ridge, "q": Z.shape[1], "p": X.shape[1]}
    for target in TARGETS:
        part, count = out[target], len(out[target]["corr"])
        cell[target] = {key: np.median(values) if values else None for key, values in part.items()}
        cell[target] |= {"refused": refused[target], "coverage": 1.0 - broken[target] / max(count, 1), "fits": count}
        cell[target] |= {"at most 0.1": np.mean([upper <= 0.1 for upper in part["upper"]]) if count else None}
        cell[target] |= bias_and_noise(sides[target])
    if by_folds:
        uppers, verdicts = zip(*by_folds, strict=True)
        cell["folds"] = {"upper": np.median(uppers), "fits": len(uppers)}
        cell["folds"] |= {"at most 0.1": np.mean([upper <= 0.1 for upper in uppers])}
        cell["folds"] |= {"no leak found": np.mean([verdict == "no leak found" for verdict in verdicts])}
    return cell


def bias_and_noise(sides: list[np.ndarray]) -> dict[str, float | None]:
    """Length of the mean of signed correlations, less what chance adds to it, and their standard deviation."""
    if len(sides) < 2:
        return {"bias": None, "noise": None}
    variance = float(np.var(sides, axis=0, ddof=1).sum())
    square = float(np.sum(np.mean(sides, axis=0) ** 2)) - variance / len(sides)
    return {"bias": max(square, 0.0) ** 0.5, "noise": variance**0.5}


def promise_cell(name: str, n: int, draws: int, ridge: str) -> dict[str, Any]:
    """How often the bound at confidence 1 - delta is exceeded, and how often a promise is made and then broken."""
    of = population(name)
    Z, _, X, family, _ = of
    deltas, limit = (0.05, 0.1), 0.15 if n <= 500 else 0.1
    counts = {delta: {"fits": 0, "exceeded": 0, "made": 0, "broken": 0} for delta in deltas}
    activation = sq.families.activation(family)
    for seed in range(draws):
        rows, copy = draw_sample(np.random.default_rng([seed, n, 7]), of, n)
        problem = ridged(of.problem(rows, copy), "new rows", ridge)
        for delta, count in counts.items():
            done = None if problem is None else fit(problem, "new rows", 1.0 - delta)
            if done is None:
                continue
            corr = multiple_correlation(activation(Z @ done[0].coef.T + done[0].intercept), X)
            count["fits"] += 1
            count["exceeded"] += corr > done[1].upper
            count["made"] += done[1].upper <= limit
            count["broken"] += done[1].upper <= limit < corr
    cell: dict[str, Any] = {"set": name, "n": n, "draws": draws, "l2": ridge, "limit": limit}
    for delta, count in counts.items():
        cell[f"delta {delta:g}"] = count | {"share exceeded": count["exceeded"] / max(count["fits"], 1)}
    return cell


def cost_cell(name: str) -> dict[str, Any]:
    """Processor time of interleaved fits: training rows without the certificate of new rows, with it, and new rows.

    A ratio is the median of those of the rounds, whose fits follow each other, since the pace of a host changes by a
    factor of two; the smaller the set, the more rounds. ``seconds`` are the least of all.
    """
    from setsquare.glm import solver

    if name in SETS:
        of = population(name)
        problem, rounds = of.problem(np.arange(len(of.y)), np.arange(len(of.y))), max(27, 1_000_000 // len(of.y))
    else:
        Z, y, X, _ = simulate(np.random.default_rng(0), 1_000_000, 50, "binomial", "plain")
        problem, rounds = sq.Problem(Z, y, X, "binomial"), 15
    measure = solver.measure_new_rows

    def bare() -> object:
        solver.measure_new_rows = lambda *_: None  # type: ignore[assignment]
        try:
            return sq.solve(problem)
        finally:
            solver.measure_new_rows = measure

    ways: dict[str, Callable[[], object]] = {
        "bare": bare,
        "certificate": lambda: sq.solve(problem).certificate.new_rows,  # measured when it is first read
        "new rows": lambda: sq.solve(problem, orthogonal_on="new rows"),
    }
    times: dict[str, list[float]] = {key: [] for key in ways}
    for _ in range(rounds):
        for key, way in ways.items():
            start = time.process_time()
            way()
            times[key].append(time.process_time() - start)
    best = {key: min(values) for key, values in times.items()}
    ratios = {key: float(np.median(np.divide(times[key], times["bare"]))) for key in ("certificate", "new rows")}
    return {"set": name, "n": problem.n_rows, "q": len(problem.feature_names), "seconds": best, "ratios": ratios}


def cells(quick: bool) -> Iterator[tuple[str, Callable[..., dict[str, Any]], dict[str, Any]]]:
    """All cells: part, function and arguments."""
    draws = 5 if quick else 50
    for n, q in ((500, 20), (500, 60), (2000, 50), (2000, 200), (5000, 50)):
        yield "simulation", simulation_cell, {"n": n, "q": q, "family": "binomial", "kind": "plain", "draws": draws}
    for family, ridge in (("poisson", "0"), ("gamma", "0"), ("gamma", "auto"), ("multinomial", "0")):
        for n, q in ((500, 40), (2000, 100)):
            arguments = {"n": n, "q": q, "family": family, "kind": "plain", "draws": draws, "ridge": ridge}
            if family == "poisson" and n == 500:
                arguments["draws"] = 4 * draws
            yield "simulation", simulation_cell, arguments
    for kind in ("correlated", "clusters", "clusters, rows left out"):
        for n, q in ((500, 20), (2000, 50)):
            yield "simulation", simulation_cell, {"n": n, "q": q, "family": "binomial", "kind": kind, "draws": draws}
    for n in (150, 500):
        arguments = {"n": n, "q": 15, "family": "poisson", "kind": "heavy tails", "draws": 4 * draws}
        yield "simulation", simulation_cell, arguments
    for name in (*SETS, "1e6 x 50"):
        yield "cost", cost_cell, {"name": name}
    for n in (500, 1000, 2000, 5000):
        for name in SETS:
            many = 4 * draws if n == 500 else 2 * draws
            arguments = {"name": name, "n": n, "draws": many, "ridge": "0", "folds": draws * 2 // 5}
            yield "population", population_cell, arguments
    for name, n in (("bank", 1000), ("adult", 1000)):
        for ridge in ("auto", "0"):
            # 500 splits do not tell the shares 0.10 and 0.12 apart, and the bank's with a ridge is near 0.10.
            many = (40 if (name, ridge) == ("bank", "auto") else 10) * draws
            yield "promise", promise_cell, {"name": name, "n": n, "draws": many, "ridge": ridge}
    for n in (500, 2000):
        for name in SETS:
            yield "population", population_cell, {"name": name, "n": n, "draws": draws, "ridge": "auto"}
    for name, n in (("adult", 2000), ("bank", 1000), ("compas", 2000)):
        yield "verdict", verdict_cell, {"name": name, "n": n, "draws": draws * 2 // 5}
    for name, n, ridge in (
        ("xrays 64", 1496, "0"),
        ("xrays 64", 1496, "auto"),
        ("faces 128", 500, "0"),
        ("faces 128", 500, "auto"),
        ("faces 128", 2000, "0"),
        ("faces 128", 2000, "auto"),
        ("xrays 256", 600, "auto"),
        ("xrays 256", 1496, "auto"),
    ):
        count = 4 * draws if name == "xrays 64" and ridge == "0" else draws
        yield "embedding", population_cell, {"name": name, "n": n, "draws": count, "ridge": ridge}


def guide_lines(record: dict[str, Any]) -> list[str]:
    """Table of the samples of real data sets, without a ridge; each pair is training rows, then new rows."""
    lines = [
        "| data set | n | bias | noise | AUC | upper bound | held, % | refused, % |",
        "|---|---|---|---|---|---|---|---|",
    ]
    rows = [row for row in record["cells"]["population"].values() if row["l2"] == "0" and row["set"] in SETS]
    for row in sorted(rows, key=lambda row: (list(SETS).index(row["set"]), row["n"])):
        old, new = (row[target] for target in TARGETS)
        pairs = [", ".join(f"{part[key]:.3f}" for part in (old, new)) for key in ("bias", "noise", "auc", "upper")]
        held = ", ".join(f"{100.0 * part['coverage']:.0f}" for part in (old, new))
        cells_ = [row["set"].capitalize(), f"{row['n']}", *pairs, held, f"{100.0 * new['refused'] / row['draws']:.3g}"]
        lines.append(f"| {' | '.join(cells_)} |")
    return lines


def show(record: dict[str, Any]) -> None:
    """Print the cells, one per line."""
    for part, rows in record["cells"].items():
        print(f"\n{part}")
        for row in rows.values():
            print("  " + json.dumps({k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="one part")
    parser.add_argument("--again", action="store_true", help="compute kept cells of other commits anew")
    parser.add_argument("--quick", action="store_true", help="few draws; nothing is written")
    parser.add_argument("--show", action="store_true", help="print what there is; run nothing")
    parser.add_argument("--page", action="store_true", help="write the table of the theory page; run nothing")
    given = parser.parse_args()
    record: dict[str, Any] = {"cells": {}}
    if RESULTS.exists() and not given.quick:
        record = json.loads(RESULTS.read_text(encoding="utf-8"))
    if given.page:
        guide_tables.write("../theory.md", "new_rows", guide_lines(record))
        return
    commit = where()["commit"]
    for part, function, arguments in () if given.show else cells(given.quick):
        key, done = ", ".join(map(str, arguments.values())), record["cells"].setdefault(part, {})
        kept = key in done and not (given.again and done[key].get("commit") != commit)
        if kept or (given.only and part != given.only):
            continue
        start = time.process_time()
        found = function(**arguments)
        done[key] = plain(found | {"cpu": time.process_time() - start, "commit": commit})
        print(part, key, json.dumps(done[key]), flush=True)
        if not given.quick:
            write(RESULTS, record | where())
    show(record)


if __name__ == "__main__":
    main()
