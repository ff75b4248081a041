"""Principal components of wide representations in memory or on disk, from their moments."""

from __future__ import annotations

from functools import partial
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from setsquare._typing import Array, Table
from setsquare.errors import InputError
from setsquare.estimators.stream import Roles, note_columns, require_numbers
from setsquare.projection.moments import Moments
from setsquare.rows import as_stream
from setsquare.rows.parallel import row_slices
from setsquare.tables.column import read_column
from setsquare.tables.frame import is_dataframe
from setsquare.tables.validation import read_weight, refuse_not_finite, require_finite


class PrincipalComponents(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Reduce embeddings to the components that explain a share of their variance.

    The rows are read once to fit and once to transform, in blocks: a memory-mapped ``.npy`` file is never loaded whole,
    and float16 or float32 rows are never copied to float64. Sums and components are float64.

    Parameters
    ----------
    n_components : int, float or None
        Number of components or, as a number between 0 and 1, the smallest share of the variance that they explain; None
        keeps all.
    center : bool
        Whether to subtract the means first; without this the result is the singular value decomposition of the rows.

    Attributes
    ----------
    components_ : ndarray of shape (n_components_, q)
        Orthonormal, by decreasing variance; the largest entry of each is positive.
    explained_variance_ratio_ : ndarray of shape (n_components_,)
    mean_ : ndarray of shape (q,)
        Subtracted from the rows; zero without `center`.
    n_components_ : int
    moments_ : Moments
        Moments of the rows so far, to which ``partial_fit`` and ``merge`` add.
    n_samples_seen_ : int

    Notes
    -----
    Components come from the q × q matrix of cross-products. Those with less than about 1e-8 of the largest standard
    deviation are rounding; an explained share of 98 or 99.9 % is far from that.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> Z = (rng.normal(size=(500, 3)) @ rng.normal(size=(3, 40)) + 0.01 * rng.normal(size=(500, 40))).astype("float16")
    >>> reduced = PrincipalComponents(n_components=0.98).fit_transform(Z)
    >>> reduced.shape, reduced.dtype
    ((500, 3), dtype('float32'))
    """

    def __init__(self, n_components: int | float | None = 0.98, *, center: bool = True) -> None:
        self.n_components = n_components
        self.center = center

    def fit(self, X: Table, y: Any = None, sample_weight: Any = None) -> Self:
        """Find the components of the rows of ``X`` (n, q), which may also be a :class:`setsquare.Stream` of numbers."""
        stream = as_stream(X)
        if stream is not None:
            note_columns(self, stream, Roles(stream.names, ()))
            moments = stream.parts().reduce(partial(_moments, stream.names), Moments.merge)
            return self._settle(moments, int(moments.weight))
        Z = self._validate(X, reset=True)
        return self._settle(Moments.of(Z, read_weight(sample_weight, len(Z))), len(Z))

    def partial_fit(self, X: Table, y: Any = None, sample_weight: Any = None) -> Self:
        """Find the components of the rows of ``X`` (n, q) and of all batches before."""
        first = not hasattr(self, "moments_")
        Z = self._validate(X, reset=first)
        moments = Moments.of(Z, read_weight(sample_weight, len(Z)))
        if first:
            return self._settle(moments, len(Z))
        return self._settle(self.moments_.merge(moments), self.n_samples_seen_ + len(Z))

    def merge(self, other: PrincipalComponents) -> Self:
        """Find the components of the rows of both."""
        for fitted in (self, other):
            check_is_fitted(fitted, "moments_")
        if self.n_features_in_ != other.n_features_in_:
            raise InputError(
                f"One has {self.n_features_in_} columns and the other {other.n_features_in_}: merge fits of the same "
                "columns."
            )
        return self._settle(self.moments_.merge(other.moments_), self.n_samples_seen_ + other.n_samples_seen_)

    def _settle(self, moments: Moments, n_rows: int) -> Self:
        wrong = ~np.isfinite(np.diag(moments.scatter))
        if wrong.any():
            names = getattr(self, "feature_names_in_", np.arange(len(wrong)))
            listed = ", ".join(str(name) for name in names[wrong][:5])
            refuse_not_finite(f"Column(s) {listed} have")
        scatter = moments.scatter
        if not self.center:
            scatter = scatter + moments.weight * np.outer(moments.mean, moments.mean)
        variance, vectors = np.linalg.eigh(scatter)
        variance, vectors = np.maximum(variance[::-1], 0.0), vectors[:, ::-1]
        total = float(variance.sum())
        share = variance / total if total > 0.0 else np.zeros_like(variance)
        k = self._count(share, min(len(share), n_rows))
        largest = np.take_along_axis(vectors, np.abs(vectors).argmax(axis=0)[None], axis=0)
        self.components_ = np.ascontiguousarray((vectors * np.where(largest < 0.0, -1.0, 1.0)).T[:k])
        self.explained_variance_ratio_ = share[:k]
        self.mean_ = moments.mean if self.center else np.zeros_like(moments.mean)
        self.moments_, self.n_samples_seen_, self.n_components_ = moments, n_rows, k
        return self

    def transform(self, X: Table) -> Array:
        """Coordinates of the rows of ``X`` (n, q), in float32 unless they are float64."""
        check_is_fitted(self, "components_")
        stream = as_stream(X)
        if stream is not None:
            return np.concatenate(list(stream.parts().map(self.transform)))
        Z = self._validate(X, reset=False)
        reduced = np.empty((len(Z), self.n_components_), dtype=np.result_type(Z.dtype, np.float32))
        shift = self.components_ @ self.mean_
        for rows in row_slices(*Z.shape):
            reduced[rows] = np.asarray(Z[rows], dtype=np.float64) @ self.components_.T - shift
        require_finite("The rows have", reduced)
        return reduced

    def _validate(self, X: Table, *, reset: bool) -> Array:
        # Values are checked where they are read: a pass over a file for that alone would double the work. Rows of a
        # file that are no array, but can be cut like one, are left where they are.
        lazy = not isinstance(X, np.ndarray) and not is_dataframe(X) and _is_matrix(X)
        kinds = (np.float64, np.float32, np.float16)
        checks = {"skip_check_array": True} if lazy else {"dtype": kinds, "ensure_all_finite": False}
        Z: Array = validate_data(self, X, reset=reset, **checks)
        return Z

    def _count(self, share: Array, largest: int) -> int:
        """Number of components that were asked for."""
        asked = self.n_components
        if asked is None:
            return largest
        if isinstance(asked, float | np.floating):
            if not 0.0 < asked <= 1.0:
                raise InputError(
                    f"n_components={asked!r} must be a share of the variance between 0 and 1, such as 0.98, or a whole "
                    "number of components."
                )
            reached = np.flatnonzero(np.cumsum(share) >= asked - 1e-12)
            return max(1, min(int(reached[0]) + 1 if len(reached) else largest, largest))
        if not 1 <= asked <= largest:
            raise InputError(
                f"n_components={asked} is not possible: the rows and columns of the table allow 1 to {largest}."
            )
        return int(asked)

    @property
    def _n_features_out(self) -> int:
        return int(self.n_components_)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


def _moments(columns: tuple[str, ...], table: Table) -> Moments:
    return Moments.of(np.stack([require_numbers(read_column(table, name), name, "feature") for name in columns]).T)


def _is_matrix(X: Any) -> bool:
    """Whether slices of ``X`` are arrays of floating-point numbers."""
    kind = getattr(getattr(X, "dtype", None), "kind", None)
    return kind == "f" and getattr(X, "ndim", None) == 2 and len(X) > 0 and isinstance(X[:1], np.ndarray)
