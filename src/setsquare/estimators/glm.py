"""Generalised linear models whose predictions are orthogonal to the protected columns (C^h, Corollary 1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from setsquare import design, families
from setsquare.errors import InputError
from setsquare.estimators.reading import (
    Columns,
    check_alignment,
    learn_reader,
    validate_features,
    validate_outcome,
    validate_weight,
)
from setsquare.estimators.warn import judge, warn_no_offset, warn_pooled
from setsquare.families import Family
from setsquare.problem import Problem
from setsquare.solvers import Solution, solve
from setsquare.typing import Array, Table


class _OrthogonalGLM(BaseEstimator):
    """What classifier and regressor share: read tables, solve, judge the certificate, predict."""

    protected: str | int | Sequence[str | int] | None
    solver: str
    l2: float
    use_protected: bool
    coding: Literal["dummy", "cells"]
    reference: Mapping[str, Any] | None
    missing: str
    unseen: str
    max_iter: int | None
    tol: float
    warm_start: bool
    n_restarts: int
    random_state: Any

    def _columns(self) -> Columns:
        return Columns(self.protected, self.use_protected, self.coding, self.reference, self.missing, self.unseen)

    def _code_outcome(self, y: Any, weight: Array | None) -> tuple[Family, Array, Any]:
        """Family, outcome as numbers, and the classes if there are any."""
        raise NotImplementedError

    def _fit(self, X: Table, y: Any, protected: Table | None, weight: Any, offset: Any) -> Any:
        """Fit, and set attributes only when the certificate holds; returns the classes if there are any."""
        X = validate_features(self, X, reset=True)
        n = design.n_rows(X)
        for what, values in (("the outcome", y), ("sample_weight", weight), ("offset", offset)):
            check_alignment(X, values, what)
        y, weight, offset = validate_outcome(y, n), validate_weight(weight, n), _validate_offset(offset, n)
        reader, encoded = learn_reader(X, protected, self._columns())
        if encoded.keep is not None:
            y, weight, offset = (None if values is None else values[encoded.keep] for values in (y, weight, offset))
        family, outcome, classes = self._code_outcome(y, weight)
        names = {"feature_names": reader.feature_names, "protected_names": reader.protected.names}
        problem = Problem(encoded.Z, outcome, encoded.X, family, weight=weight, offset=offset, l2=self.l2, **names)
        solution = solve(
            problem,
            self.solver,
            max_iter=self.max_iter,
            tol=self.tol,
            start=self._start(problem) if self.warm_start else None,
            n_restarts=self.n_restarts,
            rng=np.random.default_rng(self.random_state),
        )
        judge(solution, reader.protected.constant)
        self.reader_, self.solution_, self.family_, self.n_iter_ = reader, solution, family, solution.n_iter
        self.has_offset_ = offset is not None
        self.n_dropped_ = n - problem.n_rows
        self.protected_names_ = np.asarray(reader.protected.names, dtype=object)
        self.coefficient_names_ = np.asarray(reader.feature_names, dtype=object)
        return classes

    def _start(self, problem: Problem) -> tuple[Array, Array] | None:
        before: Solution | None = getattr(self, "solution_", None)
        n_outputs = problem.n_predictors + 1 if problem.family.is_vector else 1
        if before is None or before.coef.shape != (n_outputs, problem.features.shape[1]):
            return None
        return before.intercept, before.coef

    def _linear_predictor(self, X: Table, offset: Any) -> Array:
        """Linear predictors (n, k) of new rows."""
        check_is_fitted(self, "solution_")
        if not self.reader_.lacks_protected(X):
            X = validate_features(self, X, reset=False)
        Z, n_pooled = self.reader_.feature_matrix(self.reader_.feature_table(X))
        warn_pooled(n_pooled)
        eta = np.asarray(Z @ self.solution_.coef.T) + self.solution_.intercept
        shift = _validate_offset(offset, len(eta))
        if shift is None:
            warn_no_offset(self.has_offset_)
            return eta
        return eta + (shift[:, None] if shift.ndim == 1 else shift)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


class OrthogonalGLMClassifier(ClassifierMixin, _OrthogonalGLM):
    """Logistic or softmax regression whose probabilities are orthogonal to the protected columns.

    ``min loss(gamma)  subject to  Xc' h(Z gamma) = 0`` (Corollary 1 of the paper, with the vector constraint): every
    generalised linear model that regresses the probabilities on the protected columns finds nothing. Prediction does
    not need the protected columns. If the constraint cannot be met, ``fit`` raises ``NotOrthogonalError`` (with
    ``solver="mdmm"``, which never meets it exactly, it warns). There must be more features than protected columns.

    Parameters
    ----------
    protected : str, int, sequence of either, optional
        Columns inside the feature table, by name or position, or a formula over them such as ``"~ sex * race"``. By
        default they are given to ``fit(..., protected=)`` as an array or table.
    solver : {"auto", "sqp", "mdmm"}
        "mdmm" is the paper's optimiser, which is slow and leaves a residual.
    l2 : float
        Ridge ``l2/2 |coef|^2`` added to the mean loss.
    use_protected : bool
        Whether protected columns inside the feature table stay among the features, as in the paper's benchmark.
    coding : {"dummy", "cells"}
        Coding of the protected columns: "cells" protects every combination of their levels.
    reference : mapping of column to level, optional
        Reference levels; by default the first.
    missing : {"error", "drop", "level"}
        What to do with missing values when fitting.
    unseen : {"error", "pool"}
        What to do with levels unseen in training.
    max_iter : int, optional
    tol : float
        Relative gradient of the Lagrangian at which the solver stops.
    warm_start : bool
        Start from the solution of the last ``fit``.
    n_restarts : int
        Further random starts; the best solution is kept, for the problem is not convex.
    random_state : int, numpy.random.Generator or None
        For the restarts.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
    coef_ : ndarray of shape (1 or n_classes, n_coefficients)
    intercept_ : ndarray of shape (1 or n_classes,)
    coefficient_names_ : ndarray of str
        One name a coefficient: features, and dummies such as ``education[Masters]``.
    protected_names_ : ndarray of str
    solution_ : Solution
        With ``.certificate``, ``.status`` and ``.trace``.
    n_iter_ : int
    n_dropped_ : int
        Rows left out of the fit because of missing values (``missing="drop"``).

    Examples
    --------
    >>> import numpy as np
    >>> from setsquare import OrthogonalGLMClassifier
    >>> rng = np.random.default_rng(0)
    >>> age = rng.normal(size=500)
    >>> Z = np.column_stack([age + rng.normal(size=500), rng.normal(size=500)])
    >>> y = np.where(Z @ [1.0, 1.0] + rng.normal(size=500) > 0, "yes", "no")
    >>> model = OrthogonalGLMClassifier().fit(Z, y, protected=age)
    >>> p = model.predict_proba(Z)[:, 1]
    >>> bool(abs(np.corrcoef(age, p)[0, 1]) < 1e-8)
    True
    """

    def __init__(
        self,
        protected: str | int | Sequence[str | int] | None = None,
        solver: str = "auto",
        l2: float = 0.0,
        *,
        use_protected: bool = False,
        coding: Literal["dummy", "cells"] = "dummy",
        reference: Mapping[str, Any] | None = None,
        missing: str = "error",
        unseen: str = "error",
        max_iter: int | None = None,
        tol: float = 1e-8,
        warm_start: bool = False,
        n_restarts: int = 0,
        random_state: Any = None,
    ) -> None:
        self.protected = protected
        self.solver = solver
        self.l2 = l2
        self.use_protected = use_protected
        self.coding = coding
        self.reference = reference
        self.missing = missing
        self.unseen = unseen
        self.max_iter = max_iter
        self.tol = tol
        self.warm_start = warm_start
        self.n_restarts = n_restarts
        self.random_state = random_state

    def fit(
        self, X: Table, y: Any, protected: Table | None = None, sample_weight: Any = None, offset: Any = None
    ) -> Self:
        """Fit the model.

        Parameters
        ----------
        X : dataframe or array of shape (n, q)
            Features.
        y : array of shape (n,)
            Classes.
        protected : dataframe or array of shape (n, p), optional
            Protected columns, where the constructor did not name them.
        sample_weight : array of shape (n,), optional
        offset : array of shape (n,) or (n, n_classes), optional

        Returns
        -------
        self
        """
        self.classes_ = self._fit(X, y, protected, sample_weight, offset)
        self.intercept_, self.coef_ = self.solution_.intercept, self.solution_.coef
        return self

    def _code_outcome(self, y: Any, weight: Array | None) -> tuple[Family, Array, Any]:
        check_classification_targets(y)
        classes, codes = np.unique(y, return_inverse=True)
        if len(classes) < 2:
            raise InputError(
                f"The outcome has only one class ({classes[0]}): there is nothing to predict; give rows of two classes "
                "at least."
            )
        if weight is not None and len(np.unique(codes[weight > 0.0])) < len(classes):
            raise InputError("After leaving out rows of weight 0 a class has no row: give it rows or leave it out.")
        return families.binomial if len(classes) == 2 else families.multinomial, codes.astype(np.float64), classes

    def decision_function(self, X: Table, offset: Any = None) -> Array:
        """Linear predictors: (n,) for two classes, (n, n_classes) for more."""
        eta = self._linear_predictor(X, offset)
        return eta[:, 0] if eta.shape[1] == 1 else eta

    def predict_proba(self, X: Table, offset: Any = None) -> Array:
        """Probabilities of the classes, (n, n_classes); the protected columns are not needed."""
        eta = self._linear_predictor(X, offset)
        p = self.family_.activation(eta)
        return np.column_stack([1.0 - p, p]) if eta.shape[1] == 1 else p

    def predict_log_proba(self, X: Table, offset: Any = None) -> Array:
        """Logarithms of the probabilities."""
        with np.errstate(divide="ignore"):
            return np.log(self.predict_proba(X, offset))

    def predict(self, X: Table, offset: Any = None) -> Any:
        """Most probable class of each row."""
        scores = self.decision_function(X, offset)
        codes = (scores > 0.0).astype(int) if scores.ndim == 1 else scores.argmax(axis=1)
        return self.classes_[codes]

    def score(self, X: Table, y: Any, sample_weight: Any = None, offset: Any = None) -> float:
        """Accuracy of the predicted classes."""
        return float(accuracy_score(y, self.predict(X, offset), sample_weight=sample_weight))


class OrthogonalGLMRegressor(RegressorMixin, _OrthogonalGLM):
    """Generalised linear regression whose predicted means are orthogonal to the protected columns.

    Gaussian, Poisson, gamma, Tweedie, negative binomial or (for shares) binomial. Everything else is as in
    :class:`OrthogonalGLMClassifier`: prediction does not need the protected columns, and ``fit`` raises
    ``NotOrthogonalError`` rather than return a model that leaks.

    Parameters
    ----------
    family : str or Family
        "gaussian", "poisson", "gamma", "tweedie", "negative_binomial", "binomial", or a value from
        ``setsquare.families`` such as ``families.tweedie(1.7)``.
    protected, solver, l2, use_protected, coding, reference, missing, unseen, max_iter, tol, warm_start, n_restarts, \
