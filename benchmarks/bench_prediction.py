"""What the correction of a gradient boosting model on Adult costs beside its fit.

python -m benchmarks.bench_prediction
"""

from __future__ import annotations

import time

import numpy as np
import pandas as pd
from sklearn.ensemble import HistGradientBoostingClassifier

import setsquare as sq


def main() -> None:
    data = sq.datasets.load_adult()
    table, protected = data.features_table(), list(data.protected)
    boosting = HistGradientBoostingClassifier(categorical_features="from_dtype", random_state=0)
    start = time.perf_counter()
    boosting.fit(table.drop(columns=protected), data.y)
    fit = time.perf_counter() - start
    predict = []
    for _ in range(5):
        start = time.perf_counter()
        before = boosting.predict_proba(table.drop(columns=protected))[:, 1]
        predict.append(time.perf_counter() - start)
    start = time.perf_counter()
    model = sq.PredictionOrthogonalizer(boosting, protected=protected, prefit=True).fit(table, data.y)
    correct = time.perf_counter() - start
    after = model.predict_proba(table)[:, 1]
    X = pd.get_dummies(data.protected_table(), drop_first=True).to_numpy(float)
    left = [np.abs(np.corrcoef(X.T, p)[:-1, -1]).max() for p in (before, after)]
    accuracy = [np.mean((p > 0.5) == data.y) for p in (before, after)]
    print(f"rows {len(table)}, protected columns {X.shape[1]}, Newton steps {model.projector_.n_iter}")
    print(f"inner fit {fit:.2f} s, one prediction {np.median(predict):.2f} s, correction {correct:.2f} s in all")
    print(
        f"correction without the model's own predictions: {max(correct - np.median(predict), 0.0) / fit:.3f} of the fit"
    )
    print(f"abs. corr before {left[0]:.3f}, after {left[1]:.1e}; mean moved by {after.mean() - before.mean():.1e}")
    print(f"range after [{after.min():.4f}, {after.max():.4f}]; accuracy {accuracy[0]:.4f} -> {accuracy[1]:.4f}")


if __name__ == "__main__":
    main()
