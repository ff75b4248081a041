"""What boosting reaches under the constraint, for the table of ``benchmarks.expansion``.

Among all functions of the features, the loss under ``E[q p] = 0`` is smallest where its derivative vanishes for each
value of the features: ``p - m + u p (1 - p) = 0`` for a binary outcome, with ``m = E[y | z]``, ``u = lam' E[q | z]``
and the multipliers ``lam``. Both expectations are learned by boosting, without the protected columns; ``lam`` makes the
covariance of cross-fitted predictions with the protected columns zero on the training rows, as far as multipliers up to
a bound can. Only the features are needed to predict. The bound was chosen on two of the ten splits of the table.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import pandas as pd
from scipy.optimize import least_squares
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.model_selection import StratifiedKFold

from setsquare import tables

#: Folds of the cross-fitted predictions, and the largest multiplier of a standardised column: race can hardly be
#: predicted, and a multiplier that removes the last of its sample correlation would decide all predictions.
FOLDS, LARGEST = 3, 1.0


class BoostedReference:
    """Boosted probabilities, corrected pointwise."""

    def fit(self, features: Any, y: Any, protected: Any) -> Self:
        X = np.asarray(tables.learn(protected).apply(protected).values, dtype=np.float64)
        Z = self._codes(features, learn=True)
        targets = [np.asarray(y), *X.T]
        out = np.empty((len(y), len(targets)))
        for train, rest in StratifiedKFold(FOLDS, shuffle=True, random_state=0).split(Z, y):
            for j, target in enumerate(targets):
                out[rest, j] = self._boost(Z.iloc[train], target[train]).predict_proba(Z.iloc[rest])[:, 1]
        self.models_ = [self._boost(Z, target) for target in targets]
        self.mean_, scale = X.mean(axis=0), X.std(axis=0)
        centred = (X - self.mean_) / scale

        def left(lam: Any) -> Any:
            return centred.T @ self._correct(out, lam) / len(y)

        self.lam_ = least_squares(left, np.zeros(X.shape[1]), bounds=(-LARGEST / scale, LARGEST / scale)).x
        return self

    def predict_proba(self, features: Any) -> Any:
        Z = self._codes(features, learn=False)
        out = np.column_stack([model.predict_proba(Z)[:, 1] for model in self.models_])
        p = self._correct(out, self.lam_)
        return np.column_stack([1.0 - p, p])

    def _correct(self, out: Any, lam: Any) -> Any:
        m, u = out[:, 0], (out[:, 1:] - self.mean_) @ lam if hasattr(self, "mean_") else 0.0 * out[:, 0]
        root = np.sqrt(np.maximum((1.0 + u) ** 2 - 4.0 * u * m, 0.0))
        return np.clip(2.0 * m / (1.0 + u + root), 1e-6, 1.0 - 1e-6)  # the solution that is m at u = 0

    @staticmethod
    def _boost(Z: Any, target: Any) -> Any:
        coded = Z.dtypes == "category"
        options = {"max_iter": 80, "learning_rate": 0.1, "max_leaf_nodes": 15, "random_state": 0}
        return HistGradientBoostingClassifier(categorical_features=coded.to_numpy(), **options).fit(Z, target)

    def _codes(self, features: Any, *, learn: bool) -> Any:
        """Text as categories of the training rows; other levels are missing values."""
        if learn:
            self.levels_ = {
                name: pd.Index(features[name].unique()) for name in features if features[name].dtype.kind not in "iufb"
            }
        coded = {name: pd.Categorical(features[name], levels) for name, levels in self.levels_.items()}
        return features.assign(**coded)
