"""What a forest and a ReLU regression find in predictions that are orthogonal to a basis of the protected columns.

    nice -n 15 python -m benchmarks.bases --output benchmarks/results   # about 10 minutes on one core
    python -m benchmarks.bases --quick

Constrained models with the protected columns in the basis named, on 70 % of the rows, with the columns as they are
(linear) beside them; the features are widened (``expand="auto"``), because there must be more of them than columns of
the basis. Audited on the rows of the fit and on the others: the verdict of each evaluation model and its p-value.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

import setsquare as sq
from benchmarks.frame import main, plain, steps
from setsquare.datasets import load_adult, load_bank, load_compas
from setsquare.errors import SetsquareWarning

QUICK = {"only": "compas cells", "most": 500}
CELLS = {
    "compas linear": (load_compas, "linear"),
    "compas cells": (load_compas, "cells"),
    "adult linear": (load_adult, "linear"),
    "adult cells": (load_adult, "cells"),
    "bank linear": (load_bank, "linear"),
    "bank spline": (load_bank, "spline"),
    "bank kernel": (load_bank, "kernel"),
}
EVALUATIONS = ("forest", "relu")
SPLIT, HELD_OUT, PERMUTATIONS = 0, 0.3, 99


def audit(p: Any, protected: Any, most: int) -> dict[str, Any]:
    """Verdict and p-value of each evaluation model, on at most so many rows, drawn at random."""
    found = {}
    for name in EVALUATIONS:
        result = sq.audit(p, protected, evaluation=name, max_rows=most, n_permutations=PERMUTATIONS)
        found[name] = {"verdict": str(result.verdict), "p_value": float(result.p_value), "rows": min(most, len(p))}
    return found


def run(only: str = "", most: int = 2000) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, (load, basis) in steps([item for item in CELLS.items() if only in item[0]], "models"):
        data = load()
        protected, y = data.protected_table(), np.asarray(data.y, dtype=np.float64)
        features = data.features_table()
        features = features.drop(columns=[c for c in protected if c in features])
        order = np.random.default_rng(SPLIT).permutation(data.n_rows)
        held = int(HELD_OUT * data.n_rows)
        train, new = order[held:], order[:held]
        model = sq.OrthogonalGLMClassifier(basis=basis, expand="auto", unseen="pool")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SetsquareWarning)
            model.fit(features.iloc[train], y[train], protected=protected.iloc[train])
            found[name] = {
                where: audit(model.predict_proba(features.iloc[rows])[:, 1], protected.iloc[rows], most)
                for where, rows in (("training rows", train), ("new rows", new))
            }
        found[name]["columns"] = len(model.protected_names_)
        show({"models": plain({name: found[name]})})
    return plain({"models": found})


def show(result: dict[str, Any]) -> None:
    for name, cell in result["models"].items():
        for where in ("training rows", "new rows"):
            texts = (f"{e}: {of['verdict']} (p = {of['p_value']:.3f})" for e, of in cell[where].items())
            print(f"{name:14s} {cell['columns']:3d} columns, {where:13s}", "; ".join(texts), flush=True)


if __name__ == "__main__":
    main(run, show, QUICK)
