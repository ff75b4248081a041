"""The paper's figure of random forests as evaluation models: what they find in predictions of the fairness benchmark.

A forest sees more than correlations. Nothing promises that predictions which are orthogonal to the protected columns
tell it nothing: only those which are orthogonal to a basis of functions of these columns do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import Progress
from sklearn.preprocessing import SplineTransformer

from setsquare.auditing import forest_importances, forest_r2
from studies.arrays import Array, BoolArray
from studies.paper import benchmark_sets, fairness_methods, figures
from studies.paper.benchmark_sets import BenchmarkSet, Method
from studies.paper.cells import Cells
from studies.paper.names import CONSTRAINED, WITHOUT, symbol
from studies.paper.record import Cell, Record, Table

FOLDS, SEED, LEVEL = 5, 0, 0.05
#: A p-value of an importance costs as many forests; that of R² needs only one.
FULL = {"permutations": 39, "rows": 2000}
QUICK = {"permutations": 19, "rows": 400, "trees": 15}
PERMUTATIONS_R2, KNOTS = 199, 8
SETTINGS = ("rows of the fit", "held out")
HALF, SPLINES = "other half", f"{CONSTRAINED}, splines"


def _numeric(data: BenchmarkSet) -> BoolArray:
    """Which protected columns are no indicators."""
    return np.array([not np.array_equal(x, x * x) for x in data.X.T])


def splines(train: BenchmarkSet, new: BenchmarkSet) -> Array:
    """Predict by a model that is orthogonal to splines of numeric protected columns, not to the columns alone."""
    numeric = _numeric(train)
    basis = SplineTransformer(KNOTS, knots="quantile", include_bias=False).fit_transform(train.X[:, numeric])
    names = (*np.array(train.protected)[~numeric], *(f"spline {j + 1}" for j in range(basis.shape[1])))
    return benchmark_sets.corrected(
        replace(train, X=np.hstack([train.X[:, ~numeric], basis]), protected=tuple(map(str, names))), new
    )


METHODS: dict[str, Method] = {**fairness_methods.METHODS, SPLINES: splines}


def _known(family: str) -> dict[str, Method]:
    """The methods above, and comparators that were added."""
    return METHODS | fairness_methods.methods_for(family)


def run(*, quick: bool, cells: Cells, progress: Progress) -> Record:
    """Fit and test every method on each set; a quick run takes two methods on compas and small forests."""
    names = ["compas"] if quick else list(benchmark_sets.names())
    load = cache(benchmark_sets.load)
    todo = [(name, method) for name in names for method in _methods(load(name), quick)]
    task = progress.add_task("fig-forest", total=len(todo) * len(SETTINGS))
    found: dict[str, dict[str, Any]] = {name: {"n": len(load(name).y), "methods": {}} for name in names}
    size = QUICK if quick else FULL
    for name, method in todo:
        progress.update(task, description=f"fig-forest: {method} on {name}")
        each = found[name]["methods"][method] = {}
        for setting in SETTINGS:
            key = {"set": name, "method": method, "setting": setting, "folds": FOLDS, "seed": SEED, **size}
            each[setting] = cells(key, partial(measure, load(name), method, setting, **size))
            progress.advance(task)
        if method in (WITHOUT, CONSTRAINED, SPLINES):
            each[HALF] = cells(
                {"set": name, "method": method, "setting": HALF, "seed": SEED}, partial(half, load(name), method)
            )
    title = "Random forests as evaluation models: importances of protected columns by method"
    tables, missed = (_pattern(found), _importances(found)), ("The importances: the paper prints none, only words.",)
    return Record("fig-forest", title, tables, _reasons(found, size), found, missed)


def _methods(data: BenchmarkSet, quick: bool) -> list[str]:
    """All methods on the paper's sets; of all rows of Adult, of which the paper has nothing, only the two ends."""
    known = _known(data.family)
    if quick or data.name == "adult":
        return [WITHOUT, CONSTRAINED, *(method for method in known if method not in METHODS)]
    return [method for method in known if method != SPLINES or _numeric(data).any()]


