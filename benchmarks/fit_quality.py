"""What the corrected fits reach on the paper's data sets: loss, constraint, optimality, score.

    python -m benchmarks.fit_quality

Set-up of the paper's benchmark: protected columns among the features, the first level as reference; and that of its
Table 2 (Adult of the United States, protected columns not among the features). Loss is the mean negative log-likelihood
without constants; scores are in-sample, as in the paper.
"""

from __future__ import annotations

import time
import warnings

import numpy as np

import setsquare as sq
from setsquare import datasets, tables
from setsquare.datasets import Dataset

SETS = {
    "adult": datasets.load_adult,
    "bank": datasets.load_bank,
    "compas": datasets.load_compas,
    "health.retirement": datasets.load_health_retirement,
    "adult, Table 2": lambda: datasets.load_adult("uci", table2=True),
}
COLUMNS = (
    "data",
    "loss",
    "without the constraint",
    "largest abs. corr",
    "KKT",
    "curvature",
    "iterations",
    "score, corrected",
    "uncorrected",
    "seconds",
)


def score(data: Dataset, prediction: np.ndarray) -> str:
    if data.family == "poisson":
        return f"rmse {np.sqrt(np.mean((data.y - prediction) ** 2)):.4f}"
    return f"accuracy {np.mean((prediction > 0.5) == data.y):.4f}"


def row(name: str, data: Dataset) -> str:
    features, protected = data.features_table(), data.protected_table()
    Z = tables.learn(features).apply(features).values
    X = tables.learn(protected).apply(protected).values
    start = time.perf_counter()
    solution = sq.solve(sq.Problem(Z, data.y, X, data.family))
    seconds = time.perf_counter() - start
    plain = sq.solve(sq.Problem(Z, data.y, None, data.family))
    h = sq.families.activation(data.family)
    scores = [score(data, h(Z @ s.coef[0] + s.intercept[0])) for s in (solution, plain)]
    c = solution.certificate
    cells = [f"{name} {Z.shape[0]} x {Z.shape[1]}", f"{c.loss:.7f}", f"{c.loss_unconstrained:.6f}"]
    cells += [f"{c.max_correlation:.0e}", f"{c.kkt_residual:.0e}", f"{c.min_curvature:.0e}", str(solution.n_iter)]
    return "| " + " | ".join([*cells, *scores, f"{seconds:.2f}"]) + " |"


def main() -> None:
    print(f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sq.errors.SetsquareWarning)
        for name, load in SETS.items():
            print(row(name, load()))


if __name__ == "__main__":
    main()
