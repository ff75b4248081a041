"""Our corrected fit against unconstrained fits by glum, scikit-learn and statsmodels.

    python -m benchmarks.bench_glm [--rounds 9]          # about 6 minutes

All get the paper's four benchmark sets, protected columns included, in three forms: the *table* itself, which each
codes in its own way (glum into its categorical matrices, scikit-learn by ``OneHotEncoder``); a matrix of the observed
levels; and a matrix in R's coding, with a dummy for every declared level but the first (empty levels make Adult and
Bank collinear). Two generated matrices are added. Peers run at their default tolerances, and once more asked for the
accuracy that we deliver, 1e-8. A peer succeeds when it ends without an error or a warning that it did not converge; one
that takes four times as long as the fastest is timed once. The unconstrained loss of our certificate is computed when
it is read, which is not timed here. ``python -m studies optimisers`` compares with the paper's optimiser at equal
accuracy.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import glum
import numpy as np
import pandas as pd
import statsmodels.api as sm
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.linear_model import LogisticRegression, PoissonRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

import setsquare as sq
from benchmarks.frame import Bound, Ratio, main, plain, steps
from benchmarks.measure import Timed, interleave, peak_bytes
from benchmarks.workloads import draw
from setsquare import datasets, tables

LOADERS = {
    "adult": datasets.load_adult,
    "bank": datasets.load_bank,
    "compas": datasets.load_compas,
    "health.retirement": datasets.load_health_retirement,
}
FORMS = ("table", "observed levels", "R's coding")
#: Generated sets, by rows and features: small tables of a bank, and a registry.
SHAPES = {"generated 1000 x 46": (1000, 46), "generated 20000 x 17": (20_000, 17)}
GENERATED = "generated matrix"
TOLERANCES = {"default tolerances": 1e-4, "peers at 1e-8": 1e-8}
PEERS = ("glum", "scikit-learn", "statsmodels")
QUICK = {"rounds": 1}


@dataclass(frozen=True, slots=True)
class Job:
    """Features, protected columns and outcome of one set in one form."""

    Z: Any
    X: Any
    y: np.ndarray
    family: str


def load(name: str, how: str) -> Job:
    """A set of the paper in one form, or a generated one: three protected columns, of which one has two groups."""
    if name not in SHAPES:
        data = LOADERS[name]()
        return Job(form(data.features_table(), how), form(data.protected_table(), how), data.y, data.family)
    Z, eta, X = draw(*SHAPES[name], 3)
    y = (np.random.default_rng(1).logistic(size=len(eta)) < eta).astype(float)
    return Job(Z, X, y, "binomial")


def calls(data: Job, tol: float) -> dict[str, Callable[[], Any]]:
    Z, X, y = data.Z, data.X, data.y
    poisson, table = data.family == "poisson", isinstance(Z, pd.DataFrame)
    ours = sq.OrthogonalGLMRegressor("poisson") if poisson else sq.OrthogonalGLMClassifier()
    newton = (
        PoissonRegressor(alpha=0.0, solver="newton-cholesky", tol=tol)
        if poisson
        else LogisticRegression(C=np.inf, solver="newton-cholesky", tol=tol)
    )
    dummies = (OneHotEncoder(drop="first", sparse_output=False), make_column_selector(dtype_exclude="number"))
    coded = make_pipeline(make_column_transformer(dummies, remainder="passthrough"), newton) if table else newton
    family = sm.families.Poisson() if poisson else sm.families.Binomial()

    def fit_ours() -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", sq.errors.SeparationWarning)
            return ours.fit(Z, y, protected=X).solution_

    def fit_statsmodels() -> Any:
        matrix = pd.get_dummies(Z, drop_first=True, dtype=float).to_numpy(dtype=float) if table else Z
        return sm.GLM(y, sm.add_constant(matrix), family=family).fit()

    options: dict[str, Any] = {"drop_first": True} if table else {}
    return {
        "ours": fit_ours,
        "glum": lambda: glum.GeneralizedLinearRegressor(family=data.family, alpha=0.0, gradient_tol=tol, **options).fit(
            Z, y
        ),
        "scikit-learn": lambda: coded.fit(Z, y),
        "statsmodels": fit_statsmodels,
    }


def form(table: pd.DataFrame, how: str) -> Any:
    """The table without empty levels, the matrix of observed levels, or R's."""
    if how == "table":
        categories = table.select_dtypes("category")
        return table.assign(**{name: column.cat.remove_unused_categories() for name, column in categories.items()})
    return code(table, how)


