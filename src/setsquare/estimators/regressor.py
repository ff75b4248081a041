"""Generalised linear regression, corrected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.metrics import r2_score

from setsquare import families
from setsquare._typing import Array, Table
from setsquare.errors import InputError
from setsquare.estimators.glm import OrthogonalGLM
from setsquare.estimators.stream_outcome import Numbers, Outcome
from setsquare.families import Family
from setsquare.tables.validation import refuse_coding


class OrthogonalGLMRegressor(RegressorMixin, OrthogonalGLM):
    """Generalised linear regression whose predicted means are orthogonal to the protected columns.

    Gaussian, Poisson, gamma, Tweedie, negative binomial or (for shares) binomial. Everything else is as in
    :class:`OrthogonalGLMClassifier`: prediction does not need the protected columns, and ``fit`` raises
    ``NotOrthogonalError`` rather than return a model that leaks.

    Parameters
    ----------
    family : str or Family
        "gaussian", "poisson", "gamma", "tweedie", "negative_binomial", "binomial", or a value from
        ``setsquare.families`` such as ``families.tweedie(1.7)``.
    protected, solver, l2, orthogonal_on, max_correlation, confidence, budget, expand, given, relax, use_protected, \
basis, reference, missing, unseen, max_iter, tol, warm_start, n_restarts, random_state
        As in :class:`OrthogonalGLMClassifier`.
    link : {"canonical", "log"}, optional
        By default canonical for gaussian, binomial and Poisson, log for the others.

    Attributes
    ----------
    coef_ : ndarray of shape (n_coefficients,)
    intercept_ : float
    coefficient_names_, protected_names_ : ndarray of str
    solution_ : Solution
    l2_ : float
        Ridge penalty of the fit.
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

    @refuse_coding
    def __init__(
        self,
        family: str | Family = "gaussian",
        protected: str | int | Sequence[str | int] | None = None,
        solver: str = "auto",
        l2: float | Literal["auto"] = 0.0,
        *,
        link: str | None = None,
        orthogonal_on: Literal["training rows", "new rows"] = "training rows",
        max_correlation: float | None = None,
        confidence: float = 0.95,
        budget: float = 0.0,
        expand: Literal["auto"] | None = None,
        given: str | int | Sequence[str | int] | None = None,
        relax: Literal["box"] | Mapping[str, float] | None = None,
        use_protected: bool = False,
        basis: Any = "linear",
        reference: Mapping[str, Any] | None = None,
        missing: str = "error",
        unseen: str = "error",
        max_iter: int | None = None,
        tol: float = 1e-8,
        warm_start: bool = False,
        n_restarts: int = 0,
        random_state: Any = None,
    ) -> None:
        super().__init__(
            protected,
            solver,
            l2,
            orthogonal_on=orthogonal_on,
            max_correlation=max_correlation,
            confidence=confidence,
            budget=budget,
            expand=expand,
            given=given,
            relax=relax,
            use_protected=use_protected,
            basis=basis,
            reference=reference,
            missing=missing,
            unseen=unseen,
            max_iter=max_iter,
            tol=tol,
            warm_start=warm_start,
            n_restarts=n_restarts,
            random_state=random_state,
        )
        self.family = family
        self.link = link

    def fit(
        self,
        X: Table,
        y: Any,
        protected: Table | None = None,
        sample_weight: Any = None,
        offset: Any = None,
        cluster: Any = None,
    ) -> Self:
        """Fit the model.

        Parameters
        ----------
        X : dataframe or array of shape (n, q), or a stream
            Features. A :class:`setsquare.Stream`, a path of Parquet files, an Arrow dataset or a dask dataframe is read
            in batches; it holds all columns, and the other arguments are their names.
        y : array of shape (n,)
            Outcome.
        protected : dataframe or array of shape (n, p), optional
            Protected columns, where the constructor did not name them.
        sample_weight : array of shape (n,), optional
            Weights of the rows. Where rows are left out (new rows, ``l2="auto"``), a row is left out with its whole
            weight: a row of weight 2 is one unit, and two copies of it are two.
        offset : array of shape (n,), optional
            Added to the linear predictor: the logarithm of an exposure.
        cluster : array of shape (n,), optional
            Cluster of each row, for example the patient; see :meth:`OrthogonalGLMClassifier.fit`.

        Returns
        -------
        self
        """
        self._fit(X, y, protected, sample_weight, offset, cluster)
        self.intercept_, self.coef_ = float(self.solution_.intercept[0]), self.solution_.coef[0]
        return self

    def _own_family(self) -> Family:
        family = families.family(self.family, self.link)
        if family.is_vector:
            raise InputError("The multinomial family is for classes: use OrthogonalGLMClassifier.")
        return family

    def _stream_outcome(self) -> Outcome:
        return Numbers(self._own_family())

    def _code_outcome(self, y: Any, weight: Array | None) -> tuple[Family, Array, Any]:
        family = self._own_family()
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
        X, y, sample_weight = self._scored(X, y, sample_weight)
        return float(r2_score(y, self.predict(X, offset), sample_weight=sample_weight))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        known = isinstance(self.family, Family) or self.family in families.FAMILIES  # fit says what is wrong otherwise
        if known and self.link in (None, "canonical", "log"):
            tags.target_tags.positive_only = families.family(self.family, self.link).outcome_range[0] >= 0.0
        return tags
