"""The linear correction of features (C^l) as a transformer, with the protected columns or without them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from setsquare import tables
from setsquare._typing import Array, Table
from setsquare.errors import InputError
from setsquare.estimators.controls import check_given, learn_controls, residual_names, residuals
from setsquare.estimators.feature_table import validate_features
from setsquare.estimators.partial_fit import MomentFitting, refuse_drop
from setsquare.estimators.scoring import refuse_blind_scorers
from setsquare.estimators.second_moments import check_erasure, read_preserved
from setsquare.estimators.warn import (
    warn_dropped,
    warn_erased,
    warn_new_rows,
    warn_pooled,
    warn_squares,
    warn_unknown_cells,
)
from setsquare.projection import Basis, Eraser, Projector, Transport, fit_quadratic, protected_basis
from setsquare.rows import as_stream
from setsquare.rows.parallel import by_blocks
from setsquare.tables.arrow import read_unread
from setsquare.tables.frame import dense
from setsquare.tables.roles import Columns, learn_reader
from setsquare.tables.validation import (
    check_clusters,
    read_cluster,
    read_weight,
    refuse_coding,
    require_finite,
)


@dataclass(frozen=True, slots=True)
class NewRows:
    """Largest correlation of a protected column with a linear probe of the features on new rows.

    Attributes
    ----------
    correlation : float
        After the correction.
    before : float
        Before it.
    """

    correlation: float
    before: float


#: From this number of protected columns on, fewer features are refused instead of being reduced to constants.
MANY_PROTECTED = 1000


class LinearOrthogonalizer(MomentFitting, TransformerMixin, BaseEstimator):
    """Remove linear effects of the protected columns from features; needs them to transform unless using="features".

    With ``using="protected"`` each feature is replaced by its residual from a least-squares regression on the protected
    columns, plus its mean. With ``using="features"`` the regression is on the best linear prediction of the protected
    columns from all features together, so that new rows need no protected columns; this is the map of LEACE, which
    changes the features least. It takes as many directions out of the features as there are protected columns.
    Which change is the least comes from the covariance of the features, which is summed in single precision where there
    are many of them, far from collinear; that nothing is left comes from other sums, which are always in float64.

    On the training rows no feature is then correlated with a protected column, and neither is any linear score of the
    features. With ``using="protected"`` this holds on new rows up to sampling error. With ``using="features"`` it does
    not unless there are many more rows than features: of a multiple correlation R about ``R / sqrt(1 + R² n / q)``
    remains on new rows. ``new_rows_`` has the estimate, and a :class:`~setsquare.errors.NewRowsWarning` names it where
    it is large. Reduce the features first (:class:`PrincipalComponents`), or use ``orthogonal_on="new rows"`` and
    :meth:`adapt`.

    Means are not all: what differs between groups may be the spread of the features, and a network or boosted trees
    find it. ``moments=2`` removes second moments, too. With ``using="protected"`` the features of each cell of the
    protected columns (combinations of levels; columns with more than 8 values are cut into bands) are moved to a common
    mean and covariance by optimal transport between normal distributions
    (:class:`~setsquare.projection.Transport`). With ``using="features"`` only those directions are kept whose products
    and squares are all uncorrelated with the protected columns (:func:`~setsquare.projection.fit_quadratic`): far fewer
    than there are features, so pass ``preserve="outcome"``. Neither removes third moments, or others. Check with
    :func:`setsquare.probe`.

    Predictions through a nonlinear link (probabilities) are *not* orthogonal: use :class:`OrthogonalGLMClassifier` or
    :class:`PredictionOrthogonalizer` for these.

    Parameters
    ----------
    protected : str, int, sequence of either, optional
        Columns inside the feature table, by name or position, or a formula over them; they are left out of the output.
        By default they are given to ``fit`` and ``transform`` as an array or table.
    using : {"protected", "features"}
        What ``transform`` uses: the protected columns themselves, or their prediction from the features.
    orthogonal_on : {"training rows", "new rows"}
        With ``using="features"``: whether to remove the association exactly on the training rows (LEACE), or as well as
        possible on new rows, by the ridge prediction of the protected columns with the smallest leave-one-out error.
        The latter works with more features than rows, and gains most by :meth:`adapt`.
    given : columns inside the feature table, by name or position, optional
        Controls: regressing the corrected features on both, the effects of the protected columns are zero. Given
        columns stay among the features.
    basis : {"linear", "cells", "spline", "kernel"}, formula or transformer
        Functions of the protected columns to which the predictions are orthogonal; see
        :class:`OrthogonalGLMClassifier`.
    reference : mapping of column to level, optional
    missing : {"error", "level"}
        Rows cannot be dropped by a transformer.
    unseen : {"error", "pool"}
        What to do with levels unseen in training.
    moments : {1, 2}
        1 removes linear effects of the protected columns on the features; 2 also their effects on the features'
        variances and covariances.
    preserve : "outcome" or columns inside the feature table, by name or position, optional
        With ``using="features"``: keep the covariances of the features with these columns, or with ``y``, exactly as
        they are (SPLINCE, Holstege et al. 2025). ``eraser_.overlap`` says how much the preserved and the protected
        columns have in common, as far as the features predict them; ``eraser_.kept`` how much of the preserved columns
        can still be predicted. Where nothing can keep one and erase the other, ``fit`` raises.
    shrinkage : "auto" or float
        With ``moments=2`` and ``using="protected"``: share of the pooled covariance in that of each cell, from 0 to 1.
        "auto" estimates it; a small cell has more. Only with 0 the covariances of the cells are exactly equal on the
        training rows.
    copy : bool
        Whether ``transform`` works on a copy of the features. With ``copy=False`` they are overwritten
        if they are one writable float32 or float64 array, stored by rows or by columns, without protected columns
        inside; otherwise the result is a new array. A dataframe, a list or a sparse matrix is always copied.

    Attributes
    ----------
    projector_ : Projector
        With ``using="protected"``.
    eraser_ : Eraser
        With ``using="features"``; its ``correlations`` say how well the features predicted the protected columns.
    transport_ : Transport
        With ``using="protected"`` and ``moments=2``.
    new_rows_ : NewRows
        With ``using="features"`` and ``moments=1``: largest correlation of a protected column with a linear probe on
        new rows, after the correction (``correlation``) and before it (``before``), estimated for independent rows, or
        clusters if they are given to ``fit``; NaN if there are hardly more of them than features.
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

    @refuse_coding
    def __init__(
        self,
        protected: str | int | Sequence[str | int] | None = None,
        *,
        using: Literal["protected", "features"] = "protected",
        orthogonal_on: Literal["training rows", "new rows"] = "training rows",
        given: str | int | Sequence[str | int] | None = None,
        basis: Any = "linear",
        reference: Mapping[str, Any] | None = None,
        missing: str = "error",
        unseen: str = "error",
        copy: bool = True,
        moments: Literal[1, 2] = 1,
        preserve: str | int | Sequence[str | int] | None = None,
        shrinkage: float | Literal["auto"] = "auto",
    ) -> None:
        self.protected = protected
        self.using = using
        self.orthogonal_on = orthogonal_on
        self.given = given
        self.basis = basis
        self.reference = reference
        self.missing = missing
        self.unseen = unseen
        self.copy = copy
        self.moments = moments
        self.preserve = preserve
        self.shrinkage = shrinkage

    def _columns(self) -> Columns:
        return Columns(self.protected, False, self.basis, self.reference, self.missing, self.unseen, self.given)

    @by_blocks
    def fit(
        self,
        X: Table,
        y: Any = None,
        protected: Table | None = None,
        sample_weight: Any = None,
        cluster: Any = None,
    ) -> Self:
        """Learn the effects of the protected columns.

        Parameters
        ----------
        X : dataframe or array of shape (n, q), or a stream
            Features. A :class:`setsquare.Stream` (or what can be one) is read in two passes; it holds all columns, and
            the other arguments are their names.
        y : array of shape (n,), optional
            Outcome; used with ``preserve="outcome"`` only.
        protected : dataframe or array of shape (n, p), optional
        sample_weight : array of shape (n,), optional
        cluster : array of shape (n,), optional
            Cluster of each row, for example the patient. With ``using="features"`` the rows of a cluster are left out
            together, and ``new_rows_`` is about new clusters; otherwise not used.

        Returns
        -------
        self
        """
        X, protected = _read_both(X, protected)
        stream = as_stream(X)
        if stream is not None:
            return self._fit_stream(stream, protected, sample_weight)
        self._forget()
        refuse_drop(self.missing)
        check_given(self.given)
        check_erasure(self)
        if protected is not None and self.using == "protected":
            refuse_blind_scorers("LinearOrthogonalizer(protected=['age'])")
        table = validate_features(self, X, reset=True)
        as_codes = self.using == "protected" and self.given is None and self.moments == 1
        weight = read_weight(sample_weight, tables.n_rows(table))
        self.reader_, encoded = learn_reader(
            table, protected, self._columns(), as_stored=True, protected_as_codes=as_codes, weight=weight
        )
        Z = encoded.Z if isinstance(encoded.Z, np.ndarray) else dense(encoded.Z)
        self.controls_, P = learn_controls(self.reader_, encoded, weight)
        names = residual_names(self.reader_, self.controls_)
        if self.using == "features":
            _refuse_nothing_left(Z.shape[1], len(names))
            basis = protected_basis(P, weight, names)
            self._erase(Z, basis, P, weight, cluster, read_preserved(self.preserve, self.reader_, table, Z, y))
        elif self.moments == 2:
            share = None if self.shrinkage == "auto" else float(self.shrinkage)
            self.transport_ = Transport.fit(Z, P, weight, names, share)
            basis = self.transport_.first.basis
        else:
            self.projector_ = Projector.fit(Z, P, weight, names)
            basis = self.projector_.basis
        warn_dropped((*self.reader_.protected.constant, *basis.constant), basis.collinear)
        self.protected_names_ = np.asarray(self.reader_.protected.names, dtype=object)
        return self

    def _erase(
        self, Z: Array, basis: Basis, P: Array, weight: Array | None, cluster: Any, preserved: Array | None
    ) -> None:
        groups = None if cluster is None else read_cluster(cluster, len(P))
        if groups is not None:
            check_clusters(groups)
        if self.moments == 2:
            self.eraser_ = fit_quadratic(Z, basis, P, weight, preserved)
            warn_squares(self.eraser_)
            return
        if self.orthogonal_on == "new rows":
            self.eraser_ = Eraser.fit_for_new_rows(Z, basis, P, weight, groups)
        else:
            self.eraser_ = Eraser.fit(Z, basis, P, weight, self.reader_.feature_names, groups, preserved)
        warn_erased(self.eraser_.directions.shape[1], self.eraser_.rank)
        warn_new_rows(self.eraser_, self.orthogonal_on)

    @property
    def new_rows_(self) -> NewRows:
        """Estimated correlation with the protected columns on new rows, after the correction and before it."""
        check_is_fitted(self, "eraser_")
        if self.moments == 2:
            raise AttributeError("new_rows_ is about means: with moments=2, test new rows with setsquare.probe.")
        return NewRows(self.eraser_.left, self.eraser_.before)

    def adapt(self, X: Table, sample_weight: Any = None) -> Self:
        """Learn the correction again from rows whose protected columns need not be known; the prediction of them stays.

        Rows with protected columns are often few, and features without them many. What an erasure removes is an
        estimated covariance of all features with the predicted protected columns; these rows determine it better. Pass
        all rows that you have, the training rows included.

        Parameters
        ----------
        X : dataframe or array of shape (n, q)
        sample_weight : array of shape (n,), optional

        Returns
        -------
        self
        """
        check_is_fitted(self, "protected_names_")
        if self.using != "features" or self.orthogonal_on != "new rows":
            raise InputError('Only using="features" with orthogonal_on="new rows" can be adapted to other rows.')
        table = X if self.reader_.lacks_protected(X) else validate_features(self, X, reset=False)
        Z, pooled = self.reader_.stored_matrix(self.reader_.feature_table(table), learned=False)
        warn_pooled(pooled)
        Z = Z if isinstance(Z, np.ndarray) else dense(Z)
        weight = read_weight(sample_weight, len(Z))
        if len(Z) <= Z.shape[1]:
            raise InputError(
                f"Too few rows (n_samples = {len(Z)}) to adapt the correction of {Z.shape[1]} features: pass more rows "
                "than features, the training rows included."
            )
        require_finite("The features have", Z)
        self.eraser_ = self.eraser_.adapt(Z, weight)
        return self

    def transform(self, X: Table, protected: Table | None = None) -> Array:
        """Correct features, given the protected columns of the same rows unless ``using="features"``.

        Parameters
        ----------
        X : dataframe or array of shape (n, q)
        protected : dataframe or array of shape (n, p), optional
            Needed unless the constructor named columns of ``X``. Ignored with ``using="features"``, where named columns
            may also be absent from a dataframe ``X``.

        Returns
        -------
        ndarray of shape (n, number of coded features)
            In single precision if the features are.
        """
        return self._correct(X, protected, learned=False)

    @by_blocks
    def _correct(self, X: Table, protected: Table | None, *, learned: bool) -> Array:
        check_is_fitted(self, "protected_names_")
        X, protected = _read_both(X, protected)
        stream = as_stream(X)
        if stream is not None:
            return self._transform_stream(stream)
        alone = self.using == "features"
        table = X if alone and self.reader_.lacks_protected(X) else validate_features(self, X, reset=False)
        as_codes = getattr(self, "controls_", None) is None and not hasattr(self, "transport_")
        P, pooled = (None, {}) if alone else self.reader_.protected_matrix(table, protected, as_codes=as_codes)
        if P is not None:
            P = residuals(self.reader_, getattr(self, "controls_", None), table, P)  # older files have none
        Z, pooled_features = self.reader_.stored_matrix(self.reader_.feature_table(table), learned=learned)
        warn_pooled({**pooled, **pooled_features})
        Z = Z if isinstance(Z, np.ndarray) else dense(Z)
        if P is not None and hasattr(self, "transport_"):
            warn_unknown_cells(int(self.transport_.unknown(P).sum()), len(P))
            return self.transport_.apply(Z, P)
        out = Z if _may_overwrite(Z, table, self.copy) else None
        return self.eraser_.apply(Z, out) if P is None else self.projector_.apply(Z, P, out)

    def fit_transform(
        self,
        X: Table,
        y: Any = None,
        protected: Table | None = None,
        sample_weight: Any = None,
        cluster: Any = None,
    ) -> Array:
        """Learn the effects and correct the same rows."""
        X, protected = _read_both(X, protected)  # some queries can be read once only
        return self.fit(X, y, protected, sample_weight, cluster)._correct(X, protected, learned=True)

    def get_feature_names_out(self, input_features: Any = None) -> Any:
        """Names of the corrected features: the input features, with one name per dummy, without protected columns."""
        check_is_fitted(self, "protected_names_")
        return np.asarray(self.reader_.feature_names, dtype=object)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


def _read_both(X: Any, protected: Any) -> tuple[Any, Any]:
    """Features and protected columns of queries that were given apart, as tables; names of columns stay."""
    if protected is None or isinstance(protected, str | list | tuple):
        return X, protected
    return read_unread(X), read_unread(protected)


def _refuse_nothing_left(n_features: int, n_protected: int) -> None:
    """Refuse thousands of protected columns that would leave constants, before their basis takes minutes."""
    if n_protected > MANY_PROTECTED and n_protected >= n_features:
        raise InputError(
            f"{n_protected} protected columns would leave nothing of {n_features} features: merge rare levels, or "
            'choose using="protected", which corrects them given their level.'
        )


def _may_overwrite(Z: Array, table: Table, copy: bool) -> bool:
    """Whether the features are a temporary array, or the user allows to overwrite them."""
    if not isinstance(table, np.ndarray) or not np.may_share_memory(Z, table):
        return True
    return not copy and Z.flags.writeable and Z.flags.forc
