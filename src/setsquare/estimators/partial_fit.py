"""Incremental fit of the linear correction, from joint moments of protected columns and features."""

from __future__ import annotations

from functools import partial
from typing import Any, Self

import numpy as np
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from setsquare import tables
from setsquare._typing import Array, Table
from setsquare.errors import InputError
from setsquare.estimators.feature_table import validate_features
from setsquare.estimators.stream import assign, learn_stream, note_columns, numbers
from setsquare.estimators.warn import warn_dropped, warn_pooled
from setsquare.projection import Projector
from setsquare.projection.moments import Moments
from setsquare.rows import Stream
from setsquare.tables.frame import dense
from setsquare.tables.roles import Columns, Reader, learn_reader
from setsquare.tables.validation import read_weight, refuse_not_finite


def _can_grow(estimator: Any) -> bool:
    """Whether rows can be added to the fit; the error gives the reason if an earlier fit prevents it."""
    if hasattr(estimator, "projector_") and not hasattr(estimator, "moments_"):
        raise InputError(
            "This estimator was fitted with fit, which does not keep the moments that partial_fit updates: start with "
            "partial_fit instead."
        )
    return bool(getattr(estimator, "using", "protected") == "protected" and getattr(estimator, "moments", 1) == 1)


def refuse_drop(missing: str) -> None:
    """Raise for missing="drop" in a transformer, which must return as many rows as it receives."""
    if missing == "drop":
        raise InputError('A transformer cannot drop rows: use missing="level", or drop them beforehand.')


class MomentFitting:
    """Linear correction from moments, with incremental fits, merging and streams."""

    reader_: Reader
    moments_: Moments
    projector_: Projector

    def _columns(self) -> Columns:
        raise NotImplementedError

    @available_if(_can_grow)
    def partial_fit(self, X: Table, y: Any = None, protected: Table | None = None, sample_weight: Any = None) -> Self:
        """Update the fit with more rows.

        The first batch determines columns and levels. A level that first appears later raises an error, or counts as
        the reference level with ``unseen="pool"``. To use all levels of a large table, fit a :class:`setsquare.Stream`.

        The arguments are those of ``fit``.
        """
        self._check_moments()
        first = not hasattr(self, "moments_")
        table = validate_features(self, X, reset=first)
        pooled: dict[str, int] = {}
        weight = read_weight(sample_weight, tables.n_rows(table))
        if first:
            self.reader_, encoded = learn_reader(table, protected, self._columns(), weight=weight)
            Z, P = encoded.Z, encoded.X
        else:
            P, pooled_protected = self.reader_.protected_matrix(table, protected)
            Z, pooled_features = self.reader_.feature_matrix(self.reader_.feature_table(table))
            pooled = {**pooled_protected, **pooled_features}
        moments = Moments.of([P, dense(Z)], weight)
        warn_pooled(pooled)
        self._settle(moments if first else self.moments_.merge(moments))
        return self

    def merge(self, other: Self) -> Self:
        """Add the rows to which another estimator of the same columns was fitted, by ``partial_fit`` or to a stream."""
        for fitted in (self, other):
            check_is_fitted(fitted, "moments_")
        if self.reader_ != other.reader_:
            raise InputError(
                "The two estimators have different columns or levels: include every level in the first batch of both."
            )
        self._settle(self.moments_.merge(other.moments_))
        return self

    def _fit_stream(self, stream: Stream, protected: Any, weight: Any) -> Self:
        self._forget()
        self._check_moments()
        columns = self._columns()
        roles = assign(stream, None, protected, weight, None, columns)
        used = stream.select(roles.columns).keep()
        self.reader_ = learn_stream(used, roles, columns).reader
        assert self.reader_.features is not None
        width = len(self.reader_.features.names) + len(self.reader_.protected.names)
        note_columns(self, stream, roles)
        self._settle(used.parts(width).reduce(partial(_gather, self.reader_, roles.weight), Moments.merge))
        return self

    def _transform_stream(self, stream: Stream) -> Array:
        check_is_fitted(self, "projector_")
        columns = tuple(getattr(self, "feature_names_in_", stream.names))
        return np.concatenate(list(stream.select(columns).parts().map(self.transform)))  # type: ignore[attr-defined]

    def _forget(self) -> None:
        """Discard earlier rows: ``fit`` starts over."""
        for name in ("moments_", "projector_", "eraser_", "transport_"):
            self.__dict__.pop(name, None)

    def _check_moments(self) -> None:
        if not _can_grow(self):
            raise InputError(
                'Only using="protected" with moments=1 can be fitted in batches: pass all rows in memory to fit.'
            )
        if self._columns().given is not None:
            raise InputError("given= needs all rows at once: pass all rows in memory to fit.")
        refuse_drop(self._columns().missing)

    def _settle(self, moments: Moments) -> None:
        names = self.reader_.protected.names
        wrong = ~np.isfinite(np.diag(moments.scatter))
        if wrong.any():
            listed = ", ".join(np.asarray((*names, *self.reader_.feature_names), dtype=object)[wrong][:5])
            refuse_not_finite(f"Column(s) {listed} have")
        projector = Projector.of_moments(moments, names)
        warn_dropped((*self.reader_.protected.constant, *projector.basis.constant), projector.basis.collinear)
        self.moments_, self.projector_ = moments, projector
        self.protected_names_ = np.asarray(names, dtype=object)


def _gather(reader: Reader, weight: str | None, table: Table) -> Moments:
    """Joint moments of the columns of a batch, protected ones first."""
    features, protected = reader.features, reader.protected
    assert features is not None
    A = np.empty((tables.n_rows(table), len(protected.names) + len(features.names)), order="F")
    protected.write(table, A[:, : len(protected.names)])
    features.write(table, A[:, len(protected.names) :])
    return Moments.of(A, read_weight(numbers(table, weight, "weight"), len(A)))
