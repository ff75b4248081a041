"""Problem to be solved: validated features, outcome, protected columns and family."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from setsquare._typing import Array, IntArray, Matrix
from setsquare.errors import InputError
from setsquare.families import Family, contrasts, family
from setsquare.glm.given import OUTCOME, condition
from setsquare.glm.outcome_summary import OutcomeSummary
from setsquare.projection import check_rows
from setsquare.rows.blocks import ArrayRows, Rows, is_sparse, mean_weight
from setsquare.rows.parallel import single_threaded_blas
from setsquare.tables.mixed_matrix import MixedMatrix
from setsquare.tables.validation import (
    check_clusters,
    check_finite,
    check_l2,
    check_offset,
    check_one_column,
    check_same_rows,
    check_weight,
    read_cluster,
    refuse_zero_weight,
)

#: Share of the total weight at which a single row decides the fit, and largest value whose summed squares fit float64.
LONE_WEIGHT, LARGEST = 1.0 - 1e-12, 1e153


@dataclass(frozen=True, slots=True)
class Problem:
    """Fit a generalised linear model whose predictions are orthogonal to the protected columns.

    Parameters
    ----------
    features : ndarray, scipy.sparse matrix or MixedMatrix of shape (n, q)
        ``Z``, without an intercept column; the intercept is implied.
    outcome : ndarray of shape (n,) or (n, K)
        ``y``; for the multinomial family, class numbers 0, 1, ..., K - 1, or shares of K classes.
    protected : ndarray of shape (n, p) or None
        ``X``; without it the fit is an ordinary GLM.
    family : str or Family
    weight : ndarray of shape (n,), optional
        Sample weights, of any scale.
    offset : ndarray of shape (n,) or (n, K), optional
        Added to the linear predictor (for example the log of an exposure).
    l2 : float
        Ridge penalty: ``l2/2 |gamma|^2`` is added to the mean loss; the intercept is not penalised.
    feature_names, protected_names : sequence of str, optional
        Names used in messages and certificates. With controls, the protected names become those of the residuals.
    quasi : bool
        Accept outcomes outside the range of the family (for example a probability of 1.02): the estimating equations
        only require that the means are in range.
    cluster : array of shape (n,), optional
        Cluster of each row, for example the patient. Leave-one-out quantities then leave out whole clusters.
    given : ndarray of shape (n, c) or "outcome", optional
        Controls: predictions become orthogonal to what the protected columns vary beyond them, see ``glm.given``.
    given_names : sequence of str, optional

    Attributes
    ----------
    rows : Rows
        Rows of positive weight: features, coded outcome and offset, protected columns, weights that sum to one; no
        basis. With clusters they are sorted by cluster. With controls the protected columns are residuals on them, and
        ``Q`` is an orthonormal basis of the controls.
    outcomes : OutcomeSummary
        Summary of the outcome in these rows.
    determined : tuple of str
        Protected columns that the controls determine.

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
    cluster: Any = None
    given: Any = None
    given_names: Sequence[str] = ()
    rows: Rows = field(init=False, repr=False)
    outcomes: OutcomeSummary = field(init=False, repr=False)
    determined: tuple[str, ...] = field(init=False, default=())

    def __post_init__(self) -> None:
        with single_threaded_blas():
            self._read()

    def _read(self) -> None:
        Z = self.features
        if not isinstance(Z, MixedMatrix):
            Z = Z.tocsr() if is_sparse(Z) else _array(Z, "feature", np.float16)
        if len(Z.shape) != 2 or 0 in Z.shape:
            raise InputError(f"The features must have at least one row and one column, got shape {Z.shape}.")
        X = None if self.protected is None else _array(self.protected, "protected column")
        X = X[:, None] if X is not None and X.ndim == 1 else X
        names = tuple(self.feature_names) or tuple(f"z{j}" for j in range(Z.shape[1]))
        protected_names = tuple(self.protected_names) or tuple(f"x{j}" for j in range(0 if X is None else X.shape[1]))
        values = {"features": Z, "outcome": _array(self.outcome, "outcome"), "protected": X}
        values |= {"feature_names": names, "protected_names": protected_names, "family": family(self.family)}
        for key in ("weight", "offset"):
            given = getattr(self, key)
            values[key] = None if given is None else _array(given, key)
        if self.cluster is not None:
            values["cluster"] = read_cluster(self.cluster, Z.shape[0])
            check_clusters(values["cluster"])
        if self.given is not None:
            values |= _read_given(self.given, self.given_names, X)
        _set(self, values)
        _check(self)
        rows = _counted_rows(self)
        _set(self, {"rows": rows, "outcomes": _summarise(self, rows)})
        _condition(self)

    @classmethod
    def of_rows(
        cls,
        rows: Rows,
        outcomes: OutcomeSummary,
        family: Family,
        feature_names: Sequence[str],
        protected_names: Sequence[str] = (),
        *,
        l2: float = 0.0,
        quasi: bool = False,
        given: str | None = None,
        given_names: Sequence[str] = (),
    ) -> Problem:
        """Problem whose rows are not arrays in memory; ``features``, ``outcome`` and the other arrays are then None.

        Parameters
        ----------
        rows : Rows
            Features after a column of ones, coded outcome (b, k), protected columns (then those of ``given_names``),
            weights that sum to one over all blocks, offset; without a basis. Each pass must create new blocks, because
            they are changed in place.
        outcomes : OutcomeSummary
            Summary over all rows.
        """
        problem = object.__new__(cls)
        _set(problem, dict.fromkeys(each.name for each in fields(cls)))
        names = {"feature_names": tuple(feature_names), "protected_names": tuple(protected_names)}
        _set(problem, names | {"rows": rows, "outcomes": outcomes, "family": family, "l2": l2, "quasi": quasi})
        _set(problem, {"given": given, "given_names": tuple(given_names), "determined": ()})
        _check_summary(problem)
        _condition(problem)
        return problem

    def with_l2(self, l2: float) -> Problem:
        """Return the same problem with another ridge penalty."""
        check_l2(l2)
        problem = object.__new__(type(self))
        _set(problem, {each.name: getattr(self, each.name) for each in fields(self)} | {"l2": l2})
        return problem

    @property
    def n_rows(self) -> int:
        """Number of rows of positive weight."""
        return self.outcomes.n_rows

    @property
    def n_predictors(self) -> int:
        """Linear predictors per row: 1, or classes minus one."""
        return len(self.outcomes.mean) - 1 if self.family.is_vector else 1

    @property
    def has_offset(self) -> bool:
        """Whether the linear predictor has an offset."""
        return self.outcomes.offset is not None

    @property
    def n_units(self) -> int:
        """Number of clusters of positive weight, or of rows without clusters."""
        if self.cluster is None:
            return self.n_rows
        kept = self.cluster if self.weight is None else self.cluster[self.weight > 0.0]
        return len(np.unique(kept))

    def order(self) -> IntArray | None:
        """Positions of the given rows that ``rows`` holds, in its order; None if it holds all, as given."""
        kept = None if self.weight is None or self.weight.all() else np.flatnonzero(self.weight)
        if self.cluster is None:
            return kept
        kept = np.arange(len(self.cluster)) if kept is None else kept
        return kept[np.argsort(self.cluster[kept], kind="stable")]

    def mean_weight(self) -> Array:
        """Weights that sum to one."""
        return mean_weight(len(self.outcome), self.weight)

    def coded_outcome(self) -> Array:
        """Outcome of shape (n, k): unchanged, or contrasts for classes."""
        if not self.family.is_vector:
            return self.outcome[:, None]
        C = contrasts(_n_classes(self.outcome))
        return np.asarray(C[self.outcome.astype(int)] if self.outcome.ndim == 1 else self.outcome @ C)