def measure(
    data: BenchmarkSet, method: str, setting: str, *, permutations: int, rows: int, trees: int = 50
) -> dict[str, Any]:
    """Importance of each protected column, and R² of all of them together, with permutation p-values.

    Held out, R² is the mean over folds and its p-value twice their median; importances are those of the first fold.
    """
    predict = _known(data.family)[method]
    if setting == SETTINGS[0]:
        predictions, fold = predict(data, data), np.zeros(len(data.y), dtype=np.int64)
    else:
        predictions, fold = benchmark_sets.held_out(predict, data, folds=FOLDS, seed=SEED)
    rng = np.random.default_rng(SEED)
    parts = [np.flatnonzero(fold == k) for k in np.unique(fold)]
    whole = [forest_r2(predictions[p], data.X[p], rng=rng, n_permutations=PERMUTATIONS_R2) for p in parts]
    sources = [name.split("[")[0] for name in data.protected]
    size = {"n_permutations": permutations, "max_rows": rows, "n_trees": trees}
    first = parts[0]
    found = forest_importances(predictions[first], data.X[first], data.protected, sources, rng=rng, **size)
    return {
        "r2": float(np.mean([test.statistic for test in whole])),
        "r2_p": benchmark_sets.combined([test.p_value for test in whole]),
        "importances": {s: {"estimate": t.statistic, "p_value": t.p_value} for s, t in found.by_source.items()},
    }


def half(data: BenchmarkSet, method: str) -> dict[str, float]:
    """R² on one random half of the rows, of a model that was fitted to the other: more rows than a fold has."""
    rng = np.random.default_rng(SEED)
    train, new = (data.take(rows) for rows in np.array_split(rng.permutation(len(data.y)), 2))
    test = forest_r2(_known(data.family)[method](train, new), new.X, rng=rng, n_permutations=PERMUTATIONS_R2)
    return {"r2": test.statistic, "r2_p": test.p_value}


def says(name: str, method: str) -> str | None:
    """What the paper says of its forests; it prints no numbers, and missing boxes are runs that failed."""
    failed = (name, method) in {("health", "Zafar"), *(("bank", m) for m in ("Komiyama1", "Komiyama2", "Berk"))}
    if failed:
        return "failed"
    if name == "adult" or method not in fairness_methods.METHODS or method == WITHOUT:
        return None
    return "significant" if method != CONSTRAINED or name == "bank" else "not significant"


def significant(each: Mapping[str, Any], setting: str) -> list[str]:
    """Protected columns with an importance that chance does not explain."""
    return [source for source, test in each[setting]["importances"].items() if test["p_value"] <= LEVEL]


