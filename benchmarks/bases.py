"""What a forest and a ReLU regression find in predictions that are orthogonal to a basis of the protected columns.

    nice -n 15 python -m benchmarks.bases --output benchmarks/results   # about 15 minutes on one core
    python -m benchmarks.bases --quick

Constrained models with the protected columns in the basis named, for bank also with age as it is (linear); the features
are widened (``expand="auto"``), because there must be more of them than columns of the basis. ``new rows`` has
``orthogonal_on="new rows"``: with 95 features in 5855 rows, part of the correlation comes back without it.
``training rows``: ``audit`` of a fit to all rows on the same rows. ``held out``: ``audit_model``, where each row is
predicted by a model that was fitted without it, for several divisions into five folds. Shown: verdicts and p-values.
A fit without any leak has p < 0.05 in one of 20 tests. On bank predictions jump at the
age of 61, which a basis follows only if it has enough functions.

An audit of *one* fit on other rows is another question, which ``benchmarks.fit_noise`` measures: m new rows find the
sampling error of a fit to n rows, because the statistic is 1 + m/n times a chi-square variable. In folds this error
cancels: what a fold's model has too much on average, its own training rows had too little.
"""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import numpy as np

import setsquare as sq
from benchmarks.frame import main, part, plain, steps
from setsquare.datasets import load_adult, load_bank, load_compas
from setsquare.errors import SetsquareWarning

QUICK = {"only": "compas cells", "most": 500, "seeds": 1, "forests": 1}
CELLS = {
    "compas cells": (load_compas, "cells", "training rows"),
    "compas cells, new rows": (load_compas, "cells", "new rows"),
    "adult cells": (load_adult, "cells", "training rows"),
    "bank linear": (load_bank, "linear", "training rows"),
    "bank spline": (load_bank, "spline", "training rows"),
    "bank kernel": (load_bank, "kernel", "training rows"),
}
EVALUATIONS = ("forest", "relu")
PERMUTATIONS = 39


def run(only: str = "", most: int = 3000, seeds: int = 4, forests: int = 2) -> dict[str, Any]:
    """Audit the models with tests of at most ``most`` rows, for several seeds (fewer by forests, and on bank)."""
    found: dict[str, Any] = {}
    for name, (load, basis, where) in steps([item for item in CELLS.items() if only in item[0]], "models"):
        data = load()
        protected, y = data.protected_table(), np.asarray(data.y, dtype=np.float64)
        features = data.features_table()
        features = features.drop(columns=[c for c in protected if c in features])
        model = sq.OrthogonalGLMClassifier(basis=basis, expand="auto", unseen="pool", orthogonal_on=where)
        each = {"relu": seeds, "forest": forests}
        if load is load_bank:  # the largest set
            each = {evaluation: max(count // 2, 1) for evaluation, count in each.items()}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SetsquareWarning)
            p = model.fit(features, y, protected=protected).predict_proba(features)[:, 1]
            cell: dict[str, Any] = {"columns": len(model.protected_names_)}
            for evaluation in EVALUATIONS:
                how = {"evaluation": evaluation, "max_rows": most, "n_permutations": PERMUTATIONS}
                audits = {
                    "training rows": partial(sq.audit, p, protected, **how),
                    "held out": partial(sq.audit_model, model, features, y, protected, **how),
                }
                for rows, audit in audits.items():
                    cell.setdefault(rows, {})[evaluation] = [
                        part(f"{name}, {rows}, {evaluation} {seed}", lambda: shown(audit(random_state=seed)))  # noqa: B023
                        for seed in range(each[evaluation])
                    ]
        found[name] = cell
        show({"models": plain({name: cell})})
    return plain({"models": found})


def shown(result: sq.AuditResult) -> dict[str, Any]:
    return {"verdict": str(result.verdict), "p_value": float(result.p_value)}


def show(result: dict[str, Any]) -> None:
    for name, cell in result["models"].items():
        for where in ("training rows", "held out"):
            texts = (
                f"{evaluation}: " + ", ".join(f"{one['verdict']} (p = {one['p_value']:.3f})" for one in each)
                for evaluation, each in cell[where].items()
            )
            print(f"{name:24s} {cell['columns']:3d} columns, {where:13s}", "; ".join(texts), flush=True)


if __name__ == "__main__":
    main(run, show, QUICK)
