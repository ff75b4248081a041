"""A GLM on features that another package has cleaned: fairlearn's CorrelationRemover, LEACE of concept-erasure.

Both are affine maps. Whatever the package keeps to itself, its map is known from what it makes of the origin and of the
unit vectors, and the model behind it is again one linear predictor.
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Callable
from importlib import import_module

import numpy as np

from setsquare import Problem, solve
from studies.arrays import Array
from studies.comparators.base import Fit, LinearComparator, linear_fit
from studies.requirements import require


class _Remover(LinearComparator):
    """A GLM behind an affine map of ``[features]`` or ``[features, protected]``."""

    @abstractmethod
    def learn(self, Z: Array, X: Array) -> Callable[[Array], Array]:
        """Return the map that was learned; it takes protected columns behind the features if ``needs_protected``."""

    def solve(self, problem: Problem) -> Fit:
        """Fit to a problem."""
        require(f"{type(self).__name__} needs", self.package or "")
        Z, X = np.asarray(problem.features), np.asarray(problem.protected)
        clean = self.learn(Z, X)
        inputs = np.hstack([Z, X]) if self.needs_protected else Z
        found = solve(Problem(clean(inputs), problem.outcome, None, problem.family))
        shift = clean(np.zeros((1, inputs.shape[1])))
        coef = (clean(np.eye(inputs.shape[1])) - shift) @ found.coef[0]
        own = coef[Z.shape[1] :] if self.needs_protected else None
        return linear_fit(problem, found, float(found.intercept[0] + shift[0] @ found.coef[0]), coef[: Z.shape[1]], own)


class CorrelationRemover(_Remover):
    """GLM behind fairlearn's CorrelationRemover; needs the protected columns to predict.

    The same correction as :class:`LinearFeatures`, as another package makes it. Versions before 0.15 centred several
    protected columns on one common mean and left correlation behind; ``fairness_`` shows what is left.
    """

    package = "fairlearn"

    def learn(self, Z: Array, X: Array) -> Callable[[Array], Array]:
        """Learn the map from ``[Z, X]``."""
        kind = import_module("fairlearn.preprocessing").CorrelationRemover
        remover = kind(sensitive_feature_ids=list(range(Z.shape[1], Z.shape[1] + X.shape[1]))).fit(np.hstack([Z, X]))
        return lambda inputs: np.asarray(remover.transform(inputs), dtype=np.float64)


class Leace(_Remover):
    """GLM behind LEACE (Belrose et al. 2023, package concept-erasure); predicts without the protected columns.

    The affine map of the features that makes them uncorrelated with the protected columns and moves them least. The
    linear predictor is then uncorrelated with these; means behind a non-linear link are not. Version 0.2.4 leaves rare
    groups untouched without a word; ``fairness_`` shows what is left.
    """

    package = "concept_erasure"
    needs_protected = False

    def learn(self, Z: Array, X: Array) -> Callable[[Array], Array]:
        """Learn the map from ``Z``."""
        return fit_leace(Z, X)


def fit_leace(Z: Array, X: Array) -> Callable[[Array], Array]:
    """Fit LEACE of the package concept-erasure to features (n, q) and protected columns (n, p); return its map."""
    torch = import_module("torch")
    with warnings.catch_warnings():  # the package is built on what newer versions of torch deprecate
        warnings.simplefilter("ignore", DeprecationWarning)
        kind = import_module("concept_erasure").LeaceEraser
        eraser = kind.fit(torch.from_numpy(Z), torch.from_numpy(X))
    return lambda inputs: np.asarray(eraser(torch.from_numpy(inputs)).numpy(), dtype=np.float64)
