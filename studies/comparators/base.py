"""The interface of a comparator, and the record that each of them fits.

Every method here ends in one linear predictor of features and protected columns, whatever it did to find it. So a fit
is a small frozen record, a method is a function from a :class:`Problem` to such a record, and a class around it reads
tables.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol, Self, runtime_checkable

import numpy as np
from sklearn.exceptions import NotFittedError

from setsquare import Problem, Solution, tables
from setsquare.errors import InputError, MissingValuesError, UnseenLevelError
from setsquare.families import Family, family
from setsquare.glm import Prepared, Status
from setsquare.projection import Basis
from setsquare.tables import dense
from studies.arrays import Array, Table

#: A column whose standard deviation is below this share of its mean is constant.
CONSTANT = 1e-13


@runtime_checkable
class Comparator(Protocol):
    """What an experiment needs of a method; anything with these two functions can be compared."""

    def fit(self, Z: Table, y: Array, protected: Table) -> Self:
        """Learn from features, an outcome and protected columns of the same rows."""
        ...

    def predict(self, Z: Table, protected: Table | None = None) -> Array:
        """Predicted means (probabilities, rates) of new rows, (n,)."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Fit:
    """A fitted comparator: ``h(intercept + Z coef + X protected_coef)``.

    Attributes
    ----------
    family : Family
    intercept : float
    coef : ndarray of shape (q,)
        Of the features as given.
    protected_coef : ndarray of shape (p,) or None
        Of the protected columns as given; None where predictions do not need them.
    fairness : float
        The method's own measure of unfairness on the training rows, measured on this very model.
    tuning : float or None
        What was searched: the ridge of a fair ridge, the bound on the covariance of Zafar.
    status : Status
        How the solver of the last fit ended.
    kkt : float or None
        Relative KKT residual of that fit.
    """

    family: Family
    intercept: float
    coef: Array
    protected_coef: Array | None
    fairness: float
    tuning: float | None = None
    status: Status = Status.CONVERGED
    kkt: float | None = None

    def linear_predictor(self, Z: Array, X: Array | None = None) -> Array:
        """Return ``eta`` of the rows, (n,)."""
        eta: Array = self.intercept + Z @ self.coef
        if self.protected_coef is None:
            return eta
        if X is None:
            raise InputError("This method predicts from the protected columns too: pass protected=.")
        return eta + X @ self.protected_coef

    def predict(self, Z: Array, X: Array | None = None) -> Array:
        """Return the predicted mean of the rows, (n,)."""
        return self.family.activation(self.linear_predictor(Z, X))


@contextmanager
def _as_they_are() -> Iterator[None]:
    """Leave out the advice to pass options: comparators take tables as they are."""
    try:
        yield
    except (MissingValuesError, UnseenLevelError) as error:
        raise type(error)(f"{str(error).split(', or pass')[0]}.") from None


_UNEQUAL = "There are {} rows of features and {} of protected columns: give the same rows in both."