random_state
        As in :class:`OrthogonalGLMClassifier`.
    link : {"canonical", "log"}, optional
        By default canonical for gaussian, binomial and Poisson, log for the others.

    Attributes
    ----------
    coef_ : ndarray of shape (n_coefficients,)
    intercept_ : float
    coefficient_names_, protected_names_ : ndarray of str
    solution_ : Solution
    n_iter_ : int

    Examples
    --------
    >>> import numpy as np
    >>> from setsquare import OrthogonalGLMRegressor
    >>> rng = np.random.default_rng(0)
    >>> age = rng.normal(size=500)
    >>> Z = np.column_stack([age + rng.normal(size=500), rng.normal(size=500)])
    >>> y = rng.poisson(np.exp(0.5 * Z[:, 0]))
    >>> model = OrthogonalGLMRegressor("poisson").fit(Z, y, protected=age)
    >>> bool(abs(np.corrcoef(age, model.predict(Z))[0, 1]) < 1e-8)
    True
    """

    def __init__(
        self,
        family: str | Family = "gaussian",
        protected: str | int | Sequence[str | int] | None = None,
        solver: str = "auto",
        l2: float = 0.0,
        *,
        link: str | None = None,
        use_protected: bool = False,
        coding: Literal["dummy", "cells"] = "dummy",
        reference: Mapping[str, Any] | None = None,
        missing: str = "error",
        unseen: str = "error",
        max_iter: int | None = None,
        tol: float = 1e-8,
        warm_start: bool = False,
        n_restarts: int = 0,
        random_state: Any = None,
    ) -> None:
        self.family = family
        self.protected = protected
        self.solver = solver
        self.l2 = l2
        self.link = link
        self.use_protected = use_protected
        self.coding = coding
        self.reference = reference
        self.missing = missing
        self.unseen = unseen
        self.max_iter = max_iter
        self.tol = tol
        self.warm_start = warm_start
        self.n_restarts = n_restarts
        self.random_state = random_state

    def fit(
        self, X: Table, y: Any, protected: Table | None = None, sample_weight: Any = None, offset: Any = None
    ) -> Self:
        """Fit the model.

        Parameters
        ----------
        X : dataframe or array of shape (n, q)
            Features.
        y : array of shape (n,)
            Outcome.
        protected : dataframe or array of shape (n, p), optional
            Protected columns, where the constructor did not name them.
        sample_weight : array of shape (n,), optional
        offset : array of shape (n,), optional
            Added to the linear predictor: the logarithm of an exposure.

        Returns
        -------
        self
        """
        self._fit(X, y, protected, sample_weight, offset)
        self.intercept_, self.coef_ = float(self.solution_.intercept[0]), self.solution_.coef[0]
        return self

    def _code_outcome(self, y: Any, weight: Array | None) -> tuple[Family, Array, Any]:
        family = families.family(self.family, self.link)
        if family.is_vector:
            raise InputError("The multinomial family is for classes: use OrthogonalGLMClassifier.")
        try:
            return family, y.astype(np.float64), None
        except (TypeError, ValueError):
            message = f"The outcome must be numbers, not {y.dtype}: convert it, or use OrthogonalGLMClassifier."
            raise InputError(message) from None

    def predict(self, X: Table, offset: Any = None) -> Array:
        """Predicted means, (n,); the protected columns are not needed."""
        eta = self._linear_predictor(X, offset)[:, 0]
        outside = int(np.count_nonzero(eta >= self.family_.activation.domain[1]))
        if outside:
            raise InputError(
                f"{outside} row(s) lie outside the domain of the canonical link of the {self.family_.name} family, so "
                'they have no mean; fit with link="log".'
            )
        return self.family_.activation(eta)

    def score(self, X: Table, y: Any, sample_weight: Any = None, offset: Any = None) -> float:
        """R² of the predicted means."""
        return float(r2_score(y, self.predict(X, offset), sample_weight=sample_weight))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        known = isinstance(self.family, Family) or self.family in families.FAMILIES  # fit says what is wrong otherwise
        if known and self.link in (None, "canonical", "log"):
            tags.target_tags.positive_only = families.family(self.family, self.link).outcome_range[0] >= 0.0
        return tags


def _validate_offset(offset: Any, n_rows: int) -> Array | None:
    if offset is None:
        return None
    try:
        array = np.asarray(offset, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"The offset must be numbers, not {type(offset).__name__}: give one value a row.") from None
    if array.ndim == 0 or len(array) != n_rows:
        raise InputError(f"The offset has the shape {array.shape} but there are {n_rows} rows: give one value a row.")
    return array