def _set(problem: Problem, values: Mapping[str, object]) -> None:
    for key, value in values.items():
        object.__setattr__(problem, key, value)


def _n_classes(outcome: Array) -> int:
    return int(outcome.max()) + 1 if outcome.ndim == 1 else outcome.shape[1]


def _counted_rows(problem: Problem) -> ArrayRows:
    """All rows but those of weight 0, whose values, however extreme, must not enter any sum."""
    n, y, offset = len(problem.outcome), problem.coded_outcome(), problem.offset
    if offset is not None:
        C = contrasts(_n_classes(problem.outcome)) if problem.family.is_vector else None
        offset = offset.reshape(n, 1) if C is None else offset @ C
    w, X, group = problem.mean_weight(), problem.protected, problem.cluster
    X = X if X is None or not isinstance(problem.given, np.ndarray) else np.hstack([X, problem.given])
    parts: tuple[Any, ...] = (problem.features, y, np.zeros((n, 0)), w, offset, X, group)
    counted = problem.order()
    if counted is None:
        return ArrayRows(*parts)
    parts = tuple(None if part is None else part[counted] for part in parts)
    return ArrayRows(*parts)


def _read_given(given: Any, names: Sequence[str], X: Array | None) -> dict[str, object]:
    """Controls as numbers, with their names."""
    if X is None:
        raise InputError("given needs protected columns: it says given what predictions are orthogonal to them.")
    if isinstance(given, str):
        if given != OUTCOME:
            raise InputError(f'given must be "outcome" or an array of columns, not {given!r}.')
        return {}
    C = _array(given, "given column")
    C = C[:, None] if C.ndim == 1 else C
    if C.ndim != 2 or not C.shape[1]:
        raise InputError(f"given must be a two-dimensional array with at least one column, got shape {C.shape}.")
    check_same_rows("given has", len(C), "the protected columns have", len(X))
    names = tuple(names) or tuple(f"c{j}" for j in range(C.shape[1]))
    check_finite(C, names, "given column")
    return {"given": C, "given_names": names}


