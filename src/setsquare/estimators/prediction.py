"""A correction around any model: its predictions made orthogonal to the protected columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

import numpy as np
from sklearn.base import BaseEstimator, MetaEstimatorMixin, clone, is_classifier
from sklearn.frozen import FrozenEstimator
from sklearn.utils import get_tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, has_fit_parameter

from setsquare import families, tables
from setsquare._typing import Array, Table
from setsquare.errors import InputError, NotOrthogonalError
from setsquare.estimators.controls import check_given, learn_controls, residual_names, residuals
from setsquare.estimators.feature_table import validate_features
from setsquare.estimators.folds import IN_SAMPLE, check_cv_text, cross_fitted_predictions, split_rows
from setsquare.estimators.scoring import refuse_blind_scorers
from setsquare.estimators.training_rows import sign_of_training
from setsquare.estimators.warn import (
    warn_boundary,
    warn_dropped,
    warn_outside,
    warn_pooled,
    warn_training_rows,
    warn_unweighted,
)
from setsquare.families.activations import Activation, boundary_distances, scores_of
from setsquare.notes import Note, Option
from setsquare.projection import GeneralizedProjector, Projector
from setsquare.rows.parallel import single_threaded_blas
from setsquare.tables.arrow import accept_unread
from setsquare.tables.outcome import read_outcome
from setsquare.tables.roles import Columns, TrainingMatrices, learn_reader
from setsquare.tables.validation import check_alignment, check_choice, check_finite, read_weight, refuse_coding

#: Number of protected columns, dummies counted, up to which a correction takes seconds.
MOST_COLUMNS = 1000


def _wraps_classifier(self: PredictionOrthogonalizer) -> bool:
    return bool(is_classifier(self.estimator))


class PredictionOrthogonalizer(MetaEstimatorMixin, BaseEstimator):
    """Make the predictions of any model orthogonal to the protected columns; needs the protected columns to predict.

    Around any classifier or regressor, fitted or not: linear models, gradient boosting, forests, networks.

    * ``method="generalized"``: probabilities become ``h(eta - a - Xc b)`` with the smallest change of their scores
      ``eta`` that makes the predictions it is learned on orthogonal. They stay in their range and keep their mean.
    * ``method="linear"`` (Lemma 3): subtracts the least-squares effect of the protected columns from the predictions.
      Orthogonal too, but probabilities can leave [0, 1]; the number that do is in ``n_outside_``.

    The correction is learned on predictions for rows that the model has not seen, because an overfitted model predicts
    its training rows differently from new ones. Around an unfitted model these are cross-fitted predictions: each row
    is predicted by a model fitted without its fold. They are orthogonal exactly after the correction. The model itself
    is then fitted to all rows, so that its predictions on new rows are orthogonal up to sampling error, and those on
    the training rows are not. ``cv="training rows"`` makes these exactly orthogonal instead, which holds on new rows
    only as far as the model does not overfit.

    Predictions on the boundary of their range (a forest's probabilities of 0 and 1) have no finite score: they are
    moved inside by half the distance of the nearest other prediction from that end (``boundary_``), and counted in
    ``n_boundary_``; the mean that is kept is that of the predictions as they were.

    Parameters
    ----------
    estimator : estimator
        Classifier with ``predict_proba`` or regressor. An estimator that is fitted already is wrapped in
        ``sklearn.frozen.FrozenEstimator``, or given with ``prefit``.
    method : {"generalized", "linear"}
    protected : str, int, sequence of either, optional
        Columns inside the feature table, or a formula over them. By default they are given to ``fit`` and ``predict``.
        Name them here in cross-validation and searches: scikit-learn's scorers pass only features to ``predict``.
    activation : str, optional
        Activation whose range the predictions keep: by default that of the probabilities for a classifier and the
        identity for a regressor; "exp" for positive predictions (counts, costs).
    cv : int, splitter, iterable, "training rows" or None
        Folds of the cross-fitted predictions (shuffled for a number, stratified for a classifier; a cluster is never
        split), which take as many further fits. "training rows" or None learns the correction on the model's
        predictions for its own training rows. Not used around a fitted model.
    prefit : bool or "held out"
        Whether the estimator is fitted already and must not be refitted. The correction is then learned on the rows
        given to ``fit``, which must be rows that it was not fitted on; "held out" confirms this. Otherwise, or where
        the rows look like training rows all the same, a :class:`~setsquare.errors.TrainingRowsWarning` says so.
    use_protected : bool
        Whether the model may see protected columns that are inside the feature table.
    given : columns inside the feature table, by name or position, optional
        Controls: regressing the corrected predictions on both, the effects of the protected columns are zero. Given
        columns stay among the features.
    basis : {"linear", "cells", "spline", "kernel"}, formula or transformer
        Functions of the protected columns to which the predictions are orthogonal; see
        :class:`OrthogonalGLMClassifier`.
    reference : mapping of column to level, optional
    missing : {"error", "level"}
        Rule for missing values of protected columns.
    unseen : {"error", "pool"}
    random_state : int
        Random seed for the folds.

    Attributes
    ----------
    estimator_ : estimator
        The model, fitted to all rows.
    projector_ : GeneralizedProjector or Projector
    learned_on_ : {"cross-fitted predictions", "training rows", "rows given"}
        Predictions on which the correction is exact, and which the counts below are about.
    n_boundary_, n_outside_ : int
        Rows whose prediction was on the boundary, or is outside the range after a linear correction.
    classes_ : ndarray
        Classes of a classifier.
    protected_names_ : ndarray of str

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.ensemble import HistGradientBoostingClassifier
    >>> from setsquare import PredictionOrthogonalizer
    >>> rng = np.random.default_rng(0)
    >>> age = rng.normal(size=500)
    >>> Z = np.column_stack([age + rng.normal(size=500), rng.normal(size=500)])
    >>> y = (Z.sum(axis=1) + rng.normal(size=500) > 0).astype(int)
    >>> boosting = HistGradientBoostingClassifier(max_iter=20)
    >>> model = PredictionOrthogonalizer(boosting).fit(Z[:300], y[:300], protected=age[:300])
    >>> before, after = boosting.fit(Z[:300], y[:300]).predict_proba(Z[300:]), model.predict_proba(Z[300:], age[300:])
    >>> [round(float(np.corrcoef(age[300:], p[:, 1])[0, 1]), 1) for p in (before, after)]
    [0.6, 0.0]
    """

    @refuse_coding
    def __init__(
        self,
        estimator: Any,
        method: str = "generalized",
        protected: str | int | Sequence[str | int] | None = None,
        *,
        activation: str | None = None,
        cv: Any = 5,
        prefit: bool | Literal["held out"] = False,
        use_protected: bool = False,
        given: str | int | Sequence[str | int] | None = None,
        basis: Any = "linear",
        reference: Mapping[str, Any] | None = None,
        missing: str = "error",
        unseen: str = "error",
        random_state: int = 0,
    ) -> None:
        self.estimator = estimator
        self.method = method
        self.protected = protected
        self.activation = activation
        self.cv = cv
        self.prefit = prefit
        self.use_protected = use_protected
        self.given = given
        self.basis = basis
        self.reference = reference
        self.missing = missing
        self.unseen = unseen
        self.random_state = random_state

    @accept_unread
    def fit(
        self, X: Table, y: Any, protected: Table | None = None, sample_weight: Any = None, cluster: Any = None
    ) -> Self:
        """Fit the model (unless it is fitted) and learn the correction of its predictions.

        Parameters
        ----------
        X : dataframe or array of shape (n, q)
            Features, passed to the model unchanged.
        y : array of shape (n,)
        protected : dataframe or array of shape (n, p), optional
        sample_weight : array of shape (n,), optional
            Weights of the correction, and of the model where it takes them.
        cluster : array of shape (n,), optional
            Cluster of each row, for example the patient; a fold holds out whole clusters.

        Returns
        -------
        self
        """
        check_choice("method", self.method, ("generalized", "linear"))
        check_given(self.given)
        if not isinstance(self.prefit, bool | np.bool_):
            check_choice("prefit", self.prefit, ("held out",))
        if isinstance(self.cv, str):
            check_cv_text(self.cv)
        if self.missing == "drop":
            raise InputError('Predictions are made for every row, so none can be dropped: use missing="level".')
        if protected is not None:
            refuse_blind_scorers("PredictionOrthogonalizer(..., protected=['age'])")
        table = validate_features(self, X, reset=True)
        columns = Columns(
            self.protected, self.use_protected, self.basis, self.reference, self.missing, self.unseen, self.given
        )
        weight = read_weight(sample_weight, tables.n_rows(table))
        self.reader_, encoded = learn_reader(table, protected, columns, code_features=False, weight=weight)
        P = encoded.X
        if P.shape[1] > MOST_COLUMNS:
            raise InputError(
                f"The protected columns have {P.shape[1]} columns, dummies of levels counted; predictions can be "
                f"corrected for at most {MOST_COLUMNS}: pool rare levels, or leave out columns that are identifiers."
            )
        check_finite(P, self.reader_.protected.names, "protected column")
        self.protected_names_ = np.asarray(self.reader_.protected.names, dtype=object)
        features = self.reader_.feature_table(table)
        check_alignment(table, y, "the outcome")
        y = read_outcome(y, len(P))
        if self.prefit or isinstance(self.estimator, FrozenEstimator):
            predictions = self._predict_fitted(features, y)
        else:
            predictions = self._fit_model(features, y, weight, cluster)
        if is_classifier(self.estimator_):
            self.classes_ = self.estimator_.classes_
        self.controls_, P = learn_controls(self.reader_, encoded, weight)
        self._learn_correction(predictions, P, weight)
        return self

    @accept_unread
    def adapt(self, X: Table, protected: Table | None = None, sample_weight: Any = None) -> Self:
        """Learn the correction again from other rows, whose outcomes need not be known; the model is unchanged.

        A correction learned on other rows leaves sampling error on new ones, and more than that if the new rows come
        from another population. Adapted to a batch that the model was not fitted on, predictions are exactly orthogonal
        on it.

        Parameters
        ----------
        X : dataframe or array of shape (n, q)
        protected : dataframe or array of shape (n, p), optional
        sample_weight : array of shape (n,), optional
            Weights of the correction.

        Returns
        -------
        self
        """
        table, P, predictions = self._read(X, protected)
        weight = read_weight(sample_weight, len(P))
        rows = TrainingMatrices(None, P, None, self.reader_.given_matrix(table))
        self.controls_, P = learn_controls(self.reader_, rows, weight)
        self._learn_correction(predictions, P, weight)
        self.learned_on_ = "rows given"
        return self

    def _predict_fitted(self, features: Table, y: Any) -> Array:
        """Predictions (n, k) of a model that is fitted already, which should not have seen these rows."""
        check_is_fitted(self.estimator)
        self.estimator_, self.learned_on_ = self.estimator, "rows given"
        predictions = _raw_predictions(self.estimator_, features)
        if np.isfinite(predictions).all():
            warn_training_rows(sign_of_training(self.estimator_, predictions, y), self.prefit == "held out")
        return predictions

    def _fit_model(self, features: Table, y: Any, weight: Array | None, cluster: Any) -> Array:
        """Fit the model to all rows; the result are the predictions that the correction is learned on, (n, k)."""
        if is_classifier(self.estimator):
            check_classification_targets(y)
        in_sample = self.cv is None or isinstance(self.cv, str)
        folds = None if in_sample else split_rows(self.cv, y, cluster, is_classifier(self.estimator), self.random_state)
        takes_weight = has_fit_parameter(self.estimator, "sample_weight")
        if weight is not None and not takes_weight:
            warn_unweighted(type(self.estimator).__name__)
        options = {"sample_weight": weight} if weight is not None and takes_weight else {}
        self.estimator_ = clone(self.estimator).fit(features, y, **options)
        if folds is None:
            self.learned_on_ = IN_SAMPLE
            return _raw_predictions(self.estimator_, features)
        _check_probabilities(self.estimator_)
        self.learned_on_ = "cross-fitted predictions"
        held_out = cross_fitted_predictions(self.estimator, features, y, folds, options)
        return _as_units(held_out, is_classifier(self.estimator_))

    def _learn_correction(self, predictions: Array, P: Array, weight: Array | None) -> None:
        check_finite(predictions, [f"prediction {k}" for k in range(predictions.shape[1])], "")
        self.activation_ = self._activation(predictions)
        names = residual_names(self.reader_, self.controls_)
        self.n_boundary_, self.n_outside_ = 0, 0
        if self._is_linear():
            self.projector_: Any = Projector.fit(predictions, P, weight, names)
            low, high = self.activation_.range
            corrected = self.projector_.apply(predictions, P)
            self.n_outside_ = int(np.count_nonzero(((corrected < low) | (corrected > high)).any(axis=1)))
            warn_outside(self.n_outside_, len(corrected))
        else:
            self.boundary_ = boundary_distances(predictions, self.activation_)
            eta, self.n_boundary_ = scores_of(predictions, self.activation_, self.boundary_)
            warn_boundary(self.n_boundary_, len(eta), max(self.boundary_))
            w = np.full(len(P), 1.0) if weight is None else weight
            with single_threaded_blas():
                self.projector_ = GeneralizedProjector.fit(
                    eta, P, self.activation_, weight, target=np.average(predictions, axis=0, weights=w), names=names
                )
            if not self.projector_.converged.all():
                text = (
                    "The generalised projection did not reach its optimum (largest association left {left:.1e}): use "
                    "{linear}, or fewer protected columns."
                )
                left, linear = float(self.projector_.residual.max()), Option("method", "linear")
                raise NotOrthogonalError(Note("not-orthogonal", text, left=left, linear=linear))
        warn_dropped(
            (*self.reader_.protected.constant, *self.projector_.basis.constant), self.projector_.basis.collinear
        )

    def _is_linear(self) -> bool:
        """The generalised projection of the identity is the linear one."""
        return self.method == "linear" or self.activation_.name == "identity"

    def _activation(self, predictions: Array) -> Activation:
        if self.activation is not None:
            h = families.activation(self.activation)
        elif is_classifier(self.estimator_):
            h = families.activation("sigmoid" if predictions.shape[1] == 1 else "softmax")
        else:
            h = families.activation("identity")
        low, high = h.range
        outside = int(np.count_nonzero((predictions < low) | (predictions > high)))
        if outside or h.inverse is None:
            raise InputError(
                f"{outside} prediction(s) lie outside the range of the activation {h.name}: choose another activation."
            )
        return h

    def _read(self, X: Table, protected: Table | None) -> tuple[Table, Array, Array]:
        """Table and protected columns of new rows, and what the model predicts for them."""
        check_is_fitted(self, "projector_")
        table = validate_features(self, X, reset=False)
        P, pooled = self.reader_.protected_matrix(table, protected)
        warn_pooled(pooled)
        return table, P, _raw_predictions(self.estimator_, self.reader_.feature_table(table))

    def _corrected(self, X: Table, protected: Table | None) -> Array:
        table, P, predictions = self._read(X, protected)
        P = residuals(self.reader_, getattr(self, "controls_", None), table, P)  # models of older files have none
        if self._is_linear():
            return np.asarray(self.projector_.apply(predictions, P))
        eta, _ = scores_of(predictions, self.activation_, self.boundary_)
        return np.asarray(self.projector_.predict(eta, P))

    @available_if(_wraps_classifier)
    @accept_unread
    def predict_proba(self, X: Table, protected: Table | None = None) -> Array:
        """Corrected probabilities, (n, n_classes), given the protected columns of the same rows."""
        p = self._corrected(X, protected)
        return np.column_stack([1.0 - p, p]) if p.shape[1] == 1 else p

    @accept_unread
    def predict(self, X: Table, protected: Table | None = None) -> Any:
        """Corrected predictions, (n,): most probable classes or means, given the protected columns of the same rows."""
        check_is_fitted(self, "projector_")
        if is_classifier(self.estimator):
            return self.classes_[self.predict_proba(X, protected).argmax(axis=1)]
        return self._corrected(X, protected)[:, 0]

    @accept_unread
    def score(self, X: Table, y: Any, protected: Table | None = None, sample_weight: Any = None) -> float:
        """Accuracy of a classifier, R² of a regressor, after the correction."""
        from sklearn.metrics import accuracy_score, r2_score

        metric = accuracy_score if is_classifier(self.estimator) else r2_score
        return float(metric(y, self.predict(X, protected), sample_weight=sample_weight))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        inner = get_tags(self.estimator)
        tags.estimator_type = inner.estimator_type
        tags.classifier_tags, tags.regressor_tags = inner.classifier_tags, inner.regressor_tags
        tags.input_tags.sparse = inner.input_tags.sparse
        tags.target_tags.required = True
        return tags


def _raw_predictions(model: Any, features: Table) -> Array:
    """Predictions (n, k): the second class's probability, those of K > 2 classes, or means."""
    if not is_classifier(model):
        return _as_units(model.predict(features), False)
    _check_probabilities(model)
    return _as_units(model.predict_proba(features), True)


def _check_probabilities(model: Any) -> None:
    if is_classifier(model) and not hasattr(model, "predict_proba"):
        raise InputError(
            f"{type(model).__name__} has no predict_proba: wrap it in CalibratedClassifierCV to get probabilities."
        )


def _as_units(predictions: Any, classes: bool) -> Array:
    values = np.asarray(predictions, dtype=np.float64)
    if not classes:
        return values.reshape(len(values), -1)
    return values[:, 1:] if values.shape[1] == 2 else values