class LinearComparator(ABC):
    """A comparator whose fit is a :class:`Fit`; a method of this kind implements :meth:`solve`.

    Parameters
    ----------
    family : str or Family
        One of ``families``.

    Attributes
    ----------
    result_ : Fit
    coef_, intercept_, fairness_, lambda_, status_ :
        Read from ``result_``.
    """

    #: Families for which the method is defined.
    families: ClassVar[tuple[str, ...]] = ("binomial", "poisson", "gaussian")
    #: Whether ``predict`` needs the protected columns.
    needs_protected: ClassVar[bool] = True
    #: Optional package without which the method does not run.
    package: ClassVar[str | None] = None

    result_: Fit

    def __init__(self, *, family: str | Family = "binomial") -> None:
        self.family = family

    @abstractmethod
    def solve(self, problem: Problem) -> Fit:
        """Fit the method to a problem without weights, offset or ridge."""

    def fit(self, Z: Table, y: Array, protected: Table) -> Self:
        """Learn from features, an outcome and protected columns of the same rows.

        Parameters
        ----------
        Z : dataframe or array of shape (n, q)
            Features, without the protected columns.
        y : array of shape (n,)
            0 and 1, a count or a measurement.
        protected : dataframe or array of shape (n, p)

        Returns
        -------
        self
        """
        glm = family(self.family)
        if glm.name not in self.families or glm.link != "canonical":
            raise InputError(f"{type(self).__name__} is not defined for {glm}: choose {', '.join(self.families)}.")
        if tables.n_rows(protected) != tables.n_rows(Z):
            raise InputError(_UNEQUAL.format(tables.n_rows(Z), tables.n_rows(protected)))
        with _as_they_are():
            self._designs = tables.learn(Z), tables.learn(protected)
            (features, names), (X, protected_names) = (
                (dense(coded.values), coded.names)
                for coded in (self._designs[0].apply(Z), self._designs[1].apply(protected))
            )
        if not np.any(X[:1] != X):
            raise InputError(
                "Every protected column is constant, so there is nothing to compare: give one that varies."
            )
        try:
            outcome = np.asarray(y, dtype=np.float64)
        except (TypeError, ValueError):
            raise InputError("The outcome must be numbers: code two classes as 0 and 1.") from None
        self.result_ = self.solve(
            Problem(features, outcome, X, glm, feature_names=names, protected_names=protected_names)
        )
        return self

    def predict(self, Z: Table, protected: Table | None = None) -> Array:
        """Predicted means (probabilities, rates) of new rows, (n,); needs the protected columns where the method does.

        Parameters
        ----------
        Z : dataframe or array of shape (n, q)
        protected : dataframe or array of shape (n, p), optional
        """
        result = self._result()
        if protected is not None and tables.n_rows(protected) != tables.n_rows(Z):
            raise InputError(_UNEQUAL.format(tables.n_rows(Z), tables.n_rows(protected)))
        with _as_they_are():
            X = None if protected is None else dense(self._designs[1].apply(protected).values)
            features = dense(self._designs[0].apply(Z).values)
        return result.predict(features, X)

    def _result(self) -> Fit:
        if not hasattr(self, "result_"):
            raise NotFittedError(f"This {type(self).__name__} is not fitted yet: call fit first.")
        return self.result_

    @property
    def coef_(self) -> Array:
        """Coefficients of the features, (q,)."""
        return self._result().coef

    @property
    def intercept_(self) -> float:
        """Intercept."""
        return self._result().intercept

    @property
    def fairness_(self) -> float:
        """The method's own measure of unfairness on the training rows."""
        return self._result().fairness

    @property
    def lambda_(self) -> float | None:
        """What was searched (see :class:`Fit`); None where nothing was."""
        return self._result().tuning

    @property
    def status_(self) -> Status:
        """How the solver ended."""
        return self._result().status


def linear_fit(
    problem: Problem, found: Solution, intercept: float, coef: Array, protected_coef: Array | None = None
) -> Fit:
    """Make a record whose fairness is the largest correlation of a protected column with the linear predictor."""
    kkt = found.certificate.kkt_residual
    fit = Fit(problem.family, intercept, coef, protected_coef, np.nan, status=found.status, kkt=kkt)
    X = np.asarray(problem.protected)
    return replace(fit, fairness=max_correlation(X, fit.linear_predictor(problem.features, X)))


def max_correlation(X: Array, eta: Array) -> float:
    """Largest ``|corr|`` of a column of ``X`` (n, p) with ``eta`` (n,); constants have none."""
    centred = X - X.mean(axis=0)
    spread = np.sqrt(np.mean(centred**2, axis=0))
    varies = spread > CONSTANT * np.abs(X.mean(axis=0))
    gap = eta - eta.mean()
    size = float(np.sqrt(np.mean(gap**2)))
    if size <= CONSTANT * abs(float(eta.mean())):
        return 0.0
    return float(np.max(np.abs(gap @ centred[:, varies]) / (len(eta) * spread[varies] * size), initial=0.0))


def split_coefficients(prepared: Prepared, theta: Array, basis: Basis) -> tuple[float, Array, Array]:
    """Intercept, coefficients of the features and of the protected columns, where the problem's features are both.

    The first ``basis.rank`` features are coordinates of the protected columns in the basis.
    """
    intercept, coef = prepared.coefficients(theta)
    own = basis.transform @ coef[0, : basis.rank]
    return float(intercept[0] - basis.mean @ own), coef[0, basis.rank :], own