def _condition(problem: Problem) -> None:
    """Put residuals on the controls in place of the protected columns."""
    if problem.given is None and not problem.given_names:
        return
    given = None if isinstance(problem.given, str) else problem.given_names
    rows, names, determined = condition(problem.rows, problem.outcomes, problem.family, problem.protected_names, given)
    _set(problem, {"rows": rows, "protected_names": names, "determined": determined})


def _summarise(problem: Problem, rows: ArrayRows) -> OutcomeSummary:
    if not problem.family.is_vector:
        return OutcomeSummary.of(rows.y[:, 0], rows.weight, rows.offset)
    y, w = problem.outcome, problem.mean_weight()
    if y.ndim == 2:
        counted = problem.order()
        y = y if counted is None else y[counted]
        return OutcomeSummary.of(y, rows.weight, rows.offset)
    shares = np.asarray(np.bincount(y.astype(int), weights=w), dtype=np.float64)
    return OutcomeSummary.of(rows.y[:, 0], rows.weight, rows.offset).of_classes(shares)


def _array(values: object, what: str, *stored: type[np.floating]) -> Array:
    """Convert to a numeric array: float64, float32 and the ``stored`` types unchanged, others as float64."""
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
            raise InputError(f"There are {len(names)} {what} names for {count} columns: pass one name per column.")
    for what in ("outcome", "protected", "weight", "offset"):
        values = getattr(problem, what)
        if values is not None:
            check_same_rows(f"The {what} has", len(values), "the features have", n)
    Z, names = problem.features, problem.feature_names
    if isinstance(Z, MixedMatrix):
        names, Z = [names[place] for place in Z.places], Z.dense
    check_finite(Z, names, "feature")
    check_finite(problem.outcome.reshape(n, -1), ("the outcome",) * (problem.outcome.size // n), "")
    if problem.protected is not None:
        if problem.protected.ndim != 2 or not problem.protected.shape[1]:
            raise InputError(
                "The protected columns must be a two-dimensional array with at least one column, got shape "
                f"{problem.protected.shape}."
            )
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


def _check_summary(problem: Problem) -> None:
    """Validate a problem by the summary of its rows."""
    outcomes, p = problem.outcomes, len(problem.protected_names)
    if not outcomes.weight > 0.0:
        refuse_zero_weight()
    if not np.isfinite(outcomes.weight):
        raise InputError("The sample weights add up to more than float64 holds: divide them by the largest.")
    check_l2(problem.l2)
    if p:
        check_rows(outcomes.n_rows, p)
    if problem.family.is_vector:
        if not (outcomes.mean > 0.0).all():
            raise InputError("Each class needs at least one row of positive weight: add rows or drop the class.")
        return
    _check_range(outcomes.low, outcomes.high, problem.family)


def _check_range(low: float, high: float, family: Family) -> None:
    if (largest := max(-low, high)) > LARGEST:
        raise InputError(f"The outcome has values as large as {largest:g}, whose squares exceed float64: rescale it.")
    if low >= high:
        raise InputError(
            f"Every outcome is {low:g}, so there is nothing to predict: the {family.name} family needs an outcome that "
            "varies."
        )


def _check_outcome(problem: Problem) -> None:
    y = problem.outcome if problem.weight is None else problem.outcome[problem.weight > 0.0]
    if problem.family.is_vector:
        _check_classes(problem, y)
        return
    if not problem.quasi:
        problem.family.check_outcome(y)
    if problem.offset is not None and problem.offset.size != len(problem.outcome):
        raise InputError(f"The offset must have one value per row, got shape {problem.offset.shape}.")
    _check_range(float(y.min()), float(y.max()), problem.family)


def _check_classes(problem: Problem, y: Array) -> None:
    if y.ndim == 2:
        _check_shares(problem, y)
    else:
        whole = (y == np.floor(y)).all() and y.min() >= 0.0
        if not whole or y.max() < max(1.0, problem.outcome.max()) or (np.bincount(y.astype(int)) == 0).any():
            raise InputError(
                "Classes must be numbered 0, 1, ... without gaps: at least two classes, each with a row of positive "
                "weight."
            )
    shape = (len(problem.outcome), _n_classes(problem.outcome))
    if problem.offset is not None and problem.offset.shape != shape:
        raise InputError(f"The offset of {shape[1]} classes must have shape {shape}, got {problem.offset.shape}.")


def _check_shares(problem: Problem, y: Array) -> None:
    if y.shape[1] < 2 or np.abs(y.sum(axis=1) - 1.0).max() > 1e-6 or (not problem.quasi and y.min() < 0.0):
        raise InputError("Class shares need at least two columns, nonnegative values, and rows that sum to 1.")
    if (problem.mean_weight() @ problem.outcome).min() <= 0.0:
        raise InputError("A class has a share of 0 in every row: drop its column.")
    if (np.ptp(y, axis=0) == 0.0).all():
        raise InputError("Every row has the same shares, so there is nothing to predict: pass an outcome that varies.")
