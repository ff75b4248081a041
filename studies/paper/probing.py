"""What probes recover of the protected columns from embeddings, before and after they were corrected."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any, Self

import numpy as np
from rich.progress import Progress
from sklearn.base import BaseEstimator, TransformerMixin

from setsquare import LinearOrthogonalizer, probe, tables
from studies.arrays import Array
from studies.comparators.removers import fit_leace
from studies.paper.cells import Cells
from studies.paper.embeddings import Part
from studies.paper.record import Table

BEFORE, LINEAR, ERASED, LEACE = "before", "C^l, needs X", "erased, without X", "LEACE"
NON_LINEAR = ("mlp", "boosting")


class Leace(TransformerMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """LEACE of the package concept-erasure, as a transformer."""

    def fit(self, X: Array, y: Any = None, protected: Any = None) -> Self:
        """Learn the map from features (n, q) and protected columns."""
        P = np.asarray(tables.learn(protected).apply(protected).values, dtype=np.float64)
        self.map_ = fit_leace(np.asarray(X, dtype=np.float64), P)
        return self

    def transform(self, X: Array) -> Array:
        """Apply it."""
        return self.map_(np.asarray(X, dtype=np.float64))


def corrections() -> dict[str, Any]:
    """Corrections of a representation; LEACE where its package is installed."""
    found = {BEFORE: None, LINEAR: LinearOrthogonalizer(), ERASED: LinearOrthogonalizer(using="features")}
    there = find_spec("concept_erasure") is not None and find_spec("torch") is not None
    return found | ({LEACE: Leace()} if there else {})


def run(
    name: str, part: Callable[[], Part], key: Mapping[str, Any], cells: Cells, progress: Progress
) -> dict[str, Any]:
    """Probe every correction of one embedding, held out; five folds, by cluster."""
    names = tuple(corrections())
    task = progress.add_task(f"{name}: probes", total=1)

    def compute() -> dict[str, Any]:
        rows = part()

        def tell(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total)

        Z = np.asarray(rows.Z, dtype=np.float64)
        result = probe(corrections(), rows.protected, features=Z, cluster=rows.cluster, progress=tell)
        return dict(result.to_dict())

    found: dict[str, Any] = cells({**key, "what": "probes", "corrections": names}, compute)
    progress.update(task, completed=1, total=1)
    return found


def table(found: Mapping[str, Any], what: str) -> Table:
    """Scores with their intervals; the level of chance beside them."""
    keys = ("attribute", "representation", "probe", "measure", "score", "ci_low", "ci_high", "chance", "verdict")
    attributes = dict.fromkeys(score["attribute"] for score in found["scores"])
    scores = [s for name in attributes for s in found["scores"] if s["attribute"] == name]
    rows = [tuple(score[key] for key in keys) for score in scores]
    columns = tuple(key.removeprefix("ci_") for key in keys)
    return Table(f"What probes recover from {what}, held out (95 % intervals)", columns, rows)


def reason(found: Mapping[str, Any], what: str) -> str:
    """What linear erasure leaves to other probes, in a sentence."""
    erased = [s for s in found["scores"] if s["representation"] == ERASED]
    linear = [s for s in erased if s["probe"] == "linear"]
    others = [s for s in erased if s["probe"] in NON_LINEAR and s["verdict"] == "recovered"]
    worst = max(linear, key=lambda s: s["score"] - s["chance"])
    sentence = (
        f"Erased without protected columns, {what} leave a linear probe at most {worst['score']:.3f} "
        f"({worst['measure']} of {worst['attribute']}, chance {worst['chance']:g})"
    )
    if not others:
        return f"{sentence}; a small network and boosted trees recover nothing either."
    parts = {s["attribute"]: s for s in sorted(others, key=lambda s: s["score"])}
    left = ", ".join(f"{name} with {s['measure']} {s['score']:.3f} ({s['probe']})" for name, s in parts.items())
    return f"{sentence}. What is not linear stays: {left}."
