"""Logistic and softmax regression, corrected."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from scipy.special import logit
from sklearn.base import ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils.multiclass import check_classification_targets

from setsquare import families
from setsquare._typing import Array, Table
from setsquare.estimators.glm import OrthogonalGLM
from setsquare.estimators.stream_outcome import Classes, Outcome
from setsquare.families import Family
from setsquare.tables.validation import check_classes


class OrthogonalGLMClassifier(ClassifierMixin, OrthogonalGLM):
    """Logistic or softmax regression whose probabilities are orthogonal to the protected columns.

    ``min loss(gamma)  subject to  Xc' h(Z gamma) = 0`` (Corollary 4 of the paper, with the vector constraint): every
    generalised linear model that regresses the probabilities on the protected columns finds nothing. By default this
    holds exactly for the rows of the fit; with ``orthogonal_on="new rows"`` it is asked of leave-one-out predictions,
    so that it holds for new rows up to sampling error. Prediction does not need the protected columns. If the
    constraint cannot be met, ``fit`` raises ``NotOrthogonalError`` (with ``solver="mdmm"``, which never meets it
    exactly, it warns). There must be more features than protected columns.

    Parameters
    ----------
    protected : str, int, sequence of either, optional
        Columns inside the feature table, by name or position, or a formula over them such as ``"~ sex * race"``. By
        default they are given to ``fit(..., protected=)`` as an array or table.
    solver : {"auto", "sqp", "large", "mdmm", "bdmm"}
        "large" is for thousands of features, dense or sparse: it forms no matrix of them; "auto" chooses by cost.
        "mdmm" is the paper's optimiser, which is slow and leaves a residual.
    l2 : float or "auto"
        Ridge ``l2/2 |coef|^2`` added to the mean loss; "auto" chooses it by the leave-one-out loss (``l2_``).
    orthogonal_on : {"training rows", "new rows"}
        "training rows": the correlation is exactly zero on the rows of the fit, as in the paper; on new rows part of it
        comes back, the more features there are for the rows (``solution_.certificate.new_rows``). "new rows": the
        leave-one-out correlation is zero, so that the predictions for the next rows are uncorrelated with the protected
        columns, up to sampling error.
    max_correlation : float, optional
        A promise: ``fit`` raises unless the upper bound on the correlation with the protected columns on new rows
        (``solution_.certificate.new_rows.upper``) is at most this.
    confidence : float
        Confidence of that bound. It holds for rows like the training rows.
    budget : float
        Share of the covariance with the protected columns that may stay on the training rows: 0 is the orthogonal
        model, 1 the model without a correction. Of all models with at most this covariance (its length over an
        orthonormal basis of the protected columns) the one with the smallest loss is fitted. It is not orthogonal:
        ``solution_.certificate`` has the share and the correlation that are left. :func:`setsquare.tradeoff` shows the
        whole path. Not with ``orthogonal_on="new rows"``.
    threshold : float, optional
        Make the decisions, a probability of at least this, orthogonal to the protected columns, and not the
        probabilities: selection rates are then about equal on the training rows. ``predict`` decides by it. Two classes
        only; not with ``orthogonal_on="new rows"``, ``budget`` or ``max_correlation``.
    expand : "auto" or None
        "auto" widens the features: numeric columns become hinges, clipped to the inner 99 % of the training rows,
        levels stay, and up to 60 products of two columns are chosen by what they add to the constrained fit; a ridge of
        0 is then chosen as with ``l2="auto"``. For tables and arrays in memory.
    given : "outcome", or columns inside the feature table, by name or position, optional
        Controls. With columns, predictions may differ between groups as far as these columns explain it: the effects of
        the protected columns are zero in a regression of the predictions on both. With "outcome", mean predictions are
        equal within each class of the outcome, the score version of equalised odds (a numeric outcome takes a spline).
        Given columns stay among the features; prediction needs neither the outcome nor the protected columns.
    relax : {"box"} or {"box": factor}, optional
        Relaxed constraint for as many protected columns as features or rows, where only constant predictions are
        orthogonal and ``fit`` refuses. "box" bounds the correlation with each protected column, on the training rows,
        by the largest that p unrelated columns would have by chance, ``factor * sqrt(2 log p / n)``. The certificate
        then says that the predictions are not orthogonal, how large the correlations are, and the limit (``box``).
        Two classes or numbers only.
    use_protected : bool
        Whether protected columns inside the feature table stay among the features, as in the paper's benchmark.
    basis : {"linear", "cells", "spline", "kernel"}, formula or transformer
        Functions of the protected columns to which the predictions are orthogonal. "linear": the columns, categories as
        dummies. "cells": every combination of levels. "spline": cubic splines of the numeric columns. "kernel": the
        leading functions of a Gaussian kernel of all protected columns, which bound the covariance with every smooth
        function of them (``ball_``). A formula such as ``"~ sex * bs(age, df=4)"``, or a scikit-learn transformer of
        the coded columns; models with these cannot be saved.
    reference : mapping of column to level, optional
        Reference levels; by default the first.
    missing : {"error", "drop", "level", "model"}
        What to do with missing values when fitting. "model" is for protected columns that only some rows have:
        doubly robust values take their place, from the probability that a row has the column and a prediction of it,
        both given the features and the outcome. This assumes that the values are missing at random given these, and
        holds if one of the two models is right.
    unseen : {"error", "pool"}
        What to do with levels unseen in training.
    max_iter : int, optional
    tol : float
        Relative gradient of the Lagrangian at which the solver stops.
    warm_start : bool
        Start from the solution of the last ``fit``.
    n_restarts : int
        Number of further random starts; the best solution is kept, because the problem is not convex.
    random_state : int, numpy.random.Generator or None
        Seed of the restarts.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
    coef_ : ndarray of shape (1 or n_classes, n_coefficients)
    intercept_ : ndarray of shape (1 or n_classes,)
    coefficient_names_ : ndarray of str
        One name per coefficient: features, and dummies such as ``education[Masters]``; with `expand` also hinges such
        as ``age>30``, each divided by its standard deviation, and products such as ``age:education[Masters]``, in
        which numbers are ranks between 0 and 1.
    protected_names_ : ndarray of str
    solution_ : Solution
        With ``.certificate``, ``.status`` and ``.trace``.
    l2_ : float
        Ridge penalty of the fit.
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
    >>> OrthogonalGLMClassifier(orthogonal_on="new rows").fit(Z, y, protected=age).solution_.certificate.is_orthogonal
    True
    """

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
            Classes.
        protected : dataframe or array of shape (n, p), optional
            Protected columns, where the constructor did not name them.
        sample_weight : array of shape (n,), optional
            Weights of the rows. Where rows are left out (new rows, ``l2="auto"``), a row is left out with its whole
            weight: a row of weight 2 is one unit, and two copies of it are two.
        offset : array of shape (n,) or (n, n_classes), optional
        cluster : array of shape (n,), optional
            Cluster of each row, for example the patient: whole clusters are left out, so that the predictions are
            uncorrelated with the protected columns for new clusters. Rows in memory only.

        Returns
        -------
        self
        """
        self.classes_ = self._fit(X, y, protected, sample_weight, offset, cluster)
        self.intercept_, self.coef_ = self.solution_.intercept, self.solution_.coef
        return self

    def _code_outcome(self, y: Any, weight: Array | None) -> tuple[Family, Array, Any]:
        two = _two_classes(y)
        if two is None:
            check_classification_targets(y)
            two = np.unique(y, return_inverse=True)
        classes, codes = two
        check_classes(classes, weight is None or len(np.unique(codes[weight > 0.0])) == len(classes))
        return families.binomial if len(classes) == 2 else families.multinomial, codes.astype(np.float64), classes

    def _stream_outcome(self) -> Outcome:
        return Classes()

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
        """Most probable class of each row; with a threshold, the second class from that probability on."""
        scores = self.decision_function(X, offset)
        if self.threshold is not None:
            return self.classes_[(scores >= logit(self.threshold)).astype(int)]
        codes = (scores > 0.0).astype(int) if scores.ndim == 1 else scores.argmax(axis=1)
        return self.classes_[codes]

    def score(self, X: Table, y: Any, sample_weight: Any = None, offset: Any = None) -> float:
        """Accuracy of the predicted classes."""
        X, y, sample_weight = self._scored(X, y, sample_weight)
        return float(accuracy_score(y, self.predict(X, offset), sample_weight=sample_weight))


def _two_classes(y: Any) -> tuple[Any, Any] | None:
    """Classes and codes if there are two, given as whole numbers; sorting the rows takes as long as a small fit."""
    if not isinstance(y, np.ndarray) or y.ndim != 1 or y.dtype.kind not in "biuf" or not len(y):
        return None
    ends = np.asarray([y.min(), y.max()])
    upper = y == ends[1]
    if not ends[0] < ends[1] or not (upper | (y == ends[0])).all() or (ends != np.floor(ends)).any():
        return None
    return ends, upper
