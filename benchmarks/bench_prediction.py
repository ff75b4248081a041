"""Correction of a gradient boosting model on Adult, beside the model's own fit.

python -m benchmarks.bench_prediction           # about 1 minute
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pandas as pd
from sklearn.ensemble import HistGradientBoostingClassifier

import setsquare as sq
from benchmarks.frame import Ratio, main, plain
from benchmarks.measure import interleave
from setsquare.errors import TrainingRowsWarning

QUICK = {"rounds": 1}


def run(rounds: int = 5) -> dict[str, Any]:
    data = sq.datasets.load_adult()
    table, protected = data.features_table(), list(data.protected)
    features = table.drop(columns=protected)
    boosting = HistGradientBoostingClassifier(categorical_features="from_dtype", random_state=0)
    boosting.fit(features, data.y)
    # The time is measured, not what holds on new rows, so the training rows will do.
    warnings.simplefilter("ignore", TrainingRowsWarning)
    model = sq.PredictionOrthogonalizer(boosting, protected=protected, prefit=True)
    timed = interleave(
        {
            "fit": lambda: boosting.fit(features, data.y),
            "predict": lambda: boosting.predict_proba(features)[:, 1],
            "correct": lambda: model.fit(table, data.y),
        },
        rounds,
    )
    own = np.subtract(timed["correct"].seconds, timed["predict"].seconds).clip(0.0)
    before, after = timed["predict"].result, model.predict_proba(table)[:, 1]
    X = pd.get_dummies(data.protected_table(), drop_first=True).to_numpy(float)
    peer = ("its fit", timed["fit"])
    what = f"correction of boosted trees, Adult {len(table)} rows"
    return plain(
        {
            "ratios": [
                Ratio.over(what, ("correction", timed["correct"]), peer, "scikit-learn"),
                Ratio.over(f"{what}, less one prediction", ("correction", own), peer, "scikit-learn"),
            ],
            "rows": len(table),
            "columns": X.shape[1],
            "n_iter": model.projector_.n_iter,
            "seconds": {name: each.seconds for name, each in timed.items()},
            "correlation": [np.abs(np.corrcoef(X.T, p)[:-1, -1]).max() for p in (before, after)],
            "accuracy": [np.mean((p > 0.5) == data.y) for p in (before, after)],
            "mean_moved": after.mean() - before.mean(),
            "range": [after.min(), after.max()],
        }
    )


def show(result: dict[str, Any]) -> None:
    fit, predict, correct = (np.median(result["seconds"][key]) for key in ("fit", "predict", "correct"))
    left, accuracy, (low, high) = result["correlation"], result["accuracy"], result["range"]
    print(f"rows {result['rows']}, protected columns {result['columns']}, Newton steps {result['n_iter']}")
    print(f"inner fit {fit:.2f} s, one prediction {predict:.2f} s, correction {correct:.2f} s in all")
    print(f"correction without the model's own predictions: {result['ratios'][1]['median']:.3f} of the fit")
    print(f"abs. corr before {left[0]:.3f}, after {left[1]:.1e}; mean moved by {result['mean_moved']:.1e}")
    print(f"range after [{low:.4f}, {high:.4f}]; accuracy {accuracy[0]:.4f} -> {accuracy[1]:.4f}")


if __name__ == "__main__":
    main(run, show, QUICK)
