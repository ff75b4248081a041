"""What a wider feature space gives back: models without protected columns at prediction, on held-out rows.

    nice -n 15 python -m benchmarks.expansion --output benchmarks/results   # about 10 minutes on one core
    python -m benchmarks.expansion --quick

Rows: ``plain`` is the ordinary GLM with the protected columns among its features, ``dropped`` the same without them,
``exact`` the constrained GLM, ``expanded`` the constrained GLM with ``expand="auto"``, and ``projection`` the plain GLM
corrected by a generalised projection, which needs the protected columns at prediction. Measured on the held-out 30 % of
each split: mean loss, AUC (counts: of those above the median), accuracy (counts: root mean squared error), largest
correlation with a protected column, multiple correlation; and CPU seconds of the fit, ``auto`` being those of ``exact``
with its ridge chosen by the same leave-one-out loss.

``boosted``, on the Table 2 set-up of Adult only, is the best that boosting reaches under the constraint, by two stages
of predictions (see ``benchmarks.boosted_reference``): a reference for what is attainable there, not a method on offer.

What the expansion does was chosen on splits 0 and 1; splits of the table begin at 100.
"""

from __future__ import annotations

import time
import warnings
from typing import Any

import numpy as np
from sklearn.metrics import roc_auc_score

import setsquare as sq
from benchmarks.boosted_reference import BoostedReference
from benchmarks.cross_fitting import correlations
from benchmarks.frame import main, plain, steps
from setsquare import tables
from setsquare.datasets import load_adult, load_bank, load_compas, load_health_retirement
from setsquare.errors import SetsquareWarning
from setsquare.estimators.unconstrained import PlainGLMClassifier, PlainGLMRegressor

QUICK = {"splits": 1, "only": "compas"}
FIRST_SPLIT, HELD_OUT = 100, 0.3
SETS = {
    "compas": load_compas,
    "adult, Table 2": lambda: load_adult("uci", table2=True),
    "adult": load_adult,
    "bank": load_bank,
    "health": load_health_retirement,
}
REFERENCE = "adult, Table 2"
NUMBERS = ("loss", "auc", "accuracy", "correlation", "multiple", "seconds")


def models(counts: bool) -> dict[str, Any]:
    """Model of each row of the table; what they have in common is that unseen levels are pooled."""
    pool = {"unseen": "pool"}
    corrected, options = (
        (sq.OrthogonalGLMRegressor, {"family": "poisson", **pool}) if counts else (sq.OrthogonalGLMClassifier, pool)
    )
    ordinary = PlainGLMRegressor("poisson", **pool) if counts else PlainGLMClassifier(**pool)
    return {
        "plain": ordinary,
        "dropped": ordinary,
        "exact": corrected(**options),
        "auto": corrected(l2="auto", **options),
        "expanded": corrected(expand="auto", **options),
        "projection": sq.PredictionOrthogonalizer(ordinary, activation="exp" if counts else None, unseen="pool"),
    }


def try_one(name: str, model: Any, data: Any, train: Any, new: Any) -> list[float]:
    """Numbers of one model on the held-out rows of one split."""
    protected, y = data.protected_table(), np.asarray(data.y, dtype=np.float64)
    features = data.features_table()
    features = features.drop(columns=[c for c in protected if c in features])
    if name in ("plain", "projection"):
        features = features.join(protected)
    given = {} if name in ("plain", "dropped") else {"protected": protected.iloc[train]}
    start = time.process_time()
    model.fit(features.iloc[train], y[train], **given)
    seconds = time.process_time() - start
    counts = not hasattr(model, "predict_proba")
    asked = {"protected": protected.iloc[new]} if name == "projection" else {}
    p = model.predict(features.iloc[new], **asked) if counts else model.predict_proba(features.iloc[new], **asked)[:, 1]
    return [*scores(y[new], p, counts), *correlations(coded(protected.iloc[new]), p), seconds]


def coded(table: Any) -> Any:
    return np.asarray(tables.learn(table).apply(table).values, dtype=np.float64)


def scores(y: Any, p: Any, counts: bool) -> tuple[float, float, float]:
    """Loss, AUC, accuracy (counts: root mean squared error)."""
    if counts:
        return (
            float(np.mean(p - y * np.log(p))),
            roc_auc_score(y > np.median(y), p),
            float(np.sqrt(np.mean((y - p) ** 2))),
        )
    q = np.clip(p, 1e-12, 1.0 - 1e-12)
    loss = -np.mean(y * np.log(q) + (1.0 - y) * np.log(1.0 - q))
    return float(loss), roc_auc_score(y, p), float(np.mean((p > 0.5) == y))


def run(splits: int = 10, only: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, load in steps([item for item in SETS.items() if only in item[0]], "sets"):
        data = load()
        counts = data.family == "poisson"
        each: dict[str, list[list[float]]] = {}
        for split in range(FIRST_SPLIT, FIRST_SPLIT + splits):
            order = np.random.default_rng(split).permutation(data.n_rows)
            held = int(HELD_OUT * data.n_rows)
            reference = {"boosted": BoostedReference()} if name == REFERENCE else {}
            for label, model in {**models(counts), **reference}.items():
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", SetsquareWarning)
                    each.setdefault(label, []).append(try_one(label, model, data, order[held:], order[:held]))
        found[name] = {
            label: {"mean": np.mean(of, axis=0), "sd": np.std(of, axis=0, ddof=min(1, splits - 1)), "splits": splits}
            for label, of in each.items()
        }
        show({"sets": plain({name: found[name]})})
    return plain({"sets": found, "numbers": list(NUMBERS)})


def show(result: dict[str, Any]) -> None:
    for name, cell in result["sets"].items():
        print(f"{name:14s}", *(f"{number:>15s}" for number in NUMBERS))
        for label, part in cell.items():
            texts = (f"{m:.4f} ({s:.4f})" for m, s in zip(part["mean"], part["sd"], strict=True))
            print(f"  {label:12s}", *(f"{text:>15s}" for text in texts), flush=True)


if __name__ == "__main__":
    main(run, show, QUICK)
