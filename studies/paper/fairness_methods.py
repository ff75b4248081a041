"""The methods of the paper's fairness benchmark by the paper's names, and what the authors saved of them."""

from __future__ import annotations

import csv
from functools import cache
from typing import Any

from setsquare.datasets import DataFile, find, locate
from studies.arrays import Array
from studies.comparators import COMPARATORS, available
from studies.paper import benchmark_sets
from studies.paper.benchmark_sets import BenchmarkSet, Method
from studies.paper.names import CONSTRAINED, WITHOUT

#: Evaluation models of the authors' own runs.
SAVED = DataFile(
    path="authors_results/fairness_benchmark.csv",
    sha256="d32623a71c622bdef7d7270553e5c47d52330d6d989e09f99eca96bf274e85fb",
    origin="it holds the effects and p-values that the authors saved, a row each",
)
#: Measured for the comparators: why effects are not the saved ones, by set (of the paper) and method.
CAUSES = {
    ("adult", "Komiyama1"): "glmnet, inside fairml, stops before its optimum; on all rows that moves effects by 7e-3.",
    **dict.fromkeys(
        (("adult", "Komiyama2"), ("adult", "Berk")),
        "Cause not proven; on all rows glmnet's stopping rule alone moves effects by 0.007.",
    ),
    ("adult", "Zafar"): "The published search, repeated here, stops in a local minimum with a correlation of 0.0576.",
    ("compas", "Komiyama2"): "The measure jumps; R ends on the unfair side of its bound, at 0.0509.",
    **dict.fromkeys(
        (("bank", method) for method in ("Komiyama1", "Komiyama2", "Berk")),
        "R failed: the design is collinear. Here the rank is reduced first.",
    ),
    ("health", "Zafar"): "The authors ran it on 0/1 outcomes only; here it takes counts, too.",
}


def comparator(name: str, **options: Any) -> Method:
    """Fit a comparator to some rows, predict others."""

    def method(train: BenchmarkSet, new: BenchmarkSet) -> Array:
        model = COMPARATORS[name](family=train.family, **options)
        return model.fit(train.unprotected, train.y, train.X).predict(new.unprotected, new.X)

    return method


#: By the paper's names.
METHODS: dict[str, Method] = {
    WITHOUT: benchmark_sets.without,
    "Komiyama1": comparator("komiyama-sp"),
    "Komiyama2": comparator("komiyama-eo"),
    "Berk": comparator("berk-if"),
    "Zafar": comparator("zafar"),
    CONSTRAINED: benchmark_sets.corrected,
}
#: Comparators that the figures of the benchmark leave out, as the paper does: tables 6 and 2 have them.
_ELSEWHERE = ("xu", "linear", "correlation-remover", "leace")
_IN_THE_PAPER = ("komiyama-sp", "komiyama-eo", "berk-if", "zafar")


def methods_for(family: str) -> dict[str, Method]:
    """The paper's methods, and behind them the comparators that were added and are defined for a family."""
    added = (name for name in available(family) if name not in (*_IN_THE_PAPER, *_ELSEWHERE))
    return METHODS | {name: comparator(name) for name in added}


@cache
def _saved_rows() -> dict[tuple[str, str], dict[str, dict[str, float]]]:
    rows: dict[tuple[str, str], dict[str, dict[str, float]]] = {}
    with locate(SAVED).open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["value"] != "NA" and row["rowname"] != "(Intercept)":
                place = rows.setdefault((row["dataset"], row["paper_label"]), {}).setdefault(row["rowname"], {})
                place["estimate" if row["quantity"] == "effect" else "p_value"] = float(row["value"])
    return rows


def saved(name: str, method: str) -> dict[str, dict[str, float]]:
    """Effects and p-values that the authors saved, by R's names (``sexMale``); none for all rows of Adult."""
    source = {"adult 5000": "adult", "adult": "", "health": "health.retirement"}.get(name, name)
    label = "Ours" if method == CONSTRAINED else method
    return _saved_rows().get((source, label), {}) if find(SAVED) else {}
