"""The trade-off between loss and correlation, with other methods on the same axes, and its cost in fits.

    nice -n 15 python -m benchmarks.tradeoff            # about 10 minutes of one core
    python -m benchmarks.tradeoff --quick               # compas only; nothing is written

Four sets, training rows. Each method of Komiyama (statistical parity, equality of opportunity), Berk and Zafar is
fitted for several bounds of its own. Its predictions have a loss, a covariance with an orthonormal basis of the
protected columns of some length, and a multiple correlation with them. `same covariance` is the loss of our fit with a
covariance of that length (`budget=`), `same correlation` that of our fit with the same correlation: both must be at
most theirs. Features are the same: with the protected columns for Komiyama and Berk, without them for Zafar.

The cost is CPU time: the path of 20 budgets (`sq.tradeoff` with and without new rows) over one fit of the same table by
`OrthogonalGLMClassifier` or `OrthogonalGLMRegressor`, both after a first call, medians of alternating runs.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import brentq

import setsquare as sq
from setsquare.errors import InputError
from setsquare.glm.solver import Path as BudgetPath
from setsquare.glm.solver import fit_path
from studies.arrays import Array
from studies.comparators import COMPARATORS, available
from studies.paper import figures
from studies.paper.benchmark_sets import SETS, BenchmarkSet, load

RESULTS = Path(__file__).parent / "results" / "tradeoff.json"
PICTURE = Path(__file__).parent.parent / "docs" / "images" / "tradeoff.png"
TITLES = {"adult": "Adult", "bank": "Bank", "compas": "COMPAS", "health": "Health and Retirement"}
METHODS = {
    "komiyama-sp": "Komiyama, parity",
    "komiyama-eo": "Komiyama, opportunity",
    "berk-if": "Berk",
    "zafar": "Zafar",
}
BOUNDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.7)
N_BUDGETS, ROUNDS = 20, 7


def problem_of(data: BenchmarkSet, *, with_protected: bool) -> sq.Problem:
    """The problem of a set, with the protected columns among the features or without them."""
    kept = [j for j, name in enumerate(data.features) if with_protected or name not in data.protected]
    names = tuple(data.features[j] for j in kept)
    family = sq.families.family(data.family)
    return sq.Problem(data.Z[:, kept], data.y, data.X, family, feature_names=names, protected_names=data.protected)


def fits(path: BudgetPath) -> list[dict[str, float]]:
    """Budget, loss, length of the covariance, correlation and price of each fit."""
    return [
        {
            "share": one.share,
            "loss": one.end.model.loss,
            "covariance": one.covariance,
            "correlation": one.correlation,
            "price": one.slope,
        }
        for one in path.points
    ]


def point(data: BenchmarkSet, Q: Array, mean: Array) -> dict[str, float]:
    """Loss, covariance and correlation of predictions."""
    family = sq.families.family(data.family)
    eta = np.log(mean) if data.family == "poisson" else np.log(mean) - np.log1p(-mean)
    loss = float(np.mean(family.value_terms(data.y[:, None], eta[:, None])[0]))
    length = float(np.linalg.norm(Q.T @ mean / len(mean)))
    return {"loss": loss, "covariance": length, "correlation": length / float(mean.std())}


def reach(data: BenchmarkSet, Q: Array, method: str, bound: float) -> dict[str, Any]:
    """What a comparator reaches with a bound of its own, or why it refuses."""
    try:
        model = COMPARATORS[method](family=data.family, bound=bound)
        return point(data, Q, model.fit(data.unprotected, data.y, data.X).predict(data.unprotected, data.X))
    except InputError as error:
        return {"refused": str(error)}


def at_covariance(problem: sq.Problem, length: float, plain: float) -> float:
    """Our loss with a covariance of this length, or without a constraint where it is longer than needed."""
    return fits(fit_path(problem, [min(length / plain, 1.0)], tol=1e-8))[0]["loss"]


def at_correlation(problem: sq.Problem, correlation: float, path: list[dict[str, float]]) -> float:
    """Our loss with this correlation, which grows with the budget."""
    if correlation >= path[-1]["correlation"]:
        return path[-1]["loss"]

    def excess(budget: float) -> float:
        return fits(fit_path(problem, [budget], tol=1e-8))[0]["correlation"] - correlation

    above = next(i for i, one in enumerate(path) if one["correlation"] > correlation)
    ends = path[max(above - 1, 0)]["share"], path[above]["share"]
    budget = float(brentq(excess, *ends, xtol=1e-7)) if excess(ends[0]) < 0.0 else ends[0]
    return fits(fit_path(problem, [budget], tol=1e-8))[0]["loss"]


def compare(name: str, kept: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """Our paths and the points of the comparators on one set; ``kept`` are theirs from an earlier run."""
    data = load(name)
    Q = np.linalg.qr(data.X - data.X.mean(axis=0))[0] * np.sqrt(len(data.y))
    found: dict[str, Any] = {"n": len(data.y), "paths": {}, "points": []}
    problems = {key: problem_of(data, with_protected=key == "with") for key in ("with", "without")}
    shares = [float(share) for share in np.linspace(0.0, 1.0, N_BUDGETS)]
    for key, problem in problems.items():
        found["paths"][key] = fits(fit_path(problem, shares, tol=1e-8))
    for method, label in METHODS.items():
        if method not in available(data.family):
            continue
        key = "without" if method == "zafar" else "with"
        problem, path = problems[key], found["paths"][key]
        for bound in BOUNDS:
            known = next((one for one in kept or () if (one["method"], one["bound"]) == (label, bound)), None)
            own = reach(data, Q, method, bound) if known is None else known
            if "refused" in own:
                found["points"].append({"method": label, "bound": bound, "refused": own["refused"]})
                continue
            own = {key: own[key] for key in ("loss", "covariance", "correlation")}
            ours = {
                "same covariance": at_covariance(problem, own["covariance"], path[-1]["covariance"]),
                "same correlation": at_correlation(problem, own["correlation"], path),
            }
            found["points"].append({"method": label, "bound": bound, "features": key, **own, **ours})
            print(name, json.dumps(found["points"][-1]), flush=True)
    return found


def cost(name: str) -> dict[str, Any]:
    """CPU seconds of a fit and of a path, alternating."""
    data = SETS[name]()
    Z = data.features_table()
    model = (
        sq.OrthogonalGLMRegressor("poisson", list(data.protected), use_protected=True)
        if data.family == "poisson"
        else sq.OrthogonalGLMClassifier(list(data.protected), use_protected=True)
    )
    jobs = {
        "fit": lambda: model.fit(Z, data.y),
        "path": lambda: sq.tradeoff(model, Z, data.y, budgets=N_BUDGETS, new_rows=False),
        "path with new rows": lambda: sq.tradeoff(model, Z, data.y, budgets=N_BUDGETS),
    }
    seconds: dict[str, list[float]] = {key: [] for key in jobs}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(ROUNDS):
            for key, job in jobs.items():
                start = time.process_time()
                job()
                seconds[key].append(time.process_time() - start)
    middle = {key: float(np.median(values[1:])) for key, values in seconds.items()}
    return {"seconds": middle, "ratio": {key: middle[key] / middle["fit"] for key in jobs if key != "fit"}}


def draw(found: dict[str, Any], path: Path) -> Path:
    """One panel per set: our paths as lines, the comparators as marks."""
    with figures.look():
        figure, axes = figures.subplots(2, 2, figures.PAGE, 5.4)
        marks = dict(zip(METHODS.values(), ("s", "^", "D", "o"), strict=True))
        for axis, (name, about) in zip(axes.flat, found.items(), strict=False):
            for key, style in (("with", "-"), ("without", "--")):
                curve = about["paths"][key]
                label = f"Setsquare, {key} protected features"
                x, y = ([one[k] for one in curve] for k in ("correlation", "loss"))
                axis.plot(x, y, style, marker=".", ms=3, color=figures.COLOURS[0], label=label)
            for (label, marker), colour in zip(marks.items(), figures.COLOURS[1:], strict=False):
                own = [one for one in about["points"] if one["method"] == label and "loss" in one]
                x, y = ([one[k] for one in own] for k in ("correlation", "loss"))
                axis.plot(x, y, marker, ms=4, mfc="none", color=colour, label=label)
            kind = "Poisson" if name == "health" else "logistic"
            axis.set(title=f"{TITLES[name]}: {kind}, {about['n']:,} rows", ylabel="training loss")
            axis.set(xlabel="multiple correlation with the protected columns")
        handles, labels = axes[0, 0].get_legend_handles_labels()
        labels = [f"{label}, without protected features" if label == "Zafar" else label for label in labels]
        figure.legend(handles, labels, loc="outside lower center", ncols=3)
        return figures.save(figure, path)


def main() -> None:
    """Compare, measure, write and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="compas only; nothing is written")
    parser.add_argument("--cost", action="store_true", help="only the cost")
    parser.add_argument("--ours", action="store_true", help="points of the comparators from the last run")
    given = parser.parse_args()
    names = ["compas"] if given.quick else list(SETS)
    costs = {name: cost(name) for name in names}
    print(json.dumps(costs, indent=1))
    if given.cost:
        return
    before = json.loads(RESULTS.read_text())["sets"] if given.ours else {}
    found = {name: compare(name, before[name]["points"] if given.ours else None) for name in names}
    worst = {
        key: max(one[key] - one["loss"] for about in found.values() for one in about["points"] if key in one)
        for key in ("same covariance", "same correlation")
    }
    print("largest loss of ours minus theirs:", worst)
    if not given.quick:
        RESULTS.write_text(json.dumps({"cost": costs, "sets": found, "worst": worst}, indent=1) + "\n")
        print(draw(found, PICTURE))


if __name__ == "__main__":
    main()
