"""What is to be solved: features, outcome, protected columns and a family, checked once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from setsquare._typing import Array, Matrix
from setsquare.errors import InputError
from setsquare.families import Family, contrasts, family
from setsquare.projection import check_rows
from setsquare.rows.blocks import is_sparse, mean_weight
from setsquare.tables.validation import (
    check_finite,
    check_l2,
    check_offset,
    check_one_column,
    check_same_rows,
    check_weight,
)

#: Share of the weight that leaves no other row a say; and the largest number whose square, summed, stays in float64.
LONE_WEIGHT, LARGEST = 1.0 - 1e-12, 1e153


@dataclass(frozen=True, slots=True)
class Problem:
    """Fit a generalised linear model whose predictions are orthogonal to the protected columns.

    Parameters
    ----------
    features : ndarray or scipy.sparse matrix of shape (n, q)
        ``Z``, without a column for the intercept, which is implied.
    outcome : ndarray of shape (n,) or (n, K)
        ``y``; for the multinomial family class numbers 0, 1, ..., K - 1, or shares of K classes.
    protected : ndarray of shape (n, p) or None
        ``X``; without it the fit is the ordinary one.
    family : str or Family
    weight : ndarray of shape (n,), optional
        Sample weights, of any scale.
    offset : ndarray of shape (n,) or (n, K), optional
        Added to the linear predictor (the log of an exposure).
    l2 : float
        Ridge: ``l2/2 |gamma|^2`` is added to the mean loss; the intercept is free.
    feature_names, protected_names : sequence of str, optional
        For messages and certificates.
    quasi : bool
        Take the outcome as it is, even where the family cannot produce it (a probability of 1.02): the estimating
        equations need only means that are in range.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(200, 1))
    >>> Z = X + rng.normal(size=(200, 3))
    >>> y = (rng.random(200) < 0.5 + 0.2 * np.tanh(Z[:, 0])).astype(float)
    >>> Problem(Z, y, X, family="binomial").family.name
    'binomial'
    """

    features: Matrix
    outcome: Array
    protected: Array | None = None
    family: Family = field(default_factory=lambda: family("gaussian"))
    weight: Array | None = None
    offset: Array | None = None
    l2: float = 0.0
    feature_names: Sequence[str] = ()
    protected_names: Sequence[str] = ()
    quasi: bool = False

    def __post_init__(self) -> None:
        Z = self.features.tocsr() if is_sparse(self.features) else _array(self.features, "feature", np.float16)
        if Z.ndim != 2 or 0 in Z.shape:
            raise InputError(f"The features need at least one row and one column, not the shape {Z.shape}.")
        X = None if self.protected is None else _array(self.protected, "protected column")
        X = X[:, None] if X is not None and X.ndim == 1 else X
        names = tuple(self.feature_names) or tuple(f"z{j}" for j in range(Z.shape[1]))
        protected_names = tuple(self.protected_names) or tuple(f"x{j}" for j in range(0 if X is None else X.shape[1]))
        values = {"features": Z, "outcome": _array(self.outcome, "outcome"), "protected": X}
        values |= {"feature_names": names, "protected_names": protected_names, "family": family(self.family)}
        for key in ("weight", "offset"):
            given = getattr(self, key)
            values[key] = None if given is None else _array(given, key)
        for key, value in values.items():
            object.__setattr__(self, key, value)
        _check(self)

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return int(self.outcome.shape[0])

    @property
    def n_predictors(self) -> int:
        """Linear predictors a row: 1, or classes minus one."""
        if not self.family.is_vector:
            return 1
        return int(self.outcome.max()) if self.outcome.ndim == 1 else self.outcome.shape[1] - 1

    @property
    def has_offset(self) -> bool:
        """Whether the linear predictor has an offset."""
        return self.offset is not None

    def mean_weight(self) -> Array:
        """Weights that sum to one."""
        return mean_weight(self.n_rows, self.weight)

    def counted(self) -> Problem:
        """Return the problem without its rows of weight 0: whatever stands in them, it would enter as 0 times that."""
        if self.weight is None or self.weight.all():
            return self
        rows = np.flatnonzero(self.weight)
        return replace(
            self,
            features=self.features[rows],
            outcome=self.outcome[rows],
            protected=None if self.protected is None else self.protected[rows],
            weight=self.weight[rows],
            offset=None if self.offset is None else self.offset[rows],
        )

    def coded_outcome(self) -> Array:
        """Outcome of shape (n, k): as it is, or the class in contrasts."""
        if not self.family.is_vector:
            return self.outcome[:, None]
        C = contrasts(self.n_predictors + 1)
        return np.asarray(C[self.outcome.astype(int)] if self.outcome.ndim == 1 else self.outcome @ C)

    def outcome_spread(self) -> float:
        """Standard deviation of the outcome, over all its columns."""
        y, w = self.coded_outcome(), self.mean_weight()
        return float(np.sqrt(np.sum(w @ (y - w @ y) ** 2)))

    def mean_outcome(self) -> Array:
        """Weighted mean of the outcome, (1,), or share of each class, (K,)."""
        w = self.mean_weight()
        if not self.family.is_vector or self.outcome.ndim == 2:
            return np.atleast_1d(w @ self.outcome)
        return np.asarray(np.bincount(self.outcome.astype(int), weights=w), dtype=np.float64)


def _array(values: object, what: str, *stored: type[np.floating]) -> Array:
    """Numbers in double or single precision, or as ``stored``, as they are; others as float64."""
    try:
        array = np.asarray(values)
        return array if array.dtype in (np.float64, np.float32, *stored) else array.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"The {what} values must be numbers ({error}); encode text as dummy columns first.") from None


def _check(problem: Problem) -> None:
    n = problem.features.shape[0]
    if not (problem.family.is_vector and problem.outcome.ndim == 2):
        check_one_column(problem.outcome)
    for what, names, count in (
        ("feature", problem.feature_names, problem.features.shape[1]),
        ("protected", problem.protected_names, 0 if problem.protected is None else problem.protected.shape[-1]),
    ):
        if len(names) != count:
            raise InputError(f"There are {len(names)} {what} names for {count} columns: give one name per column.")
    for what in ("outcome", "protected", "weight", "offset"):
        values = getattr(problem, what)
        if values is not None:
            check_same_rows(f"The {what} has", len(values), "the features have", n)
    check_finite(problem.features, problem.feature_names, "feature")
    check_finite(problem.outcome.reshape(n, -1), ("the outcome",) * (problem.outcome.size // n), "")
    if problem.protected is not None:
        if problem.protected.ndim != 2 or not problem.protected.shape[1]:
            raise InputError(f"The protected columns must be a table, not an array of shape {problem.protected.shape}.")
        check_finite(problem.protected, problem.protected_names, "protected column")
        check_rows(n, problem.protected.shape[1])
    if problem.weight is not None:
        check_weight(problem.weight)
        if problem.mean_weight().max() > LONE_WEIGHT:
            raise InputError(
                f"One sample weight ({problem.weight.max():g}) exceeds all others by so much that only its row counts: "
                "check the weights."
            )
    if problem.offset is not None:
        check_offset(problem.offset)
    check_l2(problem.l2)
    _check_outcome(problem)


def _check_outcome(problem: Problem) -> None:
    y = problem.outcome if problem.weight is None else problem.outcome[problem.weight > 0.0]
    if problem.family.is_vector:
        _check_classes(problem, y)
        return
    if not problem.quasi:
        problem.family.check_outcome(y)
    if problem.offset is not None and problem.offset.size != problem.n_rows:
        raise InputError(f"The offset must be one column, not the shape {problem.offset.shape}.")
    if (largest := float(np.abs(y).max())) > LARGEST:
        raise InputError(f"The outcome has values as large as {largest:g}, whose squares exceed float64: rescale it.")
    if np.ptp(y) == 0.0:
        refuse_constant(float(y[0]), problem.family)


def refuse_constant(value: float, family: Family) -> None:
    """Raise one sentence about an outcome that does not vary."""
    raise InputError(
        f"Every outcome is {value:g}, so there is nothing to predict: the {family.name} family needs an outcome that "
        "varies."
    )


def _check_classes(problem: Problem, y: Array) -> None:
    if y.ndim == 2:
        _check_shares(problem, y)
    else:
        whole = (y == np.floor(y)).all() and y.min() >= 0.0
        if not whole or y.max() < max(1.0, problem.outcome.max()) or (np.bincount(y.astype(int)) == 0).any():
            raise InputError(
                "Number the classes 0, 1, ... without a gap: at least two, and each class with a row of positive "
                "weight."
            )
    shape = (problem.n_rows, problem.n_predictors + 1)
    if problem.offset is not None and problem.offset.shape != shape:
        raise InputError(f"The offset of {shape[1]} classes must have the shape {shape}, not {problem.offset.shape}.")


def _check_shares(problem: Problem, y: Array) -> None:
    if y.shape[1] < 2 or np.abs(y.sum(axis=1) - 1.0).max() > 1e-6 or (not problem.quasi and y.min() < 0.0):
        raise InputError("Shares of classes need at least two columns, values of 0 or more, and rows that sum to 1.")
    if problem.mean_outcome().min() <= 0.0:
        raise InputError("A class has no share in any row: leave its column out.")
    if (np.ptp(y, axis=0) == 0.0).all():
        raise InputError("Every row has the same shares, so there is nothing to predict: give an outcome that varies.")
