"""LEACE of the package concept-erasure, as a transformer."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin

from setsquare import tables
from studies.arrays import Array
from studies.comparators.removers import fit_leace


class Leace(TransformerMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Erases protected columns from features, by a map that does not need them afterwards."""

    def fit(self, X: Array, y: Any = None, protected: Any = None) -> Self:
        """Learn the map from features (n, q) and protected columns."""
        P = np.asarray(tables.learn(protected).apply(protected).values, dtype=np.float64)
        self.map_ = fit_leace(np.asarray(X, dtype=np.float64), P)
        return self

    def transform(self, X: Array) -> Array:
        """Apply it."""
        return self.map_(np.asarray(X, dtype=np.float64))
