"""Generalised linear models without a constraint, whose predictions can be corrected."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from setsquare import families, tables
from setsquare._typing import Array, Table
from setsquare.errors import InputError
from setsquare.families import Family
from setsquare.glm.problem import Problem
from setsquare.glm.solver import solve
from setsquare.tables.validation import check_classes


class PlainGLM(BaseEstimator):
    """Base of classifier and regressor; tables are coded as in the corrected models.

    Parameters
    ----------
    l2 : float
        Ridge ``l2/2 |coef|^2`` added to the mean loss.
    missing : {"error", "level"}
    unseen : {"error", "pool"}

    Attributes
    ----------
    design_ : Design
    family_ : Family
    intercept_ : ndarray of shape (k,)
    coef_ : ndarray of shape (k, q)
    """

    def __init__(self, *, l2: float = 0.0, missing: Any = "error", unseen: Any = "error") -> None:
        self.l2 = l2
        self.missing = missing
        self.unseen = unseen

    def _fit(self, X: Table, y: Array, family: Family, weight: Any) -> None:
        learned = tables.learn(X, missing=self.missing, unseen=self.unseen)
        Z = learned.apply(X).values
        found = solve(Problem(Z, y, None, family, weight, l2=self.l2, feature_names=learned.names))
        self.design_, self.family_ = learned, family
        self.intercept_, self.coef_ = found.intercept, found.coef

    def _means(self, X: Table) -> Array:
        check_is_fitted(self, "coef_")
        return self.family_.activation(np.asarray(self.design_.apply(X).values @ self.coef_.T) + self.intercept_)


class PlainGLMRegressor(RegressorMixin, PlainGLM):
    """Generalised linear regression by maximum likelihood.

    Examples
    --------
    >>> import numpy as np
    >>> Z = np.array([[0.0], [1.0], [2.0]])
    >>> PlainGLMRegressor().fit(Z, [1.0, 3.0, 5.0]).predict(Z).round(6)
    array([1., 3., 5.])
    """

    def __init__(
        self,
        family: str | Family = "gaussian",
        *,
        l2: float = 0.0,
        missing: Any = "error",
        unseen: Any = "error",
    ) -> None:
        super().__init__(l2=l2, missing=missing, unseen=unseen)
        self.family = family

    def fit(self, X: Table, y: Any, sample_weight: Any = None) -> Self:
        """Fit the model."""
        family = families.family(self.family)
        if family.is_vector:
            raise InputError("The multinomial family is for classes: use PlainGLMClassifier.")
        self._fit(X, np.asarray(y, dtype=np.float64), family, sample_weight)
        return self

    def predict(self, X: Table) -> Array:
        """Predicted means, (n,)."""
        return self._means(X)[:, 0]


class PlainGLMClassifier(ClassifierMixin, PlainGLM):
    """Logistic or softmax regression by maximum likelihood; the number of classes decides the family.

    Examples
    --------
    >>> import numpy as np
    >>> Z, y = np.array([[0.0], [0.0], [1.0], [1.0], [1.0]]), np.array(["a", "b", "a", "b", "b"])
    >>> PlainGLMClassifier().fit(Z, y).predict_proba(Z)[[0, 4], 1].round(3)
    array([0.5  , 0.667])
    """

    def fit(self, X: Table, y: Any, sample_weight: Any = None) -> Self:
        """Fit the model."""
        self.classes_, codes = np.unique(y, return_inverse=True)
        check_classes(self.classes_)
        name = "binomial" if len(self.classes_) == 2 else "multinomial"
        self._fit(X, codes.astype(np.float64), families.family(name), sample_weight)
        return self

    def predict_proba(self, X: Table) -> Array:
        """Probabilities of the classes, (n, n_classes)."""
        p = self._means(X)
        return np.column_stack([1.0 - p, p]) if p.shape[1] == 1 else p

    def predict(self, X: Table) -> Any:
        """Most probable class of each row."""
        return self.classes_[self.predict_proba(X).argmax(axis=1)]