def code(table: pd.DataFrame, coding: str) -> np.ndarray:
    """Design matrix in R's coding, or of the levels that occur."""
    if coding == "observed levels":
        return tables.learn(table).apply(table).values
    return pd.get_dummies(table, drop_first=True, dtype=float).to_numpy(dtype=float)


def time_all(todo: dict[str, Callable[[], Any]], rounds: int) -> dict[str, Timed]:
    """Time everything once, and all but the slow ones so many times more, in turn."""
    first = interleave(todo, 1)
    limit = 4.0 * min(timed.median for timed in first.values() if not timed.failure)
    quick = {name: call for name, call in todo.items() if first[name].median <= limit}
    return first | (interleave(quick, rounds) if rounds > 1 else {})


def run(rounds: int = 9) -> dict[str, Any]:
    ratios, bounds, lines = [], [], []
    sets = [*((how, name) for how in FORMS for name in LOADERS), *((GENERATED, name) for name in SHAPES)]
    jobs = [(tolerance, how, name) for tolerance in TOLERANCES for how, name in sets]
    for tolerance, how, name in steps(jobs, "fits"):
        data = load(name, how)
        Z = data.Z
        todo = calls(data, TOLERANCES[tolerance])
        timed = time_all(todo, rounds)
        solution, label = timed["ours"].result, f"{name}, {how}, {tolerance}"
        good = [peer for peer in PEERS if not timed[peer].failure]
        fastest = min(good, key=lambda peer: timed[peer].median)
        n = min(len(timed["ours"].seconds), len(timed[fastest].seconds))
        pair = [(who, timed[who].seconds[:n]) for who in ("ours", fastest)]
        ratios.append(Ratio.over(f"corrected fit, {label}", *pair, limit=1.0))
        line = {
            "data": name,
            "form": how,
            "tolerance": tolerance,
            "rows": len(Z),
            "columns": Z.shape[1],
            "seconds": {who: timed[who].seconds for who in todo},
            "failures": {who: timed[who].failure for who in PEERS if timed[who].failure},
            "ratio": ratios[-1],
            "correlation": solution.certificate.max_correlation,
            "kkt": solution.certificate.kkt_residual,
        }
        if tolerance == "default tolerances" and how != "table":
            line |= {"memory": peak_bytes(todo["ours"]) / Z.nbytes}
        if tolerance == "default tolerances" and how == "R's coding":
            bounds.append(Bound(f"{name}: largest abs. correlation left", line["correlation"], 1e-8))
        lines.append(line)
    return plain({"ratios": ratios, "bounds": bounds, "lines": lines})


def show(result: dict[str, Any]) -> None:
    for tolerance in TOLERANCES:
        for how in (*FORMS, GENERATED):
            lines = [line for line in result["lines"] if (line["tolerance"], line["form"]) == (tolerance, how)]
            print(f"\n**{how}, {tolerance}**\n")
            print(
                "| data | ours, ms (quartiles) | glum | scikit-learn | statsmodels | ours / fastest |\n"
                + "|---" * 6
                + "|"
            )
            for line in lines:
                cells = [f"{line['data']} {line['rows']} x {line['columns']}"]
                cells += [_describe(line, who) for who in ("ours", *PEERS)]
                ratio = line["ratio"]
                cells += [f"{ratio['median']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})"]
                print("| " + " | ".join(cells) + " |")
    print("\n| data | largest abs. corr | KKT | peak memory / design |\n" + "|---" * 4 + "|")
    for line in result["lines"]:
        if "memory" in line and line["form"] == "R's coding":
            cells = [line["data"], f"{line['correlation']:.0e}", f"{line['kkt']:.0e}", f"{line['memory']:.1f}"]
            print("| " + " | ".join(cells) + " |")


def _describe(line: dict[str, Any], who: str) -> str:
    if who in line["failures"]:
        return str(line["failures"][who]).split("\n")[0][:44]
    low, middle, high = 1e3 * np.percentile(line["seconds"][who], [25, 50, 75])
    return f"{middle:.1f} (once)" if len(line["seconds"][who]) == 1 else f"{middle:.1f} ({low:.1f}-{high:.1f})"


if __name__ == "__main__":
    main(run, show, QUICK)
