"""A GLM on linearly corrected features (C^l, the classical orthogonalisation)."""

from __future__ import annotations

import numpy as np

from setsquare import Problem, solve
from setsquare.projection import Projector
from studies.comparators.base import Fit, LinearComparator, linear_fit


class LinearFeatures(LinearComparator):
    """GLM on features without the linear effect of the protected columns; needs the protected columns to predict.

    Each feature is replaced by its residual from a least-squares regression on the protected columns. The linear
    predictor is then uncorrelated with every protected column; means behind a non-linear link are not.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> S = rng.normal(size=(500, 1))
    >>> Z = S + rng.normal(size=(500, 2))
    >>> y = (rng.random(500) < 1 / (1 + np.exp(-Z[:, 0]))).astype(float)
    >>> model = LinearFeatures().fit(Z, y, S)
    >>> model.fairness_ < 1e-12
    True
    """

    def solve(self, problem: Problem) -> Fit:
        """Fit to a problem."""
        X = np.asarray(problem.protected)
        projector = Projector.fit(problem.features, X, None, tuple(problem.protected_names))
        corrected = projector.apply(problem.features, X)
        found = solve(Problem(corrected, problem.outcome, None, problem.family, feature_names=problem.feature_names))
        basis, coef = projector.basis, found.coef[0]
        removed = basis.transform @ (projector.coefficients @ coef)
        return linear_fit(problem, found, float(found.intercept[0] + basis.mean @ removed), coef, -removed)
