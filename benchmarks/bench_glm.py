"""Our corrected fit against unconstrained fits by glum, scikit-learn and statsmodels, and against the paper's method.

    python -m benchmarks.bench_glm [--rounds 15] [--without-mdmm] [--default-tolerances]

All get the same design matrix of the paper's four benchmark sets, protected columns included, in two codings: R's, with
a dummy for every declared level but the first (empty levels make Adult and Bank collinear), and the observed levels
alone. glum and scikit-learn are asked for the accuracy that we deliver (1e-8), or run at their default 1e-4 with
``--default-tolerances``. A peer succeeds when it ends without an error or a warning that it did not
converge. ``mdmm`` runs once on each set, with its default 10000 steps.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from typing import Any

import glum
import numpy as np
import pandas as pd
import statsmodels.api as sm
from rich.console import Console
from rich.progress import Progress
from sklearn.linear_model import LogisticRegression, PoissonRegressor

import setsquare as sq
from benchmarks.measure import Timed, interleave, peak_bytes
from setsquare import datasets, design
from setsquare.datasets import Dataset

LOADERS = {
    "adult": datasets.load_adult,
    "bank": datasets.load_bank,
    "compas": datasets.load_compas,
    "health.retirement": datasets.load_health_retirement,
}


COLUMNS = (
    "data",
    "ours (quartiles)",
    "glum",
    "scikit-learn",
    "statsmodels",
    "ours / fastest",
    "mdmm / ours",
    "largest abs. corr: ours, mdmm",
    "peak memory / design",
)


def calls(data: Dataset, Z: np.ndarray, X: np.ndarray, tol: float) -> dict[str, Callable[[], Any]]:
    y = data.y
    poisson = data.family == "poisson"
    ours = sq.OrthogonalGLMRegressor("poisson") if poisson else sq.OrthogonalGLMClassifier()
    newton = (
        PoissonRegressor(alpha=0.0, solver="newton-cholesky", tol=tol)
        if poisson
        else LogisticRegression(C=np.inf, solver="newton-cholesky", tol=tol)
    )
    family = sm.families.Poisson() if poisson else sm.families.Binomial()

    def fit_ours() -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", sq.errors.SeparationWarning)
            return ours.fit(Z, y, protected=X).solution_

    return {
        "ours": fit_ours,
        "glum": lambda: glum.GeneralizedLinearRegressor(family=data.family, alpha=0.0, gradient_tol=tol).fit(Z, y),
        "scikit-learn": lambda: newton.fit(Z, y),
        "statsmodels": lambda: sm.GLM(y, sm.add_constant(Z), family=family).fit(),
    }


def code(table: pd.DataFrame, coding: str) -> np.ndarray:
    """Design matrix in R's coding, or of the levels that occur."""
    if coding == "observed levels":
        return design.learn(table).apply(table).values
    return pd.get_dummies(table, drop_first=True, dtype=float).to_numpy(dtype=float)


def run_mdmm(data: Dataset, Z: np.ndarray, X: np.ndarray) -> tuple[float, Any]:
    start = time.perf_counter()
    solution = sq.solve(sq.Problem(Z, data.y, X, family=data.family), "mdmm")
    return time.perf_counter() - start, solution


def describe(timed: Timed) -> str:
    if timed.failure:
        return timed.failure.split("\n")[0][:44]
    low, high = timed.spread
    return f"{timed.median * 1e3:.1f} ms ({low * 1e3:.1f}-{high * 1e3:.1f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--without-mdmm", action="store_true")
    parser.add_argument("--default-tolerances", action="store_true")
    options = parser.parse_args()
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("fits", total=2 * len(LOADERS) * (options.rounds + 1))
        for coding in ("R's coding", "observed levels"):
            lines = []
            for name, load in LOADERS.items():
                progress.update(task, description=f"{name}, {coding}")
                with_mdmm = not options.without_mdmm and coding == "R's coding"
                lines.append(bench(load(), name, coding, options, with_mdmm, lambda: progress.advance(task)))
                progress.advance(task)
            print(f"\n**{coding}**\n\n| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|\n" + "\n".join(lines))


def bench(
    data: Dataset, name: str, coding: str, options: argparse.Namespace, with_mdmm: bool, tick: Callable[[], None]
) -> str:
    Z, X = code(data.features_table(), coding), code(data.protected_table(), coding)
    todo = calls(data, Z, X, 1e-4 if options.default_tolerances else 1e-8)
    timed = interleave(todo, options.rounds, tick)
    solution = timed["ours"].result
    fastest = min(timed[peer].median for peer in todo if peer != "ours" and not timed[peer].failure)
    memory = peak_bytes(todo["ours"]) / Z.nbytes
    slower, left = "", f"{solution.certificate.max_correlation:.0e}"
    if with_mdmm:
        seconds, rough = run_mdmm(data, Z, X)
        slower = f"{seconds / timed['ours'].median:.0f} ({seconds:.1f} s)"
        left += f", {rough.certificate.max_correlation:.0e}"
    cells = [f"{name} {Z.shape[0]} x {Z.shape[1]}", *(describe(timed[peer]) for peer in todo)]
    cells += [f"{timed['ours'].median / fastest:.2f}", slower, left, f"{memory:.1f}"]
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    main()
