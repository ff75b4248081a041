"""The linear correction of features (C^l) as a transformer, with the protected columns or without them."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from setsquare.errors import InputError, SetsquareWarning
from setsquare.estimators.reading import Columns, dense, learn_reader, validate_features, validate_weight
from setsquare.estimators.warn import warn_dropped, warn_pooled
from setsquare.problem import check_finite
from setsquare.projection import Basis, Projector, protected_basis
from setsquare.rows import row_slices
from setsquare.typing import Array, Table

#: Canonical correlations below this are rounding: to take such a direction out would lose it for nothing.
ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Eraser:
    """An affine map of the features alone, after which they are uncorrelated with the protected columns.

    ``r(z) = z - S_zx (S_xz S^- S_zx)^- S_xz S^- (z - mean)``: the protected columns are replaced by their best linear
    prediction from the features, and what that explains is taken out. In other words, features are regressed on their
    canonical variates ``s = (z - mean) @ directions`` with the protected columns. Of all affine maps that leave no
    correlation it changes the features least, in the Mahalanobis and every other quadratic norm (LEACE, Belrose et al.
    2023).

    Attributes
    ----------
    mean : ndarray of shape (q,)
    directions : ndarray of shape (q, k)
    loadings : ndarray of shape (k, q)
        Least-squares effects of the variates on the features.
    correlations : ndarray of shape (k,)
        Of each variate with the protected columns, before it is taken out.
    rank : int
        Of the features; nothing is left of them where k equals it.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(50, 1))
    >>> Z = X + rng.normal(size=(50, 3))
    >>> erased = Eraser.fit(Z, protected_basis(X), X).apply(Z)
    >>> bool(np.abs((X - X.mean()).T @ erased).max() < 1e-12)
    True
    """

    mean: Array
    directions: Array
    loadings: Array
    correlations: Array
    rank: int

    @classmethod
    def fit(
        cls, Z: Array, basis: Basis, X: Array, weight: Array | None = None, names: tuple[str, ...] | None = None
    ) -> Eraser:
        """Fit to features ``Z`` (n, q) and protected columns ``X`` (n, p) with their basis."""
        _check_features(Z)
        prediction = Projector.fit(basis.apply(X), Z, weight, names)
        # Singular values, because both bases are orthonormal, are the canonical correlations.
        U, correlations, _ = np.linalg.svd(prediction.coefficients, full_matrices=False)
        kept = correlations > ROUNDING
        mean, directions = prediction.basis.mean, prediction.basis.transform @ U[:, kept]
        loadings = np.zeros((0, Z.shape[1]))
        if kept.any():
            scores = np.empty((len(Z), directions.shape[1]))
            for rows in row_slices(*Z.shape):
                scores[rows] = (Z[rows] - mean) @ directions
            effects = Projector.fit(Z, scores, weight)
            loadings = effects.basis.transform @ effects.coefficients
        return cls(mean, directions, loadings, correlations[kept], prediction.basis.rank)

    def apply(self, Z: Array) -> Array:
        """Correct features (n, q); needs no protected columns."""
        out = np.empty_like(Z)
        for rows in row_slices(*Z.shape):
            out[rows] = Z[rows] - (Z[rows] - self.mean) @ self.directions @ self.loadings
        return out


def _check_features(Z: Array) -> None:
    n, q = Z.shape
    if n <= q:
        raise InputError(
            f"Too few rows (n_samples = {n}) to correct {q} features without the protected columns: give more rows, "
            'reduce the features first (a few principal components), or choose using="protected".'
        )
    low, high = Z.min(axis=0), Z.max(axis=0)
    if (high - low <= 1e-12 * np.maximum(np.abs(low), np.abs(high))).all():
        raise InputError("Every feature is constant: there is nothing to correct; give features that vary.")


class LinearOrthogonalizer(TransformerMixin, BaseEstimator):
    """Remove linear effects of the protected columns from features; needs them to transform unless using="features".

    With ``using="protected"`` each feature is replaced by its residual from a least-squares regression on the protected
    columns, plus its mean. With ``using="features"`` the regression is on the best linear prediction of the protected
    columns from all features together, so that new rows need no protected columns; this is the map of LEACE, which
    changes the features least. It takes as many directions out of the features as there are protected columns, and
    wants many more rows than features.

    On the training rows no feature is then correlated with a protected column, and neither is any linear score of the
    features; on new rows this holds up to sampling error (see :func:`probe`). Predictions through a non-linear link
    (probabilities) are *not* orthogonal: use :class:`OrthogonalGLMClassifier` or :class:`PredictionOrthogonalizer` for
    these.

    Parameters
    ----------
    protected : str, int, sequence of either, optional
        Columns inside the feature table, by name or position, or a formula over them; they are left out of the output.
        By default they are given to ``fit`` and ``transform`` as an array or table.
    using : {"protected", "features"}
        What stands for the protected columns in ``transform``: they themselves, or their prediction from the features.
    coding : {"dummy", "cells"}
        Coding of the protected columns: "cells" removes every combination of their levels.
    reference : mapping of column to level, optional
    missing : {"error", "level"}
        Rows cannot be dropped by a transformer.
    unseen : {"error", "pool"}
        What to do with levels unseen in training.

    Attributes
    ----------
    projector_ : Projector
        With ``using="protected"``.
    eraser_ : Eraser
        With ``using="features"``; its ``correlations`` say how well the features predicted the protected columns.
    protected_names_ : ndarray of str

    Examples
    --------
    >>> import numpy as np
    >>> from setsquare import LinearOrthogonalizer
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(100, 2))
    >>> Z = X @ rng.normal(size=(2, 3)) + rng.normal(size=(100, 3))
    >>> corrected = LinearOrthogonalizer().fit_transform(Z, protected=X)
    >>> bool(np.abs(np.corrcoef(X.T, corrected.T)[:2, 2:]).max() < 1e-12)
    True
    >>> alone = LinearOrthogonalizer(using="features").fit(Z, protected=X)
    >>> bool(np.abs(np.corrcoef(X.T, alone.transform(Z).T)[:2, 2:]).max() < 1e-12)
    True
    """

    def __init__(
        self,
        protected: str | int | Sequence[str | int] | None = None,
        *,
        using: Literal["protected", "features"] = "protected",
        coding: Literal["dummy", "cells"] = "dummy",
        reference: Mapping[str, Any] | None = None,
        missing: str = "error",
        unseen: str = "error",
    ) -> None:
        self.protected = protected
        self.using = using
        self.coding = coding
        self.reference = reference
        self.missing = missing
        self.unseen = unseen

    def fit(self, X: Table, y: Any = None, protected: Table | None = None, sample_weight: Any = None) -> Self:
        """Learn the effects of the protected columns.

        Parameters
        ----------
        X : dataframe or array of shape (n, q)
            Features.
        y : ignored
        protected : dataframe or array of shape (n, p), optional
        sample_weight : array of shape (n,), optional

        Returns
        -------
        self
        """
        if self.missing == "drop":
            raise InputError('A transformer cannot drop rows: use missing="level", or drop them before.')
        if self.using not in ("protected", "features"):
            raise InputError(f"using={self.using!r} is not one of 'protected', 'features'.")
        table = validate_features(self, X, reset=True)
        columns = Columns(self.protected, False, self.coding, self.reference, self.missing, self.unseen)
        self.reader_, (Z, P, _) = learn_reader(table, protected, columns)
        Z = dense(Z)
        check_finite(Z, self.reader_.feature_names, "feature")
        check_finite(P, self.reader_.protected.names, "protected column")
        weight = validate_weight(sample_weight, len(P))
        if self.using == "features":
            basis = protected_basis(P, weight, self.reader_.protected.names)
            self.eraser_ = Eraser.fit(Z, basis, P, weight, self.reader_.feature_names)
            _warn_erased(self.eraser_)
        else:
            self.projector_ = Projector.fit(Z, P, weight, self.reader_.protected.names)
            basis = self.projector_.basis
        warn_dropped((*self.reader_.protected.constant, *basis.constant), basis.collinear)
        self.protected_names_ = np.asarray(self.reader_.protected.names, dtype=object)
        return self

    def transform(self, X: Table, protected: Table | None = None) -> Array:
        """Correct features, given the protected columns of the same rows unless ``using="features"``.

        Parameters
        ----------
        X : dataframe or array of shape (n, q)
        protected : dataframe or array of shape (n, p), optional
            Where the constructor did not name columns of ``X``. Not looked at with ``using="features"``, where named
            columns may be left out of a dataframe ``X``, too.

        Returns
        -------
        ndarray of shape (n, number of coded features)
        """
        check_is_fitted(self, "protected_names_")
        alone = self.using == "features"
        table = X if alone and self.reader_.lacks_protected(X) else validate_features(self, X, reset=False)
        P, pooled = (None, {}) if alone else self.reader_.protected_matrix(table, protected)
        Z, pooled_features = self.reader_.feature_matrix(self.reader_.feature_table(table))
        warn_pooled({**pooled, **pooled_features})
        if P is not None:
            return self.projector_.apply(dense(Z), P)
        check_finite(Z, self.reader_.feature_names, "feature")  # one missing value would spread over its row
        return self.eraser_.apply(dense(Z))

    def fit_transform(
        self, X: Table, y: Any = None, protected: Table | None = None, sample_weight: Any = None
    ) -> Array:
        """Learn the effects and correct the same rows."""
        corrected: Array = self.fit(X, y, protected, sample_weight).transform(X, protected)
        return corrected

    def get_feature_names_out(self, input_features: Any = None) -> Any:
        """Names of the corrected features: those that went in, dummies spelled out, without protected ones."""
        check_is_fitted(self, "protected_names_")
        return np.asarray(self.reader_.feature_names, dtype=object)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


def _warn_erased(eraser: Eraser) -> None:
    """Say where the features span no more than what is taken out."""
    if eraser.directions.shape[1] == eraser.rank:
        warnings.warn(
            f"The features have rank {eraser.rank}, no more than the protected columns: nothing is left of them but "
            'their means; give more features, or choose using="protected".',
            SetsquareWarning,
            stacklevel=3,
        )