def _pattern(found: Mapping[str, Any]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for name, about in found.items():
        for method, each in about["methods"].items():
            old, new = (each[setting] for setting in SETTINGS)
            sources = (", ".join(significant(each, setting)) or "none" for setting in SETTINGS)
            joint = (part.get(key) for part in (old, new, each.get(HALF, {})) for key in ("r2", "r2_p"))
            rows.append((name, method, says(name, method), *sources, *joint))
    columns = ("data", "method", "the paper says", "significant here", "significant, held out")
    whole = ("R²", "p", "R², held out", "p, held out", "R², other half", "p, other half")
    return Table(f"Significant importances (p <= {LEVEL}), and R² of all columns", (*columns, *whole), rows)


def _importances(found: Mapping[str, Any]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for name, about in found.items():
        for method, each in about["methods"].items():
            old, new = (each[setting]["importances"] for setting in SETTINGS)
            for source in old:
                values = (part[source][key] for part in (old, new) for key in ("estimate", "p_value"))
                rows.append((name, method, source, *values))
    columns = ("data", "method", "column", "importance", "p", "importance, held out", "p, held out")
    return Table("Importances: share of the variance of the predictions that is lost", columns, rows)


def _reasons(found: Mapping[str, Any], size: Mapping[str, int]) -> tuple[str, ...]:
    reasons = [
        "The paper prints no numbers of its forests, and none are saved: what it says in words stands beside. Its code "
        "takes ranger's permutation importance with the p-values of Altmann et al.",
        "Importances are Breiman's, out of bag, with p-values of Altmann et al. from "
        f"{size['permutations']} permutations, on at most {size['rows']} random rows, because each permutation costs a "
        "forest. R² is that of totally random trees, out of bag, on at most 20000 rows with "
        f"{PERMUTATIONS_R2} permutations; it may be below 0 where little can be predicted.",
        f"Held out, R² is the mean of {FOLDS} folds and its p-value twice their median; importances are those of the "
        "first fold. 'Other half' is fitted to one half and tested on the other: a small fold has little power, "
        "a fit to half of the rows has larger sampling errors, which may look like a leak.",
        "Orthogonality is about correlations. A forest may find more, the more rows it has.",
    ]
    bank = found.get("bank", {}).get("methods", {})
    if bank:
        before, after, flexible = (bank[method][SETTINGS[1]]["r2"] for method in (WITHOUT, CONSTRAINED, SPLINES))
        reasons.append(
            f"On bank age has a curved effect: held out, R² is {before:.3f} without a correction and {after:.3f} with "
            f"the paper's; orthogonal to splines of age ({KNOTS} knots) the model leaves {flexible:.3f}."
        )
    for name, about in found.items():
        ours, before = (about["methods"][method][SETTINGS[0]] for method in (CONSTRAINED, WITHOUT))
        p_values = {source: test["p_value"] for source, test in ours["importances"].items()} | {"R²": ours["r2_p"]}
        p_values |= {"R² on the other half": about["methods"][CONSTRAINED][HALF]["r2_p"]}
        here = [f"{what} p = {p:.3g}" for what, p in p_values.items() if p <= LEVEL]
        if name != "bank" and here:
            reasons.append(
                f"On {name} a forest is not quite blind to the corrected predictions ({', '.join(here)}). On the rows "
                f"of the fit it has an R² of {ours['r2']:.4f}, and {before['r2']:.4f} without a correction."
            )
    fair = [found["health"]["methods"][m] for m in ("Komiyama1", "Komiyama2", "Berk")] if "health" in found else []
    if fair and not any(significant(each, SETTINGS[0]) for each in fair):
        reasons.append(
            "On health no importance of a fairness method is significant on the rows of the fit, where the paper finds "
            f"some. R², which has all rows and not {size['rows']}, has p-values of at most "
            f"{max(each[SETTINGS[0]]['r2_p'] for each in fair):.3g}."
        )
    return tuple(reasons)


def draw(record: Record, path: Path) -> Path:
    """Importances above, p-values below; a column of panels for each set, a line for each method."""
    found = record.data
    there = dict.fromkeys(method for about in found.values() for method in about["methods"])
    methods = [*(m for m in METHODS if m in there), *(m for m in there if m not in METHODS)]
    width = figures.PAGE if len(found) > 1 else figures.COLUMN
    figure, axes = figures.subplots(2, len(found), width, 5.2, sharey=True)
    marks = dict(zip(SETTINGS, ((-0.17, "o", figures.COLOURS[0]), (0.17, "D", figures.COLOURS[1])), strict=True))
    for column, (name, about) in zip(axes.T, found.items(), strict=True):
        for method, each in about["methods"].items():
            for setting, (shift, marker, colour) in marks.items():
                tests = each[setting]["importances"].values()
                for axis, key in zip(column, ("estimate", "p_value"), strict=True):
                    x = [test[key] for test in tests]
                    y = np.full(len(x), methods.index(method) + shift)
                    style = {"ls": "", "ms": 3, "mew": 0.8, "mfc": "none", "color": colour, "clip_on": False}
                    axis.plot(x, y, marker=marker, label=setting, **style)
        column[0].set(title=f"{name}\nn = {about['n']}", xlabel="importance\n(share of variance)")
        column[0].axvline(0.0, color="black", lw=0.6, zorder=0)
        column[1].set(xlabel="p-value", xlim=(0.0, 1.0))
        column[1].axvline(LEVEL, color="black", lw=0.6, ls="--", zorder=0)
    for axis in axes.flat:
        axis.set_ylim(len(methods) - 0.5, -0.5)
        axis.set_yticks(range(len(methods)), [symbol(method) for method in methods])
        axis.set_yticks(np.arange(len(methods) - 1) + 0.5, minor=True)
        axis.grid(axis="y", which="minor")
        axis.tick_params(axis="y", which="both", length=0)
        axis.set_axisbelow(True)
    handles = dict(zip(*axes[0, 0].get_legend_handles_labels()[::-1], strict=True))
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=2)
    return figures.save(figure, path)
