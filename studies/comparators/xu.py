"""Dividing out what the protected columns say of the outcome (Xu et al. 2022).

If features and protected columns are independent given the outcome, Bayes' rule gives

    P(y | z)  is proportional to  P(y | z, x) P(y) / P(y | x),

so a model of everything, divided by a model of the protected columns, predicts from the features alone.
"""

from __future__ import annotations

import numpy as np
from scipy.special import logit

from setsquare import Problem, solve
from studies.arrays import Array
from studies.comparators.base import Fit, LinearComparator, linear_fit


class Xu(LinearComparator):
    """Logistic model divided by one of the protected columns alone; needs the protected columns to predict.

    The odds are ``(p1 / q1 * pi1) / ((1 - p1) / (1 - q1) * (1 - pi1))`` with ``p1 = P(y=1 | features, protected)``,
    ``q1 = P(y=1 | protected)`` and ``pi1 = P(y=1)``. Predictions are those of the features alone where features and
    protected columns are independent given the outcome. Where they are not, nothing is promised: features that stand
    for the protected columns keep doing so.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> y = (rng.random(500) < 0.4).astype(float)
    >>> S = (rng.random((500, 1)) < 0.3 + 0.4 * y[:, None]).astype(float)
    >>> Z = y[:, None] + rng.normal(size=(500, 2))
    >>> Xu().fit(Z, y, S).predict(Z, S).shape
    (500,)
    """

    families = ("binomial",)

    def solve(self, problem: Problem) -> Fit:
        """Fit to a problem."""
        X, y, glm = np.asarray(problem.protected), problem.outcome, problem.family
        full = solve(Problem(np.hstack([problem.features, X]), y, None, glm))
        own = solve(Problem(X, y, None, glm))
        q = problem.features.shape[1]
        intercept = float(full.intercept[0] - own.intercept[0] + logit(y.mean()))
        return linear_fit(problem, full, intercept, full.coef[0, :q], full.coef[0, q:] - own.coef[0])


def published_xu(p1: Array, q1: Array, y: Array) -> Array:
    """Return what the paper's code computes: the formula of :class:`Xu` with the row's own label in place of ``pi1``.

    With a label of 0 or 1 one of the two terms vanishes, and the result is that label, whatever the models say.

    Examples
    --------
    >>> import numpy as np
    >>> published_xu(np.array([0.2, 0.2]), np.array([0.5, 0.5]), np.array([0.0, 1.0]))
    array([0., 1.])
    """
    one, zero = p1 / q1 * y, (1.0 - p1) / (1.0 - q1) * (1.0 - y)
    return np.asarray(one / (one + zero))
